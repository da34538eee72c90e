// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	_ "golang.org/x/crypto/x509roots/fallback" // a scratch image has no roots: these serve where the system has none
)

// Config describes the way to one upstream, or to any host if the caller puts
// the authority in the request. The zero value is the default.
type Config struct {
	Protocols      []string // "h2", "http/1.1"; nil = both
	TLSHandshake   time.Duration
	RequestWrite   time.Duration // an upload of which nothing is taken; 0 = none
	ResponseHeader time.Duration // sent request to final head; 0 = none
	ExtraRoots     []byte        // PEM, added to the system's
	ClientCert     *tls.Certificate
	MinVersion     uint16 // 0 = TLS 1.2

	OnHandshake func(resumed bool, err error)
	OnConn      func(delta int, protocol string)
}

// Limits that no setting changes.
const (
	maxHeadBytes      = 1 << 20   // of an upstream's answer head
	maxInterim        = 64        // 1xx answers before a final one; a guess
	streamWindow      = 256 << 10 // bytes an HTTP/2 stream may hold for a slow app
	idleTimeout       = 90 * time.Second
	continueTimeout   = time.Second      // RFC 9110 §10.1.1: do not wait for 100 indefinitely
	pingAfter         = 30 * time.Second // of an HTTP/2 connection without a frame
	pingTimeout       = 30 * time.Second // tolerant: a blackout of seconds must not cut streams
	defaultHandshake  = 5 * time.Second
	maxAttempts       = 4
	defaultIdlePerUps = 256
)

// A Transport is the way to one upstream.
type Transport struct {
	cfg     Config
	tls     *tls.Config
	dialRaw DialFunc
	main    *http.Transport
	upgrade *http.Transport // HTTP/1.1 only, for Upgrade
}

// New returns a Transport that opens its connections with dial.
func New(dial DialFunc, cfg Config) (*Transport, error) {
	cfg.TLSHandshake = cmp.Or(cfg.TLSHandshake, defaultHandshake)
	if len(cfg.Protocols) == 0 {
		cfg.Protocols = []string{"h2", "http/1.1"}
	}
	for _, p := range cfg.Protocols {
		if p != "h2" && p != "http/1.1" {
			return nil, fmt.Errorf("transport: unknown protocol %q", p)
		}
	}
	t := &Transport{cfg: cfg, dialRaw: dial}
	t.tls = &tls.Config{MinVersion: cmp.Or(cfg.MinVersion, tls.VersionTLS12), ClientSessionCache: tls.NewLRUClientSessionCache(64)}
	if len(cfg.ExtraRoots) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(cfg.ExtraRoots) {
			return nil, errors.New("transport: the extra roots hold no PEM certificate")
		}
		t.tls.RootCAs = pool
	}
	if cfg.ClientCert != nil {
		t.tls.Certificates = []tls.Certificate{*cfg.ClientCert}
	}
	t.main = t.stock(cfg.Protocols)
	t.upgrade = t.stock([]string{"http/1.1"})
	return t, nil
}

// stock sets the standard library's client up for protocols.
func (t *Transport) stock(protocols []string) *http.Transport {
	h := &http.Transport{
		DialContext:            t.open,
		DialTLSContext:         t.openTLS(protocols),
		DisableCompression:     true,
		MaxIdleConnsPerHost:    defaultIdlePerUps,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  continueTimeout,
		MaxResponseHeaderBytes: maxHeadBytes,
		WriteBufferSize:        1, // see wire
		Protocols:              new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: streamWindow,
			SendPingTimeout:           pingAfter,
			PingTimeout:               pingTimeout,
		},
	}
	h.Protocols.SetHTTP1(slices.Contains(protocols, "http/1.1"))
	h.Protocols.SetHTTP2(slices.Contains(protocols, "h2"))
	return h
}

// CloseIdleConnections closes connections that serve nothing now.
func (t *Transport) CloseIdleConnections() {
	t.main.CloseIdleConnections()
	t.upgrade.CloseIdleConnections()
}

