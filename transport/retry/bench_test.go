// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"

	"github.com/warmwire/warmwire/transport/retry"
)

// BenchmarkRoundTrip compares a request through the layer with one beside it: over a
// way out that does nothing but read the body, and over a real connection.
func BenchmarkRoundTrip(b *testing.B) {
	buf := make([]byte, 32<<10)
	nothing := way(func(req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			for {
				if _, err := req.Body.Read(buf); err != nil {
					break
				}
			}
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer srv.Close()
	real := &http.Transport{}
	defer real.CloseIdleConnections()
	for _, out := range []struct {
		name string
		next http.RoundTripper
		url  string
	}{{"nothing", nothing, "http://model.test/"}, {"loopback", real, srv.URL}} {
		for _, size := range []int{0, 1 << 10, 100 << 10} {
			for _, layer := range []bool{false, true} {
				next := out.next
				if layer {
					next = newTransport(b, next, retry.Config{Statuses: []int{429}})
				}
				b.Run(fmt.Sprintf("%s/%d/layer=%v", out.name, size, layer), func(b *testing.B) {
					b.ReportAllocs()
					roundTrips(b, next, out.url, size)
				})
			}
		}
	}
}

func roundTrips(b *testing.B, next http.RoundTripper, url string, size int) {
	req, err := http.NewRequest(http.MethodPost, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	req = req.WithContext(httptrace.WithClientTrace(b.Context(), &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) {}, GotFirstResponseByte: func() {}}))
	content := make([]byte, size)
	body := bytes.NewReader(content)
	for b.Loop() {
		if size > 0 {
			body.Reset(content)
			// As the body of a relayed request: net/http sends a head and a body in one write
			// only where it knows that the body is in memory.
			req.Body, req.ContentLength = io.NopCloser(struct{ io.Reader }{body}), int64(size)
		}
		resp, err := next.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
