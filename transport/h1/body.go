// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"
)

// How a body ends.
const (
	none       = iota
	counted    // after its length
	chunked    // with the last chunk
	untilClose // with the connection
)

// maxChunkLine bounds the size of a chunk with its extensions.
const maxChunkLine = 4 << 10

// A body is the body of an answer, read from the connection by its reader.
type body struct {
	x    *exchange
	resp *http.Response
	kind int
	keep bool  // the connection may serve the next request
	left int64 // of the body, or of the chunk
	open bool  // a chunk's data are not over
	end  error // what Read returns from now on

	closed atomic.Bool
}

var errBodyClosed = errors.New("h1: the response body was closed")

// Read reads from the body; what it has it returns before it waits for more.
func (b *body) Read(p []byte) (int, error) {
	switch {
	case b.closed.Load():
		return 0, errBodyClosed
	case b.end != nil:
		return 0, b.end
	case len(p) == 0:
		return 0, nil
	}
	n, err := b.read(p)
	if err != nil {
		return n, b.finish(err)
	}
	return n, nil
}

// read reads once; io.EOF is the clean end.
func (b *body) read(p []byte) (int, error) {
	br := b.x.br
	switch b.kind {
	case untilClose:
		n, err := br.Read(p)
		return n, err
	case counted:
		n, err := br.Read(p[:min(int64(len(p)), b.left)])
		if b.left -= int64(n); b.left == 0 {
			return n, io.EOF
		}
		return n, unexpected(err)
	}
	got := 0
	for {
		if b.left == 0 {
			if got > 0 && !b.chunkIsThere() {
				return got, nil
			}
			if err := b.nextChunk(); err != nil {
				return got, err
			}
		}
		n, err := br.Read(p[got:min(int64(len(p)), int64(got)+b.left)])
		b.left -= int64(n)
		got += n
		if err != nil {
			return got, unexpected(err)
		}
		if got == len(p) || b.left > 0 && br.Buffered() == 0 {
			return got, nil
		}
	}
}

// chunkIsThere says whether the next chunk can be begun without waiting. The last
// one is left to the next Read, because of the trailers.
func (b *body) chunkIsThere() bool {
	there, _ := b.x.br.Peek(b.x.br.Buffered())
	if b.open {
		i := bytes.IndexByte(there, '\n')
		if i < 0 {
			return false
		}
		there = there[i+1:]
	}
	return len(there) > 0 && there[0] != '0' && bytes.IndexByte(there, '\n') > 0
}

// nextChunk reads what is between two chunks, and the trailers after the last,
// which is io.EOF (RFC 9112 §7.1).
func (b *body) nextChunk() error {
	br := b.x.br
	budget := maxChunkLine
	if b.open {
		line, err := readChunkedLine(br, &budget)
		if err != nil {
			return chunkError(err)
		}
		if len(line) > 0 {
			return badAnswer("a chunk is longer than it says")
		}
		b.open = false
	}
	line, err := readChunkedLine(br, &budget)
	if err != nil {
		return chunkError(err)
	}
	if b.left, err = chunkSize(line); err != nil {
		return err
	}
	if b.left > 0 {
		b.open = true
		return nil
	}
	budget = maxHeadBytes
	trailers, err := readFields(br, &budget, readChunkedLine)
	if err != nil {
		return unexpected(err)
	}
	for k, vs := range trailers {
		if !httpguts.ValidTrailerHeader(k) { // RFC 9110 §6.5.1
			continue
		}
		if b.resp.Trailer == nil {
			b.resp.Trailer = http.Header{}
		}
		b.resp.Trailer[k] = vs
	}
	return io.EOF
}

// chunkError keeps a chunk's line that is too long from being taken for a head.
func chunkError(err error) error { return unexpected(err) }

// chunkSize reads the size; extensions are ignored (§7.1.1).
func chunkSize(line []byte) (int64, error) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	line = bytes.TrimRight(line, " \t")
	if len(line) == 0 || len(line) > 15 {
		return 0, badAnswer("the size of a chunk is no number")
	}
	var n int64
	for _, c := range line {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, badAnswer("the size of a chunk is no number")
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// finish ends the body with err: io.EOF or nil if it is whole. It returns what
// the reader gets.
func (b *body) finish(err error) error {
	whole := err == nil || err == io.EOF
	if whole && b.x.freed.Load() {
		// We end the connection. An upstream that sees TLS's close_notify may end
		// its answer before our socket is closed: nobody knows what it left out.
		whole, err = false, errEnded
	}
	keep := whole && b.keep && b.x.br.Buffered() == 0
	if u := b.x.upload; u != nil && !u.finished() {
		keep = false // the rest of the request would be the next one's beginning
		u.cancel()
	}
	if whole {
		b.end = io.EOF
	} else {
		if why := b.x.c.verdict(); why != nil {
			err = why
		}
		b.end = cut(b.x.ctx, err)
	}
	if !b.closed.Load() { // else its reader may be in it
		b.recycle()
	}
	b.x.stop()
	b.x.release(keep)
	return b.end
}

func (b *body) recycle() {
	br := b.x.br
	b.x.br = nil
	br.Reset(nil)
	readers.Put(br)
}

// Close ends the answer. Before its end that ends the connection, which is how
// the upstream learns of it.
func (b *body) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	if u := b.x.upload; u != nil {
		u.cancel()
	}
	b.x.release(false) // nothing, if the end was reached
	return nil
}

// WriteTo writes each read at once.
func (b *body) WriteTo(w io.Writer) (int64, error) {
	buf := copyBuffers.Get().(*[copyBufferBytes + 64]byte)
	defer copyBuffers.Put(buf)
	var total int64
	for {
		n, err := b.Read(buf[:])
		if n > 0 {
			m, werr := w.Write(buf[:n])
			if total += int64(m); werr != nil {
				return total, werr
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return total, nil
		default:
			return total, err
		}
	}
}

// A socketBody is the connection behind a 101: reading, writing, and the end of
// one side alone.
type socketBody struct {
	x    *exchange
	once sync.Once
}

func (s *socketBody) Read(p []byte) (int, error) {
	if br := s.x.br; br != nil {
		if br.Buffered() > 0 || s.x.c.hasFirst {
			return br.Read(p)
		}
		s.x.br = nil // what came with the head is read: an idle socket holds no buffer
		br.Reset(nil)
		readers.Put(br)
	}
	return s.x.c.nc.Read(p)
}

// NetConn is the connection itself.
func (s *socketBody) NetConn() net.Conn { return s.x.c.nc }

func (s *socketBody) Write(p []byte) (int, error) { return s.x.c.nc.Write(p) }

// CloseWrite ends the sending side alone.
func (s *socketBody) CloseWrite() error {
	if c, ok := s.x.c.nc.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return fmt.Errorf("h1: %T cannot end one side alone: %w", s.x.c.nc, errors.ErrUnsupported)
}

func (s *socketBody) Close() error {
	s.once.Do(func() {
		s.x.stop()
		s.x.release(false)
	})
	return nil
}

// cut is what a reader gets of a body that is not whole.
func cut(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return asCut(err)
}
