// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"
)

// maxReasons bounds how many different reasons are counted by name.
const maxReasons = 32

const otherReasons = "other reasons"

// A Metric is a quantity with a distribution.
type Metric int

// The metrics. The phases come last, in their own order.
const (
	TTFT       Metric = iota // f − t0
	TPOT                     // (e2e − TTFT)/(N − 1)
	PerChunk                 // (l − f)/(chunks − 1)
	ICL                      // c_i − c_(i−1), pooled over the calls
	E2EL                     // e − t0
	SetupTime                // h − t0
	firstPhase               // metrics from here on are phases
	metrics    = firstPhase + Metric(phases)
)

func (m Metric) String() string {
	if m >= firstPhase {
		return Phase(m - firstPhase).String()
	}
	return [...]string{"ttft", "tpot", "per_chunk", "icl", "e2el", "setup"}[m]
}

// title is the metric's name for people.
func (m Metric) title() string {
	if m >= firstPhase {
		return "phase " + m.String()
	}
	return [...]string{"TTFT", "TPOT", "time per output chunk", "ICL (inter-chunk)", "E2EL", "stream setup (head)"}[m]
}

// A LegSummary is what one leg's calls were like. Distributions of times hold
// calls that ended well, inter-chunk gaps and phases those of every call.
type LegSummary struct {
	Calls    int
	Outcomes map[Outcome]int
	Reasons  map[string]int

	dist        [metrics]Dist
	streaming   time.Duration
	cuts, good  int
	tokens      int
	counted     int // calls whose tokens are chunks, for want of the server's count
	opened      int
	full, reuse int // TLS handshakes
}

// Dist is the distribution of m.
func (l *LegSummary) Dist(m Metric) *Dist { return &l.dist[m] }

// InterruptionsPerMinute is the number of cut streams by the minutes in which
// streams were open; not a number if none was.
func (l *LegSummary) InterruptionsPerMinute() float64 {
	return float64(l.cuts) / l.streaming.Minutes()
}

func (l *LegSummary) add(r *Result, limits Limits) {
	l.Calls++
	l.Outcomes[r.Outcome]++
	if r.Reason != "" {
		reason := string(r.Outcome) + ": " + r.Reason
		if _, known := l.Reasons[reason]; !known && len(l.Reasons) >= maxReasons {
			reason = otherReasons
		}
		l.Reasons[reason]++
	}
	if r.Outcome == NotSent {
		return
	}
	for p, d := range r.Phase {
		if d >= 0 {
			l.dist[firstPhase+Metric(p)].Add(d)
		}
	}
	for _, g := range r.Gaps {
		l.dist[ICL].Add(g)
	}
	l.streaming += r.Streaming()
	l.count(r)
	if r.Outcome != OK {
		return
	}
	l.tokens += r.OutputTokens
	l.dist[E2EL].Add(r.End)
	l.dist[SetupTime].Add(r.Setup)
	if r.Chunks > 0 {
		l.dist[TTFT].Add(r.First)
	}
	if d, ok := r.TPOT(); ok {
		l.dist[TPOT].Add(d)
	}
	if d, ok := r.PerChunk(); ok {
		l.dist[PerChunk].Add(d)
	}
	if limits.Met(r) {
		l.good++
	}
}

func (l *LegSummary) count(r *Result) {
	for n, is := range map[*int]bool{
		&l.cuts: r.Interrupted(), &l.counted: r.Counted && r.Outcome == OK, &l.opened: r.Opened,
		&l.full: r.Handshake && !r.Resumed, &l.reuse: r.Handshake && r.Resumed,
	} {
		if is {
			*n++
		}
	}
}

// A Summary folds the results of one measurement.
type Summary struct {
	Legs    []*LegSummary // direct, and through if that was measured
	Limits  Limits
	Elapsed time.Duration // how long the measurement took; set by its owner
	Seed    uint64        // of the bootstrap
}

// NewSummary returns an empty summary of one or two legs.
func NewSummary(legs int, limits Limits, seed uint64) *Summary {
	s := &Summary{Limits: limits, Seed: seed}
	for range legs {
		s.Legs = append(s.Legs, &LegSummary{Outcomes: map[Outcome]int{}, Reasons: map[string]int{}})
	}
	return s
}

// Add folds in one result.
func (s *Summary) Add(r Result) { s.Legs[r.Leg].add(&r, s.Limits) }

// Calls is how many results there are, Succeeded how many of them ended well.
func (s *Summary) Calls() (all, succeeded int) {
	for _, l := range s.Legs {
		all += l.Calls
		succeeded += l.Outcomes[OK]
	}
	return all, succeeded
}

// A Ratio compares a quantile of the second leg with that of the first.
type Ratio struct {
	Value    float64   `json:"value"`
	Interval *Interval `json:"interval_95,omitempty"` // absent if there are too few values for one
}

