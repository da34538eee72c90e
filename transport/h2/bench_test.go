// SPDX-License-Identifier: Apache-2.0

//go:build unix

package h2

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Side by side with the client of net/http, over the same loopback TCP to the same
// cheap peer in this process. cpu-ns/op is the whole process's, so the peer's part
// is in both.

const (
	benchToken = 120
)

// benchPeer answers every request with 1 KiB.
func benchPeer(b *testing.B) string {
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
			conns.Go(func() { benchServe(nc) })
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	return l.Addr().String()
}

// benchHead is :status 200 and a content-type, in HPACK's static table.
var benchHead = []byte{0x88, 0x0f, 0x10, 0x0a, 't', 'e', 'x', 't', '/', 'p', 'l', 'a', 'i', 'n'}

func benchServe(nc net.Conn) {
	defer nc.Close()
	if _, err := io.ReadFull(nc, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	fr := http2.NewFramer(nc, nc)
	fr.SetReuseFrames()
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000})
	_ = fr.WriteSettingsAck()
	one := canned(1 << 10)
	owed := uint32(0)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		ended := false
		switch f := f.(type) {
		case *http2.HeadersFrame:
			ended = f.StreamEnded()
		case *http2.DataFrame:
			ended = f.StreamEnded()
			if owed += f.Length; owed > 16<<10 {
				_ = fr.WriteWindowUpdate(0, owed)
				owed = 0
			}
		}
		if !ended {
			continue
		}
		id := f.Header().StreamID
		stamp(one, id)
		_, _ = nc.Write(one)
	}
}

// canned is an answer of n bytes: HEADERS and DATA with END_STREAM.
func canned(n int) []byte {
	var out strings.Builder
	fr := http2.NewFramer(&out, nil)
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: benchHead, EndHeaders: true})
	_ = fr.WriteData(1, true, make([]byte, n))
	return []byte(out.String())
}

// stamp puts a stream id into two frames.
func stamp(p []byte, id uint32) {
	second := 9 + len(benchHead)
	for _, at := range []int{5, second + 5} {
		p[at], p[at+1], p[at+2], p[at+3] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
	}
}

// clients are what is compared.
func clients(b *testing.B, addr string) map[string]http.RoundTripper {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	c := start(b, nc, Config{})
	if err := c.WaitReady(b.Context()); err != nil {
		b.Fatal(err)
	}
	stock := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	stock.Protocols.SetUnencryptedHTTP2(true)
	stock.DialContext = func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", addr) }
	b.Cleanup(stock.CloseIdleConnections)
	return map[string]http.RoundTripper{"own": c, "net-http": stock}
}

func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// compare runs op for each client and reports CPU for each unit.
func compare(b *testing.B, units int, run func(b *testing.B, rt http.RoundTripper)) {
	addr := benchPeer(b)
	rts := clients(b, addr)
	for _, name := range []string{"own", "net-http"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before := processCPU()
			run(b, rts[name])
			b.ReportMetric(float64(processCPU()-before)/float64(b.N*units), "cpu-ns/unit")
		})
	}
}

func BenchmarkGet1KiB(b *testing.B) {
	compare(b, 1, func(b *testing.B, rt http.RoundTripper) {
		for b.Loop() {
			benchExchange(b, rt, nil)
		}
	})
}

func BenchmarkPost1KiB(b *testing.B) {
	payload := strings.Repeat("x", 1<<10)
	compare(b, 1, func(b *testing.B, rt http.RoundTripper) {
		for b.Loop() {
			benchExchange(b, rt, strings.NewReader(payload))
		}
	})
}

func BenchmarkPost1KiBParallel(b *testing.B) {
	payload := strings.Repeat("x", 1<<10)
	compare(b, 1, func(b *testing.B, rt http.RoundTripper) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				benchExchange(b, rt, strings.NewReader(payload))
			}
		})
	})
}

func benchExchange(b *testing.B, rt http.RoundTripper, body io.Reader) {
	method := "GET"
	if body != nil {
		method = "POST"
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

// BenchmarkToken: 20 streams, on each of which tokens of 120 bytes arrive one by
// one and are read one by one.
func BenchmarkToken(b *testing.B) {
	const streams = 20
	for _, name := range []string{"own", "own-writeto", "net-http", "own/batched", "net-http/batched"} {
		b.Run(name, func(b *testing.B) {
			t := newTokenPeer(b)
			name, batched := strings.CutSuffix(name, "/batched")
			rt := clients(b, t.addr)[strings.TrimSuffix(name, "-writeto")]
			var readers sync.WaitGroup
			ctx, cancel := context.WithCancel(b.Context())
			for range streams {
				readers.Go(func() { t.consume(ctx, b, rt, name == "own-writeto") })
			}
			for range streams {
				<-t.opened
			}
			b.ReportAllocs()
			before := processCPU()
			for b.Loop() {
				t.round(batched)
			}
			b.ReportMetric(float64(processCPU()-before)/float64(b.N*streams), "cpu-ns/token")
			cancel()
			readers.Wait()
		})
	}
}

// A tokenPeer sends one token to every stream when told, and waits until all have
// been read.
type tokenPeer struct {
	addr   string
	opened chan uint32
	got    chan int // bytes read, by the readers
	mu     sync.Mutex
	nc     net.Conn
	ids    []uint32
	frame  []byte
	out    []byte
}

func newTokenPeer(b *testing.B) *tokenPeer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	t := &tokenPeer{addr: l.Addr().String(), opened: make(chan uint32, 100), got: make(chan int, 1000)}
	t.frame = append([]byte{0, 0, benchToken, 0, 0, 0, 0, 0, 0}, make([]byte, benchToken)...)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { t.serve(nc) })
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	return t
}

func (t *tokenPeer) serve(nc net.Conn) {
	defer nc.Close()
	if _, err := io.ReadFull(nc, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	fr := http2.NewFramer(nc, nc)
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000})
	_ = fr.WriteSettingsAck()
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		if h, ok := f.(*http2.HeadersFrame); ok {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: benchHead, EndHeaders: true})
			t.mu.Lock()
			t.nc, t.ids = nc, append(t.ids, h.StreamID)
			t.mu.Unlock()
			t.opened <- h.StreamID
		}
	}
}

// round sends a token on each stream, a write each unless batched, and waits for
// their bytes.
func (t *tokenPeer) round(batched bool) {
	t.mu.Lock()
	t.out = t.out[:0]
	for _, id := range t.ids {
		t.frame[5], t.frame[6], t.frame[7], t.frame[8] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
		if t.out = append(t.out, t.frame...); !batched {
			_, _ = t.nc.Write(t.out)
			t.out = t.out[:0]
		}
	}
	_, _ = t.nc.Write(t.out)
	want := len(t.ids) * benchToken
	t.mu.Unlock()
	for want > 0 {
		want -= <-t.got
	}
}

func (t *tokenPeer) consume(ctx context.Context, b *testing.B, rt http.RoundTripper, writeTo bool) {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://api.test/tokens", nil)
	if err != nil {
		b.Error(err)
		return
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		b.Error(err)
		return
	}
	defer resp.Body.Close()
	if writeTo {
		_, _ = resp.Body.(io.WriterTo).WriteTo(t)
		return
	}
	buf := make([]byte, 4<<10)
	for {
		n, err := resp.Body.Read(buf)
		t.got <- n
		if err != nil {
			return
		}
	}
}

// Write counts what was read.
func (t *tokenPeer) Write(p []byte) (int, error) {
	t.got <- len(p)
	return len(p), nil
}
