// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A route is what a request turned out to mean.
type route struct {
	mode     Mode
	upstream *Upstream // nil: a host that is no upstream
	scheme   string    // of the next hop
	host     string    // authority for the next hop's Host field
	target   string    // raw path and query, octet for octet
	path     string    // the target's path without the upstream's own prefix, for dialect
}

// A refusal is a request that we do not forward.
type refusal struct {
	status  int
	code    string
	message string
	mode    Mode
}

func (r *refusal) Error() string { return r.message }

// route reads from the form of a request which upstream it means.
// RFC 9112 §3.2 names the forms.
func (t *Table) route(r *http.Request) (route, *refusal) {
	raw := r.RequestURI
	if i := strings.Index(raw, "://"); i > 0 && !strings.HasPrefix(raw, "/") {
		return t.routeAbsolute(r, raw[:i], raw[i+3:])
	}
	if !strings.HasPrefix(raw, "/") && raw != "*" {
		return route{}, &refusal{http.StatusBadRequest, "bad_request_target",
			"the request target is neither a path nor an absolute URL", ModeBaseURL}
	}
	if u := t.byHost[hostPort(r.Host, "https")]; u != nil {
		return u.routeTarget(ModeHost, raw), nil
	}
	if hp, _, err := net.SplitHostPort(r.Host); err != nil || hp == "" {
		if u := t.byHost[hostPort(r.Host, "http")]; u != nil { // an upstream over plain http
			return u.routeTarget(ModeHost, raw), nil
		}
	}
	if !t.ownHost(r) {
		return route{}, &refusal{http.StatusMisdirectedRequest, "unknown_host",
			"no upstream has the host of this request, and it is not a name of this listener: use a configured upstream's host, " +
				"http://127.0.0.1:8484/<upstream>/… or add the name to listen.allow_hosts", ModeHost}
	}
	return t.routeBaseURL(raw)
}

// routeBaseURL takes the first path segment as the upstream's name.
func (t *Table) routeBaseURL(raw string) (route, *refusal) {
	name, rest := strings.TrimPrefix(raw, "/"), ""
	if i := strings.IndexAny(name, "/?"); i >= 0 {
		name, rest = name[:i], name[i:]
	}
	u := t.byName[name]
	if u == nil {
		return route{}, &refusal{http.StatusNotFound, "unknown_upstream",
			"the first path segment names no upstream; configured: " + strings.Join(t.names(), ", "), ModeBaseURL}
	}
	return u.routeTarget(ModeBaseURL, rest), nil
}

// routeTarget puts the upstream's own path before a target that is relative to
// it. Host-header and proxy requests already carry the provider's whole path.
func (u *Upstream) routeTarget(m Mode, raw string) route {
	prefix := strings.TrimSuffix(u.URL.EscapedPath(), "/")
	rt := route{mode: m, upstream: u, scheme: u.URL.Scheme, host: u.URL.Host, target: raw, path: raw}
	if m == ModeBaseURL {
		rt.target = prefix + raw
	} else {
		rt.path = strings.TrimPrefix(raw, prefix)
	}
	if !strings.HasPrefix(rt.target, "/") && rt.target != "*" { // only a query, or nothing
		rt.target = "/" + rt.target
	}
	rt.path, _, _ = strings.Cut(rt.path, "?")
	return rt
}

// routeAbsolute handles the proxy form. A configured upstream's host is sent
// the way its url says, over TLS, however the app spelt the scheme.
func (t *Table) routeAbsolute(r *http.Request, scheme, rest string) (route, *refusal) {
	scheme = strings.ToLower(scheme)
	switch scheme { // aiohttp asks a proxy for ws:// and wss:// URLs
	case "ws":
		scheme = "http"
	case "wss":
		scheme = "https"
	}
	if scheme != "http" && scheme != "https" {
		return route{}, &refusal{http.StatusBadRequest, "unsupported_scheme",
			"only http and https targets can be forwarded", ModeForward}
	}
	authority, target := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, target = rest[:i], rest[i:]
	}
	if authority == "" || strings.Contains(authority, "@") {
		return route{}, &refusal{http.StatusBadRequest, "bad_request_target",
			"the request target has no host, or has user information in it (RFC 9110 §4.2.4)", ModeForward}
	}
	if target == "" && r.Method == http.MethodOptions {
		target = "*" // RFC 9112 §3.2.4
	}
	if u := t.forwardUpstream(authority, scheme); u != nil {
		return u.routeTarget(ModeForward, target), nil
	}
	if !strings.HasPrefix(target, "/") && target != "*" {
		target = "/" + target
	}
	if ref := t.Forward.check(authority, ModeForward); ref != nil {
		return route{}, ref
	}
	path, _, _ := strings.Cut(target, "?")
	return route{mode: ModeForward, scheme: scheme, host: authority, target: target, path: path}, nil
}

