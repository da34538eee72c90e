// SPDX-License-Identifier: Apache-2.0

package pool

import "time"

// pick returns the best connection that takes the request now, nil if there is
// none. The lock is held.
func (p *Pool) pick(want Want) *member {
	if !want.H1 {
		if m := p.pickMultiplexed(want); m != nil {
			return m
		}
		if p.proto == multiplexed {
			return nil // the others are for those that need them
		}
	}
	return p.pickFree()
}

// pickMultiplexed chooses by load; what somebody waits for keeps away from bulk
// uploads while it can, and these keep together.
func (p *Pool) pickMultiplexed(want Want) *member {
	var best *member
	var bestLoad int
	for _, m := range p.multi {
		if m.suspect || m.Err() != nil {
			continue
		}
		load := m.InFlight() + m.entering
		if m.Available()-m.entering <= 0 || load >= p.cfg.MaxStreams {
			continue
		}
		bulk := m.bulk.Load() > 0
		switch {
		case want.Bulk && bulk:
			load -= 1 << 20
		case !want.Bulk && bulk:
			load += 1 << 20
		}
		if best == nil || load < bestLoad {
			best, bestLoad = m, load
		}
	}
	if best != nil && bestLoad >= 1<<20 && want.Class == Interactive && p.mayOpen(forAny) {
		return nil // one without bulk uploads is worth a handshake
	}
	return best
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
		if m.suspect || m.Err() != nil || m.Available() <= 0 || p.learned > 0 && time.Since(m.idleSince) > p.learned {
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
		return p.usable()+p.opening[forAny] < p.cfg.MaxConnections
	}
	return p.single+p.opening[forH1]+p.opening[forAny] < p.cfg.MaxH1Connections
}

// usable is how many multiplexed connections are not under suspicion.
func (p *Pool) usable() int {
	n := 0
	for _, m := range p.multi {
		if !m.suspect {
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
		// One connection takes a hundred of them (RFC 9113 §6.5.2 recommends
		// servers not to allow less).
		need[forAny] = (need[forAny] + 99) / 100
	}
	for kind, n := range need {
		for n > p.opening[kind] && p.mayOpen(kind) {
			p.open(kind, first[kind].ctx)
		}
	}
}

// dispatch gives connections to waiters: the urgent first, and every eighth turn
// from the other end, so that nobody starves. The lock is held.
func (p *Pool) dispatch() {
	for range p.waiting() {
		w, class, i := p.next()
		if w == nil {
			return
		}
		m := p.pick(w.want)
		if m == nil {
			return
		}
		p.queue[class] = append(p.queue[class][:i], p.queue[class][i+1:]...)
		p.served++
		p.enter(m)
		w.got <- answer{m: m}
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
	return !want.H1 && p.pickMultiplexed(want) != nil
}
