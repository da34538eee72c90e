// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// A wire is one HTTP/1.1 connection under net/http. net/http writes a head line
// by line into it (its own buffer is one byte); the wire sends the whole head at
// once and before any byte of the body is there, which net/http would wait for.
// It also knows for certain whether a byte of the current request was written.
type wire struct {
	net.Conn
	mu   sync.Mutex // guards the fields below; writes come one at a time
	head []byte     // of the current request, held until it is whole
	open bool       // the head is not whole yet
	sent atomic.Bool

	dead     chan struct{} // closed when nothing more can be read
	deadOnce sync.Once
}

// answerGrace bounds how long a failed write waits for the reader; the reader of
// a broken connection ends at once, so this is for what nobody has thought of.
const answerGrace = time.Second

func newWire(c net.Conn) *wire { return &wire{Conn: c, dead: make(chan struct{})} }

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.end()
	}
	return n, err
}

// Close closes the connection.
func (w *wire) Close() error {
	w.end()
	return w.Conn.Close()
}

func (w *wire) end() { w.deadOnce.Do(func() { close(w.dead) }) }

// failed holds a write's error back until the reader has had all that came. An
// upstream may answer and close while an upload runs (RFC 9112 §9.5): net/http
// would drop an answer that is there already for the write's error.
func (w *wire) failed(err error) error {
	grace := time.NewTimer(answerGrace)
	defer grace.Stop()
	select {
	case <-w.dead:
	case <-grace.C:
	}
	return err
}

// begin is called when a request gets the connection.
func (w *wire) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.head, w.open = w.head[:0], true
	w.sent.Store(false)
}

var endOfHead = []byte("\r\n\r\n")

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.open {
		w.sent.Store(true)
		n, err := w.Conn.Write(p)
		if err != nil {
			err = w.failed(err)
		}
		return n, err
	}
	from := max(0, len(w.head)-len(endOfHead)+1)
	w.head = append(w.head, p...)
	if !bytes.Contains(w.head[from:], endOfHead) {
		return len(p), nil
	}
	w.open = false
	n, err := w.Conn.Write(w.head)
	if n > 0 {
		w.sent.Store(true)
	}
	if cap(w.head) > 16<<10 {
		w.head = nil
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite ends the sending side alone, for upgraded connections.
func (w *wire) CloseWrite() error {
	if c, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// A counted connection tells when it is closed.
type counted struct {
	net.Conn
	once   sync.Once
	closed func()
}

func (c *counted) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}

// CloseWrite ends the sending side alone.
func (c *counted) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// open dials a plain connection.
func (t *Transport) open(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := t.dialRaw(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return newWire(t.count(c, "http/1.1")), nil
}

// count wraps c so that the gauge of open connections follows it.
func (t *Transport) count(c net.Conn, protocol string) *counted {
	if t.cfg.OnConn == nil {
		return &counted{Conn: c, closed: func() {}}
	}
	t.cfg.OnConn(1, protocol)
	return &counted{Conn: c, closed: func() { t.cfg.OnConn(-1, protocol) }}
}

// openTLS returns a dial function that offers protocols.
func (t *Transport) openTLS(protocols []string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := t.dialRaw(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		tc, err := t.handshake(ctx, c, addr, protocols)
		if err != nil {
			_ = c.Close()
			return nil, err
		}
		if tc.ConnectionState().NegotiatedProtocol == "h2" {
			return tc, nil
		}
		return newWire(tc), nil
	}
}

func (t *Transport) handshake(ctx context.Context, c net.Conn, addr string, protocols []string) (*tls.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	cfg := t.tls.Clone()
	cfg.ServerName, cfg.NextProtos = host, protocols
	limited, cancel := context.WithTimeout(ctx, t.cfg.TLSHandshake)
	defer cancel()
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	label := &counted{Conn: c, closed: func() {}} // whose protocol is known after the handshake
	tc := tls.Client(label, cfg)
	err = tc.HandshakeContext(limited)
	state := tc.ConnectionState()
	if trace != nil && trace.TLSHandshakeDone != nil {
		trace.TLSHandshakeDone(state, err)
	}
	if t.cfg.OnHandshake != nil {
		t.cfg.OnHandshake(state.DidResume, err)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, tlsError(addr, err, t.cfg.TLSHandshake)
	}
	if t.cfg.OnConn != nil {
		protocol := state.NegotiatedProtocol
		if protocol == "" {
			protocol = "http/1.1"
		}
		t.cfg.OnConn(1, protocol)
		label.closed = func() { t.cfg.OnConn(-1, protocol) }
	}
	return tc, nil
}
