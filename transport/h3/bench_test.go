// SPDX-License-Identifier: Apache-2.0

//go:build unix

package h3

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// Side by side with quic-go's own client, over the same loopback UDP to the same
// server in this process. cpu-ns/unit is the whole process's, so the server's part
// is in both.

const benchToken = 120

func benchPeer(b *testing.B, h http.Handler) (*Conn, *http3.Transport) {
	server, client := testTLS()
	pc, addr := udp(b)
	serve(b, pc, h, server, &quic.Config{MaxIncomingStreams: 1 << 20, MaxIdleTimeout: 5 * time.Minute})
	c := dial(b, endpoint(b, nil), addr, Config{TLS: client, MaxStreams: 1 << 20})
	return c, rival(b, addr)
}

// rival is http3.Transport with a socket of its own and the same windows.
func rival(b *testing.B, addr netip.AddrPort) *http3.Transport {
	_, client := testTLS()
	cfg := Config{TLS: client, MaxStreams: 1 << 20}.WithDefaults()
	pc, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		b.Fatal(err)
	}
	tr := &quic.Transport{Conn: pc}
	rt := &http3.Transport{TLSClientConfig: cfg.tlsConfig(), QUICConfig: cfg.quicConfig(), DisableCompression: true}
	own := &socket{tr: tr}
	rt.Dial = func(ctx context.Context, _ string, _ *tls.Config, qc *quic.Config) (*quic.Conn, error) {
		return tr.Dial(ctx, net.UDPAddrFromAddrPort(addr), cfg.tlsConfig(), qc)
	}
	b.Cleanup(func() {
		_ = rt.Close()
		own.close()
	})
	return rt
}

func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFirstByte is a request of 1 KiB from its start to the first byte of its
// answer, and to its end.
func BenchmarkFirstByte(b *testing.B) {
	c, stock := benchPeer(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(make([]byte, 1<<10))
	}))
	payload := strings.Repeat("x", 1<<10)
	for _, rt := range []struct {
		name string
		http.RoundTripper
	}{{"own", c}, {"http3", stock}} {
		b.Run(rt.name, func(b *testing.B) {
			b.ReportAllocs()
			var first time.Duration
			before := processCPU()
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), "POST", "https://example.com/v1/chat/completions", strings.NewReader(payload))
				if err != nil {
					b.Fatal(err)
				}
				req.Header["Authorization"] = []string{"Bearer 0123456789abcdef"}
				req.Header["User-Agent"] = []string{"bench"}
				began := time.Now()
				resp, err := rt.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				first += time.Since(began)
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 1<<10 {
					b.Fatal(n, err)
				}
				_ = resp.Body.Close()
			}
			b.ReportMetric(float64(first)/float64(b.N), "first-byte-ns/op")
			b.ReportMetric(float64(processCPU()-before)/float64(b.N), "cpu-ns/unit")
		})
	}
}

// A tokens server sends one token to every open stream when told.
type tokens struct {
	mu      sync.Mutex
	streams []chan struct{}
	opened  chan struct{}
	got     chan int
}

func newTokens() *tokens {
	return &tokens{opened: make(chan struct{}, 1<<14), got: make(chan int, 1<<14)}
}

func (t *tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	next := make(chan struct{}, 1)
	t.mu.Lock()
	t.streams = append(t.streams, next)
	t.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	_ = flush()
	t.opened <- struct{}{}
	token := make([]byte, benchToken)
	for {
		select {
		case <-next:
			_, _ = w.Write(token)
			_ = flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (t *tokens) open(ctx context.Context, b *testing.B, rt http.RoundTripper) io.ReadCloser {
	req, err := http.NewRequestWithContext(ctx, "GET", "https://example.com/tokens", nil)
	if err != nil {
		b.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	<-t.opened
	return resp.Body
}

// Write counts what was read.
func (t *tokens) Write(p []byte) (int, error) {
	t.got <- len(p)
	return len(p), nil
}

// BenchmarkToken: 20 streams, on each of which tokens of 120 bytes arrive one by
// one and are read one by one.
func BenchmarkToken(b *testing.B) {
	const streams = 20
	for _, name := range []string{"own", "own-writeto", "http3"} {
		b.Run(name, func(b *testing.B) {
			t := newTokens()
			c, stock := benchPeer(b, t)
			var rt http.RoundTripper = c
			if name == "http3" {
				rt = stock
			}
			ctx, cancel := context.WithCancel(b.Context())
			var readers sync.WaitGroup
			for range streams {
				body := t.open(ctx, b, rt)
				readers.Go(func() {
					defer body.Close()
					if name == "own-writeto" {
						_, _ = body.(io.WriterTo).WriteTo(t)
						return
					}
					buf := make([]byte, 4<<10)
					for {
						n, err := body.Read(buf)
						t.got <- n
						if err != nil {
							return
						}
					}
				})
			}
			b.ReportAllocs()
			before := processCPU()
			for b.Loop() {
				for _, s := range t.streams {
					s <- struct{}{}
				}
				for want := streams * benchToken; want > 0; {
					want -= <-t.got
				}
			}
			b.ReportMetric(float64(processCPU()-before)/float64(b.N*streams), "cpu-ns/token")
			cancel()
			readers.Wait()
		})
	}
}

// BenchmarkOpenStream is the memory of a stream that waits for its next token, of
// this process and so of both ends; what the server's end alone takes is in both.
func BenchmarkOpenStream(b *testing.B) {
	const streams = 1000
	for _, name := range []string{"own", "http3"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				t := newTokens()
				c, stock := benchPeer(b, t)
				var rt http.RoundTripper = c
				if name == "http3" {
					rt = stock
				}
				ctx, cancel := context.WithCancel(b.Context())
				before, goroutines := memory()
				bodies := make([]io.ReadCloser, streams)
				for i := range bodies {
					bodies[i] = t.open(ctx, b, rt)
				}
				after, more := memory()
				b.ReportMetric(float64(after-before)/streams/1024, "KiB/stream")
				b.ReportMetric(float64(more-goroutines)/streams, "goroutines/stream")
				for _, body := range bodies {
					_ = body.Close()
				}
				cancel()
			}
		})
	}
}

// memory is heap and stacks in use, and goroutines.
func memory() (bytes int64, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse), runtime.NumGoroutine()
}
