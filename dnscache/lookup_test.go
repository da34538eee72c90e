// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

const ms = time.Millisecond

func TestLookupAsksForAllInOne(t *testing.T) {
	sys := knows(host, "300 A 192.0.2.1", "300 AAAA 2001:db8::1", "300 HTTPS h2,h3")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		a := b.wantIn(20*ms, "API.example.COM", "[2001:db8::1 192.0.2.1]")
		if a.Stale || a.Age != 0 || a.TTL != 300*time.Second || a.Source != "system 10.0.0.53" || len(a.Services) != 1 || a.Services[0].ALPN[1] != "h3" {
			t.Errorf("answer %+v", a)
		}
		b.wantQuestions(sys, all(host)...)
		b.pass(10 * time.Second)
		if a = b.wantIn(0, host, "[2001:db8::1 192.0.2.1]"); a.Age != 10*time.Second || a.TTL != 290*time.Second {
			t.Errorf("answer %+v", a)
		}
		b.wantQuestions(sys)
		if b.result(ResultMiss) != 1 || b.result(ResultHit) != 1 {
			t.Errorf("results %v", b.hits)
		}
	})
}

func TestOneQuestionInFlightForAll(t *testing.T) {
	sys := knows(host, "300 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		var callers sync.WaitGroup
		first, leave := context.WithCancel(t.Context())
		callers.Go(func() {
			_, err := b.Lookup(first, host)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the caller who left: %v", err)
			}
		})
		synctest.Wait()
		for range 50 {
			callers.Go(func() { b.wantIn(20*ms, host, "[192.0.2.1]") })
		}
		synctest.Wait()
		leave()
		callers.Wait()
		b.wantQuestions(sys, all(host)...)
	})
}

func TestLookupDoesNotWaitForTheRest(t *testing.T) {
	tests := []struct {
		name string
		slow map[uint16]time.Duration
		took time.Duration
		now  string
		then string
	}{
		{"IPv6 late", map[uint16]time.Duration{exchange.TypeAAAA: time.Second}, 70 * ms, "[192.0.2.1]", "[2001:db8::1 192.0.2.1]"},
		{"IPv6 in time", map[uint16]time.Duration{exchange.TypeAAAA: 60 * ms}, 60 * ms, "[2001:db8::1 192.0.2.1]", "[2001:db8::1 192.0.2.1]"},
		{"IPv6 silent", map[uint16]time.Duration{exchange.TypeAAAA: time.Minute}, 70 * ms, "[192.0.2.1]", "[192.0.2.1]"},
		{"IPv4 late", map[uint16]time.Duration{exchange.TypeA: time.Second}, 70 * ms, "[2001:db8::1]", "[2001:db8::1 192.0.2.1]"},
		{"HTTPS late", map[uint16]time.Duration{exchange.TypeHTTPS: time.Second}, 25 * ms, "[2001:db8::1 192.0.2.1]", "[2001:db8::1 192.0.2.1]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sys := knows(host, "300 A 192.0.2.1", "300 AAAA 2001:db8::1", "300 HTTPS h3")
			sys.slow = tt.slow
			bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
				b.wantIn(tt.took, host, tt.now)
				b.pass(6 * time.Second)
				if a := b.wantIn(0, host, tt.then); len(a.Services) != 1 {
					t.Error("the HTTPS record that came late is not there")
				}
			})
		})
	}
}

// Some servers say of a name with IPv4 addresses only that it does not exist when
// they are asked for the other family.
func TestNoSuchNameOfOneFamilyAlone(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1")
	sys.denies = map[uint16]bool{exchange.TypeAAAA: true}
	sys.slow = map[uint16]time.Duration{exchange.TypeAAAA: ms}
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.wantIn(20*ms, host, "[192.0.2.1]")
		b.pass(59 * sec)
		b.wantIn(0, host, "[192.0.2.1]")
	})
}

