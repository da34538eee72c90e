// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// memBuffer is how many bytes may be on their way in one direction before Write
// waits: more than the preface, settings and window of HTTP/2, less than what
// would hide that somebody does not read.
const memBuffer = 256 << 10 // 256 KiB

// Pipe returns the two ends of a buffered connection in memory with the given
// one-way delay.
func Pipe(delay time.Duration) (a, b *MemConn) {
	return pipe(max(delay, 0), memAddr("127.0.0.1:32767"), memAddr("127.0.0.1:443"))
}

func pipe(delay time.Duration, a, b net.Addr) (client, server *MemConn) {
	up, down := newFlow(delay), newFlow(delay)
	client = &MemConn{in: down, out: up, local: a, remote: b, readBy: newDeadline(), writeBy: newDeadline()}
	server = &MemConn{in: up, out: down, local: b, remote: a, readBy: newDeadline(), writeBy: newDeadline()}
	return client, server
}

// A MemConn is one end of a connection in memory. It behaves as a TCP connection
// does where that can be told apart: bytes sent before an end or a reset are
// read first, a write to a peer that has closed fails once the news has come
// back, Close does not wait for the peer. One thing is kinder than TCP: Close with
// bytes unread is a plain end, use Reset for the other. All methods are safe for concurrent
// use.
type MemConn struct {
	in, out         *flow
	local, remote   net.Addr
	readBy, writeBy *deadline
}

// Read waits until bytes have arrived.
func (c *MemConn) Read(p []byte) (int, error) {
	n, err := c.in.read(p, c.readBy)
	return n, c.wrap("read", err)
}

// Write returns once all bytes are on their way: at once while there is room.
func (c *MemConn) Write(p []byte) (int, error) {
	n, err := 0, error(net.ErrClosed)
	if !c.in.readerClosed() {
		n, err = c.out.write(p, c.writeBy)
	}
	if err == syscall.EPIPE && c.in.readerClosed() { // closed while it waited
		err = net.ErrClosed
	}
	return n, c.wrap("write", err)
}

// CloseWrite ends the outgoing direction: the peer reads what was sent, then
// the end. The other direction goes on.
func (c *MemConn) CloseWrite() error {
	return c.wrap("close", c.out.closeWriter())
}

// Close ends both directions.
func (c *MemConn) Close() error {
	c.in.closeReader(nil)
	err := c.out.closeWriter()
	c.stop()
	if err == syscall.EPIPE { // CloseWrite or Reset came first
		return nil
	}
	return c.wrap("close", err)
}

// Reset ends the connection as a TCP reset does: the peer reads what has
// arrived before it and then ECONNRESET, and its writes fail with the same.
func (c *MemConn) Reset() {
	c.in.closeReader(syscall.ECONNRESET)
	c.out.resetWriter()
	c.stop()
}

func (c *MemConn) stop() {
	c.readBy.set(time.Time{})
	c.writeBy.set(time.Time{})
}

