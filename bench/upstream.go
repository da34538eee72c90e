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
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"time"
)

// runUpstream serves the API that is measured through: POST /v1/call answers
// 1 KiB at once; POST /v1/stream?rate=N&for=D sends stamped tokens; POST
// /v1/hold sends a head and then nothing. It writes its certificate to caFile.
func runUpstream(ctx context.Context, listen, caFile string) error {
	cert, err := selfSigned(caFile)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	answer := make([]byte, 1<<10)
	mux.HandleFunc("/v1/call", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	})
	mux.HandleFunc("/v1/stream", serveTokens)
	mux.HandleFunc("/v1/hold", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	srv := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000}}
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	fmt.Println(ln.Addr())
	if err := srv.ServeTLS(ln, "", ""); err != http.ErrServerClosed {
		return err
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
		buf = strconv.AppendInt(buf, time.Now().UnixNano(), 10)
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

// runStock is the proxy that a Go programmer writes in five minutes.
func runStock(ctx context.Context, listen, target, caFile string, h1 bool) error {
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	u, err := url.Parse("https://" + target)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(u) },
		FlushInterval: -1,
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: pool},
			ForceAttemptHTTP2:   !h1,
			MaxIdleConnsPerHost: 1000,
		},
	}
	ln, err := net.Listen("tcp", listen)
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
