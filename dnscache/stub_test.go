// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// listen runs a stub of b on a free port.
func listen(t *testing.T, b *bench) *Stub {
	t.Helper()
	s, err := b.ListenStub(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

func TestStubAnswersFromTheCache(t *testing.T) {
	sys := knows(host, "300 A 192.0.2.1", "300 AAAA 2001:db8::1", "300 HTTPS h2,h3")
	sys.delay = 0
	for i := range 60 {
		sys.zone["many.example.com"] = append(sys.zone["many.example.com"], fmt.Sprintf("300 A 192.0.2.%d", i))
	}
	sys.zone["v4.example.com"] = []string{"300 A 192.0.2.9"}
	sys.zone["svc.example.com"] = []string{"60 SOA 60", "300 HTTPS h2"}
	sys.rcode = map[string]int{"bad.example.com": dns.RcodeServerFailure}
	b := start(t, t.TempDir(), Config{}, map[string]*fake{systemX: sys})
	writeFile(t, b.path("hosts"), "192.0.2.77 box\n")
	at := listen(t, b).Addr().String()
	tests := []struct {
		name  string
		qtype uint16
		rcode int
		want  []string // data of the records
	}{
		{"Api.Example.com.", dns.TypeA, 0, []string{"192.0.2.1"}},
		{"api.example.com.", dns.TypeAAAA, 0, []string{"2001:db8::1"}},
		{"api.example.com.", dns.TypeHTTPS, 0, []string{`1 api.example.com. alpn="h2,h3"`}},
		{"v4.example.com.", dns.TypeAAAA, 0, nil},
		{"localhost.", dns.TypeA, 0, []string{"127.0.0.1"}},
		{"svc.example.com.", dns.TypeA, 0, nil},
		{"none.example.com.", dns.TypeA, dns.RcodeNameError, nil},
		{"bad.example.com.", dns.TypeA, dns.RcodeServerFailure, nil},
		{"api.example.com.", dns.TypeMX, dns.RcodeNotImplemented, nil},
	}
	for _, network := range []string{"udp", "tcp"} {
		client := &dns.Client{Net: network, Timeout: 5 * time.Second}
		for _, tt := range tests {
			m := new(dns.Msg).SetQuestion(tt.name, tt.qtype)
			got, _, err := client.ExchangeContext(t.Context(), m, at)
			if err != nil {
				t.Errorf("%s %s: %v", network, tt.name, err)
				continue
			}
			if data := dataOf(got.Answer, tt.name); got.Rcode != tt.rcode || !slices.Equal(data, tt.want) || !got.RecursionAvailable {
				t.Errorf("%s %s type %d: %d %q, want %d %q", network, tt.name, tt.qtype, got.Rcode, data, tt.rcode, tt.want)
			}
		}
		m := new(dns.Msg).SetQuestion("many.example.com.", dns.TypeA)
		got, _, err := client.ExchangeContext(t.Context(), m, at)
		if err != nil || got.Truncated != (network == "udp") || !got.Truncated && len(got.Answer) != 60 {
			t.Errorf("%s: a long answer: %v, %v", network, got, err)
		}
	}
	for _, q := range tests[:3] { // all three came with one lookup
		if n := len(sys.times(host + " " + typeName(q.qtype))); n != 1 {
			t.Errorf("type %d was asked for %d times", q.qtype, n)
		}
	}
}

func dataOf(records []dns.RR, name string) (data []string) {
	for _, rr := range records {
		h := rr.Header()
		if h.Name != name || h.Ttl == 0 || h.Ttl > 300 {
			data = append(data, "bad header "+h.String())
		}
		data = append(data, strings.TrimPrefix(rr.String(), h.String()))
	}
	return data
}

func TestStubIsOnLoopbackOnly(t *testing.T) {
	b := start(t, t.TempDir(), Config{}, nil)
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:53", "localhost:53", "127.0.0.1", ""} {
		if _, err := b.ListenStub(t.Context(), address); err == nil || !strings.Contains(err.Error(), "dns.listen") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A Resolver whose resolv.conf or list names its own stub does not ask itself.
func TestStubIsNotAsked(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	one, loop := knows(host, "60 A 192.0.2.1"), dead()
	b := start(t, t.TempDir(), Config{Resolvers: []string{"udp://" + at, oneX + "/q"}}, map[string]*fake{"udp://" + at: loop, oneX: one})
	s, err := b.ListenStub(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	b.want(host, "[192.0.2.1]")
	b.wantQuestions(loop)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}
