// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/transport/contract"
	"github.com/warmwire/warmwire/transport/fault"
)

func request(t testing.TB, method, target string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, "http://example.com"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
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

// scripted returns a connection to a peer that runs play once the head of the
// first request is there.
func scripted(t testing.TB, play func(nc *net.TCPConn)) *Conn { return scriptedAs(t, Config{}, play) }

func scriptedAs(t testing.TB, cfg Config, play func(nc *net.TCPConn)) *Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	played := make(chan struct{})
	go func() {
		defer close(played)
		nc, err := l.Accept()
		_ = l.Close()
		if err != nil {
			return
		}
		defer func() { _ = nc.Close() }()
		br := bufio.NewReader(nc)
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\r\n" {
				break
			}
		}
		play(nc.(*net.TCPConn))
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := New(nc, cfg)
	t.Cleanup(func() {
		_ = c.Close()
		<-played
	})
	return c
}

// answering is a peer that answers with raw and then waits for the client to end,
// or ends itself.
func answering(t testing.TB, raw string, ends bool) *Conn {
	return scripted(t, func(nc *net.TCPConn) {
		_, _ = io.WriteString(nc, raw)
		if !ends {
			_, _ = io.Copy(io.Discard, nc)
		}
	})
}

// Framing as RFC 9112 §6.3 has it, and what must be refused.
func TestAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, tt := range []struct {
		name, raw string
		method    string
		body      string
		reusable  bool
		code      string // of the error; "" = whole
	}{
		{name: "counted", raw: ok + "Content-Length: 2\r\n\r\nhi", body: "hi", reusable: true},
		{name: "the same length twice", raw: ok + "Content-Length: 2\r\ncontent-length: 2, 2\r\n\r\nhi", body: "hi", reusable: true},
		{name: "chunked", raw: ok + "Transfer-Encoding: Chunked\r\n\r\n1;x=\"y\"\r\nh\r\n01  \r\ni\r\n0\r\n\r\n", body: "hi", reusable: true},
		{name: "chunked and a length", raw: ok + "Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\nhi\r\n0\r\n\r\n", body: "hi"},
		{name: "asked to close", raw: ok + "Content-Length: 2\r\nConnection: x, Close\r\n\r\nhi", body: "hi"},
		{name: "until the end", raw: ok + "\r\nhi", body: "hi"},
		{name: "HTTP/1.0", raw: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", body: "hi"},
		{name: "HTTP/1.0 that keeps", raw: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", body: "hi", reusable: true},
		{name: "lines that end with LF alone", raw: "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", body: "hi", reusable: true},
		{name: "no reason", raw: "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", body: "hi", reusable: true},
		{name: "a folded field", raw: ok + "X: a\r\n b\r\nContent-Length: 2\r\n\r\nhi", body: "hi", reusable: true},
		{name: "1xx first", raw: "HTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nhi", body: "hi", reusable: true},
		{name: "HEAD", method: "HEAD", raw: ok + "Content-Length: 100\r\n\r\n", reusable: true},
		{name: "204", raw: "HTTP/1.1 204 N\r\n\r\n", reusable: true},
		{name: "304 with a length", raw: "HTTP/1.1 304 N\r\nContent-Length: 100\r\n\r\n", reusable: true},
		{name: "more than was promised", raw: ok + "Content-Length: 2\r\n\r\nhi and more", body: "hi"},

		{name: "two lengths", raw: ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", code: "upstream_bad_response"},
		{name: "a signed length", raw: ok + "Content-Length: +2\r\n\r\nhi", code: "upstream_bad_response"},
		{name: "an empty length", raw: ok + "Content-Length:\r\n\r\nhi", code: "upstream_bad_response"},
		{name: "another coding", raw: ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", code: "upstream_bad_response"},
		{name: "two codings", raw: ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", code: "upstream_bad_response"},
		{name: "chunked in HTTP/1.0", raw: "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", code: "upstream_bad_response"},
		{name: "a space before the colon", raw: ok + "Content-Length : 2\r\n\r\nhi", code: "upstream_bad_response"},
		{name: "a field without a name", raw: ok + ": x\r\n\r\n", code: "upstream_bad_response"},
		{name: "a carriage return within", raw: ok + "X: a\rb\r\n\r\n", code: "upstream_bad_response"},
		{name: "a NUL", raw: ok + "X: a\x00b\r\n\r\n", code: "upstream_bad_response"},
		{name: "a space first", raw: ok + " X: a\r\n\r\n", code: "upstream_bad_response"},
		{name: "HTTP/2 in clear", raw: "\x00\x00\x00\x04\x00\x00\x00\x00\x00 and what follows\r\n\r\n", code: "upstream_bad_response"},
		{name: "a short status", raw: "HTTP/1.1 20 OK\r\n\r\n", code: "upstream_bad_response"},
		{name: "a long status", raw: "HTTP/1.1 2000 OK\r\n\r\n", code: "upstream_bad_response"},
		{name: "101 that nobody asked for", raw: "HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n", code: "upstream_bad_response"},
		{name: "1xx without end", raw: strings.Repeat("HTTP/1.1 102 P\r\n\r\n", maxInterim+1), code: "upstream_bad_response"},
		{name: "a chunk that is no number", raw: ok + "Transfer-Encoding: chunked\r\n\r\n-1\r\nh\r\n0\r\n\r\n", code: "upstream_bad_response"},
		{name: "a chunk's line that ends with LF alone", raw: ok + "Transfer-Encoding: chunked\r\n\r\n2\nhi\r\n0\r\n\r\n", code: "upstream_bad_response"},
		{name: "a trailer that ends with LF alone", raw: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX: y\n\r\n", body: "hi", code: "upstream_bad_response"},
		{name: "trailers that end with LF alone", raw: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\n", body: "hi", code: "upstream_bad_response"},
		{name: "a chunk that ends with LF alone", raw: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\n0\r\n\r\n", body: "hi", code: "upstream_bad_response"},
		{name: "a chunk with 0x", raw: ok + "Transfer-Encoding: chunked\r\n\r\n0x2\r\nhi\r\n0\r\n\r\n", code: "upstream_bad_response"},
		{name: "a chunk longer than it says", raw: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhiho\r\n0\r\n\r\n", body: "hi", code: "upstream_bad_response"},
		{name: "a chunk's line without end", raw: ok + "Transfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("x", 2*maxChunkLine), code: "upstream_header_too_large"},
		{name: "a head without end", raw: ok + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 1100), code: "upstream_header_too_large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ends := strings.HasPrefix(tt.name, "until")
			c := answering(t, tt.raw, ends)
			method := tt.method
			if method == "" {
				method = "GET"
			}
			resp, err := c.RoundTrip(request(t, method, "/", nil))
			var got []byte
			if err == nil {
				got, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if string(got) != tt.body {
				t.Errorf("body %q, want %q", got, tt.body)
			}
			code := ""
			if f, ok := errors.AsType[*fault.Error](err); ok {
				code = f.Code()
				if !f.RequestSent() || f.Phase() != "wait" {
					t.Errorf("%+v", f)
				}
			} else if err != nil {
				t.Errorf("untyped %v", err)
			}
			if code != tt.code {
				t.Errorf("code %q, want %q (%v)", code, tt.code, err)
			}
			contract.Eventually(t, "the connection is free, or over", func() bool {
				if tt.reusable {
					return c.Available() == 1
				}
				return c.Err() != nil && c.InFlight() == 0
			})
		})
	}
}

// Wherever an answer is cut it looks cut.
func TestCuts(t *testing.T) {
	const counted = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour"
	const chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n4\r\nfour\r\n0\r\nX: y\r\n\r\n"
	for _, whole := range []string{counted, chunks} {
		for n := range len(whole) {
			for _, reset := range []bool{false, true} {
				c := scripted(t, func(nc *net.TCPConn) {
					_, _ = io.WriteString(nc, whole[:n])
					if reset {
						_ = nc.SetLinger(0)
					}
				})
				resp, err := c.RoundTrip(request(t, "GET", "/", nil))
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				f, ok := errors.AsType[*fault.Error](err)
				if !ok || !f.Sent || f.In != "wait" || err == io.EOF {
					t.Fatalf("cut at %d of %q, reset %v: %v", n, whole, reset, err)
				}
				if want := "upstream_closed"; f.Kind != want && !(reset && f.Kind == "upstream_reset") {
					t.Errorf("cut at %d, reset %v: %s", n, reset, f.Kind)
				}
				if _, again := c.RoundTrip(request(t, "GET", "/", nil)); again == nil {
					t.Error("the connection took another request")
				}
			}
		}
	}
}

// What a peer does while nothing is asked of it is known before the next request.
func TestIdleIsWatched(t *testing.T) {
	for name, end := range map[string]func(nc *net.TCPConn){
		"closed":         func(nc *net.TCPConn) { _ = nc.Close() },
		"reset":          func(nc *net.TCPConn) { _ = nc.SetLinger(0); _ = nc.Close() },
		"408 by itself":  func(nc *net.TCPConn) { _, _ = io.WriteString(nc, "HTTP/1.1 408 Request Timeout\r\n\r\n") },
		"a second reply": func(nc *net.TCPConn) { _, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			goOn := make(chan struct{})
			c := scripted(t, func(nc *net.TCPConn) {
				_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
				<-goOn
				end(nc)
				_, _ = io.Copy(io.Discard, nc)
			})
			_ = readAll(t, do(t, c, request(t, "GET", "/", nil)))
			contract.Eventually(t, "idle", func() bool { return c.Available() == 1 })
			close(goOn)
			contract.Eventually(t, "known", func() bool { return c.Err() != nil && c.Available() == 0 })
			_, err := c.RoundTrip(request(t, "POST", "/", strings.NewReader("paid")))
			if f, ok := errors.AsType[*fault.Error](err); !ok || f.Sent {
				t.Errorf("a request that was not sent: %v", err)
			}
		})
	}
}

// An answer that came before the peer stopped reading is delivered (RFC 9112 §9.5).
func TestEarlyAnswerBeforeReset(t *testing.T) {
	c := scripted(t, func(nc *net.TCPConn) {
		_, _ = io.WriteString(nc, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
		_ = nc.CloseWrite()
		_, _ = io.CopyN(io.Discard, nc, 64<<10)
	})
	resp := do(t, c, request(t, "POST", "/", io.LimitReader(zeros{}, 64<<20)))
	if got := readAll(t, resp); resp.StatusCode != 401 || got != "no" {
		t.Errorf("%d %q", resp.StatusCode, got)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// Behind a 101 the connection is the app's, both ways, with one side's end alone.
func TestUpgrade(t *testing.T) {
	c := scripted(t, func(nc *net.TCPConn) {
		_, _ = io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nfirst")
		_, _ = io.Copy(nc, nc)
		_, _ = io.WriteString(nc, "last")
	})
	req := request(t, "GET", "/", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp := do(t, c, req)
	sock, ok := resp.Body.(interface {
		io.ReadWriteCloser
		CloseWrite() error
	})
	if resp.StatusCode != 101 || !ok {
		t.Fatalf("%d, %T", resp.StatusCode, resp.Body)
	}
	_, _ = io.WriteString(sock, "second")
	if err := sock.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(sock); string(got) != "firstsecondlast" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if c.InFlight() != 1 {
		t.Error("a socket in use is not in flight")
	}
	_ = sock.Close()
	if c.InFlight() != 0 || c.Err() == nil {
		t.Errorf("in flight %d, %v", c.InFlight(), c.Err())
	}
}

// A request of which nothing could be written is provably unsent.
func TestUnsent(t *testing.T) {
	local, remote := net.Pipe()
	c := start(t, &deaf{Conn: local})
	_, err := c.RoundTrip(request(t, "POST", "/", strings.NewReader("x")))
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Sent || f.In != "send" {
		t.Errorf("%#v", err)
	}
	_ = remote.Close()
}

// A deaf connection takes no byte.
type deaf struct{ net.Conn }

func (*deaf) Write([]byte) (int, error) { return 0, errors.New("no route") }

func TestInvalidRequests(t *testing.T) {
	for name, spoil := range map[string]func(*http.Request){
		"method":        func(r *http.Request) { r.Method = "G T" },
		"CONNECT":       func(r *http.Request) { r.Method = "CONNECT" },
		"target":        func(r *http.Request) { r.RequestURI = "/ x" },
		"line break":    func(r *http.Request) { r.RequestURI = "/\r\nX: y" },
		"host":          func(r *http.Request) { r.Host = "a b" },
		"no host":       func(r *http.Request) { r.Host, r.URL.Host = "", "" },
		"field name":    func(r *http.Request) { r.Header["X Y"] = []string{"z"} },
		"field value":   func(r *http.Request) { r.Header["X"] = []string{"secret\r\ny: z"} },
		"trailer name":  func(r *http.Request) { r.ContentLength, r.Trailer = -1, http.Header{"X Y": nil} },
		"trailer frame": func(r *http.Request) { r.ContentLength, r.Trailer = -1, http.Header{"Content-Length": nil} },
	} {
		t.Run(name, func(t *testing.T) {
			local, remote := net.Pipe()
			defer func() { _ = remote.Close() }()
			c := start(t, local)
			body := &contract.Body{R: strings.NewReader("x")}
			req := request(t, "POST", "/", body)
			spoil(req)
			_, err := c.RoundTrip(req)
			f, ok := errors.AsType[*fault.Error](err)
			if !ok || f.Sent || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
			if n := body.Closed.Load(); n != 1 {
				t.Errorf("the body was closed %d times", n)
			}
			if c.Available() != 1 {
				t.Error("the connection is spoilt")
			}
		})
	}
}
