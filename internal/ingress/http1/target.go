// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// parseTarget fills r.URL, and r.Host where the target holds the authority, from
// r.RequestURI by the four forms of RFC 9112 §3.2. Octets of a path that no URL
// may hold but that change nothing in how the message is framed or routed pass:
// the handler forwards RequestURI.
func parseTarget(r *http.Request) *RequestError {
	t := r.RequestURI
	for i := range len(t) {
		if t[i] <= ' ' || t[i] == 0x7f || t[i] == '#' {
			return bad("bad_target", "the request target holds a character that is not allowed")
		}
	}
	switch {
	case r.Method == http.MethodConnect: // authority form, §3.2.3
		if !validAuthority(t, true) {
			return bad("bad_connect_target", "the target of CONNECT must be host:port")
		}
		r.URL, r.Host = &url.URL{Host: t}, t
		return nil
	case t == "*": // asterisk form, §3.2.4
		if r.Method != http.MethodOptions {
			return bad("bad_target", "the target * is for OPTIONS only")
		}
		r.URL = &url.URL{Path: "*"}
		return nil
	case t[0] == '/': // origin form, §3.2.1
		r.URL = parsePath(t)
		return nil
	}
	return parseAbsolute(r)
}

// parseAbsolute reads scheme://authority/path, RFC 9112 §3.2.2.
func parseAbsolute(r *http.Request) *RequestError {
	scheme, rest, ok := strings.Cut(r.RequestURI, "://")
	if !ok || !validScheme(scheme) {
		return bad("bad_target", "the request target is neither a path nor an absolute URL")
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if authority == "" || !validAuthority(authority, false) {
		// RFC 9110 §4.2.4: userinfo is an error, it is used to mislead.
		return bad("bad_target", "the request target's host is malformed")
	}
	r.URL = parsePath(path)
	r.URL.Scheme, r.URL.Host = strings.ToLower(scheme), authority
	r.Host = authority
	return nil
}

// parsePath reads a path and query. A path with wrong escapes is kept as it is.
func parsePath(t string) *url.URL {
	path, query, hasQuery := strings.Cut(t, "?")
	u := &url.URL{RawQuery: query, ForceQuery: hasQuery && query == ""}
	p, err := url.PathUnescape(path)
	if err != nil {
		u.Path = path
		return u
	}
	u.Path = p
	if u.EscapedPath() != path {
		u.RawPath = path
	}
	return u
}

func validScheme(s string) bool {
	for i := range len(s) {
		b := s[i]
		alpha := 'a' <= b|0x20 && b|0x20 <= 'z'
		if !alpha && (i == 0 || !isDigit(b) && b != '+' && b != '-' && b != '.') {
			return false
		}
	}
	return s != ""
}

// checkHost enforces RFC 9112 §3.2 and moves the field out of the header map.
func checkHost(r *http.Request) *RequestError {
	hosts := r.Header["Host"]
	switch {
	case len(hosts) == 0 && r.ProtoMinor > 0:
		return bad("missing_host", "an HTTP/1.1 request needs a Host field")
	case len(hosts) > 1:
		return bad("repeated_host", "a request has one Host field only")
	case len(hosts) == 1 && hosts[0] != "" && !validAuthority(hosts[0], false):
		return bad("bad_host", "the Host field is malformed")
	}
	// RFC 9112 §3.2.2: the authority of the target wins over the field.
	if r.Host == "" && len(hosts) == 1 {
		r.Host = hosts[0]
	}
	delete(r.Header, "Host")
	return nil
}

// validAuthority reports whether s is host [":" port] of RFC 3986 §3.2, without
// userinfo.
func validAuthority(s string, needPort bool) bool {
	host, port, hasPort := s, "", false
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || !validIPLiteral(s[1:end]) {
			return false
		}
		host = s[:end+1]
		if rest := s[end+1:]; rest != "" {
			if rest[0] != ':' {
				return false
			}
			port, hasPort = rest[1:], true
		}
	} else {
		host, port, hasPort = strings.Cut(s, ":")
		if !validRegName(host) {
			return false
		}
	}
	if needPort && port == "" {
		return false
	}
	return host != "" && (!hasPort || validPort(port))
}

func validPort(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	if s == "" {
		return true // the grammar allows "host:"
	}
	n, err := strconv.Atoi(s)
	return err == nil && n <= 65535
}

func validIPLiteral(s string) bool {
	colons := 0
	for i := range len(s) {
		b := s[i]
		switch {
		case b == ':':
			colons++
		case isDigit(b), 'a' <= b|0x20 && b|0x20 <= 'f', b == '.':
		case b == '%': // RFC 6874 zone: %25 and unreserved characters
			return colons > 1 && strings.HasPrefix(s[i:], "%25") && len(s) > i+3 && validRegName(s[i+3:])
		default:
			return false
		}
	}
	return colons > 1
}

func validRegName(s string) bool {
	for i := 0; i < len(s); i++ {
		b := s[i]
		switch {
		case isDigit(b), 'a' <= b|0x20 && b|0x20 <= 'z', strings.IndexByte("-._~!$&'()*+,;=", b) >= 0:
		case b == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			i += 2
		default:
			return false
		}
	}
	return s != ""
}

func isHex(b byte) bool { return isDigit(b) || 'a' <= b|0x20 && b|0x20 <= 'f' }
