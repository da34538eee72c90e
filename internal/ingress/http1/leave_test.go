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
	"os/exec"
	"strings"
	"testing"
	"time"
)

// noticed is how soon leaving must be seen; the promise is 50 ms, the rest is
// for a busy machine under the race detector.
const noticed = 50*time.Millisecond + 200*time.Millisecond

type exitWay struct {
	name string
	do   func(c net.Conn)
}

func exitWays(network string) []exitWay {
	ways := []exitWay{{"close", func(c net.Conn) { c.Close() }}, {"shutdown then close", func(c net.Conn) {
		c.(interface{ CloseWrite() error }).CloseWrite()
		c.Close()
	}}}
	if network == "tcp" {
		ways = append(ways, exitWay{"reset", func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() }})
	}
	return ways
}

func TestLeavingCancelsInEveryState(t *testing.T) {
	const chunkedHead = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	waitDone := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	states := []struct {
		name, raw string
		full      bool // fills the connection until the server takes no more
		handler   http.HandlerFunc
	}{
		{"waiting", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, waitDone},
		{"waiting with body", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", false, waitDone},
		{"streaming", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		{"blocked in write", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write(make([]byte, 64<<10))
			}
		}},
		{"mid-upload, read", chunkedHead + "5\r\nhello\r\n", false, func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
				panic(fmt.Sprintf("body ended with %v", err))
			}
			<-r.Context().Done()
		}},
		{"mid-upload, not read", chunkedHead + "5\r\nhello\r\n", false, waitDone},
		{"upload stands still", chunkedHead, true, waitDone},
		{"upload stands still half way", chunkedHead, true, func(w http.ResponseWriter, r *http.Request) {
			io.ReadFull(r.Body, make([]byte, 300<<10))
			<-r.Context().Done()
		}},
		{"pipelined", strings.Repeat("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2), false, waitDone},
		{"pipelined to the brim", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", true, waitDone},
	}
	for _, network := range []string{"tcp", "unix"} {
		for _, st := range states {
			for _, way := range exitWays(network) {
				t.Run(network+"/"+st.name+"/"+way.name, func(t *testing.T) {
					started, left := make(chan error, 8), make(chan error, 8)
					_, addr := serveOn(t, network, Config{}, func(w http.ResponseWriter, r *http.Request) {
						started <- nil
						st.handler(w, r)
						left <- context.Cause(r.Context())
					})
					c := dial(t, network, addr)
					send(t, c, st.raw)
					within(t, "handler", patience, started)
					if st.full {
						fillUp(c, strings.HasPrefix(st.raw, "POST"))
					}
					way.do(c)
					if err := within(t, "leaving", noticed, left); !errors.Is(err, ErrClientLeft) {
						t.Errorf("cause = %v, want ErrClientLeft", err)
					}
					if len(started) > 0 {
						t.Error("a pipelined request was started")
					}
				})
			}
		}
	}
}

// fillUp writes until nothing is taken for a while.
func fillUp(c net.Conn, chunked bool) {
	piece := strings.Repeat("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2000)
	if chunked {
		piece = fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat("x", 64<<10))
	}
	for {
		c.SetWriteDeadline(time.Now().Add(30 * time.Millisecond))
		if _, err := io.WriteString(c, piece); err != nil {
			return
		}
	}
}

func TestKilledClientCancels(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			started, left := make(chan error, 1), make(chan error, 1)
			_, addr := serveOn(t, network, Config{}, func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				started <- nil
				<-r.Context().Done()
				left <- context.Cause(r.Context())
			})
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "HTTP1_TEST_CHILD="+network, "HTTP1_TEST_ADDR="+addr, "HTTP1_TEST_SEND=GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if err := cmd.Start(); err != nil {
				t.Skipf("cannot start a child: %v", err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			within(t, "handler", patience, started)
			cmd.Process.Kill()
			if err := within(t, "leaving", noticed, left); !errors.Is(err, ErrClientLeft) {
				t.Errorf("cause = %v", err)
			}
		})
	}
}

