// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	ms = time.Millisecond
	s  = time.Second
)

var epoch = time.Unix(1e9, 0)

func at(d time.Duration) time.Time { return epoch.Add(d) }

func TestTimeoutFollowsTheRoundTrips(t *testing.T) {
	jitter := func(n int) []time.Duration { // 80 ms and a spread of 35
		rnd := rand.New(rand.NewPCG(1, 1))
		d := make([]time.Duration, n)
		for i := range d {
			d[i] = max(time.Duration((80+35*rnd.NormFloat64())*float64(ms)), 5*ms)
		}
		return d
	}
	repeat := func(n int, d time.Duration) []time.Duration {
		all := make([]time.Duration, n)
		for i := range all {
			all[i] = d
		}
		return all
	}
	tests := []struct {
		name     string
		samples  []time.Duration
		missed   int
		min, max time.Duration
	}{
		{name: "nothing is known", min: 3 * s, max: 3 * s},
		{name: "one answer", samples: repeat(1, 2*s), min: 6 * s, max: 6 * s}, // RFC 6298 2.2
		{name: "a clean path", samples: repeat(100, 80*ms), min: s, max: s},
		{name: "80 ms and a spread of 35", samples: jitter(200), min: s, max: s},
		{name: "a late probe doubles", samples: repeat(100, 80*ms), missed: 1, min: 2 * s, max: 2 * s},
		{name: "and again", samples: repeat(100, 80*ms), missed: 3, min: 8 * s, max: 8 * s},
		{name: "up to a minute", samples: repeat(100, 80*ms), missed: 300, min: maxTimeout, max: maxTimeout},
		{name: "a slow peer", samples: repeat(50, 8*s), min: 10 * s, max: 13 * s}, // bucket's edge and a quarter
		{name: "a spike of 4 s among 100", samples: append(append(repeat(50, 80*ms), 4*s), repeat(50, 80*ms)...), min: s, max: s},
		{name: "spikes of 4 s, one in 20", samples: append(append(repeat(19, 80*ms), 4*s), repeat(19, 80*ms)...), min: 5 * s, max: 6400 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r RTT
			for i, d := range tt.samples {
				r.Add(at(time.Duration(i)*s), d)
			}
			for range tt.missed {
				r.Missed()
			}
			if got := r.Timeout(); got < tt.min || got > tt.max {
				t.Errorf("time-out %v, want %v to %v", got, tt.min, tt.max)
			}
		})
	}
}

func TestAnswerEndsTheGrowth(t *testing.T) {
	var r RTT
	r.Add(at(0), 80*ms)
	r.Missed()
	r.Missed()
	if r.Add(at(s), 80*ms); r.Timeout() != s {
		t.Errorf("time-out %v after an answer", r.Timeout())
	}
}

func TestMinAndTailForget(t *testing.T) {
	var r RTT
	r.Add(at(0), 20*ms)
	r.Add(at(0), 4*s)
	for now := s; now < 2*time.Hour; now += 30 * s {
		r.Add(at(now), 80*ms)
		if short := now <= 4*time.Minute; short && r.Min() != 20*ms {
			t.Fatalf("the minimum of 20 ms is forgotten after %v", now)
		}
		if now > 11*time.Minute && r.Min() != 80*ms {
			t.Fatalf("the minimum is %v after %v", r.Min(), now)
		}
		if now > time.Hour && r.Tail() > 110*ms {
			t.Fatalf("the tail is %v after %v", r.Tail(), now)
		}
		if now < 10*time.Minute && r.Tail() < 4*s {
			t.Fatalf("the tail is %v after %v", r.Tail(), now)
		}
	}
}

// Also where there are few samples, and after the clock was set back.
func TestTailForgetsByTime(t *testing.T) {
	for _, back := range []time.Duration{0, 5 * time.Hour} {
		var r RTT
		r.Add(at(0), 80*ms)
		r.Add(at(6*time.Hour-s), 80*ms)
		r.Add(at(6*time.Hour), 4*s)
		for now := 6*time.Hour - back; now < 8*time.Hour-back; now += 5 * time.Minute {
			r.Add(at(now), 80*ms)
		}
		if r.Tail() > 110*ms {
			t.Errorf("back by %v: the tail is %v", back, r.Tail())
		}
	}
}

// Whatever comes, and whatever the clock does: the estimates stay among the
// samples and the time-out within its bounds.
func TestRTTStaysInItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r RTT
		now := epoch
		low, high := time.Duration(math.MaxInt64), time.Duration(0)
		for range rapid.IntRange(1, 200).Draw(t, "samples") {
			now = now.Add(time.Duration(rapid.Int64().Draw(t, "pass")))
			if rapid.IntRange(0, 9).Draw(t, "late") == 0 {
				r.Missed()
				continue
			}
			d := time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "rtt"))
			r.Add(now, d)
			low, high = min(low, d), max(high, d)
			if r.Smoothed() < low || r.Smoothed() > high || r.Min() < low || r.Min() > high || r.Variance() < 0 || r.Variance() > high {
				t.Fatalf("samples %v to %v: %+v", low, high, r)
			}
			if tail := r.Tail(); tail > 0 && tail < low && low < 65*s {
				t.Fatalf("tail %v of samples from %v", tail, low)
			}
			if r.Timeout() < minTimeout || r.Timeout() > maxTimeout {
				t.Fatalf("time-out %v", r.Timeout())
			}
		}
	})
}
