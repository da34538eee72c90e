// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
)

// servers runs f against this package's server and net/http's.
func servers(b *testing.B, h http.HandlerFunc, f func(b *testing.B, addr string)) {
	b.Run("http1", func(b *testing.B) {
		_, addr := serveOn(b, "tcp", Config{}, h)
		f(b, addr)
	})
	b.Run("net-http", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := &http.Server{Handler: h}
		go s.Serve(l)
		defer s.Close()
		f(b, l.Addr().String())
	})
}

const benchRequest = "POST /openai/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8484\r\nUser-Agent: bench/1\r\nAccept: */*\r\n" +
	"Content-Type: application/json\r\nAuthorization: Bearer 0123456789\r\nX-Stainless-Lang: js\r\nContent-Length: 600\r\n\r\n"

func BenchmarkRequest(b *testing.B) {
	h := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header()["Content-Length"] = []string{"2"}
		w.Header()["Date"] = nil
		io.WriteString(w, "ok")
	}
	servers(b, h, func(b *testing.B, addr string) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		raw := append([]byte(benchRequest), make([]byte, 600)...)
		buf := make([]byte, 4096)
		b.ReportAllocs()
		for b.Loop() {
			c.Write(raw)
			if n, err := c.Read(buf); err != nil || buf[n-1] != 'k' {
				b.Fatal(n, err)
			}
		}
	})
}

// BenchmarkToken is one Write and Flush of a token of 120 bytes.
func BenchmarkToken(b *testing.B) {
	token := make([]byte, 120)
	turn, turned := make(chan int), make(chan struct{})
	h := func(w http.ResponseWriter, r *http.Request) {
		for n := range turn {
			for range n {
				w.Write(token)
				w.(http.Flusher).Flush()
			}
			turned <- struct{}{}
		}
	}
	servers(b, h, func(b *testing.B, addr string) {
		turn = make(chan int)
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		go io.Copy(io.Discard, c)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		b.ReportAllocs()
		for b.Loop() {
			turn <- 1
			<-turned
		}
		close(turn)
	})
}

// BenchmarkMemory reports KiB of heap and stacks for each connection, idle after
// one request or with an open stream; the client's end of it included.
func BenchmarkMemory(b *testing.B) {
	for _, state := range []string{"idle", "stream"} {
		b.Run(state, func(b *testing.B) {
			h := func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				if state == "stream" {
					<-r.Context().Done()
				}
			}
			servers(b, h, func(b *testing.B, addr string) {
				const n = 1000
				for b.Loop() {
					before := memory()
					conns := make([]net.Conn, n)
					for i := range conns {
						c, err := net.Dial("tcp", addr)
						if err != nil {
							b.Fatal(err)
						}
						fmt.Fprint(c, get)
						c.Read(make([]byte, 512))
						conns[i] = c
					}
					b.ReportMetric(float64(memory()-before)/n/1024, "KiB/conn")
					for _, c := range conns {
						c.Close()
					}
				}
			})
		})
	}
}

func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
