// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/contract"
	"github.com/warmwire/warmwire/transport/fault"
)

// The head leaves in one write, before the first byte of the body is there.
func TestHeadIsOneWrite(t *testing.T) {
	local, remote := net.Pipe()
	c := start(t, local)
	pr, pw := io.Pipe()
	req := request(t, "POST", "/v1/x?y", pr)
	req.Header = http.Header{"Authorization": {"Bearer k"}}
	req.Trailer = http.Header{"X-Sum": nil}
	errs := make(chan error, 1)
	go func() {
		_, err := c.RoundTrip(req)
		errs <- err
	}()
	buf := make([]byte, 4<<10)
	n, err := remote.Read(buf) // a pipe hands each write on as it is
	want := "POST /v1/x?y HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer k\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
	if err != nil || string(buf[:n]) != want {
		t.Errorf("%q, %v", buf[:n], err)
	}
	go func() {
		_, _ = io.WriteString(pw, "piece")
		req.Trailer.Set("X-Sum", "1")
		_ = pw.Close()
	}()
	for _, want := range []string{"5\r\npiece\r\n", "0\r\nX-Sum: 1\r\n\r\n"} {
		if n, err = remote.Read(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("%q, want %q, %v", buf[:n], want, err)
		}
	}
	_ = remote.Close()
	if err := <-errs; err == nil {
		t.Error("no answer, no error")
	}
}

// A token that has arrived is read before the next one is waited for, whatever the
// framing.
func TestTokensDoNotWait(t *testing.T) {
	for name, framing := range map[string]struct {
		head  string
		token func(string) string
	}{
		"chunked": {"Transfer-Encoding: chunked\r\n\r\n", func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }},
		"counted": {"Content-Length: 1000000\r\n\r\n", func(s string) string { return s }},
		"close":   {"\r\n", func(s string) string { return s }},
		// The line end of a chunk belongs to the next read, if it comes late.
		"late line end": {"Transfer-Encoding: chunked\r\n\r\n", func(s string) string { return fmt.Sprintf("\r\n%x\r\n%s", len(s), s)[2:] }},
	} {
		t.Run(name, func(t *testing.T) {
			local, remote := net.Pipe()
			c := start(t, local)
			defer func() { _ = remote.Close() }()
			asked := make(chan struct{})
			go func() {
				_, _ = bufio.NewReader(remote).ReadString('\n')
				close(asked)
				_, _ = io.Copy(io.Discard, remote)
			}()
			heads := make(chan *http.Response, 1)
			go func() {
				resp, err := c.RoundTrip(request(t, "GET", "/", nil))
				if err != nil {
					t.Error(err)
				}
				heads <- resp
			}()
			<-asked
			_, _ = io.WriteString(remote, "HTTP/1.1 200 OK\r\n"+framing.head)
			resp := <-heads // before any byte of the body
			if resp == nil {
				return
			}
			buf := make([]byte, 64)
			for i := range 5 {
				token := fmt.Sprintf("token %d", i)
				raw := framing.token(token)
				if name == "late line end" && i > 0 {
					raw = "\r\n" + raw
				}
				go func() { _, _ = io.WriteString(remote, raw) }()
				n, err := io.ReadFull(resp.Body, buf[:len(token)])
				if err != nil || string(buf[:n]) != token {
					t.Fatalf("%q, %v", buf[:n], err)
				}
			}
			_ = resp.Body.Close()
		})
	}
}

// Many chunks that are there already come with one Read.
func TestChunksThatAreThereComeTogether(t *testing.T) {
	var raw bytes.Buffer
	raw.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	for range 50 {
		raw.WriteString("a\r\n0123456789\r\n")
	}
	raw.WriteString("0\r\n\r\n")
	local, remote := net.Pipe()
	c := start(t, local)
	go func() {
		_, _ = remote.Read(make([]byte, 4096))
		_, _ = remote.Write(raw.Bytes())
	}()
	resp := do(t, c, request(t, "GET", "/", nil))
	reads, total := 0, 0
	for {
		n, err := resp.Body.Read(make([]byte, 4096))
		total += n
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		reads++
	}
	if total != 500 || reads > 3 {
		t.Errorf("%d bytes in %d reads", total, reads)
	}
	_ = remote.Close()
}

