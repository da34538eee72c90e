// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"math"
	"time"
)

const (
	// firstTimeout serves before anything was measured (RFC 6298 5.7).
	firstTimeout = 3 * time.Second
	// minTimeout covers two losses in a row at a round trip of 80 ms, where the
	// kernel sends again after 280 and another 560 ms (RFC 6298 2.4).
	minTimeout = time.Second
	// maxTimeout is what RFC 6298 2.5 allows as a bound.
	maxTimeout = time.Minute
	// rttMemory is for how long a sample counts in the minimum, at least half
	// and at most all of it, and after how long the tail has forgotten half of
	// what it knew. A path is seldom the same for longer (guess).
	rttMemory = 10 * time.Minute
	// The tail: three buckets an octave from 1 ms up, so that an edge is at most
	// 26 % above a sample. A sample weighs 16 and so is forgotten after five
	// halvings.
	tailBuckets, tailPerOctave, tailWeight = 48, 3, 16
	tailFull                               = 256 * tailWeight
	tailQuantile                           = 0.99
)

// An RTT estimates how long a peer takes to answer. Leave out what is no
// measurement: answers that waited because our own side was blocked or asleep.
// The zero value knows nothing. It is not safe for concurrent use.
type RTT struct {
	base   time.Time // of the first sample; the times below count from it
	count  uint32
	missed uint8 // probes in a row that were late

	last, smoothed, variance time.Duration

	min, nextMin time.Duration // of this window and the one before; of this one alone
	window       time.Duration // when it began
	halved       time.Duration // when the tail was
	tail         [tailBuckets]uint16
	total        uint32
}

// Add takes a sample.
func (r *RTT) Add(now time.Time, d time.Duration) {
	if d < 0 {
		return
	}
	d = min(d, 10*time.Minute) // more is no round trip, and would be remembered for hours
	if r.count == 0 {
		r.base, r.smoothed, r.variance, r.min, r.nextMin = now, d, d/2, d, d // RFC 6298 2.2
	} else { // RFC 6298 2.3
		r.variance += ((r.smoothed - d).Abs() - r.variance) / 4
		r.smoothed += (d - r.smoothed) / 8
	}
	r.count = min(r.count, math.MaxUint32-1) + 1
	r.last, r.missed = d, 0
	t := now.Sub(r.base)
	r.age(t)
	r.min, r.nextMin = min(r.min, d), min(r.nextMin, d)
	r.tail[bucket(d)] += tailWeight
	if r.total += tailWeight; r.total >= tailFull {
		r.halve()
	}
}

// age forgets what is old. A clock that went back begins anew.
func (r *RTT) age(t time.Duration) {
	if t < r.window || t >= r.window+rttMemory/2 {
		r.min, r.nextMin, r.window = r.nextMin, math.MaxInt64, t
	}
	if t < r.halved {
		r.halved = t
	}
	for ; t-r.halved >= rttMemory && r.total > 0; r.halved += rttMemory {
		r.halve()
	}
	if r.total == 0 {
		r.halved = t
	}
}

func (r *RTT) halve() {
	r.total = 0
	for i := range r.tail {
		r.tail[i] /= 2
		r.total += uint32(r.tail[i])
	}
}

// bucket is where a sample belongs.
func bucket(d time.Duration) int {
	if d <= time.Millisecond {
		return 0
	}
	return min(int(math.Log2(float64(d)/float64(time.Millisecond))*tailPerOctave), tailBuckets-1)
}

// Missed says that a probe is late: the next one is given twice the time, until an
// answer says how long it really takes (RFC 6298 5.5, 5.7).
func (r *RTT) Missed() { r.missed = min(r.missed+1, 6) }

// Known says whether anything was measured.
func (r *RTT) Known() bool { return r.count > 0 }

// Last is the last sample.
func (r *RTT) Last() time.Duration { return r.last }

// Smoothed is the mean that RFC 6298 calls SRTT.
func (r *RTT) Smoothed() time.Duration { return r.smoothed }

// Variance is the spread that RFC 6298 calls RTTVAR.
func (r *RTT) Variance() time.Duration { return r.variance }

// Min is the least of the last five to ten minutes of samples.
func (r *RTT) Min() time.Duration { return r.min }

// Tail is what 99 of 100 recent samples stay below; of fewer samples, all.
func (r *RTT) Tail() time.Duration {
	below := uint32(math.Ceil(tailQuantile * float64(r.total)))
	if below == 0 {
		return 0
	}
	for i, n := range r.tail {
		if uint32(n) >= below {
			return time.Duration(float64(time.Millisecond) * math.Exp2(float64(i+1)/tailPerOctave))
		}
		below -= uint32(n)
	}
	return 0 // not reached: the buckets add up to the total
}

// Timeout is how long an answer may take before it is late: the smoothed round
// trip and four times its spread (RFC 6298 2.3), and never less than a quarter
// more than the tail, because the spread forgets a rare spike in ten samples.
func (r *RTT) Timeout() time.Duration {
	d := firstTimeout
	if r.count > 0 {
		tail := r.Tail()
		d = max(minTimeout, r.smoothed+4*r.variance, tail+tail/4)
	}
	return min(d<<r.missed, maxTimeout)
}
