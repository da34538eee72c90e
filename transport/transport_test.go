// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/dial"
)

const patience = 10 * time.Second

// upstream gives each connection, numbered from 1, to serve.
func upstream(t testing.TB, serve func(n int, c *net.TCPConn, in *bufio.Reader)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for n := 1; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				serve(n, c.(*net.TCPConn), bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		conns.Wait()
	})
	return ln.Addr().String()
}

// systemRoots are read once for all tests.
var systemRoots = sync.OnceValue(func() *trust.Store { return trust.NewStore(nil) })

// trusting trusts the CAs of pem besides the system's.
func trusting(t testing.TB, pem []byte) *trust.Verifier {
	t.Helper()
	v, err := trust.New(trust.Config{CA: pem, Store: systemRoots()})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newTransport(t testing.TB, cfg transport.Config) *transport.Transport {
	t.Helper()
	tr, err := transport.New(dial.New(dial.Config{}).DialContext, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func request(t testing.TB, method, base, target string, body io.Reader) *http.Request {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r := (&http.Request{Method: method, URL: u, RequestURI: target, Host: u.Host, Header: http.Header{"User-Agent": nil}}).WithContext(ctx)
	if body != nil {
		r.Body, r.ContentLength = io.NopCloser(body), -1
		if b, ok := body.(*bytes.Reader); ok {
			r.ContentLength = int64(b.Len())
		}
	}
	return r
}

// code is the stable code of err, and whether it says that bytes were sent.
func code(t *testing.T, err error) (string, bool) {
	t.Helper()
	var e interface {
		error
		Code() string
		RequestSent() bool
	}
	if !errors.As(err, &e) {
		t.Fatalf("error without a code: %v", err)
	}
	return e.Code(), e.RequestSent()
}

func readHead(in *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := in.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			return b.String(), err
		}
	}
}

func TestRawTargetGoesOutOctetForOctet(t *testing.T) {
	targets := []string{"/", "/v1/files/a%2Fb", "/%252F", "//x", "/a/../b", "/a;v=1", "/%7E", "/?alt=sse&key=%2B", "/x?", "/%zz", "/a|b^\"'{}",
		"/ü", "/x?q=ü?/", "/x??", "*"}
	h1 := make(chan string, 1)
	raw := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		for {
			head, err := readHead(in)
			if err != nil {
				return
			}
			h1 <- strings.Fields(head)[1]
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	h2 := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h1 <- r.Proto + " " + r.RequestURI }))
	h2.EnableHTTP2 = true
	h2.StartTLS()
	t.Cleanup(h2.Close)
	tr := newTransport(t, transport.Config{Trust: trusting(t, pemOf(h2))})
	for _, target := range targets {
		method := http.MethodGet
		if target == "*" {
			method = http.MethodOptions
		}
		resp, err := tr.RoundTrip(request(t, method, "http://"+raw, target, nil))
		if err != nil {
			t.Errorf("HTTP/1.1 %s: %v", target, err)
			continue
		}
		_ = resp.Body.Close()
		if got := <-h1; got != target {
			t.Errorf("HTTP/1.1: sent %q, want %q", got, target)
		}
		if strings.Contains(target, "ü") || target == "/%zz" || target == "*" {
			continue // the test's HTTP/2 server refuses these paths itself
		}
		resp, err = tr.RoundTrip(request(t, method, h2.URL, target, nil))
		if err != nil {
			t.Errorf("HTTP/2 %s: %v", target, err)
			continue
		}
		_ = resp.Body.Close()
		if got := <-h1; got != "HTTP/2.0 "+target {
			t.Errorf("HTTP/2: sent %q, want %q", got, target)
		}
	}
}

