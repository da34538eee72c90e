// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/warmwire/warmwire/internal/tenant"
)

// hopByHop are the fields that mean only one connection, whether or not
// Connection names them (RFC 9110 §7.6.1, §11.7).
var hopByHop = [...]string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info", "Http2-Settings",
}

// loopMarker finds a loop that went through something which drops Via. It is
// sent to loopback targets only, and never passed on to another host.
const loopMarker = "Warmwire-Loop"

// tokenHeader carries listen.token where Proxy-Authorization does not fit.
const tokenHeader = "Warmwire-Token"

// dropHopByHop removes the fields of this connection from h, those that
// Connection nominates first. Framing and Host are never up to Connection.
func dropHopByHop(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = textproto.TrimString(name); name != "" {
				switch name = http.CanonicalHeaderKey(name); name {
				case "Content-Length", "Host":
				default:
					delete(h, name)
				}
			}
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// hasToken says whether a comma-separated field holds token, in any case.
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(textproto.TrimString(t), token) {
				return true
			}
		}
	}
	return false
}

// isWebSocketUpgrade says whether r asks for a WebSocket (RFC 6455 §4.1). Field
// values are lists and compared without case (RFC 9110 §7.8).
func isWebSocketUpgrade(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ProtoMinor >= 1 && r.Method == http.MethodGet &&
		hasToken(r.Header["Connection"], "upgrade") && hasToken(r.Header["Upgrade"], "websocket")
}

// requestHeader returns the fields to send for r on this route, for a tenant or nobody.
func (s *Server) requestHeader(t *Table, r *http.Request, rt route, who *tenant.Tenant) http.Header {
	h := r.Header.Clone()
	if h == nil {
		h = make(http.Header)
	}
	trailers := hasToken(h["Te"], "trailers")
	dropHopByHop(h)
	delete(h, tokenHeader)
	delete(h, loopMarker)
	delete(h, streamHeader)
	delete(h, positionHeader)
	delete(h, priorityHeader)
	if trailers { // RFC 9110 §10.1.4: the rest of TE is this hop's
		h["Te"] = []string{"trailers"}
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // keeps the transport from naming itself
	}
	if t.Via {
		h["Via"] = append(h["Via"], viaProtocol(r)+" "+s.pseudonym)
	}
	if t.Tenants != nil {
		t.stripFields(h, rt.upstream)
	}
	if u := rt.upstream; u != nil {
		for name, values := range u.SetHeaders {
			h[name] = values
		}
		if who != nil {
			for name, values := range who.Fields(u.Name) {
				h[name] = values
			}
		}
	}
	if isLoopbackHost(hostname(rt.host)) {
		h[loopMarker] = []string{s.pseudonym}
	}
	return h
}

// looped says whether r has been through this instance before (RFC 9110 §7.6.3).
func (s *Server) looped(r *http.Request) bool {
	for _, v := range r.Header["Via"] {
		if strings.Contains(v, s.pseudonym) {
			return true
		}
	}
	for _, v := range r.Header[loopMarker] {
		if v == s.pseudonym {
			return true
		}
	}
	return false
}

// viaProtocol is the received-protocol of a Via entry: HTTP's name is left out.
func viaProtocol(r *http.Request) string {
	switch {
	case r.ProtoMajor == 2:
		return "2.0"
	case r.ProtoMinor == 0:
		return "1.0"
	}
	return "1.1"
}

// copyResponseHeader puts the upstream's fields into the app's answer: lines
// are neither merged nor reordered within a name (RFC 9110 §5.3).
func copyResponseHeader(dst, src http.Header) {
	for name, values := range src {
		dst[name] = values
	}
	dropHopByHop(dst)
	for _, name := range [...]string{"Content-Type", "Date"} {
		if _, ok := dst[name]; !ok {
			dst[name] = nil // net/http's HTTP/2 server must not guess one
		}
	}
}

// trailerForbidden says whether a name must not come in a trailer section:
// framing, routing, authentication and content fields (RFC 9110 §6.5.1).
func trailerForbidden(name string) bool {
	switch name {
	case "Authorization", "Proxy-Authorization", "Proxy-Authenticate", "Www-Authenticate", "Cookie", "Set-Cookie",
		"Host", "Content-Length", "Content-Encoding", "Content-Type", "Content-Range", "Transfer-Encoding",
		"Trailer", "Te", "Connection", "Keep-Alive", "Upgrade", "Expect", "Max-Forwards", "Range", "Cache-Control",
		"Age", "Date", "Expires", "Location", "Retry-After", "Vary", "Warning", "Via":
		return true
	}
	return strings.HasPrefix(name, "If-")
}

// hasExactToken is hasToken for values where case matters.
func hasExactToken(list, token string) bool {
	for t := range strings.SplitSeq(list, ",") {
		if textproto.TrimString(t) == token {
			return true
		}
	}
	return false
}
