// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmwire/warmwire/transport/layer"
)

// A Transport is a way to the endpoints of one upstream.
type Transport struct {
	next http.RoundTripper

	mu        sync.Mutex // guards the fields below; held for one pass over the endpoints at most
	cfg       Config
	endpoints []*endpoint
	streams   bool          // the upstream gives streams of events
	picks     uint64        // so far
	looked    uint64        // the choice at which a slow endpoint was last looked at
	changed   chan struct{} // closed by Update

	able   []able          // of the choice under way
	others []time.Duration // of the judgement under way
}

// New returns a layer around next, which must reach every endpoint. It starts nothing.
func New(next http.RoundTripper, endpoints []Endpoint, cfg Config) (*Transport, error) {
	if next == nil {
		return nil, errors.New("route: there is no way out to send with")
	}
	t := &Transport{next: next, changed: make(chan struct{})}
	if err := t.update(endpoints, cfg, time.Time{}); err != nil {
		return nil, err
	}
	return t, nil
}

// Update changes the endpoints and how they are chosen. What is known of those that stay
// is kept, and what runs goes on. If it returns an error nothing has changed.
func (t *Transport) Update(endpoints []Endpoint, cfg Config) error {
	return t.update(endpoints, cfg, time.Now())
}

func (t *Transport) update(list []Endpoint, cfg Config, now time.Time) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := check(list); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := make(map[string]*endpoint, len(t.endpoints))
	for _, e := range t.endpoints {
		old[e.scheme+"://"+e.host] = e
	}
	t.cfg, t.endpoints = cfg.WithDefaults(), make([]*endpoint, 0, len(list))
	for _, n := range list {
		origin := n.URL.Scheme + "://" + n.URL.Host
		e := old[origin]
		if e == nil {
			e = &endpoint{scheme: n.URL.Scheme, host: n.URL.Host, hash: hashOf(origin), since: now, drain: n.Drain}
		} else if e.drain && !n.Drain {
			e.since = now
		}
		e.name, e.drain, e.weight, e.report.every = n.Name, n.Drain, n.Weight, t.cfg.LoadInterval
		if n.Weight == 0 {
			e.weight = 1
		}
		if t.cfg.Eject.After < 0 { // nothing is left out any longer
			e.until, e.times, e.probation = time.Time{}, 0, false
		}
		t.endpoints = append(t.endpoints, e)
	}
	t.able, t.others = make([]able, 0, len(list)), make([]time.Duration, 0, len(list))
	close(t.changed)
	t.changed = make(chan struct{})
	return nil
}

// An attempt is one request on its way to one endpoint.
type attempt struct {
	t          *Transport
	e          *endpoint
	c          *call
	ctx        context.Context
	start      time.Time
	kind       kind
	protocol   uint8
	had        int  // of others that waited at it then
	look       bool // it is to find out whether a slow endpoint has become better
	socket     bool // it became something else than HTTP
	good       bool // an answer whose time says something
	prev, next *attempt
	came, over bool // guarded by Transport.mu; so are prev and next
}

// RoundTrip sends req to an endpoint.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	a := t.begin(req)
	resp, err := t.next.RoundTrip(aimed(req, a.e))
	if err != nil {
		r := judge(req.Context(), err)
		a.end(r)
		if r == Connect && t.another(a.c) {
			err = elsewhere(err)
		}
		return nil, err
	}
	a.head(resp)
	return resp, nil
}

// begin chooses an endpoint.
func (t *Transport) begin(req *http.Request) *attempt {
	a := &attempt{t: t, ctx: req.Context(), c: callOf(req.Context())}
	a.e = a.c.holder()
	t.mu.Lock()
	defer t.mu.Unlock()
	a.start = time.Now()
	if a.e == nil || !slices.Contains(t.endpoints, a.e) {
		a.e = t.pickLocked(a.start, t.bondLocked(req), a.c)
		a.look = t.looked == t.picks
	}
	a.had = a.e.pending
	a.e.begin(a)
	a.c.goes(a.e)
	return a
}

