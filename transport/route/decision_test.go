// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/warmwire/warmwire/transport/route"
)

// BenchmarkDecision makes choices one after the other, each with a request that begins and
// ends, and reports their median and 99th percentile. "nothing" is the same measurement of a
// way without a choice: what of the tail is the machine's. Choices paced at 5000 a second
// tell of the kernel instead: a heap that is hardly used touches new pages, at 30 µs each.
func BenchmarkDecision(b *testing.B) {
	nothing := again(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}, nil
	})
	for _, n := range []int{1, 8, 64} {
		for _, name := range []string{"nothing", "round_robin", "least_request", "latency", "affinity"} {
			cfg, fields := route.Config{}, []string{}
			if name == "round_robin" || name == "least_request" {
				cfg.Algorithm = route.Algorithm(name)
			}
			if name == "affinity" {
				cfg, fields = route.Config{Affinity: "X-Session"}, []string{"X-Session", "somebody"}
			}
			layer, err := route.New(nothing, endpoints(make([]float64, n)...), cfg)
			if err != nil {
				b.Fatal(err)
			}
			way := http.RoundTripper(layer)
			if name == "nothing" {
				way = nothing
			}
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				req := request(b.Context(), fields...)
				took := make([]time.Duration, 0, 1<<22)
				for b.Loop() {
					begin := time.Now()
					resp, err := way.RoundTrip(req)
					took = append(took, time.Since(begin))
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
				b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
			})
		}
	}
}
