// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
)

// A traced context belongs to one attempt. It shows the caller's hooks to the way
// out with two differences: an attempt that is over calls none any more (an upload
// may end long after its request has failed), and what has come of the answer is
// noted.
type traced struct {
	context.Context
	theirs *httptrace.ClientTrace
	hooks  httptrace.ClientTrace // theirs, with ours in place

	over    atomic.Bool
	silent  atomic.Bool // a hedge runs: no interim answers
	first   atomic.Bool // a byte of the answer has come
	interim atomic.Bool // the caller was given an interim answer other than 100
}

// Value shows our hooks in place of the caller's. The key of httptrace is its own,
// so they are known by what is found.
func (c *traced) Value(key any) any {
	v := c.Context.Value(key)
	if t, ok := v.(*httptrace.ClientTrace); ok && t == c.theirs {
		return &c.hooks
	}
	return v
}

// trace makes the context of an attempt. Without hooks of the caller there is nothing
// to keep in order, and the first byte is of interest only for Resets.
func (c *call) trace(ctx context.Context) *traced {
	a := &c.initial
	if a.Context != nil {
		a = new(traced)
	}
	theirs := httptrace.ContextClientTrace(ctx)
	a.Context, a.theirs = ctx, theirs
	if theirs == nil {
		if c.t.cfg.Resets {
			a.hooks.GotFirstResponseByte = func() { a.first.Store(true) }
			a.Context = httptrace.WithClientTrace(ctx, &a.hooks)
		}
		return a
	}
	a.hooks = *theirs
	a.hooks.GotFirstResponseByte = a.gotFirst
	if theirs.WroteRequest != nil {
		a.hooks.WroteRequest = a.wroteRequest
	}
	if theirs.Got1xxResponse != nil {
		a.hooks.Got1xxResponse = a.got1xx
	}
	return a
}

func (c *traced) gotFirst() {
	c.first.Store(true)
	if !c.over.Load() && c.theirs.GotFirstResponseByte != nil {
		c.theirs.GotFirstResponseByte()
	}
}

func (c *traced) wroteRequest(info httptrace.WroteRequestInfo) {
	if !c.over.Load() {
		c.theirs.WroteRequest(info)
	}
}

func (c *traced) got1xx(code int, h textproto.MIMEHeader) error {
	if c.over.Load() {
		return nil
	}
	if code != http.StatusContinue {
		c.interim.Store(true)
		if c.silent.Load() { // asked after interim is set: see race.begin
			return nil
		}
	}
	return c.theirs.Got1xxResponse(code, h)
}