func TestNothingIsAdded(t *testing.T) {
	got := make(chan string, 1)
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		head, _ := readHead(in)
		got <- head
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	r := request(t, http.MethodGet, "http://"+addr, "/x", nil)
	r.Header["Idempotency-Key"] = []string{"k"}
	resp, err := newTransport(t, transport.Config{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if want := "GET /x HTTP/1.1\r\nHost: " + addr + "\r\nIdempotency-Key: k\r\n\r\n"; <-got != want {
		t.Errorf("sent something else than %q", want)
	}
}

func TestHeadLeavesBeforeTheBodyIsThere(t *testing.T) {
	head := make(chan struct{})
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		close(head)
		_, _ = io.ReadFull(in, make([]byte, 2))
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	pr, pw := io.Pipe()
	r := request(t, http.MethodPost, "http://"+addr, "/", pr)
	r.ContentLength = 2
	go func() {
		<-head // the body's bytes come only after the upstream has the head
		_, _ = pw.Write([]byte("{}"))
		_ = pw.Close()
	}()
	resp, err := newTransport(t, transport.Config{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// TestAnUnansweredRequestIsNotSentTwice: the upstream answers one request, reads
// the next one on the same connection and closes.
func TestAnUnansweredRequestIsNotSentTwice(t *testing.T) {
	for _, tt := range []struct{ method, key string }{{"GET", ""}, {"POST", ""}, {"POST", "Idempotency-Key"}, {"PUT", "X-Idempotency-Key"}} {
		t.Run(tt.method+tt.key, func(t *testing.T) {
			var arrived atomic.Int32
			addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
				for i := 0; ; i++ {
					if _, err := readHead(in); err != nil {
						return
					}
					if i == 1 {
						arrived.Add(1)
						return
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			tr := newTransport(t, transport.Config{})
			for i := range 2 {
				r := request(t, tt.method, "http://"+addr, "/", nil)
				if tt.key != "" {
					r.Header[tt.key] = []string{"k"}
				}
				resp, err := tr.RoundTrip(r)
				if i == 0 {
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					continue
				}
				if err == nil {
					t.Fatal("answered from a second attempt")
				}
				if c, sent := code(t, err); c != "upstream_closed" || !sent {
					t.Errorf("code %s, sent %v", c, sent)
				}
			}
			if n := arrived.Load(); n != 1 {
				t.Errorf("the request arrived %d times", n)
			}
		})
	}
}

// TestIdleDeathIsNotTheAppsError closes idle connections at about the time of the
// next request: none may be executed twice, and an error says that bytes left.
func TestIdleDeathIsNotTheAppsError(t *testing.T) {
	seen := make(map[string]int)
	var mu sync.Mutex
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		for {
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(patience))
			b, _ := io.ReadAll(r.Body)
			mu.Lock()
			seen[string(b)]++
			mu.Unlock()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	tr := newTransport(t, transport.Config{})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	failed := 0
	for i := range 300 {
		<-tick.C
		resp, err := tr.RoundTrip(request(t, http.MethodPost, "http://"+addr, "/", bytes.NewReader(fmt.Appendf(nil, "%d", i))))
		if err != nil {
			if _, sent := code(t, err); !sent {
				t.Errorf("an unsent request failed: %v", err)
			}
			failed++
			continue
		}
		_ = resp.Body.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	for k, n := range seen {
		if n > 1 {
			t.Errorf("request %s was executed %d times", k, n)
		}
	}
	t.Logf("%d of 300 requests met a connection that was being closed", failed)
}

func TestEarlyAnswerSurvivesAnUpload(t *testing.T) {
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		_, _ = io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, in)
	})
	resp, err := newTransport(t, transport.Config{}).RoundTrip(request(t, http.MethodPost, "http://"+addr, "/", bytes.NewReader(make([]byte, 50<<20))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); resp.StatusCode != 401 || string(b) != "no" || err != nil {
		t.Errorf("%d %q %v", resp.StatusCode, b, err)
	}
}

func TestLimits(t *testing.T) {
	hold := func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		<-t.Context().Done()
	}
	silent := func(_ int, _ *net.TCPConn, _ *bufio.Reader) { <-t.Context().Done() }
	const limit = 50 * time.Millisecond
	tests := []struct {
		name  string
		serve func(int, *net.TCPConn, *bufio.Reader)
		cfg   transport.Config
		url   string
		body  io.Reader
		code  string
	}{
		{"response header", hold, transport.Config{ResponseHeader: limit}, "http://", nil, "upstream_response_header_timeout"},
		{"request write", silent, transport.Config{RequestWrite: limit}, "http://", bytes.NewReader(make([]byte, 64<<20)), "upstream_request_write_timeout"},
		{"handshake", silent, transport.Config{TLSHandshake: limit}, "https://", nil, "upstream_tls_timeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
				if tt.name == "response header" {
					_, _ = readHead(in)
				}
				<-ctx.Done()
			})
			t.Cleanup(cancel)
			_, err := newTransport(t, tt.cfg).RoundTrip(request(t, http.MethodPost, tt.url+addr, "/", tt.body))
			if c, _ := code(t, err); c != tt.code {
				t.Errorf("code %s (%v), want %s", c, err, tt.code)
			}
			var te interface{ Timeout() bool }
			if !errors.As(err, &te) || !te.Timeout() {
				t.Errorf("%v is no timeout", err)
			}
		})
	}
}

func TestBrokenAnswers(t *testing.T) {
	tests := []struct {
		name, answer, code string
		body               bool // the head is fine, the body breaks
	}{
		{"nothing", "", "upstream_closed", false},
		{"garbage", "hello\r\n\r\n", "upstream_bad_response", false},
		{"half a head", "HTTP/1.1 200 OK\r\nA: b\r\n", "upstream_closed", false},
		{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "upstream_bad_response", false},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "upstream_bad_response", false},
		{"unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "upstream_bad_response", false},
		{"huge head", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 2<<20) + "\r\n\r\n", "upstream_header_too_large", false},
		{"short body", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "", true},
		{"bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "", true},
		{"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "", true},
		{"endless 1xx", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100), "upstream_bad_response", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
				_, _ = readHead(in)
				_, _ = io.WriteString(c, tt.answer)
			})
			resp, err := newTransport(t, transport.Config{}).RoundTrip(request(t, http.MethodGet, "http://"+addr, "/", nil))
			if tt.body {
				if err != nil {
					t.Fatal(err)
				}
				if _, err = io.ReadAll(resp.Body); err == nil {
					t.Error("the broken body ended cleanly")
				}
				_ = resp.Body.Close()
				return
			}
			if c, _ := code(t, err); c != tt.code {
				t.Errorf("code %s (%v), want %s", c, err, tt.code)
			}
		})
	}
}

