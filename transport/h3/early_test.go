// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// A slow socket hears everything a moment late. Early data needs it: over loopback
// the handshake may be done before the first request. (And there quic-go v0.65 has
// a race of its own: a stream opened in the very moment in which the server's
// parameters arrive reads them while they are set.)
type slow struct{ net.PacketConn }

func (s slow) ReadFrom(p []byte) (int, net.Addr, error) {
	n, addr, err := s.PacketConn.ReadFrom(p)
	if err == nil {
		late := time.NewTimer(5 * time.Millisecond)
		<-late.C
	}
	return n, addr, err
}

// The library asks for these, and says so aloud if they are not there.
func (s slow) SetReadBuffer(n int) error  { return s.PacketConn.(*net.UDPConn).SetReadBuffer(n) }
func (s slow) SetWriteBuffer(n int) error { return s.PacketConn.(*net.UDPConn).SetWriteBuffer(n) }

func slowly(network, addr string) (net.PacketConn, error) {
	pc, err := net.ListenPacket(network, addr)
	return slow{pc}, err
}

// An earlyServer serves, and can be told to take early data and how to answer it.
type earlyServer struct {
	addr  netip.AddrPort
	cfg   Config
	e     *Endpoint
	early atomic.Bool // the last request came before the handshake was done
}

// newEarly starts a server and has a session with it. held, if not nil, answers.
func newEarly(t *testing.T, held http.HandlerFunc) *earlyServer {
	t.Helper()
	server, client := testTLS()
	client.ClientSessionCache = tls.NewLRUClientSessionCache(10)
	s := &earlyServer{e: endpoint(t, slowly), cfg: Config{TLS: client, EarlyData: true, Tokens: quic.NewLRUTokenStore(10, 2)}}
	pc, addr := udp(t)
	s.addr = addr
	serve(t, pc, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.early.Store(!r.TLS.HandshakeComplete)
		if held != nil {
			held(w, r)
			return
		}
		b, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Method+" "+string(b))
	}), server, &quic.Config{Allow0RTT: true})
	c := dial(t, s.e, addr, s.cfg)
	_ = readAll(t, do(t, c, request(t, "GET", "/", nil)))
	if st := c.Stats(); st.Resumed || st.EarlyData {
		t.Errorf("%+v of the first connection", st)
	}
	eventually(t, "there is a session", func() bool { _, ok := client.ClientSessionCache.Get("example.com"); return ok })
	_ = c.Close()
	return s
}

// A safe request goes out in early data; everything else waits for the handshake.
func TestEarlyData(t *testing.T) {
	tests := []struct {
		method, body string
		early        bool
	}{
		{"GET", "", true}, {"HEAD", "", true}, {"OPTIONS", "", true},
		{"POST", "", false}, {"POST", "paid", false}, {"GET", "a body", false}, {"DELETE", "", false}, {"PUT", "x", false},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.body, func(t *testing.T) {
			s := newEarly(t, nil)
			c := dial(t, s.e, s.addr, s.cfg)
			var body io.Reader
			if tt.body != "" {
				body = strings.NewReader(tt.body)
			}
			resp := do(t, c, request(t, tt.method, "/", body))
			got := readAll(t, resp)
			if want := tt.method + " " + tt.body; got != want && tt.method != "HEAD" {
				t.Errorf("%q", got)
			}
			if got := s.early.Load(); got != tt.early {
				t.Errorf("early data: %v", got)
			}
			if err := c.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			if st := c.Stats(); !st.Resumed || !st.EarlyData {
				t.Errorf("%+v", st)
			}
			_ = readAll(t, do(t, c, request(t, "GET", "/", nil)))
			if s.early.Load() {
				t.Error("a request after WaitReady was early")
			}
		})
	}
}

// Without leave nothing is early, session or not.
func TestEarlyDataIsAskedFor(t *testing.T) {
	s := newEarly(t, nil)
	s.cfg.EarlyData = false
	c := dial(t, s.e, s.addr, s.cfg)
	_ = readAll(t, do(t, c, request(t, "GET", "/", nil)))
	if st := c.Stats(); s.early.Load() || st.EarlyData || !st.Resumed {
		t.Errorf("early %v, %+v", s.early.Load(), st)
	}
}

