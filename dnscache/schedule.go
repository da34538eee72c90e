// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"container/heap"
	"time"
)

// A schedule is a heap of entries by the time at which they are to be refreshed.
type schedule []*entry

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due < s[j].due }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push is for package heap.
func (s *schedule) Push(x any) {
	e := x.(*entry)
	e.index = len(*s)
	*s = append(*s, e)
}

// Pop is for package heap.
func (s *schedule) Pop() any {
	old := *s
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	e.index = -1
	return e
}

// set moves the entry to its time; never takes it out. It reports whether the
// first time of all has changed.
func (s *schedule) set(e *entry, due time.Duration) (sooner bool) {
	e.due = due
	switch {
	case due == never && e.index >= 0:
		heap.Remove(s, e.index)
	case due == never:
	case e.index >= 0:
		heap.Fix(s, e.index)
	default:
		heap.Push(s, e)
	}
	return e.index == 0
}

const (
	// keptRetry and maxKeptRetry are the pauses after which a kept name without a
	// good answer is asked for again.
	keptRetry, maxKeptRetry = time.Second, 30 * time.Second
	// keptFloor keeps names with a TTL of next to nothing from being asked for
	// all the time although nobody uses them.
	keptFloor = 5 * time.Second
	// keptNegative is when a kept name that does not exist is looked for again.
	keptNegative = 30 * time.Second
)

// planRefreshLocked sets when the entry is refreshed in the background.
func (r *Resolver) planRefreshLocked(e *entry) {
	due := never
	v := e.view.Load()
	switch {
	case e.failed != nil && (e.kept || e.hasGood(r.now(), r.cfg.Stale)):
		due = e.retry
	case v != nil && len(v.addrs) > 0:
		due = max(v.due, v.fetched)
		if e.kept {
			due = max(due, e.learned()+keptFloor)
		}
	case e.kept:
		due = r.now() + keptNegative
	}
	if r.schedule.set(e, due) {
		r.poke()
	}
}

// learned is when the newest part was.
func (e *entry) learned() time.Duration {
	var at time.Duration
	for i := range e.parts {
		at = max(at, e.parts[i].fetched)
		if e.doubt != nil {
			at = max(at, e.doubt.parts[i].fetched)
		}
	}
	return at
}

// refreshDue starts the refreshes that are due, of names that are kept or have
// been used since they were learned, and returns when the next one is.
func (r *Resolver) refreshDue(now time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.schedule) > 0 && r.schedule[0].due <= now {
		if r.refreshes >= maxRefreshes {
			return never // one that ends pokes
		}
		e := r.schedule[0]
		r.schedule.set(e, never)
		if _, dead := r.planLocked(e, false); dead && e.hasGood(now, r.cfg.Stale) {
			r.schedule.set(e, now+maxStalePause) // a probe will find out first
			continue
		}
		if e.kept || time.Duration(e.used.Load()) > e.learned() {
			_, _ = r.startLocked(e, &flight{explore: true}) // full or closed: the next lookup starts one
		}
	}
	if len(r.schedule) == 0 {
		return never
	}
	return r.schedule[0].due
}
