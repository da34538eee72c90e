// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/warmwire/warmwire/internal/netlab"
)

// A web is a resolver over HTTPS in memory.
type web struct {
	dials atomic.Int32
	mute  func(dial int) bool // whether what is sent on this connection gets lost from now on
}

// serveWeb runs handler and returns how to reach it.
func serveWeb(t *testing.T, handler http.HandlerFunc, protocols ...string) (*web, Config) {
	t.Helper()
	return serveWebAs(t, &http.Server{Handler: handler}, protocols...)
}

func serveWebAs(t *testing.T, server *http.Server, protocols ...string) (*web, Config) {
	t.Helper()
	mem := netlab.NewMem()
	l, err := mem.Listen("192.0.2.53:443")
	if err != nil {
		t.Fatal(err)
	}
	id := newIdentity(t, "dns.example", "192.0.2.53")
	w := &web{mute: func(int) bool { return false }}
	server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{id.tls}, NextProtos: protocols}
	server.ErrorLog = log.New(io.Discard, "", 0)
	var running sync.WaitGroup
	running.Go(func() { _ = server.ServeTLS(l, "", "") })
	t.Cleanup(func() {
		_ = server.Close()
		running.Wait()
	})
	cfg := Config{Roots: id.roots, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		n := int(w.dials.Add(1))
		conn, err := mem.Dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &leakyConn{Conn: conn, mute: func() bool { return w.mute(n) }}, nil
	}}
	return w, cfg
}

// A leakyConn loses what is written while it is mute.
type leakyConn struct {
	net.Conn
	mute func() bool
}

func (c *leakyConn) Write(b []byte) (int, error) {
	if c.mute() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// question reads the message of a request.
func question(t testing.TB, r *http.Request) *dns.Msg {
	var b []byte
	var err error
	if r.Method == http.MethodGet {
		b, err = base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
	} else {
		b, err = io.ReadAll(r.Body)
	}
	if err != nil {
		t.Errorf("read the question: %v", err)
	}
	if len(b)%128 != 0 {
		t.Errorf("a question of %d octets, want a multiple of 128", len(b))
	}
	return unpackQuery(t, b)
}

// pause is how long a resolver thinks, unless the request is withdrawn.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func answerWeb(t testing.TB, w http.ResponseWriter, m *dns.Msg) {
	w.Header().Set("Content-Type", mediaType)
	_, _ = w.Write(pack(t, m)) // the client's error shows
}

func TestHTTPSAsks(t *testing.T) {
	tests := []struct {
		name, spec           string
		method, target, host string
		protocol             string
	}{
		{"POST", "https://192.0.2.53/dns-query", "POST", "/dns-query", "192.0.2.53", "h2"},
		{"POST with a query", "https://dns.example@192.0.2.53/q%2Fu?token=x", "POST", "/q%2Fu?token=x", "dns.example", "h2"},
		{"GET", "https://192.0.2.53/dns-query{?dns}", "GET", "/dns-query?dns=", "192.0.2.53", "h2"},
		{"GET with a query", "https://192.0.2.53/q?token=x{&dns}", "GET", "/q?token=x&dns=", "192.0.2.53", "h2"},
		{"HTTP/1.1", "https://192.0.2.53/dns-query", "POST", "/dns-query", "192.0.2.53", "http/1.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				targets := map[string]bool{}
				web, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) {
					m := question(t, r)
					if m.Id != 0 || r.Method != tt.method || r.Host != tt.host || !strings.HasPrefix(r.RequestURI, tt.target) || r.TLS.NegotiatedProtocol != tt.protocol {
						t.Errorf("%s %s%s over %s with id %d", r.Method, r.Host, r.RequestURI, r.TLS.NegotiatedProtocol, m.Id)
					}
					if r.Header.Get("Accept") != mediaType || r.Header["User-Agent"] != nil || r.Header["Accept-Encoding"] != nil {
						t.Errorf("fields %v", r.Header)
					}
					targets[r.RequestURI] = true
					answerWeb(t, w, answerTo(t, m, "a.test. 60 A 192.0.2.1"))
				}, tt.protocol)
				x := open(t, tt.spec, cfg)
				for range 3 {
					ask(t, x, "A.test", "192.0.2.1")
				}
				if n := web.dials.Load(); n != 1 || len(targets) != 1 {
					t.Errorf("%d connections and %d targets, want one of each", n, len(targets))
				}
				_ = x.Close()
			})
		})
	}
}

