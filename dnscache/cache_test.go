// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

const sec = time.Second

func TestRefreshAt80PercentWhileInUse(t *testing.T) {
	tests := []struct {
		name string
		use  []time.Duration // when the name is looked up, after the first time
		kept bool
		want []time.Duration // when it must have been asked for, in the first 400 s
	}{
		{name: "unused", want: []time.Duration{0}},
		{name: "used once", use: []time.Duration{10 * sec}, want: []time.Duration{0, 80*sec + 20*ms}},
		{name: "used late", use: []time.Duration{90 * sec}, want: []time.Duration{0, 90 * sec}},
		{name: "used again", use: []time.Duration{10 * sec, 120 * sec}, want: []time.Duration{0, 80*sec + 20*ms, 160*sec + 40*ms}},
		{name: "kept", kept: true, want: []time.Duration{0, 80*sec + 20*ms, 160*sec + 40*ms, 240*sec + 60*ms, 320*sec + 80*ms}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sys := knows(host, "100 A 192.0.2.1", "100 AAAA 2001:db8::1", "100 HTTPS h3")
			bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
				begun := time.Now()
				if tt.kept {
					b.Keep([]string{"API.example.com."})
				} else {
					b.want(host, "[2001:db8::1 192.0.2.1]")
				}
				for _, at := range tt.use {
					b.pass(at - time.Since(begun))
					b.wantIn(0, host, "[2001:db8::1 192.0.2.1]")
				}
				b.pass(400*sec - time.Since(begun))
				if got := sys.times(host + " A"); !equalTimes(got, tt.want, begun) {
					t.Errorf("asked at %v, want %v", since(got, begun), tt.want)
				}
				if a, h := len(sys.times(host+" AAAA")), len(sys.times(host+" HTTPS")); a != len(tt.want) || h != len(tt.want) {
					t.Errorf("AAAA %d times, HTTPS %d times", a, h)
				}
			})
		})
	}
}

func equalTimes(got []time.Time, want []time.Duration, begun time.Time) bool {
	return fmt.Sprint(since(got, begun)) == fmt.Sprint(want)
}

func since(times []time.Time, begun time.Time) []time.Duration {
	out := make([]time.Duration, len(times))
	for i, at := range times {
		out[i] = at.Sub(begun)
	}
	return out
}

func TestExpiryIsExact(t *testing.T) {
	sys := knows(host, "100 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "[192.0.2.1]")
		b.pass(100*sec - 1)
		b.wantIn(0, host, "[192.0.2.1]")
		sys.questions() // the refresh that this started
		b.Flush("")
		b.want(host, "[192.0.2.1]")
		b.pass(100 * sec)
		b.wantIn(20*ms, host, "[192.0.2.1]")
	})
}

func TestMinTTLRaises(t *testing.T) {
	sys := knows(host, "0 A 192.0.2.1")
	bubble(t, Config{MinTTL: 100 * sec}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "[192.0.2.1]")
		b.pass(99 * sec)
		b.wantIn(0, host, "[192.0.2.1]")
	})
}

func TestTTLZeroIsSharedInFlightOnly(t *testing.T) {
	sys := knows(host, "0 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		for range 3 {
			b.wantIn(20*ms, host, "[192.0.2.1]")
		}
		if got := len(sys.times(host + " A")); got != 3 {
			t.Errorf("asked %d times, want 3", got)
		}
		sys.set(func(f *fake) { f.delay = sec })
		b.wantIn(sec, host, "[192.0.2.1]")
		sys.set(func(f *fake) { f.silent = true })
		if a := b.want(host, "[192.0.2.1]"); !a.Stale {
			t.Error("the old answer is not called stale")
		}
	})
}

func TestAKeptNameOfNoTTLIsAskedForSeldom(t *testing.T) {
	for _, record := range []string{"0 A 192.0.2.1", "1 A 192.0.2.1"} {
		sys := knows(host, record)
		bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
			b.Keep([]string{host})
			b.pass(time.Minute)
			if n := len(sys.times(host + " A")); n < 2 || n > 13 {
				t.Errorf("%s: asked for %d times in a minute", record, n)
			}
		})
	}
}

