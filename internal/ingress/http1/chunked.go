// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"net/http"
)

const (
	maxChunkExt    = 4 << 10  // one chunk's extensions
	maxChunkExcess = 16 << 10 // bytes that are not data, beyond an allowance that grows with the data
)

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkBWS             // after the size, before ";"
	chunkExt
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	chunkTrailer
	chunkDone
)

// A chunkDecoder takes the chunked coding off as bytes come (RFC 9112 §7.1). It
// keeps no data, only the trailer section.
type chunkDecoder struct {
	state   chunkState
	digits  uint8
	left    uint64 // of the chunk's data
	ext     int    // bytes of this chunk's extensions
	excess  int    // see maxChunkExcess
	line    int    // start of the current line in trailer
	max     int    // bound of trailer
	trailer []byte // raw lines, CRLF included
}

// decode moves the data in b to b's front. It returns how many bytes of data
// there are and how many of b were used; after the end (chunkDone) the rest of b
// is not of the body.
func (d *chunkDecoder) decode(b []byte) (n, used int, err *RequestError) {
	for used < len(b) && d.state != chunkDone {
		if d.state == chunkData {
			k := int(min(d.left, uint64(len(b)-used)))
			copy(b[n:], b[used:used+k])
			n += k
			used += k
			if d.left -= uint64(k); d.left == 0 {
				d.state = chunkDataCR
			}
			continue
		}
		if err := d.step(b[used]); err != nil {
			return n, used, err
		}
		used++
	}
	return n, used, nil
}

func (d *chunkDecoder) step(c byte) *RequestError {
	switch d.state {
	case chunkSize:
		return d.size(c)
	case chunkBWS:
		switch c {
		case ' ', '\t':
			return d.extension(c)
		case ';':
			d.state = chunkExt
			return nil
		}
		return bad("bad_chunk", "a chunk's size is malformed")
	case chunkExt:
		if c == '\r' {
			d.state = chunkSizeLF
			return nil
		}
		return d.extension(c)
	case chunkSizeLF:
		return d.sizeEnd(c)
	case chunkDataCR:
		if c != '\r' {
			return bad("bad_chunk", "a chunk's data is not followed by CRLF")
		}
		d.state = chunkDataLF
	case chunkDataLF:
		if c != '\n' {
			return bad("bad_chunk", "a chunk's data is not followed by CRLF")
		}
		d.state, d.digits, d.ext = chunkSize, 0, 0
	case chunkTrailer:
		return d.trail(c)
	}
	return nil
}

func (d *chunkDecoder) size(c byte) *RequestError {
	switch {
	case isHex(c):
		if d.digits == 16 {
			return bad("bad_chunk", "a chunk's size is too long")
		}
		v := c - '0'
		if c > '9' {
			v = c | 0x20 - 'a' + 10
		}
		d.digits++
		d.left = d.left<<4 | uint64(v)
		return nil
	case d.digits == 0:
	case c == '\r':
		d.state = chunkSizeLF
		return nil
	case c == ';':
		d.state = chunkExt
		return nil
	case c == ' ' || c == '\t': // BWS of RFC 9112 §7.1.1
		d.state = chunkBWS
		return d.extension(c)
	}
	return bad("bad_chunk", "a chunk's size is malformed")
}

// extension counts and drops one byte of the extensions.
func (d *chunkDecoder) extension(c byte) *RequestError {
	if !valueByte[c] {
		return bad("bad_chunk", "a chunk's extension holds control characters")
	}
	if d.ext++; d.ext > maxChunkExt {
		return bad("bad_chunk", "a chunk's extensions are too long")
	}
	return nil
}

func (d *chunkDecoder) sizeEnd(c byte) *RequestError {
	if c != '\n' {
		return bad("bad_chunk", "a chunk's size does not end in CRLF")
	}
	if d.left > 1<<62 {
		return bad("bad_chunk", "a chunk's size is too large")
	}
	// Extensions are paid for by data: 16 bytes a chunk and twice its size.
	d.excess = max(0, d.excess+d.ext-16-2*int(min(d.left, 1<<20)))
	if d.excess > maxChunkExcess {
		return bad("bad_chunk", "the chunks hold more extensions than data")
	}
	d.state = chunkData
	if d.left == 0 {
		d.state = chunkTrailer
	}
	return nil
}

// trail collects the trailer section up to its empty line.
func (d *chunkDecoder) trail(c byte) *RequestError {
	if len(d.trailer) >= d.max {
		return &RequestError{http.StatusRequestHeaderFieldsTooLarge, "trailer_too_large", "the trailer section is too large"}
	}
	d.trailer = append(d.trailer, c)
	if c != '\n' {
		return nil
	}
	n := len(d.trailer)
	if n < 2 || d.trailer[n-2] != '\r' {
		return bad("bare_lf", "a line of the trailer section does not end in CRLF")
	}
	if n-2 == d.line {
		d.trailer = d.trailer[:n-2]
		d.state = chunkDone
		return nil
	}
	d.line = n
	return nil
}

// fields parses the collected trailer section, without what may not be there.
func (d *chunkDecoder) fields() (http.Header, *RequestError) {
	if len(d.trailer) == 0 {
		return nil, nil
	}
	h := http.Header{}
	if err := parseFields(string(d.trailer), h); err != nil {
		return nil, err
	}
	for key := range h {
		if forbiddenTrailer(key) {
			delete(h, key)
		}
	}
	return h, nil
}
