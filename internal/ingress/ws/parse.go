// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"errors"
	"sync"
)

// wholeFrame is the longest payload of a frame that is passed on as one. A longer
// one goes on in fragments as it comes.
const wholeFrame = 64 << 10 // 64 KiB

// maxShown is the longest message that Config.Show is given.
const maxShown = 4 << 10 // 4 KiB

// Sizes of blocks. Before the bytes of each is room for the header of a fragment
// that begins with them.
const (
	headroom   = maxHeader
	idleBlock  = 512      // an idle direction has one
	smallBlock = 4 << 10  // 4 KiB
	midBlock   = 16 << 10 // 16 KiB
	bigBlock   = wholeFrame + maxHeader
)

// A block holds bytes of one direction, from the one read to their writing.
type block struct {
	buf  []byte // with headroom
	r, e int    // what is in it and not parsed yet: buf[r:e]
	out  []piece
}

// A piece of a block is to be written in one go.
type piece struct {
	start, end int
	mid        bool // ends inside a frame
}

var blocks = map[int]*sync.Pool{idleBlock: pool(idleBlock), smallBlock: pool(smallBlock), midBlock: pool(midBlock), bigBlock: pool(bigBlock)}

func pool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		return &block{buf: make([]byte, headroom+size), out: make([]piece, 0, 4)}
	}}
}

// sizeFor is the size of the smallest block that holds n bytes.
func sizeFor(n int) int {
	switch {
	case n <= idleBlock:
		return idleBlock
	case n <= smallBlock:
		return smallBlock
	case n <= midBlock:
		return midBlock
	}
	return bigBlock
}

func (b *block) size() int { return len(b.buf) - headroom }

// getBlock returns an empty block for n bytes.
func getBlock(n int) *block {
	b := blocks[sizeFor(n)].Get().(*block)
	b.r, b.e, b.out = headroom, headroom, b.out[:0]
	return b
}

// putBlock takes a block that nobody uses any more.
func putBlock(b *block) { blocks[b.size()].Put(b) }

// add marks buf[start:end] to be written.
func (b *block) add(start, end int, mid bool) {
	if n := len(b.out); n > 0 && b.out[n-1].end == start && !b.out[n-1].mid {
		b.out[n-1].end, b.out[n-1].mid = end, mid
		return
	}
	b.out = append(b.out, piece{start, end, mid})
}

// A parser follows the frames of one direction. It belongs to the goroutine that
// reads that direction.
type parser struct {
	ext     extensions
	masked  bool                                       // frames of this direction are masked: it comes from a client
	control func(op byte, payload []byte) (taken bool) // is shown pings and pongs
	show    func(message []byte)                       // see Config.Show; frames of this direction are not masked

	// The frame in whose payload we are, one that is passed on in pieces.
	left uint64
	last byte // its FIN bit
	key  [4]byte

	inMessage bool // a message has begun and its last fragment has not come
	closed    bool // a close frame has come: what follows means nothing
	frames    int64
}

// Rules of framing that a peer broke.
var (
	errUnmasked     = errors.New("a frame of a client is not masked")
	errMasked       = errors.New("a frame of a server is masked")
	errReserved     = errors.New("a reserved opcode")
	errRSV          = errors.New("a reserved bit that no extension gave a meaning")
	errControl      = errors.New("a control frame that is fragmented or too long")
	errLength       = errors.New("a length beyond 63 bits")
	errNoMessage    = errors.New("a continuation of no message")
	errInterleaved  = errors.New("a message inside a message")
	errRSVContinued = errors.New("RSV1 on a fragment that is not the first")
)

// parse marks what can go on and leaves the rest between b.r and b.e: part of a
// header, or of a frame that goes on whole. It returns how many bytes that rest
// must have before more can be said.
func (p *parser) parse(b *block) (need int, err error) {
	b.out = b.out[:0]
	for b.r < b.e && !p.closed {
		if p.left > 0 {
			p.more(b)
			continue
		}
		h, short := readHeader(b.buf[b.r:b.e])
		if short > 0 {
			return short, nil
		}
		if err := p.check(&h); err != nil {
			return 0, err
		}
		if h.length > wholeFrame {
			if b.e-b.r == h.size {
				return h.size + 1, nil
			}
			p.begin(b, &h)
			continue
		}
		size := h.size + int(h.length)
		if b.e-b.r < size {
			return size, nil
		}
		p.whole(b, &h, size)
	}
	if p.closed {
		b.r = b.e
	}
	return 0, nil
}

