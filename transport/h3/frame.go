// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"errors"

	"github.com/quic-go/quic-go/quicvarint"
)

// Types of frames (RFC 9114 §7.2, RFC 9218 §7.2).
const (
	frameData           = 0x00
	frameHeaders        = 0x01
	frameCancelPush     = 0x03
	frameSettings       = 0x04
	framePushPromise    = 0x05
	frameGoAway         = 0x07
	frameMaxPushID      = 0x0d
	frameReserved       = 0x21 // of those that everybody ignores, RFC 9114 §7.2.8
	framePriorityUpdate = 0xf0700
	framePriorityPush   = 0xf0701
)

// ofHTTP2 are types that HTTP/3 must not see (RFC 9114 §7.2.8).
func ofHTTP2(kind uint64) bool {
	return kind == 0x02 || kind == 0x06 || kind == 0x08 || kind == 0x09
}

// headerBytes is the longest frame header: two varints.
const headerBytes = 16

// appendFrame appends the header of a frame.
func appendFrame(b []byte, kind, length uint64) []byte {
	return quicvarint.Append(quicvarint.Append(b, kind), length)
}

// A part is what the bytes of a stream have brought.
type part uint8

const (
	nothing part = iota // all is consumed, and there is need for more
	payload             // bytes of DATA
	block               // a whole field block
)

// frames takes the bytes of a request stream apart as they come; it keeps
// nothing but the header and the field block that are not whole yet. The zero
// value is the beginning of a stream.
type frames struct {
	head    [headerBytes]byte
	headLen int
	kind    uint64
	left    uint64 // bytes of the frame that have not come
	inside  bool   // a frame
	block   []byte // of the HEADERS that are coming
	useless int    // frames in a row that brought nothing
}

var (
	errHeadTooLarge = errors.New("its head is too large")
	errUseless      = errors.New("it floods the stream with frames that carry nothing")
)

// next consumes p up to something that matters, and returns it with the rest. The
// bytes it returns are p's own, or valid until the next call. err is a
// *connError, or a fault of the stream alone.
func (f *frames) next(p []byte) (what part, b, rest []byte, err error) {
	for {
		if !f.inside {
			if p, err = f.begin(p); err != nil || !f.inside {
				return nothing, nil, nil, err
			}
		}
		n := int(min(uint64(len(p)), f.left))
		b, p = p[:n], p[n:]
		f.left -= uint64(n)
		whole := f.left == 0
		f.inside = !whole
		switch f.kind {
		case frameData:
			if n > 0 {
				f.useless = 0
				return payload, b, p, nil
			}
		case frameHeaders:
			f.block = append(f.block, b...)
			if whole {
				b, f.block = f.block, nil
				return block, b, p, nil
			}
		}
		if len(p) == 0 {
			return nothing, nil, nil, nil
		}
	}
}

// begin reads a frame's header, which may come in pieces.
func (f *frames) begin(p []byte) ([]byte, error) {
	for len(p) > 0 {
		f.head[f.headLen] = p[0]
		f.headLen++
		p = p[1:]
		kind, n, err := quicvarint.Parse(f.head[:f.headLen])
		if err != nil {
			continue
		}
		length, _, err := quicvarint.Parse(f.head[n:f.headLen])
		if err != nil {
			continue
		}
		f.kind, f.left, f.headLen = kind, length, 0
		f.inside = true
		return p, f.check()
	}
	return nil, nil
}

// check says whether the frame may be on a request stream.
func (f *frames) check() error {
	switch f.kind {
	case frameData, frameHeaders:
		if f.kind == frameHeaders && f.left > maxHeadBytes {
			return errHeadTooLarge
		}
		if f.kind == frameHeaders || f.left > 0 {
			return nil
		}
	case frameCancelPush, frameSettings, frameGoAway, frameMaxPushID, framePriorityUpdate, framePriorityPush:
		return violation(codeFrameUnexpected, "a frame of type %#x on a request stream", f.kind)
	case framePushPromise:
		return violation(codeID, "it pushes although we said no") // RFC 9114 §7.2.5
	default:
		if ofHTTP2(f.kind) {
			return violation(codeFrameUnexpected, "a frame of HTTP/2, type %#x", f.kind)
		}
	}
	if f.useless++; f.useless > maxUseless {
		return errUseless
	}
	return nil
}

// end says whether the stream may end here (RFC 9114 §7.1).
func (f *frames) end() error {
	if f.inside || f.headLen > 0 {
		return violation(codeFrame, "a stream ends inside a frame")
	}
	return nil
}

// settings is what the peer has said about itself (RFC 9114 §7.2.4, RFC 9220 §3).
type settings struct {
	maxFieldSection uint64 // 0 = not said
	connect         bool
}

const (
	settingMaxFieldSection = 0x06
	settingConnect         = 0x08
)

// parseSettings reads the payload of SETTINGS.
func parseSettings(p []byte) (settings, error) {
	var s settings
	seen := map[uint64]bool{}
	for len(p) > 0 {
		id, n, err := quicvarint.Parse(p)
		if err != nil {
			return s, violation(codeFrame, "SETTINGS ends inside a setting")
		}
		value, m, err := quicvarint.Parse(p[n:])
		if err != nil {
			return s, violation(codeFrame, "SETTINGS ends inside a setting")
		}
		p = p[n+m:]
		if seen[id] {
			return s, violation(codeSettings, "setting %#x comes twice", id)
		}
		seen[id] = true
		switch id {
		case 0x00, 0x02, 0x03, 0x04, 0x05: // RFC 9114 §7.2.4.1: of HTTP/2
			return s, violation(codeSettings, "a setting of HTTP/2, %#x", id)
		case settingMaxFieldSection:
			s.maxFieldSection = max(value, 1)
		case settingConnect:
			if value > 1 {
				return s, violation(codeSettings, "setting %#x is %d", id, value)
			}
			s.connect = value == 1
		}
	}
	return s, nil
}

// parseID reads a payload that is one id.
func parseID(p []byte) (uint64, error) {
	id, n, err := quicvarint.Parse(p)
	if err != nil || n != len(p) {
		return 0, violation(codeFrame, "a frame's length does not fit its id")
	}
	return id, nil
}
