// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bufio"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
)

// What a question costs in round trips: one on an open connection, and before
// that one for TCP and one for TLS.
func TestQuestionsCostOneRoundTrip(t *testing.T) {
	const rtt = 80 * time.Millisecond
	tests := []struct {
		spec string
		cold time.Duration
	}{
		{"tcp://192.0.2.53", 2 * rtt},
		{"tls://192.0.2.53", 3 * rtt},
		{"https://192.0.2.53/dns-query", 3 * rtt},
		{"https://192.0.2.53/dns-query{?dns}", 3 * rtt},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := netlab.NewMem()
				mem.SetDelay(rtt / 2)
				id := newIdentity(t, "192.0.2.53")
				serveAll(t, id, func(port string) net.Listener {
					l, err := mem.Listen("192.0.2.53:" + port)
					if err != nil {
						t.Fatal(err)
					}
					return l
				})
				x := open(t, tt.spec, Config{Dial: mem.Dial, Roots: id.roots})
				for i, want := range []time.Duration{tt.cold, rtt, rtt} {
					start := time.Now()
					ask(t, x, "a.test", "192.0.2.1")
					if d := time.Since(start); d != want {
						t.Errorf("question %d took %v, want %v", i, d, want)
					}
				}
				_ = x.Close()
			})
		})
	}
}

// serveAll answers over TCP, TLS and HTTPS.
func serveAll(t testing.TB, id identity, listen func(port string) net.Listener) {
	t.Helper()
	server := &tls.Config{Certificates: []tls.Certificate{id.tls}}
	answer := func(p *peer) {
		for {
			m, err := p.next(t)
			if err != nil {
				return
			}
			p.send(t, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
		}
	}
	serve(t, listen("53"), func(_ int, p *peer) { answer(p) })
	serve(t, listen("853"), func(_ int, p *peer) {
		conn := tls.Server(p.Conn, server)
		defer conn.Close()
		answer(&peer{Conn: conn, r: bufio.NewReader(conn)})
	})
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := question(t, r)
		answerWeb(t, w, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
	}))
	_ = web.Listener.Close() // httptest opened one on loopback
	web.Listener = listen("443")
	web.EnableHTTP2 = true
	web.TLS = server.Clone()
	web.StartTLS()
	t.Cleanup(web.Close)
}

// BenchmarkExchange asks over an open connection on loopback; the server's work
// is in it.
func BenchmarkExchange(b *testing.B) {
	id := newIdentity(b, "127.0.0.1")
	ports := map[string]string{}
	serveAll(b, id, func(port string) net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		_, ports[port], _ = strings.Cut(l.Addr().String(), ":")
		return l
	})
	for _, spec := range []string{"tcp://127.0.0.1:" + ports["53"], "tls://127.0.0.1:" + ports["853"],
		"https://127.0.0.1:" + ports["443"] + "/dns-query", "https://127.0.0.1:" + ports["443"] + "/dns-query{?dns}"} {
		name, _, _ := strings.Cut(spec, ":")
		if strings.HasSuffix(spec, "}") {
			name += ", GET"
		}
		b.Run(name, func(b *testing.B) {
			x := open(b, spec, Config{Roots: id.roots})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.Exchange(b.Context(), Question{Name: "a.test", Type: TypeA}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
