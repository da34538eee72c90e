// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// drainLimit is how long a body may take to end after its stream's last event.
// A client that closes at once would lose the connection; one that waits for
// ever would wait for servers that keep it open.
const drainLimit = 250 * time.Millisecond

// A Target is one address of the API.
type Target struct {
	URL    *url.URL
	Host   string // sent in place of the URL's host, if set
	Header http.Header
}

// A TLSMode says how connections are made.
type TLSMode string

// The modes.
const (
	TLSReuse   TLSMode = ""        // connections are kept, as SDKs do
	TLSFull    TLSMode = "full"    // a new connection for every call, a full handshake each
	TLSResumed TLSMode = "resumed" // a new connection for every call that resumes a session
)

// A client calls one target. Its transport is its own, so that the legs share
// no connection.
type client struct {
	leg    Leg
	target Target
	api    API
	socket bool
	fresh  bool // a new connection for every call
	tls    *tls.Config
	dial   func(context.Context, string, string) (net.Conn, error)
	shared *http.Transport
}

func newClient(leg Leg, t Target, cfg *Config) *client {
	c := &client{leg: leg, target: t, api: cfg.API, fresh: cfg.TLS != TLSReuse, dial: cfg.Dial}
	c.socket = cfg.API == Realtime || strings.HasPrefix(t.URL.Scheme, "ws")
	c.tls = &tls.Config{RootCAs: cfg.RootCAs}
	if cfg.TLS != TLSFull {
		c.tls.ClientSessionCache = tls.NewLRUClientSessionCache(64)
	}
	if c.dial == nil {
		c.dial = (&net.Dialer{}).DialContext
	}
	if cfg.Resolver != nil && leg == 0 {
		c.dial = dialResolved(cfg.Resolver.Lookup, c.dial)
	}
	u := *cfg.API.address(t.URL, cfg.Model)
	if c.socket {
		u.Scheme = map[string]string{"http": "ws", "https": "wss"}[u.Scheme]
		if u.Scheme == "" {
			u.Scheme = t.URL.Scheme
		}
	}
	c.target.URL = &u
	c.shared = c.transport(max(cfg.Concurrency, cfg.MaxInFlight))
	return c
}

// transport makes one that changes nothing of an answer. It knows no proxy: a
// direct call is direct.
func (c *client) transport(idle int) *http.Transport {
	return &http.Transport{
		DialContext: c.dial, TLSClientConfig: c.tls, ForceAttemptHTTP2: true,
		DisableCompression: true, MaxIdleConnsPerHost: idle, IdleConnTimeout: 90 * time.Second,
	}
}

func (c *client) close() { c.shared.CloseIdleConnections() }

// call makes one call and says how it went. It returns no error: whatever
// happens is an outcome.
func (c *client) call(ctx context.Context, number int, q question) Result {
	r := Result{Leg: c.leg, Number: number}
	t := newTrace()
	ctx = httptrace.WithClientTrace(ctx, t.hooks())
	if c.socket {
		c.callSocket(ctx, &r, t, q)
	} else {
		c.callHTTP(ctx, &r, t, q)
	}
	t.fill(&r)
	return r
}

func (c *client) callHTTP(ctx context.Context, r *Result, t *trace, q question) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errAnswered)
	transport := c.shared
	if c.fresh {
		transport = c.transport(1)
		defer transport.CloseIdleConnections()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.target.URL.String(), bytes.NewReader(q.body(c.api, false)))
	if err != nil {
		panic("measure: internal error: " + err.Error()) // Validate has parsed the address
	}
	req.GetBody = nil // what may have reached the server is not sent again
	req.Host = c.target.Host
	req.Header = c.header()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		r.End = t.now()
		r.Outcome, r.Reason = t.judge(ctx, err)
		return
	}
	defer resp.Body.Close()
	if !c.head(r, t, resp) {
		return
	}
	d := reader{api: c.api, r: r}
	at, err := readEvents(resp.Body, t.now, &d)
	d.finish(ctx, at, err)
	if r.Outcome == OK && !c.api.endsByEOF() {
		stop := time.AfterFunc(drainLimit, func() { cancel(errAnswered) })
		defer stop.Stop()
		_, _ = io.Copy(io.Discard, resp.Body) // the answer is complete: only the connection's next use depends on it
	}
}

