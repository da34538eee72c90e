// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestRequestsInClearInsideATunnel are those of an app that tunnels http URLs too, as
// undici's EnvHttpProxyAgent does: they mean what absolute form means.
func TestRequestsInClearInsideATunnel(t *testing.T) {
	r := newTLSRig(t, func(_ *Config, _ *Table, u *Upstream) { u.SetHeaders = http.Header{"Authorization": {"injected"}} })
	app := connect(r.rig, host+":80")
	for range 2 {
		app.Send("POST /v1/x?q HTTP/1.1\nHost: " + host + "\nContent-Length: 8\n\nquestion")
		resp, err := http.ReadResponse(app.In, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"Proto":"HTTP/2.0"`) || !strings.Contains(string(body), "injected") ||
			!strings.Contains(string(body), `"Body":"question"`) {
			t.Errorf("%s: %s", resp.Status, body)
		}
		if rec := r.record(); rec.Mode != ModeIntercept || rec.Upstream != "up" || rec.Outcome != OutcomeOK {
			t.Errorf("record %+v", rec)
		}
	}
	r.result(InterceptPlain)
	app.Send("GET / HTTP/1.1\nHost: other.example\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 421 ") {
		t.Errorf("a request for another host: %s", head)
	}
}

// TestRequestsInClearByNode is one client that does so.
func TestRequestsInClearByNode(t *testing.T) {
	node := testenv.Need(t, "node")
	r := newTLSRig(t, nil)
	script := strings.NewReplacer("https = require(\"https\")", "https = require(\"http\")", ":443", ":80",
		"tls.connect({socket, servername: host, ca: fs.readFileSync(ca), ALPNProtocols: [\"http/1.1\"]})", "socket").Replace(nodeClient)
	if out := program(t, node, "-e", script, "--", r.addr, host, r.ca); out != "200 question\n200 question\n" {
		t.Errorf("node printed %q", out)
	}
	r.result(InterceptPlain)
}

// TestRequestsInClearOverHTTP2 begin with its preface.
func TestRequestsInClearOverHTTP2(t *testing.T) {
	curl := testenv.Need(t, "curl")
	r := newTLSRig(t, nil)
	out := program(t, curl, "-sS", "--http2-prior-knowledge", "--proxytunnel", "-x", "http://"+r.addr, "-w", "\n%{http_version}", "http://"+host+"/v1?q")
	if !strings.Contains(out, `"Target":"/v1?q"`) || !strings.HasSuffix(out, "\n2") {
		t.Errorf("curl printed %s", out)
	}
	r.result(InterceptPlain)
}

// TestWebSocketInClearInsideATunnel is what proxy agents of WebSocket libraries do for ws URLs.
func TestWebSocketInClearInsideATunnel(t *testing.T) {
	up := websocket.Upgrader{}
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		if kind, text, err := c.ReadMessage(); err == nil && c.WriteMessage(kind, text) == nil {
			_, _, _ = c.ReadMessage()
		}
	}))
	defer site.Close()
	tlsSite := httptest.NewTLSServer(http.HandlerFunc(echo)) // for the rig; nothing goes there
	defer tlsSite.Close()
	r := newTLSRigFor(t, tlsSite, func(_ *Config, tab *Table, u *Upstream) {
		u.URL.Host = "other.example"
		tr := newTransport()
		t.Cleanup(tr.CloseIdleConnections)
		var dialer net.Dialer
		tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, site.Listener.Addr().String())
		}
		tab.Forward.Transport = tr
	})
	d := websocket.Dialer{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}), HandshakeTimeout: patience}
	c, resp, err := d.Dial("ws://"+host+":8080/v1/realtime", nil)
	if err != nil {
		t.Fatal(err, resp)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if err := c.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := c.ReadMessage(); err != nil || string(text) != "hello" {
		t.Fatalf("%q, %v", text, err)
	}
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(patience))
	_, _, _ = c.ReadMessage()
	if rec := r.record(); rec.Mode != ModeWebSocket || rec.Outcome != OutcomeOK {
		t.Errorf("record %+v", rec)
	}
	r.result(InterceptPlain)
}

// TestRulesForHostsHoldInsideATunnel changes the rules while a tunnel is open: its next
// request is refused, whatever form it has, and the upstream hears nothing of it.
func TestRulesForHostsHoldInsideATunnel(t *testing.T) {
	for name, rule := range map[string]func(*Forward){
		"forward.deny":    func(f *Forward) { f.Deny = func(h string) bool { return h == host } },
		"forward.default": func(f *Forward) { f.DenyAll = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newTLSRig(t, func(_ *Config, _ *Table, u *Upstream) { u.URL.Host = "other.example" })
			h1, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.roots})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h1.Close() }()
			in := bufio.NewReader(h1)
			ask := func(head string) *http.Response {
				if _, err := io.WriteString(h1, head); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				return resp
			}
			if resp := ask("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"); resp.StatusCode != http.StatusOK {
				t.Fatalf("before the rule: %s", resp.Status)
			}
			h2 := r.through(r.roots, true)
			r.fetch(h2, http.MethodGet, "https://"+host+"/", "")

			changed := *r.table
			rule(&changed.Forward)
			if err := r.server.Update(&changed); err != nil {
				t.Fatal(err)
			}
			for _, head := range []string{
				"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
				"GET / HTTP/1.1\r\nHost: EXAMPLE.com:443\r\n\r\n",
				"GET https://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
				"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
			} {
				if resp := ask(head); resp.StatusCode != http.StatusForbidden {
					t.Errorf("%q: %s, want 403", head, resp.Status)
				}
			}
			resp, err := h2.Get("https://" + host + "/")
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden || resp.Proto != "HTTP/2.0" {
				t.Errorf("%s %s, want 403", resp.Proto, resp.Status)
			}
			// A new tunnel is refused as such, also where nothing but clear requests would come.
			for _, port := range []string{"443", "80"} {
				app := r.dial()
				app.Send("CONNECT " + host + ":" + port + " HTTP/1.1\nHost: " + host + "\n\n")
				if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 403 ") {
					t.Errorf("CONNECT %s: %s", port, head)
				}
			}
		})
	}
}

// TestATunnelIsNoWayAround asks, inside a tunnel to a host that is let in, for one that is not.
func TestATunnelIsNoWayAround(t *testing.T) {
	r := newTLSRig(t, func(_ *Config, tab *Table, u *Upstream) {
		u.URL.Host = "other.example"
		tab.Forward.Deny = func(h string) bool { return h == "denied.example" || h == "169.254.169.254" }
	})
	tlsConn, err := r.open(host+":443", &tls.Config{ServerName: host, RootCAs: r.roots})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tlsConn.Close() }()
	app := connect(r.rig, host+":80")
	inTLS := bufio.NewReadWriter(bufio.NewReader(tlsConn), bufio.NewWriter(tlsConn))
	inClear := bufio.NewReadWriter(app.In, bufio.NewWriter(app.TCPConn))
	for _, target := range []struct{ line, host string }{
		{"/", "denied.example"}, {"/latest/meta-data/", "169.254.169.254"}, {"https://denied.example/", host}, {"http://denied.example/", host},
		{"https://denied.example/", "denied.example"}, {"http://169.254.169.254/", "169.254.169.254"}, {"/", "[::1]:8485"},
	} {
		head := "GET " + target.line + " HTTP/1.1\r\nHost: " + target.host + "\r\n\r\n"
		for where, c := range map[string]*bufio.ReadWriter{"TLS": inTLS, "clear": inClear} {
			_, _ = c.WriteString(head)
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(c.Reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("%s, %q: %s, want 421: %s", where, head, resp.Status, body)
			}
		}
	}
}
