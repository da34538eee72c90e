// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/warmwire/warmwire/transport/layer"
)

// A race is an attempt with a second one beside it, which starts when the first has
// no head by the learned 95th percentile. The first runs in its caller's goroutine.
type race struct {
	c      *call
	cancel context.CancelFunc // of the first
	start  time.Time

	mu       sync.Mutex // guards the fields below
	settled  bool       // the first is over
	begun    bool
	won      bool // the second was first
	lost     bool // nobody wants the second
	resp     *http.Response
	err      error
	finished chan struct{}      // closed when resp and err are there
	stop     context.CancelFunc // of the second
}

// hedgeable says when a second attempt may begin.
func (c *call) hedgeable() (after time.Duration, ok bool) {
	if !c.t.cfg.Hedge || c.hedged || c.upgrade() {
		return 0, false
	}
	return c.t.heads.p95()
}

// race makes one attempt with a hedge.
func (c *call) race(after time.Duration) (*http.Response, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.last = c.trace(ctx)
	out, err := c.prepare(c.last)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &race{c: c, cancel: cancel, start: time.Now(), finished: make(chan struct{})}
	timer := time.AfterFunc(after, r.hedge)
	c.t.attempts.Add(1)
	resp, err := c.t.next.RoundTrip(out)
	timer.Stop()
	return r.settle(resp, err)
}

// hedge makes the second attempt.
func (r *race) hedge() {
	req, ok := r.begin()
	if !ok {
		return
	}
	c := r.c
	defer c.t.hedges.Done()
	defer close(r.finished)
	c.t.cfg.OnAttempt(Decision{Reason: Slow, Verdict: Hedged, Attempt: c.attempt})
	c.t.attempts.Add(1)
	resp, err := c.t.next.RoundTrip(req)

	r.mu.Lock()
	r.resp, r.err = resp, err
	lost := r.lost
	r.won = !r.settled && good(resp, err)
	won := r.won
	r.mu.Unlock()
	switch {
	case lost:
		r.drop()
	case won:
		c.last.over.Store(true)
		r.cancel()
	}
}

// begin builds the request of the second attempt, if it may be made.
func (r *race) begin() (*http.Request, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.c
	if r.settled || c.ctx.Err() != nil || c.body != nil && !c.body.whole() {
		return nil, false
	}
	// From here on the app is shown no interim answer: that of one attempt must not
	// go before the answer of the other.
	c.last.silent.Store(true)
	if c.last.interim.Load() || !c.t.budget.hedge(time.Since(c.t.epoch), c.t.cfg.HedgeBudget) {
		c.last.silent.Store(false)
		return nil, false
	}
	req, stop, err := c.second()
	if err != nil {
		c.last.silent.Store(false)
		return nil, false
	}
	r.begun, r.stop, c.hedged = true, stop, true
	c.t.hedges.Add(1)
	return req, true
}

// second builds the request of a hedge: without the caller's hooks.
func (c *call) second() (*http.Request, context.CancelFunc, error) {
	ctx, stop := context.WithCancel(c.ctx)
	quiet := &traced{Context: ctx, theirs: c.last.theirs}
	out := c.req.WithContext(quiet)
	var err error
	switch {
	case c.body != nil:
		var v *view
		if v, err = c.body.beside(c.body.newTrailer()); err == nil {
			out.Body, out.Trailer = v, v.trailer
			out.GetBody = nil // one view is all it gets: see beside
		}
	case c.req.GetBody != nil && c.req.Body != nil:
		out.Body, err = c.req.GetBody()
	}
	if err != nil {
		stop()
	}
	return out, stop, err
}

// settle is told of the first attempt, and returns what counts.
func (r *race) settle(resp *http.Response, err error) (*http.Response, error) {
	c := r.c
	r.mu.Lock()
	r.settled = true
	begun, won := r.begun, r.won
	r.mu.Unlock()
	if won || good(resp, err) {
		c.t.heads.observe(time.Since(r.start)) // of one that was cancelled at least that
	}
	if !begun {
		return r.first(resp, err)
	}
	c.unproven = true
	if !won {
		if good(resp, err) {
			r.lose()
			return r.first(resp, err)
		}
		select { // the first has failed, but there is another on its way
		case <-r.finished:
		case <-c.ctx.Done():
			r.lose()
			return r.first(resp, err)
		}
	} else {
		<-r.finished // it only has to return
	}
	if !good(r.resp, r.err) && (err == nil || r.err != nil) {
		r.lose()
		return r.first(resp, err)
	}
	return r.second(resp, err)
}

// first returns the first attempt's result.
func (r *race) first(resp *http.Response, err error) (*http.Response, error) {
	if err != nil {
		r.cancel()
		return nil, err
	}
	resp.Body = layer.OnClose(resp.Body, r.cancel)
	return resp, nil
}

// second returns the second attempt's answer instead of the first's.
func (r *race) second(resp *http.Response, err error) (*http.Response, error) {
	c := r.c
	c.last.over.Store(true)
	r.cancel()
	if err == nil {
		_ = resp.Body.Close()
	}
	if theirs := c.last.theirs; theirs != nil && theirs.GotFirstResponseByte != nil && !c.last.first.Load() {
		theirs.GotFirstResponseByte() // for the caller the wait is over now
	}
	c.t.cfg.OnAttempt(Decision{Reason: Slow, Verdict: HedgeWon, Attempt: c.attempt, Status: r.resp.StatusCode})
	r.resp.Body = layer.OnClose(r.resp.Body, r.stop)
	return r.resp, nil
}

// lose ends the second attempt at once.
func (r *race) lose() {
	r.mu.Lock()
	r.lost = true
	here := r.resp != nil || r.err != nil
	r.mu.Unlock()
	r.stop()
	if here {
		r.drop()
	}
	r.c.t.cfg.OnAttempt(Decision{Reason: Slow, Verdict: HedgeLost, Attempt: r.c.attempt})
}

// drop closes what the second attempt got. It is called once: by lose, or by the
// attempt itself where it ends after that.
func (r *race) drop() {
	r.stop()
	if r.resp != nil {
		_ = r.resp.Body.Close()
	}
}

// good says that nothing better need be waited for.
func good(resp *http.Response, err error) bool {
	return err == nil && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < 500
}