// head takes the head of the answer and tells whether a stream follows.
func (c *client) head(r *Result, t *trace, resp *http.Response) bool {
	if resp.StatusCode != http.StatusOK {
		c.refused(r, resp)
		r.End = t.now()
		return false
	}
	at := t.now()
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	coding := resp.Header.Get("Content-Encoding")
	switch {
	case coding != "" && coding != "identity":
		r.Reason = "the answer is compressed although that was not asked for"
	case !strings.EqualFold(strings.TrimSpace(media), "text/event-stream"):
		r.Reason = "the answer is no event stream"
	default:
		r.Begun, r.Setup = true, at
		return true
	}
	r.Outcome, r.End = Malformed, at
	return false
}

// refused notes an answer that is no success.
func (c *client) refused(r *Result, resp *http.Response) {
	r.Outcome, r.Reason = Status, fmt.Sprintf("HTTP %d", resp.StatusCode)
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if name := bodyError(body); err == nil && name != "" {
		r.Reason += " " + name
	}
}

func (c *client) header() http.Header {
	h := c.target.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	return h
}

// readEvents reads until the stream ends, and stamps each event with the time
// at which the read that completed it returned.
func readEvents(body io.Reader, now func() time.Duration, d *reader) (time.Duration, error) {
	var events sseReader
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		at := now()
		ferr := events.feed(buf[:n], func(_, data []byte) error { return d.message(at, data) })
		if ferr != nil {
			return at, ferr
		}
		if err != nil {
			return at, err
		}
	}
}

func (c *client) callSocket(ctx context.Context, r *Result, t *trace, q question) {
	dialer := websocket.Dialer{NetDialContext: c.dial, TLSClientConfig: c.tls}
	header := c.header()
	if c.target.Host != "" {
		header.Set("Host", c.target.Host)
	}
	conn, resp, err := dialer.DialContext(ctx, c.target.URL.String(), header)
	if err != nil {
		r.End = t.now()
		if errors.Is(err, websocket.ErrBadHandshake) && resp != nil {
			c.refused(r, resp)
			return
		}
		r.Outcome, r.Reason = t.judge(ctx, err)
		return
	}
	defer conn.Close()
	// A deadline does not reach an open connection by itself.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	conn.SetReadLimit(maxEvent)
	r.Begun, r.Setup = true, t.now()
	d := reader{api: c.api, r: r}
	at, err := c.converse(conn, t, &d, q)
	d.finish(ctx, at, err)
	goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = conn.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(time.Second)) // the call is over either way
}

// converse asks once and reads frames until the answer ends.
func (c *client) converse(conn *websocket.Conn, t *trace, d *reader, q question) (time.Duration, error) {
	if err := conn.WriteMessage(websocket.TextMessage, q.body(c.api, true)); err != nil {
		return t.now(), err
	}
	t.asked()
	for {
		_, data, err := conn.ReadMessage()
		at := t.now()
		t.frame()
		var closed *websocket.CloseError
		switch {
		case errors.As(err, &closed) && closed.Code == websocket.CloseAbnormalClosure:
			return at, io.ErrUnexpectedEOF
		case errors.As(err, &closed):
			return at, io.EOF // a close before the answer's end
		case errors.Is(err, websocket.ErrReadLimit):
			return at, errEventTooLong
		case err != nil:
			return at, err
		}
		if err := d.message(at, data); err != nil {
			return at, err
		}
	}
}

// LoadRoots returns the system's roots with those in pem added.
func LoadRoots(pem []byte) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // no system roots: those given are all there is
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in PEM form")
	}
	return pool, nil
}

