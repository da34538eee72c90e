// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"time"

	"github.com/warmwire/warmwire/transport/semantics"
)

// Bounds of the windows of what is not interactive, while something interactive
// is open: together they fill the path and no more.
const (
	bulkFloor   = 64 << 10 // bytes on the way for all of them; below that a fast path idles
	bulkUnknown = 128 << 10
	bulkLeast   = 4 << 10 // for one
)

// openWindowLocked gives a new stream its window: what our SETTINGS said (RFC 9113
// §6.9.2), and with the head what the budget allows beyond it. Called with Conn.mu
// held, before anybody else knows s.
func (s *stream) openWindowLocked() {
	cfg := &s.c.cfg
	w := &s.window
	w.open, w.target, w.account = min(firstWindow, cfg.StreamWindow), cfg.StreamWindow, cfg.Budget.Open(0)
	if more := s.affordLocked(s.targetLocked()) - w.open; more > 0 {
		w.open += more
		_ = s.c.fw.WriteWindowUpdate(s.id, uint32(more))
	}
}

// targetLocked is how much may be open and buffered now.
func (s *stream) targetLocked() int {
	c := s.c
	target := int(min(int64(s.window.target), s.window.account.Cap()))
	if s.class == semantics.Interactive || c.urgent.Load() == 0 {
		return target
	}
	share := c.bulkBudget() / max(1, int(c.bulk.Load()))
	return min(target, max(share, bulkLeast))
}

// affordLocked is how much of target the budget has room for. What the peer may send
// already cannot be taken back, so it stays charged until it has been consumed.
func (s *stream) affordLocked(target int) int {
	w := &s.window
	held := max(target, s.buffered+w.open, firstWindow)
	return min(target, firstWindow+int(w.account.Resize(int64(held-firstWindow))))
}

// chargeRestLocked leaves the budget charged with what has still to be read of an
// answer that has ended: no more of it can come.
func (s *stream) chargeRestLocked() {
	s.window.account.Resize(int64(max(0, s.buffered-firstWindow)))
}

// bulkBudget is twice what the path holds.
func (c *Conn) bulkBudget() int {
	rtt, rate := time.Duration(c.rtt.Load()), c.rate.Load()
	if rtt == 0 || rate == 0 {
		return bulkUnknown
	}
	held := float64(rate) * rtt.Seconds()
	return max(bulkFloor, int(min(2*held, maxWindow)))
}

// grantLocked says how much window to return after the app has consumed. It waits
// for a quarter of the target, so that tiny reads cost no frame each.
func (s *stream) grantLocked() int {
	if s.end != nil {
		s.chargeRestLocked()
		return 0
	}
	w := &s.window
	target := s.targetLocked()
	if target-s.buffered-w.open < max(1, target/4) {
		return 0
	}
	grant := s.affordLocked(target) - s.buffered - w.open
	if grant <= 0 {
		return 0
	}
	w.open += grant
	w.given += grant
	if w.given >= w.target {
		s.growLocked()
	}
	return grant
}

// growLocked doubles the window when the app took a whole one within two round
// trips: then the window limits it, not the path or the app.
func (s *stream) growLocked() {
	w := &s.window
	now := time.Now()
	rtt := time.Duration(s.c.rtt.Load())
	if rtt > 0 && !w.since.IsZero() && now.Sub(w.since) < 2*rtt {
		w.target = min(2*w.target, s.c.cfg.MaxStreamWindow)
	}
	w.since, w.given = now, 0
}

// A meter measures the rate at which answers arrive. Owned by the reader.
type meter struct {
	since int64 // UnixNano
	bytes int64
}

const meterSpan = 50 * time.Millisecond // of one reading; a guess

// add counts n bytes that came now. The best of late counts: a pause of the model
// says nothing about the path.
func (m *meter) add(c *Conn, n int) {
	now := c.lastRead.Load()
	span := now - m.since
	if m.since == 0 || span > int64(20*meterSpan) {
		m.since, m.bytes = now, 0
		return
	}
	m.bytes += int64(n)
	if span < int64(meterSpan) {
		return
	}
	rate := m.bytes * int64(time.Second) / span
	old := c.rate.Load()
	c.rate.Store(max(rate, old-old/32))
	m.since, m.bytes = now, 0
}

// A bucket lets the peer send so many frames that carry nothing, and so many a
// second for ever. Owned by the reader.
type bucket struct {
	level int
	last  time.Time
}

const (
	abuseBurst  = 2000 // guesses: an honest peer stays far below
	abuseRefill = 200  // a second
)

// spend takes n and says whether the peer went too far.
func (b *bucket) spend(n int, now time.Time) bool {
	if !b.last.IsZero() {
		if more := int(now.Sub(b.last).Seconds() * abuseRefill); more > 0 {
			b.level, b.last = min(abuseBurst, b.level+more), now
		}
	} else {
		b.last = now
	}
	b.level -= n
	return b.level >= 0
}

// earn gives back for what was useful.
func (b *bucket) earn(n int) { b.level = min(abuseBurst, b.level+n) }
