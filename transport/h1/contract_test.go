// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/warmwire/warmwire/transport/contract"
)

func dialTLS(t testing.TB, h http.Handler) net.Conn {
	srv := httptest.NewUnstartedServer(h)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	cfg := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	cfg.NextProtos, cfg.ServerName = []string{"http/1.1"}, "example.com"
	nc, err := tls.Dial("tcp", srv.Listener.Addr().String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func dialPlain(t testing.TB, h http.Handler) net.Conn {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	nc, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func start(t testing.TB, nc net.Conn) *Conn {
	t.Helper()
	c := New(nc, Config{})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestContract(t *testing.T) {
	for name, dial := range map[string]func(testing.TB, http.Handler) net.Conn{"go tls": dialTLS, "go plain": dialPlain} {
		contract.Run(t, contract.Target{Name: name, Major: 1, Open: func(t testing.TB, h http.Handler) contract.Conn {
			return start(t, dial(t, h))
		}})
	}
}

// A connection whose answers were whole serves the next request.
func TestReuse(t *testing.T) {
	c := start(t, dialPlain(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
		if r.URL.Path == "/chunked" {
			w.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(w, r.RemoteAddr)
	})))
	first := ""
	for _, target := range []string{"/", "/chunked", "/", "/chunked"} {
		got := readAll(t, do(t, c, request(t, "POST", target, nil)))
		if first == "" {
			first = got
		}
		if got != first || got == "" {
			t.Errorf("%s: from %q, before from %q", target, got, first)
		}
		contract.Eventually(t, "free again", func() bool { return c.Available() == 1 })
	}
}