func TestNegativeAnswers(t *testing.T) {
	tests := []struct {
		name string
		zone []string
		kept time.Duration
	}{
		{"SOA TTL", []string{"20 SOA 86400"}, 20 * sec},
		{"SOA minimum", []string{"86400 SOA 30"}, 30 * sec},
		{"capped", []string{"86400 SOA 86400"}, 60 * sec},
		{"no SOA", []string{}, 0},
	}
	for _, tt := range tests {
		for _, code := range []int{exchange.RCodeNXDomain, exchange.RCodeSuccess} {
			t.Run(fmt.Sprint(tt.name, " ", code), func(t *testing.T) {
				sys := &fake{delay: 20 * ms, zone: map[string][]string{"*": tt.zone}}
				if code == exchange.RCodeSuccess {
					sys.zone = map[string][]string{host: append([]string{"60 HTTPS h2"}, tt.zone...), "*": {}}
					sys.nodata = true
				}
				bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
					b.wantIn(20*ms, host, "none")
					sys.set(func(f *fake) { f.zone, f.nodata = map[string][]string{host: {"60 A 192.0.2.1"}}, false })
					if tt.kept > 0 {
						b.pass(tt.kept - 1)
						b.wantIn(0, host, "none")
						b.pass(1)
					}
					b.wantIn(20*ms, host, "[192.0.2.1]")
				})
			})
		}
	}
}

func TestAFailureNeverHidesAGoodAnswer(t *testing.T) {
	for name, breakIt := range map[string]func(f *fake){
		"SERVFAIL":    func(f *fake) { f.rcode = map[string]int{"": exchange.RCodeServFail} },
		"REFUSED":     func(f *fake) { f.rcode = map[string]int{"": exchange.RCodeRefused} },
		"unreachable": func(f *fake) { f.err = &exchange.Error{Kind: exchange.KindUnreachable, Err: fmt.Errorf("no route")} },
		"no such name, said once": func(f *fake) {
			f.zone = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			sys := knows(host, "60 A 192.0.2.1", "60 HTTPS h2")
			bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
				b.want(host, "[192.0.2.1]")
				zone := sys.zone
				sys.set(breakIt)
				b.pass(61 * sec)
				if a := b.want(host, "[192.0.2.1]"); !a.Stale || len(a.Services) != 1 {
					t.Errorf("answer %+v, want a stale one with its services", a)
				}
				b.pass(20 * ms)
				b.wantIn(0, host, "[192.0.2.1]")
				sys.set(func(f *fake) { f.rcode, f.err, f.zone = nil, nil, zone })
				b.pass(61 * sec)
				if a := b.want(host, "[192.0.2.1]"); a.Stale {
					t.Error("still stale after the resolver has come back")
				}
			})
		})
	}
}

func TestAFamilyThatFailsKeepsItsAddresses(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1", "60 AAAA 2001:db8::1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		b.pass(sec)
		sys.set(func(f *fake) { f.fails = map[uint16]bool{exchange.TypeAAAA: true} })
		sys.questions()
		for range 300 {
			b.pass(sec)
			b.wantIn(0, host, "[2001:db8::1 192.0.2.1]")
		}
		asked := sys.questions()
		if n := count(asked, host+" A"); n != 6 {
			t.Errorf("A was asked for %d times in 5 min of TTL 60 s", n)
		}
		if n := count(asked, host+" AAAA"); n < 3 || n > 12 {
			t.Errorf("AAAA, which fails, was asked for %d times in 5 min", n)
		}
	})
}

func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}

func TestAFailureIsKeptForSeconds(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1")
	sys.rcode = map[string]int{"": exchange.RCodeServFail}
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.wantIn(20*ms, host, "error")
		b.wantIn(0, host, "error")
		b.wantQuestions(sys, all(host)...)
		b.pass(sec)
		b.wantIn(20*ms, host, "error")
		b.pass(5 * sec)
		sys.set(func(f *fake) { f.rcode = nil })
		b.wantIn(20*ms, host, "[192.0.2.1]")
	})
}

// The resolvers are gone for a day: no lookup of a known name fails or waits, and
// nothing is served after the day.
func TestOutageOfADay(t *testing.T) {
	sys, one := knows(host, "60 A 192.0.2.1"), knows(host, "60 A 192.0.2.2")
	bubble(t, Config{Resolvers: []string{oneX + "/q"}}, map[string]*fake{systemX: sys, oneX: one}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		b.pass(sec)
		b.wantIn(0, host, "[192.0.2.2]")
		for _, f := range []*fake{sys, one} {
			f.set(func(f *fake) { f.silent = true })
		}
		begun := time.Now()
		for time.Since(begun) < 24*time.Hour {
			b.wantIn(0, host, "[192.0.2.2]")
			b.pass(10 * sec)
		}
		b.pass(2 * time.Minute)
		b.want(host, "timeout")
		if n := len(one.questions()); n > 24*60+100 {
			t.Errorf("the dead resolver was asked %d questions in a day", n)
		}
		one.set(func(f *fake) { f.silent = false })
		b.pass(2 * time.Minute)
		if a := b.wantIn(0, host, "[192.0.2.2]"); a.Stale {
			t.Error("stale although the resolver is back")
		}
	})
}

