// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/intercept"
)

// Intercept says for which hosts Warmwire ends the TLS of a tunnel itself.
type Intercept struct {
	// Hosts are names and addresses, in lower case, without port, brackets or a dot at
	// the end; empty = none, and every tunnel is blind.
	Hosts       []string
	Certificate func(host string) (*tls.Certificate, error)
	Peek        time.Duration // wait for the app's first byte; then the tunnel is blind; 0 = 500 ms
}

// An InterceptResult is what became of one tunnel to a listed host.
type InterceptResult string

// The results. They are also metric labels. All but the first, untrusted and failed
// are blind tunnels.
const (
	Intercepted      InterceptResult = "intercepted"
	InterceptNoTLS   InterceptResult = "no_tls"         // the app sends no ClientHello, or nothing
	InterceptName    InterceptResult = "other_name"     // its ClientHello names another host
	InterceptALPN    InterceptResult = "other_protocol" // it offers no HTTP
	InterceptLearned InterceptResult = "learned"        // clients did not accept our certificate lately
	InterceptNoCert  InterceptResult = "no_certificate" // none can be made
	Untrusted        InterceptResult = "untrusted"      // the app did not accept our certificate
	InterceptFailed  InterceptResult = "failed"         // its handshake failed otherwise
)

const (
	defaultPeek    = 500 * time.Millisecond // guess: no app computes so long on its first byte, and a server that speaks first is that late once
	handshakeLimit = 10 * time.Second       // guess: of an app on the same host
	firstRead      = 4 << 10                // most ClientHellos have 0.5 to 2 KiB
)

// An interceptor holds what the tunnels to one host share. It never changes but for
// its exceptions.
type interceptor struct {
	hosts      map[string]*tls.Config // one for each: a session ticket of one host is none of another's
	cfg        Intercept
	exceptions intercept.Exceptions
}

func (i *interceptor) init(cfg Intercept) {
	if i.cfg = cfg; i.cfg.Peek == 0 {
		i.cfg.Peek = defaultPeek
	}
	i.hosts = make(map[string]*tls.Config, len(cfg.Hosts))
	for _, host := range cfg.Hosts {
		i.hosts[host] = &tls.Config{
			MinVersion: tls.VersionTLS12,
			// Of TLS 1.2 only what HTTP/2 allows (RFC 9113 §9.2.2).
			CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
				tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256},
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cfg.Certificate(host) },
		}
	}
}

// Exceptions are the listed hosts that are tunnelled untouched for a while.
func (s *Server) Exceptions() []intercept.Exception {
	return s.intercept.exceptions.List(time.Now())
}

// ClearExceptions forgets one of them, or all if host is "", and returns how many.
func (s *Server) ClearExceptions(host string) int {
	return s.intercept.exceptions.Clear(strings.TrimSuffix(strings.ToLower(host), "."), time.Now())
}

// intercepted returns the host of a CONNECT if its TLS is to be ended here.
func (e *exchange) intercepted(authority string) string {
	i := &e.s.intercept
	if len(i.hosts) == 0 || e.r.ProtoMajor != 1 {
		return ""
	}
	host := strings.TrimSuffix(strings.ToLower(hostname(authority)), ".")
	if i.hosts[host] == nil {
		return ""
	}
	if u := e.t.byAddr[hostPort(authority, "https")]; u != nil && u.URL.Scheme != "https" {
		return "" // what the app encrypts does not go on in clear
	}
	if i.exceptions.Blind(host, time.Now()) {
		e.s.interceptResult(InterceptLearned)
		return ""
	}
	if _, err := i.cfg.Certificate(host); err != nil {
		e.s.interceptResult(InterceptNoCert)
		e.s.interceptTrouble(host, err)
		return ""
	}
	return host
}

func (s *Server) interceptResult(r InterceptResult) {
	if s.cfg.Hooks.Intercepted != nil {
		s.cfg.Hooks.Intercepted(r)
	}
}

func (s *Server) interceptTrouble(host string, err error) {
	if s.cfg.Hooks.InterceptTrouble != nil {
		s.cfg.Hooks.InterceptTrouble(host, err)
	}
}

