// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"encoding/base64"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/ingress/peer"
	"github.com/warmwire/warmwire/internal/tenant"
)

// keyHeaders are the fields in which model APIs take their keys.
var keyHeaders = [...]string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}

// keyParameters are those of a query (Google's, as of 2026).
var keyParameters = []string{"key", "access_token", "oauth_token"}

// protocolKey is how a browser gives OpenAI's realtime API a key: as a subprotocol.
const protocolKey = "openai-insecure-api-key."

// A Denial is a request that was refused because of who sent it, or of how much.
// Nothing of it is told to its sender but the quota.
type Denial struct {
	Tenant   string // "" = it is not known
	Reason   string // of tenant.Reason or tenant.Quota
	Mode     Mode
	Upstream string // "" = none
}

// identify finds the tenant that sends the request of e. Whoever is not known gets one
// answer, whatever is wrong: what is to be mended stands in the log.
func (e *exchange) identify(rt route) *refusal {
	var who *tenant.Tenant
	why := tenant.Unknown
	if e.inside != nil {
		who = e.t.Tenants.Tenant(e.inside.tenant)
	} else {
		who, why = e.t.Tenants.Identify(e.proof(rt), e.rec.Start)
	}
	if who != nil {
		e.who, e.rec.Tenant = who, who.Name
		e.r = e.r.WithContext(WithCaller(e.r.Context(), Caller{Tenant: who.Name, Class: who.Class, Weight: who.Weight}))
		return nil
	}
	e.denied(string(why), rt)
	ref := &refusal{http.StatusUnauthorized, "caller_unknown", "this caller is not known here", rt.mode}
	switch {
	case why == tenant.NoKeys:
		ref.status, ref.message = http.StatusServiceUnavailable, "who calls cannot be found out yet"
	case rt.mode == ModeForward, rt.mode == ModeTunnel:
		ref.status = http.StatusProxyAuthRequired // RFC 9110 §11.7.1
	}
	return ref
}

// asks is the step "who asks?" of a request with tenants. ref is what is wrong with it
// so far; what that says of the configuration is not for everybody.
func (e *exchange) asks(rt route, ref *refusal) *refusal {
	if ref == nil || telling[ref.code] {
		if unknown := e.identify(rt); unknown != nil {
			return unknown
		}
	}
	if ref == nil {
		ref = e.permit(rt)
	}
	return ref
}

// telling are the codes of refusals that say which upstreams and rules there are.
var telling = map[string]bool{"unknown_upstream": true, "unknown_host": true, "forward_denied": true}

func (e *exchange) denied(reason string, rt route) {
	if e.s.cfg.Hooks.Denied == nil {
		return
	}
	d := Denial{Tenant: e.rec.Tenant, Reason: reason, Mode: rt.mode}
	if rt.upstream != nil {
		d.Upstream = rt.upstream.Name
	}
	e.s.cfg.Hooks.Denied(d)
}

// proof gathers what the request shows of its sender. For hosts that are no upstream
// the API's fields are between the app and its server.
func (e *exchange) proof(rt route) tenant.Proof {
	h := e.r.Header
	if own, ok := ownToken(h); ok {
		return tenant.Proof{Own: own, HasOwn: true}
	}
	p := tenant.Proof{Peer: e.peer}
	if rt.upstream == nil && (rt.mode == ModeForward || rt.mode == ModeTunnel) {
		return p
	}
	for _, name := range keyHeaders {
		for _, v := range h[name] {
			p.Shared = append(p.Shared, bearer(v))
		}
	}
	for _, list := range h["Sec-Websocket-Protocol"] {
		for item := range strings.SplitSeq(list, ",") {
			if token, ok := strings.CutPrefix(textproto.TrimString(item), protocolKey); ok {
				p.Shared = append(p.Shared, token)
			}
		}
	}
	if rt.upstream != nil && rt.upstream.Dialect == dialect.Gemini {
		_ = withoutParameters(rt.target, func(name, value string) bool {
			if slices.Contains(keyParameters, name) {
				p.Shared = append(p.Shared, value)
			}
			return false
		})
	}
	return p
}