// 425 Too Early is an answer like others (RFC 8470 §5.2): its caller asks again,
// and after WaitReady nothing is early.
func TestTooEarly(t *testing.T) {
	s := newEarly(t, func(w http.ResponseWriter, r *http.Request) {
		if !r.TLS.HandshakeComplete {
			w.WriteHeader(http.StatusTooEarly)
		}
	})
	c := dial(t, s.e, s.addr, s.cfg)
	resp := do(t, c, request(t, "GET", "/", nil))
	_ = readAll(t, resp)
	if !s.early.Load() || resp.StatusCode != http.StatusTooEarly {
		t.Errorf("early %v, status %d", s.early.Load(), resp.StatusCode)
	}
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	resp = do(t, c, request(t, "GET", "/", nil))
	if _ = readAll(t, resp); resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// Early data that the server refuses was not processed: the request fails as
// unsent, and the next one goes over the same connection.
func TestEarlyDataRefused(t *testing.T) {
	server, client := testTLS()
	client.ClientSessionCache = tls.NewLRUClientSessionCache(10)
	var served atomic.Int32
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		_, _ = io.WriteString(w, "fine")
	})
	pc, addr := udp(t)
	serve(t, pc, h, server, &quic.Config{Allow0RTT: true})
	e := endpoint(t, slowly)
	cfg := Config{TLS: client, EarlyData: true}
	c := dial(t, e, addr, cfg)
	_ = readAll(t, do(t, c, request(t, "GET", "/", nil)))
	eventually(t, "there is a session", func() bool { _, ok := client.ClientSessionCache.Get("example.com"); return ok })
	_ = c.Close()

	// Another server with the same session keys that takes no early data.
	pc2, addr2 := udp(t)
	serve(t, pc2, h, server, &quic.Config{MaxIdleTimeout: time.Minute})
	c = dial(t, e, addr2, cfg)
	served.Store(0)
	_, err := c.RoundTrip(request(t, "GET", "/", nil))
	if f := faultOf(t, err); f.Sent {
		t.Errorf("%+v", f)
	}
	for range 3 {
		if got := readAll(t, do(t, c, request(t, "POST", "/", strings.NewReader("x")))); got != "fine" {
			t.Errorf("%q", got)
		}
		if got := readAll(t, do(t, c, request(t, "GET", "/", nil))); got != "fine" {
			t.Errorf("%q", got)
		}
	}
	if got := served.Load(); got != 6 {
		t.Errorf("%d requests were served, want 6", got)
	}
	if st := c.Stats(); st.EarlyData {
		t.Errorf("%+v", st)
	}
	eventually(t, "nothing is in flight", func() bool { return c.InFlight() == 0 })
}

// Opening fails with words, and within its limit.
func TestDialFails(t *testing.T) {
	server, client := testTLS()
	pc, addr := udp(t)
	serve(t, pc, http.NotFoundHandler(), server, nil)
	e := endpoint(t, nil)
	t.Run("a server that is not trusted", func(t *testing.T) {
		_, err := e.Dial(t.Context(), addr, Config{TLS: &tls.Config{ServerName: "example.com"}})
		if f := faultOf(t, err); f.Kind != kindTLS || f.In != "tls" || f.Sent {
			t.Errorf("%+v", f)
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		silent, addr := udp(t)
		defer silent.Close()
		began := time.Now()
		_, err := e.Dial(t.Context(), addr, Config{TLS: client, HandshakeTimeout: 200 * time.Millisecond})
		if f := faultOf(t, err); f.Kind != kindTimeout || !f.Expired || f.In != "tls" || time.Since(began) > 2*time.Second {
			t.Errorf("after %v: %+v", time.Since(began), f)
		}
	})
	t.Run("a server without HTTP/3", func(t *testing.T) {
		other, addr := udp(t)
		cfg := server.Clone()
		cfg.NextProtos = []string{"other"}
		tr := &quic.Transport{Conn: other}
		l, err := tr.Listen(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(); _ = tr.Close(); _ = other.Close() }()
		_, err = e.Dial(t.Context(), addr, Config{TLS: client})
		if f := faultOf(t, err); f.Kind != kindTLS || f.Sent {
			t.Errorf("%+v", f)
		}
	})
	t.Run("a closed endpoint", func(t *testing.T) {
		closed := endpoint(t, nil)
		_ = closed.Close()
		if _, err := closed.Dial(t.Context(), addr, Config{TLS: client}); faultOf(t, err).Sent {
			t.Errorf("%v", err)
		}
	})
}
