// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/tls"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
)

// A stopwatch collects the phases of one round trip from httptrace hooks. The
// way out may still run them when the round trip is over (a dial that serves
// the next request), so it is locked and can be stopped.
type stopwatch struct {
	mu      sync.Mutex // guards all following fields
	stopped bool
	begun   time.Time // of the round trip; zero once it asks for a connection
	phases  Phases
	reused  bool
	tries   int           // connections asked for: attempts
	queued  time.Duration // of the attempts before
	begin   beginnings
	wrote   time.Time
	interim func(code int, h textproto.MIMEHeader) error
	first   func() // called at the first byte of an answer

	path atomic.Pointer[path] // that was got last, also after stop; nil = it tells nothing
}

// A path is a connection that shows what its network does.
type path interface {
	Evidence() (attribution.Evidence, bool)
	ConnectionID() uint64 // 0 = it has none
}

// beginnings are when the phases of an attempt began.
type beginnings struct{ queue, dns, connect, tls, conn time.Time }

// trace returns the hooks that feed the stopwatch. interim is called for each
// 1xx answer, never after stop has returned.
func (sw *stopwatch) trace() *httptrace.ClientTrace {
	start := func(at *time.Time) { sw.locked(func(now time.Time) { *at = now }) }
	since := func(at *time.Time, d *time.Duration) {
		sw.locked(func(now time.Time) {
			if !at.IsZero() && sw.begin.conn.IsZero() { // else it goes on for somebody else
				*d = now.Sub(*at)
			}
		})
	}
	return &httptrace.ClientTrace{
		GetConn:      func(string) { sw.locked(sw.attempt) },
		DNSStart:     func(httptrace.DNSStartInfo) { start(&sw.begin.dns) },
		DNSDone:      func(httptrace.DNSDoneInfo) { since(&sw.begin.dns, &sw.phases.DNS) },
		ConnectStart: func(_, _ string) { sw.locked(sw.connectStarted) },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				since(&sw.begin.connect, &sw.phases.Connect)
			}
		},
		TLSHandshakeStart: func() { start(&sw.begin.tls) },
		TLSHandshakeDone:  func(tls.ConnectionState, error) { since(&sw.begin.tls, &sw.phases.TLS) },
		GotConn: func(info httptrace.GotConnInfo) {
			if p, ok := info.Conn.(path); ok {
				sw.path.Store(&p)
			}
			sw.locked(func(now time.Time) {
				sw.reused, sw.begin.conn = info.Reused, now
				if !sw.begin.queue.IsZero() { // what opening a connection took is told apart
					sw.phases.Queue += max(0, now.Sub(sw.begin.queue)-sw.phases.DNS-sw.phases.Connect-sw.phases.TLS)
				}
			})
		},
		WroteRequest: func(httptrace.WroteRequestInfo) {
			sw.locked(func(now time.Time) { sw.phases.Send, sw.wrote = now.Sub(sw.begin.conn), now })
		},
		GotFirstResponseByte: func() {
			sw.locked(sw.answered)
			if sw.first != nil {
				sw.first()
			}
		},
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			sw.mu.Lock()
			defer sw.mu.Unlock()
			if sw.stopped || sw.interim == nil {
				return nil
			}
			return sw.interim(code, h)
		},
	}
}

func (sw *stopwatch) locked(f func(now time.Time)) {
	now := time.Now()
	sw.mu.Lock()
	defer sw.mu.Unlock()
	if !sw.stopped {
		f(now)
	}
}

// attempt begins anew: the phases are those of the attempt that is answered, and what
// was waited before it is Retry. Only the waits for connections add up.
func (sw *stopwatch) attempt(now time.Time) {
	p := &sw.phases
	retry := p.Retry
	if sw.tries > 0 {
		retry += now.Sub(sw.begin.queue) - (p.Queue - sw.queued)
	}
	sw.tries++
	sw.waited(now)
	sw.begin, sw.wrote = beginnings{queue: now}, time.Time{}
	*p, sw.queued = Phases{Queue: p.Queue, Retry: retry}, p.Queue
}

