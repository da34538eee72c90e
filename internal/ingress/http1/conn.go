// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A conn is one connection. Its reader, the goroutine of ServeConn, is the only
// one that reads from the network. It reads into in, which holds
//
//	in[r:w]  body bytes, framing taken off, for the handler
//	in[w:e]  what follows the body: the next requests (r == w while a head is read)
type conn struct {
	srv    *Server
	nc     net.Conn
	raw    syscall.RawConn // reads go through it; nil if nc is no plain socket
	under  syscall.RawConn // of the socket below nc: to see it hang up without reading; may be nil
	ctx    context.Context // of the connection
	base   *http.Request   // empty; requests are copies of it
	remote string

	// owned by the reader
	readFn, parkFn func(fd uintptr) bool
	readErr        error  // what readFn found
	scratch        []byte // for connections that are no plain sockets
	served         bool   // a request was served: no HTTP/2 preface any more

	mu       sync.Mutex // guards all below; never held over blocking I/O
	cond     sync.Cond  // body bytes, room, ends
	in       []byte     // nil while there is nothing to hold
	r, w, e  int
	scan     int // next byte of a head to look at, from r
	line     int // start of the head's current line, from r
	blank    int // empty lines before a head
	body     bodyState
	cur      *exchange     // nil between requests
	deadline time.Time     // for reads, as set on nc
	wake     chan struct{} // kicks a reader that polls a half-closed peer; nil before
	idleAt   time.Time     // end of the wait for a request

	kicked  bool // the reader shall look around
	parked  bool // the reader waits for room
	probing bool // the reader only tries what is there
	fin     bool // the peer has finished sending, all is read
	rdhup   bool // the peer has finished sending, bytes may be unread
	left    bool // the peer is gone
	aborted bool // the context of ServeConn has ended
	ending  bool // no further request
	linger  bool // unread bytes may arrive: discard before closing
	rst     bool // the end of the answer can be shown by a reset only

	handing bool // the connection goes to another owner
	handed  bool // the reader has let go of it
}

// An exchange is one request and its answer.
type exchange struct {
	req    *http.Request
	res    response
	body   body
	cancel context.CancelCauseFunc
	clean  bool // the handler returned and the answer is complete
}

func newConn(ctx context.Context, s *Server, nc net.Conn) *conn {
	c := &conn{srv: s, nc: nc, base: &http.Request{}, remote: nc.RemoteAddr().String()}
	c.ctx = &connContext{ctx, nc, nc.LocalAddr()}
	c.cond.L = &c.mu
	c.idleAt = time.Now().Add(s.cfg.IdleTimeout)
	c.initWatch()
	return c
}

// serve runs the connection to its end.
func (c *conn) serve() {
	for {
		n, ok := c.nextHead()
		if !ok || !c.dispatch(n) {
			break
		}
		c.served = true
		c.watch()
		c.mu.Lock()
		over := c.ending || c.handing
		c.mu.Unlock()
		if over {
			break
		}
	}
	c.close()
}

// abort cuts the connection; the context of ServeConn has ended.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handing {
		return
	}
	c.aborted, c.ending = true, true
	c.failBodyLocked(context.Cause(c.ctx))
	c.nc.SetWriteDeadline(past)
	c.kickLocked()
}

// nextHead waits until a whole head is buffered and returns its length.
func (c *conn) nextHead() (n int, ok bool) {
	began := false
	for {
		c.mu.Lock()
		n, refusal := c.scanHeadLocked()
		empty := c.r == c.e
		over := c.aborted || c.fin || c.left
		h2 := n == headIsHTTP2
		switch {
		case refusal != nil, n > 0, h2, over:
		case empty:
			c.releaseLocked()
			c.setDeadlineLocked(c.idleAt)
		case !began:
			began = true
			c.setDeadlineLocked(time.Now().Add(c.srv.cfg.HeaderTimeout))
		}
		aborted := c.aborted
		c.mu.Unlock()
		switch {
		case aborted:
			return 0, false
		case refusal != nil:
			c.refuse(refusal, false)
			return 0, false
		case h2:
			c.serveHTTP2()
			return 0, false
		case n > 0:
			return n, true
		case over:
			return 0, false
		case empty && c.srv.draining.Load() && !c.probe():
			return 0, false
		case empty && c.srv.draining.Load():
			continue
		}
		if !c.readHead(empty) {
			return 0, false
		}
	}
}

