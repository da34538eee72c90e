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
	"os/exec"
	"strings"
	"testing"
)

const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

func TestAnswerBytes(t *testing.T) {
	const get10 = "GET / HTTP/1.0\r\n\r\n"
	const head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
	tests := []struct {
		name, raw string
		handler   http.HandlerFunc
		want      string // all that comes; the client closes after it
	}{
		{"nothing said", get, func(w http.ResponseWriter, r *http.Request) {}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"unknown length", get, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "hello")
			io.WriteString(w, "")
			w.Write([]byte("0123456789abcdef"))
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"},
		{"known length", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hel")
			io.WriteString(w, "lo")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"},
		{"too much", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
			if _, err := io.WriteString(w, "x"); err != http.ErrContentLength {
				panic(fmt.Sprint(err))
			}
		}, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"},
		{"too little", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hel")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"},
		{"flush first", get, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{"two values, unsafe bytes", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header()["X"] = []string{"a", "b\r\nEvil: 1\x00"}
			w.Header()["bad name"] = []string{"c"}
			w.WriteHeader(299)
		}, "HTTP/1.1 299 \r\nX: a\r\nX: b  Evil: 1 \r\nContent-Length: 0\r\n\r\n"},
		{"framing is ours", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Transfer-Encoding", "gzip")
			io.WriteString(w, "a")
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"},
		{"HTTP/1.0", get10, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(103)
			io.WriteString(w, "hello")
		}, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"},
		{"HTTP/1.0 keep-alive", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "0")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		{"close asked by the client", "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n" + get, func(w http.ResponseWriter, r *http.Request) {},
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		{"close asked by the handler", get + get, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Connection", "close") },
			"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"},
		{"head", head, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "x") }, "HTTP/1.1 200 OK\r\n\r\n"},
		{"head with length", head, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "5") }, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"},
		{"head with coding", head, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Transfer-Encoding", "chunked") }, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"},
		{"204", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
				panic(fmt.Sprint(err))
			}
		}, "HTTP/1.1 204 No Content\r\n\r\n"},
		{"304 with length", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(304)
		}, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"},
		{"interim answers", get, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(100)
			w.WriteHeader(100)
			w.Header().Set("Link", "a")
			w.WriteHeader(103)
			w.Header().Del("Link")
			w.WriteHeader(201)
			w.WriteHeader(103)
			w.WriteHeader(200)
		}, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"},
		{"announced trailer", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			io.WriteString(w, "a")
			w.Header().Set("X-Sum", "1")
		}, "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"},
		{"late trailer without body", get, func(w http.ResponseWriter, r *http.Request) { w.Header().Set(http.TrailerPrefix+"X-Sum", "1") },
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\n"},
		{"trailer dropped with length", get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1")
			io.WriteString(w, "a")
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"},
		{"cut in chunks", get, func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "a")
			panic(http.ErrAbortHandler)
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"},
		{"cut before the answer", get, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, ""},
		{"101 that nobody takes", get, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(101) }, "HTTP/1.1 101 Switching Protocols\r\n\r\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, addr := serveOn(t, "tcp", Config{}, tt.handler)
			c := dial(t, "tcp", addr)
			send(t, c, tt.raw)
			c.(*net.TCPConn).CloseWrite() // so that kept connections end too
			got, err := io.ReadAll(c)
			if string(got) != tt.want || err != nil {
				t.Errorf("got  %q, %v\nwant %q", got, err, tt.want)
			}
		})
	}
}

// A client that knows the end by the close alone must see that it was cut.
func TestCutAnswerOfHTTP10IsReset(t *testing.T) {
	goOn := make(chan struct{})
	_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "a")
		<-goOn
		panic(http.ErrAbortHandler)
	})
	c := dial(t, "tcp", addr)
	send(t, c, "GET / HTTP/1.0\r\n\r\n")
	expect(t, c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\na")
	close(goOn)
	if b, err := io.ReadAll(c); err == nil {
		t.Fatalf("got %q and a clean end, want a reset", b)
	}
}

func TestPanicIsSeenAndCuts(t *testing.T) {
	seen := make(chan any, 1)
	_, addr := serveOn(t, "tcp", Config{Panic: func(v any, _ []byte) { seen <- v }}, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "a")
		panic("boom")
	})
	if got := talk(t, addr, get); strings.HasSuffix(got, "0\r\n\r\n") {
		t.Errorf("got a complete answer %q", got)
	}
	if v := <-seen; v != "boom" {
		t.Errorf("Panic saw %v", v)
	}
}

