// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"sync"

	"github.com/quic-go/quic-go"
	"github.com/warmwire/warmwire/transport/fault"
)

// A ListenFunc opens a UDP socket: network is udp4 or udp6, addr is ":0".
type ListenFunc func(network, addr string) (net.PacketConn, error)

// maxOld bounds the sockets that are kept for connections that did not move to a
// newer one. A guess: each is a change of network while a connection lived.
const maxOld = 8

// families are those of addresses; each has a socket.
var families = [...]string{"udp4", "udp6"}

// An Endpoint is this process's end of all its QUIC connections: one UDP socket
// for each family of addresses. All methods are safe for concurrent use.
type Endpoint struct {
	listen ListenFunc

	mu     sync.Mutex             // guards the fields below
	now    [len(families)]*socket // nil = the machine has no such family
	old    []*socket              // that still have connections, the oldest first
	conns  map[*Conn]bool
	closed bool
}

// NewEndpoint opens the sockets. listen may be nil: net.ListenPacket. It is an
// error only if there is a socket for no family.
func NewEndpoint(listen ListenFunc) (*Endpoint, error) {
	if listen == nil {
		listen = net.ListenPacket
	}
	e := &Endpoint{listen: listen, conns: map[*Conn]bool{}}
	fresh, err := e.open()
	if err != nil {
		return nil, err
	}
	e.now = fresh
	return e, nil
}

func (e *Endpoint) open() ([len(families)]*socket, error) {
	var out [len(families)]*socket
	var errs []error
	for i, network := range families {
		pc, err := e.listen(network, ":0")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out[i] = newSocket(pc)
	}
	if len(errs) == len(families) {
		return out, fmt.Errorf("h3: open a UDP socket: %w", errors.Join(errs...))
	}
	return out, nil
}

// family is the index of an address's.
func family(a netip.Addr) int {
	if a.Unmap().Is4() {
		return 0
	}
	return 1
}

// Dial opens a connection to addr. It returns when the handshake is done, or, with
// Config.EarlyData and a session that allows it, before. The connection outlives
// ctx. The error is a *[fault.Error] of phase tls, or the cause of ctx's end.
func (e *Endpoint) Dial(ctx context.Context, addr netip.AddrPort, cfg Config) (*Conn, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s, err := e.use(family(addr.Addr()))
	if err != nil {
		return nil, &fault.Error{In: "tls", Kind: kindSilent, Err: err}
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if cfg.QlogDir != "" {
		cfg.trace = &trace{dir: cfg.QlogDir}
	}
	h := &holder{e: e, peer: addr, held: []*socket{s}}
	qc, err := e.handshake(ctx, s, addr, &cfg)
	if err != nil {
		h.release()
		return nil, openFailed(ctx, addr.String(), err)
	}
	s.wire.know(addr, 1)
	c := newConn(qc, h, cfg)
	c.family, c.on = family(addr.Addr()), s
	if !e.keep(c) {
		_ = c.Close()
		return nil, errClosed
	}
	context.AfterFunc(c.ctx, func() { e.forget(c) })
	return c, nil
}

var errClosed = &fault.Error{In: "tls", Kind: kindClosed, Err: errors.New("h3: the endpoint is closed")}

// handshake opens QUIC, and calls the hooks of TLS on the way.
func (e *Endpoint) handshake(ctx context.Context, s *socket, addr netip.AddrPort, cfg *Config) (*quic.Conn, error) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	dial := s.tr.Dial
	if cfg.EarlyData {
		dial = s.tr.DialEarly
	}
	qc, err := dial(ctx, net.UDPAddrFromAddrPort(addr), cfg.tlsConfig(), cfg.quicConfig())
	if trace != nil && trace.TLSHandshakeDone != nil {
		var state quic.ConnectionState
		if err == nil {
			state = qc.ConnectionState()
		}
		trace.TLSHandshakeDone(state.TLS, err)
	}
	return qc, err
}

// use returns the present socket of a family, and counts a user of it.
func (e *Endpoint) use(family int) (*socket, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch s := e.now[family]; {
	case e.closed:
		return nil, errClosed
	case s == nil:
		return nil, fmt.Errorf("h3: this machine has no %s", families[family])
	default:
		s.refs++
		return s, nil
	}
}

// keep notes a connection, unless the endpoint was closed meanwhile.
func (e *Endpoint) keep(c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.conns[c] = true
	}
	return !e.closed
}

func (e *Endpoint) forget(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.conns, c)
}

// Rebind opens new sockets for new connections, and for those that move to them
// by [Conn.Migrate]: the network is another one. The old sockets serve the
// connections that are on them to their end.
func (e *Endpoint) Rebind() error {
	fresh, err := e.open()
	if err != nil {
		return err
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		closeAll(fresh[:])
		return errClosed
	}
	var idle []*socket
	for i, s := range e.now {
		if e.now[i] = fresh[i]; s == nil {
			continue
		}
		if s.refs > 0 {
			e.old = append(e.old, s)
		} else {
			idle = append(idle, s)
		}
	}
	for len(e.old) > maxOld { // its connections end with it
		idle = append(idle, e.old[0])
		e.old = e.old[1:]
	}
	e.mu.Unlock()
	closeAll(idle)
	return nil
}

func closeAll(sockets []*socket) {
	for _, s := range sockets {
		if s != nil {
			s.close()
		}
	}
}

// done counts a user of s less; an old socket ends with its last.
func (e *Endpoint) done(s *socket) {
	e.mu.Lock()
	s.refs--
	last := s.refs == 0 && slices.Contains(e.old, s)
	if last {
		e.old = slices.DeleteFunc(e.old, func(o *socket) bool { return o == s })
	}
	e.mu.Unlock()
	if last {
		s.close()
	}
}

// Close ends all connections and closes the sockets.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	e.closed = true
	var conns []*Conn
	for c := range e.conns {
		conns = append(conns, c)
	}
	e.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	e.mu.Lock()
	sockets := append(slices.Clone(e.old), e.now[:]...)
	e.old, e.now = nil, [len(families)]*socket{}
	e.mu.Unlock()
	closeAll(sockets)
	return nil
}

// A holder is the sockets that one connection has used: it may not do without any
// of them to its end, because the library ends it with the first that closes.
type holder struct {
	e    *Endpoint
	peer netip.AddrPort

	mu       sync.Mutex // guards the fields below
	held     []*socket
	released bool
}

// add notes one more use of s; it says whether the connection is there for it.
func (h *holder) add(s *socket) bool {
	h.mu.Lock()
	again := h.released || slices.Contains(h.held, s)
	if !again {
		h.held = append(h.held, s)
		s.wire.know(h.peer, 1)
	}
	gone := h.released
	h.mu.Unlock()
	if again {
		h.e.done(s)
	}
	return !gone
}

func (h *holder) release() {
	h.mu.Lock()
	held := h.held
	h.held, h.released = nil, true
	h.mu.Unlock()
	for _, s := range held {
		s.wire.know(h.peer, -1)
		h.e.done(s)
	}
}
