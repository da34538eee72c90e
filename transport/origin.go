// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/transport/h1"
	"github.com/warmwire/warmwire/transport/h2"
	"github.com/warmwire/warmwire/transport/h3/altsvc"
	"github.com/warmwire/warmwire/transport/pool"
)

// maxOrigins bounds the hosts of one Transport; those that serve nothing make
// room.
const maxOrigins = 1024

// A clientConn is one connection, whatever it speaks.
type clientConn interface {
	RoundTrip(*http.Request) (*http.Response, error)
	Available() int
	InFlight() int
	Err() error
	Shutdown()
	Close() error
	Abandon(why *Error) // at once, with a verdict
}

// An origin is one scheme, host and port (RFC 6454) with its connections.
type origin struct {
	t      *Transport
	key    string // scheme://host:port
	secure bool
	host   string // of TLS
	addr   string // host:port
	pool   *pool.Pool

	used    atomic.Int64 // when it was last, in nanoseconds
	cooling atomic.Bool  // a timer will look whether it still is

	races   atomic.Int32 // attempts over QUIC under way
	streams atomic.Int64 // that its last HTTP/2 connection allowed; 0 = not known

	plainSockets atomic.Bool // it offers extended CONNECT, and its WebSockets open over HTTP/1.1 only

	watching sync.WaitGroup
	ctx      context.Context // of the watches
	cancel   context.CancelFunc
}

// origin returns the one of a URL.
func (t *Transport) origin(u *url.URL) (*origin, error) {
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	if port == "" || u.Hostname() == "" {
		return nil, &Error{In: "send", Kind: "upstream_bad_response", Err: fmt.Errorf("cannot reach %q: want an http or https URL with a host", u.Redacted())}
	}
	key := u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &Error{In: "send", Kind: "upstream_closed", Err: errors.New("the way to this upstream is closed")}
	}
	o := t.origins[key]
	if o == nil {
		t.makeRoom()
		o = t.newOrigin(key, u, port)
		t.origins[key] = o
		if t.retired {
			o.pool.Retire()
		}
	}
	return o, nil
}

// makeRoom closes the origins that serve nothing, if there are too many.
func (t *Transport) makeRoom() {
	if len(t.origins) < maxOrigins {
		return
	}
	for key, o := range t.origins {
		if o.pool.Idle() {
			delete(t.origins, key)
			go o.close()
		}
	}
}

func (t *Transport) newOrigin(key string, u *url.URL, port string) *origin {
	o := &origin{t: t, key: key, secure: u.Scheme == "https", host: u.Hostname(), addr: net.JoinHostPort(u.Hostname(), port)}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	c := t.cfg.Pool
	learned := time.Duration(0)
	if c.Learned != nil {
		learned = c.Learned(key)
	}
	o.pool = pool.New(pool.Config{Learned: learned,
		Open: o.open, MaxConnections: c.MaxConnections, MaxH1Connections: c.MaxH1Connections, MaxStreams: c.MaxStreams,
		IdleTimeout: cmp.Or(c.IdleTimeout, idleTimeout), QueueLimit: queueLimit, QueueTimeout: c.QueueTimeout,
	})
	return o
}

// use keeps connections ready for a while after a request.
func (o *origin) use() {
	c := o.t.cfg.Pool
	if c.Warm == 0 || c.WarmFor == 0 {
		return
	}
	o.used.Store(time.Now().UnixNano())
	if !o.cooling.Swap(true) {
		o.pool.Keep(c.Warm)
		time.AfterFunc(c.WarmFor, o.cool)
	}
}

// cool ends the keeping if there was no request for long enough.
func (o *origin) cool() {
	left := o.t.cfg.Pool.WarmFor - time.Since(time.Unix(0, o.used.Load()))
	if left > 0 && o.ctx.Err() == nil {
		time.AfterFunc(left, o.cool)
		return
	}
	o.cooling.Store(false)
	o.pool.Keep(0)
}

// close ends what the origin has; what is in flight goes on to its end.
func (o *origin) close() {
	o.pool.Close()
	o.cancel()
	o.watching.Wait()
}

// open opens a connection for the pool.
func (o *origin) open(ctx context.Context, h1Only bool, changed func()) (pool.Conn, pool.Info, error) {
	switch advice, at := o.advise(ctx, h1Only); advice {
	case altsvc.Race:
		return o.race(ctx, at, changed)
	case altsvc.Trial:
		o.try(at)
	case altsvc.TCP:
	}
	return o.openTCP(ctx, h1Only, changed)
}

// openTCP opens one over TCP.
func (o *origin) openTCP(ctx context.Context, h1Only bool, changed func()) (pool.Conn, pool.Info, error) {
	s, nc, protocol, err := o.connect(ctx, h1Only)
	if err != nil {
		return nil, pool.Info{}, err
	}
	f := &flow{raw: s, wake: make(chan struct{}, 1)}
	f.log = o.t.cfg.Flights.Open(protocol)
	s.flow.Store(f)
	onChange := func() {
		f.changed()
		changed()
	}
	if protocol == "h2" {
		c, err := h2.New(nc, h2.Config{Priority: true, MaxStreams: o.t.cfg.Pool.MaxStreams, AssumedStreams: int(o.streams.Load()), OnChange: onChange,
			StreamWindow: min(streamStart, o.t.cfg.StreamLimit), MaxStreamWindow: o.t.cfg.StreamLimit, Budget: o.t.cfg.Budget, OnFrame: f.onFrame()})
		if err != nil {
			f.log.Close()
			_ = nc.Close()
			return nil, pool.Info{}, &Error{In: "tls", Kind: "upstream_protocol_error", Err: err}
		}
		f.clientConn = c
	} else {
		f.clientConn = h1.New(nc, h1.Config{OnChange: onChange})
	}
	o.watching.Go(func() {
		defer f.log.Close()
		o.watch(o.ctx, f)
		f.broke()
	})
	return f, pool.Info{Protocol: protocol, Multiplexed: protocol == "h2"}, nil
}

