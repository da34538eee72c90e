// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// target is what a request's pseudo-header fields say.
type target struct {
	method, scheme, authority, path, protocol string
}

func (t *target) from(c *Conn, req *http.Request) error {
	t.method = req.Method
	if t.method == "" {
		t.method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(t.method) {
		return errors.New("h2: the request's method is not a token")
	}
	if req.URL == nil {
		return errors.New("h2: the request has no URL")
	}
	if t.scheme = req.URL.Scheme; t.scheme == "" {
		t.scheme = c.scheme
	}
	if t.authority = req.Host; t.authority == "" {
		t.authority = req.URL.Host
	}
	// RFC 9113 §8.3.1: no user information.
	if t.authority == "" || !httpguts.ValidHostHeader(t.authority) || strings.Contains(t.authority, "@") {
		return errors.New("h2: the request's Host is missing or not valid")
	}
	if p := req.Header[":protocol"]; len(p) > 0 {
		t.protocol = p[0]
		if t.method != http.MethodConnect || !httpguts.ValidHeaderFieldName(t.protocol) {
			return errors.New("h2: :protocol is for CONNECT and holds one token (RFC 8441)")
		}
	}
	if t.method == http.MethodConnect && t.protocol == "" {
		return nil // RFC 9113 §8.5: neither scheme nor path
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
			return "", errors.New("h2: the request target does not begin with a slash")
		}
		slash := strings.IndexByte(rest, '/')
		if slash < 0 {
			return "", errors.New("h2: the request target has no path")
		}
		raw = rest[slash:]
	}
	for i := range len(raw) {
		if raw[i] <= ' ' || raw[i] == 0x7f {
			return "", errors.New("h2: the request target holds a space or a control character")
		}
	}
	return raw, nil
}

// hopByHop are fields that HTTP/2 does not have (RFC 9113 §8.2.2), and those that
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
			return fmt.Errorf("h2: request field name %q is not valid", k)
		}
		for _, v := range vs {
			if !httpguts.ValidHeaderFieldValue(v) {
				return fmt.Errorf("h2: the value of request field %q is not valid", k)
			}
			size += len(k) + len(v) + 32
		}
	}
	for k := range s.req.Trailer {
		if !httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(k)) || !httpguts.ValidHeaderFieldName(k) {
			return fmt.Errorf("h2: request trailer name %q is not valid", k)
		}
		size += len(k) + 2
	}
	s.headerList = uint64(size)
	return nil
}

// writeHeadLocked queues the request's head, and END_STREAM if it has no body.
func (c *Conn) writeHeadLocked(s *stream) {
	c.out.marks = append(c.out.marks, mark{s: s, at: len(c.out.buf)})
	c.hbuf.Reset()
	t := &s.target
	c.field(":method", t.method)
	if s.tunnel != plainConnect {
		c.field(":scheme", t.scheme)
		c.field(":path", t.path)
	}
	c.field(":authority", t.authority)
	if s.tunnel == extendedConnect {
		c.field(":protocol", t.protocol)
	}
	trailers := len(s.req.Trailer) > 0 && s.upload != nil
	for k, vs := range s.req.Header {
		name := c.lowerLocked(k)
		if hopByHop(name) || (trailers && name == "trailer") {
			continue
		}
		for _, v := range vs {
			if name == "te" && !strings.EqualFold(strings.TrimSpace(v), "trailers") {
				continue // RFC 9113 §8.2.2: nothing else is left of TE
			}
			c.field(name, v)
		}
	}
	if trailers {
		names := make([]string, 0, len(s.req.Trailer))
		for k := range s.req.Trailer {
			names = append(names, c.lowerLocked(k))
		}
		c.field("trailer", strings.Join(names, ","))
	}
	if n, ok := contentLength(s); ok {
		// It changes with every request: not worth a place in the HPACK table.
		_ = c.henc.WriteField(hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(n, 10), Sensitive: true})
	}
	if s.urgency != "" && !s.ownPriority() {
		c.field("priority", s.urgency)
	}
	s.localEnd = s.upload == nil && s.tunnel == noTunnel
	c.writeBlockLocked(s, s.localEnd, true)
	if s.localEnd && s.trace != nil {
		c.out.marks = append(c.out.marks, mark{s: s, end: true})
	}
	c.prioritiseLocked(s)
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

func (c *Conn) field(name, value string) {
	_ = c.henc.WriteField(hpack.HeaderField{Name: name, Value: value}) // into memory
}

// maxNames bounds the memory of field names; a guess far above what apps use.
const maxNames = 256

// lowerLocked is name as HTTP/2 spells it (RFC 9113 §8.2.1).
func (c *Conn) lowerLocked(name string) string {
	if l, ok := c.lower[name]; ok {
		return l
	}
	l := strings.ToLower(name)
	if len(c.lower) < maxNames && len(name) <= 64 {
		c.lower[name] = l
	}
	return l
}

// writeBlockLocked queues the coded block in hbuf as HEADERS and CONTINUATION, no
// frame longer than the peer takes.
func (c *Conn) writeBlockLocked(s *stream, end, first bool) {
	block := c.hbuf.Bytes()
	p := http2.HeadersFrameParam{StreamID: s.id, EndStream: end}
	room := c.frameLimit()
	if first && s.urgency != "" && !c.peer.noRFC7540 {
		p.Priority = http2.PriorityParam{Weight: s.weight}
		room -= 5
	}
	n := min(len(block), room)
	p.BlockFragment, p.EndHeaders = block[:n], n == len(block)
	_ = c.fw.WriteHeaders(p)
	for block = block[n:]; len(block) > 0; block = block[n:] {
		n = min(len(block), c.frameLimit())
		_ = c.fw.WriteContinuation(s.id, n == len(block), block[:n])
	}
	if c.hbuf.Cap() > keepSpare {
		c.hbuf = bytes.Buffer{} // of the same address: the encoder writes to it
	}
}

// sendTrailers ends the request with the fields that the app has filled in by now.
func (s *stream) sendTrailers() error {
	for k, vs := range s.req.Trailer {
		for _, v := range vs {
			if !httpguts.ValidHeaderFieldValue(v) || !httpguts.ValidHeaderFieldName(k) {
				return fmt.Errorf("h2: request trailer %q is not valid", k)
			}
		}
	}
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.gone || s.enough || c.dead {
		return nil
	}
	c.hbuf.Reset()
	n := 0
	for k, vs := range s.req.Trailer {
		for _, v := range vs {
			c.field(c.lowerLocked(k), v)
			n++
		}
	}
	if n == 0 {
		c.writeDataLocked(s, nil, true)
	} else {
		c.writeBlockLocked(s, true, false)
		c.endedLocked(s)
	}
	c.out.wake.Signal()
	return nil
}
