// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

func TestAddressesThatFailedGoLast(t *testing.T) {
	sys := knows(host, "3600 A 192.0.2.1", "3600 A 192.0.2.2", "3600 AAAA 2001:db8::1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "[2001:db8::1 192.0.2.1 192.0.2.2]")
		b.Report("API.example.com.", netip.MustParseAddr("2001:db8::1"), false)
		b.wantIn(0, host, "[192.0.2.1 192.0.2.2 2001:db8::1]")
		b.pass(time.Minute)
		b.Report(host, netip.MustParseAddr("::ffff:192.0.2.1"), false)
		b.wantIn(0, host, "[192.0.2.2 2001:db8::1 192.0.2.1]")
		b.Report(host, netip.MustParseAddr("192.0.2.1"), true)
		b.wantIn(0, host, "[192.0.2.1 192.0.2.2 2001:db8::1]")
		b.Report(host, netip.MustParseAddr("192.0.2.99"), false) // not one of its
		b.pass(4 * time.Minute)
		b.wantIn(0, host, "[2001:db8::1 192.0.2.1 192.0.2.2]")
	})
}

func TestAllAddressesFailedAsksAnew(t *testing.T) {
	sys := knows(host, "3600 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "[192.0.2.1]")
		b.pass(time.Minute)
		sys.set(func(f *fake) { f.zone[host] = []string{"3600 A 192.0.2.2"} })
		b.Report(host, netip.MustParseAddr("192.0.2.1"), false)
		b.pass(20 * ms)
		b.wantIn(0, host, "[192.0.2.2]")
	})
}

func TestALoginPageIsServedButNotKept(t *testing.T) {
	const good, page = "[192.0.2.1]", "[10.0.0.1]"
	portal := func(f *fake) { f.zone = map[string][]string{"*": {"3600 A 10.0.0.1"}} }
	sys := knows(host, "60 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, good)
		sys.set(portal)
		b.pass(61 * sec)
		b.want(host, page) // a site may map names on purpose
		b.pass(0)
		if got := b.events(); !slices.Contains(got, "suspect_answer "+host) {
			t.Errorf("events %q", got)
		}
		if n := b.State().Names[0]; !n.Suspect {
			t.Errorf("state %+v", n)
		}
		if a, err := b.Distrust(t.Context(), host); err != nil || fmt.Sprint(a.Addrs) != good || !a.Stale {
			t.Errorf("Distrust = %+v, %v: want the last good answer", a, err)
		}
		b.wantIn(0, host, good)
		if saved := b.snapshot(); len(saved.Names) != 1 || fmt.Sprint(saved.Names[0].Parts["a"].Addrs) != good {
			t.Errorf("saved %+v", saved)
		}
		sys.set(func(f *fake) { f.zone = map[string][]string{host: {"60 A 192.0.2.2"}} }) // logged in
		b.pass(31 * sec)
		if a := b.want(host, "[192.0.2.2]"); a.Stale {
			t.Error("stale")
		}
	})
}

func TestAMappingOnPurposeIsConfirmedByUse(t *testing.T) {
	sys := knows(host, "3600 A 10.0.0.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "[10.0.0.1]")
		b.pass(6 * sec)
		b.wantIn(20*ms, host, "[10.0.0.1]") // not kept yet
		b.Report(host, netip.MustParseAddr("10.0.0.1"), true)
		sys.questions()
		b.pass(time.Hour / 2)
		b.wantIn(0, host, "[10.0.0.1]")
		b.wantQuestions(sys)
		b.pass(time.Hour/2 - time.Minute) // it has been asked for again
		b.wantIn(0, host, "[10.0.0.1]")
		if got := sys.questions(); len(got) != 3 {
			t.Errorf("asked %q, want the three questions once: the answer is known", got)
		}
		if a := b.wantIn(0, host, "[10.0.0.1]"); a.TTL < 40*time.Minute {
			t.Errorf("TTL %v: it is doubted again", a.TTL)
		}
	})
}

