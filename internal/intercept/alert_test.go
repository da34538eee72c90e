// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"slices"
	"testing"
)

// TestAlertInClear gives alerts behind other records, in every size of piece.
func TestAlertInClear(t *testing.T) {
	const hello, ccs, data = "\x16\x03\x01\x00\x03abc", "\x14\x03\x03\x00\x01\x01", "\x17\x03\x03\x00\x04\x15\x03\x03\x00"
	tests := []struct {
		name, sent string
		code       uint8
		ok         bool
	}{
		{"alone", "\x15\x03\x03\x00\x02\x02\x30", 48, true},
		{"behind others", hello + ccs + data + "\x15\x03\x03\x00\x02\x02\x2a", 42, true},
		{"the first counts", "\x15\x03\x03\x00\x02\x02\x30" + "\x15\x03\x03\x00\x02\x02\x2a", 48, true},
		{"none", hello + ccs + data, 0, false},
		{"encrypted", "\x15\x03\x03\x00\x13abcdefghijklmnopqrs", 0, false},
		{"of one byte", "\x15\x03\x03\x00\x01\x02" + "\x14\x03\x03\x00\x01\x30", 0, false},
		{"empty", "\x15\x03\x03\x00\x00" + data, 0, false},
		{"cut", "\x15\x03\x03\x00\x02\x02", 0, false},
		{"nothing", "", 0, false},
	}
	for _, tt := range tests {
		for size := 1; size <= len(tt.sent)+1; size++ {
			var a Alert
			for part := range slices.Chunk([]byte(tt.sent), size) {
				a.Watch(part)
			}
			if code, ok := a.Code(); ok != tt.ok || ok && code != tt.code {
				t.Errorf("%s in pieces of %d: %d %v, want %d %v", tt.name, size, code, ok, tt.code, tt.ok)
			}
		}
	}
	var a Alert
	a.Stop()
	a.Watch([]byte("\x15\x03\x03\x00\x02\x02\x30"))
	if _, ok := a.Code(); ok {
		t.Error("it has looked after Stop")
	}
}

func FuzzAlert(f *testing.F) {
	f.Add([]byte("\x16\x03\x01\x00\x01a\x15\x03\x03\x00\x02\x02\x30"), 3)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 1 {
			return
		}
		var whole, parts Alert
		whole.Watch(b)
		for part := range slices.Chunk(b, size) {
			parts.Watch(part)
		}
		c1, ok1 := whole.Code()
		if c2, ok2 := parts.Code(); ok1 != ok2 || ok1 && c1 != c2 {
			t.Errorf("%d %v at once, %d %v in parts", c1, ok1, c2, ok2)
		}
	})
}
