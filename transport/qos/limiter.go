// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"math"
	"slices"
	"time"
)

// Constants of the learned limit. Those of the gradient are Netflix's Gradient2 (its
// concurrency-limits library), but for the windows, which are ours: model calls are
// fewer and vary more than the calls it was made for.
const (
	firstLimit  = 20  // before anything is learned, as there
	tolerance   = 1.5 // a median that is so much above the usual one is no queue yet, as there
	smoothing   = 0.2 // of a change, as there
	backoff     = 0.7 // after a refusal; TCP CUBIC's
	windowTime  = 1.0 // s, at least, of one step
	windowLeast = 10  // answers, at least, of one step
	windowMost  = 64  // answers that are kept of one
	longWindows = 60  // steps over which the usual median is taken: a minute under load
	leastRest   = 0.1 // s between decreases, which is otherwise the usual time to a head: what a decrease does shows only then
	mostRest    = 1.0
	recovery    = 0.95 // of the usual median, for each step in which it is twice the present one, as there
)

// A limiter learns how many requests an upstream bears at once: from refusals, after which
// the limit falls (AIMD), and from the time to an answer's head, whose growth beyond the
// usual shows a queue (Gradient2). It is pure policy: time is given.
type limiter struct {
	floor, most float64
	limit       float64
	usual       float64 // s, of the medians; 0 = none yet
	window      []float64
	begun       time.Time // of the window
	busy        bool      // at least half of the limit was in use in it
	decreased   time.Time
}

// set changes the bounds. What was learned stays, within these.
func (l *limiter) set(floor, most int) {
	l.floor, l.most = float64(floor), float64(most)
	if l.limit == 0 {
		l.limit = firstLimit
	}
	l.limit = min(max(l.limit, l.floor), l.most)
}

// now is the limit as a number of requests.
func (l *limiter) now() int { return int(l.limit) }

// started takes how many run.
func (l *limiter) started(running int) { l.busy = l.busy || float64(2*running) >= l.limit }

// refused lowers the limit, once for all that was sent before it fell.
func (l *limiter) refused(now, begun time.Time) {
	if !begun.After(l.decreased) || now.Sub(l.decreased).Seconds() < min(max(l.usual, leastRest), mostRest) {
		return
	}
	l.limit = max(l.floor, math.Floor(l.limit*backoff))
	l.decreased = now
	l.reset(now)
}

// answered takes how long the head of a good answer took.
func (l *limiter) answered(now time.Time, took time.Duration) {
	if l.begun.IsZero() {
		l.begun = now
	}
	if len(l.window) < windowMost {
		l.window = append(l.window, took.Seconds())
	}
	if len(l.window) < windowLeast || now.Sub(l.begun).Seconds() < windowTime {
		return
	}
	slices.Sort(l.window)
	l.step(l.window[len(l.window)/2])
	l.reset(now)
}

func (l *limiter) reset(now time.Time) {
	l.window, l.begun, l.busy = l.window[:0], now, false
}

// step moves the limit by the median of a window.
func (l *limiter) step(median float64) {
	median = max(median, 1e-6)
	if l.usual == 0 {
		l.usual = median
	}
	l.usual += (median - l.usual) / longWindows
	if l.usual > 2*median { // the upstream has become faster: what was usual is no measure
		l.usual *= recovery
	}
	if !l.busy { // it is the apps that want no more
		return
	}
	gradient := min(1, max(0.5, tolerance*l.usual/median))
	next := l.limit*gradient + math.Sqrt(l.limit)
	l.limit = min(max(l.limit+(next-l.limit)*smoothing, l.floor), l.most)
}
