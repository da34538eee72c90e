// SPDX-License-Identifier: Apache-2.0

package qos_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/transport/qos"
)

// BenchmarkLayer is what the layer costs a request that is let in at once, beside the
// same round trip without it. Without limits the layer is not there.
func BenchmarkLayer(b *testing.B) {
	next := way(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}, nil
	})
	run := func(name string, cfg qos.Config, tenants int) {
		b.Run(name, func(b *testing.B) {
			gate, err := qos.NewGate(cfg)
			if err != nil {
				b.Fatal(err)
			}
			layer, err := qos.New(next, gate, func(req *http.Request) qos.Ticket { return qos.Ticket{Class: qos.Default, Tenant: req.Host} })
			if err != nil {
				b.Fatal(err)
			}
			reqs := make([]*http.Request, tenants)
			for i := range reqs {
				reqs[i] = request(b)
				reqs[i].Host = strconv.Itoa(i)
				trip(b, layer, reqs[i])
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				trip(b, layer, reqs[i%tenants])
			}
		})
	}
	b.Run("none", func(b *testing.B) {
		req := request(b)
		b.ReportAllocs()
		for b.Loop() {
			trip(b, next, req)
		}
	})
	run("limit", qos.Config{Limit: 100}, 1)
	run("limit-100-tenants", qos.Config{Limit: 100}, 100)
	run("adaptive-paced", qos.Config{Adaptive: true, Pace: true, QueueTimeout: time.Minute}, 1)
}

func trip(b *testing.B, rt http.RoundTripper, req *http.Request) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}
