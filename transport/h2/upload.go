// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"

	"golang.org/x/net/http2"
)

// sendBody reads the body and offers it to the writer.
func (s *stream) sendBody() {
	defer s.upload.End()
	if !s.upload.AwaitContinue() {
		return
	}
	size := largeChunk
	if n := s.upload.Declared; n > 0 && n < smallChunk {
		size = smallChunk
	}
	ch := s.c.newChunk(size)
	defer s.c.freeChunk(ch)
	if err := s.upload.Send(ch.b, 0); err != nil {
		s.WroteRequest(err)
		s.terminate(err, http2.ErrCodeCancel, false)
	}
}

// Offer gives p to the writer and waits until it is taken. It returns false if
// nobody wants it any more.
func (s *stream) Offer(p []byte, end bool) bool {
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
	s.upload.Stop(errors.New("h2: the upstream answered before the request's body was sent"))
}
