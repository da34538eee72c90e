// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// framing says how a request's body is delimited.
type framing struct {
	chunked bool
	length  int64 // of a body that is not chunked
}

// parseHead fills r from s, a whole head whose lines all end in CRLF, the last
// one being empty.
func parseHead(s string, r *http.Request) (framing, *RequestError) {
	line, rest, _ := strings.Cut(s, "\r\n")
	if err := parseRequestLine(line, r); err != nil {
		return framing{}, err
	}
	rest = strings.TrimSuffix(rest, "\r\n")
	r.Header = make(http.Header, min(strings.Count(rest, "\n"), 64))
	if err := parseFields(rest, r.Header); err != nil {
		return framing{}, err
	}
	if err := checkHost(r); err != nil {
		return framing{}, err
	}
	f, err := parseFraming(r)
	if err != nil {
		return framing{}, err
	}
	if err := checkExpect(r); err != nil {
		return framing{}, err
	}
	// RFC 9112 §9.3: HTTP/1.0 connections are not kept here.
	r.Close = r.ProtoMinor == 0 || hasToken(r.Header["Connection"], "close")
	return f, nil
}

// parseRequestLine enforces RFC 9112 §3: method SP request-target SP version.
func parseRequestLine(line string, r *http.Request) *RequestError {
	method, rest, ok1 := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 || method == "" || target == "" {
		return bad("bad_request_line", "the request line is not method, target and version")
	}
	if !isToken(method) {
		return bad("bad_method", "the method holds characters that are not allowed")
	}
	if err := parseVersion(version, r); err != nil {
		return err
	}
	r.Method, r.RequestURI = method, target
	return parseTarget(r)
}

func parseVersion(v string, r *http.Request) *RequestError {
	if len(v) != 8 || v[:5] != "HTTP/" || v[6] != '.' || !isDigit(v[5]) || !isDigit(v[7]) {
		return bad("bad_version", "the request line does not end in an HTTP version")
	}
	if v[5] != '1' {
		return &RequestError{http.StatusHTTPVersionNotSupported, "unsupported_version", "only HTTP/1.0 and HTTP/1.1 are spoken here"}
	}
	// RFC 9110 §2.5: a higher minor version is processed as the highest known.
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	if v[7] == '0' {
		r.Proto, r.ProtoMinor = "HTTP/1.0", 0
	}
	return nil
}

// parseFields adds the field lines in s, each ending in CRLF, to h.
func parseFields(s string, h http.Header) *RequestError {
	values := make([]string, 0, strings.Count(s, "\n")) // one array for all values
	for s != "" {
		var line string
		line, s, _ = strings.Cut(s, "\r\n")
		colon := strings.IndexByte(line, ':')
		if colon <= 0 || !isToken(line[:colon]) {
			// RFC 9112 §5.1: no whitespace between name and colon.
			// RFC 9112 §5.2: no obs-fold, whose name would begin with a space.
			return bad("bad_field_name", "a header field's name is malformed")
		}
		value := strings.Trim(line[colon+1:], " \t")
		for i := range len(value) {
			if !valueByte[value[i]] { // RFC 9110 §5.5
				return bad("bad_field_value", "a header field's value holds control characters")
			}
		}
		key := textproto.CanonicalMIMEHeaderKey(line[:colon])
		if old, ok := h[key]; ok {
			h[key] = append(old, value)
			continue
		}
		values = append(values, value)
		h[key] = values[len(values)-1 : len(values) : len(values)]
	}
	return nil
}

// parseFraming enforces RFC 9112 §6, taking nothing that another reader could
// frame differently.
func parseFraming(r *http.Request) (framing, *RequestError) {
	te, cl := r.Header["Transfer-Encoding"], r.Header["Content-Length"]
	r.Body = http.NoBody
	if len(te) > 0 {
		if r.ProtoMinor == 0 { // RFC 9112 §6.1
			return framing{}, bad("transfer_encoding_http10", "HTTP/1.0 has no Transfer-Encoding")
		}
		if len(cl) > 0 { // RFC 9112 §6.3
			return framing{}, bad("ambiguous_length", "Transfer-Encoding and Content-Length exclude each other")
		}
		if err := checkCodings(te); err != nil {
			return framing{}, err
		}
		delete(r.Header, "Transfer-Encoding")
		r.TransferEncoding = []string{"chunked"}
		r.ContentLength = -1
		announceTrailers(r)
		return framing{chunked: true}, nil
	}
	if len(cl) == 0 {
		return framing{}, nil
	}
	if len(cl) > 1 || cl[0] == "" || len(cl[0]) > 19 {
		return framing{}, bad("bad_content_length", "Content-Length must be one decimal number")
	}
	for i := range len(cl[0]) { // ParseInt would take a sign
		if !isDigit(cl[0][i]) {
			return framing{}, bad("bad_content_length", "Content-Length must be one decimal number")
		}
	}
	n, err := strconv.ParseInt(cl[0], 10, 64)
	if err != nil {
		return framing{}, bad("bad_content_length", "Content-Length is too large")
	}
	r.ContentLength = n
	return framing{length: n}, nil
}

