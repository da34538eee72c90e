// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/warmwire/warmwire/internal/netlab"
)

// streamServer listens in memory and runs handle for each connection.
func streamServer(t *testing.T, addr string, handle func(n int, p *peer)) Config {
	t.Helper()
	mem := netlab.NewMem()
	l, err := mem.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, handle)
	return Config{Dial: mem.Dial}
}

// answerAll answers each question with the address 192.0.2.N, where N is the
// number of the connection.
func answerAll(t *testing.T, n int, p *peer) {
	for {
		m, err := p.next(t)
		if err != nil {
			return
		}
		p.send(t, answerTo(t, m, fmt.Sprintf("%s 60 A 192.0.2.%d", m.Question[0].Name, n)))
	}
}

func ask(t *testing.T, x Exchanger, name, want string) {
	t.Helper()
	got, err := x.Exchange(t.Context(), Question{Name: name, Type: TypeA})
	wantAddr(t, got, err, want)
}

func TestStreamAnswersInAnyOrderOverOneConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const questions = 50
		var conns atomic.Int32
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			conns.Store(int32(n))
			var all []*dns.Msg
			for range questions {
				m, err := p.next(t)
				if err != nil {
					t.Error(err)
					return
				}
				all = append(all, m)
			}
			for _, m := range slices.Backward(all) {
				var i int
				_, _ = fmt.Sscanf(m.Question[0].Name, "h%d.", &i)
				p.send(t, answerTo(t, m, fmt.Sprintf("%s 60 A 192.0.2.%d", m.Question[0].Name, i)))
			}
			_, _ = p.next(t)
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		var running sync.WaitGroup
		for i := range questions {
			running.Go(func() {
				got, err := x.Exchange(t.Context(), Question{Name: fmt.Sprintf("h%d.test", i), Type: TypeA})
				if err != nil || len(got.Records) != 1 || got.Records[0].Addr != netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) {
					t.Errorf("question %d: %+v, %v", i, got, err)
				}
			})
		}
		running.Wait()
		if n := conns.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		_ = x.Close()
	})
}

// Nobody sees that a server closes connections that are idle.
func TestStreamReopensAfterTheServerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			m, err := p.next(t)
			if err != nil {
				return
			}
			p.send(t, answerTo(t, m, fmt.Sprintf("a.test. 60 A 192.0.2.%d", n)))
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		ask(t, x, "a.test", "192.0.2.2")
		time.Sleep(time.Minute)
		ask(t, x, "a.test", "192.0.2.3")
		_ = x.Close()
	})
}

// An answer that is cut by the end of the connection is asked for again.
func TestStreamAsksAgainWhenTheAnswerIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			if n > 1 {
				answerAll(t, n, p)
				return
			}
			if _, err := p.next(t); err == nil {
				_, _ = p.Write([]byte("\x00\x80half of"))
			}
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		ask(t, x, "a.test", "192.0.2.2")
		_ = x.Close()
	})
}

// A server that closes after each answer makes ten questions take ten
// connections, and fails none.
func TestStreamSurvivesAServerThatClosesAfterEachAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			m, err := p.next(t)
			if err != nil {
				return
			}
			time.Sleep(time.Millisecond)
			p.send(t, answerTo(t, m, fmt.Sprintf("a.test. 60 A 192.0.2.%d", n)))
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		var running sync.WaitGroup
		for range 10 {
			running.Go(func() {
				if _, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA}); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		_ = x.Close()
	})
}

func TestStreamGivesUpOnAServerThatOnlyCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns atomic.Int32
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			conns.Store(int32(n))
			_, _ = p.next(t)
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindUnreachable)
		if n := conns.Load(); n != 2 {
			t.Errorf("%d connections, want the question sent again once", n)
		}
	})
}

// A connection that was cut without a word costs half a second, once.
func TestStreamFallsOverWhenTheConnectionIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			if n > 1 {
				answerAll(t, n, p)
				return
			}
			m, _ := p.next(t)
			p.send(t, answerTo(t, m, "a.test. 60 A 192.0.2.1"))
			for {
				if _, err := p.next(t); err != nil { // swallows what comes later
					return
				}
			}
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		time.Sleep(40 * time.Second)
		start := time.Now()
		ask(t, x, "a.test", "192.0.2.2")
		if d := time.Since(start); d != 500*time.Millisecond {
			t.Errorf("answered after %v, want 500 ms", d)
		}
		start = time.Now()
		ask(t, x, "a.test", "192.0.2.2")
		if d := time.Since(start); d != 0 {
			t.Errorf("the next one after %v, want the new connection to be used", d)
		}
		_ = x.Close()
	})
}

