// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// leftPoll is how often a half-closed peer is asked whether it is still there;
// with one lookup of 12 µs it costs nothing and keeps well below 50 ms.
const leftPoll = 20 * time.Millisecond

var (
	past = time.Unix(1, 0) // a deadline that has passed

	errKicked  = errors.New("kicked")      // the reader shall look around
	errFull    = errors.New("no room")     // and the peer has finished sending
	errHangup  = errors.New("hang-up")     // POLLRDHUP while there is no room
	errReset   = errors.New("reset")       // POLLHUP or POLLERR while there is no room
	errNothing = errors.New("nothing yet") // while probing
)

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// watch keeps reading while the handler runs: body, next requests, the peer's
// leaving. It returns when the exchange is over, or the connection handed on.
func (c *conn) watch() {
	for {
		c.mu.Lock()
		if c.handing {
			c.handed = true
			c.cond.Broadcast()
			for c.cur != nil {
				c.cond.Wait()
			}
			c.mu.Unlock()
			return
		}
		if c.cur == nil {
			c.mu.Unlock()
			return
		}
		if c.left || c.aborted { // nothing to read any more
			c.cond.Wait()
			c.mu.Unlock()
			continue
		}
		blind := c.fin || c.rdhup && c.roomLocked() == 0
		c.mu.Unlock()
		if blind {
			c.askLeft()
			continue
		}
		switch err := c.fill(); {
		case err == nil, err == errKicked, err == errFull:
		case isTimeout(err):
			c.timedOut()
		case err == io.EOF:
			c.finished(true)
		case err == errHangup:
			c.finished(false)
		default:
			c.leave()
		}
	}
}

// timedOut handles a deadline that passed while a request runs: that of the wait
// before it, or of a look at a peer that has filled every buffer.
func (c *conn) timedOut() {
	c.mu.Lock()
	running := c.cur != nil
	full := c.roomLocked() == 0
	if running {
		c.setDeadlineLocked(time.Time{})
	}
	c.mu.Unlock()
	if !running || !full {
		return
	}
	if left, known := c.srv.cfg.Left(c.nc); left && known {
		c.leave()
	}
}

// finished handles the end of what the peer sends; read says that all is read.
func (c *conn) finished(read bool) {
	c.mu.Lock()
	c.rdhup = true
	c.fin = c.fin || read
	if read {
		c.failBodyLocked(io.ErrUnexpectedEOF)
	}
	if c.wake == nil {
		c.wake = make(chan struct{}, 1)
	}
	running := c.cur != nil
	c.mu.Unlock()
	if !running {
		return
	}
	if left, known := c.srv.cfg.Left(c.nc); left || !known {
		c.leave()
	}
}

// askLeft waits a moment or for a kick, and asks whether the peer of a
// half-closed connection is still there.
func (c *conn) askLeft() {
	t := time.NewTimer(leftPoll)
	defer t.Stop()
	select {
	case <-c.wake:
		c.mu.Lock()
		c.clearKickLocked()
		c.mu.Unlock()
		return
	case <-t.C:
	}
	if left, known := c.srv.cfg.Left(c.nc); left || !known {
		c.leave()
	}
}

// leave cancels the request of a peer that is gone.
func (c *conn) leave() {
	c.mu.Lock()
	c.left, c.ending = true, true
	c.failBodyLocked(io.ErrUnexpectedEOF)
	c.nc.SetWriteDeadline(past) // ends a Write that waits for the peer
	x := c.cur
	c.mu.Unlock()
	if x != nil {
		x.cancel(ErrClientLeft)
	}
}

// kickLocked makes the reader return from its wait.
func (c *conn) kickLocked() {
	if c.handed {
		return
	}
	c.kicked, c.parked = true, false
	c.nc.SetReadDeadline(past)
	c.cond.Broadcast()
	if c.wake != nil {
		select {
		case c.wake <- struct{}{}:
		default: // one is enough
		}
	}
}

func (c *conn) clearKickLocked() {
	if c.kicked {
		c.kicked = false
		c.nc.SetReadDeadline(c.deadline)
	}
}

func (c *conn) setDeadlineLocked(t time.Time) {
	if !c.deadline.Equal(t) {
		c.deadline = t
		if !c.kicked {
			c.nc.SetReadDeadline(t)
		}
	}
}