// RoundTrip sends one request and returns its answer's head; the body streams.
// It moves a request to another connection only while no byte of it was sent.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	x := &roundTrip{t: t, ctx: ctx, cancel: cancel}
	if req.Body != nil && req.Body != http.NoBody {
		x.upload = &upload{src: req.Body, progress: &progress{limit: t.cfg.RequestWrite, fail: x.stalled}}
		defer x.upload.progress.stop()
	}
	for attempt := 1; ; attempt++ {
		out, err := x.prepare(req)
		if err != nil {
			cancel(err)
			return nil, err
		}
		resp, err := x.client(req).RoundTrip(out)
		x.stopWait()
		if err == nil {
			resp.Body = x.owned(resp)
			return resp, nil
		}
		if attempt < maxAttempts && (x.provablyUnsent() || x.provablyUnprocessed(err)) && ctx.Err() == nil {
			continue
		}
		err = classify(ctx, err, x.mayBeSent())
		cancel(err)
		return nil, err
	}
}

// A roundTrip is one call of RoundTrip with all its attempts.
type roundTrip struct {
	t       *Transport
	ctx     context.Context
	cancel  context.CancelCauseFunc
	upload  *upload // nil: no body
	wire    atomic.Pointer[wire]
	reused  atomic.Bool
	wrote   atomic.Bool // HTTP/2: the head was written
	interim atomic.Int32
	wait    atomic.Pointer[time.Timer]
	ended   atomic.Bool
}

// client picks the connection pool: an upgrade needs HTTP/1.1 (RFC 9110 §7.8).
func (x *roundTrip) client(req *http.Request) *http.Transport {
	if req.Header.Get("Upgrade") != "" {
		return x.t.upgrade
	}
	return x.t.main
}

// prepare builds the request for one attempt.
func (x *roundTrip) prepare(req *http.Request) (*http.Request, error) {
	x.wire.Store(nil)
	x.ended.Store(false)
	out := req.WithContext(httptrace.WithClientTrace(x.ctx, x.trace()))
	out.RequestURI = ""
	out.Proto, out.ProtoMajor, out.ProtoMinor = "HTTP/1.1", 1, 1 // below that, net/http does not wait for 100
	out.URL = rawTarget(req.URL, req.RequestURI)
	out.Header = withoutReplayKeys(unnamed(req.Header))
	if x.upload == nil {
		out.Body = noBody{}
		if req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != http.MethodOptions && req.Method != http.MethodTrace {
			out.Body = http.NoBody // sends Content-Length: 0 where it is expected
		}
		return out, nil
	}
	body, err := x.upload.view()
	if err != nil {
		return nil, &Error{In: "send", Kind: "upstream_closed", Err: err}
	}
	out.Body = body
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace: // net/http would replay these
	default:
		out.GetBody = x.upload.view // for HTTP/2 streams that were not processed
	}
	return out, nil
}

// rawTarget returns a URL whose request target is raw, octet for octet.
func rawTarget(u *url.URL, raw string) *url.URL {
	out := &url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery, Opaque: u.Opaque}
	if raw == "" {
		return out
	}
	path, query, has := strings.Cut(raw, "?")
	out.RawQuery, out.ForceQuery, out.Path, out.RawPath = query, has && query == "", "", ""
	out.Opaque = path
	if strings.HasPrefix(path, "//") { // Opaque would take it for an authority
		if p, err := url.PathUnescape(path); err == nil {
			out.Opaque, out.Path, out.RawPath = "", p, path
			if out.EscapedPath() == path {
				return out
			}
		}
		out.Opaque, out.Path, out.RawPath = "//"+u.Host+path, "", ""
	}
	return out
}

// unnamed keeps net/http from naming itself where the request names nobody.
func unnamed(h http.Header) http.Header {
	if _, ok := h["User-Agent"]; ok {
		return h
	}
	if h = h.Clone(); h == nil {
		h = make(http.Header)
	}
	h["User-Agent"] = nil
	return h
}

