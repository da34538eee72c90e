// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"time"
)

var (
	errUnreadBody = errors.New("the request's body must arrive whole before the connection can be taken over")
	errAnswered   = errors.New("the connection cannot be taken over after an answer with a body has begun")
)

// Hijack gives the connection to the handler, with no deadlines set. What was
// read beyond the request is in the reader. The head of a 101, or of a 2xx to
// CONNECT, that WriteHeader has set is sent first.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usableLocked(); err != nil {
		return nil, nil, err
	}
	upgraded := w.status == http.StatusSwitchingProtocols || w.status != 0 && w.isTunnel()
	if w.sent && !upgraded {
		return nil, nil, errAnswered
	}
	c := w.c
	c.mu.Lock()
	if c.body.open {
		c.mu.Unlock()
		return nil, nil, errUnreadBody
	}
	c.mu.Unlock() // only the reader changes it, to false
	if upgraded {
		if err := w.sendHeadLocked(true); err != nil {
			return nil, nil, err
		}
	}
	rest, err := c.handOver()
	if err != nil {
		return nil, nil, err
	}
	w.hijacked = true
	br := bufio.NewReaderSize(&replayConn{Conn: c.nc, read: rest}, max(smallSize, len(rest)))
	if len(rest) > 0 {
		br.Peek(len(rest)) // so that Buffered counts them
	}
	return c.nc, bufio.NewReadWriter(br, bufio.NewWriter(c.nc)), nil
}

// handOver stops the reader and returns what it has read beyond the request.
func (c *conn) handOver() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted || c.left {
		return nil, ErrClientLeft
	}
	c.handing = true
	c.kickLocked()
	for !c.handed {
		c.cond.Wait()
	}
	if c.left {
		c.handing = false // close it as usual
		return nil, ErrClientLeft
	}
	rest := append([]byte(nil), c.in[c.w:c.e]...)
	c.r, c.w, c.e = 0, 0, 0
	c.releaseLocked()
	return rest, c.nc.SetDeadline(time.Time{})
}