func TestHalfCloseGetsItsFullAnswer(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, n := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/%d requests", network, n), func(t *testing.T) {
				began, goOn := make(chan error, n), make(chan struct{})
				_, addr := serveOn(t, network, Config{}, func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					began <- nil
					select {
					case <-goOn:
					case <-r.Context().Done():
						panic(http.ErrAbortHandler)
					}
					io.WriteString(w, "all of it")
				})
				c := dial(t, network, addr)
				send(t, c, strings.Repeat("GET / HTTP/1.1\r\nHost: a\r\n\r\n", n))
				c.(interface{ CloseWrite() error }).CloseWrite()
				within(t, "handler", patience, began)
				// Longer than several looks at the peer.
				c.SetReadDeadline(time.Now().Add(3 * leftPoll))
				io.ReadAll(c)
				c.SetReadDeadline(time.Now().Add(patience))
				close(goOn)
				got, err := io.ReadAll(c)
				if err != nil || strings.Count(string(got), "all of it") != n || !strings.HasSuffix(string(got), "0\r\n\r\n") {
					t.Fatalf("got %q, %v", got, err)
				}
			})
		}
	}
}

func TestHalfClosedClientThatLeavesLater(t *testing.T) {
	left := make(chan error, 1)
	began := make(chan error, 1)
	_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
		began <- nil
		<-r.Context().Done()
		left <- context.Cause(r.Context())
	})
	c := dial(t, "tcp", addr)
	send(t, c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	c.(*net.TCPConn).CloseWrite()
	within(t, "handler", patience, began)
	c.SetReadDeadline(time.Now().Add(2 * leftPoll))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read = %v, want the answer still to come", err)
	}
	c.Close()
	if err := within(t, "leaving", noticed, left); !errors.Is(err, ErrClientLeft) {
		t.Errorf("cause = %v", err)
	}
}

func TestFINOfUnknownPeerIsLeaving(t *testing.T) {
	left := make(chan error, 1)
	cfg := Config{Left: func(net.Conn) (bool, bool) { return false, false }}
	_, addr := serveOn(t, "tcp", cfg, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		left <- context.Cause(r.Context())
	})
	c := dial(t, "tcp", addr)
	send(t, c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	c.(*net.TCPConn).CloseWrite()
	if err := within(t, "leaving", noticed, left); !errors.Is(err, ErrClientLeft) {
		t.Errorf("cause = %v", err)
	}
}

func TestSlowConsumerGetsEveryByte(t *testing.T) {
	const size = 3 << 20
	for _, framing := range []string{"length", "chunked"} {
		t.Run(framing, func(t *testing.T) {
			_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
				n, p := 0, make([]byte, 5000)
				for {
					k, err := r.Body.Read(p)
					for _, b := range p[:k] {
						if b != byte(n*7/3) {
							t.Errorf("byte %d is wrong", n)
							panic(http.ErrAbortHandler)
						}
						n++
					}
					if err != nil {
						fmt.Fprintf(w, "%d %v", n, err)
						return
					}
				}
			})
			c := dial(t, "tcp", addr)
			body := make([]byte, size)
			for i := range body {
				body[i] = byte(i * 7 / 3)
			}
			sent := make(chan error, 1)
			go func() {
				if framing == "length" {
					fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
					_, err := c.Write(body)
					sent <- err
					return
				}
				bw := bufio.NewWriter(c)
				fmt.Fprintf(bw, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
				for rest, n := body, 1; len(rest) > 0; n = n*3%70001 + 1 {
					k := min(n, len(rest))
					fmt.Fprintf(bw, "%x\r\n%s\r\n", k, rest[:k])
					rest = rest[k:]
				}
				io.WriteString(bw, "0\r\n\r\n")
				sent <- bw.Flush()
			}()
			_, got := readAnswer(t, bufio.NewReader(c), "POST")
			if err := within(t, "upload", patience, sent); err != nil || got != fmt.Sprintf("%d EOF", size) {
				t.Fatalf("got %q, upload %v", got, err)
			}
		})
	}
}