// withoutReplayKeys hides two names from net/http, in whose eyes they allow it to
// send a request twice. Field names have no case, so the upstream sees the same.
func withoutReplayKeys(h http.Header) http.Header {
	for _, name := range [...]string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := h[name]; ok {
			h = h.Clone()
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
	return h
}

// trace returns the hooks by which this package follows an attempt; those of the
// caller run as well.
func (x *roundTrip) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			x.reused.Store(info.Reused)
			if w, ok := info.Conn.(*wire); ok {
				w.begin()
				x.wire.Store(w)
			}
		},
		WroteHeaders: func() {
			if x.wire.Load() == nil {
				x.wrote.Store(true)
			}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				x.startWait()
			}
		},
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if x.interim.Add(1) > maxInterim { // an error returned here would give way to the caller's hook
				x.cancel(&Error{In: "wait", Kind: "upstream_bad_response", Sent: true,
					Err: fmt.Errorf("the upstream sent more than %d interim answers", maxInterim)})
			}
			return nil
		},
	}
}

// startWait begins the response_header limit.
func (x *roundTrip) startWait() {
	limit := x.t.cfg.ResponseHeader
	if limit <= 0 || x.ended.Load() {
		return
	}
	timer := time.AfterFunc(limit, func() {
		x.cancel(&Error{In: "wait", Kind: "upstream_response_header_timeout", Limit: "timeouts.response_header", Expired: true, Sent: true,
			Err: fmt.Errorf("the upstream sent no answer within %v", limit)})
	})
	if old := x.wait.Swap(timer); old != nil {
		old.Stop()
	}
	if x.ended.Load() {
		timer.Stop()
	}
}

func (x *roundTrip) stopWait() {
	x.ended.Store(true)
	if timer := x.wait.Swap(nil); timer != nil {
		timer.Stop()
	}
}

// stalled ends a request whose upload the upstream does not take.
func (x *roundTrip) stalled() {
	x.cancel(&Error{In: "send", Kind: "upstream_request_write_timeout", Limit: "timeouts.request_write", Expired: true, Sent: true,
		Err: fmt.Errorf("the upstream took no byte of the request for %v", x.t.cfg.RequestWrite)})
}

// provablyUnsent says that the attempt had an HTTP/1.1 connection from the pool
// and not a byte of the request was written to it. HTTP/2's own proofs are
// net/http's to act on.
func (x *roundTrip) provablyUnsent() bool {
	w := x.wire.Load()
	return w != nil && x.reused.Load() && !w.sent.Load()
}

// provablyUnprocessed says that the HTTP/2 peer did not process the attempt
// (REFUSED_STREAM, or above GOAWAY's last stream: RFC 9113 §8.7) and that net/http
// did not move it itself, for want of a GetBody: that of a GET or HEAD is kept
// from it, because over HTTP/1.1 it would replay them without proof. Its error
// has no type, only these words, and no other failure has them.
func (x *roundTrip) provablyUnprocessed(err error) bool {
	return x.wire.Load() == nil && strings.Contains(err.Error(), "http2: Transport: cannot retry err [")
}

func (x *roundTrip) mayBeSent() bool {
	if w := x.wire.Load(); w != nil {
		return w.sent.Load()
	}
	return x.wrote.Load()
}

// owned ties the attempt's context to the body: closing it ends what still runs.
func (x *roundTrip) owned(resp *http.Response) io.ReadCloser {
	if x.upload != nil {
		x.upload.settle()
	}
	b := &ownedBody{ReadCloser: resp.Body, cancel: x.cancel}
	if rw, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		// net/http leaves the connection alone after a 101, whatever its context says.
		stop := context.AfterFunc(x.ctx, func() { _ = rw.Close() })
		return &ownedSocket{ownedBody: b, rw: rw, stop: stop}
	}
	return b
}

type ownedBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *ownedBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(context.Canceled)
	return err
}

// An ownedSocket is the connection behind a 101.
type ownedSocket struct {
	*ownedBody
	rw   io.ReadWriteCloser
	stop func() bool // of the watch over the request's context
}

func (s *ownedSocket) Close() error {
	s.stop()
	return s.ownedBody.Close()
}

// CloseWrite ends the sending side alone.
func (s *ownedSocket) CloseWrite() error {
	if c, ok := s.rw.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

func (s *ownedSocket) Write(p []byte) (int, error) { return s.rw.Write(p) }
