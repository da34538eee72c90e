// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"sync"
	"time"
)

// takeover is how long a write may take before another goroutine goes on reading
// for it, and up to twice that in a busy process: long enough that a healthy path
// never needs one, short beside any limit on pongs. A guess.
const takeover = 20 * time.Millisecond

// A Watcher notices writes that are stuck. One serves many relays: a timer for each
// write costs more than the write does in a process that is otherwise idle, because it
// wakes a thread. The zero value is ready. It runs a timer only while something is
// written.
type Watcher struct {
	mu      sync.Mutex // guards the following, and the watched parts of pumps
	writing watched    // the list's root
	timer   *time.Timer
	ticking bool
	used    bool // since the last tick
}

// watched is a pump's place in the list of those that write.
type watched struct {
	next, prev *watched
	pump       *pump
	turn       int // who writes
	old        bool
}

// begin is told before a write that may be stuck.
func (w *Watcher) begin(p *watched, turn int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used = true
	p.turn, p.old = turn, !w.ticking
	if w.writing.next == nil {
		w.writing.next, w.writing.prev = &w.writing, &w.writing
	}
	p.prev, p.next = w.writing.prev, &w.writing
	p.prev.next, p.next.prev = p, p
	if w.ticking {
		return
	}
	w.ticking = true
	if w.timer == nil {
		w.timer = time.AfterFunc(takeover, w.tick)
	} else {
		w.timer.Reset(takeover)
	}
}

// end is told when it has returned.
func (w *Watcher) end(p *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(p)
}

func (w *Watcher) removeLocked(p *watched) {
	if p.next != nil {
		p.prev.next, p.next.prev = p.next, p.prev
		p.next, p.prev = nil, nil
	}
}

// tick hands over the role of those that were there a whole period ago.
func (w *Watcher) tick() {
	type stuck struct {
		p    *pump
		turn int
	}
	var all []stuck
	w.mu.Lock()
	for p := w.writing.next; p != &w.writing; {
		next := p.next
		if p.old {
			all = append(all, stuck{p.pump, p.turn})
			w.removeLocked(p)
		}
		p.old = true
		p = next
	}
	w.ticking = w.used || w.writing.next != &w.writing
	w.used = false
	if w.ticking {
		w.timer.Reset(takeover)
	}
	w.mu.Unlock()
	for _, s := range all {
		s.p.takeOver(s.turn)
	}
}
