// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/warmwire/warmwire/internal/netlab"
)

// wire is a network with datagrams and streams in memory.
func wire(p *packets, m *netlab.Mem) Config {
	return Config{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network == "udp" {
			return p.dial(ctx, network, addr)
		}
		return m.Dial(ctx, network, addr)
	}}
}

func TestUDPAsksWithEDNSAndMixedCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids, names []string
		p := &packets{handle: func(_ int, b []byte, reply func([]byte)) {
			m := unpackQuery(t, b)
			opt := m.IsEdns0()
			if opt == nil || opt.UDPSize() != 1232 || len(opt.Option) != 0 || !m.RecursionDesired || !m.AuthenticatedData {
				t.Errorf("question %v, want EDNS 1232 without options, RD and AD", m)
			}
			ids = append(ids, string(b[:2]))
			names = append(names, m.Question[0].Name)
			reply(pack(t, answerTo(t, m, "API.model.test. 60 A 192.0.2.1")))
		}}
		x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
		for range 20 {
			got, err := x.Exchange(t.Context(), Question{Name: "api.model.test", Type: TypeA})
			wantAddr(t, got, err, "192.0.2.1")
			if got.Records[0].Name != "api.model.test" {
				t.Fatalf("record name %q, want it in lower case", got.Records[0].Name)
			}
		}
		if different(ids) < 10 || different(names) < 10 {
			t.Errorf("20 questions had %d ids and %d spellings, want random ones", different(ids), different(names))
		}
	})
}

func different(list []string) int {
	set := map[string]bool{}
	for _, s := range list {
		set[s] = true
	}
	return len(set)
}

func TestUDPIgnoresForgedAnswers(t *testing.T) {
	forgeries := []struct {
		name  string
		forge func(m *dns.Msg)
	}{
		{"wrong id", func(m *dns.Msg) { m.Id++ }},
		{"a question", func(m *dns.Msg) { m.Response = false }},
		{"other name", func(m *dns.Msg) { m.Question[0].Name = "evil.model.test." }},
		{"other type", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }},
		{"other class", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }},
		{"two questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }},
		{"success without a question", func(m *dns.Msg) { m.Question = nil }},
		{"other opcode", func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }},
	}
	for _, tt := range forgeries {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &packets{handle: func(_ int, b []byte, reply func([]byte)) {
					m := unpackQuery(t, b)
					lie := answerTo(t, m, "api.model.test. 60 A 203.0.113.66")
					tt.forge(lie)
					reply([]byte("short"))
					reply(pack(t, lie))
					time.AfterFunc(100*time.Millisecond, func() {
						reply(pack(t, answerTo(t, m, "api.model.test. 60 A 192.0.2.1")))
					})
				}}
				x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
				start := time.Now()
				got, err := x.Exchange(t.Context(), Question{Name: "api.model.test", Type: TypeA})
				wantAddr(t, got, err, "192.0.2.1")
				if d := time.Since(start); d != 100*time.Millisecond {
					t.Errorf("answered after %v, want 100 ms", d)
				}
			})
		})
	}
}

func TestUDPRepeatsAfterASecondFromAFreshSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		var conns []int
		p := &packets{handle: func(conn int, b []byte, reply func([]byte)) {
			at = append(at, time.Since(start))
			conns = append(conns, conn)
			if len(at) == 3 {
				reply(pack(t, answerTo(t, unpackQuery(t, b), "api.model.test. 60 A 192.0.2.1")))
			}
		}}
		x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
		got, err := x.Exchange(t.Context(), Question{Name: "api.model.test", Type: TypeA})
		wantAddr(t, got, err, "192.0.2.1")
		if len(at) != 3 || at[1] != time.Second || at[2] != 2*time.Second || conns[2] != 3 {
			t.Errorf("sent at %v from sockets %v, want 0, 1 s and 2 s from three", at, conns)
		}
	})
}

// An answer that is late but right still counts.
func TestUDPKeepsListeningForTheFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &packets{handle: func(conn int, b []byte, reply func([]byte)) {
			if conn == 1 {
				time.AfterFunc(1500*time.Millisecond, func() {
					reply(pack(t, answerTo(t, unpackQuery(t, b), "api.model.test. 60 A 192.0.2.1")))
				})
			}
		}}
		x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
		start := time.Now()
		got, err := x.Exchange(t.Context(), Question{Name: "api.model.test", Type: TypeA})
		wantAddr(t, got, err, "192.0.2.1")
		if d := time.Since(start); d != 1500*time.Millisecond {
			t.Errorf("answered after %v, want 1.5 s", d)
		}
	})
}

func TestUDPGivesUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		p := &packets{handle: func(int, []byte, func([]byte)) { sent++ }}
		x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
		start := time.Now()
		_, err := x.Exchange(t.Context(), Question{Name: "api.model.test", Type: TypeA})
		wantKind(t, err, KindTimeout)
		if d := time.Since(start); d != 5*time.Second || sent < 5 || sent > maxSends {
			t.Errorf("gave up after %v and %d datagrams, want 5 s and about one a second", d, sent)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start = time.Now()
		_, err = x.Exchange(ctx, Question{Name: "api.model.test", Type: TypeA})
		wantKind(t, err, KindTimeout)
		if d := time.Since(start); d != 300*time.Millisecond {
			t.Errorf("gave up after %v, want 300 ms", d)
		}

		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, stop)
		_, err = x.Exchange(ctx, Question{Name: "api.model.test", Type: TypeA})
		wantKind(t, err, KindCanceled)
	})
}

