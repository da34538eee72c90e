// SPDX-License-Identifier: Apache-2.0

package route_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/warmwire/warmwire/transport/route"
)

// BenchmarkRoundTrip is a request through the layer, over a way out that does nothing,
// beside that way alone.
func BenchmarkRoundTrip(b *testing.B) {
	nothing := again(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}, nil
	})
	run := func(name string, next http.RoundTripper, fields ...string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			req := request(b.Context(), fields...)
			for b.Loop() {
				resp, err := next.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
	run("none", nothing)
	for _, n := range []int{1, 8, 64} {
		for _, algorithm := range []route.Algorithm{route.RoundRobin, route.LeastRequest, route.Latency} {
			way, err := route.New(nothing, endpoints(make([]float64, n)...), route.Config{Algorithm: algorithm, Affinity: "X-Session"})
			if err != nil {
				b.Fatal(err)
			}
			run(fmt.Sprintf("%s/%d", algorithm, n), route.Calls(way))
			if algorithm == route.RoundRobin {
				run(fmt.Sprintf("affinity/%d", n), route.Calls(way), "X-Session", "somebody")
			}
		}
	}
}