// LocalAddr is this end's address.
func (c *MemConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the other end's address.
func (c *MemConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines; zero means none.
func (c *MemConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline ends reads at t, those that wait already too.
func (c *MemConn) SetReadDeadline(t time.Time) error {
	if c.in.readerClosed() {
		return c.wrap("set", net.ErrClosed)
	}
	c.readBy.set(t)
	return nil
}

// SetWriteDeadline ends writes at t, those that wait already too.
func (c *MemConn) SetWriteDeadline(t time.Time) error {
	if c.in.readerClosed() {
		return c.wrap("set", net.ErrClosed)
	}
	c.writeBy.set(t)
	return nil
}

func (c *MemConn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// A flow is one direction of a connection.
type flow struct {
	delay time.Duration

	mu      sync.Mutex // guards the fields below
	changed chan struct{}
	chunks  []chunk
	size    int

	ended   bool      // the writer has closed
	endErr  error     // what the reader gets after the last chunk
	endAt   time.Time // when it arrives
	closed  bool      // the reader has closed
	stopErr error     // what the writer gets for it; nil means EPIPE
	stopAt  time.Time // when it arrives
}

type chunk struct {
	data []byte
	at   time.Time
}

func newFlow(delay time.Duration) *flow {
	return &flow{delay: delay, changed: make(chan struct{})}
}

// wakeLocked wakes everybody who waits for a change.
func (f *flow) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *flow) read(p []byte, by *deadline) (int, error) {
	for {
		moved := by.event() // before the check, so that no change is missed
		f.mu.Lock()
		now := time.Now()
		var next time.Time // when something arrives; zero means: not known
		switch {
		case f.closed:
			f.mu.Unlock()
			return 0, net.ErrClosed
		case by.passed():
			f.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			f.mu.Unlock()
			return 0, nil
		case len(f.chunks) > 0:
			next = f.chunks[0].at
			if !now.Before(next) {
				n := f.takeLocked(p, now)
				f.mu.Unlock()
				return n, nil
			}
		case f.ended:
			next = f.endAt
			if !now.Before(next) {
				err := f.endErr
				f.mu.Unlock()
				return 0, err
			}
		}
		changed := f.changed
		f.mu.Unlock()
		waitFor(changed, moved, next.Sub(now), !next.IsZero())
	}
}

// takeLocked moves what has arrived into p and frees its room.
func (f *flow) takeLocked(p []byte, now time.Time) int {
	n := 0
	for n < len(p) && len(f.chunks) > 0 && !now.Before(f.chunks[0].at) {
		c := &f.chunks[0]
		k := copy(p[n:], c.data)
		n += k
		if c.data = c.data[k:]; len(c.data) == 0 {
			f.chunks[0] = chunk{}
			f.chunks = f.chunks[1:]
		}
	}
	f.size -= n
	f.wakeLocked()
	return n
}

func (f *flow) write(p []byte, by *deadline) (int, error) {
	n := 0
	for {
		moved := by.event() // before the check, so that no change is missed
		f.mu.Lock()
		now := time.Now()
		var next time.Time
		switch {
		case f.ended:
			f.mu.Unlock()
			return n, syscall.EPIPE
		case by.passed():
			f.mu.Unlock()
			return n, os.ErrDeadlineExceeded
		case f.closed && !now.Before(f.stopAt):
			f.mu.Unlock()
			if f.stopErr != nil {
				return n, f.stopErr
			}
			return n, syscall.EPIPE
		case f.closed:
			// The news is on its way; what is sent meanwhile is lost.
			f.mu.Unlock()
			return len(p), nil
		default:
			if k := min(len(p)-n, memBuffer-f.size); k > 0 {
				f.chunks = append(f.chunks, chunk{append([]byte(nil), p[n:n+k]...), now.Add(f.delay)})
				f.size += k
				n += k
				f.wakeLocked()
			}
		}
		changed := f.changed
		f.mu.Unlock()
		if n == len(p) {
			return n, nil
		}
		waitFor(changed, moved, next.Sub(now), !next.IsZero())
	}
}

// closeWriter ends the flow after the bytes that were written.
func (f *flow) closeWriter() error { return f.end(io.EOF) }

func (f *flow) resetWriter() { _ = f.end(syscall.ECONNRESET) }

func (f *flow) end(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended && (err == io.EOF || f.endErr != io.EOF) {
		return syscall.EPIPE
	}
	f.ended, f.endErr, f.endAt = true, err, time.Now().Add(f.delay)
	f.wakeLocked()
	return nil
}

// closeReader drops what is unread; the writer gets err once it knows.
func (f *flow) closeReader(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed, f.stopErr, f.stopAt = true, err, time.Now().Add(f.delay)
	f.chunks, f.size = nil, 0
	f.wakeLocked()
}

func (f *flow) readerClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// waitFor returns when the flow or the deadline has changed, or after d.
func waitFor(changed, moved <-chan struct{}, d time.Duration, timed bool) {
	var arrival <-chan time.Time
	if timed {
		timer := time.NewTimer(d)
		defer timer.Stop()
		arrival = timer.C
	}
	select {
	case <-changed:
	case <-moved:
	case <-arrival:
	}
}

// A deadline is a moment that can be moved while somebody waits for it.
type deadline struct {
	mu      sync.Mutex // guards the fields below
	at      time.Time
	timer   *time.Timer
	changed chan struct{} // closed when the moment comes or moves
}

func newDeadline() *deadline {
	return &deadline{changed: make(chan struct{})}
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	d.wakeLocked()
	if left := time.Until(t); !t.IsZero() && left > 0 {
		d.timer = time.AfterFunc(left, d.wake)
	}
}

func (d *deadline) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wakeLocked()
}

func (d *deadline) wakeLocked() {
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *deadline) passed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.at.IsZero() && !time.Now().Before(d.at)
}

func (d *deadline) event() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}