// What a datagram cannot carry, or should not be trusted with, comes over TCP.
func TestUDPGoesOnOverTCP(t *testing.T) {
	long := make([]string, 0, 200)
	for range 200 {
		long = append(long, "api.model.test. 60 A 192.0.2.9")
	}
	tests := []struct {
		name  string
		reply func(t *testing.T, m *dns.Msg, reply func([]byte))
	}{
		{"cut, with TC", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			a := answerTo(t, m)
			a.Truncated = true
			reply(pack(t, a))
		}},
		{"cut in a record, with TC", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			a := answerTo(t, m, long...)
			a.Truncated = true
			reply(pack(t, a)[:600])
		}},
		{"cut in a record, without TC", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			reply(pack(t, answerTo(t, m, long...))[:600])
		}},
		{"cut between records, without TC", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			b := pack(t, answerTo(t, m, "api.model.test. 60 A 192.0.2.9", "api.model.test. 60 A 192.0.2.10"))
			reply(b[:len(b)-11-(len("api.model.test.")+1)-14]) // the OPT record and the last address
		}},
		{"junk behind the cut", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			b := pack(t, answerTo(t, m, long...))[:600]
			reply(append(b, []byte(strings.Repeat("\xff\xc0", 100))...))
		}},
		{"longer than allowed", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			a := answerTo(t, m, append(long, long...)...)
			reply(pack(t, a))
		}},
		{"refused with the header alone", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			a := answerTo(t, m)
			a.Rcode, a.Question, a.Extra = dns.RcodeRefused, nil, nil
			reply(pack(t, a))
		}},
		{"case not kept", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			a := answerTo(t, m, "api.model.test. 60 A 203.0.113.66")
			a.Question[0].Name = strings.ToLower(a.Question[0].Name)
			if a.Question[0].Name == m.Question[0].Name {
				a.Question[0].Name = strings.ToUpper(a.Question[0].Name)
			}
			reply(pack(t, a))
		}},
		{"a flood of forgeries", func(t *testing.T, m *dns.Msg, reply func([]byte)) {
			for range 2 * maxForged {
				a := answerTo(t, m, "api.model.test. 60 A 203.0.113.66")
				a.Id++
				reply(pack(t, a))
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &packets{handle: func(_ int, b []byte, reply func([]byte)) { tt.reply(t, unpackQuery(t, b), reply) }}
				mem := netlab.NewMem()
				l, err := mem.Listen("192.0.2.53:53")
				if err != nil {
					t.Fatal(err)
				}
				serve(t, l, func(_ int, p *peer) {
					for {
						m, err := p.next(t)
						if err != nil {
							return
						}
						p.send(t, answerTo(t, m, "api.model.test. 60 A 192.0.2.1"))
					}
				})
				x := open(t, "udp://192.0.2.53", wire(p, mem))
				start := time.Now()
				got, err := x.Exchange(t.Context(), Question{Name: "api.model.test", Type: TypeA})
				wantAddr(t, got, err, "192.0.2.1")
				if d := time.Since(start); d != 0 {
					t.Errorf("answered after %v, want at once", d)
				}
				_ = x.Close()
			})
		})
	}
}

// A small router may keep no case and speak no TCP: it refuses, or is silent.
func TestUDPMakesDoWithoutCaseIfThereIsNoTCP(t *testing.T) {
	for _, refuses := range []bool{true, false} {
		t.Run(fmt.Sprintf("refuses %v", refuses), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &packets{handle: func(_ int, b []byte, reply func([]byte)) {
					m := unpackQuery(t, b)
					a := answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1")
					a.Question[0].Name = "a-name-of-many-letters.model.test."
					reply(pack(t, a))
				}}
				cfg := wire(p, netlab.NewMem())
				limit := time.Duration(0)
				if !refuses {
					limit = time.Second
					dial := cfg.Dial
					cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
						if network == "tcp" {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						return dial(ctx, network, addr)
					}
				}
				x := open(t, "udp://192.0.2.53", cfg)
				start := time.Now()
				got, err := x.Exchange(t.Context(), Question{Name: "a-name-of-many-letters.model.test", Type: TypeA})
				wantAddr(t, got, err, "192.0.2.1")
				if d := time.Since(start); d != limit {
					t.Errorf("answered after %v, want %v", d, limit)
				}
				_ = x.Close()
			})
		})
	}
}

