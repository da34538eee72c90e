// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
	"github.com/warmwire/warmwire/transport/layer"
	"github.com/warmwire/warmwire/transport/pool"
	"github.com/warmwire/warmwire/transport/semantics"
)

// Limits that no setting changes.
const (
	maxInterim  = 64 // 1xx answers before a final one; a guess
	maxAttempts = 4
	// bulkBytes is the size from which an upload is kept away from requests that
	// somebody waits for.
	bulkBytes = 256 << 10
)

// RoundTrip sends one request and returns its answer's head; the body streams.
// It moves a request to another connection only while it provably was not
// processed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	x := &roundTrip{t: t, ctx: ctx, cancel: cancel, class: t.cfg.Class}
	if t.cfg.ClassOf != nil {
		x.class = t.cfg.ClassOf(req)
	}
	if req.Body != nil && req.Body != http.NoBody {
		x.upload = &upload{src: req.Body, again: req.GetBody, progress: &progress{limit: t.cfg.RequestWrite, fail: x.stalled}}
		defer x.upload.progress.stop()
	}
	o, err := t.origin(req.URL)
	if err != nil {
		cancel(err)
		return nil, err
	}
	o.use()
	if resp, open := x.socketOverHTTP2(o, req); open {
		resp.Body = x.owned(resp)
		return resp, nil
	}
	want := x.want(req)
	for attempt := 1; ; attempt++ {
		out, err := x.prepare(req)
		if err != nil {
			cancel(err)
			return nil, err
		}
		resp, err := o.pool.RoundTrip(out, want)
		x.stopWait()
		if pool.Closed(err) { // it made room for another origin just now
			if next, nerr := t.origin(req.URL); nerr == nil && attempt < maxAttempts && ctx.Err() == nil {
				o = next
				continue
			}
		}
		if err == nil {
			o.learnOffer(resp)
			if x.overHTTP1 != nil && resp.StatusCode == http.StatusSwitchingProtocols {
				x.overHTTP1()
			}
			resp.Body = x.owned(resp)
			return resp, nil
		}
		if attempt < maxAttempts && unprocessed(err) && ctx.Err() == nil {
			continue
		}
		err = classify(ctx, err, t.cfg.ClientCert == nil)
		cancel(err)
		return nil, err
	}
}

// A roundTrip is one call of RoundTrip with all its attempts.
type roundTrip struct {
	t       *Transport
	ctx     context.Context
	cancel  context.CancelCauseFunc
	class   semantics.Class
	upload  *upload // nil: no body
	interim atomic.Int32
	wait    atomic.Pointer[time.Timer]
	ended   atomic.Bool

	overHTTP1 func() // to be called if HTTP/1.1 opens what HTTP/2 did not; nil = nothing
}

// want says what kind of connection the request needs.
func (x *roundTrip) want(req *http.Request) pool.Want {
	return pool.Want{
		Class: pool.Class(x.class),
		H1:    req.Header["Upgrade"] != nil, // RFC 9110 §7.8
		Bulk:  x.upload != nil && (req.ContentLength < 0 || req.ContentLength > bulkBytes),
	}
}

// unprocessed says that a connection proves that it has not sent the request, or
// that the upstream has not looked at it (RFC 9113 §8.7). A connection that could
// not be opened is no reason to try again: dial has done so.
func unprocessed(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && !f.Sent && f.In != "tls"
}

// prepare builds the request for one attempt.
func (x *roundTrip) prepare(req *http.Request) (*http.Request, error) {
	x.ended.Store(false)
	ctx := httptrace.WithClientTrace(x.ctx, x.trace())
	out := req.WithContext(semantics.WithClass(ctx, x.class))
	if x.upload == nil {
		out.Body = nil
		return out, nil
	}
	body, err := x.upload.view()
	if err != nil {
		return nil, &Error{In: "send", Kind: "upstream_closed", Err: err}
	}
	out.Body = body
	return out, nil
}

// trace returns the hooks by which this package follows an attempt; those of the
// caller run as well.
func (x *roundTrip) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				x.startWait()
			}
		},
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if x.interim.Add(1) > maxInterim { // an error returned here would give way to the caller's hook
				x.cancel(&Error{In: "wait", Kind: "upstream_bad_response", Sent: true,
					Err: fmt.Errorf("the upstream sent more than %d interim answers", maxInterim)})
			}
			return nil
		},
	}
}

// startWait begins the response_header limit.
func (x *roundTrip) startWait() {
	limit := x.t.cfg.ResponseHeader
	if limit <= 0 || x.ended.Load() {
		return
	}
	timer := time.AfterFunc(limit, func() {
		x.cancel(&Error{In: "wait", Kind: "upstream_response_header_timeout", Limit: "timeouts.response_header", Expired: true, Sent: true,
			Err: fmt.Errorf("the upstream sent no answer within %v", limit)})
	})
	if old := x.wait.Swap(timer); old != nil {
		old.Stop()
	}
	if x.ended.Load() {
		timer.Stop()
	}
}

func (x *roundTrip) stopWait() {
	x.ended.Store(true)
	if timer := x.wait.Swap(nil); timer != nil {
		timer.Stop()
	}
}

// stalled ends a request whose upload the upstream does not take.
func (x *roundTrip) stalled() {
	x.cancel(&Error{In: "send", Kind: "upstream_request_write_timeout", Limit: "timeouts.request_write", Expired: true, Sent: true,
		Err: fmt.Errorf("the upstream took no byte of the request for %v", x.t.cfg.RequestWrite)})
}

// owned ties the attempt's context to the body: closing it ends what still runs.
func (x *roundTrip) owned(resp *http.Response) io.ReadCloser {
	if x.upload != nil {
		x.upload.settle()
	}
	return layer.OnClose(resp.Body, func() { x.cancel(context.Canceled) })
}