// readHead reads more of a head, or waits for its first byte. It reports whether
// the connection goes on.
func (c *conn) readHead(idle bool) bool {
	err := c.fill()
	switch {
	case err == nil, err == errKicked:
		return true
	case err == errFull: // scanHeadLocked refuses before a head's buffer is full
		return false
	case isTimeout(err):
		// What arrived together with the deadline is served.
		if c.probe() {
			return true
		}
		if !idle {
			c.refuse(&RequestError{http.StatusRequestTimeout, "header_timeout", "the request's head took too long to arrive"}, false)
		}
		return false
	}
	c.mu.Lock()
	c.fin = true
	c.mu.Unlock()
	return false
}

// dispatch parses the head of n bytes and starts the handler. It reports whether
// there is a request to watch.
func (c *conn) dispatch(n int) bool {
	x := &exchange{}
	ctx, cancel := context.WithCancelCause(c.ctx)
	x.cancel = cancel
	x.req = c.base.WithContext(ctx)
	x.req.RemoteAddr = c.remote

	c.mu.Lock()
	head := string(c.in[c.r : c.r+n])
	f, refusal := parseHead(head, x.req)
	c.r += n
	c.w, c.scan, c.line, c.blank = c.r, 0, 0, 0
	if refusal == nil {
		c.body = bodyState{req: x.req, open: true, chunked: f.chunked, remain: f.length}
		c.body.dec.max = c.srv.cfg.MaxHeaderBytes
		c.decodeLocked()
		refusal = c.body.refusal
	}
	if refusal != nil {
		c.mu.Unlock()
		cancel(refusal)
		c.refuse(refusal, x.req.Method == http.MethodHead)
		return false
	}
	x.body.c = c
	if f.chunked || f.length > 0 {
		x.req.Body = &x.body
	}
	if c.r == c.e {
		c.releaseLocked()
	}
	x.res.init(c, x)
	c.cur = x
	c.mu.Unlock()
	c.srv.busy.Add(1)
	go c.run(x) // ends before serve does: watch waits for it
	// The handler first, here: without this its start waits for a read that
	// finds nothing, or moves to another processor (BenchmarkRequest: 46 to 42 µs a
	// request on two).
	runtime.Gosched()
	return true
}

// run is the handler's goroutine.
func (c *conn) run(x *exchange) {
	defer c.srv.busy.Add(-1)
	defer c.over(x)
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler {
			c.srv.cfg.Panic(v, debug.Stack())
		}
	}()
	c.srv.handler.ServeHTTP(&x.res, x.req)
	x.clean = x.res.finish()
}

// over ends an exchange: the reader goes on with the next request, or closes.
func (c *conn) over(x *exchange) {
	closeAfter, rst := x.res.end(x.clean)
	x.cancel(context.Canceled)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cur = nil
	c.body.closed = true
	if !c.handing {
		c.ending = c.ending || closeAfter || !x.clean
		c.rst = c.rst || rst
		if c.body.open {
			// Bytes of this body must never be read as a request.
			c.ending, c.linger = true, true
		}
		c.r = c.w // what the handler did not read
		c.linger = c.linger || c.ending && c.r < c.e
		c.idleAt = time.Now().Add(c.srv.cfg.IdleTimeout)
		if c.ending || c.r < c.e || c.parked || c.rdhup || c.srv.draining.Load() {
			c.kickLocked()
		} else {
			// The reader waits for bytes already; it need not be woken.
			c.setDeadlineLocked(c.idleAt)
		}
	}
	if c.body.timer != nil {
		c.body.timer.Stop()
	}
	if x.res.deadlineSet && !c.handing && !c.left {
		c.nc.SetWriteDeadline(time.Time{})
	}
	c.cond.Broadcast()
}

