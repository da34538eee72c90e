// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"
	"time"
)

// A Result is how an attempt ended, as far as the endpoint is concerned. The set is
// closed: it is a metric label.
type Result string

// The results.
const (
	OK      Result = "ok"
	Error   Result = "error"   // an answer of 500, 502, 503, 504 or 529, or a broken connection
	Connect Result = "connect" // no connection: names, addresses, TLS
	Stall   Result = "stall"   // a limit passed
	Left    Result = "left"    // nobody waits for it any longer, or it says nothing of the endpoint
)

var results = [...]Result{OK, Error, Connect, Stall, Left}

const numResults = len(results)

func (r Result) index() int { return slices.Index(results[:], r) }

// failed says whether it speaks against the endpoint.
func (r Result) failed() bool { return r == Error || r == Connect || r == Stall }

// A Reason is why an endpoint is left out. The set is closed: it is a metric label.
type Reason string

// The reasons: results, late first bytes, and probes.
const (
	Errors   Reason = "error"
	Connects Reason = "connect"
	Stalls   Reason = "stall"
	Slow     Reason = "slow"
	Probe    Reason = "probe"
)

// failLocked counts a failure of e, and says whether e is left out for it.
func (t *Transport) failLocked(e *endpoint, count *int, why Reason, now time.Time) (event, bool) {
	*count++
	after := t.cfg.Eject.After
	if after < 0 || e.out(now) || *count < after && !e.probation {
		return event{}, false
	}
	return t.ejectLocked(e, why, now), true
}

// ejectLocked leaves e out, if not too many are.
func (t *Transport) ejectLocked(e *endpoint, why Reason, now time.Time) event {
	e.failures, e.slow = 0, 0
	here, out := 0, 0
	for _, other := range t.endpoints {
		if other.drain {
			continue
		}
		here++
		if other.out(now) {
			out++
		}
	}
	if float64(out+1) > t.cfg.Eject.Share*float64(here) || here < 2 {
		return event{e.name, why, true}
	}
	long := t.cfg.Eject.Time
	for range e.times {
		if long = min(2*long, t.cfg.Eject.MaxTime); long == t.cfg.Eject.MaxTime {
			break
		}
	}
	e.times++
	e.until, e.reason, e.probation = now.Add(long), why, true
	return event{e.name, why, false}
}

// well notes that e has served a request: once that ends its probation, and for long
// enough its past.
func (t *Transport) wellLocked(e *endpoint, now time.Time) {
	e.failures, e.probation = 0, false
	if e.times > 0 && now.Sub(e.until) >= t.cfg.Eject.MaxTime {
		e.times = 0
	}
}

// lateLocked judges the time of a first byte beside what the others are expected to take.
func (t *Transport) lateLocked(e *endpoint, k kind, took time.Duration, now time.Time) (event, bool) {
	if t.cfg.Eject.Slow == 0 {
		return event{}, false
	}
	t.others = t.others[:0]
	for _, other := range t.endpoints {
		if w := other.learned[k][other.protocol]; other != e && !other.drain && !other.out(now) && !w.at.IsZero() {
			t.others = append(t.others, w.value)
		}
	}
	if len(t.others) == 0 {
		return event{}, false
	}
	slices.Sort(t.others)
	median := t.others[len(t.others)/2]
	if took-median < slowGap || float64(took) < t.cfg.Eject.Slow*float64(median) {
		e.slow = 0
		return event{}, false
	}
	return t.failLocked(e, &e.slow, Slow, now)
}

// An event is told when no lock is held.
type event struct {
	name   string
	why    Reason
	capped bool
}