// intercept answers CONNECT before anything is dialled, looks at what the app sends,
// and ends its TLS here or leaves the tunnel alone. leave is called when the tunnel as
// such is over.
func (e *exchange) intercept(authority, host string, leave func()) {
	ctx, cancel := context.WithCancelCause(e.r.Context())
	e.ctx, e.stop = ctx, cancel
	defer cancel(nil)
	done := e.s.running.add(e)
	defer func() { done() }()
	conn, rw, err := e.rc.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	e.rec.Status, e.rec.Outcome = http.StatusOK, OutcomeOK
	e.live.status.Store(http.StatusOK)
	interrupt := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, err = io.WriteString(conn, connectEstablished)
	var first []byte
	var result InterceptResult
	if err == nil {
		first, result, err = e.s.intercept.look(conn, buffered(rw.Reader), host)
	}
	if !interrupt() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		e.rec.Outcome, e.rec.Cause = cutCause(ctx, err)
		if ctx.Err() == nil {
			e.rec.Outcome, e.rec.Cause = OutcomeCutApp, CauseAppLeft
		}
		return
	}
	if result != Intercepted {
		e.s.interceptResult(result)
		e.blind(authority, host, conn, first)
		return
	}
	inner := tls.Server(&replayConn{conn, first}, e.s.intercept.hosts[host])
	if err := e.handshake(inner, host); err != nil {
		e.rec.Outcome, e.rec.Cause = OutcomeCutApp, CauseAppLeft
		if ctx.Err() != nil {
			e.rec.Outcome, e.rec.Cause = cutCause(ctx, ctx.Err())
		}
		return
	}
	e.s.interceptResult(Intercepted)
	e.ended = true // from here on the requests inside count
	done()
	done = func() {}
	leave()
	e.s.serveInside(inner, &inside{authority: hostPort(authority, "https"), host: authority, connect: proofs(e.r.Header)})
}

// look reads until it is clear what the app says first. What it has read is first.
func (i *interceptor) look(c net.Conn, first []byte, host string) ([]byte, InterceptResult, error) {
	first = append(make([]byte, 0, max(firstRead, len(first))), first...)
	begun := time.Now()
	for {
		hello, v := intercept.Look(first)
		switch v {
		case intercept.Other:
			return first, InterceptNoTLS, c.SetReadDeadline(time.Time{})
		case intercept.Client:
			result := Intercepted
			switch hello.Fits(host) {
			case intercept.OtherName:
				result = InterceptName
			case intercept.OtherProtocol:
				result = InterceptALPN
			}
			return first, result, c.SetReadDeadline(time.Time{})
		}
		limit := i.cfg.Peek
		if len(first) > 0 {
			limit = handshakeLimit
		}
		if err := c.SetReadDeadline(begun.Add(limit)); err != nil {
			return nil, "", err
		}
		if len(first) == cap(first) {
			first = append(first, make([]byte, len(first))...)[:len(first)]
		}
		n, err := c.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
		var ne net.Error
		switch {
		case n > 0 || err == nil:
		case errors.As(err, &ne) && ne.Timeout() && time.Since(begun) >= limit, err == io.EOF:
			return first, InterceptNoTLS, c.SetReadDeadline(time.Time{})
		default:
			return nil, "", err
		}
	}
}

// blind tunnels the app to the host itself. The app has its 200 already, so a host that
// cannot be reached shows as a broken connection.
func (e *exchange) blind(authority, host string, conn net.Conn, first []byte) {
	up, err := e.t.Forward.Dial(e.ctx, "tcp", authority)
	e.sw.stop(e.rec)
	if err != nil {
		f := classify(e.ctx, err)
		e.rec.Outcome, e.rec.Cause = f.outcome, f.cause
		e.s.interceptTrouble(host, err)
		if l, ok := conn.(interface{ SetLinger(int) error }); ok {
			_ = l.SetLinger(0)
		}
		_ = conn.Close()
		return
	}
	tun := &tunnel{up: up, app: conn, raw: conn, early: first}
	e.rec.Outcome, e.rec.Cause = tun.run(e.ctx)
	e.rec.BytesIn, e.rec.BytesOut = tun.in, tun.out
}

