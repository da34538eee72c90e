// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

// addrOf is a fake that gives one address for all names.
func addrOf(addr string, delay time.Duration) *fake {
	return &fake{delay: delay, zone: map[string][]string{"*": {"3600 A " + addr}}}
}

func two(mode Mode) Config { return Config{Mode: mode, Resolvers: []string{oneX + "/q", twoX}} }

// fresh looks a new name up.
func (b *bench) fresh(took time.Duration, want string) Answer {
	b.t.Helper()
	b.mu.Lock()
	n := len(b.seen) + b.hits[ResultMiss] + b.hits[ResultError] + b.hits[ResultNegative]
	b.mu.Unlock()
	return b.wantIn(took, fmt.Sprintf("n%d.zone%d.example", n, n), want)
}

func TestModes(t *testing.T) {
	gone := errors.New("no route")
	const system, one, builtin = "[192.0.2.53]", "[192.0.2.1]", "[192.0.2.3]"
	tests := []struct {
		name          string
		cfg           Config
		kept          bool
		first, second string // with all well, and with the first one gone
	}{
		{"auto", Config{}, false, system, "error"},
		{"auto, kept", Config{}, true, system, builtin},
		{"auto, listed", Config{Resolvers: []string{oneX + "/q"}}, false, one, system},
		{"auto, system listed first", Config{Resolvers: []string{"system", oneX + "/q"}}, false, system, one},
		{"auto, system listed last", Config{Resolvers: []string{oneX + "/q", "system"}}, false, one, system},
		{"system_first, listed", Config{Mode: ModeSystemFirst, Resolvers: []string{oneX + "/q"}}, false, system, one},
		{"system_first, kept", Config{Mode: ModeSystemFirst}, true, system, builtin},
		{"resolvers_first", Config{Mode: ModeResolversFirst, Resolvers: []string{oneX + "/q"}}, false, one, system},
		{"resolvers_only", Config{Mode: ModeResolversOnly, Resolvers: []string{oneX + "/q"}}, false, one, "error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fakes := map[string]*fake{systemX: addrOf("192.0.2.53", ms), oneX: addrOf("192.0.2.1", ms), "quad9": addrOf("192.0.2.3", ms)}
			bubble(t, tt.cfg, fakes, func(t *testing.T, b *bench) {
				if tt.kept {
					b.Keep([]string{host})
				}
				b.want(host, tt.first)
				for _, f := range fakes {
					if "["+strings.Fields(f.zone["*"][0])[2]+"]" == tt.first {
						f.set(func(f *fake) { f.err = &exchange.Error{Kind: exchange.KindUnreachable, Err: gone} })
					}
				}
				b.Flush("")
				b.want(host, tt.second)
			})
		})
	}
}

func TestTheFastestIsAskedFirst(t *testing.T) {
	one, second := addrOf("192.0.2.1", 100*ms), addrOf("192.0.2.2", 30*ms)
	bubble(t, two(ModeResolversOnly), map[string]*fake{oneX: one, "tls://8.8.8.8": second}, func(t *testing.T, b *bench) {
		b.fresh(100*ms, "[192.0.2.1]") // of equals the first in the list
		b.Keep([]string{host})         // what nobody waits for tries the other one
		b.pass(sec)
		for range 20 {
			b.fresh(30*ms, "[192.0.2.2]")
		}
		one.questions()
		// Its 95th percentile is known now: the other one comes in after that.
		second.set(func(f *fake) { f.silent = true })
		b.fresh(130*ms, "[192.0.2.1]")
		b.fresh(130*ms, "[192.0.2.1]")
		second.questions()
		b.pass(6 * sec)
		if health := b.health("tls://8.8.8.8"); health != HealthDead {
			t.Errorf("after two timeouts: %s", health)
		}
		second.questions()
		b.fresh(100*ms, "[192.0.2.1]")
		if got := second.questions(); len(got) > 1 {
			t.Errorf("the dead one was asked %v", got)
		}
		second.set(func(f *fake) { f.silent = false })
		b.pass(30 * sec)
		if health := b.health("tls://8.8.8.8"); health != HealthAlive {
			t.Errorf("after it came back: %s", health)
		}
		got := b.events()
		if !slices.Contains(got, "resolver_dead tls://8.8.8.8") || !slices.Contains(got, "resolver_alive tls://8.8.8.8") {
			t.Errorf("events %q", got)
		}
	})
}

