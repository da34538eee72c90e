// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"log/slog"
	"math"
	"time"
)

// randomBits is how much of a trace id is random for sure (W3C Trace Context
// level 2 §3.2.2.3, random-trace-id flag): its last seven bytes.
const randomBits = 56

// threshold is OpenTelemetry's rejection threshold of a share: what is below it is
// left out (TraceState: Probability Sampling, "Rejection Threshold").
func threshold(share float64) uint64 {
	return uint64(math.Round((1 - share) * (1 << randomBits)))
}

// randomness is what is compared with the threshold: the trace's, so that all
// services which keep a share keep the same traces, else the request's own.
func (r *Record) randomness() uint64 {
	if low, ok := traceRandomness(r.TraceID); ok {
		return low
	}
	return mix(r.ID) >> (64 - randomBits)
}

// traceRandomness wants a trace id, 32 lower-case hex digits that are not all zero
// (W3C Trace Context §3.2.2.3), and returns its last 56 bits.
func traceRandomness(id string) (low uint64, ok bool) {
	if len(id) != 32 {
		return 0, false
	}
	var high uint64
	for i := range len(id) {
		digit := hexDigit[id[i]]
		if digit == 0 {
			return 0, false
		}
		high, low = high<<4|low>>60, low<<4|uint64(digit-1)
	}
	return low & (1<<randomBits - 1), high|low != 0
}

// hexDigit has 1 + the value of each lower-case hex digit.
var hexDigit = func() (t [256]uint8) {
	for i, c := range []byte("0123456789abcdef") {
		t[c] = uint8(i + 1)
	}
	return t
}()

// mix spreads counting ids over all 64 bits (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// A policy says which records are written in full.
type policy struct {
	thresholds [6]uint64 // by the first digit of the status; 0 = no head was sent
	named      [6]bool   // classes that the operator has given a share of their own
	level      slog.Leveler
	rate       float64 // failures a second, for each row of the summary
	burst      float64
}

func newPolicy(c Config) *policy {
	p := &policy{level: c.Level, rate: c.FailureRate, burst: float64(c.FailureBurst)}
	for class := range p.thresholds {
		share, named := c.Statuses[class]
		if !named {
			share = c.Sample
		}
		p.thresholds[class], p.named[class] = threshold(share), named
	}
	return p
}

func (p *policy) logs(level slog.Level) bool { return p.level == nil || level >= p.level.Level() }

// A verdict says what becomes of a record.
type verdict int

const (
	counted verdict = iota // in the summary only
	failure                // in full if the rate allows
	full
)

func (p *policy) judge(r *Record) verdict {
	class := r.Status / 100
	if class < 0 || class > 5 {
		class = 0
	}
	switch {
	case !p.logs(r.level()):
		return counted
	case r.randomness() >= p.thresholds[class]:
		return full
	case r.Outcome != outcomeOK || r.Cause != "", class >= 4 && !p.named[class]:
		return failure
	}
	return counted
}

// A bucket bounds a rate: it holds up to burst tokens and gets rate a second.
type bucket struct {
	tokens float64
	at     time.Time // of the last token; zero: never asked
}

func (b *bucket) take(now time.Time, p *policy) bool {
	if b.at.IsZero() {
		b.tokens, b.at = p.burst, now
	}
	if gone := now.Sub(b.at); gone > 0 { // records of requests that ended at once come in any order
		b.tokens, b.at = min(p.burst, b.tokens+p.rate*gone.Seconds()), now
	}
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
