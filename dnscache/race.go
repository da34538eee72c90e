// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

const (
	// lookupLimit bounds what one server is given, search list and all.
	lookupLimit = 10 * time.Second
	// maxFlights bounds the lookups on their way; further ones fail at once.
	maxFlights = 1024
	// maxReruns is how often a flight begins anew because the network changed
	// under it.
	maxReruns = 2
	// deadWait is the delay between servers that are all thought dead.
	deadWait = 50 * time.Millisecond
)

// A flight is one lookup on its way, for all who wait for it. It belongs to none
// of them, so it goes on when they leave.
type flight struct {
	explore bool   // nobody waits
	without string // this server is not asked

	done   chan struct{} // closed once the fields below are set
	landed bool          // guarded by Resolver.mu
	view   *view         // nil if there was no answer
	err    *net.DNSError // then
}

var (
	errClosed   = errors.New("the resolver is closed")
	errTooMany  = fmt.Errorf("%d lookups are on their way already", maxFlights)
	errRestless = errors.New("the network kept changing")
	errNoOne    = errors.New("no resolver may be asked for it: list dns.resolvers, or see whether resolv.conf points to ourselves")
)

// startLocked begins a flight, or returns the one that is on its way.
func (r *Resolver) startLocked(e *entry, f *flight) (*flight, error) {
	switch {
	case e.flight != nil:
		return e.flight, nil
	case r.closed:
		return nil, errClosed
	case r.flights >= maxFlights:
		return nil, errTooMany
	}
	f.done = make(chan struct{})
	e.flight = f
	e.epoch++
	r.flights++
	if f.explore {
		r.refreshes++
	}
	epoch := e.epoch
	r.running.Go(func() { r.fly(e, f, epoch) })
	return f, nil
}

func (r *Resolver) fly(e *entry, f *flight, epoch uint32) {
	for try := 0; ; try++ {
		r.mu.Lock()
		gen := r.gen
		asked := e.wants(r.now())
		turns, dead := r.planLocked(e, f.explore)
		r.mu.Unlock()
		c := &race{
			r: r, e: e, f: f, epoch: epoch, gen: gen, asked: asked, dead: dead,
			results: make(chan outcome, 2*len(turns)),
		}
		for _, t := range turns {
			if t.server.name != f.without {
				c.turns = append(c.turns, t)
			}
		}
		if c.run() {
			return
		}
		if try == maxReruns {
			c.giveUp(errRestless)
			return
		}
	}
}

// A race is one try of a flight.
type race struct {
	r       *Resolver
	e       *entry
	f       *flight
	epoch   uint32
	gen     uint64
	asked   partSet
	turns   []turn
	dead    bool // all of them are thought to be
	results chan outcome

	// Owned by run.
	next    int // turn to take
	pending map[int]int
	settled *outcome // what the flight landed with
	held    *outcome // a negative answer that a better tier may yet correct
	failed  *outcome // with the error to tell
}

// run returns false if the flight has to begin anew. Servers that lose are not
// told: their answers teach how fast they are, and whether they live.
func (c *race) run() bool {
	if len(c.turns) == 0 {
		c.giveUp(errNoOne)
		return true
	}
	c.pending = make(map[int]int, len(c.turns)) // of tiers
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if c.next > 0 && c.settled == nil && !c.dead {
				c.turns[c.next-1].server.overdue()
			}
			c.take(timer)
		case o := <-c.results:
			if o.final {
				c.leave(o.turn.tier)
			}
			if fresh := c.hear(o); !fresh {
				return false
			}
			if o.final && o.verdict() != verdictNegative {
				c.take(timer) // no need to wait for the next one
			}
			if c.over() {
				return true
			}
		}
	}
}

