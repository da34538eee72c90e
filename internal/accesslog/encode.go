// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"encoding/binary"
	"log/slog"
	"math"
	"strconv"
	"time"
)

// An encoder appends lines to a buffer that is used again and again. Keys are
// names of the program's; values of str need no quoting in any format, see clean.
type encoder struct {
	format Format
	buf    []byte
	lines  []line
	start  int // of the line that is open
	fields int // of the line that is open
}

// A line is one whole line in the buffer.
type line struct {
	end    int  // where it ends
	record bool // and is no summary
}

// reset forgets all lines.
func (e *encoder) reset() { e.buf, e.lines = e.buf[:0], e.lines[:0] }

// begin opens a line with the fields that all have.
func (e *encoder) begin(at time.Time, level slog.Level, msg string) {
	e.start, e.fields = len(e.buf), 0
	switch e.format {
	case Text:
		e.buf = appendMillis(append(e.buf, "time="...), at)
	case JSON:
		e.buf = append(at.AppendFormat(append(e.buf, `{"time":"`...), time.RFC3339Nano), '"')
	case MessagePack:
		e.buf = append(e.buf, 0xde, 0, 0) // map 16; its size is known at the end
		e.key("time")
		e.buf = appendTimestamp(e.buf, at)
	}
	e.str("level", level.String())
	e.str("msg", msg)
}

// end closes the line.
func (e *encoder) end(record bool) {
	switch e.format {
	case Text:
		e.buf = append(e.buf, '\n')
	case JSON:
		e.buf = append(e.buf, "}\n"...)
	case MessagePack:
		binary.BigEndian.PutUint16(e.buf[e.start+1:], uint16(e.fields))
	}
	e.lines = append(e.lines, line{len(e.buf), record})
}

// key begins a field.
func (e *encoder) key(name string) {
	switch e.format {
	case Text:
		e.buf = append(append(append(e.buf, ' '), name...), '=')
	case JSON:
		e.buf = append(append(append(e.buf, `,"`...), name...), `":`...)
	case MessagePack:
		e.fields++
		e.buf = packString(e.buf, name)
	}
}

func (e *encoder) str(name, value string) {
	e.key(name)
	switch e.format {
	case Text:
		e.buf = append(e.buf, value...)
	case JSON:
		e.buf = append(append(append(e.buf, '"'), value...), '"')
	case MessagePack:
		e.buf = packString(e.buf, value)
	}
}

// name writes a value from a closed set, unless it is empty.
func (e *encoder) name(name, value string) {
	if value != "" {
		e.str(name, clean(value))
	}
}

func (e *encoder) uint(name string, n uint64) {
	e.key(name)
	if e.format == MessagePack {
		e.buf = packUint(e.buf, n)
		return
	}
	e.buf = strconv.AppendUint(e.buf, n, 10)
}

// count writes a number that cannot be negative.
func (e *encoder) count(name string, n int64) { e.uint(name, uint64(max(n, 0))) }

// some writes a number if there is one.
func (e *encoder) some(name string, n int64) {
	if n > 0 {
		e.count(name, n)
	}
}

func (e *encoder) bool(name string, v bool) {
	e.key(name)
	if e.format != MessagePack {
		e.buf = strconv.AppendBool(e.buf, v)
		return
	}
	packed := byte(0xc2)
	if v {
		packed = 0xc3
	}
	e.buf = append(e.buf, packed)
}

// millis writes a duration as a number of milliseconds, to the microsecond.
func (e *encoder) millis(name string, d time.Duration) {
	e.key(name)
	micros := max(d, 0).Round(time.Microsecond).Microseconds()
	if e.format == MessagePack {
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, 0xcb), math.Float64bits(float64(micros)/1000))
		return
	}
	e.buf = strconv.AppendInt(e.buf, micros/1000, 10)
	if part := micros % 1000; part > 0 {
		e.buf = append(e.buf, '.', byte('0'+part/100), byte('0'+part/10%10), byte('0'+part%10))
		for e.buf[len(e.buf)-1] == '0' {
			e.buf = e.buf[:len(e.buf)-1]
		}
	}
}

// took writes a duration if there is one.
func (e *encoder) took(name string, d time.Duration) {
	if d > 0 {
		e.millis(name, d)
	}
}

// appendMillis writes a time as slog's text handler does, with three decimals.
func appendMillis(buf []byte, at time.Time) []byte {
	// A tenth more keeps the zeros that the format would leave out. It is faster
	// than a layout with three zeros, and the way of slog itself.
	const decimals = len("2006-01-02T15:04:05.000")
	from := len(buf)
	buf = at.Truncate(time.Millisecond).Add(time.Millisecond/10).AppendFormat(buf, time.RFC3339Nano)
	return append(buf[:from+decimals], buf[from+decimals+1:]...)
}

// appendTimestamp writes the timestamp extension type of MessagePack (spec.md,
// "Timestamp extension type"): 64 bits while they suffice, else 96.
func appendTimestamp(buf []byte, at time.Time) []byte {
	sec, nsec := at.Unix(), uint64(at.Nanosecond())
	if sec>>34 == 0 {
		return binary.BigEndian.AppendUint64(append(buf, 0xd7, 0xff), nsec<<34|uint64(sec))
	}
	buf = binary.BigEndian.AppendUint32(append(buf, 0xc7, 12, 0xff), uint32(nsec))
	return binary.BigEndian.AppendUint64(buf, uint64(sec))
}

// packString writes the str format family; none of ours is longer than 255.
func packString(buf []byte, s string) []byte {
	if len(s) < 32 {
		buf = append(buf, 0xa0|byte(len(s)))
	} else {
		buf = append(buf, 0xd9, byte(len(s)))
	}
	return append(buf, s...)
}

// packUint writes the int format family, in as few bytes as n needs.
func packUint(buf []byte, n uint64) []byte {
	switch {
	case n < 1<<7:
		return append(buf, byte(n))
	case n < 1<<8:
		return append(buf, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(buf, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(buf, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(buf, 0xcf), n)
}
