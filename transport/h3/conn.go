// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/warmwire/warmwire/transport/fault"
)

// A Conn is one client connection. Locks: Conn.mu, then stream.mu.
type Conn struct {
	qc      *quic.Conn
	cfg     Config
	family  int     // of its addresses
	sockets *holder // the sockets that it has used
	work    sync.WaitGroup
	ctx     context.Context // ends with the QUIC connection
	ready   chan struct{}   // closed at the peer's SETTINGS, or the end
	sure    chan struct{}   // closed when the handshake is done and what it needs afterwards too, or at the end
	state   atomic.Pointer[tls.ConnectionState]

	small, large sync.Pool // of *[]byte
	coder        coder
	control      control

	lastHeard atomic.Int64  // when a packet was last seen to have come, UnixNano
	packets   atomic.Uint64 // how many had come by then

	migrating sync.Mutex // held while a path is probed; guards the field below
	on        *socket    // whose path is in use

	mu       sync.Mutex // guards the fields below
	streams  map[quic.StreamID]*stream
	inFlight int
	closing  *fault.Error // why no more requests are taken; nil = open
	fate     *fault.Error // why this side ended the connection; nil = it did not
	dead     bool
	peer     settings
	goneAway bool           // GOAWAY came
	lastID   uint64         // with this id
	stock    []*quic.Stream // opened ahead of need
	short    chan struct{}  // capacity 1: some of the stock was taken; nil until the peer's limit is met
	refused  bool           // early data was: what is opened must wait for sure
}

// newConn starts HTTP/3 on qc and owns it.
func newConn(qc *quic.Conn, sockets *holder, cfg Config) *Conn {
	c := &Conn{
		qc: qc, cfg: cfg, sockets: sockets, ctx: qc.Context(),
		ready: make(chan struct{}), sure: make(chan struct{}),
		small: chunks(smallChunk), large: chunks(largeChunk),
		streams: map[quic.StreamID]*stream{},
	}
	c.coder.init()
	c.control.c = c
	c.heard()
	c.work.Go(c.run)
	return c
}

// run follows the connection to its end.
func (c *Conn) run() {
	c.greet()
	c.work.Go(c.acceptStreams)
	select {
	case <-c.qc.HandshakeComplete():
		c.confirm()
	case <-c.ctx.Done():
	}
	<-c.ctx.Done()
	c.over()
}

// confirm makes the connection whole after its handshake. If the server refused
// early data, all streams of it are gone and begin anew (RFC 9001 §4.6.2).
func (c *Conn) confirm() {
	state := c.qc.ConnectionState()
	c.state.Store(&state.TLS)
	if c.cfg.EarlyData && !state.Used0RTT && c.wasRefused() {
		if _, err := c.qc.NextConnection(c.ctx); err == nil {
			c.greet()
			c.work.Go(c.acceptStreams)
		}
	}
	close(c.sure)
	c.changed()
}

// wasRefused says whether early data was sent and refused: then no stream can be
// opened until the connection is told to go on.
func (c *Conn) wasRefused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.refused {
		str, err := c.qc.OpenStream()
		if err == nil {
			c.stock = append(c.stock, str)
		}
		c.refused = errors.Is(err, quic.Err0RTTRejected)
	}
	if c.refused {
		c.stock, c.short = nil, nil
	}
	return c.refused
}

// refuseEarly lets no more requests be early.
func (c *Conn) refuseEarly() {
	c.mu.Lock()
	c.refused = true
	c.mu.Unlock()
}

// TLS is what was agreed on in the handshake.
func (c *Conn) TLS() tls.ConnectionState { return *c.tlsState() }

// tlsState is what is known of TLS.
func (c *Conn) tlsState() *tls.ConnectionState {
	if state := c.state.Load(); state != nil {
		return state
	}
	state := c.qc.ConnectionState().TLS
	return &state
}

