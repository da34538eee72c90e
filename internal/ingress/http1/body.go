// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"io"
	"maps"
	"net/http"
	"os"
	"time"
)

// bodyState is the request body as the reader sees it; guarded by conn.mu.
type bodyState struct {
	req     *http.Request
	open    bool // bytes of it are still to come
	chunked bool
	remain  int64 // to come, if not chunked
	dec     chunkDecoder
	err     error         // after what is buffered; nil is io.EOF
	refusal *RequestError // err, if it is the client's fault
	closed  bool          // the handler wants no more of it
	ended   bool          // its end was read, trailers are filled in
	limit   time.Time     // for Read; zero is none
	timer   *time.Timer   // wakes Read at limit
}

// decodeLocked takes the framing off the bytes in in[w:e].
func (c *conn) decodeLocked() {
	b := &c.body
	if !b.open {
		return
	}
	if b.refusal != nil { // what follows a framing error has no meaning
		c.e = c.w
		return
	}
	if !b.chunked {
		n := int(min(b.remain, int64(c.e-c.w)))
		c.w += n
		b.remain -= int64(n)
		b.open = b.remain > 0
	} else {
		raw := c.in[c.w:c.e]
		n, used, refusal := b.dec.decode(raw)
		rest := copy(raw[n:], raw[used:])
		c.w += n
		c.e = c.w + rest
		if refusal == nil && b.dec.state == chunkDone {
			b.open = false
			_, refusal = b.dec.fields()
		}
		if refusal != nil {
			b.open = true // where this body ends is unknown for good
			b.refusal = refusal
			b.err = refusal
			c.e = c.w
		}
	}
	if b.closed {
		c.r = c.w // keeps a client going that reads no answer before it has sent all
	}
}

// failBodyLocked ends a body that did not arrive whole.
func (c *conn) failBodyLocked(err error) {
	if c.body.open && c.body.err == nil {
		c.body.err = err
	}
	c.cond.Broadcast()
}

// A body is the Body of a request.
type body struct{ c *conn }

// Read returns what has arrived, and waits if that is nothing.
func (b *body) Read(p []byte) (int, error) {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.body
	if c.cur == nil || &c.cur.body != b || s.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(p) == 0 {
		return 0, nil
	}
	for c.r == c.w && s.open && s.err == nil {
		if !s.limit.IsZero() && !time.Now().Before(s.limit) {
			return 0, os.ErrDeadlineExceeded
		}
		c.cond.Wait()
		if c.cur == nil || &c.cur.body != b || s.closed {
			return 0, http.ErrBodyReadAfterClose
		}
	}
	n := copy(p, c.in[c.r:c.w])
	c.r += n
	if c.parked && c.roomLocked() >= largeSize/2 {
		c.kickLocked()
	}
	switch {
	case c.r < c.w:
		return n, nil
	case s.err != nil:
		return n, s.err
	case s.open:
		return n, nil
	}
	if !s.ended {
		s.ended = true
		if s.chunked {
			h, _ := s.dec.fields() // was checked when it arrived
			maps.Copy(s.req.Trailer, h)
		}
	}
	return n, io.EOF
}

// Close makes Read fail. What still arrives is discarded while the handler runs.
func (b *body) Close() error {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cur == nil || &c.cur.body != b || c.body.closed {
		return nil
	}
	c.body.closed = true
	c.r = c.w
	if c.parked {
		c.kickLocked()
	}
	c.cond.Broadcast()
	return nil
}

// setReadDeadline bounds the waits of Read.
func (b *body) setReadDeadline(t time.Time) {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cur == nil || &c.cur.body != b {
		return
	}
	if c.body.timer != nil {
		c.body.timer.Stop()
		c.body.timer = nil
	}
	c.body.limit = t
	if !t.IsZero() {
		c.body.timer = time.AfterFunc(time.Until(t), func() {
			c.mu.Lock()
			c.cond.Broadcast()
			c.mu.Unlock()
		})
	}
}