func TestLocalNamesNeverLeave(t *testing.T) {
	sys, one := knows("db", "60 A 10.0.0.9"), knows(host, "60 A 192.0.2.1")
	sys.zone["llm.corp.example"] = []string{"60 A 10.0.0.7"}
	sys.zone["printer.local"] = []string{"60 A 10.0.0.8"}
	one.zone["llm.corp.example"] = []string{"60 A 192.0.2.66"}
	cfg := Config{Resolvers: []string{oneX + "/dns-query"}, SystemDomains: []string{"*.Corp.example."}}
	bubble(t, cfg, map[string]*fake{systemX: sys, oneX: one}, func(t *testing.T, b *bench) {
		for name, want := range map[string]string{
			"localhost": "[127.0.0.1]", "App.localhost.": "[::1 127.0.0.1]", "192.0.2.9": "[192.0.2.9]", "2001:db8::9": "[2001:db8::9]",
			"x.onion": "none", "x.invalid": "none", "a b.example": "none", "bücher.example": "none",
			"db": "[10.0.0.9]", "printer.local": "[10.0.0.8]", "LLM.corp.example": "[10.0.0.7]", "corp.example": "none",
		} {
			b.want(name, want)
		}
		b.wantQuestions(one)
		sys.questions()
		b.want(host, "[192.0.2.1]")
		b.wantQuestions(sys)
	})
}

func TestHostsFileComesFirst(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "[192.0.2.1]")
		writeFile(t, b.path("hosts"), "127.0.0.2 api.example.com other\n::2 api.example.com\n10.0.0.1 localhost\n")
		b.pass(5 * time.Second)
		if a := b.wantIn(0, host, "[127.0.0.2 ::2]"); a.Source != "hosts" {
			t.Errorf("source %q", a.Source)
		}
		b.want("localhost", "[::1 127.0.0.1]")
	})
}

func TestSearchListIsForNamesThatDoNotExist(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1")
	sys.zone["db.prod.svc.cluster.local"] = []string{"60 A 10.0.0.9"}
	sys.zone["broken.example.com.svc.cluster.local"] = []string{"60 A 10.0.0.66"}
	sys.rcode = map[string]int{"broken.example.com": exchange.RCodeServFail}
	dir := t.TempDir()
	writeFile(t, dir+"/resolv.conf", "nameserver 10.0.0.53\nsearch prod.svc.cluster.local svc.cluster.local cluster.local lan\noptions ndots:5\n")
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, Config{}, map[string]*fake{systemX: sys})
		b.want(host, "[192.0.2.1]")
		b.wantQuestions(sys, all(host)...)
		b.want("db.prod", "[10.0.0.9]")
		sys.questions()
		b.want("db.prod.", "none")
		if got := len(sys.questions()); got > 3 {
			t.Errorf("%d questions for an absolute name", got)
		}
		b.want("broken.example.com", "error")
		b.wantQuestions(sys, all("broken.example.com")...)
	})
}

func TestErrorsAreWhatDiallersExpect(t *testing.T) {
	sys := knows("v4.example.com", "60 A 192.0.2.1")
	sys.zone["empty.example.com"] = []string{"60 SOA 60"}
	sys.zone["empty.example.com"] = append(sys.zone["empty.example.com"], "60 HTTPS h2")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		_, err := b.Addrs(t.Context(), "none.example.com")
		e, ok := errors.AsType[*net.DNSError](err)
		if !ok || !e.IsNotFound || e.Server != "system 10.0.0.53" || e.Name != "none.example.com" {
			t.Errorf("no such name: %#v", err)
		}
		sys.set(func(f *fake) { f.silent = true })
		_, err = b.Addrs(t.Context(), "slow.example.com")
		if e, ok = errors.AsType[*net.DNSError](err); !ok || !e.IsTimeout || e.IsNotFound {
			t.Errorf("silent: %#v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Addrs(ctx, "slower.example.com")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's limit: %v", err)
		}
		if addrs, err := b.Addrs(ctx, "192.0.2.7"); err != nil || fmt.Sprint(addrs) != "[192.0.2.7]" {
			t.Errorf("address: %v, %v", addrs, err)
		}
	})
}
