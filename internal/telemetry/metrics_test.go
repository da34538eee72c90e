// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"

	"github.com/warmwire/warmwire/internal/otlp"
)

// measure sends requests and returns the points of each metric as a collector sees them,
// by name and attributes.
func measure(t *testing.T, requests ...*Request) map[string]*metrics.HistogramDataPoint {
	t.Helper()
	points := map[string]*metrics.HistogramDataPoint{}
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		r := run(t, Settings{Target: c.target(otlp.Protobuf), Metrics: true, Upstreams: upstreams})
		for _, req := range requests {
			r.Done(req)
		}
		r.stop()
		for _, m := range c.metrics {
			maps.Copy(points, pointsOf(t, m))
		}
	})
	return points
}

func pointsOf(t *testing.T, m *metrics.ResourceMetrics) map[string]*metrics.HistogramDataPoint {
	t.Helper()
	points := map[string]*metrics.HistogramDataPoint{}
	for _, metric := range m.ScopeMetrics[0].Metrics {
		h := metric.GetHistogram()
		if h.AggregationTemporality != metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
			t.Errorf("%s is %v", metric.Name, h.AggregationTemporality)
		}
		for _, p := range h.DataPoints {
			attrs := shown(p.Attributes)
			var names []string
			for _, k := range slices.Sorted(maps.Keys(attrs)) {
				names = append(names, k+"="+attrs[k])
			}
			points[metric.Name+" "+metric.Unit+" "+strings.Join(names, " ")] = p
		}
	}
	return points
}

const at = "gen_ai.operation.name=chat gen_ai.provider.name=openai "

// TestTheMetricsOfTheConventions: names, units, attributes, bounds and values.
func TestTheMetricsOfTheConventions(t *testing.T) {
	failed := traced()
	failed.Outcome, failed.Cause, failed.Stream, failed.InputTokens, failed.OutputTokens = "upstream_error", "upstream_queue_full", false, -1, -1
	got := measure(t, traced(), traced(), failed)
	const server = "server.address=api.openai.com server.port=443 warmwire.upstream=openai"
	times := []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	tokens := []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
	want := map[string]struct {
		bounds []float64
		sum    float64
		counts map[int]uint64
	}{
		"gen_ai.client.operation.duration s " + at + server:                                {times, 6, map[int]uint64{9: 2}},
		"gen_ai.client.operation.duration s error.type=upstream_queue_full " + at + server: {times, 3, map[int]uint64{9: 1}},
		"gen_ai.client.operation.time_to_first_chunk s " + at + server:                     {times, 3, map[int]uint64{8: 2}},
		"gen_ai.client.operation.time_per_output_chunk s " + at + server:                   {times, 2, map[int]uint64{4: 6, 6: 2}},
		"gen_ai.client.token.usage {token} " + at + "gen_ai.token.type=input " + server:    {tokens, 32, map[int]uint64{2: 2}},
		"gen_ai.client.token.usage {token} " + at + "gen_ai.token.type=output " + server:   {tokens, 34, map[int]uint64{3: 2}},
	}
	for name, w := range want {
		p := got[name]
		if p == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		counts, total := map[int]uint64{}, uint64(0)
		for i, n := range p.BucketCounts {
			if n > 0 {
				counts[i] = n
				total += n
			}
		}
		if !slices.Equal(p.ExplicitBounds, w.bounds) || p.GetSum() != w.sum || !maps.Equal(counts, w.counts) || p.Count != total || len(p.BucketCounts) != len(w.bounds)+1 ||
			p.StartTimeUnixNano == 0 || p.StartTimeUnixNano >= uint64(traced().Start.Add(3*s).UnixNano()) {
			t.Errorf("%s: %v", name, p)
		}
	}
	if len(got) != len(want) {
		t.Errorf("there are %q", slices.Sorted(maps.Keys(got)))
	}
}

