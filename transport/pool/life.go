// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"time"
)

// Pauses between attempts to open a connection ahead of need.
const (
	pauseMin = 250 * time.Millisecond
	pauseMax = 30 * time.Second
)

// open opens a connection in the background. The lock is held.
func (p *Pool) open(kind int, values context.Context) {
	p.opening[kind]++
	p.work.Go(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(values))
		defer cancel()
		stop := context.AfterFunc(p.ctx, cancel)
		defer stop()
		m := &member{opened: time.Now()}
		ready := make(chan struct{}) // m is whole
		conn, info, err := p.cfg.Open(ctx, kind == forH1, func() {
			select {
			case <-ready:
				p.changed(m)
			default: // opened looks anyway
			}
		})
		if m.Conn, m.info = conn, info; err == nil {
			close(ready) // else what Open has begun may still call
		}
		p.opened(kind, m, err)
	})
}

// opened takes a new connection in, or tells those who waited for it why not.
func (p *Pool) opened(kind int, m *member, err error) {
	p.mu.Lock()
	p.opening[kind]--
	switch {
	case err != nil:
		p.failed(kind, err)
		if !p.closed {
			p.dispatch() // who wanted something better takes what there is
		}
	case p.closed:
		p.mu.Unlock()
		_ = m.Close()
		return
	default:
		p.resume()
		if kind == forAny {
			if p.proto = oneByOne; m.info.Multiplexed {
				p.proto = multiplexed
			}
		}
		m.idleSince = time.Now()
		p.members[m] = true
		switch {
		case m.info.Multiplexed:
			full := p.usable() >= p.cfg.MaxConnections // opened when it was not known to be multiplexed
			if p.multi = append(p.multi, m); full {
				p.retire(m)
			}
		case p.single >= p.cfg.MaxH1Connections: // it was opened to see what the origin speaks
			p.single++
			p.retire(m)
		default:
			p.single++
			m.free = true
			p.free = append(p.free, m)
		}
		p.replaced()
		p.dispatch()
		p.grow() // now that it is known what the origin speaks
	}
	p.schedule()
	p.mu.Unlock()
	if err == nil {
		p.changed(m) // it may have ended already
	}
}

// backOff puts off what is opened ahead of need, each time for longer. What failed long
// ago says nothing any more. The lock is held.
func (p *Pool) backOff() {
	now := time.Now()
	if now.Sub(p.paused) > pauseMax {
		p.pause = 0
	}
	p.pause = min(max(2*p.pause, pauseMin), pauseMax)
	p.paused = now.Add(p.pause/2 + rand.N(p.pause/2+1))
}

// resume ends a pause, since a connection could be opened. How long the pause was is not
// forgotten yet: what accepts connections may still be a proxy without a server behind it.
// The lock is held.
func (p *Pool) resume() {
	if now := time.Now(); now.Before(p.paused) {
		p.paused = now
	}
}

// lost takes out a connection that has ended by itself. The lock is held.
func (p *Pool) lost(m *member) {
	if p.learn(m); m.stillborn() {
		p.backOff()
	}
	p.retire(m)
}

// stillborn says whether a connection has ended before it was of any use: it was asked
// for nothing, and lasted for less than servers keep an idle one.
func (m *member) stillborn() bool { return !m.used && time.Since(m.opened) < idleLimitMin }

// failed gives up those whom nothing else will serve: no connection that there
// is, and none that is being opened. The lock is held.
func (p *Pool) failed(kind int, err error) {
	p.backOff()
	give := p.waiting()
	if p.opening[kind] > 0 {
		if kind == forAny && p.proto != oneByOne {
			return // it will serve all of them
		}
		give = 1 // each of those that are open now serves one
	}
	for class := numClasses; class > 0 && give > 0; class-- {
		q := p.queue[class-1]
		p.queue[class-1] = slices.DeleteFunc(q, func(w *waiter) bool {
			if give == 0 || kindOf(w.want) != kind || p.canServe(w.want) {
				return false
			}
			give--
			w.got <- answer{err: err}
			return true
		})
	}
}

// canServe says whether a connection that there is will serve such a request,
// now or when it has room.
func (p *Pool) canServe(want Want) bool {
	if !want.H1 && slices.ContainsFunc(p.multi, func(m *member) bool { return !m.suspect && m.Err() == nil }) {
		return true
	}
	return p.single > 0 && (want.H1 || p.proto == oneByOne)
}

