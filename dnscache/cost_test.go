// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// warm returns a Resolver with one name in its cache.
func warm(t testing.TB) *Resolver {
	sys := knows(host, "3600 A 192.0.2.1", "3600 AAAA 2001:db8::1", "3600 HTTPS h3")
	sys.delay = 0
	b := start(t, t.TempDir(), Config{}, map[string]*fake{systemX: sys})
	b.cfg.OnLookup = nil
	b.want(host, "[2001:db8::1 192.0.2.1]")
	return b.Resolver
}

func TestAWarmLookupAllocatesNothing(t *testing.T) {
	r := warm(t)
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() { _, _ = r.Lookup(ctx, host) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTenThousandNamesAreSmall measures the heap with ten thousand names of two
// addresses and an HTTPS record each.
func TestTenThousandNamesAreSmall(t *testing.T) {
	sys := &fake{zone: map[string][]string{"*": {"3600 A 192.0.2.1", "3600 AAAA 2001:db8::1", "3600 HTTPS h2,h3"}}}
	b := start(t, t.TempDir(), Config{Mode: ModeResolversOnly, Resolvers: []string{oneX + "/q"}}, map[string]*fake{oneX: sys})
	before := heapBytes()
	for i := range 10_000 {
		// A family that comes late joins the other one: nobody waits for it here.
		if _, err := b.Lookup(t.Context(), fmt.Sprintf("name-%d.some.example.org", i)); err != nil {
			t.Fatal(err)
		}
		sys.set(func(f *fake) { f.asked, f.at = nil, nil })
	}
	grown := heapBytes() - before
	t.Logf("%.2f MB, %d bytes a name", float64(grown)/1e6, grown/10_000)
	if grown > 10_000_000 {
		t.Errorf("10,000 names take %d bytes", grown)
	}
	runtime.KeepAlive(b)
}

func heapBytes() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func BenchmarkWarmLookup(b *testing.B) {
	r := warm(b)
	ctx := context.Background()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := r.Lookup(ctx, host); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = r.Lookup(ctx, host)
			}
		})
	})
	b.Run("p99", func(b *testing.B) {
		took := make([]time.Duration, 0, 1<<20)
		for b.Loop() {
			begun := time.Now()
			_, _ = r.Lookup(ctx, host)
			if len(took) < cap(took) {
				took = append(took, time.Since(begun))
			}
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
	})
}

// BenchmarkGoResolver is what a program without a cache pays: Go's resolver, which
// asks a server on loopback each time.
func BenchmarkGoResolver(b *testing.B) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		out := new(dns.Msg).SetReply(m)
		if m.Question[0].Qtype == dns.TypeA {
			out.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: 1, Ttl: 60}, A: net.IPv4(192, 0, 2, 1)}}
		}
		_ = w.WriteMsg(out)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ActivateAndServe()
	}()
	b.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.LookupNetIP(context.Background(), "ip", "api.example.com."); err != nil {
			b.Fatal(err)
		}
	}
}