// handshake makes the app's handshake, and closes c if it fails.
func (e *exchange) handshake(c *tls.Conn, host string) error {
	ctx, cancel := context.WithTimeout(e.ctx, handshakeLimit)
	defer cancel()
	err := c.HandshakeContext(ctx)
	if err == nil {
		return nil
	}
	_ = c.Close()
	if ctx.Err() != nil || !distrusts(err) {
		e.s.interceptResult(InterceptFailed)
		return err
	}
	until, learned := e.s.intercept.exceptions.Refused(host, time.Now())
	e.s.interceptResult(Untrusted)
	if learned && e.s.cfg.Hooks.Distrusted != nil {
		e.s.cfg.Hooks.Distrusted(host, until)
	}
	return err
}

// Alerts that say that a certificate is not accepted (RFC 8446 §6.2).
var trustAlerts = [...]tls.AlertError{
	42, // bad_certificate
	43, // unsupported_certificate
	46, // certificate_unknown
	48, // unknown_ca
}

// distrusts says whether the app ended its handshake because of our certificate: by an
// alert, or by an end in good order right after it had seen it. A reset or a silence
// may come from anywhere.
func distrusts(err error) bool {
	if errors.Is(err, io.EOF) {
		return true
	}
	var oe *net.OpError
	if !errors.As(err, &oe) || oe.Op != "remote error" {
		return false
	}
	for _, a := range trustAlerts {
		if oe.Err.Error() == a.Error() { // crypto/tls keeps its own type to itself
			return true
		}
	}
	return false
}

// serveInside serves the requests inside a tunnel as those of any other connection.
func (s *Server) serveInside(c *tls.Conn, in *inside) {
	ctx := withInside(http1.WithConn(s.life, c), in)
	if c.ConnectionState().NegotiatedProtocol == "h2" {
		s.serveHTTP2(ctx, c)
		return
	}
	s.h1.ServeConn(ctx, c)
}

// An inside is the tunnel that a request came in.
type inside struct {
	authority string      // as hostPort gives it
	host      string      // as the app wrote it
	connect   http.Header // what its CONNECT proved
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
	return t.routeInside(r, in)
}

// routeInside takes a request for what the tunnel leads to, in origin form or absolute
// form (RFC 9112 §3.2.2). It may be for no other host: its certificate says for whom
// the app takes us (RFC 9110 §7.4).
func (t *Table) routeInside(r *http.Request, in *inside) (route, *refusal) {
	raw, authority := r.RequestURI, r.Host
	if i := strings.Index(raw, "://"); i > 0 && raw[0] != '/' {
		scheme, rest := strings.ToLower(raw[:i]), raw[i+3:]
		authority, raw = rest, ""
		if j := strings.IndexAny(rest, "/?"); j >= 0 {
			authority, raw = rest[:j], rest[j:]
		}
		if scheme != "https" && scheme != "wss" {
			authority = "\x00" // none of ours
		}
	} else if r.Method == http.MethodConnect || !strings.HasPrefix(raw, "/") && raw != "*" {
		return route{}, &refusal{http.StatusBadRequest, "bad_request_target",
			"inside a tunnel the request target is a path", ModeIntercept}
	}
	if authority != "" && hostPort(authority, "https") != in.authority {
		return route{}, &refusal{http.StatusMisdirectedRequest, "unknown_host",
			"this request is for another host than the tunnel it came in", ModeIntercept}
	}
	if u := t.byAddr[in.authority]; u != nil && u.URL.Scheme == "https" {
		return u.routeTarget(ModeIntercept, raw), nil
	}
	if ref := t.Forward.check(in.host, ModeIntercept); ref != nil {
		return route{}, ref
	}
	if !strings.HasPrefix(raw, "/") && raw != "*" {
		raw = "/" + raw
	}
	path, _, _ := strings.Cut(raw, "?")
	return route{mode: ModeIntercept, scheme: "https", host: in.sent(), target: raw, path: path}, nil
}

// sent is the authority for the next hop's Host field: without the port that https has
// anyway (RFC 9110 §4.2.3).
func (in *inside) sent() string { return strings.TrimSuffix(in.host, ":443") }

// A replayConn gives bytes again that were read to find out what they are.
type replayConn struct {
	net.Conn
	first []byte
}

func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	if c.first = c.first[n:]; len(c.first) == 0 {
		c.first = nil // a connection may last
	}
	return n, nil
}

// NetConn returns the connection below.
func (c *replayConn) NetConn() net.Conn { return c.Conn }