// bondLocked reads what binds req to an endpoint.
func (t *Transport) bondLocked(req *http.Request) bond {
	if t.cfg.Affinity == "" {
		return bond{}
	}
	v := req.Header[t.cfg.Affinity]
	if len(v) == 0 || v[0] == "" {
		return bond{}
	}
	return bond{hashOf(v[0]), true}
}

// aimed is req with another origin.
func aimed(req *http.Request, e *endpoint) *http.Request {
	out, u := *req, *req.URL
	u.Scheme, u.Host = e.scheme, e.host
	out.URL, out.Host = &u, e.host
	return &out
}

// events is the media type of streams of them.
const events = "text/event-stream"

// head looks at the head of an answer, and wraps its body.
func (a *attempt) head(resp *http.Response) {
	a.kind, a.protocol = whole, uint8(min(max(resp.ProtoMajor-1, 0), protocols-1))
	a.socket = resp.StatusCode == http.StatusSwitchingProtocols || a.handshake(resp)
	a.good = !a.socket && resp.StatusCode >= 200 && resp.StatusCode < 300
	if v := resp.Header["Content-Type"]; len(v) > 0 && len(v[0]) >= len(events) && strings.EqualFold(v[0][:len(events)], events) {
		a.kind = stream
	}
	failed := false
	switch resp.StatusCode {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, 529:
		failed = true
	}
	if a.socket || !a.good { // its time says nothing of tokens
		a.arrived(false)
	}
	if a.socket {
		a.t.mu.Lock()
		a.t.wellLocked(a.e, time.Now())
		a.t.mu.Unlock()
	}
	resp.Body = layer.Body(resp.Body, &answer{a: a, failed: failed})
}

// handshake says whether the answer opened a WebSocket over another HTTP than 1.1.
func (a *attempt) handshake(resp *http.Response) bool {
	return resp.Request != nil && resp.Request.Method == http.MethodConnect && resp.StatusCode/100 == 2
}

// arrived notes the first byte of the answer, and learns from it if that is meant.
func (a *attempt) arrived(learn bool) {
	t := a.t
	t.mu.Lock()
	if a.came {
		t.mu.Unlock()
		return
	}
	a.e.first(a)
	var ev event
	told := false
	if learn {
		now := time.Now()
		took := now.Sub(a.start)
		ev, told = t.lateLocked(a.e, a.kind, took, now)
		w := &a.e.learned[a.kind][a.protocol]
		if a.look { // what was known is old; if this was luck, the next request says so
			*w = ewma{}
		}
		w.observe(took, now)
		a.e.crowd(a.had, now)
		a.e.protocol = a.protocol
		t.streams = t.streams || a.kind == stream
	}
	tell := t.cfg.OnEject
	t.mu.Unlock()
	if learn {
		a.c.reads(a.e)
	}
	if told {
		tell(ev.name, ev.why, ev.capped)
	}
}

// end notes how the attempt ended; the first call counts.
func (a *attempt) end(r Result) {
	t := a.t
	t.mu.Lock()
	if a.over {
		t.mu.Unlock()
		return
	}
	a.over = true
	e, now := a.e, time.Now()
	e.first(a)
	e.inFlight--
	e.done[r.index()]++
	var ev event
	told := false
	switch {
	case r.failed():
		ev, told = t.failLocked(e, &e.failures, Reason(r), now)
	case r == OK:
		t.wellLocked(e, now)
	}
	cfg := &t.cfg
	done, tell := cfg.OnDone, cfg.OnEject
	name := e.name
	t.mu.Unlock()
	done(name, r)
	if told {
		tell(ev.name, ev.why, ev.capped)
	}
}

// another says whether an endpoint in service has had no attempt of c.
func (t *Transport) another(c *call) bool {
	if c == nil {
		return false
	}
	went, now := c.attempts(), time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.endpoints, func(e *endpoint) bool { return !e.drain && !e.out(now) && !slices.Contains(went, e) })
}
