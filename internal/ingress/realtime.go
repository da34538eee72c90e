// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
)

// A WarningReason says how it is known that a realtime session ends.
type WarningReason string

// The reasons. They are also metric labels.
const (
	WarnClock     WarningReason = "clock"     // it is as old as its API lets sessions become, but for a few minutes
	WarnAnnounced WarningReason = "announced" // the server said at its start when it ends
	WarnGoAway    WarningReason = "go_away"   // the server says that it ends now
	WarnExpired   WarningReason = "expired"   // the server has ended it
)

// A SessionWarning tells of a realtime session that ends by itself.
type SessionWarning struct {
	ID       uint64 // as in the access log
	Upstream string
	Session  SessionInfo
	Reason   WarningReason
	Left     time.Duration // until its end; below zero = not known
}

// A SessionInfo is what is known of a realtime session.
type SessionInfo struct {
	API       dialect.Realtime
	Ends      time.Time // zero = not known
	Resumable string    // whether the server would take it up again: yes, no, or "" if it has not said
}

// longestSession bounds what is believed of a server's word on when a session ends: no
// API is known to let one last longer than hours.
const longestSession = 24 * time.Hour

// A sessionWatch follows how long the realtime session on one WebSocket lasts. Its end
// is known by the clock, by what the server says, or by both; each reason is given once.
type sessionWatch struct {
	id       uint64
	upstream string
	api      dialect.Realtime
	warn     func(SessionWarning) // nil = nobody wants to know

	running sync.WaitGroup // of the timer, while it is set or its function runs

	mu        sync.Mutex // guards the following
	ends      time.Time
	by        WarningReason // how ends is known
	resumable string
	timer     *time.Timer // gives the warning ahead of ends; nil = none was set
	told      map[WarningReason]bool
	over      bool
}

// watchSession follows the session that begins now; nil if this is none.
func (e *exchange) watchSession() *sessionWatch {
	u := e.rt.upstream
	if u == nil {
		return nil
	}
	api := dialect.DetectRealtime(u.Dialect, e.rt.path)
	if api == dialect.NoRealtime {
		return nil
	}
	w := &sessionWatch{id: e.rec.ID, upstream: u.Name, api: api, warn: e.s.cfg.Hooks.SessionEnds, told: map[WarningReason]bool{}}
	if limit := api.Limit(); limit > 0 {
		w.mu.Lock()
		w.endsLocked(time.Now().Add(limit), WarnClock)
		w.mu.Unlock()
	}
	e.live.realtime.Store(w)
	return w
}

// show is for ws.Config.Show.
func (w *sessionWatch) show() func(message []byte) {
	if w == nil {
		return nil
	}
	return func(message []byte) {
		if n, ok := w.api.Read(message); ok {
			w.notice(n)
		}
	}
}

// notice takes what the server has said.
func (w *sessionWatch) notice(n dialect.Notice) {
	now := time.Now()
	w.mu.Lock()
	switch n.Kind {
	case dialect.Expires:
		if n.At.After(now) && n.At.Before(now.Add(longestSession)) {
			w.endsLocked(n.At, WarnAnnounced)
		}
	case dialect.GoAway:
		if n.Left >= 0 && n.Left < longestSession {
			w.ends = now.Add(n.Left)
		}
		w.tell(WarnGoAway)
		return
	case dialect.Expired:
		w.ends = now
		w.tell(WarnExpired)
		return
	case dialect.Resumable:
		w.resumable = "no"
		if n.Resumable {
			w.resumable = "yes"
		}
	}
	w.mu.Unlock()
}

// endsLocked sets the timer for the warning, unless it was given.
func (w *sessionWatch) endsLocked(at time.Time, by WarningReason) {
	w.ends, w.by = at, by
	if w.over || w.timer != nil && !w.timer.Stop() {
		return
	}
	d := time.Until(at) - dialect.RealtimeWarning
	if w.timer != nil {
		w.timer.Reset(d)
		return
	}
	w.running.Add(1)
	w.timer = time.AfterFunc(d, func() {
		defer w.running.Done()
		w.mu.Lock()
		w.tell(w.by)
	})
}

// tell gives the warning, once for each reason. It is called with mu held and releases it.
func (w *sessionWatch) tell(reason WarningReason) {
	quiet := w.over || w.told[reason] || w.warn == nil
	w.told[reason] = true
	warning := SessionWarning{ID: w.id, Upstream: w.upstream, Session: w.infoLocked(), Reason: reason, Left: -1}
	w.mu.Unlock()
	if quiet {
		return
	}
	if !warning.Session.Ends.IsZero() {
		warning.Left = max(0, time.Until(warning.Session.Ends))
	}
	w.warn(warning)
}

func (w *sessionWatch) infoLocked() SessionInfo { return SessionInfo{w.api, w.ends, w.resumable} }

// info is what is known now.
func (w *sessionWatch) info() SessionInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.infoLocked()
}

// end is called when the WebSocket has ended. No warning is given afterwards.
func (w *sessionWatch) end() {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.over = true
	if w.timer != nil && w.timer.Stop() {
		w.running.Done()
	}
	w.mu.Unlock()
	w.running.Wait()
}
