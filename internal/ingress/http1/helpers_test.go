// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/ingress/peer"
)

func TestMain(m *testing.M) {
	if os.Getenv("HTTP1_TEST_CHILD") != "" {
		child()
	}
	goleak.VerifyTestMain(m)
}

// child sends what stdin's first line quotes and waits to be killed.
func child() {
	c, err := net.Dial(os.Getenv("HTTP1_TEST_CHILD"), os.Getenv("HTTP1_TEST_ADDR"))
	if err != nil {
		os.Exit(3)
	}
	io.WriteString(c, os.Getenv("HTTP1_TEST_SEND"))
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

const patience = 10 * time.Second // of tests on real sockets

// serveOn runs a server on a real listener until the test ends.
func serveOn(t testing.TB, network string, cfg Config, h http.HandlerFunc) (*Server, string) {
	t.Helper()
	if cfg.Left == nil {
		cfg.Left = peer.Left
	}
	if cfg.Panic == nil {
		cfg.Panic = func(v any, stack []byte) { t.Errorf("handler panic: %v\n%s", v, stack) }
	}
	s, err := New(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.ServeConn(ctx, c) })
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); wg.Wait() })
	return s, l.Addr().String()
}

func dial(t testing.TB, network, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c
}

// talk sends raw, then reads until the server closes.
func talk(t testing.TB, addr, raw string) string {
	t.Helper()
	c := dial(t, "tcp", addr)
	io.WriteString(c, raw)
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("after %q: %v", b, err)
	}
	return string(b)
}

func send(t testing.TB, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

// expect reads exactly want.
func expect(t testing.TB, c io.Reader, want string) {
	t.Helper()
	b := make([]byte, len(want))
	n, err := io.ReadFull(c, b)
	if string(b[:n]) != want {
		t.Fatalf("got %q (%v), want %q", b[:n], err, want)
	}
}

func expectEnd(t testing.TB, c io.Reader) {
	t.Helper()
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Fatalf("got %q, %v, want a clean end", b, err)
	}
}

func within(t testing.TB, what string, d time.Duration, ch <-chan error) error {
	t.Helper()
	select {
	case err := <-ch:
		return err
	case <-time.After(d):
		t.Fatalf("%s: nothing within %v", what, d)
		return nil
	}
}

// echo answers with what the server understood.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s := fmt.Sprintf("%s %s host=%s body=%q", r.Method, r.RequestURI, r.Host, body)
	if len(r.Trailer) > 0 {
		s += fmt.Sprintf(" trailer=%v", r.Trailer)
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(s)))
	io.WriteString(w, s)
}

// memConn is one end of a buffered in-memory connection with deadlines.
type memConn struct {
	in, out *memPipe
}

type memPipe struct {
	mu       sync.Mutex
	cond     *sync.Cond
	buf      bytes.Buffer
	eof      bool // the writer has closed
	broken   bool // the reader has closed
	deadline time.Time
	timer    *time.Timer
}

func newPipe() *memPipe {
	p := &memPipe{}
	p.cond = sync.NewCond(&p.mu)
	return p
}

func memPair() (client, server *memConn) {
	a, b := newPipe(), newPipe()
	return &memConn{a, b}, &memConn{b, a}
}

func (c *memConn) Read(b []byte) (int, error) {
	p := c.in
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.broken:
			return 0, net.ErrClosed
		case !p.deadline.IsZero() && !time.Now().Before(p.deadline):
			return 0, os.ErrDeadlineExceeded
		case p.buf.Len() > 0:
			return p.buf.Read(b)
		case p.eof:
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

func (c *memConn) Write(b []byte) (int, error) {
	p := c.out
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.eof || p.broken {
		return 0, errors.New("broken pipe")
	}
	p.cond.Broadcast()
	return p.buf.Write(b)
}

func (c *memConn) CloseWrite() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.eof = true
	c.out.cond.Broadcast()
	return nil
}

func (c *memConn) Close() error {
	c.CloseWrite()
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.broken = true
	if c.in.timer != nil {
		c.in.timer.Stop()
	}
	c.in.cond.Broadcast()
	return nil
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	p := c.in
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	if p.timer != nil {
		p.timer.Stop()
	}
	if !t.IsZero() {
		p.timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			p.cond.Broadcast()
			p.mu.Unlock()
		})
	}
	p.cond.Broadcast()
	return nil
}

func (c *memConn) SetWriteDeadline(time.Time) error { return nil }
func (c *memConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *memConn) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (c *memConn) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }

// status is the code in a raw answer's first line.
func status(answer string) string {
	_, rest, _ := strings.Cut(answer, " ")
	code, _, _ := strings.Cut(rest, " ")
	return code
}

func readAnswer(t testing.TB, br *bufio.Reader, method string) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("body after %q: %v", b, err)
	}
	return resp, string(b)
}