// A trace collects the phases of one call. Its hooks may be called by the
// transport's goroutines after the call has got another connection.
type trace struct {
	start time.Time

	mu                              sync.Mutex // guards the fields below
	dns, connect, tls               span
	got, wrote, firstByte           time.Duration
	reused, handshake, resumed, had bool
}

// A span runs from its first beginning to its last end.
type span struct {
	from, to time.Duration
	begun    bool
	done     bool
}

func (s *span) begin(at time.Duration) {
	if !s.begun {
		s.from, s.begun = at, true
	}
}

func (s *span) end(at time.Duration) { s.to, s.done = at, true }

// none is the time of what did not happen.
const none time.Duration = -1

func newTrace() *trace { return &trace{start: time.Now(), wrote: none, firstByte: none} }

func (t *trace) now() time.Duration { return time.Since(t.start) }

func (t *trace) note(f func(at time.Duration)) {
	at := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	f(at)
}

func (t *trace) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		DNSStart:     func(httptrace.DNSStartInfo) { t.note(t.dns.begin) },
		DNSDone:      func(i httptrace.DNSDoneInfo) { t.endIf(&t.dns, i.Err) },
		ConnectStart: func(_, _ string) { t.note(t.connect.begin) },
		ConnectDone: func(_, _ string, err error) { // a failed attempt beside others ends nothing
			t.endIf(&t.connect, err)
		},
		TLSHandshakeStart: func() { t.note(t.tls.begin) },
		TLSHandshakeDone: func(s tls.ConnectionState, err error) {
			t.endIf(&t.tls, err)
			t.note(func(time.Duration) { t.handshake, t.resumed = err == nil, s.DidResume })
		},
		GotConn: func(i httptrace.GotConnInfo) {
			t.note(func(at time.Duration) { t.got, t.had, t.reused = at, true, i.Reused })
		},
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			t.note(func(at time.Duration) {
				if i.Err == nil {
					t.wrote = at
				}
			})
		},
		GotFirstResponseByte: func() { t.note(func(at time.Duration) { t.firstByte = at }) },
	}
}

func (t *trace) endIf(s *span, err error) {
	if err == nil {
		t.note(s.end)
	}
}

// asked and frame are the steps of a WebSocket call. Asking begins a new wait:
// the first byte until then was that of the upgrade.
func (t *trace) asked() {
	t.note(func(at time.Duration) { t.wrote, t.firstByte = at, none })
}

func (t *trace) frame() {
	t.note(func(at time.Duration) {
		if t.firstByte == none {
			t.firstByte = at
		}
	})
}

// judge names the outcome of a call that ended before the head of its answer.
func (t *trace) judge(ctx context.Context, err error) (Outcome, string) {
	t.mu.Lock()
	had, dns, connect, tls := t.had, t.dns, t.connect, t.tls
	t.mu.Unlock()
	where, reached := "while connecting", false
	switch {
	case tls.begun && !tls.done:
		where = "in the TLS handshake"
	case had:
		where, reached = "before the answer", true
	case dns.begun && !connect.begun:
		where = "while looking up the name"
	}
	outcome, reason := judge(ctx, err, where)
	if !reached && (outcome == Reset || outcome == MissingEnd) {
		return Unreachable, cause(err) + " " + where
	}
	return outcome, reason
}

// fill writes the phases into r.
func (t *trace) fill(r *Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range r.Phase {
		r.Phase[p] = none
	}
	if !t.reused { // else what was dialled was not used for this call
		r.Opened = t.had
		r.Handshake, r.Resumed = t.handshake, t.resumed
		for p, s := range map[Phase]span{DNS: t.dns, Connect: t.connect, TLS: t.tls} {
			if s.done {
				r.Phase[p] = s.to - s.from
			}
		}
	}
	if t.had && t.wrote != none {
		ready := t.got
		if !t.reused && t.tls.done {
			ready = max(ready, t.tls.to) // a WebSocket's connection is reported before its handshake
		}
		r.Phase[Request] = max(0, t.wrote-ready)
		if t.firstByte != none {
			r.Phase[Wait] = max(0, t.firstByte-t.wrote) // an early answer needs no wait
		}
	}
}
