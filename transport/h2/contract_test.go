// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/warmwire/warmwire/transport/contract"
)

// A peer is one of the servers that the client contract is run against.
type peer struct {
	name string
	dial func(t testing.TB, h http.Handler) net.Conn
}

func goPeers() []peer {
	return []peer{{"go tls", dialTLS}, {"go h2c", dialH2C}}
}

func dialTLS(t testing.TB, h http.Handler) net.Conn {
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	cfg := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	cfg.NextProtos, cfg.ServerName = []string{"h2"}, "example.com"
	nc, err := tls.Dial("tcp", srv.Listener.Addr().String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func dialH2C(t testing.TB, h http.Handler) net.Conn {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	nc, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func start(t testing.TB, nc net.Conn, cfg Config) *Conn {
	t.Helper()
	c, err := New(nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func request(t testing.TB, method, target string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, "https://example.com"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// eventually waits for what other goroutines bring about.
var eventually = contract.Eventually

func TestContract(t *testing.T) {
	for _, p := range goPeers() {
		var c *Conn
		target := contract.Target{Name: p.name, Major: 2, Open: func(t testing.TB, h http.Handler) contract.Conn {
			c = start(t, p.dial(t, h), Config{})
			t.Cleanup(func() {
				contract.Eventually(t, "all is given back", func() bool {
					c.mu.Lock()
					defer c.mu.Unlock()
					return c.inFlight == 0 && len(c.streams) == 0 && c.urgent.Load() == 0 && c.bulk.Load() == 0
				})
			})
			return c
		}}
		contract.Run(t, target)
	}
}

// Fields of one connection only (RFC 9113 §8.2.2) stay behind.
func TestConnectionFieldsAreNotSent(t *testing.T) {
	c := start(t, dialTLS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, len(r.Header), r.Header.Get("X-Two"))
	})), Config{})
	req := request(t, "GET", "/", nil)
	req.Header = http.Header{"X-Two": {"b"}, "Connection": {"x"}, "Upgrade": {"y"}, "Keep-Alive": {"z"}, "Te": {"gzip"}}
	if got := readAll(t, do(t, c, req)); got != "1b" {
		t.Errorf("got %q", got)
	}
}

func do(t testing.TB, c *Conn, req *http.Request) *http.Response {
	t.Helper()
	resp, err := c.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func readAll(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("body: %v", err)
	}
	_ = resp.Body.Close()
	return string(b)
}
