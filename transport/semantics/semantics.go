// SPDX-License-Identifier: Apache-2.0

// Package semantics is what HTTP/2 and HTTP/3 share of a request and an answer: the
// pseudo-header fields and the checks before a request is sent, how urgent it is, and what
// an answer's head declares of its body. It refuses what the framing could not carry safely
// (spaces in a target, invalid names and values) and holds no state; all functions
// are safe for concurrent use.
package semantics

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// A Target is what a request's pseudo-header fields say (RFC 9113 §8.3.1, RFC 9114
// §4.3.1). Protocol is that of an extended CONNECT (RFC 8441, RFC 9220).
type Target struct {
	Method, Scheme, Authority, Path, Protocol string
}

// TargetOf returns the Target of a request; scheme stands in for one that its URL does
// not have.
func TargetOf(req *http.Request, scheme string) (Target, error) {
	var t Target
	err := t.from(req, scheme)
	return t, err
}

func (t *Target) from(req *http.Request, scheme string) error {
	t.Method = req.Method
	if t.Method == "" {
		t.Method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(t.Method) {
		return errors.New("the request's method is not a token")
	}
	if req.URL == nil {
		return errors.New("the request has no URL")
	}
	if t.Scheme = req.URL.Scheme; t.Scheme == "" {
		t.Scheme = scheme
	}
	if t.Authority = req.Host; t.Authority == "" {
		t.Authority = req.URL.Host
	}
	// RFC 9113 §8.3.1, RFC 9114 §4.3.1: no user information.
	if t.Authority == "" || !httpguts.ValidHostHeader(t.Authority) || strings.Contains(t.Authority, "@") {
		return errors.New("the request's Host is missing or not valid")
	}
	if p := req.Header[":protocol"]; len(p) > 0 {
		t.Protocol = p[0]
		if t.Method != http.MethodConnect || !httpguts.ValidHeaderFieldName(t.Protocol) {
			return errors.New(":protocol is for CONNECT and holds one token (RFC 8441, RFC 9220)")
		}
	}
	if t.Method == http.MethodConnect && t.Protocol == "" {
		return nil // RFC 9113 §8.5, RFC 9114 §4.4: neither scheme nor path
	}
	raw := req.RequestURI
	if raw == "" {
		raw = req.URL.RequestURI()
		if t.Method == http.MethodOptions && req.URL.Path == "*" {
			raw = "*"
		}
	}
	var err error
	t.Path, err = originForm(raw)
	return err
}

// originForm is the path and query of a raw target, octet for octet.
func originForm(raw string) (string, error) {
	if raw != "*" && !strings.HasPrefix(raw, "/") {
		_, rest, absolute := strings.Cut(raw, "://")
		if !absolute {
			return "", errors.New("the request target does not begin with a slash")
		}
		slash := strings.IndexByte(rest, '/')
		if slash < 0 {
			return "", errors.New("the request target has no path")
		}
		raw = rest[slash:]
	}
	for i := range len(raw) {
		if raw[i] <= ' ' || raw[i] == 0x7f {
			return "", errors.New("the request target holds a space or a control character")
		}
	}
	return raw, nil
}

// HopByHop says of a field's name in lower case whether HTTP/2 and HTTP/3 do not have
// it (RFC 9113 §8.2.2, RFC 9114 §4.2), or write it from other parts of the request.
func HopByHop(lower string) bool {
	switch lower {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length", ":protocol":
		return true
	}
	return false
}

// CheckFields refuses what must not be sent, and returns the size of the rest as RFC
// 9113 §6.5.2 and RFC 9114 §4.2.2 count it. Values are never part of an error: they
// may be secret.
func (t *Target) CheckFields(req *http.Request) (size uint64, err error) {
	n := len(t.Method) + len(t.Scheme) + len(t.Authority) + len(t.Path) + 5*32 + 64
	for k, vs := range req.Header {
		if k != ":protocol" && !httpguts.ValidHeaderFieldName(k) {
			return 0, fmt.Errorf("request field name %q is not valid", k)
		}
		for _, v := range vs {
			if !httpguts.ValidHeaderFieldValue(v) {
				return 0, fmt.Errorf("the value of request field %q is not valid", k)
			}
			n += len(k) + len(v) + 32
		}
	}
	for k := range req.Trailer {
		if !httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(k)) || !httpguts.ValidHeaderFieldName(k) {
			return 0, fmt.Errorf("request trailer name %q is not valid", k)
		}
		n += len(k) + 2
	}
	return uint64(n), nil
}

// ContentLength is the one that the head declares of a body of n bytes, -1 if that is
// not known, as net/http does: none of an empty body, but for methods that have one.
func (t *Target) ContentLength(n int64) (int64, bool) {
	switch {
	case n > 0:
		return n, true
	case n == 0:
		return 0, t.Method == http.MethodPost || t.Method == http.MethodPut || t.Method == http.MethodPatch
	}
	return 0, false
}

// LengthOf is the declared length, -1 if none (RFC 9110 §8.6: the same value
// repeated is one).
func LengthOf(h http.Header) (int64, error) {
	vs := h["Content-Length"]
	if len(vs) == 0 {
		return -1, nil
	}
	for _, v := range vs[1:] {
		if v != vs[0] {
			return 0, errors.New("it declares two lengths")
		}
	}
	n, err := strconv.ParseUint(vs[0], 10, 63)
	if err != nil {
		return 0, errors.New("its content-length is not a number")
	}
	return int64(n), nil
}

// AnnouncedTrailers are those that a head announces, without values yet. Nothing
// is taken out of the head.
func AnnouncedTrailers(h http.Header) http.Header {
	var t http.Header
	for _, v := range h["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if !httpguts.ValidTrailerHeader(name) || name == "" {
				continue
			}
			if t == nil {
				t = http.Header{}
			}
			t[name] = nil
		}
	}
	return t
}