// changed looks at a connection that may have become free, or have ended.
func (p *Pool) changed(m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := m.Err(); err != nil && !m.gone {
		p.lost(m)
	}
	busy := m.InFlight() > 0 || m.entering > 0
	if !busy && !m.gone && (p.closed || m.old && !m.info.Multiplexed) {
		p.retire(m)
	}
	switch {
	case m.gone:
		if !busy {
			delete(p.leaving, m)
		}
	case busy:
		m.idleSince = time.Time{}
	default:
		if m.idleSince.IsZero() {
			m.idleSince = time.Now()
		}
		if m.used {
			p.pause = 0
		}
		if !m.info.Multiplexed && !m.free && m.Available() > 0 {
			m.free = true
			p.free = append(p.free, m)
		}
	}
	if p.waiting() > 0 {
		p.dispatch()
		p.grow()
	}
	if p.retired && m.InFlight() == 0 && m.entering == 0 && p.waiting() == 0 {
		p.retire(m)
	}
	if m.gone || !p.armed || p.keep > 0 && p.ready() < p.keep {
		p.schedule()
	}
}

// learn remembers how long the server keeps an idle connection, from one that it
// closed. The lock is held.
func (p *Pool) learn(m *member) {
	if m.idleSince.IsZero() || m.suspect {
		return
	}
	if idle := time.Since(m.idleSince); idle >= idleLimitMin && (p.learned == 0 || idle*4/5 < p.learned) {
		p.learned = idle * 4 / 5
	}
}

// idleLimitMin is the shortest idle limit that is believed: what ends sooner did
// not end for being idle, a server that restarts say.
const idleLimitMin = 5 * time.Second

// retire takes a connection out: it serves nothing new. Its Shutdown is called
// without the lock, soon. The lock is held.
func (p *Pool) retire(m *member) {
	if m.gone {
		return
	}
	m.gone = true
	if m.info.Multiplexed {
		p.multi = slices.DeleteFunc(p.multi, func(o *member) bool { return o == m })
	} else {
		p.single--
		if m.free {
			p.free = slices.DeleteFunc(p.free, func(o *member) bool { return o == m })
			m.free = false
		}
	}
	delete(p.members, m)
	p.leaving[m] = true
	go func() { // it may call changed at once
		m.Shutdown()
		p.changed(m)
	}()
}

// replaced retires what a new connection has replaced. The lock is held.
func (p *Pool) replaced() {
	for _, m := range slices.Concat(p.multi, p.free) {
		if m.old {
			p.retire(m)
		}
	}
}

// schedule keeps the timer for what is due next: the end of idle connections, and
// the opening of those that are kept ready. The lock is held.
func (p *Pool) schedule() {
	if p.closed {
		return
	}
	now := time.Now()
	next := p.expire(now)
	if d := p.refill(now); d > 0 && (next == 0 || d < next) {
		next = d
	}
	p.armed = next > 0
	switch {
	case next == 0:
		if p.tick != nil {
			p.tick.Stop()
		}
	case p.tick == nil:
		p.tick = time.AfterFunc(next, p.onTick)
	default:
		p.tick.Reset(next)
	}
}

func (p *Pool) onTick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = false
	p.schedule()
}

// expire retires what was idle for too long, and returns when the next one is
// due. Those that are kept ready end only before the server's own limit, and
// only once they are replaced.
func (p *Pool) expire(now time.Time) (next time.Duration) {
	limit := p.cfg.IdleTimeout
	if p.learned > 0 {
		limit = min(limit, p.learned)
	}
	ready := len(p.multi) + len(p.free)
	for _, list := range [][]*member{slices.Clone(p.multi), slices.Clone(p.free)} {
		for _, m := range list {
			if m.idleSince.IsZero() || m.entering > 0 || m.old {
				continue
			}
			kept := ready <= p.keep
			if kept && p.learned == 0 {
				continue
			}
			left := limit - now.Sub(m.idleSince)
			if kept {
				left = p.learned - now.Sub(m.idleSince)
			}
			switch {
			case left > 0:
				if next == 0 || left < next {
					next = left
				}
			case kept:
				m.old = true
				p.learned += p.learned / 16 // it may have grown: the next one tries
			default:
				p.retire(m)
				ready--
			}
		}
	}
	return next
}

