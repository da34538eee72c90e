// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go/quicvarint"
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

// run reads the body and writes it to the stream.
func (u *upload) run() {
	defer u.end()
	if u.proceed != nil && !u.awaitContinue() {
		return
	}
	pool := &u.s.c.large
	if u.declared > 0 && u.declared < smallChunk/2 {
		pool = &u.s.c.small
	}
	buf := pool.Get().(*[]byte)
	defer pool.Put(buf)
	if err := u.copy(*buf); err != nil {
		u.s.wroteRequest(err)
		u.s.terminate(err, codeCancelled)
	}
}

// dataHead is room for the header of a DATA frame before its bytes: one write for
// both.
const dataHead = 1 + 4

// copy sends the body through buf. It returns nil at its end, and when nobody
// wants the rest; err is the app's fault.
func (u *upload) copy(buf []byte) error {
	s := u.s
	trailers := len(s.req.Trailer) > 0
	var total int64
	ended := false
	for {
		if !u.begin() {
			return nil
		}
		n, err := u.body.Read(buf[dataHead:])
		if u.done() {
			return nil // its Read may have failed because it was closed
		}
		total += int64(n)
		switch {
		case err != nil && err != io.EOF:
			return fmt.Errorf("read the request body: %w", err)
		case u.declared >= 0 && total > u.declared:
			return fmt.Errorf("h3: the request body is longer than the %d bytes declared", u.declared)
		case err == io.EOF && u.declared >= 0 && total < u.declared:
			return fmt.Errorf("h3: the request body ended after %d of the %d bytes declared: %w", total, u.declared, io.ErrUnexpectedEOF)
		}
		if n > 0 && !u.write(buf, n) {
			return nil
		}
		// A body that has all its declared bytes ends with them: one more Read
		// might wait. The loop still looks for more than was declared.
		if !ended && !trailers && (err == io.EOF || total == u.declared) {
			ended = true
			_ = s.str.Close()
			s.wroteRequest(nil)
		}
		if err == io.EOF {
			if trailers {
				return u.sendTrailers()
			}
			return nil
		}
	}
}

// write sends the n bytes in buf after the room for a frame's header. It returns
// false if nobody wants them any more; why, the answer tells.
func (u *upload) write(buf []byte, n int) bool {
	at := dataHead - 1 - quicvarint.Len(uint64(n))
	appendFrame(buf[at:at], frameData, uint64(n))
	_, err := u.s.str.Write(buf[at : dataHead+n])
	if err != nil {
		u.s.wroteRequest(err)
	}
	return err == nil
}

func (u *upload) sendTrailers() error {
	b, err := u.s.trailers(nil)
	if err != nil {
		return err
	}
	if len(b) > 0 {
		if _, err := u.s.str.Write(b); err != nil {
			u.s.wroteRequest(err)
			return nil
		}
	}
	_ = u.s.str.Close()
	u.s.wroteRequest(nil)
	return nil
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

// enough ends the upload although the stream is open: the final answer is an
// error and does not need the rest. The stream is reset only after the answer, or
// the peer might drop that as well.
func (u *upload) enough() {
	u.stop(fmt.Errorf("h3: the upstream answered before the request's body was sent"))
}

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
