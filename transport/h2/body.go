// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"net/http"

	"golang.org/x/net/http2"
)

// Sizes of a stream's buffers. A token of a model's answer is 100 to 400 bytes;
// a stream that holds nothing has no buffer.
const (
	smallChunk = 2 << 10
	largeChunk = 16 << 10
	readBuffer = 16 << 10
)

var errEOF = io.EOF

// A chunk is a piece of what has arrived: b[r:w].
type chunk struct {
	b    []byte
	r, w int
	next *chunk
}

func (c *Conn) newChunk(n int) *chunk {
	if n <= smallChunk {
		return c.small.Get().(*chunk)
	}
	return c.large.Get().(*chunk)
}

func (c *Conn) freeChunk(ch *chunk) {
	ch.r, ch.w, ch.next = 0, 0, nil
	if len(ch.b) == smallChunk {
		c.small.Put(ch)
	} else {
		c.large.Put(ch)
	}
}

// putLocked adds p to what has arrived.
func (s *stream) putLocked(p []byte) {
	s.buffered += len(p)
	if s.last != nil {
		n := copy(s.last.b[s.last.w:], p)
		s.last.w += n
		p = p[n:]
	}
	for len(p) > 0 {
		ch := s.c.newChunk(len(p))
		ch.w = copy(ch.b, p)
		p = p[ch.w:]
		s.linkLocked(ch)
	}
}

func (s *stream) linkLocked(ch *chunk) {
	if s.last == nil {
		s.first = ch
	} else {
		s.last.next = ch
	}
	s.last = ch
}

// popLocked takes the first chunk out.
func (s *stream) popLocked() *chunk {
	ch := s.first
	s.first = ch.next
	if s.first == nil {
		s.last = nil
	}
	ch.next = nil
	return ch
}

func (s *stream) dropChunksLocked() {
	for s.first != nil {
		s.c.freeChunk(s.popLocked())
	}
	s.buffered = 0
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
	s.mu.Lock()
	for s.first == nil && s.end == nil {
		s.arrived.Wait()
	}
	if s.first == nil {
		return 0, s.overUnlock()
	}
	n := 0
	for s.first != nil && n < len(p) {
		ch := s.first
		m := copy(p[n:], ch.b[ch.r:ch.w])
		ch.r += m
		n += m
		if ch.r == ch.w {
			s.c.freeChunk(s.popLocked())
		}
	}
	s.buffered -= n
	grant := s.grantLocked()
	s.mu.Unlock()
	if grant > 0 {
		s.c.updateWindow(s, grant)
	}
	return n, nil
}

// Buffered is how many bytes have come and wait for a Read.
func (b *body) Buffered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffered
}

// WriteTo writes what arrives, when it arrives, without a copy in between. A
// chunk counts as consumed once w has taken it.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	s := (*stream)(b)
	var total int64
	for {
		s.mu.Lock()
		for s.first == nil && s.end == nil {
			s.arrived.Wait()
		}
		if s.first == nil {
			err := s.overUnlock()
			if err == io.EOF {
				err = nil
			}
			return total, err
		}
		ch := s.gatherLocked()
		s.mu.Unlock()
		n, err := w.Write(ch.b[ch.r:ch.w])
		total += int64(n)
		if err == nil && n < ch.w-ch.r {
			err = io.ErrShortWrite
		}
		if err != nil {
			s.c.freeChunk(ch)
			return total, err
		}
		s.mu.Lock()
		if s.buffered -= n; s.buffered < 0 {
			s.buffered = 0 // dropped meanwhile
		}
		grant := s.grantLocked()
		s.mu.Unlock()
		s.c.freeChunk(ch)
		if grant > 0 {
			s.c.updateWindow(s, grant)
		}
	}
}

// gatherLocked takes what has arrived, as much of it as one chunk holds: a writer that
// could not keep up is given it in few writes.
func (s *stream) gatherLocked() *chunk {
	ch := s.popLocked()
	if s.first == nil {
		return ch
	}
	if len(ch.b) == smallChunk {
		big := s.c.newChunk(largeChunk)
		big.w = copy(big.b, ch.b[ch.r:ch.w])
		s.c.freeChunk(ch)
		ch = big
	}
	for next := s.first; next != nil && next.w-next.r <= len(ch.b)-ch.w; next = s.first {
		ch.w += copy(ch.b[ch.w:], next.b[next.r:next.w])
		s.c.freeChunk(s.popLocked())
	}
	return ch
}

// overUnlock is the end of the body: trailers, and nothing in flight any more.
func (s *stream) overUnlock() error {
	err := s.end
	trailer := s.trailer
	s.trailer = nil
	released := s.over
	resp := s.resp
	s.mu.Unlock()
	if err == io.EOF {
		for k, v := range trailer {
			if resp.Trailer == nil {
				resp.Trailer = make(http.Header, len(trailer))
			}
			resp.Trailer[k] = v
		}
		if s.tunnel != noTunnel && !s.sendingEnded() {
			return err // half closed: the tunnel's other way is still in use
		}
	}
	if !released {
		s.release()
	}
	return err
}

func (s *stream) sendingEnded() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.gone
}

// Close ends the answer. Before its end that cancels the stream at once.
func (b *body) Close() error {
	s := (*stream)(b)
	s.mu.Lock()
	over := errors.Is(s.end, errBodyClosed)
	s.mu.Unlock()
	if !over {
		s.terminate(errBodyClosed, http2.ErrCodeCancel, true)
	}
	return nil
}
