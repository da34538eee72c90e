// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ingress

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/tenant"
)

// BenchmarkWhoAsks is all that a request pays for tenants: who sends it, its roles, its
// quotas, and the fields that are taken out; and what it pays where there are none.
func BenchmarkWhoAsks(b *testing.B) {
	app, server := loopbackPair(b)
	defer app.Close()
	defer server.Close()
	local := tenant.Settings{Name: "local", Roles: []string{"all"}, UIDs: []uint32{uint32(os.Getuid())}}
	book := tenants(b, tenant.Limits{Requests: 1 << 50, OutputTokens: 1 << 50, Upload: 1 << 50, Streams: 1 << 50}, local)
	for _, way := range []struct {
		name  string
		book  *tenant.Book
		field string
	}{{"no-tenants", nil, "Bearer sk-x"}, {"token", book, "Bearer " + tokenA}, {"user-by-socket-table", book, "Bearer sk-x"}} {
		b.Run(way.name, func(b *testing.B) {
			u := &Upstream{Name: "up", URL: &url.URL{Scheme: "http", Host: "up.test"}, Dialect: dialect.OpenAI, Transport: http.DefaultTransport}
			t := &Table{Upstreams: []*Upstream{u}, Tenants: way.book}
			s, err := New(t, Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Abort()
			r, _ := http.NewRequest("POST", "/up/v1/chat/completions", nil)
			r.Header.Set("Authorization", way.field)
			r = r.WithContext(http1.WithConn(b.Context(), server))
			rt := u.routeTarget(ModeBaseURL, "/v1/chat/completions")
			took := slices.Repeat([]time.Duration{1}, 1<<20)[:0]
			one := func() {
				begun := time.Now()
				e := &exchange{s: s, t: t, r: r, rec: &Record{Start: begun, OutputTokens: 120}}
				if t.Tenants != nil {
					if ref := e.asks(rt, nil); ref != nil {
						b.Fatal(ref.code)
					}
					if ref := e.take(rt); ref != nil {
						b.Fatal(ref.code)
					}
					_ = t.stripTarget(rt)
				} else if ref := t.authorize(r, u, ModeBaseURL); ref != nil {
					b.Fatal(ref.code)
				}
				e.settle()
				if took = append(took, time.Since(begun)); len(took) == cap(took) {
					took = took[:0]
				}
			}
			for range 100_000 { // the heap's pages are there then
				one()
			}
			took = took[:0]
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
		})
	}
}

// loopbackPair is one connection over loopback, both ends.
func loopbackPair(b *testing.B) (app, server net.Conn) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	if app, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		b.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		b.Fatal(err)
	}
	return app, server
}
