// SPDX-License-Identifier: Apache-2.0

package resume

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	readBytes  = 4 << 10  // of a stream at once, as long as its events are small
	spareBytes = 64 << 10 // a buffer that has grown beyond is not kept when it is empty
)

// What a stream does with what it reads.
type mode int

const (
	looking mode = iota // for the first event; bytes pass as they come
	whole               // events pass whole
	passing             // bytes pass as they come, for good
)

// A stream is the body of an answer that may be continued.
type stream struct {
	t           *Transport
	req         *http.Request
	path, query string // of req

	mu     sync.Mutex    // guards the fields below
	body   io.ReadCloser // the present one; read without the lock
	closed bool
	ctx    context.Context    // of continuations; nil before the first
	cancel context.CancelFunc // nil before the first
	held   int64              // bytes that Take has given

	// Owned by Read.
	mode      mode
	scan      scanner
	orphan    bool   // an event that was left out ended with CR: a LF would belong to it
	buf       []byte // looking: a copy of the first event; else what was read
	off       int    // bytes of buf that have passed
	ready     int    // bytes of buf that may pass
	broke     error  // what the present body ended with; nil = it has not
	cause     error  // what the last body that was continued ended with
	id        string
	last      int64 // the latest number that may pass; -1 = none
	gaps      bool  // the server leaves numbers out by itself
	continued bool  // the present body is a continuation
	seam      bool  // of which no new event has come yet
	done      bool  // the terminal event has come: a clean end is one
	tries     int   // since the last new event
}

// Read reads on, from another body where the present one has broken.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	switch s.mode {
	case looking:
		return s.look(p)
	case whole:
		if n, err, ok := s.events(p); ok {
			return n, err
		}
	}
	return s.pass(p)
}

// pass gives what is left, and then reads for the app.
func (s *stream) pass(p []byte) (int, error) {
	if s.off < len(s.buf) {
		n := copy(p, s.buf[s.off:])
		s.off += n
		return n, nil
	}
	s.buf, s.off = nil, 0
	s.hold()
	if s.broke != nil {
		return 0, s.broke
	}
	return s.body.Read(p)
}

// look reads for the app, and looks whether this is a stream to be continued.
func (s *stream) look(p []byte) (int, error) {
	n, err := s.body.Read(p)
	from := 0
	for from < n {
		held := len(s.buf)
		s.buf = append(s.buf, p[from:n]...)
		end := s.scan.next(s.buf)
		if end == 0 {
			if len(s.buf) > MaxEvent || !s.hold() {
				s.mode, s.buf = passing, nil
				s.hold()
			}
			return n, err
		}
		from += end - held
		data, hasData := data(s.buf[:end])
		if !hasData { // a comment
			s.buf = s.buf[:0]
			continue
		}
		id, first, ok := resumable(data)
		s.buf = s.buf[:0]
		if !ok {
			s.mode, s.buf = passing, nil
			return n, err
		}
		s.mode, s.id, s.last, s.broke = whole, id, first, err
		s.buf = append(s.buf, p[from:n]...)
		return from, nil
	}
	return n, err
}

// events gives whole events. It is not ok when the stream has turned to passing.
func (s *stream) events(p []byte) (n int, err error, ok bool) {
	for {
		if s.off < s.ready {
			n := copy(p, s.buf[s.off:s.ready])
			s.off += n
			return n, nil, true
		}
		switch {
		case s.mode == passing:
			return 0, nil, false
		case s.take():
		case len(s.buf)-s.ready > MaxEvent:
			s.mode = passing
			s.t.cfg.OnResume(TooLarge)
		case s.broke == nil:
			if !s.fill() {
				s.mode = passing
				s.t.cfg.OnResume(NoMemory)
			}
		case s.broke == io.EOF && s.done:
			s.mode = passing
		default:
			result := s.resume()
			s.t.cfg.OnResume(result)
			if result == Resumed {
				break
			}
			s.mode = passing
			if cause := context.Cause(s.req.Context()); cause != nil {
				s.broke = cause // not the server's clean end, if it was one
			}
		}
	}
}

// hold has the budget know how large the buffer is, and says whether it has room.
func (s *stream) hold() bool {
	want := int64(max(cap(s.buf)-readBytes, 0))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch more := want - s.held; {
	case s.closed: // Close has given all back
		return true
	case more > 0 && !s.t.cfg.Take(more):
		return false
	case more < 0:
		s.t.cfg.Give(-more)
	}
	s.held = want
	return true
}