func TestExpectIsTheHandlers(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") == "" {
			panic("the expectation is hidden")
		}
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusContinue)
		echo(w, r)
	})
	t.Run("continue", func(t *testing.T) {
		c := dial(t, "tcp", addr)
		send(t, c, head)
		expect(t, c, "HTTP/1.1 100 Continue\r\n\r\n")
		send(t, c, "hello")
		expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\nPOST / host=a body=\"hello\"")
	})
	t.Run("final first", func(t *testing.T) {
		// A body that looks like a request must not become one.
		c := dial(t, "tcp", addr)
		send(t, c, strings.Replace(strings.Replace(head, "/ ", "/no ", 1), "5\r\n", "500\r\n", 1))
		expect(t, c, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		send(t, c, get)
		c.(*net.TCPConn).CloseWrite()
		expectEnd(t, c)
	})
}

func TestEarlyAnswerIsReadableWhileUploading(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			_, addr := serveOn(t, network, Config{}, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusUnauthorized)
				io.WriteString(w, "who are you?")
			})
			c := dial(t, network, addr)
			const size = 50 << 20
			send(t, c, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size))
			piece := make([]byte, 1<<20)
			for range size >> 20 {
				if _, err := c.Write(piece); err != nil {
					t.Fatalf("upload: %v", err)
				}
			}
			resp, body := readAnswer(t, bufio.NewReader(c), "POST")
			if resp.StatusCode != 401 || body != "who are you?" || !resp.Close {
				t.Errorf("got %v %q", resp.Status, body)
			}
		})
	}
}

func TestBrokenBodyIsAnsweredIfTheHandlerDidNot(t *testing.T) {
	for _, abort := range []bool{false, true} {
		t.Run(fmt.Sprint("abort ", abort), func(t *testing.T) {
			began := make(chan error, 1)
			_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
				began <- nil
				_, err := io.ReadAll(r.Body)
				if e, ok := errors.AsType[*RequestError](err); !ok || e.Status != 400 {
					t.Errorf("body ended with %v", err)
				}
				if abort {
					panic(http.ErrAbortHandler)
				}
			})
			c := dial(t, "tcp", addr)
			send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
			within(t, "handler", patience, began)
			send(t, c, "loX"+get)
			c.(*net.TCPConn).CloseWrite()
			got, err := io.ReadAll(c)
			if status(string(got)) != "400" || strings.Count(string(got), "HTTP/1.1") != 1 || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestPipelinedRequestsRunInOrder(t *testing.T) {
	const n = 200
	_, addr := serveOn(t, "tcp", Config{}, echo)
	c := dial(t, "tcp", addr)
	go func() {
		for i := range n {
			fmt.Fprintf(c, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", i, i, strings.Repeat("x", i))
		}
	}()
	br := bufio.NewReader(c)
	for i := range n {
		_, got := readAnswer(t, br, "POST")
		if want := fmt.Sprintf("POST /%d host=a body=%q", i, strings.Repeat("x", i)); got != want {
			t.Fatalf("answer %d is %q", i, got)
		}
	}
}

func TestUnreadBodyIsNoRequest(t *testing.T) {
	_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })
	c := dial(t, "tcp", addr)
	evil := "GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"
	send(t, c, fmt.Sprintf("POST /one HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%sGET /two HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", len(evil), evil))
	got, _ := io.ReadAll(c)
	if strings.Contains(string(got), "evil") || !strings.Contains(string(got), "/two") {
		t.Errorf("got %q", got)
	}
}

func TestHijackKeepsWhatWasRead(t *testing.T) {
	for _, raw := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"} {
		for _, network := range []string{"tcp", "unix"} {
			t.Run(network+"/"+raw[:4], func(t *testing.T) {
				_, addr := serveOn(t, network, Config{}, func(w http.ResponseWriter, r *http.Request) {
					if r.Method == "CONNECT" {
						w.WriteHeader(200)
					} else {
						w.WriteHeader(101)
					}
					c, rw, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					if _, err := w.Write(nil); err != http.ErrHijacked {
						t.Errorf("write after hijack: %v", err)
					}
					io.Copy(c, rw) // from the buffer, then the connection
				})
				c := dial(t, network, addr)
				send(t, c, raw+"early")
				if raw[0] == 'C' {
					expect(t, c, "HTTP/1.1 200 OK\r\n\r\nearly")
				} else {
					expect(t, c, "HTTP/1.1 101 Switching Protocols\r\n\r\nearly")
				}
				send(t, c, "late")
				expect(t, c, "late")
				c.(interface{ CloseWrite() error }).CloseWrite()
				expectEnd(t, c)
			})
		}
	}
}

