// SPDX-License-Identifier: Apache-2.0

package netwatch

import (
	"context"
	"time"
)

const (
	// settle is how long after a change the next one still belongs to it: an
	// interface gets its addresses and routes one after the other. A guess.
	settle = 500 * time.Millisecond
	again  = 5 * time.Second // before the kernel is asked anew
	// clockEvery is how often the clocks are compared.
	clockEvery = 5 * time.Second
	// sleptFor is by how much the wall clock must have run ahead to say that the
	// machine slept; clocks are set by less.
	sleptFor = 10 * time.Second
)

// A Watcher waits for changes.
type Watcher struct {
	events chan event    // nil: the system does not tell
	done   chan struct{} // closed when Run ends
	wall   func() time.Time
	again  func() error // subscribes anew; nil = never
}

// An event is one address or default route that is there now, or no more.
type event struct {
	what  string
	there bool
}

// New returns a Watcher that sees the network as its caller's thread does. The
// error says that only sleep will be noticed; the Watcher works nevertheless.
func New() (*Watcher, error) {
	w := &Watcher{done: make(chan struct{}), wall: func() time.Time { return time.Now().Round(0) }}
	err := w.subscribe()
	if err == nil && w.events != nil {
		w.again = w.subscribe
	}
	return w, err
}

// Run calls changed, with what has happened, until ctx ends.
func (w *Watcher) Run(ctx context.Context, changed func(why string)) {
	defer close(w.done)
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	s := state{there: map[string]bool{}, wall: w.wall(), mono: time.Now()}
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.events:
			if !ok { // the kernel's socket broke, as after too much at once
				w.events = nil
				if w.again != nil {
					retry.Reset(again)
				}
				continue
			}
			if s.hear(e) {
				quiet.Reset(settle)
			}
		case <-quiet.C:
			if s.take() {
				changed("addresses or routes of this machine have changed")
			}
		case <-retry.C:
			if err := w.again(); err != nil {
				retry.Reset(again)
				continue
			}
			s.changed = true // what was missed is not known
			quiet.Reset(settle)
		case <-clock.C:
			if s.slept(w.wall(), time.Now()) {
				changed("the machine has slept, or its clock was set")
			}
		}
	}
}

// A state is what is known of the network and the clocks.
type state struct {
	there   map[string]bool
	told    bool // what was there at the beginning has been taken
	changed bool
	wall    time.Time
	mono    time.Time
}

// hear notes an event and says whether it is news.
func (s *state) hear(e event) bool {
	if s.there[e.what] == e.there {
		return false
	}
	if e.there {
		s.there[e.what] = true
	} else {
		delete(s.there, e.what)
	}
	s.changed = true
	return true
}

// take says whether anything has changed since the last call; the first one is
// about what was there already.
func (s *state) take() bool {
	changed := s.changed && s.told
	s.changed, s.told = false, true
	return changed
}

// slept compares the clocks with the last time.
func (s *state) slept(wall, mono time.Time) bool {
	ahead := wall.Sub(s.wall) - mono.Sub(s.mono)
	s.wall, s.mono = wall, mono
	return ahead > sleptFor
}
