// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/warmwire/warmwire/internal/ingress/http1"
)

// An inside is the tunnel that a request came in.
type inside struct {
	authority string       // as hostPort gives it
	host      string       // as the app wrote it
	scheme    string       // https, or http: the app speaks in clear
	connect   http.Header  // what its CONNECT proved
	tenant    string       // whose it is; "" = there were none
	asked     *atomic.Bool // of the host
	conn      net.Conn     // that CONNECT came on
}

// serveInside serves the requests inside a tunnel as those of any other connection, and
// returns when it has ended.
func (s *Server) serveInside(c net.Conn, in *inside) {
	ctx := withInside(http1.WithConn(s.life, c), in)
	if t, ok := c.(*tls.Conn); ok && t.ConnectionState().NegotiatedProtocol == "h2" {
		s.serveHTTP2(ctx, c)
		return
	}
	s.h1.ServeConn(ctx, c)
}

// proof is nil-safe.
func (in *inside) proof() http.Header {
	if in == nil {
		return nil
	}
	return in.connect
}

// proofs are the fields by which a CONNECT shows that it may.
func proofs(h http.Header) http.Header {
	out := make(http.Header)
	for _, name := range [...]string{tokenHeader, "Proxy-Authorization"} {
		if v, ok := h[name]; ok {
			out[name] = v
		}
	}
	return out
}

type insideKey struct{}

func withInside(ctx context.Context, in *inside) context.Context {
	if in == nil {
		return ctx
	}
	return context.WithValue(ctx, insideKey{}, in)
}

func insideOf(ctx context.Context) *inside {
	in, _ := ctx.Value(insideKey{}).(*inside)
	return in
}

// routeAny routes a request inside a tunnel or outside.
func (t *Table) routeAny(r *http.Request, in *inside) (route, *refusal) {
	if in == nil {
		return t.route(r)
	}
	if !in.asked.Load() {
		in.asked.Store(true)
	}
	return t.routeInside(r, in)
}

// routeInside takes a request for what the tunnel leads to, in origin form or absolute
// form (RFC 9112 §3.2.2). It may be for no other host: it is the tunnel's that the rules
// for hosts have let in, and its certificate says for whom the app takes us (RFC 9110 §7.4).
func (t *Table) routeInside(r *http.Request, in *inside) (route, *refusal) {
	raw, authority := r.RequestURI, r.Host
	if i := strings.Index(raw, "://"); i > 0 && raw[0] != '/' {
		scheme, rest := strings.ToLower(raw[:i]), raw[i+3:]
		authority, raw = rest, ""
		if j := strings.IndexAny(rest, "/?"); j >= 0 {
			authority, raw = rest[:j], rest[j:]
		}
		if scheme != in.scheme && scheme != strings.Replace(in.scheme, "http", "ws", 1) {
			authority = "\x00" // none of ours
		}
	} else if r.Method == http.MethodConnect || !strings.HasPrefix(raw, "/") && raw != "*" {
		return route{}, &refusal{http.StatusBadRequest, "bad_request_target",
			"inside a tunnel the request target is a path", ModeIntercept}
	}
	if authority != "" && hostPort(authority, in.scheme) != in.authority {
		return route{}, &refusal{http.StatusMisdirectedRequest, "unknown_host",
			"this request is for another host than the tunnel it came in", ModeIntercept}
	}
	if u := t.forwardUpstream(in.authority, in.scheme); u != nil && (u.URL.Scheme == "https" || in.scheme == "http") {
		return u.routeTarget(ModeIntercept, raw), nil
	}
	if ref := t.Forward.check(in.host, ModeIntercept); ref != nil { // a reload may have come since the CONNECT
		return route{}, ref
	}
	if !strings.HasPrefix(raw, "/") && raw != "*" {
		raw = "/" + raw
	}
	path, _, _ := strings.Cut(raw, "?")
	return route{mode: ModeIntercept, scheme: in.scheme, host: in.sent(), target: raw, path: path}, nil
}

// sent is the authority for the next hop's Host field: without the port that the scheme
// has anyway (RFC 9110 §4.2.3).
func (in *inside) sent() string {
	if in.scheme == "http" {
		return strings.TrimSuffix(in.host, ":80")
	}
	return strings.TrimSuffix(in.host, ":443")
}
