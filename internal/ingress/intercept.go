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
	"sync"
	"sync/atomic"
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
	Peek        time.Duration // wait for the app's first byte; then the tunnel is blind; 0 = 3 s
}

// An InterceptResult is what became of one tunnel to a listed host.
type InterceptResult string

// The results. They are also metric labels. All but the first two, untrusted,
// left and failed are blind tunnels.
const (
	Intercepted      InterceptResult = "intercepted"
	InterceptPlain   InterceptResult = "plain"          // the app sends requests in clear, which are served
	InterceptNoTLS   InterceptResult = "no_tls"         // the app sends neither, or nothing
	InterceptName    InterceptResult = "other_name"     // its ClientHello names another host
	InterceptALPN    InterceptResult = "other_protocol" // it offers no HTTP, or wants TLS of an upstream without
	InterceptLearned InterceptResult = "learned"        // clients did not accept our certificate lately
	InterceptNoCert  InterceptResult = "no_certificate" // none can be made
	Untrusted        InterceptResult = "untrusted"      // the app did not accept our certificate
	InterceptLeft    InterceptResult = "left"           // the app ended its handshake and did not say why
	InterceptFailed  InterceptResult = "failed"         // its handshake failed otherwise
)

const (
	defaultPeek    = 3 * time.Second  // half a second was too short for Deno on a machine with a load of nine for each core; a server that speaks first is that late once
	handshakeLimit = 10 * time.Second // guess: of an app on the same host
	firstRead      = 4 << 10          // most ClientHellos have 0.5 to 2 KiB
)

// An interceptor holds what the tunnels to one host share. It never changes but for
// its exceptions.
type interceptor struct {
	hosts      map[string]*listedHost
	cfg        Intercept
	exceptions intercept.Exceptions
}

// A listedHost is one whose tunnels may be ended here.
type listedHost struct {
	tls   *tls.Config // its own: a session ticket of one host is none of another's
	asked atomic.Bool // there was a request inside, or it was said that the first tunnel ended without
}

