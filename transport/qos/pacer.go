// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"math"
	"net/http"
	"time"

	"github.com/warmwire/warmwire/transport/hints"
)

// Limits of what is believed of an answer.
const (
	longestHold = time.Minute     // then one request tries
	probeEvery  = time.Second     // after a hold, until an answer is good
	forget      = 2 * time.Minute // what a limit was said to be, if no answer says it again
	costPart    = 8               // of what a request takes, each new answer's part
)

// A bucket is one of the provider's limits, followed as the token bucket that it is: it
// fills evenly, and a request takes one, or so many tokens as others took lately.
type bucket struct {
	of      string
	level   float64
	most    float64 // 0 = not said
	rate    float64 // a second
	at      time.Time
	heard   time.Time
	full    time.Time // when nothing is used any more, where the rate is not known
	cost    float64   // of one request; 0 = not known
	request uint64    // whose answer told last, what, and when that had begun
	told    float64
	toldAt  time.Time
}

// A pacer follows what an upstream says of its limits. It is pure policy: time is given.
type pacer struct {
	buckets  []bucket
	hold     time.Time // nothing starts before
	cautious bool      // since the hold no answer was good
	probe    time.Time // then the next request may start while cautious
}

// ready says from when on a request may start; the zero time means now.
func (p *pacer) ready(now time.Time) time.Time {
	at := p.hold
	if p.cautious && now.Sub(p.hold) > longestHold { // nobody knows better by now
		p.cautious = false
	}
	if p.cautious && p.probe.After(at) {
		at = p.probe
	}
	for i := range p.buckets {
		if t := p.buckets[i].ready(now); t.After(at) {
			at = t
		}
	}
	if at.After(now) {
		return at
	}
	return time.Time{}
}

// started takes what a request uses.
func (p *pacer) started(now time.Time) {
	if p.cautious {
		p.probe = now.Add(probeEvery)
	}
	for i := range p.buckets {
		b := &p.buckets[i]
		b.fill(now)
		b.level -= b.price()
	}
}

// refused keeps requests back for as long as the upstream asks.
func (p *pacer) refused(now time.Time, asked time.Duration) {
	until := now.Add(min(asked, longestHold))
	if until.After(p.hold) {
		p.hold = until
	}
	p.cautious = true
}

// answered reads an answer's head. request is the number of its request, begun when that
// started, and last the number of the one that started last.
func (p *pacer) answered(now, begun time.Time, status int, h http.Header, request, last uint64) {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, 529:
		if asked, ok := hints.Asked(status, h, now); ok && asked > 0 {
			p.refused(now, asked)
		}
	default:
		if p.cautious && !begun.Before(p.hold) && status < 500 {
			p.cautious = false
		}
	}
	said := hints.Limits(h, now)
	for _, l := range said.All() {
		p.bucket(l.Of).tell(l, now, begun, request, last)
	}
}

func (p *pacer) bucket(of string) *bucket {
	for i := range p.buckets {
		if p.buckets[i].of == of {
			return &p.buckets[i]
		}
	}
	p.buckets = append(p.buckets, bucket{of: of})
	if of == "requests" {
		p.buckets[len(p.buckets)-1].cost = 1
	}
	return &p.buckets[len(p.buckets)-1]
}

// tell takes what an answer says. Providers count a request when it comes, so that what
// is left is what was left when it began, less what began after it; an answer to an
// older request than the one that told last is of no use.
func (b *bucket) tell(l hints.Limit, now, begun time.Time, request, last uint64) {
	if request < b.request {
		return
	}
	if n := request - b.request; b.request > 0 && n > 0 && b.of != "requests" {
		unused := b.told + b.rate*begun.Sub(b.toldAt).Seconds()
		if l.Most > 0 {
			unused = min(unused, l.Most)
		}
		b.learn((unused - l.Remaining) / float64(n))
	}
	switch used := l.Most - l.Remaining; {
	case l.Most == 0:
		b.rate = 0
	case used > 0 && l.Full > 0:
		b.rate = used / l.Full.Seconds()
	}
	b.most, b.level, b.at, b.heard, b.full = l.Most, l.Remaining, begun, now, now.Add(l.Full)
	b.request, b.told, b.toldAt = request, l.Remaining, begun
	b.fill(now)
	b.level -= b.price() * float64(last-request)
}

// learn takes what each of the last requests took.
func (b *bucket) learn(each float64) {
	switch {
	case each <= 0: // others gave back, or the limit was raised
	case b.cost == 0:
		b.cost = each
	default:
		b.cost += (each - b.cost) / costPart
	}
}

// price is what a request is taken to need.
func (b *bucket) price() float64 {
	c := b.cost
	if c == 0 {
		c = 1
	}
	if b.most > 0 {
		c = min(c, b.most)
	}
	return c
}

// fill brings the level up to date.
func (b *bucket) fill(now time.Time) {
	if dt := now.Sub(b.at).Seconds(); dt > 0 {
		b.level += b.rate * dt
		b.at = now
	}
	if b.rate == 0 && !now.Before(b.full) {
		b.level = max(b.level, b.most)
	}
	if b.most > 0 {
		b.level = min(b.level, b.most)
	}
}

// ready says when there is enough for one more request; a zero or past time is now.
func (b *bucket) ready(now time.Time) time.Time {
	if now.Sub(b.heard) > forget {
		return time.Time{}
	}
	b.fill(now)
	missing := b.price() - b.level
	switch {
	case missing <= 0:
		return time.Time{}
	case b.rate == 0:
		return b.full
	}
	wait := time.Duration(math.Ceil(missing / b.rate * float64(time.Second)))
	return now.Add(min(wait, longestHold))
}
