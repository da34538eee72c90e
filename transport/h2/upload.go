// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// An upload is a request's body on its way out, read by a goroutine of its own:
// a Read may wait for the app for long.
type upload struct {
	s        *stream
	body     io.ReadCloser
	declared int64         // -1 = unknown
	proceed  chan struct{} // of Expect: 100-continue; nil = none. Holds a token.
	over     chan struct{} // closed by stop; nil without proceed

	mu      sync.Mutex // guards the fields below
	reading bool       // a Read is running
	stopped bool
	closed  bool // Close was called, or is about to be
}

func newUpload(s *stream) *upload {
	req := s.req
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	u := &upload{s: s, body: req.Body, declared: declaredLength(req)}
	if expects(req.Header) {
		u.proceed, u.over = make(chan struct{}, 1), make(chan struct{})
	}
	return u
}

// declaredLength is the length of req's body, -1 if unknown. As in net/http, 0
// beside a body means unknown.
func declaredLength(req *http.Request) int64 {
	if req.Body == nil || req.Body == http.NoBody {
		return 0
	}
	if req.ContentLength > 0 {
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

// run reads the body and offers it to the writer.
func (u *upload) run() {
	defer u.end()
	if u.proceed != nil && !u.awaitContinue() {
		return
	}
	c := u.s.c
	ch := c.newChunk(u.bufferSize())
	defer c.freeChunk(ch)
	if err := u.copy(ch.b); err != nil {
		u.s.wroteRequest(err)
		u.s.terminate(err, http2.ErrCodeCancel, false)
	}
}

func (u *upload) bufferSize() int {
	if u.declared > 0 && u.declared < smallChunk {
		return smallChunk
	}
	return largeChunk
}

// copy sends the body through buf. It returns nil at its end, and when nobody
// wants the rest.
func (u *upload) copy(buf []byte) error {
	s := u.s
	trailers := len(s.req.Trailer) > 0
	var total int64
	ended := false
	for {
		if !u.begin() {
			return nil
		}
		n, err := u.body.Read(buf)
		if u.done() {
			return nil // its Read may have failed because it was closed
		}
		total += int64(n)
		switch {
		case err != nil && err != io.EOF:
			return fmt.Errorf("read the request body: %w", err)
		case u.declared >= 0 && total > u.declared:
			return fmt.Errorf("h2: the request body is longer than the %d bytes declared", u.declared)
		case err == io.EOF && u.declared >= 0 && total < u.declared:
			return fmt.Errorf("h2: the request body ended after %d of the %d bytes declared: %w", total, u.declared, io.ErrUnexpectedEOF)
		}
		// A body that has all its declared bytes ends with them: one more Read
		// might wait. The loop still looks for more than was declared.
		end := !trailers && (err == io.EOF || total == u.declared)
		if (n > 0 || end) && !ended && !s.offer(buf[:n], end) {
			return nil
		}
		ended = ended || end
		if err == io.EOF {
			if trailers {
				return s.sendTrailers()
			}
			return nil
		}
	}
}

// begin says whether the body may be read; if so the caller calls done after it.
func (u *upload) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stopped {
		return false
	}
	u.reading = true
	return true
}

// done ends what begin began, and says whether the upload was stopped meanwhile.
func (u *upload) done() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = false
	return u.stopped
}

// end closes the body, if stop did not.
func (u *upload) end() {
	u.mu.Lock()
	closed := u.closed
	u.closed, u.stopped = true, true
	u.mu.Unlock()
	if !closed {
		_ = u.body.Close()
	}
}

// stop ends the upload. It never waits: a Read that is running is ended by a
// Close beside it, which may itself have to wait for that Read.
func (u *upload) stop(err error) {
	u.mu.Lock()
	first := !u.stopped
	u.stopped = true
	beside := u.reading && !u.closed
	if beside {
		u.closed = true
	}
	u.mu.Unlock()
	if first && u.over != nil {
		close(u.over)
	}
	if beside {
		go u.closeBeside()
	}
	if first && err != nil {
		u.s.wroteRequest(err)
	}
}

func (u *upload) closeBeside() { _ = u.body.Close() }

// awaitContinue waits for 100, a final answer or the limit (RFC 9110 §10.1.1).
func (u *upload) awaitContinue() bool {
	if t := u.s.trace; t != nil && t.Wait100Continue != nil {
		t.Wait100Continue()
	}
	limit := time.NewTimer(continueTimeout)
	defer limit.Stop()
	select {
	case <-u.proceed:
	case <-limit.C:
	case <-u.over:
		return false
	}
	return true
}

// goOn ends awaitContinue.
func (u *upload) goOn() {
	if u.proceed == nil {
		return
	}
	select {
	case u.proceed <- struct{}{}:
	default:
	}
}

// offer gives p to the writer and waits until it is taken. It returns false if
// nobody wants it any more.
func (s *stream) offer(p []byte, end bool) bool {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.gone || s.enough || c.dead {
		return false
	}
	if len(p) == 0 {
		c.writeDataLocked(s, nil, end)
		c.out.wake.Signal()
		return true
	}
	if n := int64(len(p)); c.uploads.empty() && s.turn != c.out.turn && len(c.out.buf)+len(p) <= c.out.round && len(p) <= c.frameLimit() &&
		n <= s.sendWindow && n <= c.sendWindow {
		// Nobody is before it and the next write has room: a turn of the writer
		// saved. Once a write, or the body that is read fastest would have it all.
		s.turn = c.out.turn
		s.sendWindow -= n
		c.sendWindow -= n
		c.out.data += len(p)
		c.writeDataLocked(s, p, end)
		c.out.wake.Signal()
		return true
	}
	s.body, s.bodyEnd, s.offered = p, end, true
	if s.sendWindow > 0 {
		c.uploads.add(s)
		c.out.wake.Signal()
	}
	for s.offered && !s.gone && !s.enough && !c.dead {
		s.taken.Wait()
	}
	wanted := !s.offered && len(s.body) == 0
	s.body, s.offered = nil, false
	return wanted
}

// stopUpload ends the upload although the stream is open: the final answer is an
// error and does not need the rest.
func (s *stream) stopUpload() {
	if s.upload == nil {
		return
	}
	s.c.mu.Lock()
	s.enough = true
	s.taken.Broadcast()
	s.c.mu.Unlock()
	s.upload.stop(errors.New("h2: the upstream answered before the request's body was sent"))
}
