// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"errors"
	"io"
	"math"
	"net/http"
	"sync"
)

// Sizes of buffers. What has arrived and is not read is in the library, within the
// stream's window; a stream that waits holds none of these.
const (
	smallChunk = 4 << 10
	largeChunk = 16 << 10
)

func chunks(size int) sync.Pool {
	return sync.Pool{New: func() any { b := make([]byte, size); return &b }}
}

// body is a stream seen as its answer's Body.
type body stream

var _ io.WriterTo = (*body)(nil)

// Read waits for bytes.
func (b *body) Read(p []byte) (int, error) {
	s := (*stream)(b)
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if err := s.ended(); err != nil {
			return 0, err
		}
		n, err := s.fill(p)
		if m, terr := s.take(p[:n]); m > 0 || terr != nil {
			// What came with an error goes first; the error is there the next time.
			if m > 0 {
				if err == io.EOF && terr == nil {
					_ = s.over()
				}
				return m, nil
			}
			return 0, terr
		}
		switch {
		case err == io.EOF:
			return 0, s.over()
		case err != nil:
			return 0, s.failed(err)
		}
	}
}

// fill reads raw bytes, of what came with the head first.
func (s *stream) fill(p []byte) (int, error) {
	if r := &s.read; len(r.raw) > 0 {
		n := copy(p, r.raw)
		if r.raw = r.raw[n:]; len(r.raw) == 0 {
			s.dropChunk()
		}
		return n, nil
	}
	n, err := s.str.Read(p)
	if n > 0 {
		s.c.heard()
	}
	return n, err
}

// take takes raw bytes apart, and moves those of the body to the front of p.
func (s *stream) take(p []byte) (int, error) {
	r := &s.read
	n := 0
	for rest := p; len(rest) > 0; {
		what, b, after, err := r.frames.next(rest)
		rest = after
		if err == nil {
			err = s.check(what, b)
		}
		if err != nil {
			return n, s.broke(err)
		}
		if what == payload {
			n += copy(p[n:], b) // it is never before n
		}
	}
	return n, nil
}

// check judges a part of the answer that comes after its head.
func (s *stream) check(what part, b []byte) error {
	r := &s.read
	switch what {
	case nothing:
		return nil
	case block:
		return s.onTrailers(b)
	}
	if r.got += int64(len(b)); r.got > r.recharge {
		s.charge()
	}
	switch {
	case r.trailers:
		return violation(codeFrameUnexpected, "DATA after the trailers") // RFC 9114 §4.1
	case r.bodyless:
		return errors.New("it has a body where none may be")
	case r.declared >= 0 && r.got > r.declared:
		return errors.New("it is longer than the length it declared")
	}
	return nil
}

// charge tells the budget what the library may hold for the app by now: it doubles a
// window when half of it has been read within two round trips, so a window is never
// more than it was at first and twice what has been read.
func (s *stream) charge() {
	cfg, r := &s.c.cfg, &s.read
	window := min(int64(cfg.StreamWindow)+2*r.got, int64(cfg.MaxStreamWindow))
	if r.recharge = 2*r.got + int64(cfg.StreamWindow)/2; window == int64(cfg.MaxStreamWindow) {
		r.recharge = math.MaxInt64 // it grows no more
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.released {
		s.account.Resize(max(0, window-firstWindow))
	}
}

// onTrailers puts the fields after the body where the app looks for them.
func (s *stream) onTrailers(p []byte) error {
	r := &s.read
	if r.trailers {
		return violation(codeFrameUnexpected, "HEADERS after the trailers")
	}
	r.trailers = true
	var fs section
	if err := fs.decode(p, maxHeadBytes); err != nil {
		return err
	}
	if pseudo(fs.fields) {
		return errors.New("its trailers have a pseudo-header field")
	}
	for k, v := range s.c.coder.header(fs.fields) {
		if r.resp.Trailer == nil {
			r.resp.Trailer = make(http.Header, len(fs.fields))
		}
		r.resp.Trailer[k] = v
	}
	return nil
}

// over is the end of the stream, which is that of the body if nothing is missing.
func (s *stream) over() error {
	if err := s.atEnd(); err != nil {
		return err
	}
	s.finish()
	return s.ended()
}

// WriteTo writes what arrives, when it arrives. While nothing does, it holds no
// buffer.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	s := (*stream)(b)
	var total int64
	for {
		if len(s.read.raw) == 0 && s.ended() == nil {
			var one [1]byte
			_, _ = s.str.Peek(one[:]) // its error is the Read's as well
		}
		buf := s.c.large.Get().(*[]byte)
		n, err := b.Read(*buf)
		if n > 0 {
			m, werr := w.Write((*buf)[:n])
			total += int64(m)
			if werr == nil && m < n {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				err = werr
				n = 0
			}
		}
		s.c.large.Put(buf)
		switch {
		case err == io.EOF:
			return total, nil
		case err != nil:
			return total, err
		}
	}
}

// Close ends the answer. Before its end that cancels the stream at once.
func (b *body) Close() error {
	s := (*stream)(b)
	s.terminate(errBodyClosed, codeCancelled)
	s.mu.Lock()
	s.end = errBodyClosed
	s.mu.Unlock()
	return nil
}