// fill reads once into the buffer; nil means that bytes were added. errKicked
// means that something else changed.
func (c *conn) fill() error {
	var err error
	if c.raw != nil {
		if err = c.raw.Read(c.readFn); err == nil {
			err = c.readErr
		}
	} else {
		err = c.fillPlain()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parked = false
	if c.kicked {
		c.clearKickLocked()
		if err == errKicked || isTimeout(err) {
			return errKicked
		}
	}
	return err
}

// fillPlain reads from a connection that is no plain socket.
func (c *conn) fillPlain() error {
	c.mu.Lock()
	if c.kicked {
		c.mu.Unlock()
		return errKicked
	}
	room := c.roomLocked()
	if room == 0 {
		return c.parkPlain()
	}
	c.mu.Unlock()
	if c.scratch == nil {
		c.scratch = make([]byte, 2<<10)
	}
	n, err := c.nc.Read(c.scratch[:min(room, len(c.scratch))])
	if n == 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := c.scratch[:n]; len(p) > 0; {
		k := copy(c.spaceLocked(), p)
		if k == 0 {
			panic("http1: internal error: room has shrunk") // only the reader fills it
		}
		c.e += k
		p = p[k:]
	}
	c.addedLocked()
	return nil // an error comes again with the next read
}

// parkPlain waits for room, with c.mu held at first, and where the socket below
// can be seen for its hanging up too.
func (c *conn) parkPlain() error {
	defer c.mu.Unlock()
	if c.rdhup {
		return errFull
	}
	c.parked = true
	if c.under == nil {
		for c.parked && !c.kicked {
			c.cond.Wait()
		}
		return errKicked
	}
	c.mu.Unlock()
	err := c.under.Read(c.parkFn)
	c.mu.Lock()
	if err == nil {
		err = c.readErr
	}
	return err
}

// probe reads what is there already, without waiting, and reports whether there
// was something.
func (c *conn) probe() bool {
	c.mu.Lock()
	if c.aborted {
		c.mu.Unlock()
		return false
	}
	c.probing = true
	var t time.Time
	if c.raw == nil {
		t = time.Now().Add(time.Millisecond) // a connection that cannot be asked gets this long
	}
	c.kicked = false
	c.deadline = t
	c.nc.SetReadDeadline(t)
	c.mu.Unlock()
	err := c.fill()
	c.mu.Lock()
	c.probing = false
	c.mu.Unlock()
	return err == nil
}

// roomLocked is how many bytes may be read now.
func (c *conn) roomLocked() int {
	return max(0, c.limitLocked()-(c.e-c.r))
}

// limitLocked is the bound of the buffer for what it holds now.
func (c *conn) limitLocked() int {
	switch {
	case c.body.open:
		return largeSize
	case c.cur != nil:
		return max(maxPipelined, min(len(c.in), largeSize))
	}
	// A head one byte longer than allowed shows that it is too long.
	return max(c.srv.cfg.MaxHeaderBytes+2*maxBlank+len(preface), smallSize)
}

// spaceLocked returns where to put the next bytes, nil if there is no room.
func (c *conn) spaceLocked() []byte {
	if c.r == c.e {
		c.r, c.w, c.e = 0, 0, 0
	}
	room := c.roomLocked()
	if room == 0 {
		return nil
	}
	if c.r > 0 && (c.e == len(c.in) || len(c.in)-c.e < min(room, smallSize/2)) {
		copy(c.in, c.in[c.r:c.e])
		c.w, c.e, c.r = c.w-c.r, c.e-c.r, 0
	}
	if c.e == len(c.in) {
		c.growLocked()
	}
	return c.in[c.e:min(len(c.in), c.e+room)]
}

func (c *conn) growLocked() {
	var bigger []byte
	switch {
	case c.in == nil && !(c.body.open && (c.body.chunked || c.body.remain > smallSize)):
		bigger = c.srv.getSmall()
	case len(c.in) < largeSize:
		bigger = c.srv.getLarge()
	default:
		bigger = make([]byte, 2*len(c.in))
	}
	copy(bigger, c.in[:c.e])
	c.srv.put(c.in)
	c.in = bigger
}

// releaseLocked gives the buffer back if it holds nothing.
func (c *conn) releaseLocked() {
	if c.r == c.e && c.in != nil {
		c.srv.put(c.in)
		c.in, c.r, c.w, c.e = nil, 0, 0, 0
	}
}

// addedLocked handles bytes that were put at the end of the buffer.
func (c *conn) addedLocked() {
	if c.body.open {
		c.decodeLocked()
	}
	c.cond.Broadcast()
}

// unwrap follows NetConn methods to the innermost connection.
func unwrap(nc net.Conn) net.Conn {
	for range 8 { // guess: no sane stack is deeper
		w, ok := nc.(interface{ NetConn() net.Conn })
		if !ok || w.NetConn() == nil {
			break
		}
		nc = w.NetConn()
	}
	return nc
}
