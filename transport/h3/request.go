// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/warmwire/warmwire/transport/semantics"
	"github.com/warmwire/warmwire/transport/upload"
)

// head is the request's HEADERS frame, in buf.
func (s *stream) head(buf []byte) []byte {
	e := &s.c.coder
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begin()
	t := &s.target
	e.field(":method", t.Method)
	if s.tunnel != plainConnect {
		e.field(":scheme", t.Scheme)
		e.field(":path", t.Path)
	}
	e.field(":authority", t.Authority)
	if s.tunnel == extendedConnect {
		e.field(":protocol", t.Protocol)
	}
	trailers := len(s.req.Trailer) > 0 && s.upload != nil
	for k, vs := range s.req.Header {
		name := e.lowerLocked(k)
		if semantics.HopByHop(name) || (trailers && name == "trailer") {
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
	if n, ok := s.target.ContentLength(upload.DeclaredLength(s.req)); ok && s.tunnel == noTunnel {
		e.field("content-length", strconv.FormatInt(n, 10))
	}
	if s.urgency != "" && semantics.PriorityField(s.req) == "" {
		e.field("priority", s.urgency)
	}
	return e.frame(buf)
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
