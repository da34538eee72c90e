// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// A fieldReader decodes field blocks. Owned by the connection's reader.
type fieldReader struct {
	dec    *hpack.Decoder
	fields []hpack.HeaderField // of the current block
	size   int                 // as RFC 9113 §6.5.2 counts it
	tooBig bool
	bad    string // what is malformed; "" = nothing
	names  map[string]string
}

func (r *fieldReader) init() {
	r.dec = hpack.NewDecoder(4096, r.emit)
	r.dec.SetMaxStringLength(maxHeadBytes)
	r.names = map[string]string{}
}

func (r *fieldReader) begin() {
	clear(r.fields)
	r.fields = r.fields[:0]
	r.size, r.tooBig, r.bad = 0, false, ""
	r.dec.SetEmitEnabled(true)
}

func (r *fieldReader) emit(f hpack.HeaderField) {
	r.size += int(f.Size())
	if r.size > maxHeadBytes {
		r.tooBig = true
		r.fields = r.fields[:0]
		r.dec.SetEmitEnabled(false) // decoded on, for the table's sake
		return
	}
	if r.bad == "" {
		r.bad = malformed(f)
	}
	r.fields = append(r.fields, f)
}

// malformed says what is wrong with a field (RFC 9113 §8.2). Values are not
// quoted: they may be secret.
func malformed(f hpack.HeaderField) string {
	if !httpguts.ValidHeaderFieldValue(f.Value) {
		return "a field value holds a forbidden octet"
	}
	if strings.HasPrefix(f.Name, ":") {
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
		return "it has the field " + f.Name + ", which HTTP/2 does not have"
	}
	return ""
}

// status is the one pseudo-header field of an answer (RFC 9113 §8.3.2).
func (r *fieldReader) status() (int, []hpack.HeaderField, error) {
	code := 0
	for i, f := range r.fields {
		if !strings.HasPrefix(f.Name, ":") {
			if j := pseudoAfter(r.fields[i:]); j {
				return 0, nil, errors.New("a pseudo-header field comes after the others")
			}
			if code == 0 {
				break
			}
			return code, r.fields[i:], nil
		}
		if f.Name != ":status" || code != 0 {
			return 0, nil, errors.New("it has a pseudo-header field that an answer must not have")
		}
		n, err := strconv.Atoi(f.Value)
		if err != nil || len(f.Value) != 3 || n < 100 {
			return 0, nil, errors.New("its status is not three digits")
		}
		code = n
	}
	if code == 0 {
		return 0, nil, errors.New("it has no status")
	}
	return code, nil, nil
}

func pseudoAfter(fields []hpack.HeaderField) bool {
	for _, f := range fields {
		if strings.HasPrefix(f.Name, ":") {
			return true
		}
	}
	return false
}

// header makes a Header of fields. All first values share one array.
func (r *fieldReader) header(fields []hpack.HeaderField) http.Header {
	h := make(http.Header, len(fields))
	values := make([]string, len(fields))
	for i, f := range fields {
		k := r.canonical(f.Name)
		if old, ok := h[k]; ok {
			h[k] = append(old, f.Value)
			continue
		}
		values[i] = f.Value
		h[k] = values[i : i+1 : i+1]
	}
	return h
}

func (r *fieldReader) canonical(name string) string {
	if k, ok := r.names[name]; ok {
		return k
	}
	k := http.CanonicalHeaderKey(name)
	if len(r.names) < maxNames && len(name) <= 64 {
		r.names[name] = k
	}
	return k
}
