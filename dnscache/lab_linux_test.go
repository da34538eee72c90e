// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
)

// TestResolversOverABadNetwork looks 60 new names up over HTTPS and over TLS at RTT
// 80 ms with 2 % of the packets lost each way, and then known names whose time has
// run out while nothing passes: none fails.
func TestResolversOverABadNetwork(t *testing.T) {
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(t, "%v", err)
	}
	roots, certFile, keyFile := certificate(t, t.TempDir())
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"https", "tls"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			link := netlab.Link{Delay: 40 * time.Millisecond, Loss: 0.02}
			lab, err := netlab.New(t.Context(), netlab.Config{Seed: 1, Up: link, Down: link})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = lab.Close() })
			port := serveFar(t, lab, way, pair)
			r := open(t, Config{
				Resolvers: []string{fmt.Sprintf("%s://dns.example:%s%s#addr=%s", way, port, map[string]string{"https": "/dns-query"}[way], lab.Server.Addr4())},
				Roots:     roots, Dial: lab.Client.Dial,
			})
			ask := func(n int) (took []time.Duration) {
				t.Helper()
				for i := range n {
					begun := time.Now()
					if _, err := r.Lookup(t.Context(), fmt.Sprintf("n%d.example.net", i)); err != nil {
						t.Errorf("lookup %d: %v", i, err)
					}
					took = append(took, time.Since(begun))
				}
				slices.Sort(took)
				return took
			}
			took := ask(60)
			t.Logf(way+": a new name: median %v, p95 %v, worst %v", took[30], took[57], took[59])
			if err := lab.Outage(time.Minute); err != nil {
				t.Fatal(err)
			}
			past := time.NewTimer(1500 * time.Millisecond) // the TTL is a second
			<-past.C
			took = ask(60)
			t.Logf(way+": a known name while nothing passes: median %v, worst %v", took[30], took[59])
			if took[30] > 50*time.Millisecond {
				t.Errorf("half of the lookups waited for the dead resolver: %v", took[30])
			}
		})
	}
}

// serveFar answers with an address for a second, over HTTPS or TLS, on the far host.
func serveFar(t *testing.T, lab *netlab.Lab, way string, pair tls.Certificate) (port string) {
	t.Helper()
	ln, err := lab.Server.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	reply := func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg).SetReply(q)
		if question := q.Question[0]; question.Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(192, 0, 2, 1)}}
		}
		return m
	}
	_, port, _ = net.SplitHostPort(ln.Addr().String())
	if way == "tls" {
		s := &dns.Server{Listener: tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{pair}}), Net: "tcp-tls",
			Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(reply(q)) })}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = s.ActivateAndServe() }()
		t.Cleanup(func() { _ = s.Shutdown(); <-ended })
		return port
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		q := new(dns.Msg)
		if q.Unpack(b) != nil || len(q.Question) == 0 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		out, _ := reply(q).Pack()
		w.Header().Set("Content-Type", "application/dns-message")
		w.Header().Set("Content-Length", strconv.Itoa(len(out)))
		_, _ = w.Write(out)
	}))
	_ = s.Listener.Close()
	s.Listener, s.EnableHTTP2, s.Config.ErrorLog = ln, true, log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return port
}
