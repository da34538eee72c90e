// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"math"
	"testing"
	"time"
)

// steps gives the limiter windows of ten answers each, one second long, all of which take
// as long, and returns the limit after each. The limit is in use unless idle.
func steps(l *limiter, now *time.Time, n int, took time.Duration, idle bool) []int {
	var out []int
	for range n {
		for i := range windowLeast {
			if !idle {
				l.started(l.now())
			}
			if i == windowLeast-1 {
				*now = now.Add(time.Second)
			}
			l.answered(*now, took)
		}
		out = append(out, l.now())
	}
	return out
}

func newLimiter(floor, most int) (*limiter, *time.Time) {
	now := time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)
	l := &limiter{}
	l.set(floor, most)
	l.begun = now
	return l, &now
}

// TestTheLimitFollowsTheGradient: with the same latency the limit grows by a fifth of its
// root each second; with twice the latency it shrinks by gradient 1.5/2.
func TestTheLimitFollowsTheGradient(t *testing.T) {
	l, now := newLimiter(4, 100)
	if l.now() != 20 {
		t.Fatalf("the first limit is %d, want 20", l.now())
	}
	steps(l, now, 3, 100*time.Millisecond, false)
	want := 20.0
	for range 3 {
		want += math.Sqrt(want) * 0.2
	}
	if math.Abs(l.limit-want) > 1e-9 {
		t.Errorf("after three steady seconds the limit is %v, want %v", l.limit, want)
	}
	before := l.limit
	steps(l, now, 1, 200*time.Millisecond, false)
	usual := 0.1 + (0.2-0.1)/60
	want = before + (before*(1.5*usual/0.2)+math.Sqrt(before)-before)*0.2
	if math.Abs(l.limit-want) > 1e-9 {
		t.Errorf("after a second of twice the latency the limit is %v, want %v", l.limit, want)
	}
}

func TestTheLimitNeverFallsBelowItsFloor(t *testing.T) {
	l, now := newLimiter(6, 100)
	for range 200 {
		*now = now.Add(2 * time.Second)
		l.refused(*now, *now)
		if l.now() < 6 {
			t.Fatalf("the limit is %d, the floor 6", l.now())
		}
	}
	l, now = newLimiter(6, 100)
	took := 10 * time.Millisecond
	for range 60 {
		took = took * 5 / 4 // slower and slower
		steps(l, now, 1, took, false)
		if l.now() < 6 {
			t.Fatalf("the limit is %d, the floor 6", l.now())
		}
	}
}

// TestARefusalCountsOnceForWhatWasSentBefore: a volley of 429s is one word.
func TestARefusalCountsOnceForWhatWasSentBefore(t *testing.T) {
	l, now := newLimiter(4, 100)
	begun := *now
	*now = now.Add(3 * time.Second)
	for range 20 {
		l.refused(*now, begun)
	}
	if l.now() != 14 {
		t.Errorf("after 20 refusals of one volley the limit is %d, want 14", l.now())
	}
	l.refused(now.Add(5*time.Second), begun.Add(time.Second))
	if l.now() != 14 {
		t.Errorf("a late refusal of what was sent before lowered the limit to %d", l.now())
	}
	l.refused(now.Add(5*time.Second), now.Add(time.Second))
	if l.now() != 9 {
		t.Errorf("after a refusal of what was sent since, the limit is %d, want 9", l.now())
	}
}

// TestTheLimitDoesNotGrowUnused: who wants less than half of it says nothing about it.
func TestTheLimitDoesNotGrowUnused(t *testing.T) {
	l, now := newLimiter(4, 100)
	for range 50 {
		l.started(9)
		steps(l, now, 1, time.Second, true)
	}
	if l.now() != 20 {
		t.Errorf("the limit is %d, want 20", l.now())
	}
	l.started(10)
	steps(l, now, 1, time.Second, true)
	if l.limit <= 20 {
		t.Errorf("half of the limit was in use, and it stays %v", l.limit)
	}
}

// TestTheLimitRecovers after an upstream has become fast again.
func TestTheLimitRecovers(t *testing.T) {
	l, now := newLimiter(4, 100)
	steps(l, now, 30, 100*time.Millisecond, false)
	high := l.now()
	steps(l, now, 30, time.Second, false)
	low := l.now()
	steps(l, now, 90, 100*time.Millisecond, false)
	if low > high/2 || l.now() < high {
		t.Errorf("the limit went from %d to %d and back to %d, want under half and all of it", high, low, l.now())
	}
	if l.usual > 0.15 {
		t.Errorf("the usual median is taken to be %v s, long after it has become 0.1", l.usual)
	}
	l.set(4, 10)
	if l.now() != 10 {
		t.Errorf("a new bound of 10 leaves %d", l.now())
	}
}