func TestStaleAnswersAfterAShortWait(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1")
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.want(host, "[192.0.2.1]")
		b.pass(61 * sec)
		sys.set(func(f *fake) { f.delay, f.zone = sec, map[string][]string{host: {"60 A 192.0.2.9"}} })
		if a := b.wantIn(200*ms, host, "[192.0.2.1]"); !a.Stale || a.TTL != 0 || a.Age != 61*sec+200*ms {
			t.Errorf("answer %+v", a)
		}
		b.pass(sec)
		b.wantIn(0, host, "[192.0.2.9]")
		sys.set(func(f *fake) { f.silent = true })
		b.pass(61 * sec)
		b.wantIn(0, host, "[192.0.2.9]") // the refresh ahead has failed already
		b.pass(10 * sec)
		b.wantIn(0, host, "[192.0.2.9]")
		if b.result(ResultStale) != 3 {
			t.Errorf("results %v", b.hits)
		}
	})
}

func TestEntriesAreBounded(t *testing.T) {
	sys := &fake{zone: map[string][]string{"*": {"3600 A 192.0.2.1"}}}
	bubble(t, Config{MaxEntries: 100}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		for i := range 1000 {
			b.pass(sec / 4)
			b.want(fmt.Sprintf("n%d.example.org", i), "[192.0.2.1]")
		}
		st := b.State()
		if len(st.Names) > 101 {
			t.Errorf("%d names", len(st.Names))
		}
		if !slices.ContainsFunc(st.Names, func(n NameState) bool { return n.Name == host && n.Kept }) {
			t.Error("the kept name was pushed out")
		}
		b.wantIn(0, "n999.example.org", "[192.0.2.1]")
	})
}

func TestLookupsInFlightAreBounded(t *testing.T) {
	bubble(t, Config{}, nil, func(t *testing.T, b *bench) {
		for i := range maxFlights {
			go func() { _, _ = b.Lookup(t.Context(), fmt.Sprintf("n%d.example.org", i)) }()
		}
		synctest.Wait()
		b.wantIn(0, host, "error")
		b.pass(20 * sec)
	})
}

func TestAChangeOfNetworkKeepsTheLastGood(t *testing.T) {
	change := map[string]func(b *bench){
		"told":        func(b *bench) { b.NetworkChanged() },
		"resolv.conf": func(b *bench) { writeFile(b.t, b.path("resolv.conf"), "nameserver 10.0.0.54\n") },
		"sleep": func(b *bench) {
			b.mu.Lock()
			b.ahead = time.Hour
			b.mu.Unlock()
		},
	}
	for name, f := range change {
		t.Run(name, func(t *testing.T) {
			sys := knows(host, "3600 A 192.0.2.1")
			sys.zone["llm.internal"] = []string{"3600 A 10.0.0.7"}
			other := knows(host, "3600 A 192.0.2.2")
			other.zone["llm.internal"] = []string{"3600 A 10.0.0.8"}
			bubble(t, Config{}, map[string]*fake{systemX: sys, "udp://10.0.0.54": other}, func(t *testing.T, b *bench) {
				b.want(host, "[192.0.2.1]")
				b.want("llm.internal", "[10.0.0.7]")
				b.want("gone.example.com", "none")
				if name != "resolv.conf" {
					sys.set(func(f *fake) { f.zone = other.zone })
				}
				f(b)
				if name != "told" {
					b.pass(5 * sec)
				}
				b.wantIn(0, host, "[192.0.2.1]") // at once, while it is asked for anew
				b.wantIn(20*ms, "llm.internal", "[10.0.0.8]")
				b.wantIn(20*ms, "gone.example.com", "none")
				b.pass(20 * ms)
				if a := b.wantIn(0, host, "[192.0.2.2]"); a.Stale {
					t.Error("stale")
				}
			})
		})
	}
}

func TestFlushForgetsOneName(t *testing.T) {
	sys := knows(host, "60 A 192.0.2.1")
	sys.zone["b.example.com"] = []string{"60 A 192.0.2.2"}
	bubble(t, Config{}, map[string]*fake{systemX: sys}, func(t *testing.T, b *bench) {
		b.Keep([]string{host})
		b.pass(sec)
		b.want("b.example.com", "[192.0.2.2]")
		b.Flush("B.example.com.")
		b.wantIn(20*ms, "b.example.com", "[192.0.2.2]")
		b.wantIn(0, host, "[192.0.2.1]")
		b.Flush("")
		b.pass(20 * ms)
		b.wantIn(0, host, "[192.0.2.1]")
		if names := b.State().Names; len(names) != 1 || !strings.HasPrefix(names[0].Source, "system") {
			t.Errorf("names %+v", names)
		}
	})
}