// What is found out for one question helps the others on the same connection.
func TestStreamFallsOverForAllQuestionsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			if n > 1 {
				answerAll(t, n, p)
				return
			}
			m, _ := p.next(t)
			p.send(t, answerTo(t, m, "a.test. 60 A 192.0.2.1"))
			for {
				if _, err := p.next(t); err != nil {
					return
				}
			}
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		var running sync.WaitGroup
		running.Go(func() { ask(t, x, "b.test", "192.0.2.2") })
		time.Sleep(400 * time.Millisecond)
		start := time.Now()
		ask(t, x, "c.test", "192.0.2.2")
		if d := time.Since(start); d != 100*time.Millisecond {
			t.Errorf("answered after %v, want 100 ms", d)
		}
		running.Wait()
		_ = x.Close()
	})
}

// A resolver that is slow with one name and quick with others is not dead.
func TestStreamStaysWithAConnectionThatAnswersOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns atomic.Int32
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			conns.Store(int32(n))
			var slow *dns.Msg
			for {
				m, err := p.next(t)
				switch {
				case err != nil:
					return
				case strings.HasPrefix(m.Question[0].Name, "slow."):
					slow = m
				case strings.HasPrefix(m.Question[0].Name, "last."):
					p.send(t, answerTo(t, slow, "slow.test. 60 A 192.0.2.1"))
					fallthrough
				default:
					p.send(t, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
				}
			}
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		var running sync.WaitGroup
		running.Go(func() { ask(t, x, "slow.test", "192.0.2.1") })
		time.Sleep(300 * time.Millisecond)
		ask(t, x, "a.test", "192.0.2.1")
		time.Sleep(time.Second)
		ask(t, x, "last.test", "192.0.2.1")
		running.Wait()
		if n := conns.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		_ = x.Close()
	})
}

// RFC 7828: the client asks for the server's idle time, and closes before it.
func TestStreamHonoursKeepalive(t *testing.T) {
	tests := []struct {
		name   string
		units  uint16 // of 100 ms
		closed time.Duration
	}{
		{"thirty seconds", 300, 29 * time.Second},
		{"close now", 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				closed := make(chan time.Duration, 1)
				cfg := streamServer(t, "192.0.2.53:53", func(_ int, p *peer) {
					m, err := p.next(t)
					if err != nil {
						return
					}
					keepalive, ok := m.IsEdns0().Option[0].(*dns.EDNS0_TCP_KEEPALIVE)
					if !ok || keepalive.Timeout != 0 {
						t.Errorf("option %v, want an empty keepalive", m.IsEdns0().Option)
					}
					a := answerTo(t, m, "a.test. 60 A 192.0.2.1")
					a.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: tt.units}}
					p.send(t, a)
					start := time.Now()
					_, _ = p.next(t)
					closed <- time.Since(start)
				})
				x := open(t, "tcp://192.0.2.53", cfg)
				ask(t, x, "a.test", "192.0.2.1")
				if d := <-closed; d != tt.closed {
					t.Errorf("closed after %v, want %v", d, tt.closed)
				}
				_ = x.Close()
			})
		})
	}
}

func TestStreamRefusesBadAnswers(t *testing.T) {
	tests := []struct {
		name string
		send func(t *testing.T, p *peer, m *dns.Msg)
	}{
		{"another question", func(t *testing.T, p *peer, m *dns.Msg) {
			m.Question[0].Name = "b.test."
			p.send(t, answerTo(t, m, "b.test. 60 A 192.0.2.1"))
		}},
		{"no message", func(_ *testing.T, p *peer, _ *dns.Msg) { p.sendBytes([]byte("hello")) }},
		{"cut short", func(t *testing.T, p *peer, m *dns.Msg) {
			b := pack(t, answerTo(t, m, "a.test. 60 A 192.0.2.1"))
			p.sendBytes(b[:len(b)-12])
		}},
		{"with TC", func(t *testing.T, p *peer, m *dns.Msg) {
			a := answerTo(t, m, "a.test. 60 A 192.0.2.1")
			a.Truncated = true
			p.send(t, a)
		}},
		{"aliases in a circle", func(t *testing.T, p *peer, m *dns.Msg) {
			p.send(t, answerTo(t, m, "a.test. 60 CNAME b.test.", "b.test. 60 CNAME a.test."))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := streamServer(t, "192.0.2.53:53", func(_ int, p *peer) {
					for {
						m, err := p.next(t)
						if err != nil {
							return
						}
						tt.send(t, p, m)
					}
				})
				x := open(t, "tcp://192.0.2.53", cfg)
				_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
				wantKind(t, err, KindBadAnswer)
				_ = x.Close()
			})
		})
	}
}