func TestUDPTriesTheNextAddressAtOnceAfterARefusal(t *testing.T) {
	dead := deadPort(t)
	good, err := net.ListenPacket("udp", "127.0.0.2:"+dead)
	if err != nil {
		t.Skipf("the port is not free on a second loopback address: %v", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer good.Close()
	running.Go(func() {
		b := make([]byte, 1500)
		for {
			n, from, err := good.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = good.WriteTo(pack(t, answerTo(t, unpackQuery(t, b[:n]), "a.model.test. 60 A 192.0.2.1")), from)
		}
	})
	x := open(t, "udp://127.0.0.1:"+dead+"#addr=127.0.0.2", Config{Retransmit: 4 * time.Second})
	start := time.Now()
	got, err := x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA})
	wantAddr(t, got, err, "192.0.2.1")
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("answered after %v, want no wait for a refused address", d)
	}
}

func TestNothingThereIsRefused(t *testing.T) {
	port := deadPort(t)
	for _, scheme := range []string{"udp", "tcp", "tls"} {
		x := open(t, scheme+"://127.0.0.1:"+port, Config{})
		_, err := x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA})
		wantKind(t, err, KindRefused)
	}
	x := open(t, "https://127.0.0.1:"+port+"/dns-query", Config{})
	_, err := x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA})
	wantKind(t, err, KindRefused)
}

// deadPort returns a port of 127.0.0.1 that nothing listens on, for now.
func deadPort(t *testing.T) string {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.LocalAddr().String())
	return port
}

// A server that does not know EDNS is asked again without it.
func TestServerWithoutEDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var edns []bool
		p := &packets{handle: func(_ int, b []byte, reply func([]byte)) {
			m := unpackQuery(t, b)
			edns = append(edns, m.IsEdns0() != nil)
			if m.IsEdns0() == nil {
				reply(pack(t, answerTo(t, m, "a.model.test. 60 A 192.0.2.1")))
				return
			}
			a := answerTo(t, m)
			a.Rcode, a.Extra = dns.RcodeFormatError, nil
			reply(pack(t, a))
		}}
		x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
		got, err := x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA})
		wantAddr(t, got, err, "192.0.2.1")
		if len(edns) != 2 || !edns[0] || edns[1] {
			t.Errorf("questions with EDNS: %v, want one with and one without", edns)
		}
	})
}

func TestServerFailureIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &packets{handle: func(_ int, b []byte, reply func([]byte)) {
			a := answerTo(t, unpackQuery(t, b))
			a.Rcode = dns.RcodeServerFailure
			a.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNetworkError, ExtraText: "no way\nto the zone"}}
			reply(pack(t, a))
		}}
		x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
		got, err := x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA})
		if err != nil || got.RCode != RCodeServFail {
			t.Fatalf("answer %+v, %v; want SERVFAIL", got, err)
		}
		if len(got.Extended) != 1 || got.Extended[0] != (ExtendedError{Code: 23, Text: "no way?to the zone"}) {
			t.Errorf("extended errors %+v", got.Extended)
		}
		if _, ok := got.TTL(TypeA); ok {
			t.Error("a server failure has a TTL")
		}
	})
}

func TestQuestionsInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		p := &packets{handle: func(_ int, b []byte, reply func([]byte)) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.AfterFunc(100*time.Millisecond, func() {
				mu.Lock()
				now--
				mu.Unlock()
				reply(pack(t, answerTo(t, unpackQuery(t, b), "a.model.test. 60 A 192.0.2.1")))
			})
		}}
		cfg := wire(p, netlab.NewMem())
		cfg.MaxInFlight = 3
		x := open(t, "udp://192.0.2.53", cfg)
		start := time.Now()
		var all sync.WaitGroup
		for range 9 {
			all.Go(func() {
				if _, err := x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if d := time.Since(start); most != 3 || d != 300*time.Millisecond {
			t.Errorf("at most %d at once, done after %v; want 3 and 300 ms", most, d)
		}
	})
}

func TestCloseFailsQuestionsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &packets{handle: func(int, []byte, func([]byte)) {}}
		x := open(t, "udp://192.0.2.53", wire(p, netlab.NewMem()))
		time.AfterFunc(10*time.Millisecond, func() { _ = x.Close() })
		_, err := x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA})
		wantKind(t, err, KindClosed)
		_, err = x.Exchange(t.Context(), Question{Name: "a.model.test", Type: TypeA})
		wantKind(t, err, KindClosed)
	})
}

// An address that is no longer the resolver's is looked up anew.
func TestUDPBootstrapsAgainAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &packets{handle: func(_ int, b []byte, reply func([]byte)) {
			reply(pack(t, answerTo(t, unpackQuery(t, b), "a.test. 60 A 192.0.2.1")))
		}}
		silent := &packets{handle: func(int, []byte, func([]byte)) {}}
		asked := 0
		x := open(t, "udp://dns.example", Config{
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if addr == "192.0.2.1:53" {
					return silent.dial(ctx, network, addr)
				}
				return p.dial(ctx, network, addr)
			},
			Bootstrap: func(context.Context, string) ([]netip.Addr, error) {
				asked++
				return addrList(fmt.Sprintf("192.0.2.%d", asked)), nil
			},
		})
		_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindTimeout)
		for range 3 {
			ask(t, x, "a.test", "192.0.2.1")
		}
		if asked != 2 {
			t.Errorf("the bootstrap resolver was asked %d times, want 2", asked)
		}
	})
}
