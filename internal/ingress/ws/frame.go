// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
)

// Opcodes (RFC 6455 §5.2).
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa
)

// Bits of the first two bytes of a frame.
const (
	bitFin  = 0x80
	bitRSV1 = 0x40
	bitsRSV = 0x70
	bitMask = 0x80
)

const (
	maxHeader  = 14  // bytes: two, the length in eight, the mask's key
	maxControl = 125 // payload bytes of a control frame (RFC 6455 §5.5)
)

// Close codes that the relay sends (RFC 6455 §7.4.1 and the IANA registry).
const (
	closeGoingAway  = 1001
	closeProtocol   = 1002
	closeRestart    = 1012
	closeTryAgain   = 1013
	maxCloseReason  = maxControl - 2
	pingPayloadSize = 8
)

// A header is the beginning of a frame.
type header struct {
	first  byte // FIN, RSV1-3, opcode
	masked bool
	size   int    // bytes of the header itself
	length uint64 // of the payload
	key    [4]byte
}

func (h *header) op() byte      { return h.first & 0x0f }
func (h *header) fin() bool     { return h.first&bitFin != 0 }
func (h *header) control() bool { return h.first&0x08 != 0 }

// readHeader reads the header that p begins with. It returns how many bytes it
// needs if p is too short.
func readHeader(p []byte) (h header, need int) {
	if len(p) < 2 {
		return h, 2
	}
	size := 2
	short := p[1] &^ bitMask
	switch short {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	h.masked = p[1]&bitMask != 0
	if h.masked {
		size += 4
	}
	if len(p) < size {
		return h, size
	}
	h.first, h.size, h.length = p[0], size, uint64(short)
	switch short {
	case 126:
		h.length = uint64(binary.BigEndian.Uint16(p[2:]))
	case 127:
		h.length = binary.BigEndian.Uint64(p[2:])
	}
	if h.masked {
		h.key = [4]byte(p[size-4:])
	}
	return h, 0
}

// appendHeader appends a header with the shortest length field.
func appendHeader(b []byte, first byte, n int, masked bool, key [4]byte) []byte {
	mask := byte(0)
	if masked {
		mask = bitMask
	}
	switch {
	case n < 126:
		b = append(b, first, mask|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, first, mask|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, first, mask|127), uint64(n))
	}
	if masked {
		b = append(b, key[:]...)
	}
	return b
}

// appendControl appends a whole control frame of ours. Those to a server are
// masked with a key that the peer cannot foresee (RFC 6455 §5.3).
func appendControl(b []byte, op byte, masked bool, payload []byte) []byte {
	var key [4]byte
	if masked {
		binary.BigEndian.PutUint32(key[:], rand.Uint32())
	}
	b = appendHeader(b, bitFin|op, len(payload), masked, key)
	start := len(b)
	b = append(b, payload...)
	if masked {
		mask(b[start:], key)
	}
	return b
}

// mask masks p, or takes the mask off.
func mask(p []byte, key [4]byte) {
	for i := range p {
		p[i] ^= key[i&3]
	}
}

// rotate returns the key for a payload whose first n bytes are cut off.
func rotate(key [4]byte, n int) [4]byte {
	return [4]byte{key[n&3], key[(n+1)&3], key[(n+2)&3], key[(n+3)&3]}
}

// closeFrame returns a close frame of ours. The reason is ASCII.
func closeFrame(code uint16, reason string, masked bool) []byte {
	payload := binary.BigEndian.AppendUint16(nil, code)
	payload = append(payload, reason[:min(len(reason), maxCloseReason)]...)
	return appendControl(nil, opClose, masked, payload)
}

// An extensions value is what the negotiated extensions let a relay know.
type extensions struct {
	deflate bool // RSV1 marks a compressed message (RFC 7692 §6)
	opaque  bool // there is one that we do not know: anything may mean anything
}

// parseExtensions reads the Sec-WebSocket-Extensions fields of a 101.
func parseExtensions(fields []string) extensions {
	var x extensions
	for _, field := range fields {
		for offer := range strings.SplitSeq(field, ",") {
			name, _, _ := strings.Cut(offer, ";")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "":
			case "permessage-deflate":
				x.deflate = true
			default:
				x.opaque = true
			}
		}
	}
	return x
}
