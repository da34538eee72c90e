// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const mediaType = "application/dns-message" // RFC 8484 §6

// A doh asks over HTTPS.
type doh struct {
	d       *dialer
	base    url.URL
	closing context.Context
	running sync.WaitGroup // requests; each is started by a question that is waited for

	mu      sync.Mutex // guards the field below, and line.users
	current *line
}

// A line is an HTTP client with the connections that it has opened: one with
// HTTP/2. A line whose connection is silent is replaced as a whole, because
// net/http would give the next request to the same connection.
type line struct {
	http.RoundTripper
	own   *http.Transport // nil with the caller's RoundTripper
	heard atomic.Uint64   // answers
	users int             // requests; guarded by doh.mu
	first chan struct{}   // holds a token while a request waits for the first connection

	mu    sync.Mutex // guards the fields below
	ended bool
	ready bool // a connection has been given to a request, and not all are closed since
	conns map[*tracked]struct{}
}

// enter lets one request alone ask for the first connection, because net/http
// would dial one for each that comes before there is any. It returns how to let
// the others go on.
func (l *line) enter(ctx context.Context) (leave func(), err error) {
	if l.own == nil || l.isReady() {
		return func() {}, nil
	}
	select {
	case l.first <- struct{}{}:
		return sync.OnceFunc(func() { <-l.first }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *line) isReady() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

func (l *line) isEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

func (l *line) setReady() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = true
}

// A tracked connection leaves the list of its line when it is closed.
type tracked struct {
	net.Conn
	line *line
}

func (t *tracked) Close() error {
	t.line.mu.Lock()
	delete(t.line.conns, t)
	t.line.ready = t.line.ready && len(t.line.conns) > 0
	t.line.mu.Unlock()
	return t.Conn.Close()
}

func newDoH(d *dialer, closing context.Context) (*doh, error) {
	base, err := url.Parse("https://" + d.spec.authority() + d.spec.Target)
	if err != nil {
		return nil, fmt.Errorf("resolver %s: its path is not one: use ParseSpec", d.spec.Name)
	}
	h := &doh{d: d, base: *base, closing: closing}
	h.current = h.newLine()
	return h, nil
}

func (h *doh) newLine() *line {
	if h.d.cfg.RoundTripper != nil {
		return &line{RoundTripper: h.d.cfg.RoundTripper}
	}
	l := &line{first: make(chan struct{}, 1), conns: map[*tracked]struct{}{}}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	l.own = &http.Transport{
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx, h) },
		Protocols:              protocols,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1,
		MaxConnsPerHost:        8, // guess: for HTTP/1.1, and HTTP/2 with fewer streams than questions
		IdleConnTimeout:        h.d.cfg.Idle,
		MaxResponseHeaderBytes: 64 << 10, // 64 KiB
	}
	l.RoundTripper = l.own
	return l
}

// dial connects to the resolver's own addresses, whatever name net/http asks
// for. net/http may go on dialling for a request that is over, but not after
// Close.
func (l *line) dial(ctx context.Context, h *doh) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.d.cfg.Timeout, errNoAnswer)
	defer cancel()
	defer context.AfterFunc(h.closing, cancel)()
	return h.d.stream(ctx, l.track, "h2", "http/1.1")
}

func (l *line) track(conn net.Conn) net.Conn {
	t := &tracked{Conn: conn, line: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		_ = conn.Close() // the handshake fails
		return conn
	}
	l.conns[t] = struct{}{}
	return t
}

// end closes all connections of the line, with what is under way on them.
func (l *line) end() {
	if l.own == nil {
		return
	}
	l.mu.Lock()
	l.ended = true
	conns := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	l.own.CloseIdleConnections()
}

func (h *doh) close() {
	h.mu.Lock()
	l := h.current
	h.mu.Unlock()
	l.end()
	h.running.Wait()
}

// take returns the line to use, which is not the given one. Whoever it is handed
// to leaves it.
func (h *doh) take(not *line) *line {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == not && not.own != nil {
		h.current = h.newLine()
	}
	h.current.users++
	return h.current
}

// leave ends a line that has been replaced, with its last request.
func (h *doh) leave(l *line) {
	h.mu.Lock()
	l.users--
	last := l.users == 0 && l != h.current
	h.mu.Unlock()
	if last {
		l.end()
	}
}