// whole takes a frame of which all bytes are there.
func (p *parser) whole(b *block, h *header, size int) {
	p.note(h)
	start := b.r
	b.r += size
	if op := h.op(); op == opPing || op == opPong {
		if p.control(op, unmasked(b.buf[start+h.size:b.r], h)) {
			return
		}
	}
	p.closed = h.op() == opClose
	if p.show != nil && h.length <= maxShown && (h.first == bitFin|opText || h.first == bitFin|opBinary) {
		p.show(b.buf[start+h.size : b.r])
	}
	b.add(start, b.r, false)
}

// unmasked returns the payload of a control frame without its mask.
func unmasked(payload []byte, h *header) []byte {
	if !h.masked {
		return payload
	}
	plain := append(make([]byte, 0, maxControl), payload...)
	mask(plain, h.key)
	return plain
}

// begin takes the first bytes of a frame that goes on in pieces: as the first
// fragment, or as it came if it must not be split.
func (p *parser) begin(b *block, h *header) {
	p.note(h)
	n := int(min(uint64(b.e-b.r-h.size), h.length))
	p.left = h.length - uint64(n)
	start := b.r
	b.r += h.size + n
	if p.ext.opaque {
		b.add(start, b.r, p.left > 0)
		return
	}
	p.last = h.first & bitFin
	first := h.first &^ bitFin
	if p.left == 0 {
		first |= p.last
	}
	p.fragment(b, b.r-n, n, first, h.key)
	p.key = rotate(h.key, n)
}

// more takes the next bytes of that frame.
func (p *parser) more(b *block) {
	n := int(min(uint64(b.e-b.r), p.left))
	p.left -= uint64(n)
	start := b.r
	b.r += n
	if p.ext.opaque {
		b.add(start, b.r, p.left > 0)
		return
	}
	first := byte(opContinuation)
	if p.left == 0 {
		first |= p.last
	}
	p.fragment(b, start, n, first, p.key)
	p.key = rotate(p.key, n)
}

// fragment puts a header before buf[at:at+n], over bytes that are done with: the
// longer header of the frame, or the headroom.
func (p *parser) fragment(b *block, at, n int, first byte, key [4]byte) {
	var tmp [maxHeader]byte
	h := appendHeader(tmp[:0], first, n, p.masked, key)
	start := at - len(h)
	copy(b.buf[start:], h)
	b.add(start, at+n, false)
}

// note follows the messages.
func (p *parser) note(h *header) {
	p.frames++
	if !h.control() {
		p.inMessage = !h.fin()
	}
}

// check holds a header against the rules that a relay must be able to rely on.
func (p *parser) check(h *header) error {
	switch {
	case p.masked && !h.masked:
		return errUnmasked
	case !p.masked && h.masked:
		return errMasked // RFC 6455 §5.1
	case h.length>>63 != 0:
		return errLength // RFC 6455 §5.2
	case h.control() && (!h.fin() || h.length > maxControl):
		return errControl // RFC 6455 §5.5
	case p.ext.opaque:
		return nil
	}
	op := h.op()
	switch {
	case op > opBinary && op < opClose || op > opPong:
		return errReserved
	case h.first&bitsRSV&^bitRSV1 != 0, h.first&bitRSV1 != 0 && !p.ext.deflate:
		return errRSV
	case h.first&bitRSV1 != 0 && (h.control() || op == opContinuation):
		return errRSVContinued // RFC 7692 §6.1
	case op == opContinuation && !p.inMessage:
		return errNoMessage
	case (op == opText || op == opBinary) && p.inMessage:
		return errInterleaved
	}
	return nil
}
