// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
)

const (
	maxInterim      = 64                     // 1xx answers before a final one; a guess
	continueTimeout = time.Second            // RFC 9110 §10.1.1: do not wait for 100 indefinitely
	answerGrace     = time.Second            // for an answer that came before the write failed
	lastWriteGrace  = 100 * time.Millisecond // for the last write of an upload whose answer is whole
	readBufferBytes = 4 << 10                // of an answer that is being read
	maxHeadBytes    = 1 << 20                // of an answer's head, and of its trailers
	copyBufferBytes = 32 << 10               // of uploads
)

// Config is how a connection behaves. The zero value is the default.
type Config struct {
	// OnChange is called after Available, InFlight or Err may have changed, with
	// no lock held, by any goroutine. It must not block. nil = nobody is told.
	OnChange func()
}

// A Conn is one client connection.
type Conn struct {
	nc  net.Conn
	cfg Config

	ended chan struct{} // to the watch: the answer is over; capacity 1
	done  chan struct{} // closed when the watch has ended
	sent  atomic.Bool   // a byte of the present request was written

	mu       sync.Mutex // guards the fields below
	current  *exchange  // nil: idle
	err      error      // why it takes no more requests
	shut     bool
	closed   bool
	switched bool // to another protocol, whose reader sees the end

	first    [1]byte // of an answer, read while the connection was watched
	hasFirst bool    // the reader of the answer has not taken it yet
}

// New starts HTTP/1.1 on nc and owns it from then on.
func New(nc net.Conn, cfg Config) *Conn {
	c := &Conn{nc: nc, cfg: cfg, ended: make(chan struct{}, 1), done: make(chan struct{})}
	go c.watch()
	return c
}

// watch waits for the first byte of each answer, and for the end in between.
func (c *Conn) watch() {
	defer close(c.done)
	for {
		n, err := c.nc.Read(c.first[:])
		c.mu.Lock()
		x := c.current
		if n == 0 || x == nil {
			if err == nil {
				err = errors.New("the upstream sent bytes that nobody asked for")
			}
			c.failLocked(broken(err))
			c.mu.Unlock()
			_ = c.nc.Close()
			if x != nil {
				x.readable <- err
			}
			c.changed()
			return
		}
		c.hasFirst = true
		c.mu.Unlock()
		x.readable <- nil
		<-c.ended // the exchange reads the answer itself
		c.mu.Lock()
		over := c.closed || c.switched
		c.mu.Unlock()
		if over {
			return
		}
	}
}

// Read reads an answer, beginning with the byte that the watch has read.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) > 0 && c.hasFirst {
		c.hasFirst = false
		p[0] = c.first[0]
		return 1, nil
	}
	return c.nc.Read(p)
}

func (c *Conn) changed() {
	if c.cfg.OnChange != nil {
		c.cfg.OnChange()
	}
}

// failLocked notes why the connection takes no more requests.
func (c *Conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	c.closed = true
}

// Available is how many requests the connection would take now: 1 or 0.
func (c *Conn) Available() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.shut || c.current != nil {
		return 0
	}
	return 1
}

// InFlight is how many answers have not ended: 1 or 0.
func (c *Conn) InFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		return 1
	}
	return 0
}

// Err says why the connection takes no more requests for good; nil while it does.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

var errShut = errors.New("h1: the connection is being closed")

// Shutdown takes no more requests, and closes the connection when the one in
// flight has ended. It does not wait.
func (c *Conn) Shutdown() {
	c.mu.Lock()
	c.shut = true
	idle := c.current == nil
	if idle {
		c.failLocked(errShut)
	} else if c.err == nil {
		c.err = errShut
	}
	c.mu.Unlock()
	if idle {
		_ = c.nc.Close()
	}
	c.changed()
}

// Close ends the connection at once; a request in flight fails. It returns when
// the connection's goroutine has ended, so it must not be called by OnChange.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.failLocked(errShut)
	x := c.current
	c.mu.Unlock()
	if x != nil {
		x.release(false) // before the peer can tell: see body.finish
	}
	err := c.nc.Close()
	<-c.done
	c.changed()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Abandon ends the connection at once; a request in flight fails with why.
func (c *Conn) Abandon(why *fault.Error) {
	c.mu.Lock()
	if c.err == nil || errors.Is(c.err, errShut) {
		c.err = why
	}
	c.mu.Unlock()
	_ = c.Close()
}

// verdict is why the owner ended the connection, if it did.
func (c *Conn) verdict() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var why *fault.Error
	if c.closed && errors.As(c.err, &why) {
		return why
	}
	return nil
}

// RoundTrip sends req and returns its answer once its head is there.
func (c *Conn) RoundTrip(req *http.Request) (*http.Response, error) {
	x := &exchange{c: c, req: req, ctx: req.Context(), readable: make(chan error, 1), trace: httptrace.ContextClientTrace(req.Context())}
	head, err := x.head()
	if err != nil {
		x.closeBody()
		return nil, &fault.Error{In: "send", Kind: "upstream_bad_response", Err: err}
	}
	c.mu.Lock()
	if c.err != nil || c.shut || c.current != nil {
		err = c.err
		c.mu.Unlock()
		x.closeBody()
		if err == nil {
			err = errors.New("the connection serves another request")
		}
		return nil, &fault.Error{In: "send", Kind: "upstream_closed", Err: err}
	}
	c.current = x
	c.sent.Store(false)
	c.mu.Unlock()
	// The context ends the connection: HTTP/1.1 has no other way to cancel.
	x.stop = context.AfterFunc(x.ctx, func() { x.release(false) })
	resp, err := x.run(head)
	if err != nil {
		sent := c.sent.Load()
		x.release(false)
		x.closeBody()
		if cause := context.Cause(x.ctx); cause != nil {
			return nil, cause
		}
		if why := c.verdict(); why != nil {
			err = why
		}
		return nil, asFault(err, sent)
	}
	return resp, nil
}

