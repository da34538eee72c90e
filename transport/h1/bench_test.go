// SPDX-License-Identifier: Apache-2.0

//go:build unix

package h1

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Side by side with the client of net/http, over the same loopback TCP to the same
// cheap peer in this process. cpu-ns is the whole process's, so the peer's part is
// in both.

const benchToken = 120

// benchPeer runs serve on each connection.
func benchPeer(b *testing.B, serve func(nc net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer func() { _ = nc.Close() }()
				serve(nc)
			})
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	return l.Addr().String()
}

// readRequest reads a head, and a body of the given length.
func readRequest(br *bufio.Reader, body int) error {
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			break
		}
	}
	_, err := br.Discard(body)
	return err
}

// clients are what is compared.
func clients(b *testing.B, addr string) map[string]http.RoundTripper {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	stock := &http.Transport{DisableCompression: true}
	stock.DialContext = func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", addr) }
	b.Cleanup(stock.CloseIdleConnections)
	return map[string]http.RoundTripper{"own": start(b, nc), "net-http": stock}
}

func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func compare(b *testing.B, body string) {
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("y", 1<<10))
	addr := benchPeer(b, func(nc net.Conn) {
		br := bufio.NewReader(nc)
		for readRequest(br, len(body)) == nil {
			_, _ = nc.Write(answer)
		}
	})
	rts := clients(b, addr)
	for _, name := range []string{"own", "net-http"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := processCPU()
			for b.Loop() {
				benchExchange(b, rts[name], body)
			}
			b.ReportMetric(float64(processCPU()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func BenchmarkGet1KiB(b *testing.B)  { compare(b, "") }
func BenchmarkPost1KiB(b *testing.B) { compare(b, strings.Repeat("x", 1<<10)) }

func benchExchange(b *testing.B, rt http.RoundTripper, payload string) {
	method, body := "GET", io.Reader(nil)
	if payload != "" {
		method, body = "POST", strings.NewReader(payload)
	}
	req, err := http.NewRequestWithContext(b.Context(), method, "http://api.test/v1/chat/completions", body)
	if err != nil {
		b.Fatal(err)
	}
	req.Header["Authorization"] = []string{"Bearer 0123456789abcdef"}
	req.Header["Content-Type"] = []string{"application/json"}
	req.Header["User-Agent"] = []string{"bench"}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 1<<10 {
		b.Fatal(n, err)
	}
	_ = resp.Body.Close()
}

// BenchmarkToken: tokens of 120 bytes arrive one by one, each in a chunk, and are
// read one by one.
func BenchmarkToken(b *testing.B) {
	next := make(chan struct{})
	token := []byte("78\r\n" + strings.Repeat("z", benchToken) + "\r\n")
	addr := benchPeer(b, func(nc net.Conn) {
		if readRequest(bufio.NewReader(nc), 0) != nil {
			return
		}
		_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range next {
			if _, err := nc.Write(token); err != nil {
				return
			}
		}
	})
	b.Cleanup(func() { close(next) })
	for _, name := range []string{"own", "net-http"} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://api.test/tokens", nil)
			resp, err := clients(b, addr)[name].RoundTrip(req)
			if err != nil {
				b.Fatal(err)
			}
			buf := make([]byte, 4<<10)
			b.ReportAllocs()
			before := processCPU()
			for b.Loop() {
				next <- struct{}{}
				if _, err := io.ReadFull(resp.Body, buf[:benchToken]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(processCPU()-before)/float64(b.N), "cpu-ns/token")
			cancel()
			_ = resp.Body.Close()
			select { // the peer notices with its next token
			case next <- struct{}{}:
			case <-b.Context().Done():
			}
			select {
			case next <- struct{}{}:
			case <-time.After(100 * time.Millisecond):
			}
		})
	}
}
