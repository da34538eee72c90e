// SPDX-License-Identifier: Apache-2.0

package upload

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"
)

// ContinueTimeout is how long a body waits for 100. RFC 9110 §10.1.1: do not wait
// indefinitely.
const ContinueTimeout = time.Second

// A Stream takes the bytes of a body.
type Stream interface {
	// Offer sends what is in p, which is the room asked of [Body.Send] and the bytes
	// after it, and returns when p may be used again. With end they are the last,
	// and there may be none. It returns false if nobody wants more.
	Offer(p []byte, end bool) bool
	// SendTrailers ends the body with the request's trailers.
	SendTrailers() error
	// WroteRequest tells the request's trace that it is sent, or why not.
	WroteRequest(err error)
}

// A Body is that of a request on its way out.
type Body struct {
	Declared int64 // its length; -1 = unknown

	stream   Stream
	body     io.ReadCloser
	trailers bool
	trace    *httptrace.ClientTrace
	proceed  chan struct{} // of Expect: 100-continue; nil = none. Holds a token.
	over     chan struct{} // closed by Stop; nil without proceed

	mu      sync.Mutex // guards the fields below
	reading bool       // a Read is running
	stopped bool
	closed  bool // Close was called, or is about to be
}

// New returns the body of req, nil if it has none.
func New(req *http.Request, to Stream, trace *httptrace.ClientTrace) *Body {
	if none(req) {
		return nil
	}
	b := &Body{stream: to, body: req.Body, Declared: DeclaredLength(req), trailers: len(req.Trailer) > 0, trace: trace}
	if expects(req.Header) {
		b.proceed, b.over = make(chan struct{}, 1), make(chan struct{})
	}
	return b
}

func none(req *http.Request) bool { return req.Body == nil || req.Body == http.NoBody }

// DeclaredLength is the length of req's body, -1 if unknown. As in net/http, 0
// beside a body means unknown.
func DeclaredLength(req *http.Request) int64 {
	switch {
	case none(req):
		return 0
	case req.ContentLength > 0:
		return req.ContentLength
	}
	return -1
}

func expects(h http.Header) bool {
	for k, vs := range h {
		if len(vs) > 0 && strings.EqualFold(k, "Expect") && strings.EqualFold(vs[0], "100-continue") {
			return true
		}
	}
	return false
}

// Send reads the body into buf after its first room bytes, and offers it to the stream.
// It returns nil at its end, and when nobody wants the rest; an error is the app's fault.
func (b *Body) Send(buf []byte, room int) error {
	var total int64
	ended := false
	for {
		if !b.begin() {
			return nil
		}
		n, err := b.body.Read(buf[room:])
		if b.done() {
			return nil // its Read may have failed because it was closed
		}
		total += int64(n)
		switch {
		case err != nil && err != io.EOF:
			return fmt.Errorf("read the request body: %w", err)
		case b.Declared >= 0 && total > b.Declared:
			return fmt.Errorf("the request body is longer than the %d bytes declared", b.Declared)
		case err == io.EOF && b.Declared >= 0 && total < b.Declared:
			return fmt.Errorf("the request body ended after %d of the %d bytes declared: %w", total, b.Declared, io.ErrUnexpectedEOF)
		}
		// A body that has all its declared bytes ends with them: one more Read
		// might wait. The loop still looks for more than was declared.
		end := !b.trailers && (err == io.EOF || total == b.Declared)
		if (n > 0 || end) && !ended && !b.stream.Offer(buf[:room+n], end) {
			return nil
		}
		ended = ended || end
		if err == io.EOF {
			if b.trailers {
				return b.stream.SendTrailers()
			}
			return nil
		}
	}
}

// begin says whether the body may be read; if so the caller calls done after it.
func (b *Body) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	b.reading = true
	return true
}

// done ends what begin began, and says whether the body was stopped meanwhile.
func (b *Body) done() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	return b.stopped
}

// End closes the body, if Stop did not. Whoever calls Send calls it afterwards.
func (b *Body) End() {
	b.mu.Lock()
	closed := b.closed
	b.closed, b.stopped = true, true
	b.mu.Unlock()
	if !closed {
		_ = b.body.Close()
	}
}

// Stop ends Send; an error is told to the trace, nil is not. It never waits: a Read that
// is running is ended by a Close beside it, which may itself have to wait for that Read.
func (b *Body) Stop(err error) {
	b.mu.Lock()
	first := !b.stopped
	b.stopped = true
	beside := b.reading && !b.closed
	if beside {
		b.closed = true
	}
	b.mu.Unlock()
	if first && b.over != nil {
		close(b.over)
	}
	if beside {
		go b.closeBeside()
	}
	if first && err != nil {
		b.stream.WroteRequest(err)
	}
}

func (b *Body) closeBeside() { _ = b.body.Close() }

// AwaitContinue waits for 100, a final answer or [ContinueTimeout], if the request
// expects 100. It returns false if the body was stopped instead.
func (b *Body) AwaitContinue() bool {
	if b.proceed == nil {
		return true
	}
	if t := b.trace; t != nil && t.Wait100Continue != nil {
		t.Wait100Continue()
	}
	limit := time.NewTimer(ContinueTimeout)
	defer limit.Stop()
	select {
	case <-b.proceed:
	case <-limit.C:
	case <-b.over:
		return false
	}
	return true
}

// GoOn ends AwaitContinue.
func (b *Body) GoOn() {
	if b.proceed == nil {
		return
	}
	select {
	case b.proceed <- struct{}{}:
	default:
	}
}