func (b *bench) health(name string) Health {
	for _, s := range b.State().Servers {
		if s.Name == name {
			return s.Health
		}
	}
	return "missing"
}

func TestAFailureIsNotWaitedOut(t *testing.T) {
	one := addrOf("192.0.2.1", 5*ms)
	one.rcode = map[string]int{"": exchange.RCodeServFail}
	bubble(t, two(ModeResolversOnly), map[string]*fake{oneX: one, "tls://8.8.8.8": addrOf("192.0.2.2", 30*ms)}, func(t *testing.T, b *bench) {
		b.fresh(35*ms, "[192.0.2.2]")
	})
}

func TestALateSystemGetsItsSay(t *testing.T) {
	sys := addrOf("192.0.2.53", sec)
	bubble(t, Config{}, map[string]*fake{systemX: sys, "cloudflare": addrOf("192.0.2.1", 20*ms)}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		b.wantIn(520*ms, host, "[192.0.2.1]")
		b.pass(480 * ms)
		if a := b.wantIn(0, host, "[192.0.2.53]"); a.Source != "system 10.0.0.53" {
			t.Errorf("source %q: the site's own mapping has to win", a.Source)
		}
	})
}

func TestNoSuchNameWaitsForWhoCountsMore(t *testing.T) {
	sys := addrOf("192.0.2.53", 700*ms)
	one := &fake{delay: 20 * ms} // knows nothing
	cfg := Config{Mode: ModeSystemFirst, Resolvers: []string{oneX + "/q"}}
	bubble(t, cfg, map[string]*fake{systemX: sys, oneX: one}, func(t *testing.T, b *bench) {
		b.wantIn(700*ms, "split.example.com", "[192.0.2.53]")
		sys.set(func(f *fake) { f.zone, f.delay = nil, 20*ms })
		one.set(func(f *fake) { f.zone = map[string][]string{"*": {"60 A 192.0.2.66"}} })
		one.questions()
		b.wantIn(20*ms, "gone.example.com", "none") // and no other view is asked
		b.wantQuestions(one)
	})
}

// The second of two nameservers knows less: after a blip of the first, names that
// only the first knows are there again at once.
func TestTheFirstNameserverCountsMore(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/resolv.conf", "nameserver 10.0.0.53\nnameserver 10.0.0.54\n")
	first, second := knows("llm.corp.internal", "3600 A 10.0.0.7"), &fake{delay: 20 * ms}
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, Config{}, map[string]*fake{systemX: first, "udp://10.0.0.54": second})
		b.wantIn(20*ms, "llm.corp.internal", "[10.0.0.7]")
		b.Flush("")
		first.set(func(f *fake) { f.silent = true })
		b.want("llm.corp.internal", "none")
		b.want("other.corp.internal", "none")
		b.pass(20 * sec)
		first.set(func(f *fake) { f.silent = false })
		b.pass(60 * sec)
		b.wantIn(20*ms, "llm.corp.internal", "[10.0.0.7]")
	})
}

func TestOurselvesAreNotAsked(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/resolv.conf", "nameserver 127.0.0.1\n")
	loop := addrOf("192.0.2.66", ms)
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, Config{}, map[string]*fake{"udp://127.0.0.1": loop, "google": addrOf("192.0.2.1", 20*ms)})
		b.Resolver.mu.Lock()
		b.own = append(b.own, b.system[0].addrs...) // as a stub on port 53 does
		b.Resolver.mu.Unlock()
		b.Keep([]string{host})
		b.want(host, "[192.0.2.1]")
		b.wantIn(0, "other.example.com", "error")
		b.wantQuestions(loop)
	})
}
