// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// StatusOriginTimeout is what some delivery networks answer when the origin has
// been quiet for too long. It is in no standard.
const StatusOriginTimeout = 524

// errQuiet ends an exchange with an origin that sends nothing.
var errQuiet = errors.New("the origin was quiet for too long")

// CDN returns a front as a delivery network puts it before an origin: it passes
// requests and answers on, and gives up when the origin sends no byte for the
// limit, with status 524 before the answer has begun and by a cut after that.
// transport reaches the origin.
func CDN(origin *url.URL, transport http.RoundTripper, limit time.Duration) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(origin) },
		Transport:     &impatient{next: transport, limit: limit},
		FlushInterval: -1,                         // at once
		ErrorLog:      log.New(io.Discard, "", 0), // the client sees what happened
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, errQuiet) {
				http.Error(w, "error code: 524", StatusOriginTimeout)
				return
			}
			http.Error(w, "error code: 502", http.StatusBadGateway)
		},
	}
}

// impatient ends an exchange that is quiet for the limit.
type impatient struct {
	next  http.RoundTripper
	limit time.Duration
}

func (i *impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(i.limit, func() { cancel(errQuiet) })
	resp, err := i.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // its body is a connection
		timer.Stop() // and the front no longer reads along
		return resp, nil
	}
	timer.Reset(i.limit)
	resp.Body = &impatientBody{ReadCloser: resp.Body, timer: timer, limit: i.limit, cancel: cancel}
	return resp, nil
}

// An impatientBody winds the clock up at each read.
type impatientBody struct {
	io.ReadCloser
	timer  *time.Timer
	limit  time.Duration
	cancel context.CancelCauseFunc
}

func (b *impatientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		b.timer.Reset(b.limit)
	}
	return n, err
}

func (b *impatientBody) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}
