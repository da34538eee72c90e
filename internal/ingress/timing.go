// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/tls"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"time"
)

// A stopwatch collects the phases of one round trip from httptrace hooks. The
// way out may still run them when the round trip is over (a dial that serves
// the next request), so it is locked and can be stopped.
type stopwatch struct {
	mu      sync.Mutex // guards all following fields
	stopped bool
	phases  Phases
	reused  bool
	begin   struct{ queue, dns, connect, tls, conn time.Time }
	wrote   time.Time
	interim func(code int, h textproto.MIMEHeader) error
	first   func() // called at the first byte of an answer
}

// trace returns the hooks that feed the stopwatch. interim is called for each
// 1xx answer, never after stop has returned.
func (sw *stopwatch) trace() *httptrace.ClientTrace {
	start := func(at *time.Time) { sw.locked(func(now time.Time) { *at = now }) }
	since := func(at *time.Time, d *time.Duration) {
		sw.locked(func(now time.Time) {
			if !at.IsZero() {
				*d = now.Sub(*at)
			}
		})
	}
	return &httptrace.ClientTrace{
		GetConn:      func(string) { start(&sw.begin.queue) },
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

// stop ends the collection and returns what was seen.
func (sw *stopwatch) stop() (Phases, bool) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	sw.stopped = true
	return sw.phases, sw.reused
}

// A watchdog cancels a request when a limit of the relay loop passes. Reading a
// token costs it two atomic stores and no timer work: its one timer looks at
// the time of the last byte when it fires, and sets itself again.
type watchdog struct {
	mu     sync.Mutex // guards all following fields
	cancel func(error)
	timers []*time.Timer
	idle   *time.Timer

	idleLimit time.Duration
	waiting   bool      // we wait for the upstream, not for the app
	since     time.Time // since when
}

// startWatchdog arms the total and the first-token limit; the idle limit starts
// with the response.
func startWatchdog(u *Upstream, cancel func(error)) *watchdog {
	d := &watchdog{cancel: cancel}
	d.after(u.Total, errTotal)
	d.after(u.FirstToken, errFirstToken)
	return d
}

// after adds a limit; its index in timers is its place of call.
func (d *watchdog) after(limit time.Duration, cause error) {
	if limit <= 0 {
		d.timers = append(d.timers, nil)
		return
	}
	d.timers = append(d.timers, time.AfterFunc(limit, func() { d.cancel(cause) }))
}

// firstToken ends the first-token limit.
func (d *watchdog) firstToken() {
	if t := d.timers[1]; t != nil {
		t.Stop()
	}
}

// body starts the idle limit.
func (d *watchdog) body(limit time.Duration, now time.Time) {
	if limit <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idleLimit, d.since, d.waiting = limit, now, true
	d.idle = time.AfterFunc(limit, d.checkIdle)
}

func (d *watchdog) checkIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.waiting {
		d.idle.Reset(d.idleLimit)
		return
	}
	if left := d.idleLimit - time.Since(d.since); left > 0 {
		d.idle.Reset(left)
		return
	}
	d.cancel(errIdle)
}

// wait and serve tell the watchdog whose turn it is: time in which the app does
// not take bytes is not the upstream's silence.
func (d *watchdog) wait(now time.Time) {
	d.mu.Lock()
	d.waiting, d.since = true, now
	d.mu.Unlock()
}

func (d *watchdog) serve() {
	d.mu.Lock()
	d.waiting = false
	d.mu.Unlock()
}

func (d *watchdog) stop() {
	for _, t := range d.timers {
		if t != nil {
			t.Stop()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idle != nil {
		d.idle.Stop()
	}
}