// start begins the round trip: until it asks for a connection it waits for its turn.
func (sw *stopwatch) start() { sw.begun = time.Now() }

// waited ends that wait.
func (sw *stopwatch) waited(now time.Time) {
	if !sw.begun.IsZero() {
		sw.phases.Queue += now.Sub(sw.begun)
		sw.begun = time.Time{}
	}
}

// connectStarted keeps the first of several racing attempts.
func (sw *stopwatch) connectStarted(now time.Time) {
	if sw.begin.connect.IsZero() {
		sw.begin.connect = now
	}
}

// answered is called before the write is known to be over when an upstream
// answers early; then the wait is what is left.
func (sw *stopwatch) answered(now time.Time) {
	if !sw.wrote.IsZero() {
		sw.phases.Wait = now.Sub(sw.wrote)
	} else if !sw.begin.conn.IsZero() {
		sw.phases.Send = now.Sub(sw.begin.conn)
	}
}

// stop ends the collection at now, when the head is there or nothing will come, and puts
// what was seen into rec.
func (sw *stopwatch) stop(rec *Record, now time.Time) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.stopped = true
	sw.inProgress(now)
	rec.Phases, rec.Reused, rec.Attempts = sw.phases, sw.reused, sw.tries
	if p := sw.path.Load(); p != nil {
		rec.Conn = (*p).ConnectionID()
	}
}

// inProgress books the stage that has not ended.
func (sw *stopwatch) inProgress(now time.Time) {
	p, b := &sw.phases, &sw.begin
	switch {
	case !sw.wrote.IsZero():
		p.Wait = now.Sub(sw.wrote)
	case !b.conn.IsZero():
		p.Send = now.Sub(b.conn)
	case b.queue.IsZero(): // no connection was asked for
	case !b.tls.IsZero() && p.TLS == 0:
		p.TLS = now.Sub(b.tls)
	case !b.connect.IsZero() && p.Connect == 0:
		p.Connect = now.Sub(b.connect)
	case !b.dns.IsZero() && p.DNS == 0:
		p.DNS = now.Sub(b.dns)
	default:
		p.Queue += max(0, now.Sub(b.queue)-p.DNS-p.Connect-p.TLS)
	}
}

// stage is what the request waits for, and since when; "" once the head is there. A
// connection is asked for by somebody who then waits for it, so what is not known yet
// counts as the queue's.
func (sw *stopwatch) stage() (name string, since time.Time) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	p, b := &sw.phases, &sw.begin
	switch {
	case sw.stopped:
		return "", time.Time{}
	case !sw.wrote.IsZero():
		return "wait", sw.wrote
	case !b.conn.IsZero():
		return "send", b.conn
	case !b.tls.IsZero() && p.TLS == 0:
		return "tls", b.tls
	case !b.connect.IsZero() && p.Connect == 0:
		return "connect", b.connect
	case !b.dns.IsZero() && p.DNS == 0:
		return "dns", b.dns
	}
	return "queue", b.queue
}

// evidence asks the connection that serves the request.
func (sw *stopwatch) evidence() (attribution.Evidence, bool) {
	p := sw.path.Load()
	if p == nil {
		return attribution.Evidence{}, false
	}
	return (*p).Evidence()
}

// A watchdog cancels a request when a limit of the relay loop passes. Reading a
// token costs it two stores under a lock and no timer work: its one timer looks at
// the time of the last byte when it fires, and sets itself again.
type watchdog struct {
	mu     sync.Mutex // guards all following fields
	cancel func(error)
	timers []*time.Timer // nil: there is none, or no more
	timer  *time.Timer   // of the two limits below
	due    time.Time     // when that was to fire
	thawed bool          // it has had its thaw, and nothing has come since

	idleLimit  time.Duration // of the upstream's silence
	stallLimit time.Duration // of an app that takes nothing
	waiting    bool          // we wait for the upstream, not for the app
	since      time.Time     // since when

	unsent func() int // bytes that wait in the kernel for the app; nil = unknown
	queued int        // what it said last
}

