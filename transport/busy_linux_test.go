// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
	"golang.org/x/sys/unix"

	"github.com/warmwire/warmwire/internal/netlab"
	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/semantics"
)

// asDial makes connections as the dial package does, which cannot dial out of a lab:
// with little unsent in the kernel, and control for congestion control, "" = as it is.
func asDial(dial transport.DialFunc, control string) transport.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			return nil, err
		}
		var set error
		if err := raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 16<<10)
			if control != "" {
				set = errors.Join(set, unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, control))
			}
		}); err != nil {
			return nil, err
		}
		return c, set
	}
}

// busyLab is a far HTTP/2 server that takes uploads and answers small calls at once.
func busyLab(b *testing.B, link netlab.Link) (dial transport.DialFunc, base string, roots []byte) {
	b.Helper()
	lab, base, roots := labWithServer(b, link)
	return lab.Client.Dial, base, roots
}

// labWithServer has the server on a port over TCP and, as HTTP/3, over UDP.
func labWithServer(b *testing.B, link netlab.Link) (lab *netlab.Lab, base string, roots []byte) {
	b.Helper()
	if err := netlab.Available(); err != nil {
		testenv.SkipOrFail(b, "%v", err)
	}
	lab, err := netlab.New(b.Context(), netlab.Config{Up: link, Down: link})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = lab.Close() })
	ln, err := lab.Server.Listen("tcp", ":0")
	if err != nil {
		b.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "token")
	})
	srv := httptest.NewUnstartedServer(handler)
	_ = srv.Listener.Close()
	pair, roots := certificate(b, lab.Server.Addr4().AsSlice())
	srv.Listener, srv.EnableHTTP2, srv.Config.ErrorLog = ln, true, log.New(io.Discard, "", 0)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	srv.StartTLS()
	b.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	udp, err := lab.Server.ListenPacket("udp", ":"+port)
	if err != nil {
		b.Fatal(err)
	}
	over := &http3.Server{Handler: handler, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}})}
	served := make(chan struct{})
	go func() { defer close(served); _ = over.Serve(udp) }()
	b.Cleanup(func() { _ = over.Close(); _ = udp.Close(); <-served })
	return lab, "https://" + net.JoinHostPort(lab.Server.Addr4().String(), port), roots
}

// BenchmarkForcedReconnect: the first byte of a call that finds no connection, at RTT
// 80 ms: TCP, TLS and the call are three round trips, over QUIC two. warm-ms is a call
// over a connection that is there: one round trip of this lab.
func BenchmarkForcedReconnect(b *testing.B) {
	for _, protocol := range []string{"stock", "h2", "h3"} {
		b.Run(protocol, func(b *testing.B) {
			lab, base, roots := labWithServer(b, netlab.Link{Delay: 40 * time.Millisecond})
			var rt http.RoundTripper
			var drop func()
			if protocol == "stock" {
				rt = client(b, protocol, lab.Client.Dial, roots)
				drop = rt.(*http.Transport).CloseIdleConnections
			} else {
				cfg := transport.Config{Trust: trusting(b, roots), Protocols: []string{"h2"}}
				if protocol == "h3" {
					shared := newHTTP3Over(b, lab.Client.ListenPacket)
					at := netip.MustParseAddrPort(strings.TrimPrefix(base, "https://"))
					shared.Offers.Record(time.Now(), base, "", at.Port(), time.Hour)
					cfg.Protocols, cfg.HTTP3 = []string{"h2", "h3"}, shared
				}
				tr, err := transport.New(asDial(lab.Client.Dial, ""), cfg)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(tr.Close)
				rt, drop = tr, tr.CloseIdleConnections
			}
			var took, warm []time.Duration
			firstByte(b, rt, base)
			for range 20 {
				warm = append(warm, firstByte(b, rt, base))
			}
			slices.Sort(warm)
			for b.Loop() {
				drop()
				took = append(took, firstByte(b, rt, base))
			}
			slices.Sort(took)
			b.ReportMetric(float64(warm[len(warm)/2].Microseconds())/1000, "warm-ms")
			b.ReportMetric(float64(took[0].Microseconds())/1000, "least-ms")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
		})
	}
}

// firstByte makes a small call and returns when the first byte of its answer was there.
func firstByte(b *testing.B, rt http.RoundTripper, base string) time.Duration {
	b.Helper()
	begun := time.Now()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, base+"/", strings.NewReader("{}"))
	if err != nil {
		b.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.ReadFull(resp.Body, make([]byte, 5))
	took := time.Since(begun)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return took
}

// zeros is an upload that ends with its context.
type zeros struct{ ctx context.Context }

func (z zeros) Read(p []byte) (int, error) {
	if z.ctx.Err() != nil {
		return 0, z.ctx.Err()
	}
	clear(p)
	return len(p), nil
}