// over notes the end of the QUIC connection.
func (c *Conn) over() {
	_ = c.death(context.Cause(c.ctx))
	c.mu.Lock()
	c.dead = true
	victims := make([]*stream, 0, len(c.streams))
	for _, s := range c.streams {
		victims = append(victims, s)
	}
	c.mu.Unlock()
	for _, s := range victims {
		_ = s.failed(context.Cause(c.ctx))
	}
	c.closeOnce(c.ready)
	c.closeOnce(c.sure)
	c.sockets.release()
	c.changed()
}

func (c *Conn) closeOnce(ch chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// death is why the connection has ended: this side's word goes before the echo
// of it. From then on it takes no requests, whoever hears of it first.
func (c *Conn) death(err error) *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	why := c.fate
	if why == nil {
		why = broken(err)
	}
	if c.closing == nil {
		c.closing = why
	}
	return why
}

// WaitReady waits for the handshake and the peer's SETTINGS. No request after it
// is early. It returns Err if the connection fails first.
func (c *Conn) WaitReady(ctx context.Context) error {
	for _, ch := range []chan struct{}{c.sure, c.ready} {
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.Err()
}

// RoundTrip sends req and returns its answer once its head is there. It never
// waits for a place on the connection: without one it fails at once, unsent. A
// request that may not go in early data waits for the handshake.
func (c *Conn) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	s, err := c.newStream(req)
	if err == nil && !(s.safe() && c.mayBeEarly()) {
		err = c.waitSure(ctx)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = c.open(s)
	}
	if errors.Is(err, quic.Err0RTTRejected) { // nothing was sent, and it can be now
		if err = c.waitSure(ctx); err == nil {
			err = c.open(s)
		}
	}
	if err != nil {
		closeBody(req)
		return nil, err
	}
	s.watch(ctx)
	if err := s.start(); err != nil {
		closeBody(req)
		return nil, err
	}
	if s.upload != nil {
		go s.sendBody()
		// What the body has at once goes into the same packet as the head: its
		// reader gets the processor first.
		runtime.Gosched()
	}
	return s.await()
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// mayBeEarly says whether safe requests need not wait for the handshake.
func (c *Conn) mayBeEarly() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.EarlyData && !c.refused
}

