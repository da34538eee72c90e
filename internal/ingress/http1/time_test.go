// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// inBubble serves one in-memory connection on a fake clock.
func inBubble(t *testing.T, cfg Config, h http.HandlerFunc, client func(t *testing.T, c *memConn, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(h, cfg)
		if err != nil {
			t.Fatal(err)
		}
		c, sc := memPair()
		done := make(chan struct{})
		go func() {
			s.ServeConn(t.Context(), sc)
			close(done)
		}()
		client(t, c, s)
		c.Close()
		<-done
	})
}

func TestHeaderTimeoutIsExact(t *testing.T) {
	inBubble(t, Config{HeaderTimeout: 7 * time.Second}, echo, func(t *testing.T, c *memConn, _ *Server) {
		time.Sleep(time.Minute) // the clock in here is fake; the limit begins with the first byte
		start := time.Now()
		send(t, c, "GET / HT")
		time.Sleep(5 * time.Second)
		send(t, c, "TP/1.1\r\n") // does not begin it anew
		b := make([]byte, 100)
		n, _ := c.Read(b)
		if status(string(b[:n])) != "408" || time.Since(start).Round(10*time.Millisecond) != 7*time.Second {
			t.Errorf("got %q after %v", b[:n], time.Since(start))
		}
	})
}

func TestIdleTimeoutIsExact(t *testing.T) {
	inBubble(t, Config{IdleTimeout: time.Minute}, echo, func(t *testing.T, c *memConn, _ *Server) {
		time.Sleep(59 * time.Second)
		send(t, c, get)
		expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nGET / host=a body=\"\"")
		start := time.Now()
		io.ReadAll(c)
		if d := time.Since(start).Round(10 * time.Millisecond); d != time.Minute {
			t.Errorf("closed after %v, want 1m", d)
		}
	})
}

// A request that arrives at the very moment of the deadline is served.
func TestIdleDeadlineLosesNoRequest(t *testing.T) {
	inBubble(t, Config{IdleTimeout: time.Minute}, echo, func(t *testing.T, c *memConn, _ *Server) {
		time.Sleep(time.Minute)
		send(t, c, get)
		expect(t, c, "HTTP/1.1 200 OK\r\n")
	})
}

func TestLongRequestOutlivesTheIdleTimeout(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(time.Hour):
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	inBubble(t, Config{IdleTimeout: time.Minute}, slow, func(t *testing.T, c *memConn, _ *Server) {
		start := time.Now()
		send(t, c, get)
		expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		if d := time.Since(start); d != time.Hour {
			t.Errorf("answered after %v", d)
		}
	})
}

func TestFINWithoutLeftCancelsAtOnce(t *testing.T) {
	var cause error
	var after time.Duration
	inBubble(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		<-r.Context().Done()
		cause, after = context.Cause(r.Context()), time.Since(start)
	}, func(t *testing.T, c *memConn, _ *Server) {
		send(t, c, get)
		time.Sleep(time.Second)
		c.Close()
		synctest.Wait()
		if !errors.Is(cause, ErrClientLeft) || after != time.Second {
			t.Errorf("cause %v after %v", cause, after)
		}
	})
}

func TestReadDeadlineOfTheBody(t *testing.T) {
	inBubble(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		http.NewResponseController(w).SetReadDeadline(start.Add(3 * time.Second))
		_, err := r.Body.Read(make([]byte, 1))
		fmt.Fprintf(w, "%v %v", errors.Is(err, os.ErrDeadlineExceeded), time.Since(start))
	}, func(t *testing.T, c *memConn, _ *Server) {
		send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
		b := make([]byte, 1000)
		n, _ := c.Read(b)
		if !strings.Contains(string(b[:n]), "true 3s") {
			t.Errorf("got %q", b[:n])
		}
	})
}

// Without a socket the reader waits for room, and goes on when there is some.
func TestBackPressureWithoutSocket(t *testing.T) {
	var goOn chan struct{}
	body := strings.Repeat("0123456789", 50<<10)
	inBubble(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		<-goOn
		b, err := io.ReadAll(r.Body)
		fmt.Fprint(w, string(b) == body, err)
	}, func(t *testing.T, c *memConn, _ *Server) {
		goOn = make(chan struct{}) // in the bubble, before the handler runs
		send(t, c, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		synctest.Wait()
		c.out.mu.Lock()
		rest := c.out.buf.Len()
		c.out.mu.Unlock()
		if taken := len(body) - rest; taken > largeSize+smallSize {
			t.Errorf("%d bytes were taken, want no more than the buffer", taken)
		}
		close(goOn)
		expect(t, c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
		b := make([]byte, 1000)
		n, _ := c.Read(b)
		if !strings.Contains(string(b[:n]), "true <nil>") {
			t.Errorf("got %q", b[:n])
		}
	})
}

func TestContextEndCutsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		idle, si := memPair()
		busy, sb := memPair()
		done := make(chan struct{}, 2)
		go func() { s.ServeConn(ctx, si); done <- struct{}{} }()
		go func() { s.ServeConn(ctx, sb); done <- struct{}{} }()
		send(t, busy, get)
		synctest.Wait()
		cancel()
		<-done
		<-done
		expectEnd(t, idle)
		expectEnd(t, busy)
	})
}

func TestDrainClosesIdleAtOnce(t *testing.T) {
	inBubble(t, Config{}, echo, func(t *testing.T, c *memConn, s *Server) {
		synctest.Wait()
		start := time.Now()
		s.Drain()
		io.ReadAll(c)
		if d := time.Since(start); d > 10*time.Millisecond {
			t.Errorf("closed after %v", d)
		}
	})
}

// countingConn counts the writes to it.
type countingConn struct {
	*memConn
	writes []string
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes = append(c.writes, string(p))
	return c.memConn.Write(p)
}

// Each token is one write, the head goes with the first, and all is written
// when Write returns.
func TestOneWriteForEachToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, sc := memPair()
		c := &countingConn{memConn: sc}
		s, err := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 5 {
				io.WriteString(w, "data: token\n\n")
				w.(http.Flusher).Flush()
				if len(c.writes) != i+1 || !strings.HasSuffix(c.writes[i], "d\r\ndata: token\n\n\r\n") {
					t.Errorf("after token %d: writes %q", i, c.writes)
				}
			}
		}), Config{})
		if err != nil {
			t.Fatal(err)
		}
		send(t, client, get)
		client.CloseWrite()
		s.cfg.Left = func(net.Conn) (bool, bool) { return false, true } // a half-close
		s.ServeConn(t.Context(), c)
		if len(c.writes) != 6 || c.writes[5] != "0\r\n\r\n" {
			t.Errorf("writes %q", c.writes)
		}
	})
}

// An answer larger than any buffer arrives whole, in few pieces.
func TestLargeWrites(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	inBubble(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, big)
	}, func(t *testing.T, c *memConn, _ *Server) {
		send(t, c, get)
		_, got := readAnswer(t, bufio.NewReader(c), "GET")
		if got != big {
			t.Errorf("got %d bytes, want %d", len(got), len(big))
		}
	})
}
