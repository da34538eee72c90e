// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"slices"
	"time"
)

// A bond binds a request to an endpoint.
type bond struct {
	hash uint64
	set  bool
}

// pickLocked chooses an endpoint for an attempt of c, which may be nil.
func (t *Transport) pickLocked(now time.Time, b bond, c *call) *endpoint {
	t.picks++
	t.gatherLocked(now, c)
	if len(t.able) == 1 {
		return t.able[0].e
	}
	if b.set {
		return t.boundLocked(b.hash)
	}
	switch t.cfg.Algorithm {
	case RoundRobin:
		return t.nextLocked(now)
	case LeastRequest:
		return t.fewerLocked(now)
	default:
		return t.soonerLocked(now)
	}
}

// An able endpoint may be chosen, with the weight that it has now.
type able struct {
	e      *endpoint
	weight float64
}

// gatherLocked collects those that may be chosen: in service and not tried in this call;
// else those in service; else whatever is not drained.
func (t *Transport) gatherLocked(now time.Time, c *call) {
	t.able = t.able[:0]
	went, tried := c.attempts(), false // there is one in service that was
	for _, e := range t.endpoints {
		switch {
		case e.drain || e.out(now):
		case slices.Contains(went, e):
			tried = true
		default:
			t.able = append(t.able, able{e, e.weight * e.starting(t.cfg.SlowStart, now)})
		}
	}
	if len(t.able) > 0 {
		return
	}
	for _, e := range t.endpoints {
		if !e.drain && (!tried || !e.out(now)) {
			t.able = append(t.able, able{e, e.weight})
		}
	}
	if len(t.able) == 0 { // all are drained, which no configuration says
		t.able = append(t.able, able{t.endpoints[0], 1})
	}
}

// nextLocked is nginx's smooth weighted round-robin: each gains its weight, the richest
// is taken and pays the sum.
func (t *Transport) nextLocked(now time.Time) *endpoint {
	var best *endpoint
	sum := 0.0
	for _, a := range t.able {
		w := a.weight / ((1 + a.e.queue(now)) * a.e.crowded(now))
		a.e.current += w
		sum += w
		if best == nil || a.e.current > best.current {
			best = a.e
		}
	}
	best.current -= sum
	return best
}

// twoLocked draws two different ones by weight.
func (t *Transport) twoLocked() (first, second able) {
	i := t.drawLocked(-1)
	return t.able[i], t.able[t.drawLocked(i)]
}

// drawLocked draws one by weight, and not the one at place without.
func (t *Transport) drawLocked(without int) int {
	sum, last := 0.0, 0
	for i, a := range t.able {
		if i != without {
			sum += a.weight
			last = i
		}
	}
	at := t.cfg.Rand() * sum
	for i, a := range t.able {
		if i == without {
			continue
		}
		if at -= a.weight; at < 0 {
			return i
		}
	}
	return last // of rounding
}

// fewerLocked takes of two the one with fewer requests for its weight, those that it
// says it has waiting among them. If they are even it is the first, so that an idle
// upstream is used by weight.
func (t *Transport) fewerLocked(now time.Time) *endpoint {
	a, b := t.twoLocked()
	load := func(a able) float64 {
		return (float64(a.e.inFlight) + a.e.queue(now)) * a.e.crowded(now) / a.weight
	}
	if load(b) < load(a) {
		return b.e
	}
	return a.e
}

// soonerLocked takes of two the one that is expected to give its first byte sooner: what
// was learned, and more if more requests than usual wait for one already.
func (t *Transport) soonerLocked(now time.Time) *endpoint {
	a, b := t.twoLocked()
	ca, cb := t.costLocked(a, now), t.costLocked(b, now)
	if cb < ca {
		a, b = b, a
	}
	if t.lookLocked(b.e, now) {
		return b.e
	}
	if len(t.able) == few { // the third may be better than both
		for _, c := range t.able {
			if c.e != a.e && c.e != b.e && t.costLocked(c, now) < min(ca, cb) {
				return c.e
			}
		}
	}
	return a.e
}

// few endpoints are compared all: if one of three is slow, every third pair would leave
// no choice but the second best.
const few = 3

// costLocked is the time that a further request is expected to wait.
func (t *Transport) costLocked(a able, now time.Time) float64 {
	e := a.e
	d, _, ok := e.expects(t.streams, now)
	if !ok && e.pending == 0 { // one request finds out
		return 0
	}
	if !ok {
		return math.MaxFloat64 / 4 * (1 - 1/(float64(e.pending)+1))
	}
	return float64(d) * e.penalty(now) * e.crowded(now) / a.weight
}

// lookLocked says whether e, which would not be chosen, gets a request nevertheless, to
// learn whether it has become better.
func (t *Transport) lookLocked(e *endpoint, now time.Time) bool {
	_, at, ok := e.expects(t.streams, now)
	if !ok || e.pending > 0 || now.Sub(at) < staleAfter || t.picks-t.looked < lookEvery {
		return false
	}
	t.looked = t.picks
	return true
}

// boundLocked is weighted rendezvous hashing with bounded load: each endpoint has a score
// for each value, and the best of those counts that have no more requests than Bound
// times their fair share. If an endpoint goes, only what it had moves.
func (t *Transport) boundLocked(hash uint64) *endpoint {
	sum, all := 0.0, 0
	for _, a := range t.able {
		sum += a.weight
		all += a.e.inFlight
	}
	var best, free *endpoint
	var bestScore, freeScore float64
	for _, a := range t.able {
		// -w/ln(u) for u uniform in (0, 1): the odds of the highest score are the weights.
		u := (float64(mix(hash^a.e.hash)>>11) + 0.5) / (1 << 53)
		score := -a.e.weight / math.Log(u)
		if best == nil || score > bestScore {
			best, bestScore = a.e, score
		}
		room := math.Ceil(t.cfg.Bound * float64(all+1) * a.weight / sum)
		if float64(a.e.inFlight)+1 <= room && (free == nil || score > freeScore) {
			free, freeScore = a.e, score
		}
	}
	if free != nil {
		return free
	}
	return best
}

// hashOf is FNV-1a, the same in every process: after a restart, and in the sidecar next
// door, a value leads to the same endpoint.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h ^= uint64(s[i])
		h *= 1099511628211
	}
	return mix(h)
}

// mix spreads the bits of h (the finalizer of splitmix64).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