func checkCodings(te []string) *RequestError {
	codings := strings.Split(strings.Join(te, ","), ",")
	for i, c := range codings {
		last := i == len(codings)-1
		c = strings.Trim(c, " \t")
		if strings.EqualFold(c, "chunked") != last || !isToken(c) {
			// RFC 9112 §6.3: without a final "chunked" the length is unknowable;
			// §7.1: it is applied once.
			return bad("bad_transfer_encoding", "Transfer-Encoding must be exactly chunked")
		}
	}
	if len(codings) > 1 { // RFC 9112 §6.1: a coding that is not understood
		return &RequestError{http.StatusNotImplemented, "unsupported_transfer_coding", "the only transfer coding understood is chunked"}
	}
	return nil
}

// announceTrailers moves the Trailer field into r.Trailer, which is never nil
// for a chunked body: copies of the request then see late trailers too.
func announceTrailers(r *http.Request) {
	r.Trailer = http.Header{}
	for _, v := range r.Header["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			key := textproto.CanonicalMIMEHeaderKey(strings.Trim(name, " \t"))
			if isToken(key) && !forbiddenTrailer(key) {
				r.Trailer[key] = nil
			}
		}
	}
	delete(r.Header, "Trailer")
}

// checkExpect leaves 100-continue to the handler and refuses the rest with 417
// (RFC 9110 §10.1.1). HTTP/1.0 knows no expectations; they are ignored there.
func checkExpect(r *http.Request) *RequestError {
	if r.ProtoMinor == 0 {
		return nil
	}
	for _, v := range r.Header["Expect"] {
		for e := range strings.SplitSeq(v, ",") {
			if e = strings.Trim(e, " \t"); e != "" && !strings.EqualFold(e, "100-continue") {
				return &RequestError{http.StatusExpectationFailed, "unknown_expectation", "the only expectation understood is 100-continue"}
			}
		}
	}
	return nil
}

// forbiddenTrailer reports fields that may not arrive after a body, because
// framing, routing, authentication or the content's meaning hang on them
// (RFC 9110 §6.5.1). Canonical names only.
func forbiddenTrailer(key string) bool {
	switch key {
	case "Transfer-Encoding", "Trailer", "Te", "Host", "Connection", "Keep-Alive", "Upgrade",
		"Authorization", "Proxy-Authorization", "Proxy-Authenticate", "Www-Authenticate", "Proxy-Connection",
		"Cookie", "Set-Cookie", "Expect", "Max-Forwards", "Cache-Control", "Pragma", "Range", "Age", "Date", "Expires",
		"Location", "Retry-After", "Vary", "Warning", "If-Match", "If-None-Match", "If-Modified-Since",
		"If-Unmodified-Since", "If-Range", "Authentication-Info", "Proxy-Authentication-Info", "X-Api-Key", "X-Goog-Api-Key":
		return true
	}
	return strings.HasPrefix(key, "Content-") && key != "Content-Md5" && key != "Content-Digest"
}

func hasToken(values []string, token string) bool {
	for _, v := range values {
		for v != "" {
			var t string
			t, v, _ = strings.Cut(v, ",")
			if strings.EqualFold(strings.Trim(t, " \t"), token) {
				return true
			}
		}
	}
	return false
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return s != ""
}

// tokenByte holds tchar of RFC 9110 §5.6.2; valueByte what a field value may
// hold: VCHAR, SP, HTAB and obs-text. Neither is ever changed.
var (
	tokenByte = byteSet(func(b byte) bool {
		return isDigit(b) || 'a' <= b|0x20 && b|0x20 <= 'z' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
	})
	valueByte = byteSet(func(b byte) bool { return b == '\t' || b >= ' ' && b != 0x7f })
)

func byteSet(in func(byte) bool) (set [256]bool) {
	for i := range set {
		set[i] = in(byte(i))
	}
	return set
}
