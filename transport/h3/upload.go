// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"errors"

	"github.com/quic-go/quic-go/quicvarint"
)

// dataHead is room for the header of a DATA frame before its bytes: one write for
// both.
const dataHead = 1 + 4

// sendBody reads the body and writes it to the stream.
func (s *stream) sendBody() {
	u := s.upload
	defer u.End()
	if !u.AwaitContinue() {
		return
	}
	pool := &s.c.large
	if u.Declared > 0 && u.Declared < smallChunk/2 {
		pool = &s.c.small
	}
	buf := pool.Get().(*[]byte)
	defer pool.Put(buf)
	if err := u.Send(*buf, dataHead); err != nil {
		s.WroteRequest(err)
		s.terminate(err, codeCancelled)
	}
}

// Offer sends the bytes in p after the room for a frame's header. It returns false if
// nobody wants them any more; why, the answer tells.
func (s *stream) Offer(p []byte, end bool) bool {
	if n := len(p) - dataHead; n > 0 {
		at := dataHead - 1 - quicvarint.Len(uint64(n))
		appendFrame(p[at:at], frameData, uint64(n))
		if _, err := s.str.Write(p[at:]); err != nil {
			s.WroteRequest(err)
			return false
		}
	}
	if end {
		_ = s.str.Close()
		s.WroteRequest(nil)
	}
	return true
}

// SendTrailers ends the body with the trailers that the app has filled in by now.
func (s *stream) SendTrailers() error {
	b, err := s.trailers(nil)
	if err != nil {
		return err
	}
	if len(b) > 0 {
		if _, err := s.str.Write(b); err != nil {
			s.WroteRequest(err)
			return nil
		}
	}
	_ = s.str.Close()
	s.WroteRequest(nil)
	return nil
}

// stopUpload ends the upload although the stream is open: the final answer is an
// error and does not need the rest. The stream is reset only after the answer, or
// the peer might drop that as well.
func (s *stream) stopUpload() {
	s.upload.Stop(errors.New("h3: the upstream answered before the request's body was sent"))
}
