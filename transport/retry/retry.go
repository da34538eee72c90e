// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/transport/hints"
	"github.com/warmwire/warmwire/transport/layer"
)

// What is read of an answer that is thrown away, so that its connection can serve on.
const (
	drainBytes = 64 << 10
	drainTime  = 250 * time.Millisecond // a guess; also never longer than the wait for the next attempt
)

// A Transport sends requests again.
type Transport struct {
	next     http.RoundTripper
	cfg      Config
	statuses map[int]bool
	epoch    time.Time
	budget   budget
	heads    latency        // of first attempts; learned for hedges alone
	hedges   sync.WaitGroup // goroutines of hedges

	calls, attempts, recovered atomic.Int64
}

// New returns a layer around next. It starts nothing.
func New(next http.RoundTripper, cfg Config) (*Transport, error) {
	if next == nil {
		return nil, errors.New("retry: there is no way out to send with")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	t := &Transport{next: next, cfg: cfg, statuses: make(map[int]bool, len(cfg.Statuses)), epoch: time.Now()}
	t.cfg.Statuses = slices.Clone(cfg.Statuses)
	for _, status := range cfg.Statuses {
		t.statuses[status] = true
	}
	return t, nil
}

// Stats is what the layer has done so far.
type Stats struct {
	Calls     int64 // of RoundTrip
	Attempts  int64 // made for them, hedges too
	Recovered int64 // calls that were answered well after an attempt that was not
}

// Stats returns the counts.
func (t *Transport) Stats() Stats {
	return Stats{Calls: t.calls.Load(), Attempts: t.attempts.Load(), Recovered: t.recovered.Load()}
}

// Close waits for hedges that lost and have been cancelled. It ends nothing itself:
// the way out belongs to somebody else.
func (t *Transport) Close() error {
	t.hedges.Wait()
	return nil
}

// A call is one call of RoundTrip with all its attempts.
type call struct {
	t        *Transport
	req      *http.Request
	ctx      context.Context
	start    time.Time
	body     *body // nil: none, or the caller can make it anew itself
	attempt  int   // the present one, from 1
	earlier  int   // attempts that the app has made before this call
	waited   time.Duration
	unproven bool    // an attempt that is over may have been processed
	last     *traced // the present attempt's
	view     *view   // the body of the next attempt, made when it was decided
	hedged   bool    // a hedge was begun

	content body   // what body points to
	initial traced // the first attempt's
}

// RoundTrip sends req, again where that is allowed, and returns its answer's head.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	now := time.Now()
	earlier := appRetries(req.Header)
	t.calls.Add(1)
	t.budget.call(now.Sub(t.epoch), earlier > 0)
	if t.cfg.MaxAttempts == 1 && !t.cfg.Hedge {
		t.attempts.Add(1)
		return t.next.RoundTrip(req)
	}
	c := &call{t: t, req: req, ctx: req.Context(), start: now, earlier: earlier}
	if req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		c.body = &c.content
		c.body.init(req, &t.cfg)
	}
	return c.run()
}

// run makes attempts until one of them is the last.
func (c *call) run() (*http.Response, error) {
	for {
		c.attempt++
		resp, err := c.send()
		now := time.Now()
		o := c.judge(resp, err, now)
		if o.reason == "" {
			if c.attempt > 1 && resp.StatusCode < 400 {
				c.t.recovered.Add(1)
			}
			return c.hand(resp), nil
		}
		verdict, wait := c.decide(o, now)
		c.t.cfg.OnAttempt(Decision{Reason: o.reason, Verdict: verdict, Attempt: c.attempt, Status: o.status, Wait: wait})
		if verdict != Retried {
			if err != nil {
				return nil, c.fail(err)
			}
			return c.hand(resp), nil
		}
		c.last.over.Store(true)
		c.unproven = c.unproven || !o.proven
		c.waited += wait
		if resp != nil {
			discard(resp, min(wait, drainTime))
		}
		if err := sleep(c.ctx, wait-time.Since(now)); err != nil {
			return nil, c.fail(err)
		}
	}
}

// judge names the class of what came.
func (c *call) judge(resp *http.Response, err error, now time.Time) outcome {
	if err != nil {
		return c.t.judgeError(err, c.last.first.Load())
	}
	return c.t.judgeAnswer(resp, now)
}

// decide says whether there is another attempt, and after which wait. The budget is
// asked last, so that nothing is taken from it in vain.
func (c *call) decide(o outcome, now time.Time) (Verdict, time.Duration) {
	t := c.t
	switch {
	case c.ctx.Err() != nil, c.body != nil && c.body.broken():
		return AppGone, 0
	case !o.enabled, o.status != 0 && c.upgrade():
		return Disabled, 0
	case o.no:
		return Forbidden, 0
	case c.attempt+c.earlier >= t.cfg.MaxAttempts:
		return Exhausted, 0
	case c.last.interim.Load(), !c.replayable(o.status != 0):
		return NotReplayable, 0
	}
	wait, ok := c.delay(o)
	if !ok {
		return TooLong, 0
	}
	if left, limited := c.patience(now); limited && wait >= left {
		return PastDeadline, 0
	}
	if !t.budget.again(now.Sub(t.epoch), t.cfg.Budget) {
		return OverBudget, 0
	}
	if c.body != nil { // now: what the app sends during the wait is for the next attempt
		var err error
		if c.view, err = c.body.view(c.body.newTrailer()); err != nil {
			return NotReplayable, 0
		}
	}
	return Retried, wait
}

