// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
)

// An account is where the time of one exchange goes. It is the request's goroutine's, but
// for the stream and what it begins with, which the watchdog's lock guards from answers on:
// others may ask how it goes, and a token costs no lock of its own.
type account struct {
	head   time.Time // when it was there, or it was known that none comes; zero = nobody was asked
	failed bool      // none came
	open   bool      // the answer is being passed on
	waits  bool      // for the first token
	tokens int
	stream attribution.Stream
}

// headCame ends the stages before the answer; err is why there is none.
func (e *exchange) headCame(err error) {
	now := time.Now()
	e.sw.stop(e.rec, now)
	e.account.head, e.account.failed = now, err != nil
}

// answers begins to book an answer whose head is there. One of known length is over
// soon: nothing is looked into. So it is with a stream of tokens until the first.
func (e *exchange) answers(resp *http.Response, now time.Time) {
	src := attribution.Source{}
	if resp.ContentLength < 0 && !e.watch.Report().Stream {
		src = e.source()
	}
	e.dog.mu.Lock()
	e.account.open, e.account.waits = true, e.watch.Report().Stream
	e.account.stream.Begin(now, src)
	e.dog.mu.Unlock()
	finding := e.finding
	if e.account.waits || src.Path != nil {
		e.live.finding.Store(&finding)
	}
}

// finding is where the time of the answer goes at present. Any goroutine may ask.
func (e *exchange) finding(now time.Time) attribution.Finding {
	e.dog.mu.Lock()
	defer e.dog.mu.Unlock()
	if e.account.waits {
		return attribution.Waiting("first_token", now.Sub(e.rec.Start))
	}
	return e.account.stream.Now(now)
}

func (e *exchange) source() attribution.Source {
	src := attribution.Source{Path: e.sw.evidence}
	if conn := e.ownConn(); conn != nil {
		src.Lag = func() bool { return notSent(conn) > 0 }
	}
	return src
}

// came books the wait for n bytes, which end inside an event or not; tokens is how many
// were in the answer so far. From now on it is the app's turn.
func (e *exchange) came(now time.Time, n, tokens int, inside bool) {
	a := &e.account
	e.dog.mu.Lock()
	defer e.dog.mu.Unlock()
	e.dog.serve(now)
	if a.tokens == 0 && tokens > 0 {
		e.rec.Phases.FirstToken = now.Sub(a.head)
		a.stream.Begin(now, e.source())
		a.waits = false
	}
	a.stream.Came(now, attribution.Piece{Events: tokens - a.tokens, Bytes: n, Inside: inside})
	a.tokens = tokens
}

// took books the time until the app had it. It is the upstream's turn if that went well.
func (e *exchange) took(now time.Time, well bool) {
	e.dog.mu.Lock()
	defer e.dog.mu.Unlock()
	e.account.stream.Took(now)
	if well {
		e.dog.wait(now)
	}
}

// attribute ends the record at now.
func (e *exchange) attribute(now time.Time) {
	r, a := e.rec, &e.account
	r.Duration = now.Sub(r.Start)
	if a.head.IsZero() {
		return
	}
	r.Phases.settle(a.head.Sub(r.Start))
	p := &r.Phases
	opening, head := p.DNS+p.Connect+p.TLS, p.Wait+p.FirstToken
	switch {
	case a.failed: // it was told of an error of ours
		r.Parts = attribution.Parts{App: now.Sub(a.head)}
		r.Finding = attribution.Failed(opening, head, r.Parts)
	case a.open:
		e.dog.mu.Lock()
		r.Parts = a.stream.End(now)
		r.Finding = a.stream.Whole(opening, head, a.tokens)
		e.dog.mu.Unlock()
	default: // a tunnel, or a WebSocket
		return
	}
	r.Fault = r.Finding.Fault
}
