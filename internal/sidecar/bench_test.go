// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchUpstream is a TLS server with HTTP/2 that answers 1 KiB, or n tokens.
func benchUpstream(b *testing.B) (srv *httptest.Server, ca string) {
	srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/call" {
			_, _ = w.Write(make([]byte, 1<<10))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for range 1000 {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n")
			_ = rc.Flush()
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	b.Cleanup(srv.Close)
	ca = filepath.Join(b.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		b.Fatal(err)
	}
	return srv, ca
}

// proxies are Warmwire and the stock reverse proxy before the same upstream.
func proxies(b *testing.B) map[string]string {
	srv, ca := benchUpstream(b)
	r := start(b, "", "log: {access: {sample: 0.01}}\nupstreams:\n  up: {url: '"+srv.URL+"', tls: {ca_file: "+ca+"}}\n")
	u, err := url.Parse(srv.URL)
	if err != nil {
		b.Fatal(err)
	}
	stock := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(u) }, FlushInterval: -1,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}, ForceAttemptHTTP2: true},
	})
	b.Cleanup(stock.Close)
	return map[string]string{"warmwire": r.addr + "/up", "stock": strings.TrimPrefix(stock.URL, "http://")}
}

func benchmarkPath(b *testing.B, path string) {
	for name, at := range proxies(b) {
		b.Run(name, func(b *testing.B) {
			host, prefix, _ := strings.Cut(at, "/")
			if prefix != "" {
				prefix = "/" + prefix
			}
			c, err := net.Dial("tcp", host)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			in := bufio.NewReader(c)
			request := "POST " + prefix + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 600\r\n\r\n" + strings.Repeat("x", 600)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := io.WriteString(c, request); err != nil {
					b.Fatal(err)
				}
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCall is one whole call of 600 bytes up and 1 KiB down, client,
// proxy and upstream in one process.
func BenchmarkCall(b *testing.B) { benchmarkPath(b, "/v1/call") }

// BenchmarkTokens is a stream of 1000 tokens.
func BenchmarkTokens(b *testing.B) { benchmarkPath(b, "/v1/chat/completions") }