// refuse answers a request that no handler sees, and ends the connection.
func (c *conn) refuse(e *RequestError, head bool) {
	c.srv.cfg.Malformed(e.Status, e.Code)
	c.nc.SetWriteDeadline(time.Now().Add(c.srv.cfg.LingerTimeout))
	c.nc.Write(appendRefusal(nil, c.srv.cfg, e, head)) // the client may be gone; nothing is left to do then
	c.mu.Lock()
	c.ending, c.linger = true, true
	c.mu.Unlock()
}

func appendRefusal(b []byte, cfg Config, e *RequestError, head bool) []byte {
	contentType, body := cfg.ErrorBody(e.Status, e.Code, e.Message)
	b = appendStatusLine(b, e.Status)
	b = append(b, "Content-Type: "...)
	b = append(b, contentType...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\nConnection: close\r\n\r\n"...)
	if head {
		return b
	}
	return append(b, body...)
}

// close ends the connection in the way the client must see it.
func (c *conn) close() {
	c.mu.Lock()
	handed := c.handing
	linger := c.linger && !c.aborted && !c.left && !c.fin && !c.rst
	rst, cut := c.rst, c.rst || c.aborted || c.left
	c.releaseLocked()
	c.mu.Unlock()
	if handed {
		return
	}
	under := unwrap(c.nc)
	if t, ok := under.(interface{ SetLinger(int) error }); ok && rst {
		t.SetLinger(0)
	}
	if cut {
		under.Close() // first: TLS would wait to say that this is the end, which it is not
	}
	if linger {
		c.discard()
	}
	c.nc.Close()
}

// discard is the lingering close of RFC 9112 §9.6: closing with unread bytes, or
// before the client has stopped sending, would reset the connection and could
// destroy the answer on its way.
func (c *conn) discard() {
	cw, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || cw.CloseWrite() != nil {
		return
	}
	buf := c.srv.getLarge()
	defer c.srv.put(buf)
	end := time.Now().Add(10 * c.srv.cfg.LingerTimeout)
	for {
		c.mu.Lock()
		stop := c.aborted
		if !stop {
			next := time.Now().Add(c.srv.cfg.LingerTimeout)
			if next.After(end) {
				next = end
			}
			c.setDeadlineLocked(next)
		}
		c.mu.Unlock()
		if stop {
			return
		}
		if _, err := c.nc.Read(buf); err != nil {
			c.mu.Lock()
			kicked := c.kicked && !c.aborted
			c.kicked = false
			c.mu.Unlock()
			if !kicked { // a drain changes nothing here
				return
			}
		}
	}
}

// serveHTTP2 gives the connection, with the bytes read so far, to Config.HTTP2.
func (c *conn) serveHTTP2() {
	c.mu.Lock()
	c.handing, c.handed = true, true // no more kicks: the deadlines are another's
	read := append([]byte(nil), c.in[c.r:c.e]...)
	c.r, c.w, c.e = 0, 0, 0
	c.releaseLocked()
	c.mu.Unlock()
	c.nc.SetDeadline(time.Time{})
	c.srv.cfg.HTTP2(c.ctx, &replayConn{Conn: c.nc, read: read})
	c.nc.Close()
}

// replayConn gives bytes again that were read to find out what they are.
type replayConn struct {
	net.Conn
	read []byte
}

func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.read) > 0 {
		n := copy(p, c.read)
		c.read = c.read[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// NetConn returns the connection below.
func (c *replayConn) NetConn() net.Conn { return c.Conn }
