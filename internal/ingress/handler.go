// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"net/http"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
)

// ServeHTTP handles one request of either protocol, in the order in which it
// may be refused: loops first, then what a web page could send, then who asks.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r).linger()
}

// serve serves a request. A cut answer panics with http.ErrAbortHandler.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) (e *exchange) {
	t := s.table.Load()
	e = &exchange{s: s, t: t, w: w, rc: http.NewResponseController(w), r: r}
	e.heads = heads{w: w, http2: r.ProtoMajor == 2, expects: r.Header.Get("Expect") != ""}
	e.rec = &Record{
		ID: s.ids.Add(1), Start: time.Now(), AppProto: r.Proto, Method: r.Method,
		AppRetries: appRetries(r.Header), Trace: traceOf(r.Header), InputTokens: -1, OutputTokens: -1,
	}
	e.inside = insideOf(r.Context())
	defer func() {
		if !e.ended {
			e.attribute(time.Now())
			s.done(e.rec)
		}
	}()
	defer func() {
		if e.body != nil {
			e.rec.BytesIn = e.body.read.Load()
			e.rec.TrailersLost += int(e.body.lost.Load())
		}
	}()
	switch protocol := extendedConnect(r); {
	case protocol != "":
		e.upgrade(protocol)
	case r.Method == http.MethodConnect && e.inside == nil:
		s.serveConnect(t, e)
		return e
	}
	s.serveRequest(t, e)
	return e
}

func (s *Server) serveConnect(t *Table, e *exchange) {
	e.rec.Mode = ModeTunnel
	authority, ref := t.routeConnect(e.r)
	switch {
	case t.Tenants != nil:
		if unknown := e.identify(route{mode: ModeTunnel}); unknown != nil {
			ref = unknown
		}
	case ref == nil:
		ref = t.authorize(e.r, nil, ModeTunnel)
	}
	host := ""
	if ref == nil {
		host = e.intercepted(authority)
	}
	if ref == nil && e.who != nil {
		ref = e.connect(authority, host != "")
	}
	if ref != nil {
		s.refuse(e, ref)
		return
	}
	defer e.settle()
	s.open(ModeTunnel, 1)
	leave := sync.OnceFunc(func() { s.open(ModeTunnel, -1) })
	defer leave()
	if host != "" {
		e.intercept(authority, host, leave)
		return
	}
	e.tunnel(authority)
}

func (s *Server) serveRequest(t *Table, e *exchange) {
	rt, ref := t.routeAny(e.r, e.inside)
	if ref == nil && s.looped(e.r) {
		ref = &refusal{http.StatusLoopDetected, "loop_detected",
			"this request has come through this Warmwire before: an upstream or proxy points back at it", rt.mode}
	}
	if ref == nil && rt.mode != ModeForward && rt.mode != ModeIntercept {
		ref = t.guard(e.r, rt.mode)
	}
	if t.Tenants != nil {
		ref = e.asks(rt, ref)
		rt.target = t.stripTarget(rt)
	} else if ref == nil {
		ref = t.authorize(e.r, rt.upstream, rt.mode)
	}
	switch {
	case ref != nil:
	case e.protocol != "" && e.protocol != "websocket": // RFC 8441 knows of no refusal; RFC 9220 §3 has this
		ref = &refusal{http.StatusNotImplemented, "unsupported_protocol", "extended CONNECT is served for websocket only", rt.mode}
	case e.protocol != "" || isWebSocketUpgrade(e.r):
		rt.mode, ref = ModeWebSocket, checkHandshake(e.r)
	}
	if ref == nil {
		ref = checkPriority(e.r, rt.mode)
	}
	if ref == nil && e.who != nil {
		ref = e.take(rt)
	}
	e.rt, e.rec.Mode = rt, rt.mode
	if rt.upstream != nil {
		e.rec.Upstream = rt.upstream.Name
		e.rec.Operation = dialect.Operation(rt.upstream.Dialect, e.r.Method, rt.path)
	}
	if ref != nil {
		s.refuse(e, ref)
		return
	}
	defer e.settle()
	s.open(rt.mode, 1)
	defer s.open(rt.mode, -1)
	e.relay()
}

// refuse answers a request that is not forwarded.
func (s *Server) refuse(e *exchange, ref *refusal) {
	e.rec.Mode, e.rec.Outcome, e.rec.Cause, e.rec.Status = ref.mode, OutcomeRefused, ref.code, ref.status
	if s.cfg.Hooks.Refused != nil {
		s.cfg.Hooks.Refused(ref.code)
	}
	kind := dialect.None
	if e.rt.upstream != nil {
		kind = e.rt.upstream.Dialect
	}
	proxy := "http_request_denied"
	if ref.code == "loop_detected" {
		proxy = "proxy_loop_detected"
	}
	f := failure{status: ref.status, code: ref.code, proxy: proxy, message: ref.message, outcome: OutcomeRefused}
	if e.over != nil {
		f.after, f.again = e.over.After, !e.over.Never
	}
	s.fail(e.w, e.r, kind, f)
}

func (s *Server) open(m Mode, delta int) {
	if s.cfg.Hooks.StreamOpen != nil {
		s.cfg.Hooks.StreamOpen(delta, m)
	}
}

// done hands the record out, also when the handler panics to cut its stream.
func (s *Server) done(rec *Record) {
	if s.cfg.Hooks.RequestDone != nil {
		s.cfg.Hooks.RequestDone(rec)
	}
}
