// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/internal/ingress/peer"
	"github.com/warmwire/warmwire/internal/ingress/ws"
)

// A runningSet knows what runs, and how to end it.
type runningSet struct {
	mu     sync.Mutex // guards the fields below
	all    map[*exchange]struct{}
	waiter chan struct{} // closed when all becomes empty; nil: nobody waits
}

// add registers e and returns the function that removes it.
func (rs *runningSet) add(e *exchange) func() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.all == nil {
		rs.all = make(map[*exchange]struct{})
	}
	rs.all[e] = struct{}{}
	return func() {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		delete(rs.all, e)
		if len(rs.all) == 0 && rs.waiter != nil {
			close(rs.waiter)
			rs.waiter = nil
		}
	}
}

func (rs *runningSet) idle() <-chan struct{} {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	done := make(chan struct{})
	if len(rs.all) == 0 {
		close(done)
		return done
	}
	if rs.waiter == nil {
		rs.waiter = done
	}
	return rs.waiter
}

func (rs *runningSet) list() []*exchange {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return slices.Collect(maps.Keys(rs.all))
}

func (rs *runningSet) len() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.all)
}

func (rs *runningSet) cancel(cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for e := range rs.all {
		e.stop(cause)
	}
}

// A StreamInfo is one request, tunnel or WebSocket that runs.
type StreamInfo struct {
	ID       uint64
	Upstream string // "" for a host that is no upstream
	Tenant   string // "" = none
	Mode     Mode
	AppProto string
	Start    time.Time
	Status   int           // 0 = no answer yet
	BytesOut int64         // body bytes that the app was given; of tunnels 0
	LagBytes int           // of the answer: came, and not taken by the app
	LagTime  time.Duration // since when the app takes too little
	Absent   bool          // the app has named it, and is away

	Finding *attribution.Finding // where its time goes; nil = not told of this kind

	Socket      *ws.Stats    // of a WebSocket
	App, Server *Pulse       // of a WebSocket with heartbeats
	Session     *SessionInfo // of a realtime API
}

// A live is what others may see of an exchange while it runs.
type live struct {
	relay   atomic.Pointer[ws.Relay]
	pulse   atomic.Pointer[func() (app, upstream Pulse)]
	status  atomic.Int32
	out     atomic.Int64
	session atomic.Pointer[session]
	lag     atomic.Pointer[func() (bytes int, since time.Time)] // nil = no answer yet

	finding  atomic.Pointer[func(now time.Time) attribution.Finding] // nil = no answer yet, or none of which it is told
	realtime atomic.Pointer[sessionWatch]
}

// Streams lists what runs, the oldest first.
func (s *Server) Streams() []StreamInfo {
	list := s.sessions.absent()
	running := s.running.list()
	slices.SortFunc(running, func(a, b *exchange) int { return cmp.Compare(a.rec.ID, b.rec.ID) })
	for i, e := range running { // each asks its kernel: not under the lock
		info := e.info()
		e.tell(&info, i < maxPeeks)
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b StreamInfo) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// maxPeeks is for how many streams the app's own socket is looked at: that costs 10 µs.
const maxPeeks = 200

// info may be called by any goroutine: it reads of the record what never changes once
// e is registered.
func (e *exchange) info() StreamInfo {
	i := StreamInfo{
		ID: e.rec.ID, Upstream: e.rec.Upstream, Tenant: e.rec.Tenant, Mode: e.rec.Mode, AppProto: e.rec.AppProto, Start: e.rec.Start,
		Status: int(e.live.status.Load()), BytesOut: e.live.out.Load(),
	}
	if relay := e.live.relay.Load(); relay != nil {
		stats := relay.Stats()
		i.Socket, i.BytesOut = &stats, stats.App.BytesOut
	}
	if pulse := e.live.pulse.Load(); pulse != nil {
		app, up := (*pulse)()
		i.App, i.Server = &app, &up
	}
	if w := e.live.realtime.Load(); w != nil {
		session := w.info()
		i.Session = &session
	}
	if lag := e.live.lag.Load(); lag != nil {
		var since time.Time
		if i.LagBytes, since = (*lag)(); !since.IsZero() {
			i.LagTime = time.Since(since)
		}
	}
	return i
}

// tell adds where the time goes. With peek it looks at the app's socket too.
func (e *exchange) tell(i *StreamInfo, peek bool) {
	if e.rec.Mode == ModeTunnel || e.rec.Mode == ModeWebSocket && e.live.status.Load() != 0 {
		return
	}
	if conn := e.ownConn(); peek && conn != nil {
		if p, err := peer.Look(conn); err == nil {
			i.LagBytes += p.Unread
		}
	}
	i.Finding = e.found(time.Now(), i.LagBytes)
}

// found is where the time of a request goes, of which the app has so much still to take.
func (e *exchange) found(now time.Time, lag int) *attribution.Finding {
	var f attribution.Finding
	if find := e.live.finding.Load(); find != nil {
		f = (*find)(now)
		f.AppWaits(lag)
		return &f
	}
	stage, since := e.sw.stage()
	if stage == "" {
		return nil
	}
	if since.IsZero() {
		since = e.rec.Start
	}
	f = attribution.Waiting(stage, now.Sub(since))
	return &f
}

// lag tells what the app has not taken: in the kernel, and in the upstream's buffers.
func (e *exchange) lag(body any) func() (int, time.Time) {
	unsent := e.unsent()
	held, _ := body.(interface{ Buffered() int })
	return func() (n int, since time.Time) {
		if unsent != nil {
			n = unsent()
		}
		if ss := e.live.session.Load(); ss != nil {
			return n + ss.Buffered(), ss.behind()
		}
		if held != nil {
			n += held.Buffered()
		}
		return n, e.dog.serving()
	}
}