// BenchmarkFirstTokenBesideUploads: how much later the first token of a small call is
// while 50 uploads without end fill a link of 10 Mbit/s at RTT 40 ms, whose queue
// holds 20 or 100 ms. Run it with -benchtime=60x.
func BenchmarkFirstTokenBesideUploads(b *testing.B) {
	for _, queue := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond} {
		for _, way := range []string{"stock", "interactive", "default", "default-bbr"} {
			b.Run(fmt.Sprintf("queue=%v/%s", queue, way), func(b *testing.B) {
				dial, base, roots := busyLab(b, netlab.Link{Delay: 20 * time.Millisecond, Rate: 10e6, Queue: queue})
				besideUploads(b, client(b, way, dial, roots), base)
			})
		}
	}
}

func client(b *testing.B, way string, dial transport.DialFunc, roots []byte) http.RoundTripper {
	b.Helper()
	if way == "stock" {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(roots)
		tr := &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
		b.Cleanup(tr.CloseIdleConnections)
		return tr
	}
	name, control, _ := strings.Cut(way, "-")
	class := map[string]semantics.Class{"interactive": semantics.Interactive, "default": semantics.Default}[name]
	tr, err := transport.New(asDial(dial, control), transport.Config{Trust: trusting(b, roots), Class: class})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(tr.Close)
	return tr
}

func besideUploads(b *testing.B, rt http.RoundTripper, base string) {
	firstByte(b, rt, base)
	var alone, beside []time.Duration
	for range 20 {
		alone = append(alone, firstByte(b, rt, base))
	}
	ctx, stop := context.WithCancel(b.Context())
	var uploads sync.WaitGroup
	for range 50 {
		uploads.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/", zeros{ctx})
			if err != nil {
				return
			}
			req.ContentLength = -1
			if resp, err := rt.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	settle := time.NewTimer(5 * time.Second) // the link is full by then
	<-settle.C
	for b.Loop() {
		beside = append(beside, firstByte(b, rt, base))
	}
	b.StopTimer()
	stop()
	uploads.Wait()
	slices.Sort(alone)
	slices.Sort(beside)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(alone[len(alone)/2]), "alone-ms")
	b.ReportMetric(ms(beside[len(beside)/2]), "beside-ms")
	b.ReportMetric(ms(beside[len(beside)*95/100]), "beside-p95-ms")
	b.ReportMetric(ms(beside[len(beside)/2]-alone[len(alone)/2]), "added-ms")
}

// BenchmarkBesideAStoppedReader: how late tokens are on 100 streams of one HTTP/2
// connection, and beside a stream of the same connection whose reader has stopped.
// Each iteration is a second of 50 tokens a stream. Run it with -benchtime=5x.
func BenchmarkBesideAStoppedReader(b *testing.B) {
	for _, way := range []string{"stock", "default"} {
		for _, stopped := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/stopped=%v", way, stopped), func(b *testing.B) { besideAStoppedReader(b, way, stopped) })
		}
	}
}

func besideAStoppedReader(b *testing.B, way string, stopped bool) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(tick))
	srv.EnableHTTP2, srv.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	srv.StartTLS()
	b.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	rt := client(b, way, new(net.Dialer).DialContext, pemOf(srv))
	get := func(path string) *http.Response {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, srv.URL+path, nil)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		return resp
	}
	if stopped {
		flood := get("/flood").Body // nobody reads it
		defer func() { _ = flood.Close() }()
	}
	var mu sync.Mutex // guards late
	var late []time.Duration
	for b.Loop() {
		var streams sync.WaitGroup
		for range 99 {
			streams.Go(func() {
				resp := get("/ticks")
				defer func() { _ = resp.Body.Close() }()
				var mine []time.Duration
				for p := make([]byte, 120); ; {
					if _, err := io.ReadFull(resp.Body, p); err != nil {
						break
					}
					sent, _ := strconv.ParseInt(strings.TrimSpace(string(p)), 10, 64)
					mine = append(mine, time.Since(time.Unix(0, sent)))
				}
				mu.Lock()
				late = append(late, mine...)
				mu.Unlock()
			})
		}
		streams.Wait()
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds()), "late-p50-us")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "late-p99-us")
}

// tick sends 50 tokens of 120 bytes in a second, each the time at which it was sent;
// to /flood as much as is taken.
func tick(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if r.URL.Path == "/flood" {
		for p := make([]byte, 32<<10); ; {
			if _, err := w.Write(p); err != nil {
				return
			}
		}
	}
	every := time.NewTicker(20 * time.Millisecond)
	defer every.Stop()
	for range 50 {
		select {
		case <-every.C:
			_, _ = fmt.Fprintf(w, "%120d", time.Now().UnixNano())
			_ = rc.Flush()
		case <-r.Context().Done():
			return
		}
	}
}