// ready is how many connections would take a request now, or soon.
func (p *Pool) ready() int {
	n := p.opening[forAny]
	for _, m := range p.multi {
		if !m.suspect && !m.old && p.hasRoom(m) {
			n++
		}
	}
	if p.proto != multiplexed {
		for _, m := range p.free {
			if !m.old {
				n++
			}
		}
	}
	return n
}

// refill opens what is missing of the connections that are kept ready, and
// returns when to look again.
func (p *Pool) refill(now time.Time) time.Duration {
	ready := p.ready()
	if ready >= p.keep {
		return 0
	}
	if now.Before(p.paused) {
		return p.paused.Sub(now)
	}
	for ; ready < p.keep && p.mayOpen(forAny); ready++ {
		p.open(forAny, p.ctx)
	}
	return 0
}

// Keep keeps n connections ready from now on; 0 none.
func (p *Pool) Keep(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.retired {
		p.keep = n
	}
	p.schedule()
}

// Retire keeps nothing from now on: each connection closes when its last answer has
// ended, those that are idle at once. Requests that come nevertheless are served.
func (p *Pool) Retire() {
	p.mu.Lock()
	p.retired, p.keep = true, 0
	p.mu.Unlock()
	p.CloseIdle()
}

// Suspect keeps new requests away from a connection until [Pool.Clear].
func (p *Pool) Suspect(c Conn) { p.mark(c, true) }

// Clear lets requests use a connection again.
func (p *Pool) Clear(c Conn) { p.mark(c, false) }

func (p *Pool) mark(c Conn, suspect bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for m := range p.members {
		if m.Conn == c && m.suspect != suspect {
			m.suspect = suspect
			if !suspect {
				p.dispatch()
			} else {
				p.grow()
			}
			p.schedule()
		}
	}
}

// Renew replaces all connections: the network is another one. Those that are
// kept ready serve until new ones are there; what is in flight goes on.
func (p *Pool) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learned, p.paused, p.pause = 0, time.Time{}, 0
	for m := range p.members {
		m.old = true
	}
	if p.keep == 0 {
		p.replaced()
	}
	p.schedule()
}

// CloseIdle closes what serves nothing now.
func (p *Pool) CloseIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range slices.Concat(p.multi, p.free) {
		if !m.idleSince.IsZero() && m.entering == 0 {
			p.retire(m)
		}
	}
}

// A ConnState is one connection for people to look at.
type ConnState struct {
	Protocol string
	Age      time.Duration
	Idle     time.Duration // 0 while it serves something
	InFlight int
	Suspect  bool     // it does not answer a probe
	Leaving  bool     // it takes no more requests
	Net      net.Conn // under TLS; nil = it has none of its own
}

// A State is a pool for people to look at.
type State struct {
	Conns   []ConnState // the oldest first
	Opening int
	Waiting int
	Keep    int           // connections kept ready
	Learned time.Duration // the server's idle limit, as far as known
}

// State returns what there is now.
func (p *Pool) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := State{Opening: p.opening[forAny] + p.opening[forH1], Waiting: p.waiting(), Keep: p.keep, Learned: p.learned}
	now := time.Now()
	for _, list := range []map[*member]bool{p.members, p.leaving} {
		for m := range list {
			c := ConnState{Protocol: m.info.Protocol, Age: now.Sub(m.opened), InFlight: m.InFlight(), Suspect: m.suspect, Leaving: m.gone || m.old}
			if !m.idleSince.IsZero() {
				c.Idle = now.Sub(m.idleSince)
			}
			if n, ok := m.Conn.(interface{ NetConn() net.Conn }); ok {
				c.Net = n.NetConn()
			}
			s.Conns = append(s.Conns, c)
		}
	}
	slices.SortFunc(s.Conns, func(a, b ConnState) int { return cmp.Compare(b.Age, a.Age) })
	return s
}

// Idle says whether nothing is open, in flight or asked for.
func (p *Pool) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.multi) == 0 && p.single == 0 && len(p.leaving) == 0 && p.waiting() == 0 && p.opening == [2]int{}
}

// Close takes no more requests, fails those that wait, and lets what is in flight
// end. It returns when nothing is being opened any more.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	if p.tick != nil {
		p.tick.Stop()
	}
	for class, q := range p.queue {
		for _, w := range q {
			w.got <- answer{err: errClosed}
		}
		p.queue[class] = nil
	}
	for _, m := range slices.Concat(p.multi, p.free) {
		p.retire(m)
	}
	p.mu.Unlock()
	p.cancel()
	p.work.Wait()
}
