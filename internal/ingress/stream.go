// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/ingress/http1"
)

// A streamConn makes an HTTP/2 stream look like a connection. Its end is that of the
// handler.
type streamConn struct {
	r  io.ReadCloser
	w  http.ResponseWriter
	rc *http.ResponseController

	mu      sync.Mutex // guards the fields below
	writing int
	closed  bool
	idle    sync.Cond // signalled when writing becomes 0
}

func newStreamConn(e *exchange) *streamConn {
	c := &streamConn{r: e.r.Body, w: e.w, rc: e.rc}
	c.idle.L = &c.mu
	return c
}

func (c *streamConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *streamConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.writing++
	c.mu.Unlock()
	n, err := c.w.Write(p)
	if err == nil {
		err = c.rc.Flush()
	}
	c.mu.Lock()
	if c.writing--; c.writing == 0 {
		c.idle.Broadcast()
	}
	c.mu.Unlock()
	return n, err
}

// Close ends a Read, and after closeWait a Write that still waits: that resets the stream,
// whose app has taken nothing for long.
func (c *streamConn) Close() error {
	c.mu.Lock()
	if c.writing > 0 && !c.closed {
		time.AfterFunc(closeWait, c.cut)
	}
	c.closed = true
	c.mu.Unlock()
	return c.r.Close()
}

// cut ends a Write that waits. While there is one the handler has not returned.
func (c *streamConn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing > 0 {
		_ = c.rc.SetWriteDeadline(time.Unix(1, 0))
	}
}

// A streamNet is a streamConn with the addresses of the connection that its stream is on,
// and with deadlines, for TLS and HTTP inside the stream. It does not give access to that
// connection, whose end and bytes are those of other streams too.
type streamNet struct {
	*streamConn
	in     net.Conn // gives what comes on the stream
	local  net.Addr
	remote net.Addr
	fed    chan struct{} // closed when nothing comes any more

	until time.Time   // guarded by mu: the deadline of writes; zero = none
	timer *time.Timer // guarded by mu: ends a write that waits then
}

// newStreamNet returns one; finish must be called before the handler returns.
func newStreamNet(e *exchange) *streamNet {
	in, feed := net.Pipe()
	c := &streamNet{streamConn: newStreamConn(e), in: in, local: in.LocalAddr(), remote: in.RemoteAddr(), fed: make(chan struct{})}
	if below := http1.Conn(e.r.Context()); below != nil {
		c.local, c.remote = below.LocalAddr(), below.RemoteAddr()
	}
	go c.feed(feed) // its waiter is finish
	return c
}

// feed passes on what comes: a pipe has deadlines, which a stream's body has but once.
func (c *streamNet) feed(into net.Conn) {
	defer close(c.fed)
	_, _ = io.Copy(into, c.r) // its end, of whatever kind, is the end of the connection
	_ = into.Close()
}

func (c *streamNet) Read(p []byte) (int, error) { return c.in.Read(p) }

func (c *streamNet) Write(p []byte) (int, error) {
	c.mu.Lock()
	late := !c.until.IsZero() && !time.Now().Before(c.until)
	c.mu.Unlock()
	if late {
		return 0, os.ErrDeadlineExceeded
	}
	return c.streamConn.Write(p)
}

func (c *streamNet) Close() error {
	_ = c.in.Close()
	_ = c.SetWriteDeadline(time.Time{})
	return c.streamConn.Close()
}

// finish closes it and waits until nobody uses the handler's request and answer.
func (c *streamNet) finish() {
	_ = c.Close()
	<-c.fed
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing > 0 {
		c.idle.Wait()
	}
}

func (c *streamNet) LocalAddr() net.Addr  { return c.local }
func (c *streamNet) RemoteAddr() net.Addr { return c.remote }

func (c *streamNet) SetDeadline(t time.Time) error {
	if err := c.in.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *streamNet) SetReadDeadline(t time.Time) error { return c.in.SetReadDeadline(t) }

// SetWriteDeadline is not that of the stream, which resets it when it passes, even though
// nobody writes: crypto/tls sets one that has passed after its last write.
func (c *streamNet) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if c.closed {
		return net.ErrClosed
	}
	c.until = t
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), c.expire)
	}
	return nil
}

// expire ends a write that waits, and the stream with it.
func (c *streamNet) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing > 0 && !c.closed && !c.until.IsZero() && !time.Now().Before(c.until) {
		_ = c.rc.SetWriteDeadline(time.Unix(1, 0))
	}
}