// Cancelling ends the connection at once: HTTP/1.1 has no other way to say it.
func TestCancelIsImmediate(t *testing.T) {
	for _, state := range []string{"waiting", "sending", "reading"} {
		t.Run(state, func(t *testing.T) {
			ended := make(chan struct{})
			c := scripted(t, func(nc *net.TCPConn) {
				defer close(ended)
				if state == "reading" {
					_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
				}
				if state != "sending" {
					_, _ = io.Copy(io.Discard, nc)
				}
			})
			cause := errors.New("the app has gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			var body io.Reader
			if state == "sending" {
				pr, pw := io.Pipe()
				body = pr
				defer func() { _ = pw.Close() }()
			}
			req := request(t, "POST", "/", body).WithContext(ctx)
			time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
			resp, err := c.RoundTrip(req)
			if state == "reading" {
				if err != nil {
					t.Fatal(err)
				}
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if !errors.Is(err, cause) && state != "sending" {
				t.Errorf("err = %v", err)
			}
			<-ended
			if c.InFlight() != 0 || c.Err() == nil {
				t.Errorf("in flight %d, %v", c.InFlight(), c.Err())
			}
		})
	}
}

func TestEndings(t *testing.T) {
	open := func(t *testing.T) (*Conn, *http.Response, *atomic.Int32) {
		changes := new(atomic.Int32)
		c := scriptedAs(t, Config{OnChange: func() { changes.Add(1) }}, func(nc *net.TCPConn) {
			_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
			_, _ = io.Copy(io.Discard, nc)
		})
		resp := do(t, c, request(t, "GET", "/", nil))
		if _, err := io.ReadFull(resp.Body, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		return c, resp, changes
	}
	t.Run("Abandon gives the verdict to the reader", func(t *testing.T) {
		c, resp, changes := open(t)
		why := &fault.Error{In: "wait", Kind: "upstream_unreachable", Err: errors.New("dead")}
		go c.Abandon(why)
		_, err := io.ReadAll(resp.Body)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != why.Kind || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%#v", err)
		}
		_ = resp.Body.Close()
		contract.Eventually(t, "somebody is told", func() bool { return changes.Load() > 0 })
	})
	t.Run("Shutdown lets the answer end", func(t *testing.T) {
		goOn := make(chan struct{})
		c := scripted(t, func(nc *net.TCPConn) {
			_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
			<-goOn
			_, _ = io.WriteString(nc, " done")
			_, _ = io.Copy(io.Discard, nc)
		})
		resp := do(t, c, request(t, "GET", "/", nil))
		c.Shutdown()
		if c.Available() != 0 || c.Err() == nil || c.InFlight() != 1 {
			t.Errorf("%d, %v, %d", c.Available(), c.Err(), c.InFlight())
		}
		close(goOn)
		if got := readAll(t, resp); got != "half done" {
			t.Errorf("%q", got)
		}
		<-c.done
	})
	t.Run("Close cuts", func(t *testing.T) {
		c, resp, _ := open(t)
		_ = c.Close()
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v", err)
		}
		_ = resp.Body.Close()
		if err := c.Close(); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

// 100 that never comes holds a body back for a second (RFC 9110 §10.1.1).
func TestExpectWaitsOneSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, remote := net.Pipe()
		c := New(local, Config{})
		began := time.Now()
		var arrived time.Duration
		go func() {
			br := bufio.NewReader(remote)
			for line := ""; line != "\r\n"; {
				line, _ = br.ReadString('\n')
			}
			_, _ = io.ReadFull(br, make([]byte, 4))
			arrived = time.Since(began)
			_, _ = io.WriteString(remote, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}()
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://example.com/", strings.NewReader("held"))
		req.Header.Set("Expect", "100-continue")
		resp, err := c.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if arrived != continueTimeout {
			t.Errorf("after %v", arrived)
		}
		_ = c.Close()
		_ = remote.Close()
	})
}

// A write that failed waits a second for an answer that explains it, not longer.
func TestFailedWriteWaitsForItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, remote := net.Pipe()
		c := New(&half{Conn: local}, Config{})
		go func() { _, _ = io.Copy(io.Discard, remote) }()
		began := time.Now()
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://example.com/", strings.NewReader("body"))
		_, err := c.RoundTrip(req)
		if f, ok := errors.AsType[*fault.Error](err); !ok || !f.Sent || time.Since(began) != answerGrace {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		_ = c.Close()
		_ = remote.Close()
	})
}

// A half takes one write only.
type half struct {
	net.Conn
	writes int
}

func (h *half) Write(p []byte) (int, error) {
	if h.writes++; h.writes > 1 {
		return 0, errors.New("broken pipe")
	}
	return h.Conn.Write(p)
}

// A body whose last byte was written is whole, although its reader says so only
// after the answer: the connection serves the next request, and the hook is called.
func TestAnswerBeforeTheBodysEnd(t *testing.T) {
	sent := make(chan struct{})
	c := scripted(t, func(nc *net.TCPConn) {
		<-sent
		_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		_, _ = io.Copy(io.Discard, nc)
	})
	pr, pw := io.Pipe()
	req := request(t, "POST", "/", pr)
	req.ContentLength = 4
	wrote := make(chan error, 1)
	trace := &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) { wrote <- info.Err }}
	go func() {
		_, _ = io.WriteString(pw, "four") // and no end yet
		close(sent)
	}()
	resp := do(t, c, req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if got := readAll(t, resp); got != "hi" {
		t.Errorf("%q", got)
	}
	contract.Eventually(t, "free again", func() bool { return c.Available() == 1 })
	_ = pw.Close()
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// A lateWriter's writes return after what they wrote was answered.
type lateWriter struct{ net.Conn }

func (l *lateWriter) Write(p []byte) (int, error) {
	n, err := l.Conn.Write(p)
	<-time.NewTimer(lastWriteGrace / 2).C
	return n, err
}

// The answer may overtake the return of the write that ended the body: the connection
// serves the next request nevertheless.
func TestAnswerOvertakesTheLastWrite(t *testing.T) {
	for name, length := range map[string]int64{"length": 4, "chunked": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				local, remote := net.Pipe()
				c := New(&lateWriter{local}, Config{})
				go func() {
					req, err := http.ReadRequest(bufio.NewReader(remote))
					if err == nil {
						_, err = io.Copy(io.Discard, req.Body)
					}
					if err == nil {
						_, err = io.WriteString(remote, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
					}
					if err != nil {
						t.Error(err)
					}
				}()
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://example.com/", io.MultiReader(strings.NewReader("four")))
				if err != nil {
					t.Fatal(err)
				}
				req.ContentLength = length
				if got := readAll(t, do(t, c, req)); got != "hi" {
					t.Errorf("%q", got)
				}
				if c.Available() != 1 {
					t.Error("the connection is not kept")
				}
				_ = c.Close()
				_ = remote.Close()
			})
		})
	}
}
