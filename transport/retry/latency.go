// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"math"
	"sync"
	"time"
)

const (
	latencyBuckets = 96                     // from 100 µs on, each a fifth wider: up to half an hour
	latencyStart   = 100 * time.Microsecond // what is shorter counts as this
	stepsPerOctave = 4
	enoughSamples  = 100  // below that a 95th percentile is five values
	manySamples    = 2000 // then all counts are halved, so that old ones fade
)

// A latency learns how long heads take. The zero value is ready.
type latency struct {
	mu     sync.Mutex // guards the fields below
	counts [latencyBuckets]int
	sum    int
}

func (l *latency) observe(d time.Duration) {
	i := 0
	if d > latencyStart {
		i = min(int(math.Log2(float64(d)/float64(latencyStart))*stepsPerOctave), latencyBuckets-1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[i]++
	if l.sum++; l.sum < manySamples {
		return
	}
	l.sum = 0
	for i := range l.counts {
		l.counts[i] /= 2
		l.sum += l.counts[i]
	}
}

// p95 is the learned 95th percentile, rounded up to the end of its bucket.
func (l *latency) p95() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sum < enoughSamples {
		return 0, false
	}
	left := l.sum - l.sum*5/100
	for i, n := range l.counts {
		if left -= n; left <= 0 {
			return time.Duration(float64(latencyStart) * math.Exp2(float64(i+1)/stepsPerOctave)), true
		}
	}
	return 0, false // counts sum up to sum
}