// Ratio is through by direct at quantile q of m; ok is false where either has
// no value or direct is zero.
func (s *Summary) Ratio(m Metric, q float64) (r Ratio, ok bool) {
	if len(s.Legs) < 2 {
		return Ratio{}, false
	}
	direct, through := s.Legs[Direct].Dist(m), s.Legs[Through].Dist(m)
	below := direct.Quantile(q)
	if direct.Len() == 0 || through.Len() == 0 || below == 0 {
		return Ratio{}, false
	}
	r.Value = float64(through.Quantile(q)) / float64(below)
	// One call's gaps depend on each other, and a p99 of few calls is one call:
	// only medians of values that are one a call get an interval.
	if m != ICL && q == 0.5 {
		if in, ok := ratioInterval(through, direct, q, s.Seed); ok {
			r.Interval = &in
		}
	}
	return r, true
}

func (l *LegSummary) reasons() []string {
	return slices.SortedFunc(maps.Keys(l.Reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.Reasons[b], l.Reasons[a]), cmp.Compare(a, b))
	})
}

type distJSON struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

type legJSON struct {
	Calls          int                 `json:"calls"`
	Outcomes       map[Outcome]int     `json:"outcomes"`
	Reasons        map[string]int      `json:"reasons"`
	Milliseconds   map[string]distJSON `json:"milliseconds"`
	Throughput     float64             `json:"request_throughput_per_s"`
	TokenRate      float64             `json:"output_throughput_per_s"`
	TokensCounted  int                 `json:"calls_with_tokens_counted_as_chunks"`
	Interruptions  int                 `json:"interruptions"`
	PerMinute      *float64            `json:"interruptions_per_minute"`
	StreamMinutes  float64             `json:"streaming_minutes"`
	Goodput        *float64            `json:"goodput_per_s,omitempty"`
	GoodShare      *float64            `json:"goodput_share,omitempty"`
	Opened         int                 `json:"connections_opened"`
	FullHandshakes int                 `json:"tls_full"`
	Resumptions    int                 `json:"tls_resumed"`
}

// MarshalJSON is the report for machines. Names end in their unit.
func (s *Summary) MarshalJSON() ([]byte, error) {
	out := struct {
		Elapsed float64                     `json:"elapsed_s"`
		Limits  map[string]float64          `json:"goodput_limits_ms,omitempty"`
		Legs    map[string]legJSON          `json:"legs"`
		Ratios  map[string]map[string]Ratio `json:"ratio_through_by_direct,omitempty"`
	}{Elapsed: s.Elapsed.Seconds(), Limits: s.Limits.milliseconds(), Legs: map[string]legJSON{}}
	for i, l := range s.Legs {
		out.Legs[Leg(i).String()] = s.legJSON(l)
	}
	if len(s.Legs) == 2 {
		out.Ratios = map[string]map[string]Ratio{}
		for m := range metrics {
			for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
				r, ok := s.Ratio(m, q)
				if !ok {
					continue
				}
				if out.Ratios[m.String()] == nil {
					out.Ratios[m.String()] = map[string]Ratio{}
				}
				out.Ratios[m.String()][name] = r
			}
		}
	}
	return json.Marshal(out)
}

func (s *Summary) legJSON(l *LegSummary) legJSON {
	rate := func(n int) float64 {
		if s.Elapsed <= 0 {
			return 0
		}
		return float64(n) / s.Elapsed.Seconds()
	}
	j := legJSON{
		Calls: l.Calls, Outcomes: l.Outcomes, Reasons: l.Reasons, Milliseconds: map[string]distJSON{},
		Throughput: rate(l.Outcomes[OK]), TokenRate: rate(l.tokens), TokensCounted: l.counted,
		Interruptions: l.cuts, StreamMinutes: l.streaming.Minutes(),
		Opened: l.opened, FullHandshakes: l.full, Resumptions: l.reuse,
	}
	if n := l.InterruptionsPerMinute(); !math.IsNaN(n) && !math.IsInf(n, 0) {
		j.PerMinute = &n
	}
	if s.Limits != (Limits{}) && l.Calls > 0 {
		good, share := rate(l.good), float64(l.good)/float64(l.Calls)
		j.Goodput, j.GoodShare = &good, &share
	}
	for m := range metrics {
		if d := l.Dist(m); d.Len() > 0 {
			j.Milliseconds[m.String()] = distJSON{
				N: d.Len(), Mean: ms(d.Mean()), Min: ms(d.Quantile(0)), P50: ms(d.Quantile(0.5)),
				P90: ms(d.Quantile(0.9)), P99: ms(d.Quantile(0.99)), Max: ms(d.Quantile(1)),
			}
		}
	}
	return j
}

func (l Limits) milliseconds() map[string]float64 {
	out := map[string]float64{}
	for name, d := range map[string]time.Duration{"ttft": l.TTFT, "tpot": l.TPOT, "e2el": l.E2E} {
		if d > 0 {
			out[name] = ms(d)
		}
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
