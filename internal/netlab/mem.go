// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// memBacklog is how many connections wait for Accept before a dial waits too.
const memBacklog = 128

// A Mem is a network inside one process: listeners by address, and buffered
// connections to them. It uses no socket and starts no goroutine, and all its
// waits are on the clock of the caller, so that it works inside a
// testing/synctest bubble, where net.Pipe deadlocks under TLS and HTTP/2
// because it has no buffer. Make one inside the bubble that uses it.
type Mem struct {
	mu        sync.Mutex // guards the fields below
	delay     time.Duration
	listeners map[string]*memListener
	port      int // the last one given out
}

// NewMem returns an empty network without delay.
func NewMem() *Mem {
	return &Mem{listeners: map[string]*memListener{}, port: 32767}
}

// SetDelay sets the one-way delay of the connections dialled from now on. A
// dial takes two of it.
func (m *Mem) SetDelay(oneWay time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delay = max(oneWay, 0)
}

// Listen returns a listener at addr, "host:port". Port 0 takes a free one, and
// an empty host is reached under every name.
func (m *Mem) Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("netlab: listen in memory: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if port == "0" {
		port = m.nextPortLocked()
	}
	key := net.JoinHostPort(host, port)
	if m.listeners[key] != nil {
		return nil, memError("listen", key, syscall.EADDRINUSE)
	}
	shown := key
	if host == "" {
		shown = net.JoinHostPort("127.0.0.1", port)
	}
	l := &memListener{
		mem: m, key: key, addr: memAddr(shown),
		queue: make(chan *MemConn, memBacklog), closed: make(chan struct{}),
	}
	m.listeners[key] = l
	return l, nil
}

func (m *Mem) nextPortLocked() string {
	m.port++
	if m.port > 65535 {
		m.port = 32768
	}
	return strconv.Itoa(m.port)
}

// Dial connects to the listener at addr after one round trip, or fails with
// ECONNREFUSED after one. Names are not resolved: they are compared.
func (m *Mem) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("netlab: dial in memory: %w", err)
	}
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, fmt.Errorf("netlab: dial in memory: %w", net.UnknownNetworkError(network))
	}
	m.mu.Lock()
	delay, from := m.delay, m.nextPortLocked()
	m.mu.Unlock()
	if err := wait(ctx, 2*delay); err != nil {
		return nil, memError("dial", addr, err)
	}
	m.mu.Lock()
	l := m.listeners[net.JoinHostPort(host, port)]
	if l == nil {
		l = m.listeners[net.JoinHostPort("", port)]
	}
	m.mu.Unlock()
	if l == nil {
		return nil, memError("dial", addr, os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	local := net.JoinHostPort("127.0.0.1", from)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		local = net.JoinHostPort("::1", from)
	}
	client, server := pipe(delay, memAddr(local), memAddr(addr))
	select {
	case <-l.closed: // before the queue, which may have room as well
		return nil, memError("dial", addr, os.NewSyscallError("connect", syscall.ECONNREFUSED))
	default:
	}
	select {
	case l.queue <- server:
		return client, nil
	case <-l.closed:
		return nil, memError("dial", addr, os.NewSyscallError("connect", syscall.ECONNREFUSED))
	case <-ctx.Done():
		return nil, memError("dial", addr, ctx.Err())
	}
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// memAddr is a *net.TCPAddr where the host is an address, since much code looks
// for one, and else just the name.
func memAddr(addr string) net.Addr {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return net.TCPAddrFromAddrPort(ap)
	}
	return memName(addr)
}

type memName string

func (memName) Network() string  { return "tcp" }
func (n memName) String() string { return string(n) }

func memError(op, addr string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: memAddr(addr), Err: err}
}

// A memListener is one address of a Mem.
type memListener struct {
	mem    *Mem
	key    string
	addr   net.Addr
	queue  chan *MemConn
	once   sync.Once
	closed chan struct{} // closed by Close
}

func (l *memListener) Addr() net.Addr { return l.addr }

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
}

// Close frees the address and resets the connections that nobody has accepted,
// as a kernel does.
func (l *memListener) Close() error {
	l.once.Do(func() {
		l.mem.mu.Lock()
		delete(l.mem.listeners, l.key)
		l.mem.mu.Unlock()
		close(l.closed)
	})
	for {
		select {
		case c := <-l.queue:
			c.Reset()
		default:
			return nil
		}
	}
}
