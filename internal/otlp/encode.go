// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// An Encoding is how messages are written.
type Encoding int

// The encodings of OTLP/HTTP.
const (
	Protobuf Encoding = iota
	JSON
)

func (e Encoding) contentType() string {
	if e == JSON {
		return "application/json"
	}
	return "application/x-protobuf"
}

// An encoder writes one tree of messages in either encoding, so that both say the same.
// Fields with their zero value are left out, as protobuf does, except where the name of
// a method says otherwise.
type encoder struct {
	encoding Encoding
	buf      []byte
	first    bool // JSON: nothing stands in the open message or list yet
}

// message writes field number n with what body writes into it.
func (e *encoder) message(n int, name string, body func()) {
	e.name(n, name, protowire.BytesType)
	e.body(body)
}

// body writes a message without its name.
func (e *encoder) body(write func()) {
	if e.encoding == JSON {
		e.buf = append(e.buf, '{')
		e.first = true
		write()
		e.buf = append(e.buf, '}')
		e.first = false
		return
	}
	begin := len(e.buf)
	write()
	// The length stands before the body and is known now: bodies are short, and moved.
	var size [binary.MaxVarintLen64]byte
	e.buf = slices.Insert(e.buf, begin, protowire.AppendVarint(size[:0], uint64(len(e.buf)-begin))...)
}

// list writes field n as a list of count messages.
func (e *encoder) list(n int, name string, count int, item func(i int)) {
	if count == 0 {
		return
	}
	if e.encoding == JSON {
		e.name(n, name, protowire.BytesType)
		e.buf = append(e.buf, '[')
		for i := range count {
			if i > 0 {
				e.buf = append(e.buf, ',')
			}
			e.body(func() { item(i) })
		}
		e.buf = append(e.buf, ']')
		return
	}
	for i := range count {
		e.message(n, name, func() { item(i) })
	}
}

// name begins field n.
func (e *encoder) name(n int, name string, wire protowire.Type) {
	if e.encoding == Protobuf {
		e.buf = protowire.AppendTag(e.buf, protowire.Number(n), wire)
		return
	}
	if !e.first {
		e.buf = append(e.buf, ',')
	}
	e.first = false
	e.buf = append(e.buf, '"')
	e.buf = append(e.buf, name...)
	e.buf = append(e.buf, '"', ':')
}

func (e *encoder) str(n int, name, v string) {
	if v != "" {
		e.strAlways(n, name, v)
	}
}

// strAlways is for members of a oneof, which say by being there what they are.
func (e *encoder) strAlways(n int, name, v string) {
	e.name(n, name, protowire.BytesType)
	if e.encoding == JSON {
		e.buf = appendJSONString(e.buf, v)
		return
	}
	if !utf8.ValidString(v) { // protobuf refuses the whole message otherwise
		v = string([]rune(v))
	}
	e.buf = protowire.AppendString(e.buf, v)
}

// id writes bytes; in JSON they are hex and not base64 (OTLP §JSON Protobuf Encoding).
func (e *encoder) id(n int, name string, v []byte) {
	if len(v) == 0 {
		return
	}
	e.name(n, name, protowire.BytesType)
	if e.encoding == JSON {
		e.buf = append(e.buf, '"')
		e.buf = hex.AppendEncode(e.buf, v)
		e.buf = append(e.buf, '"')
		return
	}
	e.buf = protowire.AppendBytes(e.buf, v)
}

// enum writes a varint, in JSON a number.
func (e *encoder) enum(n int, name string, v int) {
	if v == 0 {
		return
	}
	e.name(n, name, protowire.VarintType)
	if e.encoding == JSON {
		e.buf = strconv.AppendInt(e.buf, int64(v), 10)
		return
	}
	e.buf = protowire.AppendVarint(e.buf, uint64(v))
}

// int64Always writes an int64, in JSON a string.
func (e *encoder) int64Always(n int, name string, v int64) {
	e.name(n, name, protowire.VarintType)
	if e.encoding == JSON {
		e.buf = append(e.buf, '"')
		e.buf = strconv.AppendInt(e.buf, v, 10)
		e.buf = append(e.buf, '"')
		return
	}
	e.buf = protowire.AppendVarint(e.buf, uint64(v))
}

func (e *encoder) boolAlways(n int, name string, v bool) {
	e.name(n, name, protowire.VarintType)
	if e.encoding == JSON {
		e.buf = strconv.AppendBool(e.buf, v)
		return
	}
	e.buf = protowire.AppendVarint(e.buf, protowire.EncodeBool(v))
}

func (e *encoder) fixed64(n int, name string, v uint64) {
	if v == 0 {
		return
	}
	e.name(n, name, protowire.Fixed64Type)
	e.fixed64Value(v)
}

func (e *encoder) fixed64Value(v uint64) {
	if e.encoding == JSON {
		e.buf = append(e.buf, '"')
		e.buf = strconv.AppendUint(e.buf, v, 10)
		e.buf = append(e.buf, '"')
		return
	}
	e.buf = protowire.AppendFixed64(e.buf, v)
}

func (e *encoder) fixed32(n int, name string, v uint32) {
	if v == 0 {
		return
	}
	e.name(n, name, protowire.Fixed32Type)
	if e.encoding == JSON {
		e.buf = strconv.AppendUint(e.buf, uint64(v), 10)
		return
	}
	e.buf = protowire.AppendFixed32(e.buf, v)
}

// doubleAlways writes v, which is finite.
func (e *encoder) doubleAlways(n int, name string, v float64) {
	e.name(n, name, protowire.Fixed64Type)
	e.doubleValue(v)
}

func (e *encoder) doubleValue(v float64) {
	if e.encoding == JSON {
		e.buf = strconv.AppendFloat(e.buf, v, 'g', -1, 64)
		return
	}
	e.buf = protowire.AppendFixed64(e.buf, math.Float64bits(v))
}

// packed writes a list of numbers of eight bytes each.
func packed[T any](e *encoder, n int, name string, values []T, write func(T)) {
	e.name(n, name, protowire.BytesType)
	if e.encoding == Protobuf {
		e.buf = protowire.AppendVarint(e.buf, uint64(8*len(values)))
		for _, v := range values {
			write(v)
		}
		return
	}
	e.buf = append(e.buf, '[')
	for i, v := range values {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		write(v)
	}
	e.buf = append(e.buf, ']')
}

// appendJSONString quotes s; what is not UTF-8 becomes U+FFFD.
func appendJSONString(buf []byte, s string) []byte {
	buf = append(buf, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			buf = append(buf, '\\', byte(r))
		case r < 0x20 || r == 0x7f:
			buf = append(buf, '\\', 'u', '0', '0', "0123456789abcdef"[r>>4], "0123456789abcdef"[r&15])
		default:
			buf = utf8.AppendRune(buf, r)
		}
	}
	return append(buf, '"')
}