func (i *interceptor) init(cfg Intercept) {
	if i.cfg = cfg; i.cfg.Peek == 0 {
		i.cfg.Peek = defaultPeek
	}
	i.hosts = make(map[string]*listedHost, len(cfg.Hosts))
	for _, host := range cfg.Hosts {
		i.hosts[host] = &listedHost{tls: &tls.Config{
			MinVersion: tls.VersionTLS12,
			// Of TLS 1.2 only what HTTP/2 allows (RFC 9113 §9.2.2).
			CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
				tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256},
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cfg.Certificate(host) },
		}}
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
	if len(i.hosts) == 0 {
		return ""
	}
	host := strings.TrimSuffix(strings.ToLower(hostname(authority)), ".")
	if i.hosts[host] == nil {
		return ""
	}
	if i.exceptions.Blind(host, 0, time.Now()) {
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
// and ends its TLS here, serves what it asks in clear, or leaves the tunnel alone. leave
// is called when the tunnel as such is over.
func (e *exchange) intercept(authority, host string, leave func()) {
	ctx, cancel := context.WithCancelCause(e.r.Context())
	e.ctx, e.stop = ctx, cancel
	defer cancel(nil)
	done := sync.OnceFunc(e.s.running.add(e))
	defer done()
	conn, first, err := e.accept()
	if stream, ok := conn.(*streamNet); ok {
		defer stream.finish()
	}
	e.rec.Status, e.rec.Outcome = http.StatusOK, OutcomeOK
	e.live.status.Store(http.StatusOK)
	interrupt := context.AfterFunc(ctx, func() { _ = conn.Close() })
	var result InterceptResult
	var client uint64
	if err == nil {
		first, result, client, err = e.s.intercept.look(conn, first, host)
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
	if u := e.t.byAddr[hostPort(authority, "https")]; result == Intercepted && u != nil && u.URL.Scheme != "https" {
		result = InterceptALPN // what the app encrypts does not go on in clear
	}
	switch result {
	case Intercepted:
		below := &handshakeConn{Conn: &replayConn{conn, first}}
		inner := tls.Server(below, e.s.intercept.hosts[host].tls)
		if err := e.handshake(inner, &below.alert, host, client); err != nil {
			e.rec.Outcome, e.rec.Cause = OutcomeCutApp, CauseAppLeft
			if ctx.Err() != nil {
				e.rec.Outcome, e.rec.Cause = cutCause(ctx, ctx.Err())
			}
			return
		}
		e.serve(inner, authority, "https", result, func() { done(); leave() })
		if !e.s.intercept.hosts[host].asked.Swap(true) {
			e.s.interceptTrouble(host, errMute)
		}
	case InterceptPlain:
		e.serve(&replayConn{conn, first}, authority, "http", result, func() { done(); leave() })
	default:
		e.s.interceptResult(result)
		if e.who != nil && !e.mayBeBlind() {
			_ = conn.Close()
			return
		}
		e.blind(authority, host, conn, first)
	}
}

// accept answers CONNECT and returns the app's connection, with what was read of it.
func (e *exchange) accept() (net.Conn, []byte, error) {
	if e.r.ProtoMajor == 2 {
		e.w.WriteHeader(http.StatusOK)
		return newStreamNet(e), nil, e.rc.Flush()
	}
	conn, rw, err := e.rc.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, err = io.WriteString(conn, connectEstablished)
	return conn, buffered(rw.Reader), err
}

// serve serves the requests inside a tunnel, which from now on count instead of it.
func (e *exchange) serve(c net.Conn, authority, scheme string, result InterceptResult, leave func()) {
	e.s.interceptResult(result)
	e.ended = true
	leave()
	host := strings.TrimSuffix(strings.ToLower(hostname(authority)), ".")
	e.s.serveInside(c, &inside{
		authority: hostPort(authority, scheme), host: authority, scheme: scheme, connect: proofs(e.r.Header), asked: &e.s.intercept.hosts[host].asked,
		conn: http1.Conn(e.r.Context()), tenant: e.rec.Tenant,
	})
}

// look reads until it is clear what the app says first, and what kind of client it is.
// What it has read is first.
func (i *interceptor) look(c net.Conn, first []byte, host string) ([]byte, InterceptResult, uint64, error) {
	first = append(make([]byte, 0, max(firstRead, len(first))), first...)
	begun := time.Now()
	for {
		hello, v := intercept.Look(first)
		switch v {
		case intercept.HTTP:
			return first, InterceptPlain, 0, c.SetReadDeadline(time.Time{})
		case intercept.Other:
			return first, InterceptNoTLS, 0, c.SetReadDeadline(time.Time{})
		case intercept.Client:
			result := Intercepted
			switch hello.Fits(host) {
			case intercept.OtherName:
				result = InterceptName
			case intercept.OtherProtocol:
				result = InterceptALPN
			default:
				if i.exceptions.Blind(host, hello.Client, time.Now()) {
					result = InterceptLearned
				}
			}
			return first, result, hello.Client, c.SetReadDeadline(time.Time{})
		}
		limit := i.cfg.Peek
		if len(first) > 0 {
			limit = handshakeLimit
		}
		if err := c.SetReadDeadline(begun.Add(limit)); err != nil {
			return nil, "", 0, err
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
			return first, InterceptNoTLS, 0, c.SetReadDeadline(time.Time{})
		default:
			return nil, "", 0, err
		}
	}
}

// blind tunnels the app to the host itself. The app has its 200 already, so a host that
// cannot be reached shows as a broken connection.
func (e *exchange) blind(authority, host string, conn net.Conn, first []byte) {
	up, err := e.t.Forward.Dial(e.ctx, "tcp", authority)
	e.sw.stop(e.rec, time.Now())
	if err != nil {
		f := classify(e.ctx, err)
		e.rec.Outcome, e.rec.Cause = f.outcome, f.cause
		e.s.interceptTrouble(host, err)
		if l, ok := conn.(interface{ SetLinger(int) error }); ok {
			_ = l.SetLinger(0)
		}
		_ = conn.Close()
		if e.r.ProtoMajor == 2 {
			panic(http.ErrAbortHandler) // resets the stream
		}
		return
	}
	tun := &tunnel{up: up, app: conn, raw: conn, early: first}
	if e.r.ProtoMajor == 2 {
		tun.raw = nil
	}
	e.relayTunnel(tun)
}

// codeClientCertificate is the code that the way out has for a server that ended TLS
// because it was shown no client certificate.
const codeClientCertificate = "upstream_tls_client_certificate"

// leaveAlone makes the host of the tunnel that e came in be tunnelled untouched, if f says
// that it wants a certificate which only the app may have. Nothing of the call was
// processed, and this connection ends with its answer: the app's next one is the host's.
func (e *exchange) leaveAlone(f *failure) {
	if e.inside == nil || e.inside.scheme != "https" || f.code != codeClientCertificate {
		return
	}
	host := strings.TrimSuffix(strings.ToLower(hostname(e.inside.host)), ".")
	until, learned := e.s.intercept.exceptions.WantsCertificate(host, time.Now())
	if until.IsZero() {
		return
	}
	f.sent, f.close = false, true
	f.message += "; if the app has one, try again: the next connection to this host is tunnelled untouched"
	if learned && e.s.cfg.Hooks.ClientCertificate != nil {
		e.s.cfg.Hooks.ClientCertificate(host, until)
	}
}

// handshake makes the app's handshake, and closes c if it fails.
func (e *exchange) handshake(c *tls.Conn, alert *intercept.Alert, host string, client uint64) error {
	ctx, cancel := context.WithTimeout(e.ctx, handshakeLimit)
	defer cancel()
	err := c.HandshakeContext(ctx)
	if err == nil {
		alert.Stop()
		return nil
	}
	_ = c.Close()
	switch {
	case ctx.Err() == nil && distrusts(err, alert):
	case ctx.Err() == nil && errors.Is(err, io.EOF):
		e.s.interceptResult(InterceptLeft)
		e.s.interceptTrouble(host, errLeft)
		return err
	default:
		e.s.interceptResult(InterceptFailed)
		return err
	}
	until, learned := e.s.intercept.exceptions.Refused(host, client, time.Now())
	e.s.interceptResult(Untrusted)
	if learned && e.s.cfg.Hooks.Distrusted != nil {
		e.s.cfg.Hooks.Distrusted(host, until)
	}
	return err
}

// What may or may not be distrust, so that it is told and changes nothing: an app that
// leaves may just have been stopped.
var (
	errLeft = errors.New("the app ended its handshake without saying why: it may not trust Warmwire's certificate (Node.js does not say so: " +
		"see warmwire ca path), or accept one certificate only (list the host in intercept.blind)")
	errMute = errors.New("the app ended its first connection right after the handshake, without a request: if it accepts one certificate " +
		"only, list the host in intercept.blind")
)

// distrusts says whether the app ended its handshake because of our certificate, which
// only an alert says. An end, a reset or a silence may come from anywhere.
func distrusts(err error, inClear *intercept.Alert) bool {
	if code, ok := inClear.Code(); ok {
		return intercept.Distrust(code)
	}
	var oe *net.OpError
	if !errors.As(err, &oe) || oe.Op != "remote error" {
		return false
	}
	for code := range uint8(255) {
		if intercept.Distrust(code) && oe.Err.Error() == tls.AlertError(code).Error() { // crypto/tls keeps its own type to itself
			return true
		}
	}
	return false
}

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

// A handshakeConn watches for an alert in clear, of which crypto/tls makes a bad record.
type handshakeConn struct {
	net.Conn
	alert intercept.Alert
}

func (c *handshakeConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.alert.Watch(p[:n])
	return n, err
}

// NetConn returns the connection below.
func (c *handshakeConn) NetConn() net.Conn { return c.Conn }
