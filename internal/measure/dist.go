// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// maxExact is how many values a distribution keeps as they are: 800 kB.
	maxExact = 100_000
	// Beyond, values are kept to three digits up to maxValue.
	maxValue = 24 * time.Hour
)

// A Dist is a distribution of durations, exact up to 100,000 of them and to
// three significant digits beyond. The zero value is ready and empty.
type Dist struct {
	values []time.Duration
	sorted bool
	hist   *hdrhistogram.Histogram // takes over when values are too many
}

// Add puts d into the distribution. Negative durations count as zero.
func (d *Dist) Add(v time.Duration) {
	v = min(max(v, 0), maxValue)
	if d.hist == nil && len(d.values) == maxExact {
		d.hist = hdrhistogram.New(1, int64(maxValue), 3)
		for _, old := range d.values {
			d.record(old)
		}
		d.values = nil
	}
	if d.hist != nil {
		d.record(v)
		return
	}
	d.values, d.sorted = append(d.values, v), false
}

func (d *Dist) record(v time.Duration) {
	if err := d.hist.RecordValue(int64(v)); err != nil {
		panic("measure: internal error: " + err.Error()) // Add keeps v in range
	}
}

// Len is the number of values.
func (d *Dist) Len() int {
	if d.hist != nil {
		return int(d.hist.TotalCount())
	}
	return len(d.values)
}

// Exact tells whether every value is kept as it is.
func (d *Dist) Exact() bool { return d.hist == nil }

// Quantile is the value below which the share q of all lies, interpolated
// linearly between neighbours. It is zero for an empty distribution.
func (d *Dist) Quantile(q float64) time.Duration {
	if d.hist != nil {
		return time.Duration(d.hist.ValueAtQuantile(q * 100))
	}
	d.sort()
	return quantile(d.values, q)
}

// Mean is the arithmetic mean, or zero for an empty distribution.
func (d *Dist) Mean() time.Duration {
	if d.hist != nil {
		return time.Duration(math.Round(d.hist.Mean()))
	}
	if len(d.values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range d.values {
		sum += float64(v)
	}
	return time.Duration(math.Round(sum / float64(len(d.values))))
}

func (d *Dist) sort() {
	if !d.sorted {
		slices.Sort(d.values)
		d.sorted = true
	}
}

// quantile interpolates in sorted values.
func quantile[T ~int64 | ~float64](sorted []T, q float64) T {
	if len(sorted) == 0 {
		return 0
	}
	at := min(max(q, 0), 1) * float64(len(sorted)-1)
	low := int(at)
	if low == len(sorted)-1 {
		return sorted[low]
	}
	return sorted[low] + T((at-float64(low))*float64(sorted[low+1]-sorted[low]))
}

// An Interval is a two-sided confidence interval.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// resamples of a bootstrap: enough for the 2.5 % points of a 95 % interval
// (Efron and Tibshirani name 1000).
const resamples = 1000

// ratioInterval is the 95 % bootstrap interval of num's quantile q over den's,
// each side drawn for itself. ok is false if either has fewer than eight values
// or has too many to be kept.
func ratioInterval(num, den *Dist, q float64, seed uint64) (in Interval, ok bool) {
	if !num.Exact() || !den.Exact() || min(num.Len(), den.Len()) < 8 {
		return Interval{}, false
	}
	num.sort()
	den.sort()
	r := newRand(seed, forBootstrap)
	draw := func(from, into []time.Duration) float64 {
		for i := range into {
			into[i] = from[r.IntN(len(from))]
		}
		slices.Sort(into)
		return float64(quantile(into, q))
	}
	a, b := make([]time.Duration, num.Len()), make([]time.Duration, den.Len())
	// Sorting dominates; large samples need fewer draws for the same interval.
	times := max(100, min(resamples, 20_000_000/(num.Len()+den.Len())))
	ratios := make([]float64, 0, times)
	for range times {
		above, below := draw(num.values, a), draw(den.values, b)
		if below > 0 {
			ratios = append(ratios, above/below)
		}
	}
	if len(ratios) < times {
		return Interval{}, false // a quantile of zero has no ratio
	}
	slices.Sort(ratios)
	return Interval{quantile(ratios, 0.025), quantile(ratios, 0.975)}, true
}