// TestBoundsBelongToTheirBucket, on both scales.
func TestBoundsBelongToTheirBucket(t *testing.T) {
	for i, le := range timeBounds() {
		bound := time.Duration(le * float64(s)).Round(time.Millisecond)
		if timeBucket(bound) != i || timeBucket(bound+1) != i+1 {
			t.Errorf("%v is in %d, more in %d", bound, timeBucket(bound), timeBucket(bound+1))
		}
	}
	for i, le := range tokenBounds() {
		if n := int64(le); tokenBucket(n) != i || tokenBucket(n+1) != i+1 {
			t.Errorf("%d is in %d, more in %d", n, tokenBucket(n), tokenBucket(n+1))
		}
	}
	if timeBucket(-1) != 0 || tokenBucket(0) != 0 || timeBucket(1<<62) != gaps || tokenBucket(1<<62) != gaps {
		t.Error("odd values are elsewhere")
	}
}

// TestOthersAreNotMeasured: what is no call of a model, and upstreams that have gone.
func TestOthersAreNotMeasured(t *testing.T) {
	plain, gone := traced(), traced()
	plain.Operation, gone.Upstream = "", "gone"
	if got := measure(t, plain, gone); len(got) != 0 {
		t.Errorf("%q", slices.Sorted(maps.Keys(got)))
	}
}

// TestMetricsOfVanishedUpstreamsVanish, and begin anew for one that is elsewhere now.
func TestMetricsOfVanishedUpstreamsVanish(t *testing.T) {
	m := newMeter()
	m.setUpstreams(map[string]Upstream{"openai": {"openai", "a", 1}, "b": {"openai", "b", 1}, "c": {"openai", "c", 1}})
	for _, name := range []string{"openai", "b", "c"} {
		r := traced()
		r.Upstream = name
		m.observe(r)
	}
	m.setUpstreams(map[string]Upstream{"openai": {"openai", "a", 1}, "b": {"openai", "moved", 1}})
	for _, metric := range m.collect(time.Now()) {
		for _, p := range metric.Points {
			if text := fmt.Sprint(p.Attrs); !strings.Contains(text, "{warmwire.upstream 0 openai") {
				t.Errorf("%s still has %s", metric.Name, text)
			}
		}
	}
}

// TestSeriesAreBounded: an upstream that answers every status fills the table and no more.
func TestSeriesAreBounded(t *testing.T) {
	m := newMeter()
	m.setUpstreams(upstreams)
	for i := range 3 * maxSeries {
		r := traced()
		r.Outcome, r.Cause = "upstream_error", fmt.Sprint("cause_", i)
		m.observe(r)
	}
	if n := len(m.duration.series); n != maxSeries {
		t.Errorf("%d series, want %d", n, maxSeries)
	}
	total := uint64(0)
	overflown := false
	for _, p := range m.collect(time.Now())[0].Points {
		for _, n := range p.Counts {
			total += n
		}
		overflown = overflown || strings.Contains(fmt.Sprint(p.Attrs), "otel.metric.overflow")
	}
	if total != 3*maxSeries || !overflown {
		t.Errorf("%d observations, overflow %v", total, overflown)
	}
}

// BenchmarkDone is what a request pays.
func BenchmarkDone(b *testing.B) {
	target, err := otlp.New(nil, otlp.Config{Endpoint: mustURL("http://collector:4318")})
	if err != nil {
		b.Fatal(err)
	}
	for name, settings := range map[string]Settings{
		"off":     {},
		"metrics": {Target: target, Metrics: true, Upstreams: upstreams},
		"traced":  {Target: target, Traces: true, Upstreams: upstreams},
		"both":    {Target: target, Traces: true, Metrics: true, Upstreams: upstreams},
	} {
		b.Run(name, func(b *testing.B) {
			x, err := New(Config{Jitter: func() float64 { return 0 }})
			if err != nil {
				b.Fatal(err)
			}
			if err := x.Update(settings); err != nil {
				b.Fatal(err)
			}
			r := traced()
			b.ReportAllocs()
			for b.Loop() {
				x.Done(r)
				if x.queue.len() == maxBatch {
					b.StopTimer()
					x.queue.take()
					b.StartTimer()
				}
			}
		})
	}
}