func TestHTTPSTakesTheAgeOffTheTTL(t *testing.T) {
	tests := []struct {
		age       string
		positive  time.Duration
		negative  time.Duration
		withTTLOf string
	}{
		{"", 300 * time.Second, 60 * time.Second, "300"},
		{"50", 250 * time.Second, 10 * time.Second, "300"},
		{"4000", 0, 0, "300"},
		{"99999999999999999999999", 0, 0, "300"},
		{"-5", 300 * time.Second, 60 * time.Second, "300"},
	}
	for _, tt := range tests {
		t.Run("age "+tt.age, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) {
					m := question(t, r)
					a := answerTo(t, m)
					if m.Question[0].Name == "none.test." {
						soa, _ := dns.NewRR("test. 900 SOA ns.test. root.test. 1 2 3 4 60")
						a.Ns, a.Rcode = []dns.RR{soa}, dns.RcodeNameError
					} else {
						a = answerTo(t, m, "a.test. "+tt.withTTLOf+" A 192.0.2.1")
					}
					w.Header().Set("Age", tt.age)
					answerWeb(t, w, a)
				}, "h2")
				x := open(t, "https://192.0.2.53/dns-query", cfg)
				got, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
				wantAddr(t, got, err, "192.0.2.1")
				if ttl, ok := got.TTL(TypeA); !ok || ttl != tt.positive {
					t.Errorf("TTL %v, %v; want %v", ttl, ok, tt.positive)
				}
				got, err = x.Exchange(t.Context(), Question{Name: "none.test", Type: TypeA})
				if ttl, ok := got.TTL(TypeA); err != nil || !ok || ttl != tt.negative || got.RCode != RCodeNXDomain {
					t.Errorf("negative answer %+v, %v with TTL %v; want %v", got, err, ttl, tt.negative)
				}
				_ = x.Close()
			})
		})
	}
}

func TestHTTPSRefusesBadAnswers(t *testing.T) {
	tests := []struct {
		name   string
		answer func(t *testing.T, w http.ResponseWriter, m *dns.Msg)
		kind   Kind
		status int
	}{
		{"not found", func(_ *testing.T, w http.ResponseWriter, _ *dns.Msg) { w.WriteHeader(404) }, KindStatus, 404},
		{"busy", func(_ *testing.T, w http.ResponseWriter, _ *dns.Msg) { w.WriteHeader(503) }, KindStatus, 503},
		{"elsewhere", func(_ *testing.T, w http.ResponseWriter, _ *dns.Msg) {
			w.Header().Set("Location", "https://portal.example/")
			w.WriteHeader(302)
		}, KindStatus, 302},
		{"a login page", func(_ *testing.T, w http.ResponseWriter, _ *dns.Msg) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		}, KindBadAnswer, 0},
		{"JSON", func(_ *testing.T, w http.ResponseWriter, _ *dns.Msg) {
			w.Header().Set("Content-Type", "application/dns-json")
			_, _ = io.WriteString(w, "{}")
		}, KindBadAnswer, 0},
		{"an answer under another type", func(t *testing.T, w http.ResponseWriter, m *dns.Msg) {
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(pack(t, answerTo(t, m, "a.test. 60 A 192.0.2.1")))
		}, KindBadAnswer, 0},
		{"no type", func(t *testing.T, w http.ResponseWriter, m *dns.Msg) {
			w.Header()["Content-Type"] = nil
			_, _ = w.Write(pack(t, answerTo(t, m)))
		}, KindBadAnswer, 0},
		{"too long", func(_ *testing.T, w http.ResponseWriter, _ *dns.Msg) {
			w.Header().Set("Content-Type", mediaType)
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}, KindBadAnswer, 0},
		{"empty", func(_ *testing.T, w http.ResponseWriter, _ *dns.Msg) { w.Header().Set("Content-Type", mediaType) }, KindBadAnswer, 0},
		{"another question", func(t *testing.T, w http.ResponseWriter, m *dns.Msg) {
			m.Question[0].Name = "b.test."
			answerWeb(t, w, answerTo(t, m, "b.test. 60 A 192.0.2.1"))
		}, KindBadAnswer, 0},
		{"cut", func(t *testing.T, w http.ResponseWriter, m *dns.Msg) {
			a := answerTo(t, m)
			a.Truncated = true
			answerWeb(t, w, a)
		}, KindBadAnswer, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) { tt.answer(t, w, question(t, r)) }, "h2")
				x := open(t, "https://192.0.2.53/secret-path?token=secret", cfg)
				_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
				wantKind(t, err, tt.kind)
				if e, _ := errors.AsType[*Error](err); e.Status != tt.status {
					t.Errorf("status %d, want %d", e.Status, tt.status)
				}
				if strings.Contains(err.Error(), "secret") || strings.Contains(x.Name(), "secret") {
					t.Errorf("name %q and error %q show the path", x.Name(), err)
				}
				_ = x.Close()
			})
		})
	}
}

func TestHTTPSVerifiesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) {
			t.Error("a question reached the wrong server")
		}, "h2")
		x := open(t, "https://other.example@192.0.2.53/dns-query", cfg)
		_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindTLS)
		if !strings.Contains(err.Error(), "not other.example") {
			t.Errorf("error %v, want the name that did not fit", err)
		}
		_ = x.Close()
	})
}

// The connection's other end is gone without a word: the next question costs
// half a second, and the ones after it nothing.
func TestHTTPSFallsOverWhenTheConnectionIsSilent(t *testing.T) {
	for _, protocol := range []string{"h2", "http/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				web, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) {
					answerWeb(t, w, answerTo(t, question(t, r), "a.test. 60 A 192.0.2.1"))
				}, protocol)
				var gone atomic.Bool
				web.mute = func(dial int) bool { return dial == 1 && gone.Load() }
				x := open(t, "https://192.0.2.53/dns-query", cfg)
				ask(t, x, "a.test", "192.0.2.1")
				time.Sleep(40 * time.Second)
				gone.Store(true)
				for i, want := range []time.Duration{500 * time.Millisecond, 0, 0} {
					start := time.Now()
					ask(t, x, "a.test", "192.0.2.1")
					if d := time.Since(start); d != want {
						t.Errorf("question %d answered after %v, want %v", i, d, want)
					}
				}
				if n := web.dials.Load(); n != 2 {
					t.Errorf("%d connections, want 2", n)
				}
				_ = x.Close()
			})
		})
	}
}

// What is found out for one question helps the others on the same connection.
func TestHTTPSFallsOverForAllQuestionsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) {
			answerWeb(t, w, answerTo(t, question(t, r), "a.test. 60 A 192.0.2.1"))
		}, "h2")
		var gone atomic.Bool
		web.mute = func(dial int) bool { return dial == 1 && gone.Load() }
		x := open(t, "https://192.0.2.53/dns-query", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		gone.Store(true)
		var running sync.WaitGroup
		running.Go(func() { ask(t, x, "a.test", "192.0.2.1") })
		time.Sleep(400 * time.Millisecond)
		start := time.Now()
		ask(t, x, "a.test", "192.0.2.1")
		if d := time.Since(start); d != 100*time.Millisecond {
			t.Errorf("answered after %v, want 100 ms", d)
		}
		running.Wait()
		if n := web.dials.Load(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
		_ = x.Close()
	})
}

// Nobody sees that the server closes connections that are idle.
func TestHTTPSReopensAfterTheServerClosed(t *testing.T) {
	for _, protocol := range []string{"h2", "http/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				web, cfg := serveWebAs(t, &http.Server{
					IdleTimeout: 30 * time.Second,
					Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						answerWeb(t, w, answerTo(t, question(t, r), "a.test. 60 A 192.0.2.1"))
					}),
				}, protocol)
				x := open(t, "https://192.0.2.53/dns-query", cfg)
				for range 3 {
					ask(t, x, "a.test", "192.0.2.1")
					time.Sleep(40 * time.Second)
				}
				if n := web.dials.Load(); n != 3 {
					t.Errorf("%d connections, want 3", n)
				}
				_ = x.Close()
			})
		})
	}
}

// A name that takes long must not make a live connection look dead.
func TestHTTPSSlowNameKeepsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) {
			m := question(t, r)
			if m.Question[0].Name == "slow.test." {
				pause(r.Context(), 2*time.Second)
			}
			answerWeb(t, w, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
		}, "h2")
		x := open(t, "https://192.0.2.53/dns-query", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		var running sync.WaitGroup
		running.Go(func() { ask(t, x, "slow.test", "192.0.2.1") })
		time.Sleep(300 * time.Millisecond)
		ask(t, x, "a.test", "192.0.2.1")
		running.Wait()
		if n := web.dials.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		_ = x.Close()
	})
}

