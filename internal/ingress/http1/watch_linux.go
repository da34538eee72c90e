// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// initWatch finds the socket. Only plain sockets are read through their file
// descriptor: what wraps one may change its bytes.
func (c *conn) initWatch() {
	c.under = rawConn(unwrap(c.nc))
	switch c.nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		c.raw = c.under
	}
	c.readFn, c.parkFn = c.tryRead, c.tryPark
}

func rawConn(nc net.Conn) syscall.RawConn {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		if raw, err := nc.(syscall.Conn).SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// tryRead is called by RawConn.Read when the socket may have something, and at
// its start. It returns false to wait for the next event; the runtime's poller
// is edge-triggered, so a hang-up behind unread bytes wakes it as well. A buffer
// is taken only for the read itself, so a quiet connection holds none.
func (c *conn) tryRead(fd uintptr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kicked {
		c.readErr = errKicked
		return true
	}
	dst := c.spaceLocked()
	if dst == nil {
		return c.parkLocked(fd)
	}
	c.parked = false
	n, err := unix.Read(int(fd), dst)
	for err == unix.EINTR {
		n, err = unix.Read(int(fd), dst)
	}
	switch {
	case err == unix.EAGAIN:
		c.releaseLocked()
		c.readErr = errNothing
		return c.probing
	case err != nil:
		c.readErr = err
	case n == 0:
		c.readErr = io.EOF
	default:
		c.readErr = nil
		c.e += n
		c.addedLocked()
		return true
	}
	c.releaseLocked()
	return true
}

// tryPark is tryRead for a socket that another connection type reads from.
func (c *conn) tryPark(fd uintptr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kicked || c.roomLocked() > 0 {
		c.readErr = errKicked
		return true
	}
	return c.parkLocked(fd)
}

// parkLocked waits for the consumer, who kicks the reader when there is room
// again, or for the peer's hanging up.
func (c *conn) parkLocked(fd uintptr) bool {
	if c.rdhup {
		c.readErr = errFull
		return true
	}
	c.parked = true
	// Behind a closed window no FIN arrives: look at the peer itself meanwhile.
	c.setDeadlineLocked(time.Now().Add(leftPoll))
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if n, err := unix.Poll(p, 0); n <= 0 || err != nil {
		return false
	}
	c.parked = false
	c.readErr = errHangup
	if p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
		c.readErr = errReset
	}
	return true
}
