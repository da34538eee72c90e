// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
)

// An account is where the time of one exchange goes. It is the request's goroutine's.
type account struct {
	head   time.Time // when it was there, or it was known that none comes; zero = nobody was asked
	failed bool      // none came
	open   bool      // the answer is being passed on
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
	e.account.open = true
	e.account.stream.Begin(now, src)
}

func (e *exchange) source() attribution.Source {
	src := attribution.Source{Path: e.sw.evidence}
	if unsent := e.unsent(); unsent != nil {
		src.Lag = func() bool { return unsent() > 0 }
	}
	return src
}

// came books the wait for bytes; tokens is how many were in the answer so far.
func (e *exchange) came(now time.Time, tokens int) {
	a := &e.account
	if a.tokens == 0 && tokens > 0 {
		e.rec.Phases.FirstToken = now.Sub(a.head)
		a.stream.Begin(now, e.source())
	}
	a.stream.Came(now, tokens-a.tokens)
	a.tokens = tokens
}

// attribute ends the record at now.
func (e *exchange) attribute(now time.Time) {
	r, a := e.rec, &e.account
	r.Duration = now.Sub(r.Start)
	if a.head.IsZero() {
		return
	}
	r.Phases.settle(a.head.Sub(r.Start))
	longest := time.Duration(0)
	switch {
	case a.failed: // it was told of an error of ours
		r.Parts = attribution.Parts{App: now.Sub(a.head)}
	case a.open:
		r.Parts = a.stream.End(now)
		longest = a.stream.Longest()
	default: // a tunnel, or a WebSocket
		return
	}
	p := &r.Phases
	r.Fault = attribution.Summary{
		Opening: p.DNS + p.Connect + p.TLS, Head: p.Wait + p.FirstToken, Parts: r.Parts, Longest: longest, Tokens: a.tokens,
	}.Fault()
}
