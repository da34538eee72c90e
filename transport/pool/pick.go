// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"time"
)

// pick returns the best connection that takes the request now, nil if there is
// none. Who is picky does without one that is shared with bulk uploads, if
// another one may be had. The lock is held.
func (p *Pool) pick(want Want, picky bool) *member {
	if !want.H1 {
		if m := p.pickMultiplexed(want, picky); m != nil {
			return m
		}
		if p.proto == multiplexed {
			return nil // the others are for those that need them
		}
	}
	return p.pickFree()
}

// Weights of a choice beside the load, which is far below them.
const (
	withBulk = 1 << 20
	isOld    = 1 << 24
)

// pickMultiplexed chooses by load; what somebody waits for keeps away from bulk
// uploads while it can, and these keep together.
func (p *Pool) pickMultiplexed(want Want, picky bool) *member {
	var best *member
	var bestLoad int
	for _, m := range p.multi {
		if m.suspect || !p.hasRoom(m) || m.hasEnded() {
			continue
		}
		load := m.InFlight() + m.entering
		switch {
		case want.Bulk && m.bulk > 0:
			load -= withBulk
		case !want.Bulk && m.bulk > 0:
			load += withBulk
		}
		if m.old {
			load += isOld
		}
		if best == nil || load < bestLoad {
			best, bestLoad = m, load
		}
	}
	if picky && best != nil && best.bulk > 0 && want.Class == Interactive && !want.Bulk &&
		p.mayOpen(forAny) && !time.Now().Before(p.paused) {
		return nil // one without bulk uploads is worth a handshake
	}
	return best
}

// pickExtended returns the least loaded connection that will do for a tunnel. These last
// for hours, so that they get no more than half of a connection's places: the rest is
// for requests, which could not be had elsewhere once all connections are full of
// tunnels. The lock is held.
func (p *Pool) pickExtended() *member {
	var best *member
	for _, m := range p.multi {
		if e, can := m.Conn.(Extender); !can || m.suspect || m.old || m.bulk > 0 || m.Err() != nil || !e.ExtendedConnect() {
			continue
		}
		load := m.InFlight() + m.entering
		if free := min(m.Available()-m.entering, p.cfg.MaxStreams-load); free <= load {
			continue
		}
		if best == nil || m.InFlight()+m.entering < best.InFlight()+best.entering {
			best = m
		}
	}
	return best
}

// An Ender is a connection that can be asked whether its peer has ended it though nobody
// has read that yet.
type Ender interface{ Ended() bool }

// restedAfter is how long a connection must have been idle to be asked: its reader hears
// of an end within microseconds, except in a process that stood still, as a computer's
// sleep, SIGSTOP or a starved machine make it. A POST would go into the void, and could not
// be sent again.
const restedAfter = 100 * time.Millisecond

func (m *member) hasEnded() bool {
	if m.idleSince.IsZero() || time.Since(m.idleSince) < restedAfter {
		return false
	}
	e, can := m.Conn.(Ender)
	return can && e.Ended()
}

// hasRoom says whether a connection takes one more request.
func (p *Pool) hasRoom(m *member) bool {
	return m.Err() == nil && m.Available()-m.entering > 0 && m.InFlight()+m.entering < p.cfg.MaxStreams
}

// pickFree takes the connection that was used last: its idle time is the
// shortest, and the others can end. Those that the server is about to close are
// not used any more.
func (p *Pool) pickFree() *member {
	for len(p.free) > 0 {
		m := p.free[len(p.free)-1]
		p.free[len(p.free)-1] = nil
		p.free = p.free[:len(p.free)-1]
		m.free = false
		if err := m.Err(); err != nil {
			p.lost(m)
			continue
		}
		if m.suspect || m.Available() <= 0 || m.hasEnded() || p.learned > 0 && time.Since(m.idleSince) > p.learned {
			p.retire(m)
			continue
		}
		return m
	}
	return nil
}

// mayOpen says whether there may be one more connection.
func (p *Pool) mayOpen(kind int) bool {
	if kind == forAny && p.proto != oneByOne {
		if p.proto == unknown {
			return p.opening[forAny] == 0 // what the first one speaks decides
		}
		// Those that are replaced or may be dead do not count, but are bounded too.
		return p.usable()+p.opening[forAny] < p.cfg.MaxConnections && len(p.multi)+p.opening[forAny] < 2*p.cfg.MaxConnections
	}
	return p.single+p.opening[forH1]+p.opening[forAny] < p.cfg.MaxH1Connections
}

// usable is how many multiplexed connections are not under suspicion, and will
// not be replaced.
func (p *Pool) usable() int {
	n := 0
	for _, m := range p.multi {
		if !m.suspect && !m.old {
			n++
		}
	}
	return n
}

// grow opens what the waiters need. The lock is held.
func (p *Pool) grow() {
	var need [2]int
	var first [2]*waiter
	for _, q := range p.queue {
		for _, w := range q {
			k := kindOf(w.want)
			if need[k]++; first[k] == nil {
				first[k] = w
			}
		}
	}
	if p.proto != oneByOne && need[forAny] > 0 {
		c := p.capacity()
		need[forAny] = (need[forAny] + c - 1) / c
	}
	if p.closed {
		return
	}
	for kind, n := range need {
		for n > p.opening[kind] && p.mayOpen(kind) {
			p.open(kind, first[kind].ctx)
		}
	}
}

// capacity is how many requests one more multiplexed connection will take: as
// many as the present ones do, or a hundred, less than which RFC 9113 §6.5.2
// recommends servers not to allow.
func (p *Pool) capacity() int {
	c := min(100, p.cfg.MaxStreams)
	for _, m := range p.multi {
		if n := m.InFlight() + m.Available(); n > 0 {
			c = min(c, n)
		}
	}
	return c
}

// dispatch gives connections to waiters: the urgent first, and every eighth turn
// from the other end, so that nobody starves. The lock is held.
func (p *Pool) dispatch() {
	for range p.waiting() {
		w, class, i := p.next()
		if w == nil {
			return
		}
		m := p.pick(w.want, true)
		if m == nil {
			return
		}
		p.queue[class] = slices.Delete(p.queue[class], i, i+1)
		p.served++
		w.got <- answer{grant: p.enter(m, w.want)}
	}
}

// next is the first waiter in turn that a connection can be had for.
func (p *Pool) next() (*waiter, Class, int) {
	for i := range numClasses {
		class := i
		if p.served%8 == 7 {
			class = numClasses - 1 - i
		}
		for j, w := range p.queue[class] {
			if p.couldPick(w.want) {
				return w, class, j
			}
			if j > 16 { // they are alike; those far behind have their turn later
				break
			}
		}
	}
	return nil, 0, 0
}

// couldPick says whether pick would find something, without taking it.
func (p *Pool) couldPick(want Want) bool {
	if len(p.free) > 0 && (want.H1 || p.proto != multiplexed) {
		return true
	}
	return !want.H1 && p.pickMultiplexed(want, true) != nil
}
