// SPDX-License-Identifier: Apache-2.0

package ws

import "time"

// recheck is when a leg is looked at again whose ping could not be written yet.
const recheck = time.Second

// tellEvery is how often a policy hears that something was sent to its peer.
const tellEvery = time.Second

// beat asks the policy and does what it says. It runs when the leg's timer fires.
func (r *Relay) beat(l *leg) {
	if !r.enter() {
		return
	}
	defer r.leave()
	ping, dead := l.ask()
	switch {
	case dead:
		r.dead(l)
	case ping:
		l.probe()
	}
}

// ask puts the question and sets the timer for the next one.
func (l *leg) ask() (ping, dead bool) {
	h := &l.pulse
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.paused {
		return false, false
	}
	waits, delay := l.probing()
	if delay > takeover {
		h.policy.Blocked(delay)
	}
	if waits { // the peer cannot answer what it has not got
		h.timer.Reset(recheck)
		return false, false
	}
	now := l.clock.now()
	heard := time.Duration(l.heard.Load())
	ping, dead, due := h.policy.Next(l.clock.time(now), l.clock.time(heard))
	if !due.IsZero() && !dead {
		h.timer.Reset(max(due.Sub(l.clock.time(now)), time.Millisecond))
	}
	return ping, dead
}

// pong takes a pong of the peer and says whether it answers a ping of ours. One
// that does not says no more than any byte.
func (l *leg) pong(payload []byte) (ours bool) {
	rtt, ours := l.answered(payload)
	if ours {
		l.pulse.mu.Lock()
		defer l.pulse.mu.Unlock()
		l.pulse.policy.Pong(time.Now(), rtt)
	}
	return ours
}

// pause stops the questions while the leg is not read.
func (l *leg) pause() {
	l.pulse.mu.Lock()
	defer l.pulse.mu.Unlock()
	l.pulse.paused = true
}

// resume goes on after the leg was not read for d.
func (l *leg) resume(d time.Duration) {
	h := &l.pulse
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = false
	if h.policy != nil {
		h.policy.Blocked(d)
		h.timer.Reset(0)
	}
}

// spoke is called after something was sent to the leg's peer that is no ping.
func (l *leg) spoke() {
	h := &l.pulse
	if h.listener == nil {
		return
	}
	now := l.clock.now()
	if told := time.Duration(h.told.Load()); told != 0 && now-told < tellEvery {
		return
	}
	h.told.Store(int64(now))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listener.Sent(l.clock.time(now))
	if !h.paused && h.timer != nil {
		h.timer.Reset(0)
	}
}