// ownToken is what stands in a field for Warmwire alone. Two values are none.
func ownToken(h http.Header) (token string, there bool) {
	if values, ok := h[tokenHeader]; ok {
		if len(values) == 1 {
			token = values[0]
		}
		return token, true
	}
	values, ok := h["Proxy-Authorization"]
	if !ok || len(values) != 1 {
		return "", ok
	}
	scheme, value, _ := strings.Cut(values[0], " ")
	switch strings.ToLower(scheme) {
	case "bearer":
		return textproto.TrimString(value), true
	case "basic": // http://anything:token@host:port in a proxy variable
		if len(value) > 2*tenant.MaxToken {
			return value, true // which is too large
		}
		raw, err := base64.StdEncoding.DecodeString(textproto.TrimString(value))
		if err != nil {
			return "", true
		}
		user, password, _ := strings.Cut(string(raw), ":")
		if password == "" { // http://token@host:port
			password = user
		}
		return password, true
	}
	return "", true
}

// bearer is a field's value without the scheme.
func bearer(v string) string {
	if len(v) > 7 && strings.EqualFold(v[:7], "bearer ") {
		v = v[7:]
	}
	return textproto.TrimString(v)
}

// peer asks the kernel who is at the other end.
func (e *exchange) peer() (tenant.Peer, bool) {
	info, err := peer.Look(http1.Conn(e.r.Context()))
	if err != nil || !info.Seen {
		return tenant.Peer{}, false
	}
	return tenant.Peer{UID: info.UID, GID: info.GID, HasGID: info.HasGID}, true
}

// permit asks the caller's roles about a request.
func (e *exchange) permit(rt route) *refusal {
	name, path := tenant.Forward, rt.path
	if u := rt.upstream; u != nil {
		name = u.Name
		target, _, _ := strings.Cut(rt.target, "?")
		if !below(target, strings.TrimSuffix(u.URL.EscapedPath(), "/")) {
			path = "" // paths are the API's, and this is beside it: no pattern fits
		}
	}
	if e.who.Permits(name, e.r.Method, path) {
		return nil
	}
	return e.notPermitted(rt)
}

func (e *exchange) notPermitted(rt route) *refusal {
	e.denied(string(tenant.NotInRole), rt)
	return &refusal{http.StatusForbidden, "not_permitted", "this caller may not do this", rt.mode}
}