// An exchange is one request and its answer.
type exchange struct {
	c     *Conn
	req   *http.Request
	ctx   context.Context
	trace *httptrace.ClientTrace
	stop  func() bool // of the watch over the context

	readable chan error // the answer's first byte is there, or nothing will come; capacity 1
	upload   *upload    // nil: no body
	br       *bufio.Reader
	freed    atomic.Bool
	over     sync.Once // the body's Close
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBufferBytes) }}

// run sends the request and reads the head of its final answer.
func (x *exchange) run(head []byte) (*http.Response, error) {
	if err := x.write(head); err != nil {
		return nil, err
	}
	if x.trace != nil && x.trace.WroteHeaders != nil {
		x.trace.WroteHeaders()
	}
	if x.upload != nil {
		go x.upload.run()
	} else if x.trace != nil && x.trace.WroteRequest != nil {
		x.trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	x.br = readers.Get().(*bufio.Reader)
	x.br.Reset(x.c)
	for interim := 0; ; interim++ {
		if interim == 0 {
			if err := x.await(); err != nil {
				return nil, err
			}
		}
		a, err := readHead(x.br)
		if err != nil {
			return nil, err
		}
		if a.status < 200 && a.status != http.StatusSwitchingProtocols {
			if interim >= maxInterim {
				return nil, badAnswer("more than %d interim answers", maxInterim)
			}
			if err := x.interim(a); err != nil {
				return nil, err
			}
			continue
		}
		return x.answer(a)
	}
}

// await waits for the first byte of the answer.
func (x *exchange) await() error {
	failed := x.upload.failed()
	var grace <-chan time.Time
	var writeErr error
	for {
		select {
		case err := <-x.readable:
			if err == nil {
				if x.trace != nil && x.trace.GotFirstResponseByte != nil {
					x.trace.GotFirstResponseByte()
				}
				return nil
			}
			if writeErr != nil {
				return writeErr
			}
			return err
		case err := <-failed:
			// The upstream may have answered before it stopped reading
			// (RFC 9112 §9.5): that answer comes first.
			if errors.As(err, new(*bodyError)) {
				return err
			}
			writeErr, failed = err, nil
			t := time.NewTimer(answerGrace)
			defer t.Stop()
			grace = t.C
		case <-grace:
			return writeErr
		case <-x.ctx.Done():
			return context.Cause(x.ctx)
		}
	}
}

// interim hands a 1xx answer on.
func (x *exchange) interim(a *answer) error {
	if a.status == http.StatusContinue {
		x.upload.release()
		if x.trace != nil && x.trace.Got100Continue != nil {
			x.trace.Got100Continue()
		}
	}
	if x.trace != nil && x.trace.Got1xxResponse != nil {
		return x.trace.Got1xxResponse(a.status, textproto.MIMEHeader(a.header))
	}
	return nil
}

// answer makes the response of a final head.
func (x *exchange) answer(a *answer) (*http.Response, error) {
	resp := &http.Response{
		Status: a.reason, StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: a.minor,
		Header: a.header, Request: x.req, ContentLength: -1,
	}
	if a.minor == 0 {
		resp.Proto = "HTTP/1.0"
	}
	if a.status == http.StatusSwitchingProtocols {
		if x.req.Header["Upgrade"] == nil {
			return nil, badAnswer("status 101 although no upgrade was asked for")
		}
		x.c.mu.Lock()
		x.c.switched = true
		x.c.mu.Unlock()
		select { // ends the watch: whoever reads the socket sees its end
		case x.c.ended <- struct{}{}:
		default:
		}
		resp.Body = &socketBody{x: x}
		return resp, nil
	}
	b := &body{x: x, resp: resp, keep: a.keepAlive()}
	if err := b.frame(a); err != nil {
		return nil, err
	}
	if x.upload != nil {
		x.upload.answered()
	}
	resp.Body = b
	if b.kind == none {
		resp.Body = http.NoBody
		b.finish(nil)
	}
	return resp, nil
}

// write sends bytes of the request and notes that it did.
func (x *exchange) write(p []byte) error {
	n, err := x.c.nc.Write(p)
	if n > 0 {
		x.c.sent.Store(true)
	}
	return err
}

// release ends the exchange: the connection is idle again, or closed. Only the
// first call does anything.
func (x *exchange) release(keep bool) {
	if x.freed.Swap(true) {
		return
	}
	c := x.c
	c.mu.Lock()
	keep = keep && !c.shut && !c.closed
	if !keep {
		c.failLocked(errEnded)
	}
	c.current = nil
	c.mu.Unlock()
	if !keep {
		_ = c.nc.Close()
	}
	select { // lets the watch go on
	case c.ended <- struct{}{}:
	default:
	}
	c.changed()
}

var errEnded = errors.New("h1: the connection ended with its request")

// closeBody closes the request's body, once.
func (x *exchange) closeBody() {
	x.over.Do(func() {
		if x.req.Body != nil {
			_ = x.req.Body.Close()
		}
	})
}

// badAnswer is an answer that cannot be understood.
func badAnswer(format string, args ...any) *fault.Error {
	return &fault.Error{In: "wait", Kind: "upstream_bad_response", Sent: true,
		Err: fmt.Errorf("the upstream's answer cannot be understood: "+format, args...)}
}
