// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// target is what a request's pseudo-header fields say.
type target struct {
	method, scheme, authority, path, protocol string
}

func (t *target) from(req *http.Request) error {
	t.method = req.Method
	if t.method == "" {
		t.method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(t.method) {
		return errors.New("h3: the request's method is not a token")
	}
	if req.URL == nil {
		return errors.New("h3: the request has no URL")
	}
	if t.scheme = req.URL.Scheme; t.scheme == "" {
		t.scheme = "https"
	}
	if t.authority = req.Host; t.authority == "" {
		t.authority = req.URL.Host
	}
	// RFC 9114 §4.3.1: no user information.
	if t.authority == "" || !httpguts.ValidHostHeader(t.authority) || strings.Contains(t.authority, "@") {
		return errors.New("h3: the request's Host is missing or not valid")
	}
	if p := req.Header[":protocol"]; len(p) > 0 {
		t.protocol = p[0]
		if t.method != http.MethodConnect || !httpguts.ValidHeaderFieldName(t.protocol) {
			return errors.New("h3: :protocol is for CONNECT and holds one token (RFC 9220)")
		}
	}
	if t.method == http.MethodConnect && t.protocol == "" {
		return nil // RFC 9114 §4.4: neither scheme nor path
	}
	raw := req.RequestURI
	if raw == "" {
		raw = req.URL.RequestURI()
		if t.method == http.MethodOptions && req.URL.Path == "*" {
			raw = "*"
		}
	}
	var err error
	t.path, err = originForm(raw)
	return err
}

// originForm is the path and query of a raw target, octet for octet.
func originForm(raw string) (string, error) {
	if raw != "*" && !strings.HasPrefix(raw, "/") {
		_, rest, absolute := strings.Cut(raw, "://")
		if !absolute {
			return "", errors.New("h3: the request target does not begin with a slash")
		}
		slash := strings.IndexByte(rest, '/')
		if slash < 0 {
			return "", errors.New("h3: the request target has no path")
		}
		raw = rest[slash:]
	}
	for i := range len(raw) {
		if raw[i] <= ' ' || raw[i] == 0x7f {
			return "", errors.New("h3: the request target holds a space or a control character")
		}
	}
	return raw, nil
}

// hopByHop are fields that HTTP/3 does not have (RFC 9114 §4.2), and those that
// are written from other parts of the request.
func hopByHop(lower string) bool {
	switch lower {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length", ":protocol":
		return true
	}
	return false
}

// checkFields refuses what must not be sent, and measures the rest. Values are
// never part of an error: they may be secret.
func (s *stream) checkFields() error {
	size := len(s.target.method) + len(s.target.scheme) + len(s.target.authority) + len(s.target.path) + 5*32 + 64
	for k, vs := range s.req.Header {
		if k != ":protocol" && !httpguts.ValidHeaderFieldName(k) {
			return fmt.Errorf("h3: request field name %q is not valid", k)
		}
		for _, v := range vs {
			if !httpguts.ValidHeaderFieldValue(v) {
				return fmt.Errorf("h3: the value of request field %q is not valid", k)
			}
			size += len(k) + len(v) + 32
		}
	}
	for k := range s.req.Trailer {
		if !httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(k)) || !httpguts.ValidHeaderFieldName(k) {
			return fmt.Errorf("h3: request trailer name %q is not valid", k)
		}
		size += len(k) + 2
	}
	s.fieldSection = uint64(size)
	return nil
}

// head is the request's HEADERS frame, in buf.
func (s *stream) head(buf []byte) []byte {
	e := &s.c.coder
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begin()
	t := &s.target
	e.field(":method", t.method)
	if s.tunnel != plainConnect {
		e.field(":scheme", t.scheme)
		e.field(":path", t.path)
	}
	e.field(":authority", t.authority)
	if s.tunnel == extendedConnect {
		e.field(":protocol", t.protocol)
	}
	trailers := len(s.req.Trailer) > 0 && s.upload != nil
	for k, vs := range s.req.Header {
		name := e.lowerLocked(k)
		if hopByHop(name) || (trailers && name == "trailer") {
			continue
		}
		for _, v := range vs {
			if name == "te" && !strings.EqualFold(strings.TrimSpace(v), "trailers") {
				continue // RFC 9114 §4.2: nothing else is left of TE
			}
			e.field(name, v)
		}
	}
	if trailers {
		names := make([]string, 0, len(s.req.Trailer))
		for k := range s.req.Trailer {
			names = append(names, e.lowerLocked(k))
		}
		e.field("trailer", strings.Join(names, ","))
	}
	if n, ok := contentLength(s); ok {
		e.field("content-length", strconv.FormatInt(n, 10))
	}
	if s.urgency != "" && priorityField(s.req) == "" {
		e.field("priority", s.urgency)
	}
	return e.frame(buf)
}

// contentLength is what the head declares, as net/http does.
func contentLength(s *stream) (int64, bool) {
	n := declaredLength(s.req)
	switch {
	case s.tunnel != noTunnel:
		return 0, false
	case n > 0:
		return n, true
	case n == 0:
		m := s.target.method
		return 0, m == http.MethodPost || m == http.MethodPut || m == http.MethodPatch
	}
	return 0, false
}

// trailers is the HEADERS frame that ends a request, in buf, with the fields that
// the app has filled in by now; nothing if there are none.
func (s *stream) trailers(buf []byte) ([]byte, error) {
	e := &s.c.coder
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begin()
	n := 0
	for k, vs := range s.req.Trailer {
		for _, v := range vs {
			if !httpguts.ValidHeaderFieldValue(v) || !httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(k)) {
				return nil, fmt.Errorf("h3: request trailer %q is not valid", k)
			}
			e.field(e.lowerLocked(k), v)
			n++
		}
	}
	if n == 0 {
		return nil, nil
	}
	return e.frame(buf), nil
}
