// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/warmwire/warmwire/transport/semantics"
	"github.com/warmwire/warmwire/transport/upload"
)

// writeHeadLocked queues the request's head, and END_STREAM if it has no body.
func (c *Conn) writeHeadLocked(s *stream) {
	c.out.marks = append(c.out.marks, mark{s: s, at: len(c.out.buf)})
	c.hbuf.Reset()
	t := &s.target
	c.field(":method", t.Method)
	if s.tunnel != plainConnect {
		c.field(":scheme", t.Scheme)
		c.field(":path", t.Path)
	}
	c.field(":authority", t.Authority)
	if s.tunnel == extendedConnect {
		c.field(":protocol", t.Protocol)
	}
	trailers := len(s.req.Trailer) > 0 && s.upload != nil
	for k, vs := range s.req.Header {
		name := c.lowerLocked(k)
		if semantics.HopByHop(name) || (trailers && name == "trailer") {
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
	if n, ok := s.target.ContentLength(upload.DeclaredLength(s.req)); ok && s.tunnel == noTunnel {
		// It changes with every request: not worth a place in the HPACK table.
		_ = c.henc.WriteField(hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(n, 10), Sensitive: true})
	}
	if s.urgency != "" && semantics.PriorityField(s.req) == "" {
		c.field("priority", s.urgency)
	}
	s.localEnd = s.upload == nil && s.tunnel == noTunnel
	c.writeBlockLocked(s, s.localEnd, true)
	if s.localEnd && s.trace != nil {
		c.out.marks = append(c.out.marks, mark{s: s, end: true})
	}
	c.prioritiseLocked(s)
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
func (s *stream) SendTrailers() error {
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
