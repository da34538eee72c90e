// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bytes"
	"errors"
	"testing"
)

// Whatever comes on a request stream, in whatever pieces: the frames are the same,
// no byte is lost or made up, and nothing but what is there is kept.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 4, 'h', 'a', 'l', 'f'}, byte(1))
	f.Add(append(fields(":status: 200"), data("body")...), byte(3))
	f.Add([]byte{0x21, 0x40, 0x02, 1, 2, 0, 0, 1, 1, 9}, byte(2))
	f.Add([]byte{0x04, 0}, byte(7))
	f.Fuzz(func(t *testing.T, in []byte, piece byte) {
		run := func(size int) (body []byte, blocks [][]byte, err error) {
			var fr frames
			for p := in; len(p) > 0; {
				part := p[:min(size, len(p))]
				p = p[len(part):]
				for len(part) > 0 {
					what, b, rest, err := fr.next(part)
					if err != nil {
						return body, blocks, err
					}
					if len(rest) >= len(part) {
						t.Fatal("nothing was consumed")
					}
					part = rest
					switch what {
					case payload:
						body = append(body, b...)
					case block:
						blocks = append(blocks, bytes.Clone(b))
					}
				}
			}
			return body, blocks, fr.end()
		}
		body, blocks, err := run(len(in) + 1)
		body2, blocks2, err2 := run(int(piece)%7 + 1)
		if !bytes.Equal(body, body2) || len(blocks) != len(blocks2) || (err == nil) != (err2 == nil) {
			t.Errorf("whole: %q, %q, %v; in pieces: %q, %q, %v", body, blocks, err, body2, blocks2, err2)
		}
		if len(body) > len(in) {
			t.Errorf("%d bytes became %d", len(in), len(body))
		}
	})
}

// Whatever a field block holds: an answer's head is refused, or is one that may be
// passed on.
func FuzzFields(f *testing.F) {
	f.Add(fields(":status: 200", "content-type: text/plain")[2:])
	f.Add([]byte{0, 0, 0xd9})
	f.Add([]byte{0, 0, 0x23, 'a', 'b', 'c', 1, 'x'})
	f.Fuzz(func(t *testing.T, in []byte) {
		var s section
		if err := s.decode(in, 1000); err != nil {
			return
		}
		size := 0
		for _, f := range s.fields {
			if why := malformed(f); why != "" {
				t.Errorf("%q passed: %s", f.Name, why)
			}
			size += len(f.Name) + len(f.Value) + 32
		}
		if size != s.size || size > 1000 {
			t.Errorf("size %d, want %d", s.size, size)
		}
		code, rest, err := s.status()
		if err == nil && (code < 100 || code > 999 || pseudo(rest)) {
			t.Errorf("status %d, %v", code, rest)
		}
	})
}

// SETTINGS of whatever bytes.
func FuzzSettings(f *testing.F) {
	f.Add([]byte{6, 0x44, 0, 8, 1})
	f.Add([]byte{0x21, 5, 0x21, 6})
	f.Fuzz(func(t *testing.T, in []byte) {
		_, err := parseSettings(in)
		if wrong, ok := errors.AsType[*connError](err); err != nil && (!ok || wrong.code == 0) {
			t.Errorf("%v", err)
		}
	})
}
