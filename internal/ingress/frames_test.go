// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
)

// frame builds a WebSocket frame with the shortest length field.
func frame(op byte, masked bool, payload []byte) []byte {
	b := []byte{0x80 | op}
	mask := byte(0)
	if masked {
		mask = 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, mask|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, mask|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, mask|127), uint64(n))
	}
	if masked {
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

func TestFrameReaderFindsEdges(t *testing.T) {
	sizes := []int{0, 1, 125, 126, 127, 65535, 65536, 70000}
	for _, masked := range []bool{false, true} {
		for _, size := range sizes {
			for _, step := range []int{1, 3, 1000, 1 << 20} {
				var f frameReader
				one := frame(1, masked, make([]byte, size))
				two := append(bytes.Clone(one), one...)
				edges := 0
				for rest := two; len(rest) > 0; {
					n := min(step, len(rest))
					if f.scan(rest[:n]) >= 0 {
						edges++
					}
					rest = rest[n:]
				}
				if !f.edge() || f.frames != 2 || edges == 0 {
					t.Errorf("size %d masked %v step %d: edge %v, %d frames, %d edges", size, masked, step, f.edge(), f.frames, edges)
				}
			}
		}
	}
}

func TestFrameReaderGivesUpOnImpossibleLength(t *testing.T) {
	var f frameReader
	f.scan([]byte{0x82, 127, 0xff, 0, 0, 0, 0, 0, 0, 0})
	if !f.broken || f.edge() {
		t.Errorf("broken %v, edge %v; want broken and no edge", f.broken, f.edge())
	}
}

func TestLaneInjectsCloseOnlyBetweenFrames(t *testing.T) {
	var out bytes.Buffer
	l := lane{w: &out}
	msg := frame(2, false, bytes.Repeat([]byte("x"), 300))
	if _, err := l.Write(msg[:100]); err != nil {
		t.Fatal(err)
	}
	bye := closeFrame(closeGoingAway, false)
	l.close(bye)
	if out.Len() != 100 {
		t.Fatalf("wrote inside a frame: %d bytes", out.Len())
	}
	rest := append(bytes.Clone(msg[100:]), frame(1, false, []byte("next"))[:3]...)
	if _, err := l.Write(rest); err != errClosedByUs {
		t.Errorf("Write = %v, want %v", err, errClosedByUs)
	}
	if want := append(bytes.Clone(msg), bye...); !bytes.Equal(out.Bytes(), want) {
		t.Errorf("sent %d bytes, want the whole message and the close frame (%d)", out.Len(), len(want))
	}
	if _, err := l.Write([]byte{0}); err != errClosedByUs {
		t.Errorf("Write after close = %v", err)
	}
}

func TestLaneDoesNotCloseTwice(t *testing.T) {
	var out bytes.Buffer
	l := lane{w: &out}
	own := frame(opClose, false, []byte{3, 0xe8})
	if _, err := l.Write(own); err != nil {
		t.Fatal(err)
	}
	l.close(closeFrame(closeGoingAway, false))
	if !bytes.Equal(out.Bytes(), own) {
		t.Errorf("a close frame followed the peer's own")
	}
}

func TestCloseFrameMasked(t *testing.T) {
	b := closeFrame(closeGoingAway, true)
	var f frameReader
	f.scan(b)
	if !f.edge() || !f.closed || len(b) != 8 {
		t.Fatalf("frame % x: edge %v closed %v", b, f.edge(), f.closed)
	}
	code := [2]byte{b[6] ^ b[2], b[7] ^ b[3]}
	if got := binary.BigEndian.Uint16(code[:]); got != closeGoingAway {
		t.Errorf("code %d, want %d", got, closeGoingAway)
	}
}

// FuzzLane checks that whatever passes is never altered or lost, and that a
// close frame goes to a frame edge only.
func FuzzLane(f *testing.F) {
	f.Add(frame(1, true, []byte("hello")), 3, 2)
	f.Add(frame(2, false, make([]byte, 70000)), 100, 1)
	f.Add([]byte{0x82, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 1, 0)
	f.Fuzz(func(t *testing.T, data []byte, step, closeAt int) {
		if step <= 0 {
			step = 1
		}
		var out bytes.Buffer
		l := lane{w: &out}
		sent, writes := 0, 0
		for sent < len(data) {
			if writes == closeAt {
				l.close([]byte("CLOSE"))
			}
			n := min(step, len(data)-sent)
			if _, err := l.Write(data[sent : sent+n]); err != nil {
				break
			}
			sent += n
			writes++
		}
		got := out.Bytes()
		if l.done {
			got = bytes.TrimSuffix(got, []byte("CLOSE"))
			var check frameReader
			if check.scan(got); !check.edge() {
				t.Errorf("closed inside a frame after %d bytes", len(got))
			}
		}
		if !bytes.HasPrefix(data, got) {
			t.Errorf("bytes were altered")
		}
		if !l.done && len(got) != len(data) {
			t.Errorf("%d of %d bytes passed", len(got), len(data))
		}
	})
}

func BenchmarkLane(b *testing.B) {
	l := lane{w: io.Discard}
	msg := frame(2, false, make([]byte, 120))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = l.Write(msg)
	}
}