// delay draws the wait before the next attempt: what was asked and a random part on
// top, just enough that calls do not line up; without a hint a random part of a
// back-off that doubles. All waits of a call together stay within one and a half
// MaxDelay, so that the app hears of a refusal that lasts.
func (c *call) delay(o outcome) (time.Duration, bool) {
	cfg := &c.t.cfg
	if o.at {
		return 0, true
	}
	left := cfg.MaxDelay + cfg.MaxDelay/2 - c.waited
	if o.asked > cfg.MaxDelay || o.asked > left {
		return 0, false
	}
	spread := min(cfg.BaseDelay<<min(c.attempt-1, 16), cfg.MaxDelay)
	if o.hint {
		spread = max(cfg.BaseDelay, o.asked) / 2
	}
	spread = min(spread, left-o.asked)
	return o.asked + time.Duration(cfg.Rand()*float64(spread)), true
}

// upgrade says whether an answer may be the beginning of something else than HTTP.
func (c *call) upgrade() bool {
	return c.req.Method == http.MethodConnect || c.req.Header["Upgrade"] != nil
}

// replayable says whether the body can be sent once more, complete. An app that
// waits for 100 has been told to hold its body back once the upstream began to
// answer: what it has not sent by then will not come.
func (c *call) replayable(answered bool) bool {
	if c.body == nil {
		return true
	}
	if answered && c.req.Header["Expect"] != nil && !c.body.whole() {
		return false
	}
	return c.body.replayable()
}

// patience is how long the app will still wait for a head, if it says so.
func (c *call) patience(now time.Time) (left time.Duration, limited bool) {
	left = hints.Forever
	if at, ok := c.ctx.Deadline(); ok {
		left, limited = at.Sub(now), true
	}
	for _, name := range [...]string{"X-Stainless-Timeout", "X-Stainless-Read-Timeout"} {
		if v := c.req.Header[name]; len(v) > 0 {
			if d, ok := hints.Decimal(strings.TrimSpace(v[0]), time.Second); ok && d > 0 {
				left, limited = min(left, d-now.Sub(c.start)), true
			}
		}
	}
	return left, limited
}

// send makes one attempt.
func (c *call) send() (*http.Response, error) {
	if after, ok := c.hedgeable(); ok {
		return c.race(after)
	}
	c.last = c.trace(c.ctx)
	out, err := c.prepare(c.last)
	if err != nil {
		return nil, err
	}
	c.t.attempts.Add(1)
	if !c.t.cfg.Hedge {
		return c.t.next.RoundTrip(out)
	}
	begin := time.Now()
	resp, err := c.t.next.RoundTrip(out)
	if good(resp, err) {
		c.t.heads.observe(time.Since(begin))
	}
	return resp, err
}

// prepare builds the request of an attempt, with the whole body.
func (c *call) prepare(ctx context.Context) (*http.Request, error) {
	out := c.req.WithContext(ctx)
	if c.body == nil {
		if c.attempt > 1 && c.req.GetBody != nil {
			again, err := c.req.GetBody()
			if err != nil {
				return nil, err
			}
			out.Body = again
		}
		return out, nil
	}
	if c.view == nil {
		var err error
		if c.view, err = c.body.view(c.body.newTrailer()); err != nil {
			return nil, err
		}
	}
	out.Body, out.Trailer = c.view, c.view.trailer
	if c.t.cfg.ReplayBody > 0 { // else the way out keeps what it wants to
		out.GetBody = func() (io.ReadCloser, error) { return c.body.view(out.Trailer) }
	}
	c.view = nil
	return out, nil
}

// hand gives the answer to the caller: the body is not kept any longer.
func (c *call) hand(resp *http.Response) *http.Response {
	if c.body != nil && c.body.settle(c.hedged) {
		resp.Body = layer.OnClose(resp.Body, c.body.drop)
	}
	return resp
}

// fail gives up with err.
func (c *call) fail(err error) error {
	c.last.over.Store(true)
	if c.body != nil {
		c.body.drop()
		c.body.close()
	}
	if c.unproven {
		return marked(err)
	}
	return err
}

// discard reads a little of an answer that nobody wants, so that its connection is
// free, and closes it.
func discard(resp *http.Response, limit time.Duration) {
	stop := time.AfterFunc(limit, func() { _ = resp.Body.Close() })
	defer stop.Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, drainBytes)
	_ = resp.Body.Close()
}

// sleep waits, and fails when ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// appRetries is how often the SDK says that it has tried already.
func appRetries(h http.Header) int {
	v := h["X-Stainless-Retry-Count"]
	if len(v) == 0 {
		return 0
	}
	n, err := strconv.Atoi(v[0])
	if err != nil || n < 0 || n > 1000 {
		return 0
	}
	return n
}
