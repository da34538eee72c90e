// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"net/http"
)

const (
	preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113 §3.4
	headIsHTTP2  = -1
	maxBlank     = 4       // empty lines before a request line; RFC 9112 §2.2 asks for one
	maxPipelined = 4 << 10 // bytes of next requests read while one is served
)

// scanHeadLocked looks for the end of a head in what is buffered and returns its
// length, 0 if more bytes are needed, or headIsHTTP2. It refuses early what can
// never become a head, so that no client waits for a timeout.
func (c *conn) scanHeadLocked() (int, *RequestError) {
	c.w = c.r
	if refusal := c.skipBlankLocked(); refusal != nil {
		return 0, refusal
	}
	b := c.in[c.r:c.e]
	if len(b) == 0 {
		return 0, nil
	}
	if wait, h2, refusal := c.firstBytes(b); wait || h2 || refusal != nil {
		if h2 {
			return headIsHTTP2, nil
		}
		return 0, refusal
	}
	limit := c.srv.cfg.MaxHeaderBytes
	for {
		i := bytes.IndexByte(b[c.scan:], '\n')
		if i < 0 {
			c.scan = len(b)
			break
		}
		i += c.scan
		if i == 0 || b[i-1] != '\r' {
			// RFC 9112 §2.2 lets a bare LF pass; peers that disagree about it
			// are how requests are smuggled.
			return 0, bad("bare_lf", "a line of the request's head does not end in CRLF")
		}
		if i+1 > limit {
			break
		}
		if i-1 == c.line {
			return i + 1, nil
		}
		c.line, c.scan = i+1, i+1
	}
	if len(b) <= limit {
		return 0, nil
	}
	if c.line == 0 { // RFC 9112 §3
		return 0, &RequestError{http.StatusRequestURITooLong, "request_line_too_long", "the request line is too long"}
	}
	return 0, &RequestError{http.StatusRequestHeaderFieldsTooLarge, "header_too_large", "the request's header fields are too large"}
}

func (c *conn) skipBlankLocked() *RequestError {
	for c.scan == 0 && c.e-c.r >= 2 && c.in[c.r] == '\r' && c.in[c.r+1] == '\n' {
		if c.blank++; c.blank > maxBlank {
			return bad("bad_request_line", "there are too many empty lines before the request")
		}
		c.r += 2
		c.w = c.r
	}
	return nil
}

// firstBytes tells other protocols from a request line.
func (c *conn) firstBytes(b []byte) (wait, h2 bool, refusal *RequestError) {
	if c.scan > 0 && (c.served || b[0] != 'P') {
		return false, false, nil
	}
	if b[0] == 0x16 && (len(b) == 1 || b[1] == 3) { // a TLS handshake record
		if len(b) == 1 {
			return true, false, nil
		}
		return false, false, bad("tls_on_plain_port", "this port speaks plain HTTP; use http:// for the proxy URL")
	}
	if b[0] == '\r' && len(b) == 1 {
		return true, false, nil
	}
	if !tokenByte[b[0]] && b[0] != '\n' {
		return false, false, bad("bad_request_line", "the request does not begin with a method")
	}
	if c.srv.cfg.HTTP2 == nil || c.served {
		return false, false, nil
	}
	n := min(len(b), len(preface))
	if string(b[:n]) != preface[:n] {
		return false, false, nil
	}
	return n < len(preface), n == len(preface), nil
}
