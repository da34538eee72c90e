// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"encoding/binary"
	"math/rand/v2"
)

// WebSocket opcodes and close codes that the relay itself uses (RFC 6455 §5.2,
// §7.4.1).
const (
	opClose        = 0x8
	closeGoingAway = 1001
)

// A frameReader follows the frame edges of one direction of a WebSocket. It
// looks at headers only (2 to 14 bytes), alters nothing and judges nothing: the
// two ends talk to each other, extensions included.
type frameReader struct {
	header [14]byte
	have   int    // bytes of the header seen
	left   uint64 // payload bytes to come
	frames uint64
	closed bool // a close frame has passed
	broken bool // what passes is no WebSocket framing; edges are unknown
}

// edge says whether the bytes seen so far end exactly after a frame.
func (f *frameReader) edge() bool { return f.have == 0 && f.left == 0 && !f.broken }

// scan follows p and returns the offset of the last frame edge in it, -1 if it
// has none.
func (f *frameReader) scan(p []byte) int {
	last := -1
	for i := 0; i < len(p) && !f.broken; {
		if f.left > 0 {
			n := min(uint64(len(p)-i), f.left)
			f.left -= n
			i += int(n)
			if f.left == 0 {
				last = i
			}
			continue
		}
		f.header[f.have] = p[i]
		f.have++
		i++
		if f.have >= 2 && f.have == f.headerLen() {
			f.begin()
			if f.left == 0 {
				last = i
			}
		}
	}
	return last
}

// headerLen is the length of the header whose first two bytes are known.
func (f *frameReader) headerLen() int {
	n := 2
	switch f.header[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.header[1]&0x80 != 0 {
		n += 4
	}
	return n
}

func (f *frameReader) begin() {
	f.left = uint64(f.header[1] & 0x7f)
	switch f.left {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.header[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(f.header[2:])
		f.broken = f.left>>63 != 0 // RFC 6455 §5.2: the most significant bit is 0
	}
	f.frames++
	f.closed = f.closed || f.header[0]&0x0f == opClose
	f.have = 0
}

// closeFrame returns a close frame with a code and no reason, masked for the
// direction to the server (RFC 6455 §5.3).
func closeFrame(code uint16, masked bool) []byte {
	payload := binary.BigEndian.AppendUint16(nil, code)
	if !masked {
		return append([]byte{0x80 | opClose, byte(len(payload))}, payload...)
	}
	key := binary.BigEndian.AppendUint32(nil, rand.Uint32())
	for i := range payload {
		payload[i] ^= key[i%4]
	}
	return append(append([]byte{0x80 | opClose, 0x80 | byte(len(payload))}, key...), payload...)
}