func TestStreamDialsTheNextAddressAfterAQuarterSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.54:53", func(n int, p *peer) { answerAll(t, n, p) })
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "192.0.2.53:53" {
				<-ctx.Done() // a black hole
				return nil, ctx.Err()
			}
			return dial(ctx, network, addr)
		}
		x := open(t, "tcp://192.0.2.53#addr=192.0.2.54", cfg)
		start := time.Now()
		ask(t, x, "a.test", "192.0.2.1")
		if d := time.Since(start); d != stagger {
			t.Errorf("answered after %v, want %v", d, stagger)
		}
		_ = x.Close()
	})
}

func TestStreamCloseDuringADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		x := open(t, "tcp://192.0.2.53", cfg)
		time.AfterFunc(time.Second, func() { _ = x.Close() })
		_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindClosed)
	})
}

// A resolver that takes long with the first questions on a new connection is not
// given another one.
func TestStreamWaitsForANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns atomic.Int32
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			conns.Store(int32(n))
			for {
				m, err := p.next(t)
				if err != nil {
					return
				}
				time.Sleep(time.Second)
				p.send(t, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
			}
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		var running sync.WaitGroup
		for range 3 {
			running.Go(func() { ask(t, x, "a.test", "192.0.2.1") })
		}
		running.Wait()
		if n := conns.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		_ = x.Close()
	})
}

// A second connection that was not needed takes the place of the first, which
// is closed.
func TestStreamHedgeThatWasNotNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var connected atomic.Int32
		cfg := streamServer(t, "192.0.2.53:53", func(_ int, p *peer) {
			connected.Add(1)
			defer connected.Add(-1)
			for {
				m, err := p.next(t)
				if err != nil {
					return
				}
				if m.Question[0].Name == "slow.test." {
					time.Sleep(800 * time.Millisecond)
				}
				p.send(t, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
			}
		})
		x := open(t, "tcp://192.0.2.53", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		start := time.Now()
		ask(t, x, "slow.test", "192.0.2.1")
		if d := time.Since(start); d != 800*time.Millisecond {
			t.Errorf("answered after %v, want 800 ms", d)
		}
		time.Sleep(time.Second)
		if n := connected.Load(); n != 1 {
			t.Errorf("%d connections are open, want the newer one", n)
		}
		_ = x.Close()
	})
}

// A server that reads nothing must not hold up Close.
func TestStreamCloseWhileTheServerReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe() // has no buffer
		defer server.Close()
		x := open(t, "tcp://192.0.2.53", Config{Dial: func(context.Context, string, string) (net.Conn, error) { return client, nil }})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := x.Exchange(ctx, Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindTimeout)
		start := time.Now()
		_ = x.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("Close took %v", d)
		}
	})
}

// One caller that leaves does not take the connection from the others.
func TestStreamDialOutlivesTheQuestionThatBeganIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) { answerAll(t, n, p) })
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			select {
			case <-time.After(time.Second):
				return dial(ctx, network, addr)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		x := open(t, "tcp://192.0.2.53", cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := x.Exchange(ctx, Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindTimeout)
		ask(t, x, "a.test", "192.0.2.1")
		if n := dials.Load(); n != 1 {
			t.Errorf("%d dials, want 1", n)
		}
		_ = x.Close()
	})
}

// tlsServer is a resolver over TLS in memory.
func tlsServer(t *testing.T, id identity, handle func(n int, p *peer, state tls.ConnectionState)) Config {
	t.Helper()
	server := &tls.Config{Certificates: []tls.Certificate{id.tls}}
	cfg := streamServer(t, "192.0.2.53:853", func(n int, p *peer) {
		conn := tls.Server(p.Conn, server)
		defer conn.Close()
		if err := conn.Handshake(); err == nil {
			handle(n, &peer{Conn: conn, r: bufio.NewReader(conn)}, conn.ConnectionState())
		}
	})
	cfg.Roots = id.roots
	return cfg
}

func TestTLSPadsAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resumed := make(chan bool, 10)
		cfg := tlsServer(t, newIdentity(t, "dns.example"), func(n int, p *peer, state tls.ConnectionState) {
			resumed <- state.DidResume
			b, err := readMessage(p.r)
			if err != nil {
				return
			}
			if len(b)%128 != 0 {
				t.Errorf("a question of %d octets, want a multiple of 128", len(b))
			}
			p.send(t, answerTo(t, unpackQuery(t, b), fmt.Sprintf("a.test. 60 A 192.0.2.%d", n)))
		})
		cfg.Sessions = tls.NewLRUClientSessionCache(4)
		x := open(t, "tls://dns.example@192.0.2.53", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		ask(t, x, "a.test", "192.0.2.2")
		if first, second := <-resumed, <-resumed; first || !second {
			t.Errorf("sessions resumed: %v, %v; want the second", first, second)
		}
		_ = x.Close()
	})
}

