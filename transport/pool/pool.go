// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"context"
	"net"
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
	Learned          time.Duration // the server's idle limit as an earlier pool learned it; 0 = unknown
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
	retired bool             // nothing is kept
	multi   []*member        // multiplexed, that take requests
	single  int              // others, busy or not
	free    []*member        // others that are idle; the last was used last
	members map[*member]bool // all of them, busy or not, that are not leaving
	leaving map[*member]bool
	queue   [numClasses][]*waiter
	served  uint // waiters that were served, for turns
	opening [2]int
	proto   protocol
	keep    int       // connections kept ready
	paused  time.Time // no opening ahead of need before
	pause   time.Duration
	tick    *time.Timer
	armed   bool          // tick will fire
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
	bulk      int       // large uploads among its requests
	used      bool
	suspect   bool
	old       bool // to be replaced: used only while there is nothing better
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
	grant
	err error
}

// New returns an empty pool.
func New(cfg Config) *Pool {
	p := &Pool{cfg: cfg.WithDefaults(), learned: cfg.Learned, members: make(map[*member]bool), leaving: make(map[*member]bool)}
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
	g, err := p.acquire(req.Context(), want)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return p.send(req, g, want)
}

// An Extender is a connection that may offer extended CONNECT (RFC 8441).
type Extender interface{ ExtendedConnect() bool }

// Extended sends an extended CONNECT over a connection that offers it, is there and
// has room, never beside a bulk upload. sent is false if there is none; nothing is
// opened or waited for.
func (p *Pool) Extended(req *http.Request) (resp *http.Response, sent bool, err error) {
	p.mu.Lock()
	m := p.pickExtended()
	if m == nil || p.closed {
		p.mu.Unlock()
		return nil, false, nil
	}
	g := p.enter(m, Want{})
	p.mu.Unlock()
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GetConn != nil {
		trace.GetConn(req.URL.Host)
	}
	resp, err = p.send(req, g, Want{})
	return resp, true, err
}

// send sends a request over the connection that it was given.
func (p *Pool) send(req *http.Request, g grant, want Want) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	if trace != nil && trace.GotConn != nil {
		info := httptrace.GotConnInfo{Reused: g.reused, WasIdle: g.idle > 0, IdleTime: g.idle}
		if c, ok := g.m.Conn.(interface{ NetConn() net.Conn }); ok {
			info.Conn = c.NetConn()
		}
		trace.GotConn(info)
	}
	m := g.m
	e := &entry{p: p, m: m}
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: e.in})
	resp, err := m.RoundTrip(req.WithContext(ctx))
	e.in()
	if want.Bulk { // the upload is over, or of no more interest to the peer
		p.mu.Lock()
		m.bulk--
		p.mu.Unlock()
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

// A grant is a connection for one request.
type grant struct {
	m      *member
	reused bool
	idle   time.Duration
}

// acquire returns a connection for one request. Nobody overtakes those of the
// same or a more urgent class who wait.
func (p *Pool) acquire(ctx context.Context, want Want) (grant, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return grant{}, errClosed
	}
	if !p.isWaitedFor(want.Class) {
		if m := p.pick(want, true); m != nil {
			g := p.enter(m, want)
			p.mu.Unlock()
			return g, nil
		}
	}
	if p.waiting() >= p.cfg.QueueLimit {
		p.mu.Unlock()
		return grant{}, queueError(true, p.cfg)
	}
	w := &waiter{want: want, ctx: ctx, got: make(chan answer, 1)}
	p.queue[want.Class] = append(p.queue[want.Class], w)
	p.grow()
	p.mu.Unlock()
	return p.wait(w)
}

// isWaitedFor says whether somebody of the class or a more urgent one waits.
func (p *Pool) isWaitedFor(class Class) bool {
	for _, q := range p.queue[:class+1] {
		if len(q) > 0 {
			return true
		}
	}
	return false
}

// sharePatience is how long an urgent request waits for a connection without
// bulk uploads before it takes one with them.
const sharePatience = 500 * time.Millisecond

// wait waits for what the pool gives w.
func (p *Pool) wait(w *waiter) (grant, error) {
	limit := time.NewTimer(p.cfg.QueueTimeout)
	defer limit.Stop()
	share := time.NewTimer(sharePatience)
	defer share.Stop()
	for {
		var err error
		select {
		case a := <-w.got:
			return a.grant, a.err
		case <-w.ctx.Done():
			err = context.Cause(w.ctx)
		case <-share.C:
			p.settle(w)
			continue
		case <-limit.C:
			if p.opens(w.want) { // that has limits of its own
				limit.Reset(time.Second)
				continue
			}
			err = queueError(false, p.cfg)
		}
		if p.leave(w) {
			return grant{}, err
		}
		if a := <-w.got; a.m != nil { // it was given one just now
			p.giveBack(a.m, w.want)
		}
		return grant{}, err
	}
}

// settle gives w a connection that it would rather not have, if there is one.
func (p *Pool) settle(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.queue[w.want.Class], w)
	if i < 0 {
		return
	}
	if m := p.pick(w.want, false); m != nil {
		p.queue[w.want.Class] = slices.Delete(p.queue[w.want.Class], i, i+1)
		w.got <- answer{grant: p.enter(m, w.want)}
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
func (p *Pool) giveBack(m *member, want Want) {
	p.mu.Lock()
	m.entering--
	if want.Bulk {
		m.bulk--
	}
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

// enter gives a connection to a request. The lock is held.
func (p *Pool) enter(m *member, want Want) grant {
	g := grant{m: m, reused: m.used}
	m.entering++
	if want.Bulk {
		m.bulk++
	}
	if !m.idleSince.IsZero() {
		if m.used {
			g.idle = time.Since(m.idleSince)
		}
		m.idleSince = time.Time{}
	}
	m.used = true
	return g
}