// connect opens a connection and agrees with the peer on a protocol.
func (o *origin) connect(ctx context.Context, h1Only bool) (*socket, net.Conn, string, error) {
	return (&opening{o: o, h1Only: h1Only}).run(ctx)
}

// Reach opens a connection to the origin of u, without a place in its pool, and closes
// it again: an error says that the path is down.
func (t *Transport) Reach(ctx context.Context, u *url.URL) error {
	o, err := t.origin(u)
	if err != nil {
		return err
	}
	s, nc, _, err := o.connect(ctx, true)
	if err != nil {
		return err
	}
	_ = nc.Close()
	_ = s.Close()
	return nil
}

// run makes attempts until one succeeds or no other can.
func (op *opening) run(ctx context.Context) (*socket, net.Conn, string, error) {
	for {
		s, nc, protocol, err := op.once(ctx)
		if err == nil || !op.again(ctx, err) {
			return s, nc, protocol, err
		}
	}
}

// once makes one attempt.
func (op *opening) once(ctx context.Context) (*socket, net.Conn, string, error) {
	o := op.o
	op.offered = false
	c, err := o.t.dialRaw(ctx, "tcp", o.addr)
	if err != nil {
		return nil, nil, "", err
	}
	s := &socket{Conn: c, onClose: func() {}}
	var nc net.Conn = s
	protocol := "http/1.1"
	if o.secure {
		tc, err := op.handshake(ctx, s)
		if err != nil {
			_ = s.Close()
			return nil, nil, "", err
		}
		o.proved(c)
		nc = tc
		if tc.ConnectionState().NegotiatedProtocol == "h2" {
			protocol = "h2"
		}
	} else if !op.h1Only && !slices.Contains(o.t.tcp, "http/1.1") {
		protocol = "h2" // with prior knowledge (RFC 9113 §3.3)
	}
	if o.t.cfg.OnConn != nil {
		o.t.cfg.OnConn(1, protocol)
		s.onClose = func() { o.t.cfg.OnConn(-1, protocol) }
	}
	return s, nc, protocol, nil
}

// proved tells whose certificate was right.
func (o *origin) proved(c net.Conn) {
	if o.t.cfg.OnPeer == nil {
		return
	}
	if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		o.t.cfg.OnPeer(o.addr, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	}
}

// opens says whether the path carries a new connection now.
func (o *origin) opens(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, freshLimit)
	defer cancel()
	s, nc, _, err := o.connect(ctx, false)
	if err != nil {
		return false
	}
	_ = nc.Close()
	_ = s.Close()
	return true
}

// Keep keeps Config.Pool.Warm connections to the origin of u ready from now on,
// until Retire.
func (t *Transport) Keep(u *url.URL) error {
	o, err := t.origin(u)
	if err != nil {
		return err
	}
	o.pool.Keep(t.cfg.Pool.Warm)
	return nil
}

// KeepOnly keeps Config.Pool.Warm connections to the origin of each u ready from now on,
// and none to any other.
func (t *Transport) KeepOnly(us ...*url.URL) error {
	kept := make(map[*origin]bool, len(us))
	var err error
	for _, u := range us {
		o, oerr := t.origin(u)
		if oerr != nil {
			err = errors.Join(err, oerr)
			continue
		}
		kept[o] = true
		o.pool.Keep(t.cfg.Pool.Warm)
	}
	for _, o := range t.each() {
		if !kept[o] {
			o.pool.Keep(0)
		}
	}
	return err
}

// each returns the origins there are.
func (t *Transport) each() []*origin {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.origins))
}

// CloseIdleConnections closes connections that serve nothing now.
func (t *Transport) CloseIdleConnections() {
	for _, o := range t.each() {
		o.pool.CloseIdle()
	}
}

// State returns the pools by origin, as scheme://host:port.
func (t *Transport) State() map[string]pool.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]pool.State, len(t.origins))
	for key, o := range t.origins {
		out[key] = o.pool.State()
	}
	return out
}

// Renew replaces all connections because the network has changed; those that are
// kept ready serve until new ones are there. What is in flight goes on.
func (t *Transport) Renew() {
	for _, o := range t.each() {
		o.pool.Renew()
	}
}

// Retire keeps nothing ready any more. Requests that come nevertheless are
// served; connections close as soon as they are idle.
func (t *Transport) Retire() {
	t.mu.Lock()
	t.retired = true
	t.mu.Unlock()
	for _, o := range t.each() {
		o.used.Store(0)
		o.pool.Retire()
	}
}

// Close closes what is idle at once, the rest when its answers have ended, and
// waits until nothing is being opened.
func (t *Transport) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	for _, o := range t.each() {
		o.close()
	}
}