// take asks the next server.
func (c *race) take(timer *time.Timer) {
	if c.settled != nil || c.next == len(c.turns) {
		return
	}
	t := c.turns[c.next]
	c.next++
	c.pending[t.tier]++
	c.r.running.Go(func() {
		ctx, cancel := context.WithTimeout(c.r.life, lookupLimit)
		defer cancel()
		c.r.attempt(ctx, t, c.asked, func(o outcome) { c.results <- o })
	})
	if c.next < len(c.turns) {
		wait := t.wait(c.turns[c.next])
		if c.dead {
			wait = deadWait
		}
		timer.Reset(wait)
	}
}

func (c *race) leave(tier int) {
	if c.pending[tier]--; c.pending[tier] == 0 {
		delete(c.pending, tier)
	}
}

// betterThan reports whether a server of a better tier may still answer.
func (c *race) betterThan(tier int) bool {
	for t := range c.pending {
		if t < tier {
			return true
		}
	}
	return false
}

// hear acts on an outcome. It returns false if the network has changed since the
// flight began and the outcome says nothing any more.
func (c *race) hear(o outcome) (fresh bool) {
	switch {
	case c.settled != nil:
		// The same server completes its answer, or a better one speaks late.
		if o.verdict() == verdictFailed || o.turn.server != c.settled.turn.server && o.turn.tier >= c.settled.turn.tier {
			return true
		}
		c.r.improve(c, o)
		c.settled = &o
		return true
	case o.verdict() == verdictFailed || c.r.isShunned(c.e, &o):
		if c.failed == nil || o.turn.tier < c.failed.turn.tier {
			c.failed = &o
		}
		fresh = true
	case o.verdict() == verdictNegative && c.betterThan(o.turn.tier):
		if c.held == nil || o.turn.tier < c.held.turn.tier {
			c.held = &o
		}
		fresh = true
	default:
		return c.settle(o)
	}
	if c.held != nil && !c.betterThan(c.held.turn.tier) {
		return c.settle(*c.held)
	}
	if len(c.pending) == 0 && c.next == len(c.turns) {
		return c.settleFailed()
	}
	return fresh
}

func (c *race) settle(o outcome) bool {
	c.settled = &o
	return c.r.settle(c, o)
}

func (c *race) settleFailed() bool {
	c.settled = c.failed
	return c.r.settleFailed(c)
}

// over reports whether nothing more can come that matters.
func (c *race) over() bool {
	if c.settled == nil {
		return false
	}
	if len(c.pending) == 0 {
		return true
	}
	_, same := c.pending[c.settled.turn.tier]
	complete := c.settled.final || !same
	return complete && !c.betterThan(c.settled.turn.tier)
}

func (c *race) giveUp(err error) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.failLocked(c, err)
}

// landLocked ends a flight for all who wait for it.
func (r *Resolver) landLocked(e *entry, f *flight, v *view, err error) {
	if f.landed {
		return
	}
	f.landed = true
	f.view = v
	if v == nil {
		f.err = dnsError(e.key, err)
	}
	if e.flight == f {
		e.flight = nil
	}
	r.flights--
	if f.explore {
		r.refreshes--
		r.poke()
	}
	close(f.done)
}

// isShunned reports whether all addresses of an outcome are not believed.
func (r *Resolver) isShunned(e *entry, o *outcome) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.shun == nil || o.verdict() != verdictPositive {
		return false
	}
	now := r.now()
	for _, which := range [2]int{partA, partAAAA} {
		if p := &o.parts[which]; p.state == partGood && !e.shuns(p.addrs, now) {
			return false
		}
	}
	o.err = errShunned
	return true
}

var errShunned = errors.New("it gives only addresses that showed a certificate for another name")

// probe asks a dead server what it failed to answer.
func (r *Resolver) probe(s *server, q exchange.Question) {
	s.start()
	begun := r.now()
	_, err := s.x.Exchange(r.life, q)
	now := r.now()
	if err == nil {
		r.noteSuccess(s, now, now-begun)
	} else {
		s.failedWith(now, q, err)
	}
	s.probed(now)
	r.poke()
}
