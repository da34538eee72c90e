// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"sync"
	"time"
)

// The window of a budget: ten buckets of a second.
const (
	buckets     = 10
	bucketWidth = time.Second
)

// A budget counts the calls of the last ten seconds, and says how many attempts
// beyond them may be made. Calls and attempts leave the window together, so that
// in any ten seconds the attempts are at most their share of the calls, or the
// floor.
type budget struct {
	mu     sync.Mutex // guards the fields below
	newest int64      // number of the newest bucket, since the zero of at
	window [buckets]tally
	sum    tally // of all buckets
}

// A tally is what happened in one bucket.
type tally struct {
	calls  int64
	extra  int64 // attempts beyond the first, of ours and of the app
	hedges int64
}

// rollLocked empties the buckets that have become too old. at counts from any fixed
// moment; a clock that goes back stays in the newest bucket.
func (b *budget) rollLocked(at time.Duration) *tally {
	n := int64(at / bucketWidth)
	if n-b.newest >= buckets {
		b.window, b.sum, b.newest = [buckets]tally{}, tally{}, n
	}
	for b.newest < n {
		b.newest++
		old := &b.window[b.newest%buckets]
		b.sum.calls -= old.calls
		b.sum.extra -= old.extra
		b.sum.hedges -= old.hedges
		*old = tally{}
	}
	return &b.window[b.newest%buckets]
}

// call counts a call, or an attempt that the app makes by itself.
func (b *budget) call(at time.Duration, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.rollLocked(at)
	if again {
		t.extra++
		b.sum.extra++
		return
	}
	t.calls++
	b.sum.calls++
}

// again takes one attempt from the budget, if there is one.
func (b *budget) again(at time.Duration, share float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.rollLocked(at)
	if share <= 0 || b.sum.extra >= max(Floor, int64(share*float64(b.sum.calls))) {
		return false
	}
	t.extra++
	b.sum.extra++
	return true
}

// hedge takes one hedge from its budget, which has no floor: a second attempt
// beside a first one is never needed.
func (b *budget) hedge(at time.Duration, share float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.rollLocked(at)
	if b.sum.hedges >= int64(share*float64(b.sum.calls)) {
		return false
	}
	t.hedges++
	b.sum.hedges++
	return true
}
