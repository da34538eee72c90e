// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/quic-go/qpack"
	"golang.org/x/net/http/httpguts"
)

// maxNames bounds the memory of field names; a guess far above what apps use.
const maxNames = 256

// keepSpare is the largest buffer that is kept for the next head.
const keepSpare = 64 << 10

// A coder codes field sections with QPACK's static table (RFC 9204): the library
// has no other, so no stream ever waits for another one's fields.
type coder struct {
	mu    sync.Mutex // guards the fields below
	enc   *qpack.Encoder
	out   bytes.Buffer
	lower map[string]string // field names as they are on the wire
	canon map[string]string // and as they are in a Header
}

func (e *coder) init() {
	e.enc = qpack.NewEncoder(&e.out)
	e.lower, e.canon = map[string]string{}, map[string]string{}
}

func (e *coder) begin() {
	_ = e.enc.Close() // it begins a new section
	if e.out.Cap() > keepSpare {
		e.out = bytes.Buffer{} // of the same address: the encoder writes to it
	}
	e.out.Reset()
}

func (e *coder) field(name, value string) {
	_ = e.enc.WriteField(qpack.HeaderField{Name: name, Value: value}) // into memory
}

// frame appends what was coded to buf, as HEADERS.
func (e *coder) frame(buf []byte) []byte {
	buf = appendFrame(buf, frameHeaders, uint64(e.out.Len()))
	return append(buf, e.out.Bytes()...)
}

// lowerLocked is name as HTTP/3 spells it (RFC 9114 §4.2).
func (e *coder) lowerLocked(name string) string {
	return remember(e.lower, name, strings.ToLower)
}

func remember(names map[string]string, name string, f func(string) string) string {
	if l, ok := names[name]; ok {
		return l
	}
	l := f(name)
	if len(names) < maxNames && len(name) <= 64 {
		names[strings.Clone(name)] = l
	}
	return l
}

// A section is a field section that was decoded.
type section struct {
	fields []qpack.HeaderField
	size   int // as RFC 9114 §4.2.2 counts it
}

// decode reads a field block. The error is a *connError if it is not QPACK, and a
// fault of the message else.
func (s *section) decode(p []byte, limit int) error {
	next := qpack.NewDecoder().Decode(p)
	s.fields = make([]qpack.HeaderField, 0, 16)
	for {
		f, err := next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return violation(codeQPACKDecompress, "a field block cannot be decoded: %v", err)
		}
		s.size += len(f.Name) + len(f.Value) + 32
		if s.size > limit {
			return errHeadTooLarge
		}
		if why := malformed(f); why != "" {
			return errors.New(why)
		}
		s.fields = append(s.fields, f)
	}
}

// malformed says what is wrong with a field (RFC 9114 §4.2, §10.3). Values are not
// quoted: they may be secret.
func malformed(f qpack.HeaderField) string {
	if !httpguts.ValidHeaderFieldValue(f.Value) {
		return "a field value holds a forbidden octet"
	}
	if f.IsPseudo() {
		return ""
	}
	if !httpguts.ValidHeaderFieldName(f.Name) {
		return "a field name is not valid"
	}
	for i := range len(f.Name) {
		if 'A' <= f.Name[i] && f.Name[i] <= 'Z' {
			return "a field name is not in lower case"
		}
	}
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return "it has the field " + f.Name + ", which HTTP/3 does not have"
	}
	return ""
}

// status is the one pseudo-header field of an answer (RFC 9114 §4.3.2), and the
// fields after it.
func (s *section) status() (int, []qpack.HeaderField, error) {
	if len(s.fields) == 0 || s.fields[0].Name != ":status" {
		return 0, nil, errors.New("it does not begin with a status")
	}
	code, err := strconv.Atoi(s.fields[0].Value)
	if err != nil || len(s.fields[0].Value) != 3 || code < 100 {
		return 0, nil, errors.New("its status is not three digits")
	}
	rest := s.fields[1:]
	if pseudo(rest) {
		return 0, nil, errors.New("it has a pseudo-header field that an answer must not have")
	}
	return code, rest, nil
}

func pseudo(fields []qpack.HeaderField) bool {
	for i := range fields {
		if fields[i].IsPseudo() {
			return true
		}
	}
	return false
}

// header makes a Header of fields. All first values share one array.
func (e *coder) header(fields []qpack.HeaderField) http.Header {
	h := make(http.Header, len(fields))
	values := make([]string, len(fields))
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, f := range fields {
		k := remember(e.canon, f.Name, http.CanonicalHeaderKey)
		if old, ok := h[k]; ok {
			h[k] = append(old, f.Value)
			continue
		}
		values[i] = f.Value
		h[k] = values[i : i+1 : i+1]
	}
	return h
}

func statusLine(code int) string {
	if code == http.StatusOK {
		return "200 OK"
	}
	text := http.StatusText(code)
	if text == "" {
		return strconv.Itoa(code) + " status code " + strconv.Itoa(code)
	}
	return strconv.Itoa(code) + " " + text
}