// forwardUpstream finds the upstream that an absolute-form authority means. An
// app that was given HTTP_PROXY and an http:// URL still means the API, so port
// 80 (or none) counts as the upstream's own.
func (t *Table) forwardUpstream(authority, scheme string) *Upstream {
	if u := t.byAddr[hostPort(authority, scheme)]; u != nil {
		return u
	}
	host, port, err := net.SplitHostPort(hostPort(authority, scheme))
	if err != nil || scheme != "http" || port != "80" {
		return nil
	}
	return t.byHost[net.JoinHostPort(host, "443")]
}

// check applies the policy for hosts that are no upstream.
func (f *Forward) check(authority string, m Mode) *refusal {
	host := hostname(authority)
	if f.DenyAll {
		return &refusal{http.StatusForbidden, "forward_denied",
			"this host is no configured upstream and forward.default is deny", m}
	}
	if f.Deny != nil && f.Deny(host) {
		return &refusal{http.StatusForbidden, "forward_denied", "this host is listed in forward.deny", m}
	}
	return nil
}

// routeConnect checks the authority of a CONNECT request (RFC 9110 §9.3.6: host
// and port, both needed) and returns it in dialling form.
func (t *Table) routeConnect(r *http.Request) (string, *refusal) {
	authority := r.Host
	if r.ProtoMajor == 1 {
		authority = r.RequestURI
	}
	host, port, err := net.SplitHostPort(authority)
	if err != nil || host == "" {
		return "", &refusal{http.StatusBadRequest, "bad_connect_target",
			"CONNECT needs host:port, an IPv6 address in brackets (RFC 9110 §9.3.6)", ModeTunnel}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", &refusal{http.StatusBadRequest, "bad_connect_target", "CONNECT needs a port from 1 to 65535", ModeTunnel}
	}
	if strings.Contains(host, ":") {
		if a, err := netip.ParseAddr(host); err != nil || a.Zone() != "" {
			return "", &refusal{http.StatusBadRequest, "bad_connect_target",
				"the target is no IPv6 address, or has a zone, which only means something on this host", ModeTunnel}
		}
	}
	if ref := t.Forward.check(authority, ModeTunnel); ref != nil && t.byAddr[hostPort(authority, "https")] == nil {
		return "", ref
	}
	return authority, nil
}

// ownHost says whether the Host of an origin-form request is a name of our own
// listener. Whole hosts are compared: a web page can choose its host name, so a
// prefix proves nothing.
func (t *Table) ownHost(r *http.Request) bool {
	host := strings.TrimSuffix(strings.ToLower(hostname(r.Host)), ".")
	if host == "" { // HTTP/1.0 without Host: no browser sends that
		return r.ProtoMajor == 1 && r.ProtoMinor == 0
	}
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
		return false // a browser reaches us by http://0.0.0.0 and says nothing of the page it came from
	}
	if isLoopbackHost(host) || slices.Contains(t.AllowHosts, host) {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	if local.Network() == "unix" {
		return host == "unix" || host == "warmwire"
	}
	ap, err := netip.ParseAddrPort(local.String())
	a, err2 := netip.ParseAddr(host)
	return err == nil && err2 == nil && ap.Addr().Unmap() == a.Unmap()
}

// names lists the upstreams for messages, in the order of the configuration.
func (t *Table) names() []string {
	names := make([]string, 0, len(t.Upstreams))
	for _, u := range t.Upstreams {
		names = append(names, u.Name)
	}
	return names
}