// startWatchdog arms the total and the first-token limit; the others start with the
// response.
func startWatchdog(u *Upstream, cancel func(error)) *watchdog {
	d := &watchdog{cancel: cancel}
	d.after(u.Total, errTotal)
	d.after(u.FirstToken, errFirstToken)
	return d
}

// A timer that fires frozen too late tells that the process stood still, as in a
// computer's sleep: what was waited for may be there, and gets thaw to be read.
const (
	frozen = 250 * time.Millisecond
	thaw   = time.Second
)

// after adds a limit; its index in timers is its place of call.
func (d *watchdog) after(limit time.Duration, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if limit <= 0 {
		d.timers = append(d.timers, nil)
		return
	}
	i, due, thawed := len(d.timers), time.Now().Add(limit), false
	d.timers = append(d.timers, time.AfterFunc(limit, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		now := time.Now()
		switch t := d.timers[i]; {
		case t == nil: // it was stopped as it fired
		case now.Sub(due) > frozen && !thawed:
			thawed = true
			t.Reset(min(limit, thaw))
		default:
			d.cancel(cause)
		}
	}))
}

// firstToken ends the first-token limit.
func (d *watchdog) firstToken() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLocked(1)
}

func (d *watchdog) endLocked(i int) {
	if t := d.timers[i]; t != nil {
		t.Stop()
		d.timers[i] = nil
	}
}

// body starts the idle and the stall limit. unsent tells how much the kernel still
// holds for the app, which shows one that takes little from one that takes nothing.
func (d *watchdog) body(idle, stall time.Duration, now time.Time, unsent func() int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idleLimit, d.stallLimit, d.since, d.waiting, d.unsent = idle, stall, now, true, unsent
	if look := d.lookAfter(); look > 0 {
		d.due = now.Add(look)
		d.timer = time.AfterFunc(look, d.check)
	}
}

// stallLooks is how often a stall is looked at before it is one: an app that takes a
// little is seen by what the kernel holds at two looks.
const stallLooks = 8

// lookAfter is when the timer is to fire if nothing happens, 0 = never.
func (d *watchdog) lookAfter() time.Duration {
	stall := d.stallLimit / stallLooks
	switch {
	case d.idleLimit <= 0:
		return stall
	case stall <= 0:
		return d.idleLimit
	}
	return min(d.idleLimit, stall)
}

func (d *watchdog) check() {
	d.mu.Lock()
	defer d.mu.Unlock()
	limit, cause := d.idleLimit, error(errIdle)
	if !d.waiting {
		limit, cause = d.stallLimit, errStalled
		if d.unsent != nil {
			if n := d.unsent(); n != d.queued {
				d.queued, d.since = n, time.Now() // it has taken something
			}
		}
	}
	now := time.Now()
	left := limit - now.Sub(d.since)
	look := d.lookAfter()
	switch {
	case limit <= 0:
	case left > 0:
		look = min(look, left)
	case now.Sub(d.due) > frozen && !d.thawed:
		d.thawed = true
		look = min(limit, thaw)
	default:
		d.cancel(cause)
		return
	}
	d.due = now.Add(look)
	d.timer.Reset(look)
}

// wait and serve tell the watchdog whose turn it is: time in which the app does
// not take bytes is not the upstream's silence, and the other way round. The caller
// holds mu.
func (d *watchdog) wait(now time.Time)  { d.waiting, d.since, d.thawed = true, now, false }
func (d *watchdog) serve(now time.Time) { d.waiting, d.since, d.thawed = false, now, false }

func (d *watchdog) turn(now time.Time, whose func(time.Time)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	whose(now)
}

// serving says since when a write to the app has not returned, zero if none waits.
func (d *watchdog) serving() (since time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.waiting {
		since = d.since
	}
	return since
}

func (d *watchdog) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.timers {
		d.endLocked(i)
	}
	if d.timer != nil {
		d.timer.Stop()
	}
}