func TestTLSVerifiesTheServer(t *testing.T) {
	tests := []struct {
		name, spec string
		host       string
		trusted    bool
		reason     string // empty: it is accepted
	}{
		{"name", "tls://dns.example@192.0.2.53", "dns.example", true, ""},
		{"address", "tls://192.0.2.53", "192.0.2.53", true, ""},
		{"other name", "tls://dns.example@192.0.2.53", "other.example", true, "valid for other.example, not dns.example"},
		{"unknown issuer", "tls://dns.example@192.0.2.53", "dns.example", false, "unknown authority"},
		{"pin", "tls://192.0.2.53#pin=PIN", "other.example", false, ""},
		{"other pin", "tls://192.0.2.53#pin=" + strings.Repeat("A", 43) + "=", "192.0.2.53", true, "matches no pin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				id := newIdentity(t, tt.host)
				cfg := tlsServer(t, id, func(n int, p *peer, _ tls.ConnectionState) { answerAll(t, n, p) })
				if !tt.trusted {
					cfg.Roots = newIdentity(t, tt.host).roots
				}
				x := open(t, strings.Replace(tt.spec, "PIN", id.pin, 1), cfg)
				got, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
				if tt.reason == "" {
					wantAddr(t, got, err, "192.0.2.1")
				} else {
					wantKind(t, err, KindTLS)
					if !strings.Contains(err.Error(), tt.reason) {
						t.Errorf("error %v, want the reason %q", err, tt.reason)
					}
				}
				_ = x.Close()
			})
		})
	}
}

func TestTLSHandshakeThatNeverEndsTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.53:853", func(_ int, p *peer) { _, _ = p.r.WriteTo(discard{}) })
		x := open(t, "tls://192.0.2.53", cfg)
		start := time.Now()
		_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindTimeout)
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("gave up after %v, want 5 s", d)
		}
		_ = x.Close()
	})
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func TestBootstrapIsAskedOnceAndAgainWhenNothingIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := streamServer(t, "192.0.2.53:53", func(n int, p *peer) {
			m, err := p.next(t)
			if err == nil {
				p.send(t, answerTo(t, m, fmt.Sprintf("a.test. 60 A 192.0.2.%d", n)))
			}
		})
		asked := 0
		answers := addrList("192.0.2.99") // nothing is there
		cfg.Bootstrap = func(_ context.Context, host string) ([]netip.Addr, error) {
			if asked++; host != "dns.example" {
				return nil, errors.New("unknown host")
			}
			return answers, nil
		}
		x := open(t, "tcp://dns.example", cfg)
		_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindRefused)
		answers = addrList("192.0.2.53")
		ask(t, x, "a.test", "192.0.2.1")
		ask(t, x, "a.test", "192.0.2.2")
		if asked != 2 {
			t.Errorf("the bootstrap resolver was asked %d times, want 2", asked)
		}
		_ = x.Close()
	})
}

// FuzzStream gives a connection any bytes to read: it ends with an error and
// delivers nothing but messages of the right id.
func FuzzStream(f *testing.F) {
	q, err := newQuery("a.test", TypeA, packing{})
	if err != nil {
		f.Fatal(err)
	}
	b := pack(f, answerTo(f, unpackQuery(f, q.message), "a.test. 60 A 192.0.2.1"))
	framed := append([]byte{0, byte(len(b))}, b...)
	f.Add(framed)
	f.Add(append(framed, framed...))
	f.Add(framed[:20])
	f.Add([]byte{0, 3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		c := newStreamConn(&readOnly{r: strings.NewReader(string(in))}, Config{}.WithDefaults())
		w := &waiter{q: q, answer: make(chan []byte, 1)}
		c.waiters[0] = w
		c.read()
		select {
		case <-c.done:
		default:
			t.Fatal("the connection did not end with its input")
		}
		select {
		case m := <-w.answer:
			if q.fits(m, 0) == matchNone {
				t.Errorf("delivered %x", m)
			}
		default:
		}
	})
}

// A readOnly connection has bytes to read.
type readOnly struct {
	net.Conn // the methods that are not used
	r        *strings.Reader
}

func (c *readOnly) Read(b []byte) (int, error)  { return c.r.Read(b) }
func (c *readOnly) SetDeadline(time.Time) error { return nil }