// A quiet slow resolver is given a second connection and still answers on the
// first; the first is closed with its last request.
func TestHTTPSHedgeThatWasNotNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var connected atomic.Int32
		slow := func(w http.ResponseWriter, r *http.Request) {
			m := question(t, r)
			if m.Question[0].Name == "slow.test." {
				pause(r.Context(), 800*time.Millisecond)
			}
			answerWeb(t, w, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
		}
		count := func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				connected.Add(1)
			case http.StateClosed:
				connected.Add(-1)
			}
		}
		_, cfg := serveWebAs(t, &http.Server{Handler: http.HandlerFunc(slow), ConnState: count}, "h2")
		x := open(t, "https://192.0.2.53/dns-query", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		start := time.Now()
		ask(t, x, "slow.test", "192.0.2.1")
		if d := time.Since(start); d != 800*time.Millisecond {
			t.Errorf("answered after %v, want 800 ms", d)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := connected.Load(); n != 1 {
			t.Errorf("%d connections are open, want the newer one", n)
		}
		_ = x.Close()
	})
}

// A server may lose a request that came together with others, and do better
// with one that has a body.
func TestHTTPSAsksAgainWithPOST(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web, cfg := serveWeb(t, func(w http.ResponseWriter, r *http.Request) {
			m := question(t, r)
			if m.Question[0].Name == "lost.test." && r.Method == http.MethodGet {
				<-r.Context().Done()
				return
			}
			answerWeb(t, w, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
		}, "h2")
		x := open(t, "https://192.0.2.53/dns-query{?dns}", cfg)
		ask(t, x, "a.test", "192.0.2.1")
		var running sync.WaitGroup
		running.Go(func() {
			start := time.Now()
			ask(t, x, "lost.test", "192.0.2.1")
			if d := time.Since(start); d != time.Second {
				t.Errorf("answered after %v, want 1 s", d)
			}
		})
		time.Sleep(100 * time.Millisecond)
		ask(t, x, "a.test", "192.0.2.1")
		running.Wait()
		if n := web.dials.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		_ = x.Close()
	})
}

func TestHTTPSManyAtOnce(t *testing.T) {
	tests := []struct {
		name    string
		streams int // that the server allows on a connection; 0: its default
		one     bool
	}{
		{"over one connection", 0, true},
		{"more than the server allows", 5, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := func(w http.ResponseWriter, r *http.Request) {
					m := question(t, r)
					pause(r.Context(), 10*time.Millisecond)
					answerWeb(t, w, answerTo(t, m, m.Question[0].Name+" 60 A 192.0.2.1"))
				}
				few := &http.HTTP2Config{MaxConcurrentStreams: tt.streams}
				web, cfg := serveWebAs(t, &http.Server{Handler: http.HandlerFunc(slow), HTTP2: few}, "h2")
				x := open(t, "https://192.0.2.53/dns-query", cfg)
				var running sync.WaitGroup
				for i := range 80 { // before there is any connection
					running.Go(func() {
						if _, err := x.Exchange(t.Context(), Question{Name: fmt.Sprintf("h%d.test", i), Type: TypeA}); err != nil {
							t.Error(err)
						}
					})
				}
				running.Wait()
				if n := web.dials.Load(); tt.one && n != 1 {
					t.Errorf("%d connections, want 1", n)
				}
				_ = x.Close()
			})
		})
	}
}

func TestHTTPSCloseFailsQuestionsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, cfg := serveWeb(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "h2")
		x := open(t, "https://192.0.2.53/dns-query", cfg)
		time.AfterFunc(time.Second, func() { _ = x.Close() })
		_, err := x.Exchange(t.Context(), Question{Name: "a.test", Type: TypeA})
		wantKind(t, err, KindClosed)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// With the caller's transport, nothing is dialled here, not even for a name
// without an address.
func TestHTTPSUsesTheRoundTripperItIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		x := open(t, "https://dns.example/dns-query", Config{
			Dial: func(context.Context, string, string) (net.Conn, error) {
				t.Error("it dialled")
				return nil, errors.New("no")
			},
			RoundTripper: roundTripper(func(r *http.Request) (*http.Response, error) {
				asked++
				m := question(t, r)
				time.Sleep(2 * time.Second)
				return &http.Response{
					StatusCode: 200,
					Header:     http.Header{"Content-Type": {mediaType + "; charset=x"}},
					Body:       io.NopCloser(bytes.NewReader(pack(t, answerTo(t, m, "a.test. 60 A 192.0.2.1")))),
				}, nil
			}),
		})
		ask(t, x, "a.test", "192.0.2.1")
		ask(t, x, "a.test", "192.0.2.1")
		if asked != 2 {
			t.Errorf("it was asked %d times, want 2", asked)
		}
	})
}
