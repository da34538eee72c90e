// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// An Exchanger asks one resolver.
type Exchanger interface {
	// Exchange returns the resolver's answer, whatever its reply code, or an
	// *Error. It waits while as many questions are in flight as are allowed.
	Exchange(ctx context.Context, q Question) (Answer, error)
	// Name is fit for logs and metrics.
	Name() string
	// Close fails the questions in flight with ErrClosed, closes all
	// connections and waits until nothing runs any more.
	Close() error
}

// Config is how a resolver is reached. The zero value is the default.
type Config struct {
	// Dial connects to one address, "IP:port", on network "udp" or "tcp". Nil
	// means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// RoundTripper carries the questions of an https resolver, which then dials
	// nothing and verifies nothing itself. It must not resolve the resolver's
	// name through the resolver. Nil means an own HTTP/2 connection.
	RoundTripper http.RoundTripper
	// Bootstrap resolves the name of a resolver that was written without
	// addresses: when it is first asked, and again when it cannot be reached.
	// Nil means that such a resolver is an error.
	Bootstrap func(ctx context.Context, host string) ([]netip.Addr, error)

	Roots    func() *x509.CertPool  // asked for each connection; nil means the system's
	Sessions tls.ClientSessionCache // TLS sessions to resume; nil means none

	Timeout     time.Duration // for one question with all its repetitions; 0 means 5 s
	Retransmit  time.Duration // silence before a question over UDP, or with GET, is sent again; 0 means 1 s
	Hedge       time.Duration // silence of a used connection before a new one is tried beside it; 0 means 500 ms
	Idle        time.Duration // before an unused connection is closed, unless the server says; 0 means 5 min
	MaxInFlight int           // questions at once; 0 means 100
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Retransmit = cmp.Or(c.Retransmit, time.Second)
	// Guess: longer than a far resolver needs for a name it has to look up,
	// short enough that a name behind a dead connection is there within 1 s.
	c.Hedge = cmp.Or(c.Hedge, 500*time.Millisecond)
	c.Idle = cmp.Or(c.Idle, 5*time.Minute)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 100)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if min(c.Timeout, c.Retransmit, c.Hedge, c.Idle) < 0 || c.MaxInFlight < 0 {
		return errors.New("exchange: a time or number is negative: write 0 for the default")
	}
	return nil
}

// A way is one protocol. The context of ask ends with the question.
type way interface {
	ask(ctx context.Context, q *query) (reply, error)
	close()
}

// A client is what all ways have in common.
type client struct {
	spec    Spec
	cfg     Config
	packing packing
	way     way
	slots   chan struct{} // one token for each question in flight

	closing context.Context // ended by Close with ErrClosed
	end     context.CancelCauseFunc

	mu     sync.Mutex // guards the fields below
	closed bool
	asking sync.WaitGroup // questions; none is added once closed is set
}

// Open returns an Exchanger for a resolver. It dials nothing.
func Open(spec Spec, cfg Config) (Exchanger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	if len(spec.Addrs) == 0 && cfg.Bootstrap == nil && (spec.Scheme != HTTPS || cfg.RoundTripper == nil) {
		return nil, fmt.Errorf("resolver %s: its address is not known: write %s://NAME@ADDRESS or add #addr=ADDRESS, or configure bootstrap resolvers",
			spec.Name, spec.Scheme)
	}
	if spec.Scheme == HTTPS && cfg.RoundTripper != nil && len(spec.Pins) > 0 {
		return nil, fmt.Errorf("resolver %s: its pin cannot be verified on connections that others make: leave pin= out", spec.Name)
	}
	c := &client{spec: spec, cfg: cfg, slots: make(chan struct{}, cfg.MaxInFlight)}
	c.closing, c.end = context.WithCancelCause(context.Background())
	c.packing = packing{mixCase: spec.Scheme == UDP, keepalive: spec.Scheme == TCP || spec.Scheme == TLS, pad: spec.Encrypted()}
	d := &dialer{spec: spec, cfg: cfg}
	switch spec.Scheme {
	case UDP:
		c.way = newUDP(d, c.closing)
	case TCP, TLS:
		c.way = newStream(d, c.closing)
	case HTTPS:
		way, err := newDoH(d, c.closing)
		if err != nil {
			return nil, err
		}
		c.way = way
	default:
		return nil, fmt.Errorf("resolver %s: scheme %q is not known: use ParseSpec", spec.Name, spec.Scheme)
	}
	return c, nil
}

func (c *client) Name() string { return c.spec.Name }

func (c *client) Exchange(ctx context.Context, q Question) (Answer, error) {
	name, err := cleanName(q.Name)
	if err != nil {
		return Answer{}, &Error{Resolver: c.spec.Name, Kind: KindBadQuestion, Err: err}
	}
	if !c.enter() {
		return Answer{}, &Error{Resolver: c.spec.Name, Kind: KindClosed, Err: ErrClosed}
	}
	defer c.asking.Done()
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, errNoAnswer)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(c.closing, func() { end(ErrClosed) })()

	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		e := fail(ctx, c.spec.Name, ctx.Err())
		e.Err = fmt.Errorf("%d questions are in flight already: %w", c.cfg.MaxInFlight, e.Err)
		return Answer{}, e
	}
	r, err := c.exchange(ctx, name, q.Type)
	if err != nil {
		return Answer{}, fail(ctx, c.spec.Name, err)
	}
	return r.answer, nil
}

func (c *client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.asking.Add(1)
	}
	return !c.closed
}

func (c *client) exchange(ctx context.Context, name string, qtype uint16) (reply, error) {
	r, err := c.try(ctx, name, qtype, c.packing)
	if err != nil || !r.tooOld() {
		return r, err
	}
	plain := c.packing
	plain.noEDNS = true
	return c.try(ctx, name, qtype, plain) // RFC 6891 §6.2.2
}

func (c *client) try(ctx context.Context, name string, qtype uint16, p packing) (reply, error) {
	q, err := newQuery(name, qtype, p)
	if err != nil {
		return reply{}, &Error{Resolver: c.spec.Name, Kind: KindBadQuestion, Err: err}
	}
	return c.way.ask(ctx, q)
}

func (c *client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end(ErrClosed)
	c.asking.Wait()
	c.way.close()
	return nil
}
