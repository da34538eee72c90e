// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"time"
)

// Constants of learning; guesses unless said.
const (
	memory     = 10 * time.Second // of what was learned of latency, as in Finagle's peak EWMA
	smoothing  = 5 * time.Second  // of what endpoints say of their load
	oldReport  = 10 * time.Second // then it counts for nothing; more than some intervals too, see endpoint.queue
	staleAfter = 10 * time.Second // an endpoint that was slow then is worth another look
	lookEvery  = 400              // choices between two such looks: a quarter of a percent of the requests
	leastStart = 0.1              // of its weight, that an endpoint has at first: it has to learn something
	slowGap    = 100 * time.Millisecond
)

// A kind is what an answer is, for the time to its first byte.
type kind uint8

const (
	stream kind = iota // of events
	whole              // anything else: the first byte comes when the answer is done
	kinds
)

// protocols are HTTP/1, 2, 3 and others.
const protocols = 4

// An endpoint is what is known of one origin. All fields but the first three are
// guarded by Transport.mu.
type endpoint struct {
	name, scheme, host string
	hash               uint64 // of its origin
	weight             float64
	drain              bool
	current            float64   // of round-robin
	since              time.Time // when it came or came back; zero = it was always there

	inFlight int      // attempts whose answers are not over
	pending  int      // of them, those without a first byte
	oldest   *attempt // of pending; a list in order of time
	newest   *attempt

	protocol uint8 // of its last answer
	learned  [kinds][protocols]ewma

	usual     float64   // how many waited for a first byte when another came, of late
	usualAt   time.Time // zero: not known
	failures  int       // in a row
	slow      int       // late first bytes in a row
	until     time.Time
	times     int // that it was left out lately
	probation bool
	reason    Reason

	report  report
	probing int // failed probes in a row
	done    [numResults]int64
}

// An ewma is a peak-sensitive moving average: up at once, down with time.
type ewma struct {
	value time.Duration
	at    time.Time // zero: nothing was seen
}

func (w *ewma) observe(d time.Duration, now time.Time) {
	if !w.at.IsZero() && d < w.value {
		old := math.Exp(-float64(now.Sub(w.at)) / float64(memory))
		d = time.Duration(float64(w.value)*old + float64(d)*(1-old))
	}
	w.value, w.at = d, now
}

// crowd learns how many waited when a request came that has its first byte now.
func (e *endpoint) crowd(had int, now time.Time) {
	old := 0.0
	if !e.usualAt.IsZero() {
		old = math.Exp(-float64(now.Sub(e.usualAt)) / float64(memory))
	}
	e.usual, e.usualAt = e.usual*old+float64(had)*(1-old), now
}

// penalty is how much longer than was learned a further request is expected to wait, for
// more of them wait already than did when that was learned: a server with places for many
// is not slower for each of them. How many wait varies by itself, as a Poisson number does,
// so three standard deviations more are no news: without them a fifth of the requests at 20
// a second went to an endpoint that was half as slow again.
func (e *endpoint) penalty(now time.Time) float64 {
	return max(1, (float64(e.pending)+1+e.queue(now))/(e.usual+1+3*math.Sqrt(e.usual)))
}

// expects is how long the first byte of a request is expected to take, of a stream if
// the upstream gives any; ok is false if nothing is known.
func (e *endpoint) expects(streams bool, now time.Time) (d time.Duration, at time.Time, ok bool) {
	w, other := e.learned[whole][e.protocol], ewma{}
	if streams {
		w, other = e.learned[stream][e.protocol], w
	}
	if w.at.IsZero() {
		return 0, w.at, false
	}
	d = w.value
	if e.oldest != nil { // one that waits longer than it should is news already
		if age, normal := now.Sub(e.oldest.start), max(w.value, other.value); age > normal && normal > 0 {
			d = time.Duration(float64(d) * float64(age) / float64(normal))
		}
	}
	return d, w.at, true
}

// out says whether it is left out now.
func (e *endpoint) out(now time.Time) bool { return now.Before(e.until) }

// starting is the part of its weight that it has, while it warms up.
func (e *endpoint) starting(over time.Duration, now time.Time) float64 {
	from := e.since
	if e.until.After(from) {
		from = e.until
	}
	if over <= 0 || from.IsZero() || now.Sub(from) >= over {
		return 1
	}
	return max(leastStart, float64(now.Sub(from))/float64(over))
}

// A report is what an endpoint says of itself, smoothed.
type report struct {
	waiting float64 // requests
	cache   float64 // share of its cache in use
	at      time.Time
	every   time.Duration
}

func (r *report) observe(waiting, cache float64, now time.Time) {
	if !r.fresh(now) {
		r.waiting, r.cache, r.at = waiting, cache, now
		return
	}
	part := 1 - math.Exp(-float64(now.Sub(r.at))/float64(smoothing))
	r.waiting += (waiting - r.waiting) * part
	r.cache += (cache - r.cache) * part
	r.at = now
}

func (r *report) fresh(now time.Time) bool {
	return !r.at.IsZero() && now.Sub(r.at) < max(oldReport, 3*r.every)
}

// queue is how many requests wait at it, by its own word.
func (e *endpoint) queue(now time.Time) float64 {
	if !e.report.fresh(now) {
		return 0
	}
	return e.report.waiting
}

// Above highCache the cache of a model server is about to throw out what running
// requests need; a full one costs fullCost times as much. Guesses.
const (
	highCache = 0.8
	fullCost  = 5
)

// crowded is what its use of its cache multiplies its cost by.
func (e *endpoint) crowded(now time.Time) float64 {
	if !e.report.fresh(now) || e.report.cache <= highCache {
		return 1
	}
	return 1 + (fullCost-1)*(min(e.report.cache, 1)-highCache)/(1-highCache)
}

// begin notes a new attempt.
func (e *endpoint) begin(a *attempt) {
	e.inFlight++
	e.pending++
	a.prev = e.newest
	if e.newest != nil {
		e.newest.next = a
	} else {
		e.oldest = a
	}
	e.newest = a
}

// first takes an attempt out of those that wait for a first byte.
func (e *endpoint) first(a *attempt) {
	if a.came {
		return
	}
	a.came = true
	e.pending--
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		e.oldest = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		e.newest = a.prev
	}
	a.prev, a.next = nil, nil
}
