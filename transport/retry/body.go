// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// blockBytes is the size of the pieces in which long bodies are kept.
const blockBytes = 32 << 10

var (
	// errGone is what a view reads whose bytes are not kept any more, and what
	// GetBody says then.
	errGone = errors.New("retry: the request body is not kept from its start")
	// errViewClosed is what a closed view reads.
	errViewClosed = errors.New("retry: the request body was closed")
)

var blocks = sync.Pool{New: func() any { return new([blockBytes]byte) }}

// A body is the app's request body. Each attempt reads it from its start through a
// view of its own; what has passed is kept for the next one. Views take turns at the
// app's body: what an abandoned view is still waiting for goes to the others too.
type body struct {
	src     io.ReadCloser
	limit   int64       // bytes that may be kept
	length  int64       // declared; 0 or less = unknown
	trailer http.Header // of the app's request; its values are there when src has ended
	names   []string    // announced in trailer
	take    func(int64) bool
	give    func(int64)

	mu      sync.Mutex // guards the fields below
	turn    sync.Cond  // on mu; views wait for the one that is reading src
	reading bool       // a Read of src is running, which may wait for the app
	initial view       // of the first attempt
	current *view      // the newest
	base    int64      // bytes [base, total) are kept
	total   int64      // bytes read from src
	blocks  [][]byte
	few     [4][]byte // what blocks begins in
	charged int64
	end     error // what src ended with
	over    bool  // no view from the start can be made any more
	settled bool  // none will be asked for
	closed  bool  // src
}

// init makes b the body of req.
func (b *body) init(req *http.Request, cfg *Config) {
	b.src, b.limit, b.length, b.trailer = req.Body, cfg.ReplayBody, req.ContentLength, req.Trailer
	b.take, b.give = cfg.Take, cfg.Give
	b.over = cfg.ReplayBody == 0
	b.blocks = b.few[:0]
	b.turn.L = &b.mu
	for name := range req.Trailer {
		b.names = append(b.names, name)
	}
}

// view returns a reader from the start, which takes the place of the one before. Its
// trailers are filled when it has read all.
func (b *body) view(trailer http.Header) (*view, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.startLocked() {
		return nil, errGone
	}
	if b.current != nil {
		b.current.closed = true
	}
	v := &b.initial
	if v.b != nil {
		v = new(view)
	}
	v.b, v.trailer = b, trailer
	b.current = v
	return v, nil
}

// beside returns a reader of a whole body, which leaves the one before in its place.
func (b *body) beside(trailer http.Header) (*view, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || b.end != io.EOF {
		return nil, errGone
	}
	return &view{b: b, trailer: trailer, second: true}, nil
}

// startLocked says whether the start is there for another view.
func (b *body) startLocked() bool {
	return !b.settled && b.base == 0 && (!b.over || b.total == 0)
}

// newTrailer returns the trailers for one attempt: the app's map is filled by
// whichever attempt reads the end.
func (b *body) newTrailer() http.Header {
	if b.trailer == nil {
		return nil
	}
	h := make(http.Header, len(b.names))
	for _, name := range b.names {
		h[name] = nil
	}
	return h
}

// replayable says whether a view can be had.
func (b *body) replayable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.startLocked()
}

// whole says whether the app has sent all of it and all is kept.
func (b *body) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.over && b.end == io.EOF
}

// broken says whether the app's body ended with an error.
func (b *body) broken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.end != nil && b.end != io.EOF
}

// settle ends the keeping: the answer has come. It says whether bytes stay that the
// current view has still to read; then their owner calls drop in the end. With hedged
// set all stay until then: which of two views is the one to read on is not known.
func (b *body) settle(hedged bool) (lingers bool) {
	b.mu.Lock()
	b.settled = true
	if !hedged {
		b.over = true
		b.restLocked()
	}
	lingers = b.charged > 0
	shut := b.current == nil || b.current.closed
	b.mu.Unlock()
	if shut {
		b.close()
	}
	return lingers
}

// restLocked drops what no view can need.
func (b *body) restLocked() {
	if b.over && (b.current == nil || b.current.closed || b.current.pos == b.total) {
		b.dropLocked()
	}
}

// drop forgets what is kept.
func (b *body) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over, b.settled = true, true
	b.dropLocked()
}

