// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// answerBytes is what a slow reader asks for.
const answerBytes = 20 << 20 // 20 MiB

// An upstream is the API that is measured through, the same over TLS and plain:
// POST /v1/call answers 1 KiB at once and POST /v1/stream?rate=N&for=D sends
// stamped tokens; GET /v1/hold sends a head and then nothing, GET /v1/big 20 MiB
// (or ?bytes=N) as fast as they are taken, and GET /v1/taken says how many bytes of those were
// taken since it was last asked, and how many such answers are open. GET /v1/realtime is a WebSocket on which nothing is
// said, and GET /v1/pings says how many pings came on those since it was last asked.
type upstream struct {
	taken, open atomic.Int64
}

// runUpstream prints the addresses of its TLS and its plain listener, and
// writes its certificate to caFile.
func runUpstream(ctx context.Context, caFile string) error {
	cert, err := selfSigned(caFile)
	if err != nil {
		return err
	}
	u := new(upstream)
	mux := http.NewServeMux()
	answer := make([]byte, 1<<10)
	mux.HandleFunc("POST /v1/call", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	})
	mux.HandleFunc("POST /v1/stream", serveTokens)
	mux.HandleFunc("GET /v1/hold", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /v1/big", u.serveBig)
	mux.HandleFunc("GET /v1/taken", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%d %d", u.taken.Swap(0), u.open.Load())
	})
	quiet := new(sockets)
	mux.HandleFunc("GET /v1/realtime", quiet.serve)
	mux.HandleFunc("GET /v1/pings", quiet.servePings)
	f := &flaky{rows: make(map[string]*tally)}
	mux.Handle("POST /v1/flaky", f)
	mux.HandleFunc("GET /v1/tally", f.serveTally)
	secure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	overTLS := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000}}
	bare := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { _ = errors.Join(overTLS.Close(), bare.Close()) })
	fmt.Println(secure.Addr(), plain.Addr())
	var group errgroup.Group
	group.Go(func() error { return overTLS.ServeTLS(narrow{secure}, "", "") })
	group.Go(func() error { return bare.Serve(narrow{plain}) })
	if err := group.Wait(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// kernelBuffer is the size of the socket buffers at both ends of the way: with
// the kernel's own, which grow to megabytes, nobody could see what a proxy in
// the middle holds.
const kernelBuffer = 64 << 10

// narrow is a listener whose connections have small send buffers.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(kernelBuffer)
	}
	return c, err
}

func (u *upstream) serveBig(w http.ResponseWriter, r *http.Request) {
	u.open.Add(1)
	defer u.open.Add(-1)
	size := answerBytes
	if v := r.URL.Query().Get("bytes"); v != "" {
		var err error
		if size, err = strconv.Atoi(v); err != nil || size < 0 {
			http.Error(w, "bytes", http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(size))
	_ = writeBig(counted{w, &u.taken}, size)
}

// counted adds up what was written.
type counted struct {
	io.Writer
	n *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// bigPiece is what large answers are made of, over and over: a prime number of bytes,
// so that none which is lost, doubled or moved by a power of two goes unseen.
var bigPiece = func() []byte {
	p := make([]byte, 16381)
	_, _ = mathrand.NewChaCha8([32]byte{}).Read(p) // it never fails
	return p
}()

// writeBig writes n bytes.
func writeBig(w io.Writer, n int) error {
	for n > 0 {
		m, err := w.Write(bigPiece[:min(n, len(bigPiece))])
		if err != nil {
			return err
		}
		n -= m
	}
	return nil
}

// serveTokens writes events of 120 bytes, each with the time at which it was
// written: relay delay is read time minus this, on one clock.
func serveTokens(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	rate, err := strconv.Atoi(r.URL.Query().Get("rate"))
	if err != nil || rate <= 0 {
		http.Error(w, "rate", http.StatusBadRequest)
		return
	}
	length, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil {
		http.Error(w, "for", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	pad := "0123456789012345678901234567890123456789012345678901234567890123456789012345678901"
	buf := make([]byte, 0, 128)
	for end := time.Now().Add(length); time.Now().Before(end); {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
		buf = append(buf[:0], "data: {\"t\":"...)
		buf = strconv.AppendInt(buf, monotonic(), 10)
		buf = append(buf, `,"p":"`...)
		buf = append(append(buf, pad...), "\"}\n\n"...)
		if _, err := w.Write(buf); err != nil {
			return
		}
		_ = rc.Flush()
	}
}

// selfSigned makes a certificate for loopback and writes it to caFile.
func selfSigned(caFile string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(caFile, block, 0o600); err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// runStock is the proxy that a Go programmer writes in five minutes; without a
// target it forwards to whatever absolute URL it is asked for.
func runStock(ctx context.Context, target, caFile string, h1 bool) error {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	rewrite := func(*httputil.ProxyRequest) {}
	if target != "" {
		u, err := url.Parse("https://" + target)
		if err != nil {
			return err
		}
		rewrite = func(r *httputil.ProxyRequest) { r.SetURL(u) }
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       rewrite,
		FlushInterval: -1,
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: pool},
			ForceAttemptHTTP2:   !h1,
			MaxIdleConnsPerHost: 1000,
		},
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: proxy}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	fmt.Println(ln.Addr())
	if err := srv.Serve(ln); err != http.ErrServerClosed {
		return err
	}
	return nil
}
