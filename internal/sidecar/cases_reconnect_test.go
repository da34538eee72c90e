// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

// echoes sends a message and wants it back.
func echoes(t *testing.T, c *websocket.Conn) {
	t.Helper()
	if err := c.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, message, err := c.ReadMessage(); err != nil || string(message) != "hello" {
		t.Errorf("echo %q, %v", message, err)
	}
}

// TestAHandshakeOutlivesARestart: the upstream is down when the app opens its
// WebSocket. With reconnect the app waits and gets it; without, the failure.
func TestAHandshakeOutlivesARestart(t *testing.T) {
	up := newSocketServer(t)
	down := net.JoinHostPort("127.0.0.1", testenv.FreePort(t))
	r := start(t, down, "upstreams:\n  up: {url: 'http://UPSTREAM', reconnect: true}\n  hasty: {url: 'http://UPSTREAM'}\n")
	if _, resp, err := websocket.DefaultDialer.Dial("ws://"+r.addr+"/hasty/v1/realtime", nil); err == nil || resp == nil || resp.StatusCode != http.StatusBadGateway {
		t.Errorf("without reconnect: %v, %v", resp, err)
	}
	type opened struct {
		c   *websocket.Conn
		err error
	}
	got := make(chan opened, 1)
	go func() {
		c, _, err := websocket.DefaultDialer.Dial("ws://"+r.addr+"/up/v1/realtime", nil)
		got <- opened{c, err}
	}()
	r.metricAtLeast(`warmwire_retries_total{decision="retried",reason="unsent",upstream="up"}`, 4) // three of its own for what was not sent
	ln, err := net.Listen("tcp", down)
	if err != nil {
		t.Fatal(err)
	}
	back := &http.Server{Handler: up.Config.Handler}
	go func() { _ = back.Serve(ln) }()
	t.Cleanup(func() { _ = back.Close() })
	select {
	case o := <-got:
		if o.err != nil {
			t.Fatal(o.err)
		}
		echoes(t, o.c)
		_ = o.c.Close()
	case <-time.After(3 * patience):
		t.Fatal("no WebSocket though the upstream is back")
	}
}

// front starts haproxy with TLS before a WebSocket server, and returns its URL and the
// file of its certificate.
func front(t *testing.T, up *socketServer, idle string) (url, cert string) {
	t.Helper()
	haproxy := testenv.Need(t, "haproxy")
	dir, port := t.TempDir(), testenv.FreePort(t)
	cert, key := testenv.Certificate(t, dir, "127.0.0.1")
	both := filepath.Join(dir, "both.pem")
	conf := filepath.Join(dir, "haproxy.cfg")
	for name, text := range map[string]string{both: readFile(t, cert) + readFile(t, key), conf: fmt.Sprintf(`defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout http-keep-alive %s
  timeout server 30s
frontend in
  bind 127.0.0.1:%s ssl crt %s alpn h2,http/1.1
  http-request return status 200 if { path /hello }
  default_backend out
backend out
  server one %s
`, idle, port, both, up.addr())} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	number, _ := strconv.Atoi(port)
	testenv.Run(t, exec.Command(haproxy, "-db", "-f", conf), number)
	return "https://127.0.0.1:" + port, cert
}

// TestWebSocketOverHTTP2ThroughTheProduct: one connection to haproxy carries a call and
// then a WebSocket with heartbeats; the app speaks HTTP/1.1 and notices nothing. A
// reload that forbids it takes effect with the next one.
func TestWebSocketOverHTTP2ThroughTheProduct(t *testing.T) {
	up := newSocketServer(t)
	url, cert := front(t, up, "30s")
	more := func(websocketHTTP2 bool) string {
		return fmt.Sprintf("upstreams:\n  up: {url: '%s', tls: {ca_file: %s}, websocket_http2: %v, heartbeat: {mode: fixed, min_interval: 1s, max_interval: 1s}}\n", url, cert, websocketHTTP2)
	}
	r := start(t, "", more(true))
	if status, _ := r.call("/up/hello"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	var pings atomic.Int32
	c := r.socket(&pings)
	echoes(t, c)
	go func() { _, _, _ = c.ReadMessage() }()
	for deadline := time.Now().Add(patience); up.pings.Load() < 2 || pings.Load() < 2; {
		if time.Now().After(deadline) {
			t.Fatalf("%d pings to the upstream, %d to the app", up.pings.Load(), pings.Load())
		}
		<-time.NewTimer(10 * time.Millisecond).C
	}
	open := `warmwire_upstream_connections{protocol="HTTP/1.1",upstream="up"}`
	if page := r.get("/metrics"); strings.Contains(page, open+" 1") {
		t.Errorf("it has an HTTP/1.1 connection: %s", page)
	}
	_ = c.Close()
	r.write("", more(false))
	if err := r.s.Reload(); err != nil {
		t.Fatal(err)
	}
	if status, _ := r.call("/up/hello"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	c = r.socket(&pings)
	echoes(t, c)
	r.metric(open + " 1")
}

// TestASpareConnectionTriesThePath: beside an open WebSocket a connection that serves
// nobody is opened and left silent; it ends with the WebSocket, and there is
// none if that is not wanted.
func TestASpareConnectionTriesThePath(t *testing.T) {
	up := newSocketServer(t)
	url, cert := front(t, up, "30s")
	r := start(t, "", fmt.Sprintf("upstreams:\n  up: {url: '%s', protocols: [h2, http/1.1], tls: {ca_file: %[2]s}, websocket_http2: false, heartbeat: {min_interval: 1s}}\n"+
		"  blind: {url: '%[1]s', tls: {ca_file: %[2]s}, websocket_http2: false, heartbeat: {min_interval: 1s, search: false}}\n", url, cert))
	spare := `warmwire_upstream_connections{protocol="HTTP/2.0",upstream="up"}`
	var pings atomic.Int32
	blind, _, err := websocket.DefaultDialer.Dial("ws://"+r.addr+"/blind/v1/realtime", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blind.Close() }()
	c := r.socket(&pings)
	echoes(t, c)
	r.metric(spare + " 1")
	if page := r.get("/metrics"); strings.Contains(page, `protocol="HTTP/2.0",upstream="blind"`) {
		t.Errorf("search: false opens one: %s", page)
	}
	_ = c.Close()
	r.metric(spare + " 0")
}