func TestInterimAnswersReachTheCaller(t *testing.T) {
	addr := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	var codes []int
	r := request(t, http.MethodGet, "http://"+addr, "/", nil)
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(c int, _ textproto.MIMEHeader) error { codes = append(codes, c); return nil },
	}))
	resp, err := newTransport(t, transport.Config{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if fmt.Sprint(codes) != "[103 102]" {
		t.Errorf("interim %v", codes)
	}
}

func TestParentProxy(t *testing.T) {
	target := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = readHead(in)
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	heads := make(chan string, 1)
	var status atomic.Value
	status.Store("200 fine")
	parent := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		head, _ := readHead(in)
		heads <- head
		_, _ = io.WriteString(c, "HTTP/1.1 "+status.Load().(string)+"\r\n\r\n")
		if strings.HasPrefix(status.Load().(string), "407") {
			return
		}
		up, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		defer up.Close()
		go func() { _, _ = io.Copy(up, in) }()
		_, _ = io.Copy(c, up)
	})
	via := transport.ThroughParent(dial.New(dial.Config{}).DialContext,
		func(string) (*url.URL, error) { return url.Parse("http://user:pass@" + parent) }, patience, nil)
	tr, err := transport.New(via, transport.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://[2001:db8::1]:8080", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	want := "CONNECT [2001:db8::1]:8080 HTTP/1.1\r\nHost: [2001:db8::1]:8080\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n"
	if got := <-heads; got != want {
		t.Errorf("parent got %q, want %q", got, want)
	}
	status.Store("407 no")
	_, err = via(t.Context(), "tcp", "model.test:443")
	<-heads
	if c, sent := code(t, err); c != "parent_proxy_refused" || sent || !strings.Contains(err.Error(), "407") || strings.Contains(err.Error(), "pass") {
		t.Errorf("code %s sent %v: %v", c, sent, err)
	}
}

func TestTLSTroubleIsNamed(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Config.ErrorLog = nil
	t.Cleanup(srv.Close)
	plain := upstream(t, func(_ int, c *net.TCPConn, in *bufio.Reader) {
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		_, _ = io.Copy(io.Discard, in)
	})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(srv.URL, "https://"))
	tests := []struct {
		name, url, code string
		roots           []byte
	}{
		{"unknown CA", srv.URL, "upstream_tls_untrusted", nil},
		{"wrong name", "https://localhost:" + port, "upstream_tls_wrong_name", pemOf(srv)},
		{"no TLS there", "https://" + plain, "upstream_tls_failed", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := newTransport(t, transport.Config{Trust: trusting(t, tt.roots)}).RoundTrip(request(t, http.MethodGet, tt.url, "/", nil))
			if c, sent := code(t, err); c != tt.code || sent {
				t.Errorf("code %s sent %v (%v), want %s", c, sent, err, tt.code)
			}
		})
	}
}