// waitSure waits for the handshake.
func (c *Conn) waitSure(ctx context.Context) error {
	select {
	case <-c.sure:
		return nil
	default:
	}
	select {
	case <-c.sure:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open gives s a stream of the connection.
func (c *Conn) open(s *stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closing != nil:
		return fault.Of(c.closing, false)
	case s.tunnel == extendedConnect && !c.peer.connect:
		return errors.New("h3: the upstream does not offer extended CONNECT (RFC 9220)")
	case c.inFlight >= c.cfg.MaxStreams:
		return fault.Unsent(kindClosed, "the connection has no room for another stream")
	}
	if limit := c.peer.maxFieldSection; limit > 0 && s.fieldSection > limit {
		return fault.Unsent(kindTooLarge, "the request's head of %d bytes is more than the %d the upstream takes", s.fieldSection, limit)
	}
	str, err := c.takeLocked()
	if err != nil {
		return err
	}
	s.str = str
	c.streams[str.StreamID()] = s
	c.inFlight++
	return nil
}

// maxStock is how many streams are kept ready from the time when the peer's limit
// was met. A guess: more is memory, less lets a burst go elsewhere.
const maxStock = 8

// takeLocked opens a stream of QUIC. The library does not tell the peer's limit, so
// it is known only from meeting it; from then on a few streams are kept in stock,
// and Available tells the truth again.
func (c *Conn) takeLocked() (*quic.Stream, error) {
	if n := len(c.stock); n > 0 {
		str := c.stock[0]
		c.stock = c.stock[1:]
		c.wantStockLocked()
		return str, nil
	}
	str, err := c.qc.OpenStream()
	if err == nil {
		return str, nil
	}
	if _, full := errors.AsType[*quic.StreamLimitReachedError](err); !full {
		c.refused = c.refused || errors.Is(err, quic.Err0RTTRejected)
		return nil, fault.Of(broken(err), false)
	}
	if c.short == nil && !c.dead {
		short := make(chan struct{}, 1)
		c.short = short
		c.work.Go(func() { c.restock(short) })
	}
	return nil, fault.Unsent(kindClosed, "the upstream takes no more than %d streams now", c.inFlight)
}

// wantStockLocked wakes restock, if it runs.
func (c *Conn) wantStockLocked() {
	if c.short == nil {
		return
	}
	select {
	case c.short <- struct{}{}:
	default: // it will look anyway
	}
}

// restock keeps streams ready, from the time when the peer's limit was met.
func (c *Conn) restock(short <-chan struct{}) {
	for {
		str, err := c.qc.OpenStreamSync(c.ctx)
		if err != nil {
			return
		}
		c.mu.Lock()
		c.stock = append(c.stock, str)
		full := len(c.stock) >= maxStock
		c.mu.Unlock()
		c.changed()
		for full {
			select {
			case <-short:
			case <-c.ctx.Done():
				return
			}
			c.mu.Lock()
			full = len(c.stock) >= maxStock
			c.mu.Unlock()
		}
	}
}

// drop takes an exchange that has ended out of what is in flight.
func (c *Conn) drop(s *stream) {
	c.mu.Lock()
	delete(c.streams, s.str.StreamID())
	c.inFlight--
	c.restLocked()
	c.mu.Unlock()
	c.changed()
}

// restLocked ends a closing connection that has nothing left to do.
func (c *Conn) restLocked() {
	if c.closing != nil && !c.dead && c.inFlight == 0 {
		c.hangUpLocked(codeNone)
	}
}

// hangUpLocked ends the QUIC connection, soon. c.dead is not set, so that c.work
// is not waited for to the end yet.
func (c *Conn) hangUpLocked(code errCode) {
	c.work.Go(func() { _ = c.qc.CloseWithError(quic.ApplicationErrorCode(code), "") })
}

// Available is how many requests the connection would take now.
func (c *Conn) Available() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing != nil {
		return 0
	}
	n := c.cfg.MaxStreams - c.inFlight
	if c.short != nil {
		n = min(n, len(c.stock))
	}
	return max(0, n)
}

// InFlight is how many answers have not ended.
func (c *Conn) InFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight
}

// Err says why the connection takes no more requests for good; nil while it does.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing == nil {
		return nil
	}
	return fault.Of(c.closing, false)
}

// ExtendedConnect says whether the peer offers RFC 9220.
func (c *Conn) ExtendedConnect() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer.connect
}

// Shutdown takes no more requests, and closes the connection when those in
// flight have ended. It does not wait.
func (c *Conn) Shutdown() {
	c.refuse(&fault.Error{In: "send", Kind: kindClosed, Err: errors.New("the connection is being shut down")})
}

// refuse takes no more requests because of why.
func (c *Conn) refuse(why *fault.Error) {
	c.mu.Lock()
	if c.closing == nil {
		c.closing = why
	}
	c.restLocked()
	c.mu.Unlock()
	c.changed()
}

// Close ends the connection at once; requests in flight fail. It returns when
// the connection's goroutines have ended, so it must not be called by OnChange.
func (c *Conn) Close() error {
	c.fail(&fault.Error{In: "wait", Kind: kindClosed, Err: errors.New("the connection was closed on this side")}, codeNone)
	c.work.Wait()
	return nil
}

// Abandon ends the connection at once because of why: what its owner knows of the
// path and the connection does not. Requests in flight fail with it.
func (c *Conn) Abandon(why *fault.Error) { c.fail(why, codeNone) }

// fail ends the connection at once because of why; the peer is told code.
func (c *Conn) fail(why *fault.Error, code errCode) {
	c.mu.Lock()
	if c.closing == nil {
		c.closing = why
	}
	if c.fate == nil && !c.dead {
		c.fate = why
		c.hangUpLocked(code)
	}
	c.mu.Unlock()
}

func (c *Conn) changed() {
	if c.cfg.OnChange != nil {
		c.cfg.OnChange()
	}
}

// heard notes that bytes of the peer's came.
func (c *Conn) heard() { c.lastHeard.Store(time.Now().UnixNano()) }