// fill reads some more of the present body, if there is room for it.
func (s *stream) fill() bool {
	if s.off > 0 { // all that was ready has passed
		s.buf = s.buf[:copy(s.buf, s.buf[s.off:])]
		s.off, s.ready = 0, 0
	}
	if len(s.buf) == 0 && cap(s.buf) > spareBytes {
		s.buf = nil
	}
	if cap(s.buf)-len(s.buf) < readBytes {
		s.buf = slices.Grow(s.buf, readBytes)
	}
	if !s.hold() {
		return false
	}
	room := min(cap(s.buf)-len(s.buf), MaxEvent+readBytes-len(s.buf)) // what is here is less than MaxEvent
	n, err := s.body.Read(s.buf[len(s.buf) : len(s.buf)+room])
	s.buf, s.broke = s.buf[:len(s.buf)+n], err
	return true
}

// take looks for whole events, and says whether one may pass now.
func (s *stream) take() bool {
	for s.mode == whole {
		if s.orphan && len(s.buf) > s.ready {
			s.orphan, s.scan.cr = false, false
			if s.buf[s.ready] == '\n' {
				s.buf = slices.Delete(s.buf, s.ready, s.ready+1)
			}
		}
		end := s.scan.next(s.buf[s.ready:])
		if end == 0 {
			break
		}
		e := parse(s.buf[s.ready : s.ready+end])
		switch s.admit(e) {
		case pass:
			s.ready += end
		case skip:
			s.buf = slices.Delete(s.buf, s.ready, s.ready+end)
			s.orphan = s.scan.cr
		case gap:
			s.buf = s.buf[:s.ready]
			s.broke = s.cause
			return s.off < s.ready
		}
		switch e.kind {
		case "end":
			s.done = true
		case "error", "[DONE]":
			s.mode = passing
		}
	}
	return s.off < s.ready
}

// What becomes of an event.
type fate int

const (
	pass fate = iota
	skip      // the app has it
	gap       // those before it are missing
)

// admit judges an event by its number, and notes it if it passes. One without a
// number passes: nobody can know where it belongs.
func (s *stream) admit(e event) fate {
	n := e.sequence
	switch {
	case !e.numbered:
		return pass
	case s.continued && n <= s.last:
		return skip
	case s.seam && n > s.last+1 && !s.gaps:
		return gap
	case n > s.last:
		s.gaps = s.gaps || n > s.last+1
		s.last, s.tries, s.seam = n, 0, false
	}
	return pass
}

// resume looks for another body that goes on after the last number.
func (s *stream) resume() Result {
	s.cause = s.broke
	_ = s.body.Close() // it is over
	ctx, ok := s.begin()
	if !ok {
		return AppGone
	}
	var asked time.Duration
	for {
		if s.tries >= s.t.cfg.MaxAttempts {
			return Failed
		}
		s.tries++
		if !sleep(ctx, max(asked, s.delay())) {
			return AppGone
		}
		resp, err := s.t.next.RoundTrip(continuation(ctx, s.req, s.path, s.query, s.id, s.last))
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = resp.Body.Close()
			}
			return AppGone
		case err != nil:
		case resp.StatusCode == http.StatusOK && isEvents(resp):
			if !s.install(resp.Body) {
				return AppGone
			}
			return Resumed
		default:
			_ = resp.Body.Close()
			if !mayWork(resp) {
				return Refused
			}
			if asked = retryAfter(resp); asked > s.t.cfg.MaxDelay {
				return Refused
			}
		}
	}
}

// begin returns the context of continuations, which Close ends.
func (s *stream) begin() (context.Context, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.req.Context().Err() != nil {
		return nil, false
	}
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancel(s.req.Context())
	}
	return s.ctx, true
}

// install makes body the present one. The half event of the one before is dropped:
// it comes again.
func (s *stream) install(body io.ReadCloser) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = body.Close()
		return false
	}
	s.body = body
	s.buf, s.off, s.ready, s.scan, s.orphan = s.buf[:0], 0, 0, scanner{}, false
	s.broke, s.continued, s.seam = nil, true, true
	return true
}

// delay is a random part of a back-off that doubles: the streams of a server that
// goes away all break at once.
func (s *stream) delay() time.Duration {
	cfg := &s.t.cfg
	return time.Duration(cfg.Rand() * float64(min(cfg.BaseDelay<<min(s.tries-1, 16), cfg.MaxDelay)))
}

// sleep waits, and says whether ctx is still there.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// mayWork says whether an answer that is no stream may be another one the next time.
func mayWork(resp *http.Response) bool {
	if strings.EqualFold(resp.Header.Get("X-Should-Retry"), "false") {
		return false
	}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return resp.StatusCode >= 500
}

// retryAfter is how many seconds an answer asks to be left alone. Its other forms are
// those of the layer below, which has waited already.
func retryAfter(resp *http.Response) time.Duration {
	n, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// Close ends the stream, and a Read that waits for a continuation.
func (s *stream) Close() error {
	s.mu.Lock()
	s.closed = true
	body, cancel := s.body, s.cancel
	if s.held > 0 {
		s.t.cfg.Give(s.held)
		s.held = 0
	}
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return body.Close()
}