func TestWhatLooksLikeALoginPage(t *testing.T) {
	tests := []struct {
		name    string
		server  string
		host    string
		before  []string
		records []string
		suspect bool
	}{
		{"private", systemX, host, nil, []string{"60 A 192.168.1.1"}, true},
		{"carrier's", systemX, host, nil, []string{"60 A 100.64.0.1"}, true},
		{"loopback", systemX, host, nil, []string{"60 A 127.0.0.1"}, true},
		{"public", systemX, host, nil, []string{"60 A 192.0.2.1"}, false},
		{"own name", systemX, "llm.corp.internal", nil, []string{"60 A 192.168.1.1"}, false},
		{"encrypted", oneX, host, nil, []string{"60 A 192.168.1.1"}, false},
		{"TTL 0 where there was one", systemX, host, []string{"60 A 192.0.2.1"}, []string{"0 A 192.0.2.2"}, true},
		{"TTL 0 always", systemX, host, []string{"0 A 192.0.2.1"}, []string{"0 A 192.0.2.2"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{delay: ms, zone: map[string][]string{tt.host: tt.before}}
			cfg := Config{}
			if tt.server == oneX {
				cfg.Resolvers = []string{oneX + "/q"}
			}
			bubble(t, cfg, map[string]*fake{tt.server: f}, func(t *testing.T, b *bench) {
				if tt.before != nil {
					_, _ = b.Lookup(t.Context(), tt.host)
				}
				f.set(func(f *fake) { f.zone[tt.host] = tt.records })
				b.pass(61 * sec)
				b.want(tt.host, "["+strings.Fields(tt.records[0])[2]+"]")
				if got := b.State().Names[0].Suspect; got != tt.suspect {
					t.Errorf("suspect %v, want %v", got, tt.suspect)
				}
			})
		})
	}
}

func TestAllNamesAtOneAddressIsSuspect(t *testing.T) {
	sys := addrOf("192.0.2.66", ms)
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		for i, want := range []bool{false, false, false, true} {
			name := []string{"a.one.example", "b.one.example", "two.example", "three.example"}[i]
			b.want(name, "[192.0.2.66]")
			for _, n := range b.State().Names {
				if n.Name == name && n.Suspect != want {
					t.Errorf("%s: suspect %v, want %v", name, n.Suspect, want)
				}
			}
		}
	})
}

func TestDistrustAsksAnotherResolver(t *testing.T) {
	sys, google := addrOf("203.0.113.1", ms), knows(host, "60 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys, "google": google}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		b.pass(sec)
		b.want(host, "[203.0.113.1]")
		if a, err := b.Distrust(t.Context(), host); err != nil || fmt.Sprint(a.Addrs) != "[192.0.2.1]" || a.Source != "google" {
			t.Errorf("Distrust = %+v, %v", a, err)
		}
		// The system goes on lying; it is not believed while that may be a portal.
		sys.set(func(f *fake) { f.zone["*"][0] = "60 A 203.0.113.1" })
		for range 9 {
			b.pass(time.Minute)
			b.wantIn(0, host, "[192.0.2.1]")
		}
		if _, err := b.Distrust(t.Context(), "a.example.org"); err == nil {
			t.Error("a name that is not known was found elsewhere")
		}
		b.want("b.example.org", "[203.0.113.1]")
		_, err := b.Distrust(t.Context(), "b.example.org")
		if err == nil || !strings.Contains(err.Error(), "network login page?") {
			t.Errorf("no other resolver: %v", err)
		}
	})
}

func TestAFilterIsNotThisMachine(t *testing.T) {
	sys := knows(host, "60 A 0.0.0.0", "60 AAAA ::", "60 SOA 60")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "none")
	})
}

func TestADenialIsBelievedInTheEnd(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1")
	one := knows(host, "60 A 192.0.2.2")
	cfg := Config{Resolvers: []string{"system", oneX + "/q"}}
	bubble(t, cfg, map[string]*fake{systemX: sys, oneX: one}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		b.pass(sec)
		sys.set(func(f *fake) { f.zone = nil })
		b.pass(48 * sec)
		b.wantIn(0, host, "[192.0.2.1]")
		b.pass(10 * sec)
		b.want(host, "none")
	})
	bubble(t, Config{Resolvers: []string{oneX + "/q"}}, map[string]*fake{oneX: one}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		b.pass(sec)
		one.set(func(f *fake) { f.rcode = map[string]int{host: exchange.RCodeNXDomain} }) // encrypted: nobody else says it
		b.pass(48 * sec)
		b.want(host, "none")
	})
}
