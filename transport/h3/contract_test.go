// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/warmwire/warmwire/transport/contract"
	"github.com/warmwire/warmwire/transport/fault"
	"github.com/warmwire/warmwire/transport/upload"
)

// testTLS is a certificate for example.com and 127.0.0.1, and a client that trusts it.
func testTLS() (server, client *tls.Config) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: roots, ServerName: "example.com"}
}

// serve runs quic-go's HTTP/3 server on a socket.
func serve(t testing.TB, pc net.PacketConn, h http.Handler, cfg *tls.Config, qc *quic.Config) {
	srv := &http3.Server{Handler: h, TLSConfig: http3.ConfigureTLSConfig(cfg), QUICConfig: qc}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(pc)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		_ = pc.Close()
		<-done
	})
}

func udp(t testing.TB) (net.PacketConn, netip.AddrPort) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return pc, pc.LocalAddr().(*net.UDPAddr).AddrPort()
}

func endpoint(t testing.TB, listen ListenFunc) *Endpoint {
	e, err := NewEndpoint(listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// connect serves h with quic-go and opens a connection to it.
func connect(t testing.TB, h http.Handler, cfg Config) *Conn {
	return connectTo(t, h, nil, cfg)
}

func connectTo(t testing.TB, h http.Handler, qc *quic.Config, cfg Config) *Conn {
	t.Helper()
	server, client := testTLS()
	pc, addr := udp(t)
	serve(t, pc, h, server, qc)
	if cfg.TLS == nil {
		cfg.TLS = client
	}
	return dial(t, endpoint(t, nil), addr, cfg)
}

func dial(t testing.TB, e *Endpoint, addr netip.AddrPort, cfg Config) *Conn {
	t.Helper()
	c, err := e.Dial(t.Context(), addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func request(t testing.TB, method, target string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, "https://example.com"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// eventually waits for what other goroutines bring about.
var eventually = contract.Eventually

func do(t testing.TB, c *Conn, req *http.Request) *http.Response {
	t.Helper()
	resp, err := c.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func readAll(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("body: %v", err)
	}
	_ = resp.Body.Close()
	return string(b)
}

// echo answers with what it is asked.
type echo struct{}

func (echo) ServeHTTP(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }

// TestContract is what all connections promise.
func TestContract(t *testing.T) {
	contract.Run(t, contract.Target{Name: "quic-go", Major: 3, Open: func(t testing.TB, h http.Handler) contract.Conn {
		return connect(t, cutLate{h}, Config{})
	}})
}

// A cutLate handler aborts an answer only after what it wrote had time to be read:
// a reset of QUIC takes back what was not (RFC 9000 §3.2).
type cutLate struct{ http.Handler }

func (c cutLate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if cut := recover(); cut != nil {
			late := time.NewTimer(100 * time.Millisecond)
			<-late.C
			panic(cut)
		}
	}()
	c.Handler.ServeHTTP(w, r)
}

// more is what HTTP/3 promises besides.
var more = []struct {
	name    string
	handler http.HandlerFunc
	run     func(t *testing.T, c *Conn)
}{
	{
		name: "what is compressed stays so",
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "not really")
		},
		run: func(t *testing.T, c *Conn) {
			resp := do(t, c, request(t, "GET", "/", nil))
			if got := readAll(t, resp); got != "not really" || resp.Header.Get("Content-Encoding") != "gzip" {
				t.Errorf("%q, %v", got, resp.Header)
			}
		},
	},
	{
		name: "1xx reach the hook, in order, however many",
		handler: func(w http.ResponseWriter, r *http.Request) {
			for i := range 20 {
				w.Header().Set("Link", fmt.Sprint(i))
				w.WriteHeader(103)
			}
			w.WriteHeader(200)
		},
		run: func(t *testing.T, c *Conn) {
			var got, want []string
			trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				got = append(got, fmt.Sprintf("%d %s", code, h.Get("Link")))
				return nil
			}}
			for i := range 20 {
				want = append(want, fmt.Sprintf("103 %d", i))
			}
			req := request(t, "GET", "/", nil)
			_ = readAll(t, do(t, c, req.WithContext(httptrace.WithClientTrace(req.Context(), trace))))
			if !slices.Equal(got, want) {
				t.Errorf("1xx %q", got)
			}
		},
	},
	{
		name: "100 lets a held body go, before the wait for it is over",
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(100)
			_, _ = io.Copy(w, r.Body)
		},
		run: func(t *testing.T, c *Conn) {
			req := request(t, "POST", "/", strings.NewReader("held"))
			req.Header.Set("Expect", "100-continue")
			began := time.Now()
			if got := readAll(t, do(t, c, req)); got != "held" || time.Since(began) >= upload.ContinueTimeout {
				t.Errorf("got %q after %v", got, time.Since(began))
			}
		},
	},
	{
		name: "a hook that refuses a 1xx ends the request with its error",
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(103)
			<-r.Context().Done()
		},
		run: func(t *testing.T, c *Conn) {
			refused := errors.New("refused")
			trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { return refused }}
			req := request(t, "GET", "/", nil)
			if _, err := c.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace))); !errors.Is(err, refused) {
				t.Errorf("err = %v", err)
			}
		},
	},
	{
		name: "a cut answer is an error, after what came",
		handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		run: func(t *testing.T, c *Conn) {
			// What the peer resets may overtake what it sent before: see TestScripted for that.
			resp := do(t, c, request(t, "GET", "/", nil))
			half := make([]byte, 4)
			if _, err := io.ReadFull(resp.Body, half); err != nil || string(half) != "half" {
				t.Fatalf("%q, %v", half, err)
			}
			c.Abandon(&fault.Error{In: "wait", Kind: kindSilent, Sent: true, Err: errors.New("left")})
			_, err := io.ReadAll(resp.Body)
			f, ok := errors.AsType[*fault.Error](err)
			if !errors.Is(err, io.ErrUnexpectedEOF) || !ok || !f.Sent || f.In != "wait" || f.Kind != kindSilent {
				t.Errorf("%#v", err)
			}
			_ = resp.Body.Close()
		},
	},
}

func TestMore(t *testing.T) {
	for _, tt := range more {
		t.Run(tt.name, func(t *testing.T) {
			c := connect(t, tt.handler, Config{})
			tt.run(t, c)
			eventually(t, "nothing is in flight any more", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.inFlight == 0 && len(c.streams) == 0
			})
			if err := c.Err(); err != nil && !strings.Contains(err.Error(), "left") {
				t.Errorf("the connection died: %v", err)
			}
		})
	}
}