func (b *body) dropLocked() {
	for _, block := range b.blocks {
		if cap(block) == blockBytes {
			blocks.Put((*[blockBytes]byte)(block[:blockBytes]))
		}
	}
	clear(b.blocks)
	b.blocks, b.base = b.few[:0], b.total
	if b.charged > 0 {
		b.give(b.charged)
		b.charged = 0
	}
}

// close closes the app's body, once.
func (b *body) close() {
	b.mu.Lock()
	done := b.closed
	b.closed = true
	b.mu.Unlock()
	if !done {
		_ = b.src.Close() // it is read only
	}
}

// keepLocked keeps p, for which the budget has been asked unless must is set: then
// a view that waits needs it, whatever the limits say.
func (b *body) keepLocked(p []byte, must bool) bool {
	for len(p) > 0 {
		last := len(b.blocks) - 1
		if last < 0 || len(b.blocks[last]) == cap(b.blocks[last]) {
			size := int64(blockBytes)
			if left := b.length - b.total; b.length > 0 && left < blockBytes {
				size = max(left, int64(len(p))) // exact
			}
			if b.take(size) {
				b.charged += size
			} else if !must {
				return false
			}
			var block []byte
			if size < blockBytes {
				block = make([]byte, 0, size)
			} else {
				block = blocks.Get().(*[blockBytes]byte)[:0]
			}
			b.blocks = append(b.blocks, block)
			last++
		}
		n := min(len(p), cap(b.blocks[last])-len(b.blocks[last]))
		b.blocks[last] = append(b.blocks[last], p[:n]...)
		b.total += int64(n)
		p = p[n:]
	}
	return true
}

// copyLocked copies what is kept from pos on.
func (b *body) copyLocked(p []byte, pos int64) int {
	skip := pos - b.base
	n := 0
	for _, block := range b.blocks {
		if skip >= int64(len(block)) {
			skip -= int64(len(block))
			continue
		}
		n += copy(p[n:], block[skip:])
		if skip = 0; n == len(p) {
			break
		}
	}
	return n
}

// tookLocked notes what v read from src.
func (b *body) tookLocked(v *view, p []byte, err error) {
	before, mine := b.total, v == b.current && !v.closed
	switch {
	case len(p) == 0:
	case !mine && b.current != nil && !b.current.closed:
		b.keepLocked(p, true)
	case b.over || b.total+int64(len(p)) > b.limit || !b.keepLocked(p, false):
		b.over = true
	}
	b.total = before + int64(len(p)) // keepLocked may have stopped in the middle
	v.pos = b.total
	if err != nil {
		b.end = err
	}
	b.restLocked()
}

// A view is the body for one attempt.
type view struct {
	b       *body
	trailer http.Header // of the attempt; nil = none
	second  bool        // beside another one

	// Guarded by body.mu.
	pos    int64
	closed bool
}

// Read gives what is kept, and then reads on.
func (v *view) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b := v.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if n, err := v.keptLocked(p); n > 0 || err != nil {
			return n, err
		}
		if !b.reading {
			break
		}
		b.turn.Wait()
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.src.Read(p)
	b.mu.Lock()
	b.reading = false
	b.turn.Broadcast()
	b.tookLocked(v, p[:n], err)
	if err == io.EOF {
		v.trailersLocked()
	}
	return n, err
}

// keptLocked reads what needs no look at the app's body: 0, nil if there is nothing.
func (v *view) keptLocked(p []byte) (int, error) {
	b := v.b
	switch {
	case v.closed:
		return 0, errViewClosed
	case v.pos < b.base:
		return 0, errGone
	case v.pos < b.total:
		n := b.copyLocked(p, v.pos)
		v.pos += int64(n)
		if v == b.current {
			b.restLocked()
		}
		return n, nil
	case b.end == io.EOF:
		v.trailersLocked()
		return 0, io.EOF
	}
	return 0, b.end
}

// trailersLocked gives the trailers to the attempt, once the app has sent them.
func (v *view) trailersLocked() {
	if v != v.b.current && !v.second {
		return
	}
	for name := range v.trailer {
		v.trailer[name] = v.b.trailer[name]
	}
}

// Close ends the view. The app's body is closed when no other view will be made.
func (v *view) Close() error {
	b := v.b
	b.mu.Lock()
	v.closed = true
	b.turn.Broadcast()
	last := b.settled && v == b.current
	b.restLocked()
	b.mu.Unlock()
	if last {
		b.close()
	}
	return nil
}