// ask posts or gets q. If a connection that has been used before says nothing,
// or breaks, a new one is tried: beside it, or after it. If the connection is
// alive and a GET stays open, it is withdrawn and the question posted, because
// Knot Resolver 5.6 loses requests without a body that arrive together.
func (h *doh) ask(ctx context.Context, q *query) (reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	withdrawable, withdraw := context.WithCancel(ctx)
	defer withdraw()
	one := h.start(withdrawable, h.take(nil), q, h.d.spec.Get)
	first := one.done
	var two *request
	var second chan result
	again := func(not *line) {
		two = h.start(ctx, h.take(not), q, false)
		second = two.done
	}
	hedge, repeat := time.NewTimer(h.d.cfg.Hedge), time.NewTimer(max(h.d.cfg.Retransmit, h.d.cfg.Hedge))
	defer hedge.Stop()
	defer repeat.Stop()
	for {
		select {
		case got := <-first:
			if !h.worthAgain(ctx, got.err, one) {
				return got.r, got.err
			}
			if first = nil; second == nil {
				again(one.line)
			}
		case <-hedge.C:
			if two == nil && one.silent() {
				again(one.line)
			}
		case <-repeat.C:
			if two == nil && h.d.spec.Get && one.sent.Load() {
				first = nil
				withdraw()
				again(nil)
			}
		case got := <-second:
			if got.err == nil && two.line != one.line {
				one.line.end()
			}
			if got.err == nil || first == nil {
				return got.r, got.err
			}
			second = nil // the first may still answer
		case <-ctx.Done():
			return reply{}, context.Cause(ctx)
		}
	}
}

// worthAgain reports whether a request failed for its connection's sake.
func (h *doh) worthAgain(ctx context.Context, err error, r *request) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	if r.line.isEnded() { // by another question, which found it silent
		return h.closing.Err() == nil
	}
	if !r.reused.Load() {
		return false
	}
	kind := kindOf(err)
	return kind == KindUnreachable || kind == KindTimeout
}

// A request is one question on one line.
type request struct {
	line   *line
	heard  uint64      // answers on the line before it
	done   chan result // has room for the result
	reused atomic.Bool // it went over a connection that had been used before
	sent   atomic.Bool // all of it
}

// silent reports whether the connection may be dead. One that has answered
// another request since is alive, and the resolver busy with this name; so is
// one that was only just opened.
func (r *request) silent() bool {
	return r.line.own != nil && r.reused.Load() && r.heard > 0 && r.line.heard.Load() == r.heard
}

// start sends q over a line that the caller has taken.
func (h *doh) start(ctx context.Context, l *line, q *query, get bool) *request {
	r := &request{line: l, heard: l.heard.Load(), done: make(chan result, 1)}
	h.running.Go(func() {
		defer h.leave(l)
		leave, err := l.enter(ctx)
		if err != nil {
			r.done <- result{err: err}
			return
		}
		defer leave()
		ctx := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(info httptrace.GotConnInfo) {
				r.reused.Store(info.Reused)
				l.setReady()
				leave()
			},
			WroteRequest: func(info httptrace.WroteRequestInfo) { r.sent.Store(info.Err == nil) },
		})
		got, err := h.roundTrip(l, h.request(ctx, q, get), q)
		r.done <- result{r: got, err: err}
	})
	return r
}

func (h *doh) roundTrip(l *line, req *http.Request, q *query) (reply, error) {
	resp, err := l.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	l.heard.Add(1)
	if resp.StatusCode < 200 || resp.StatusCode > 299 { // RFC 8484 §4.2.1
		return reply{}, statusError(resp.StatusCode)
	}
	if t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || t != mediaType {
		return reply{}, fmt.Errorf("%w: it is not %s (a login page?)", errBadAnswer, mediaType)
	}
	message, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage+1)) // one more does not parse
	if err != nil {
		return reply{}, err
	}
	if q.fits(message, 0) == matchNone {
		return reply{}, fmt.Errorf("%w: it is about another question", errBadAnswer)
	}
	if truncated(message) {
		return reply{}, fmt.Errorf("%w: cut short", errBadAnswer)
	}
	r, err := q.parse(message)
	if err == nil {
		r.answer.age(age(resp.Header))
	}
	return r, err
}

// request has no field that tells who asks (RFC 8484 §8.2). The id is zero, so
// that the same question is the same request for caches (RFC 8484 §4.1).
func (h *doh) request(ctx context.Context, q *query, get bool) *http.Request {
	u := h.base
	req := &http.Request{
		Method: http.MethodPost, URL: &u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Accept": {mediaType}, "User-Agent": nil},
	}
	if get {
		req.Method = http.MethodGet
		variable := "dns=" + base64.RawURLEncoding.EncodeToString(q.message)
		u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+variable, "&")
	} else {
		req.Header["Content-Type"] = []string{mediaType}
		req.ContentLength = int64(len(q.message))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(q.message)), nil }
		req.Body, _ = req.GetBody() // never fails
	}
	return req.WithContext(ctx)
}

// age is how long the answer was in HTTP caches (RFC 9111 §5.1).
func age(header http.Header) time.Duration {
	seconds, err := strconv.ParseUint(strings.TrimSpace(header.Get("Age")), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || seconds > 1<<31-1:
		seconds = 1<<31 - 1 // RFC 9111 §1.2.2
	case err != nil:
		return 0
	}
	return time.Duration(seconds) * time.Second
}