func TestHTTP2PrefaceIsHandedOn(t *testing.T) {
	cfg := Config{HTTP2: func(_ context.Context, c net.Conn) {
		b := make([]byte, len(preface)+3)
		io.ReadFull(c, b)
		fmt.Fprintf(c, "%q", b)
	}}
	_, addr := serveOn(t, "tcp", cfg, echo)
	for _, cut := range []int{1, 3, 18, len(preface)} {
		c := dial(t, "tcp", addr)
		send(t, c, preface[:cut])
		send(t, c, preface[cut:]+"abc")
		expect(t, c, fmt.Sprintf("%q", preface+"abc"))
	}
	if got := talk(t, addr, "PRI /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); !strings.Contains(got, "PRI /x") {
		t.Errorf("got %q", got)
	}
}

func TestDrain(t *testing.T) {
	began, goOn := make(chan error, 1), make(chan struct{})
	s, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			began <- nil
			<-goOn
		}
	})
	idle, busy := dial(t, "tcp", addr), dial(t, "tcp", addr)
	send(t, idle, get)
	expect(t, idle, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	send(t, busy, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"+get)
	within(t, "handler", patience, began)
	s.Drain()
	expectEnd(t, idle)
	close(goOn)
	expect(t, busy, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	busy.(*net.TCPConn).CloseWrite()
	expectEnd(t, busy)
}

// TestRetireServesWhatIsUnderWay: a connection that is idle, or has not been used yet,
// gets one more answer, which is its last.
func TestRetireServesWhatIsUnderWay(t *testing.T) {
	s, addr := serveOn(t, "tcp", Config{}, func(http.ResponseWriter, *http.Request) {})
	idle, fresh, unused := dial(t, "tcp", addr), dial(t, "tcp", addr), dial(t, "tcp", addr)
	send(t, idle, get)
	expect(t, idle, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	s.Retire()
	for _, c := range []net.Conn{idle, fresh} {
		send(t, c, get)
		expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		expectEnd(t, c)
	}
	s.Drain()
	expectEnd(t, unused)
}

func TestFullDuplex(t *testing.T) {
	_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		p := make([]byte, 16)
		for {
			n, err := r.Body.Read(p)
			w.Write(p[:n])
			if err != nil {
				return
			}
		}
	})
	c := dial(t, "tcp", addr)
	send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	expect(t, c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
	for range 10 {
		send(t, c, "4\r\nping\r\n")
		expect(t, c, "4\r\nping\r\n")
	}
	send(t, c, "0\r\n\r\n")
	expect(t, c, "0\r\n\r\n")
	expectEnd(t, c)
}

func TestRealClients(t *testing.T) {
	_, addr := serveOn(t, "tcp", Config{}, echo)
	t.Run("net/http", func(t *testing.T) {
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		for _, body := range []io.Reader{nil, strings.NewReader("hello"), io.MultiReader(strings.NewReader("chunked")), strings.NewReader(strings.Repeat("x", 1<<20))} {
			req, _ := http.NewRequest("POST", "http://"+addr+"/p", body)
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || !strings.HasPrefix(string(b), "POST /p host="+addr) {
				t.Errorf("got %.80q, %v", b, err)
			}
		}
	})
	t.Run("curl", func(t *testing.T) {
		curl, err := exec.LookPath("curl")
		if err != nil {
			t.Skip("curl is not installed")
		}
		out, err := exec.Command(curl, "-sS", "--noproxy", "*", "-d", "hello", "http://"+addr+"/a", "http://"+addr+"/b").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "/a") || !strings.Contains(string(out), "/b") {
			t.Errorf("got %q, %v", out, err)
		}
	})
}
