// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/otlp"
)

// maxSeries bounds the series of each metric; what comes beyond counts as overflow, as
// the metrics SDK of OpenTelemetry does.
const maxSeries = 1000

// leastBound is the first bound of the histograms of time; each is twice the one before.
const leastBound = 10 * time.Millisecond

// timeBounds and tokenBounds are ExplicitBucketBoundaries of the GenAI conventions.
func timeBounds() []float64 {
	b := make([]float64, gaps)
	for i := range b {
		b[i] = (leastBound << i).Seconds()
	}
	return b
}

func tokenBounds() []float64 {
	b := make([]float64, gaps)
	for i := range b {
		b[i] = float64(uint64(1) << (2 * i)) // powers of 4, up to 67108864
	}
	return b
}

// timeBucket is where d counts: an upper bound belongs to its bucket.
func timeBucket(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return min(bits.Len64(uint64((d-1)/leastBound)), gaps)
}

// tokenBucket is where n counts.
func tokenBucket(n int64) int {
	if n <= 1 {
		return 0
	}
	return min((bits.Len64(uint64(n-1))+1)/2, gaps)
}

// A seriesKey is the label set of a series, as far as it does not follow from the upstream.
type seriesKey struct {
	upstream, operation string
	extra               string // error.type, or gen_ai.token.type
}

// overflow stands for all label sets beyond the limit.
var overflow = seriesKey{extra: "\x00overflow"}

type series struct {
	up     Upstream // as it was when the series began
	start  time.Time
	sum    float64
	counts [gaps + 1]uint64
}

// A histogram is one metric.
type histogram struct {
	name, description, unit string
	extra                   string // the name of the label that seriesKey.extra is
	bounds                  []float64
	series                  map[seriesKey]*series
}

// A meter counts what requests showed.
type meter struct {
	mu                                   sync.Mutex // guards the fields below
	upstreams                            map[string]Upstream
	duration, firstChunk, perChunk, used histogram
}

func newMeter() *meter {
	h := func(name, description, unit, extra string, bounds []float64) histogram {
		return histogram{name, description, unit, extra, bounds, map[seriesKey]*series{}}
	}
	return &meter{
		duration:   h("gen_ai.client.operation.duration", "GenAI operation duration.", "s", "error.type", timeBounds()),
		firstChunk: h("gen_ai.client.operation.time_to_first_chunk", "Time to receive the first chunk of a streamed answer.", "s", "", timeBounds()),
		perChunk:   h("gen_ai.client.operation.time_per_output_chunk", "Time between chunks of a streamed answer.", "s", "", timeBounds()),
		used:       h("gen_ai.client.token.usage", "Number of input and output tokens used.", "{token}", "gen_ai.token.type", tokenBounds()),
	}
}

func (m *meter) all() []*histogram {
	return []*histogram{&m.duration, &m.firstChunk, &m.perChunk, &m.used}
}

// setUpstreams names those that are configured; series of others, and of those that are
// elsewhere now, vanish.
func (m *meter) setUpstreams(ups map[string]Upstream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.upstreams = ups
	for _, h := range m.all() {
		for key, s := range h.series {
			if now, ok := ups[key.upstream]; key != overflow && (!ok || now != s.up) {
				delete(h.series, key)
			}
		}
	}
}

// upstream is what is known of one.
func (m *meter) upstream(name string) Upstream {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.upstreams[name]
}

// observe counts r, if it asked something of a model API that is configured.
func (m *meter) observe(r *Request) {
	if r.Operation == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	up, ok := m.upstreams[r.Upstream]
	if !ok { // it has gone since
		return
	}
	key := seriesKey{upstream: r.Upstream, operation: r.Operation}
	at := func(h *histogram, extra string) *series {
		key.extra = extra
		return h.at(key, up, r.Start)
	}
	at(&m.duration, r.errorType()).add(timeBucket(r.Duration), r.Duration.Seconds())
	if r.Stream && r.TTFT > 0 {
		at(&m.firstChunk, "").add(timeBucket(r.TTFT), r.TTFT.Seconds())
	}
	if r.Stream && r.Chunks > 1 {
		s := at(&m.perChunk, "")
		s.sum += r.Tokens.Seconds()
		for i, n := range r.Gaps {
			s.counts[i] += uint64(n)
		}
	}
	if r.InputTokens >= 0 {
		at(&m.used, "input").add(tokenBucket(r.InputTokens), float64(r.InputTokens))
	}
	if r.OutputTokens >= 0 {
		at(&m.used, "output").add(tokenBucket(r.OutputTokens), float64(r.OutputTokens))
	}
}

func (h *histogram) at(key seriesKey, up Upstream, since time.Time) *series {
	s := h.series[key]
	if s == nil && len(h.series) >= maxSeries-1 {
		key, up = overflow, Upstream{}
		s = h.series[key]
	}
	if s == nil {
		s = &series{up: up, start: since}
		h.series[key] = s
	}
	return s
}

func (s *series) add(bucket int, v float64) {
	s.counts[bucket]++
	s.sum += v
}

// collect returns what there is, in a fixed order.
func (m *meter) collect(now time.Time) (all []otlp.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.all() {
		if len(h.series) == 0 {
			continue
		}
		metric := otlp.Metric{Name: h.name, Description: h.description, Unit: h.unit, Bounds: h.bounds}
		keys := make([]seriesKey, 0, len(h.series))
		for key := range h.series {
			keys = append(keys, key)
		}
		slices.SortFunc(keys, func(a, b seriesKey) int {
			return strings.Compare(a.upstream+"\x00"+a.operation+"\x00"+a.extra, b.upstream+"\x00"+b.operation+"\x00"+b.extra)
		})
		for _, key := range keys {
			s := h.series[key]
			metric.Points = append(metric.Points, otlp.Point{Attrs: h.attrs(key, s.up), Start: s.start, Time: now, Sum: s.sum, Counts: slices.Clone(s.counts[:])})
		}
		all = append(all, metric)
	}
	return all
}

func (h *histogram) attrs(key seriesKey, up Upstream) []otlp.Attr {
	if key == overflow {
		return []otlp.Attr{otlp.Bool("otel.metric.overflow", true)}
	}
	a := []otlp.Attr{otlp.String("gen_ai.operation.name", key.operation), otlp.String("gen_ai.provider.name", up.Provider)}
	if up.Address != "" {
		a = append(a, otlp.String("server.address", up.Address), otlp.Int("server.port", int64(up.Port)))
	}
	if key.extra != "" {
		a = append(a, otlp.String(h.extra, key.extra))
	}
	return append(a, otlp.String("warmwire.upstream", key.upstream))
}
