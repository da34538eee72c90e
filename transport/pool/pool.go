// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Conn is one connection.
type Conn interface {
	RoundTrip(req *http.Request) (*http.Response, error)
	Available() int // requests that it would take now
	InFlight() int  // answers that have not ended
	Err() error     // why it takes no more requests for good
	Shutdown()      // take no more, close after the last
	Close() error   // at once
}

// A Class is how urgent a request is.
type Class uint8

// The classes, most urgent first.
const (
	Interactive Class = iota
	Default
	Batch
	numClasses
)

// A Want says what a request needs.
type Want struct {
	Class Class
	Bulk  bool // a large upload: kept away from interactive requests
	H1    bool // only HTTP/1.1 will do
}

// Info describes a connection that was opened.
type Info struct {
	Protocol    string // as ALPN names it
	Multiplexed bool   // it carries many requests at once
}

// Config describes a pool. Open is needed, the rest has defaults.
type Config struct {
	// Open opens a connection. ctx has the values of the request that asked
	// first, and ends with the pool alone; Open has limits of its own. changed
	// is to be called after the connection's methods may answer otherwise, with
	// no lock held.
	Open func(ctx context.Context, h1Only bool, changed func()) (Conn, Info, error)

	MaxConnections   int           // that are multiplexed; 0 = 8
	MaxH1Connections int           // that are not; 0 = 1000
	MaxStreams       int           // requests at once on one; 0 = what the connection takes
	IdleTimeout      time.Duration // of a connection that serves nothing and is not kept; 0 = 90 s
	QueueLimit       int           // requests that wait; 0 = 1000
	QueueTimeout     time.Duration // of one that waits while nothing is being opened for it; 0 = 10 s
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.MaxConnections = cmp.Or(c.MaxConnections, 8)
	c.MaxH1Connections = cmp.Or(c.MaxH1Connections, 1000)
	c.MaxStreams = cmp.Or(c.MaxStreams, 1<<30)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 90*time.Second)
	c.QueueLimit = cmp.Or(c.QueueLimit, 1000)
	c.QueueTimeout = cmp.Or(c.QueueTimeout, 10*time.Second)
	return c
}

// A Pool is the connections to one origin.
type Pool struct {
	cfg    Config
	ctx    context.Context // of what is being opened
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines

	mu      sync.Mutex // guards everything below, and the members' fields
	closed  bool
	multi   []*member // multiplexed, that take requests
	single  int       // others, busy or not
	free    []*member // others that are idle; the last was used last
	leaving map[*member]bool
	queue   [numClasses][]*waiter
	served  uint // waiters that were served, for turns
	opening [2]int
	proto   protocol
	keep    int       // connections kept ready
	paused  time.Time // no opening ahead of need before
	pause   time.Duration
	tick    *time.Timer
	learned time.Duration // the server's idle limit; 0 = unknown
}

// protocol is what the origin is known to speak.
type protocol uint8

const (
	unknown protocol = iota
	multiplexed
	oneByOne
)

// Indices of Pool.opening: what is being opened for any request, and for those
// that need HTTP/1.1.
const (
	forAny = iota
	forH1
)

// A member is one connection of the pool.
type member struct {
	Conn
	info      Info
	opened    time.Time
	idleSince time.Time // zero while it serves something
	entering  int       // requests that have it and are not in InFlight yet
	bulk      atomic.Int32
	suspect   bool
	free      bool // in Pool.free
	gone      bool // takes no more requests
}

// A waiter is a request without a connection.
type waiter struct {
	want Want
	ctx  context.Context
	got  chan answer // capacity 1
}

type answer struct {
	m   *member
	err error
}

// New returns an empty pool.
func New(cfg Config) *Pool {
	p := &Pool{cfg: cfg.WithDefaults(), leaving: make(map[*member]bool)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// RoundTrip sends a request over the best connection, which it waits for. The
// error is the connection's, that of opening one, an [*Error], or the cause of
// the request's context.
func (p *Pool) RoundTrip(req *http.Request, want Want) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	if trace != nil && trace.GetConn != nil {
		trace.GetConn(req.URL.Host)
	}
	m, reused, idle, err := p.acquire(req.Context(), want)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	if trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Reused: reused, WasIdle: idle > 0, IdleTime: idle})
	}
	e := &entry{p: p, m: m}
	if want.Bulk {
		m.bulk.Add(1)
	}
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: e.in})
	resp, err := m.RoundTrip(req.WithContext(ctx))
	e.in()
	if want.Bulk { // the upload is over, or of no more interest to the peer
		m.bulk.Add(-1)
	}
	return resp, err
}

// An entry counts a request that has a connection until the connection counts it.
type entry struct {
	p    *Pool
	m    *member
	once atomic.Bool
}

func (e *entry) in() {
	if e.once.Swap(true) {
		return
	}
	e.p.mu.Lock()
	e.m.entering--
	e.p.mu.Unlock()
	e.p.changed(e.m)
}

// acquire returns a connection for one request, and how long it was idle.
func (p *Pool) acquire(ctx context.Context, want Want) (m *member, reused bool, idle time.Duration, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, 0, errClosed
	}
	if m := p.pick(want); m != nil {
		idle := p.enter(m)
		p.mu.Unlock()
		return m, true, idle, nil
	}
	w := &waiter{want: want, ctx: ctx, got: make(chan answer, 1)}
	if p.waiting() >= p.cfg.QueueLimit {
		p.mu.Unlock()
		return nil, false, 0, queueError(true, p.cfg)
	}
	p.queue[want.Class] = append(p.queue[want.Class], w)
	p.grow()
	p.mu.Unlock()
	return p.wait(w)
}

// wait waits for what the pool gives w.
func (p *Pool) wait(w *waiter) (*member, bool, time.Duration, error) {
	limit := time.NewTimer(p.cfg.QueueTimeout)
	defer limit.Stop()
	for {
		var err error
		select {
		case a := <-w.got:
			return a.m, false, 0, a.err
		case <-w.ctx.Done():
			err = context.Cause(w.ctx)
		case <-limit.C:
			if p.opens(w.want) { // that has limits of its own
				limit.Reset(time.Second)
				continue
			}
			err = queueError(false, p.cfg)
		}
		if p.leave(w) {
			return nil, false, 0, err
		}
		if a := <-w.got; a.m != nil { // it was given one just now
			p.giveBack(a.m)
		}
		return nil, false, 0, err
	}
}

// leave takes a waiter out of the queue, if it is still there.
func (p *Pool) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queue[w.want.Class]
	i := slices.Index(q, w)
	if i < 0 {
		return false
	}
	p.queue[w.want.Class] = slices.Delete(q, i, i+1)
	return true
}

// giveBack returns a connection that was not used.
func (p *Pool) giveBack(m *member) {
	p.mu.Lock()
	m.entering--
	p.mu.Unlock()
	p.changed(m)
}

// opens says whether a connection that would do is being opened.
func (p *Pool) opens(want Want) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opening[kindOf(want)] > 0
}

func kindOf(want Want) int {
	if want.H1 {
		return forH1
	}
	return forAny
}

func (p *Pool) waiting() int {
	n := 0
	for _, q := range p.queue {
		n += len(q)
	}
	return n
}

// enter gives a connection to a request.
func (p *Pool) enter(m *member) (idle time.Duration) {
	m.entering++
	if !m.idleSince.IsZero() {
		idle = time.Since(m.idleSince)
		m.idleSince = time.Time{}
	}
	return idle
}

var errClosed = errors.New("the pool of connections is closed")
