// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"time"
)

// maxFullAfterFailures bounds how many handshakes in a row take no ticket after
// repeated failures: a server whose resumption is broken costs one failed
// attempt in 65.
const maxFullAfterFailures = 64

// A Handshake is one connection's side of the Store: the ClientSessionCache of
// its tls.Config, which must not be shared with another connection. Tickets
// arrive long after the handshake, so it stays in use as long as its connection
// is.
//
// The owner tells it how the handshake ended: Done, Failed or Unsent.
type Handshake struct {
	s       *Store
	key     Key
	refresh bool
	full    bool // takes no ticket

	// The Store's mu guards the fields below.

	taken    *ticket // until the outcome is known
	offered  bool
	verdict  *verdict
	verified bool // the verdict is this connection's own
}

var _ tls.ClientSessionCache = (*Handshake)(nil)

// Handshake returns the side of a new connection for k.
func (s *Store) Handshake(k Key) *Handshake { return s.handshake(k, false) }

// Refresh is as Handshake, for a connection that is made only to get new
// tickets for a key that is [Store.Expiring]. It does not count as use of the
// key, and is a full handshake where only that makes the verdict about the chain
// younger.
func (s *Store) Refresh(k Key) *Handshake { return s.handshake(k, true) }

// Full is as Handshake, but takes no ticket: for the connection after one that failed
// with a ticket. The tickets that it brings are kept.
func (s *Store) Full(k Key) *Handshake {
	h := s.handshake(k, false)
	h.full = true
	return h
}

func (s *Store) handshake(k Key, refresh bool) *Handshake {
	return &Handshake{s: s, key: k.normal(), refresh: refresh, verdict: &verdict{}}
}

// Get takes the newest ticket of the key; the name that crypto/tls gives is
// ignored. It is called by crypto/tls.
func (h *Handshake) Get(string) (*tls.ClientSessionState, bool) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	e := h.s.entries[h.key]
	if e == nil {
		return nil, false
	}
	now := h.s.cfg.Now()
	h.usedLocked(now)
	if e.full > 0 {
		e.full--
		return nil, false
	}
	if h.full {
		return nil, false
	}
	h.s.dropExpiredLocked(e, now)
	i := e.newest(now)
	if i < 0 || h.refresh && e.tickets[i].limitedByVerdict() {
		return nil, false
	}
	t := e.tickets[i]
	if !t.reusable {
		h.s.removeLocked(e, i) // RFC 8446 appendix C.4
	}
	e.counts.Offered++
	h.taken, h.offered = t, true
	if !h.verified {
		// What a resumed connection brings rests on the same check of the chain.
		h.verdict = &verdict{t.verdict.limited, t.verdict.until}
	}
	return t.state, true
}

// usedLocked returns the entry as the last used one.
func (h *Handshake) usedLocked(now time.Time) *entry {
	e := h.s.entryLocked(h.key)
	if !h.refresh {
		e.used = now
	}
	return e
}

// Put stores a ticket, or voids the one that was taken if cs is nil. It is
// called by crypto/tls.
func (h *Handshake) Put(_ string, cs *tls.ClientSessionState) {
	if cs == nil {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.voidLocked() // h.taken stays, in case that the owner gives it back
		return
	}
	if h.key.ServerName == "" {
		return
	}
	t := newTicket(cs, h.s.cfg.Now(), nil)
	if t == nil {
		return
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	t.verdict = h.verdict
	h.taken = nil
	e := h.s.entryLocked(h.key)
	if e.used.IsZero() {
		e.used = t.received
	}
	e.counts.Stored++
	h.s.addLocked(e, t)
}

// voidLocked takes the session that was offered out of the Store, where one of
// TLS 1.2 still is.
func (h *Handshake) voidLocked() {
	e := h.s.entries[h.key]
	if e == nil || h.taken == nil {
		return
	}
	if i := slices.Index(e.tickets, h.taken); i >= 0 {
		h.s.removeLocked(e, i)
	}
}

// Offered reports whether a ticket was taken. It stays true after a failure.
func (h *Handshake) Offered() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.offered
}

// Verified says that the verdict about the chain of this connection holds until
// then: no ticket of this connection, those before and those to come, is offered
// later. Without it, tickets of a full handshake are limited by their own
// lifetime only, and tickets of a resumed one by the verdict of the session that
// was resumed.
func (h *Handshake) Verified(until time.Time) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.verified = true
	*h.verdict = verdict{limited: true, until: until}
}

// Done says that the handshake succeeded, and whether the server resumed
// (tls.ConnectionState.DidResume).
func (h *Handshake) Done(resumed bool) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.taken = nil
	if h.key.ServerName == "" {
		return
	}
	e := h.usedLocked(h.s.cfg.Now())
	switch {
	case resumed:
		e.counts.Resumed++
		e.streak = 0
		return
	case h.offered:
		e.counts.Refused++
	}
	e.counts.Full++
	if !h.verified {
		*h.verdict = verdict{} // the chain was checked anew
	}
}

// Failed says that the handshake failed. If a ticket was taken, it is gone and
// the next handshake of this key is full, so that a server which cannot stand
// its own tickets does not fail twice.
//
// A handshake that was cancelled (context.Canceled) says nothing about the
// server: the next one takes a ticket as usual, and a session of TLS 1.2 stays.
// A TLS 1.3 ticket does not, because its ClientHello may be on its way: see
// Unsent. The same holds for a tls.ECHRejectionError: the server could not read
// the part of the ClientHello that has the ticket. A deadline that passed counts
// as a failure: a server may hang as well as refuse.
func (h *Handshake) Failed(cause error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if !h.offered {
		return
	}
	if _, unread := errors.AsType[*tls.ECHRejectionError](cause); unread || errors.Is(cause, context.Canceled) {
		if h.taken != nil && h.taken.reusable {
			h.giveBackLocked()
		}
		h.taken = nil
		return
	}
	h.voidLocked()
	h.taken = nil
	e := h.s.entryLocked(h.key)
	e.counts.Failed++
	e.full = max(e.full, min(1<<min(e.streak, 10), maxFullAfterFailures))
	e.streak++
}

// Unsent says that the handshake ended before a single byte was handed to the
// network: the ticket that was taken is put back as if nothing had been. Only
// the owner of the connection can know: it has seen that nothing called Write on
// it (TCP), or that no datagram left (QUIC). A Write that returned an error
// counts as sent unless it says that 0 bytes were taken. It stands for Failed.
func (h *Handshake) Unsent() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.giveBackLocked()
	h.taken = nil
}

// giveBackLocked puts the ticket where it was, by its age.
func (h *Handshake) giveBackLocked() {
	t := h.taken
	if t == nil {
		return
	}
	e := h.s.entryLocked(h.key)
	if slices.Contains(e.tickets, t) {
		return // a session of TLS 1.2 that nothing voided
	}
	if t.reusable && slices.ContainsFunc(e.tickets, func(o *ticket) bool { return o.reusable }) {
		return // a newer one has come
	}
	if len(e.tickets) >= h.s.cfg.MaxTickets || h.s.bytes+t.size > h.s.cfg.MaxBytes {
		return
	}
	i := slices.IndexFunc(e.tickets, func(o *ticket) bool { return o.received.After(t.received) })
	if i < 0 {
		i = len(e.tickets)
	}
	e.tickets = slices.Insert(e.tickets, i, t)
	h.s.bytes += t.size
}