// below says whether a path is below a prefix, or is it.
func below(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// take takes the request's share of its tenant's quotas.
func (e *exchange) take(rt route) *refusal {
	use, over := e.who.Begin(time.Now(), e.r.ContentLength)
	if over == nil {
		e.use = use
		return nil
	}
	e.denied(string(over.Quota), rt)
	f := (&overQuota{*over}).failure(false)
	e.over = over
	return &refusal{f.status, f.code, f.message, rt.mode}
}

// settle gives the request's stream back, and charges what it has cost.
func (e *exchange) settle() {
	if e.use == nil {
		return
	}
	if e.rec.Mode == ModeTunnel || e.rec.Mode == ModeWebSocket { // what came that way was not counted before
		_ = e.use.Uploaded(e.rec.BytesIn, time.Now())
	}
	e.s.charge(e.use, e.rec.Tenant, e.rec.OutputTokens)
	e.use = nil
}

func (s *Server) charge(use *tenant.Use, who string, tokens int64) {
	charged, estimate := use.End(tokens, time.Now())
	if charged > 0 && s.cfg.Hooks.Charged != nil {
		s.cfg.Hooks.Charged(who, charged, estimate)
	}
}

// An overQuota is the error of an upload that has become too large.
type overQuota struct{ over tenant.Over }

func (o *overQuota) Error() string {
	return "the quota " + string(o.over.Quota) + " of this caller is used up"
}

func (o *overQuota) failure(sent bool) failure {
	code := "quota_" + string(o.over.Quota)
	f := ours(http.StatusTooManyRequests, code, "http_request_denied", o.Error(), sent, OutcomeRefused, code)
	f.after = o.over.After
	if o.over.Never {
		f.status, f.message = http.StatusRequestEntityTooLarge, "the request is larger than the quota "+string(o.over.Quota)+" of this caller for a whole minute"
	}
	return f
}

// stripFields takes the app's own credentials out of fields for an upstream, and what
// identifies a tenant out of those for other hosts.
func (t *Table) stripFields(h http.Header, u *Upstream) {
	for _, name := range keyHeaders {
		if u != nil || slices.ContainsFunc(h[name], func(v string) bool { return t.Tenants.Recognises(bearer(v)) }) {
			delete(h, name)
		}
	}
	lists, ok := h["Sec-Websocket-Protocol"]
	if !ok {
		return
	}
	var kept []string
	for _, list := range lists {
		var items []string
		for item := range strings.SplitSeq(list, ",") {
			if item = textproto.TrimString(item); !strings.HasPrefix(item, protocolKey) {
				items = append(items, item)
			}
		}
		if len(items) > 0 {
			kept = append(kept, strings.Join(items, ", "))
		}
	}
	if h["Sec-Websocket-Protocol"] = kept; len(kept) == 0 {
		delete(h, "Sec-Websocket-Protocol")
	}
}

// stripTarget does the same with the query.
func (t *Table) stripTarget(rt route) string {
	return withoutParameters(rt.target, func(name, value string) bool {
		if !slices.Contains(keyParameters, name) {
			return false
		}
		return rt.upstream != nil && rt.upstream.Dialect == dialect.Gemini || t.Tenants.Recognises(value)
	})
}

// withoutParameters leaves the parameters of a raw target out that drop says so of. The
// others stay as they are, octet for octet.
func withoutParameters(target string, drop func(name, value string) bool) string {
	path, query, ok := strings.Cut(target, "?")
	if !ok {
		return target
	}
	var kept []string
	all := strings.Split(query, "&")
	for _, p := range all {
		name, value, _ := strings.Cut(p, "=")
		if n, err := url.QueryUnescape(name); err == nil {
			name = n
		}
		if v, err := url.QueryUnescape(value); err == nil {
			value = v
		}
		if !drop(name, value) {
			kept = append(kept, p)
		}
	}
	switch len(kept) {
	case len(all):
		return target
	case 0:
		return path
	}
	return path + "?" + strings.Join(kept, "&")
}

// mayTunnel says whether the caller may have a blind tunnel.
func (e *exchange) mayTunnel() bool { return e.who == nil || e.who.Reaches(tenant.Tunnel) }

// mayBeBlind is asked for a tunnel in which requests were expected. The app has its 200
// already, so that the answer no shows as an end.
func (e *exchange) mayBeBlind() bool {
	rt := route{mode: ModeTunnel}
	ref := (*refusal)(nil)
	if !e.mayTunnel() {
		ref = e.notPermitted(rt)
	} else {
		ref = e.take(rt)
	}
	if ref != nil {
		e.rec.Outcome, e.rec.Cause = OutcomeRefused, ref.code
	}
	return ref == nil
}

// connect is the step "who asks?" of a CONNECT with tenants. One to a host whose TLS is
// ended here may be made for requests that roles allow; they are asked about each.
func (e *exchange) connect(authority string, intercepted bool) *refusal {
	rt := route{mode: ModeTunnel}
	if e.mayTunnel() {
		if intercepted { // the requests inside count
			return nil
		}
		return e.take(rt)
	}
	if intercepted {
		name := tenant.Forward
		if u := e.t.byAddr[hostPort(authority, "https")]; u != nil {
			name = u.Name
		}
		if e.who.Reaches(name) {
			return nil
		}
	}
	return e.notPermitted(rt)
}
