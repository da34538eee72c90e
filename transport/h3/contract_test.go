// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bytes"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/warmwire/warmwire/transport/fault"
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
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(5 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("never: %s", what)
		}
	}
}

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

// trailing is a body that tells of its end and its closing.
type trailing struct {
	r      io.Reader
	end    func()
	closed atomic.Int32
}

func (b *trailing) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF && b.end != nil {
		b.end()
	}
	return n, err
}

func (b *trailing) Close() error {
	b.closed.Add(1)
	return nil
}

// The contract of an http.RoundTripper that the product relies on.
var contract = []struct {
	name    string
	handler http.HandlerFunc
	run     func(t *testing.T, c *Conn)
}{
	{
		name:    "get with a body of known length",
		handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello") },
		run: func(t *testing.T, c *Conn) {
			resp := do(t, c, request(t, "GET", "/", nil))
			if resp.StatusCode != 200 || resp.Status != "200 OK" || resp.ProtoMajor != 3 || resp.ContentLength != 5 || resp.Uncompressed || resp.TLS == nil {
				t.Errorf("resp = %+v", resp)
			}
			if got := readAll(t, resp); got != "hello" {
				t.Errorf("body %q", got)
			}
		},
	},
	{
		name: "the raw target and authority arrive octet for octet",
		handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s %s", r.Host, r.RequestURI)
		},
		run: func(t *testing.T, c *Conn) {
			req := request(t, "GET", "/x", nil)
			req.Host, req.RequestURI = "api.test:99", "/a%2fb//c?q=%zz;&x=|"
			if got := readAll(t, do(t, c, req)); got != "api.test:99 /a%2fb//c?q=%zz;&x=|" {
				t.Errorf("got %q", got)
			}
		},
	},
	{
		name: "no field is added, none is lost",
		handler: func(w http.ResponseWriter, r *http.Request) {
			var names []string
			for k := range r.Header {
				names = append(names, k+"="+strings.Join(r.Header[k], "+"))
			}
			slices.Sort(names)
			_, _ = io.WriteString(w, strings.Join(names, " "))
		},
		run: func(t *testing.T, c *Conn) {
			req := request(t, "GET", "/", nil)
			req.Header = http.Header{"x-lower": {"1"}, "X-Two": {"a", "b"}, "Connection": {"x"}, "Upgrade": {"y"},
				"Keep-Alive": {"z"}, "Te": {"gzip"}, "X-Nil": nil}
			if got := readAll(t, do(t, c, req)); got != "X-Lower=1 X-Two=a+b" {
				t.Errorf("got %q", got)
			}
		},
	},
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
		name: "an upload of unknown length with trailers both ways",
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			b, err := io.ReadAll(r.Body)
			if r.ContentLength != -1 || err != nil {
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(b)
			w.Header().Set("X-Sum", r.Trailer.Get("X-Req"))
			w.Header().Set(http.TrailerPrefix+"X-Late", "late")
		},
		run: func(t *testing.T, c *Conn) {
			data := strings.Repeat("0123456789", 20_000)
			req := request(t, "POST", "/", nil)
			req.Trailer = http.Header{"X-Req": nil}
			req.Body, req.ContentLength = &trailing{r: strings.NewReader(data), end: func() { req.Trailer.Set("X-Req", "42") }}, -1
			resp := do(t, c, req)
			if _, ok := resp.Trailer["X-Sum"]; !ok || resp.ContentLength != -1 {
				t.Errorf("announced trailers %v, length %d", resp.Trailer, resp.ContentLength)
			}
			if got := readAll(t, resp); got != data {
				t.Errorf("echo of %d bytes is %d bytes", len(data), len(got))
			}
			if resp.Trailer.Get("X-Sum") != "42" || resp.Trailer.Get("X-Late") != "late" {
				t.Errorf("trailers %v", resp.Trailer)
			}
		},
	},
	{
		name: "lengths are declared and checked",
		handler: func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%d %d %v", r.ContentLength, len(b), err)
		},
		run: func(t *testing.T, c *Conn) {
			if got := readAll(t, do(t, c, request(t, "POST", "/", strings.NewReader("four")))); got != "4 4 <nil>" {
				t.Errorf("got %q", got)
			}
			for _, n := range []int64{3, 5} {
				req := request(t, "POST", "/", io.NopCloser(strings.NewReader("four")))
				req.ContentLength = n
				resp, err := c.RoundTrip(req)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				if err == nil {
					t.Errorf("a body of 4 bytes with %d declared passed", n)
				}
			}
			if got := readAll(t, do(t, c, request(t, "POST", "/", nil))); got != "0 0 <nil>" {
				t.Errorf("got %q", got)
			}
		},
	},
	{
		name: "HEAD, 204 and 304 have no body",
		handler: func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/head":
				w.Header().Set("Content-Length", "1000")
			case "/204":
				w.WriteHeader(204)
			case "/304":
				w.WriteHeader(304)
			}
		},
		run: func(t *testing.T, c *Conn) {
			for path, length := range map[string]int64{"/head": 1000, "/204": 0, "/304": 0} {
				method := "GET"
				if path == "/head" {
					method = "HEAD"
				}
				resp := do(t, c, request(t, method, path, nil))
				if got := readAll(t, resp); got != "" || resp.ContentLength != length {
					t.Errorf("%s: %d bytes, length %d", path, len(got), resp.ContentLength)
				}
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
		name:    "the hooks are called once each",
		handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) },
		run: func(t *testing.T, c *Conn) {
			for _, body := range []string{"", "with a body"} {
				calls := make(chan string, 10)
				trace := &httptrace.ClientTrace{
					WroteHeaders:         func() { calls <- "head" },
					WroteRequest:         func(i httptrace.WroteRequestInfo) { calls <- fmt.Sprintf("request %v", i.Err) },
					GotFirstResponseByte: func() { calls <- "answer" },
				}
				req := request(t, "POST", "/", strings.NewReader(body))
				_ = readAll(t, do(t, c, req.WithContext(httptrace.WithClientTrace(req.Context(), trace))))
				got := []string{<-calls, <-calls, <-calls}
				slices.Sort(got)
				if want := []string{"answer", "head", "request <nil>"}; !slices.Equal(got, want) || len(calls) != 0 {
					t.Errorf("%q and %d more", got, len(calls))
				}
			}
		},
	},
	{
		name: "Expect: 100-continue holds the body until 100",
		handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/refuse" {
				w.WriteHeader(417)
				return
			}
			w.WriteHeader(100)
			b, _ := io.ReadAll(r.Body)
			_, _ = w.Write(b)
		},
		run: func(t *testing.T, c *Conn) {
			req := request(t, "POST", "/", strings.NewReader("held"))
			req.Header.Set("Expect", "100-continue")
			if got := readAll(t, do(t, c, req)); got != "held" {
				t.Errorf("got %q", got)
			}
			unread := &trailing{r: strings.NewReader("never read"), end: func() { t.Error("the body was read") }}
			req = request(t, "POST", "/refuse", unread)
			req.Header.Set("Expect", "100-continue")
			resp := do(t, c, req)
			if _ = readAll(t, resp); resp.StatusCode != 417 {
				t.Errorf("status %d", resp.StatusCode)
			}
			eventually(t, "the unread body is closed", func() bool { return unread.closed.Load() == 1 })
		},
	},
	{
		name: "an early answer is delivered while the body still waits for the app",
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(413)
			_, _ = io.WriteString(w, "too large")
		},
		run: func(t *testing.T, c *Conn) {
			pr, pw := io.Pipe()
			resp := do(t, c, request(t, "POST", "/", pr))
			if got := readAll(t, resp); got != "too large" || resp.StatusCode != 413 {
				t.Errorf("%d %q", resp.StatusCode, got)
			}
			eventually(t, "the body is closed", func() bool {
				_, err := pw.Write([]byte("x"))
				return errors.Is(err, io.ErrClosedPipe)
			})
		},
	},
	{
		name: "both ways at once",
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			buf := make([]byte, 100)
			for {
				n, err := r.Body.Read(buf)
				_, _ = w.Write(bytes.ToUpper(buf[:n]))
				w.(http.Flusher).Flush()
				if err != nil {
					return
				}
			}
		},
		run: func(t *testing.T, c *Conn) {
			pr, pw := io.Pipe()
			resp := do(t, c, request(t, "POST", "/", pr))
			for _, word := range []string{"one", "two", "three"} {
				_, _ = io.WriteString(pw, word)
				got := make([]byte, len(word))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != strings.ToUpper(word) {
					t.Fatalf("%q, %v", got, err)
				}
			}
			_ = pw.Close()
			if got := readAll(t, resp); got != "" {
				t.Errorf("rest %q", got)
			}
		},
	},
	{
		name:    "the context's end cancels a waiting request",
		handler: func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		run: func(t *testing.T, c *Conn) {
			cause := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			req := request(t, "GET", "/", nil).WithContext(ctx)
			time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
			if _, err := c.RoundTrip(req); !errors.Is(err, cause) {
				t.Errorf("err = %v", err)
			}
		},
	},
	{
		name: "closing a body, or the context's end, cancels the handler",
		handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "begin")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		run: func(t *testing.T, c *Conn) {
			resp := do(t, c, request(t, "GET", "/", nil))
			_ = resp.Body.Close()
			if _, err := resp.Body.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Errorf("Read after Close = %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			resp = do(t, c, request(t, "GET", "/", nil).WithContext(ctx))
			time.AfterFunc(20*time.Millisecond, cancel)
			if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v", err)
			}
			_ = resp.Body.Close()
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
	{
		name: "a large answer through WriteTo",
		handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte("abcdefgh"), 1<<18))
		},
		run: func(t *testing.T, c *Conn) {
			resp := do(t, c, request(t, "GET", "/", nil))
			var sum bytes.Buffer
			n, err := resp.Body.(io.WriterTo).WriteTo(&sum)
			if n != 2<<20 || err != nil || !bytes.Equal(sum.Bytes(), bytes.Repeat([]byte("abcdefgh"), 1<<18)) {
				t.Errorf("%d bytes, %v", n, err)
			}
			_ = resp.Body.Close()
		},
	},
	{
		name: "a head larger than a packet, both ways",
		handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Big", r.Header.Get("X-Big"))
		},
		run: func(t *testing.T, c *Conn) {
			req := request(t, "GET", "/", nil)
			big := strings.Repeat("b~", 20<<10)
			req.Header.Set("X-Big", big)
			resp := do(t, c, req)
			if _ = readAll(t, resp); resp.Header.Get("X-Big") != big {
				t.Errorf("status %d, %d bytes came back", resp.StatusCode, len(resp.Header.Get("X-Big")))
			}
		},
	},
}

func TestContract(t *testing.T) {
	for _, tt := range contract {
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
