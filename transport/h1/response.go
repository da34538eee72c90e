// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/warmwire/warmwire/transport/fault"
)

// An answer is a head.
type answer struct {
	minor  int // of HTTP/1
	status int
	reason string // with the status, as in "200 OK"
	header http.Header
}

// keepAlive says whether the peer keeps the connection (RFC 9112 §9.3).
func (a *answer) keepAlive() bool {
	if httpguts.HeaderValuesContainsToken(a.header["Connection"], "close") {
		return false
	}
	return a.minor >= 1 || httpguts.HeaderValuesContainsToken(a.header["Connection"], "keep-alive")
}

// readHead reads a status line and its fields.
func readHead(br *bufio.Reader) (*answer, error) {
	budget := maxHeadBytes
	line, err := readLine(br, &budget)
	if err != nil {
		return nil, err
	}
	a := new(answer)
	if err := a.statusLine(line); err != nil {
		return nil, err
	}
	if a.header, err = readFields(br, &budget, readLine); err != nil {
		return nil, err
	}
	return a, nil
}

// statusLine parses HTTP-version SP status-code SP [ reason-phrase ] (RFC 9112
// §4); the last space may be missing, as many servers forget it.
func (a *answer) statusLine(line []byte) error {
	const version = "HTTP/1."
	if len(line) < len("HTTP/1.1 200") || string(line[:len(version)]) != version || line[8] != ' ' || line[7] < '0' || line[7] > '9' {
		return badAnswer("it does not begin as HTTP/1 does")
	}
	a.minor = min(int(line[7]-'0'), 1)
	code := line[9:]
	if len(code) > 3 && code[3] != ' ' {
		return badAnswer("its status is no number of three digits")
	}
	n, err := strconv.Atoi(string(code[:3]))
	if err != nil || n < 100 || code[0] == '+' || code[0] == '-' {
		return badAnswer("its status is no number of three digits")
	}
	for _, c := range code {
		if c < ' ' && c != '\t' || c == 0x7f {
			return badAnswer("its status line holds a control character")
		}
	}
	a.status, a.reason = n, string(code)
	return nil
}

// readLine reads a line without its end, which may be LF alone (RFC 9112 §2.2).
// The bytes are valid until the next read.
func readLine(br *bufio.Reader, budget *int) ([]byte, error) {
	line, err := readToLF(br, budget)
	if err != nil {
		return nil, err
	}
	return trimLine(line)
}

// readChunkedLine reads one of chunked coding, trailers included, whose end must be
// CRLF: what others do not take for the end of a line hides a second answer (RFC 9112
// §7.1).
func readChunkedLine(br *bufio.Reader, budget *int) ([]byte, error) {
	line, err := readToLF(br, budget)
	if err != nil {
		return nil, err
	}
	if !bytes.HasSuffix(line, []byte("\r\n")) {
		return nil, badAnswer("a line of its chunked coding ends with a bare line feed")
	}
	return trimLine(line)
}

// readToLF reads a line with its end.
func readToLF(br *bufio.Reader, budget *int) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if *budget -= len(line); *budget < 0 {
		return nil, tooLarge()
	}
	if errors.Is(err, bufio.ErrBufferFull) {
		whole := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = br.ReadSlice('\n')
			if *budget -= len(line); *budget < 0 {
				return nil, tooLarge()
			}
			whole = append(whole, line...)
		}
		line = whole
	}
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return line, nil
}

func trimLine(line []byte) ([]byte, error) {
	line = bytes.TrimSuffix(line[:len(line)-1], []byte("\r"))
	if bytes.IndexByte(line, '\r') >= 0 {
		return nil, badAnswer("a line holds a carriage return")
	}
	return line, nil
}

func tooLarge() *fault.Error {
	e := badAnswer("its fields are over %d bytes", maxHeadBytes)
	e.Kind = "upstream_header_too_large"
	return e
}

// readFields reads fields up to the empty line, each line with next.
func readFields(br *bufio.Reader, budget *int, next func(*bufio.Reader, *int) ([]byte, error)) (http.Header, error) {
	h := make(http.Header, 16)
	last := ""
	for {
		line, err := next(br, budget)
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			return h, nil
		}
		if line[0] == ' ' || line[0] == '\t' { // obs-fold: RFC 9112 §5.2
			if last == "" {
				return nil, badAnswer("its first field begins with a space")
			}
			vs := h[last]
			vs[len(vs)-1] = strings.TrimSpace(vs[len(vs)-1] + " " + string(bytes.Trim(line, " \t")))
			if !httpguts.ValidHeaderFieldValue(vs[len(vs)-1]) {
				return nil, badAnswer("a field's value holds a control character")
			}
			continue
		}
		colon := bytes.IndexByte(line, ':')
		if colon <= 0 || !httpguts.ValidHeaderFieldName(string(line[:colon])) { // also a space before the colon: §5.1
			return nil, badAnswer("a field's name is not valid")
		}
		value := string(bytes.Trim(line[colon+1:], " \t"))
		if !httpguts.ValidHeaderFieldValue(value) {
			return nil, badAnswer("a field's value holds a control character")
		}
		last = textproto.CanonicalMIMEHeaderKey(string(line[:colon]))
		h[last] = append(h[last], value)
	}
}

// frame decides where the body ends (RFC 9112 §6.3, in its order).
func (b *body) frame(a *answer) error {
	length, has, err := contentLength(a.header["Content-Length"])
	if err != nil {
		return err
	}
	codings := a.header["Transfer-Encoding"]
	switch {
	case b.x.req.Method == http.MethodHead:
		if has {
			b.resp.ContentLength = length
		}
		b.kind = none
		return nil
	case a.status == http.StatusNoContent, a.status == http.StatusNotModified:
		b.resp.ContentLength = 0
		if has {
			b.resp.ContentLength = length
		}
		b.kind = none
		return nil
	case len(codings) > 0:
		if a.minor == 0 { // §6.1: it cannot be trusted
			return badAnswer("a transfer coding in HTTP/1.0")
		}
		if len(codings) != 1 || !strings.EqualFold(codings[0], "chunked") {
			return badAnswer("a transfer coding that is not chunked alone")
		}
		delete(a.header, "Transfer-Encoding")
		if has {
			delete(a.header, "Content-Length")
			b.keep = false // §6.1: possibly an attempt at smuggling
		}
		b.kind = chunked
		b.resp.TransferEncoding = []string{"chunked"}
		return b.announceTrailers(a.header)
	case has:
		b.kind, b.left, b.resp.ContentLength = counted, length, length
		if length == 0 {
			b.kind = none
		}
	default:
		b.kind, b.keep = untilClose, false
	}
	return nil
}

// contentLength reads the field: one number, or the same again and again.
func contentLength(values []string) (n int64, has bool, err error) {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			part = strings.Trim(part, " \t")
			m, perr := strconv.ParseUint(part, 10, 63)
			if perr != nil || part[0] == '+' {
				return 0, false, badAnswer("its Content-Length is no number")
			}
			if has && int64(m) != n {
				return 0, false, badAnswer("it has two lengths")
			}
			n, has = int64(m), true
		}
	}
	return n, has, nil
}

// announceTrailers makes room for those that the head names.
func (b *body) announceTrailers(h http.Header) error {
	for _, v := range h["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.Trim(name, " \t"))
			if name == "" || !httpguts.ValidTrailerHeader(name) {
				continue
			}
			if b.resp.Trailer == nil {
				b.resp.Trailer = http.Header{}
			}
			b.resp.Trailer[name] = nil
		}
	}
	delete(h, "Trailer")
	return nil
}
