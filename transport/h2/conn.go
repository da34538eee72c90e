// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
	"github.com/warmwire/warmwire/transport/semantics"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A Conn is one client connection. Locks: Conn.mu, then stream.mu.
type Conn struct {
	nc     net.Conn
	cfg    Config
	tls    *tls.ConnectionState // nil on a plain connection
	scheme string               // of a request whose URL has none
	loops  sync.WaitGroup
	ready  chan struct{} // closed at the peer's first SETTINGS, or the end

	small, large sync.Pool // of *chunk

	lastRead atomic.Int64 // when bytes last arrived, UnixNano
	rtt      atomic.Int64 // the smallest seen, in ns; 0 = not known
	rate     atomic.Int64 // bytes a second at which answers arrive, lately at most; 0 = not known
	sentData atomic.Int64 // DATA frames written, since the reader last asked
	calm     atomic.Bool  // the peer asked for fewer PINGs
	urgent   atomic.Int32 // open interactive streams
	bulk     atomic.Int32 // open streams of the other classes

	in inbound // owned by the reader

	mu         sync.Mutex         // guards the fields below
	streams    map[uint32]*stream // open on the wire
	nextID     uint32
	inFlight   int          // answers that have not ended for the app
	closing    *fault.Error // why no more requests are taken; nil = open
	dead       bool         // nothing is read or written any more
	lastID     uint32       // of GOAWAY; maxStreamID = none came
	peer       peerSettings
	sendWindow int64
	uploads    scheduler
	pings      pings
	out        output
	fw         *http2.Framer // writes to out
	henc       *hpack.Encoder
	hbuf       bytes.Buffer
	lower      map[string]string // field names as they are on the wire
}

// peerSettings is what the peer has said about itself.
type peerSettings struct {
	seen          bool
	maxStreams    uint32
	initialWindow int64
	maxFrame      int
	maxHeaderList uint64 // 0 = not said
	connect       bool   // RFC 8441
	noRFC7540     bool   // RFC 9218 §2.1
}

// New starts HTTP/2 on nc, whose handshake is done, and owns nc from then on. It
// does not wait for the peer: see [Conn.WaitReady].
func New(nc net.Conn, cfg Config) (*Conn, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Conn{
		nc: nc, cfg: cfg, scheme: "http",
		ready:   make(chan struct{}),
		streams: map[uint32]*stream{}, nextID: 1, lastID: maxStreamID,
		peer:       peerSettings{maxStreams: uint32(min(cfg.AssumedStreams, maxStreamID)), initialWindow: initialWindow, maxFrame: 16 << 10},
		sendWindow: initialWindow,
		lower:      map[string]string{},
	}
	if t, ok := nc.(interface{ ConnectionState() tls.ConnectionState }); ok {
		state := t.ConnectionState()
		c.tls, c.scheme = &state, "https"
	}
	c.small.New = func() any { return &chunk{b: make([]byte, smallChunk)} }
	c.large.New = func() any { return &chunk{b: make([]byte, largeChunk)} }
	c.out.wake.L, c.out.round, c.out.turn = &c.mu, firstRound, 1
	c.out.onFrame = cfg.OnFrame
	c.fw = http2.NewFramer(&c.out, nil)
	c.henc = hpack.NewEncoder(&c.hbuf)
	c.in.init(c)
	c.lastRead.Store(time.Now().UnixNano())
	c.mu.Lock()
	c.greetLocked()
	c.mu.Unlock()
	c.loops.Go(c.read)
	c.loops.Go(c.write)
	return c, nil
}

// greetLocked queues the connection preface (RFC 9113 §3.4) and what belongs to it.
func (c *Conn) greetLocked() {
	c.out.buf = append(c.out.buf, http2.ClientPreface...)
	settings := []http2.Setting{
		{ID: http2.SettingEnablePush, Val: 0},
		{ID: http2.SettingMaxHeaderListSize, Val: maxHeadBytes},
	}
	// Small, so that what a stream gets beyond it can depend on the budget.
	settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(min(c.cfg.StreamWindow, firstWindow))})
	_ = c.fw.WriteSettings(settings...) // writes to memory
	_ = c.fw.WriteWindowUpdate(0, connWindow-initialWindow)
	c.in.settingsTimer = time.AfterFunc(c.cfg.SettingsTimeout, func() {
		c.fail(&fault.Error{In: "wait", Kind: kindProtocol, Expired: true,
			Err: errors.New("the upstream sent no HTTP/2 SETTINGS in time")}, http2.ErrCodeSettingsTimeout, true)
	})
}

// WaitReady waits for the peer's SETTINGS: from then on Available is the peer's
// own word. It returns Err if the connection fails first.
func (c *Conn) WaitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// PeerStreams is how many streams the peer allows at once; false until it said so.
func (c *Conn) PeerStreams() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(min(c.peer.maxStreams, maxStreamID)), c.peer.seen
}

// RoundTrip sends req and returns its answer once its head is there. It never
// waits for a place on the connection: without one it fails at once, unsent.
func (c *Conn) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	s, err := c.newStream(req)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		closeBody(req)
		return nil, err
	}
	c.mu.Lock()
	err = c.openLocked(s)
	c.mu.Unlock()
	if err != nil {
		closeBody(req)
		return nil, err
	}
	s.watch(ctx)
	if s.upload != nil {
		go s.sendBody()
		// What the body has at once goes into the same write as the head: its
		// reader gets the processor first, and the head waits for nothing else.
		runtime.Gosched()
	}
	c.out.wake.Signal()
	return s.await()
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// openLocked gives s its id and queues its head, without waking the writer.
func (c *Conn) openLocked(s *stream) error {
	switch {
	case c.closing != nil:
		return fault.Of(c.closing, false)
	case s.tunnel == extendedConnect && !c.peer.connect:
		return errors.New("h2: the upstream does not offer extended CONNECT (RFC 8441)")
	case c.availableLocked() == 0:
		return fault.Unsent(kindClosed, "the connection has no room for another stream")
	}
	if limit := c.peer.maxHeaderList; limit > 0 && s.headerList > limit {
		return fault.Unsent(kindTooLarge, "the request's head of %d bytes is more than the %d the upstream takes", s.headerList, limit)
	}
	s.id = c.nextID
	c.nextID += 2
	if c.nextID > maxStreamID-2 {
		c.closing = &fault.Error{In: "send", Kind: kindClosed, Err: errors.New("the connection has used up its stream ids")}
	}
	s.sendWindow = c.peer.initialWindow
	c.streams[s.id] = s
	c.inFlight++
	if s.class == semantics.Interactive {
		c.urgent.Add(1)
	} else {
		c.bulk.Add(1)
	}
	c.writeHeadLocked(s)
	s.openWindowLocked()
	return nil
}

// Available is how many requests the connection would take now.
func (c *Conn) Available() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.availableLocked()
}

func (c *Conn) availableLocked() int {
	if c.closing != nil || len(c.out.buf) > maxPending {
		return 0
	}
	limit := min(int64(c.peer.maxStreams), maxStreamID)
	if c.cfg.MaxStreams > 0 {
		limit = min(limit, int64(c.cfg.MaxStreams))
	}
	ids := (int64(maxStreamID) - int64(c.nextID)) / 2 // RFC 9113 §5.1.1: ids are never used again
	return int(max(0, min(limit-int64(len(c.streams)), ids)))
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

// ExtendedConnect says whether the peer offers RFC 8441.
func (c *Conn) ExtendedConnect() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer.connect
}

// LastReceived is when the peer last sent anything.
func (c *Conn) LastReceived() time.Time { return time.Unix(0, c.lastRead.Load()) }

// Shutdown takes no more requests, and closes the connection when those in
// flight have ended. It does not wait.
func (c *Conn) Shutdown() {
	c.mu.Lock()
	c.closeLocked(&fault.Error{In: "send", Kind: kindClosed, Err: errors.New("the connection is being shut down")})
	c.mu.Unlock()
	c.changed()
}

// Close ends the connection at once; requests in flight fail. It returns when
// the connection's goroutines have ended, so it must not be called by OnChange.
func (c *Conn) Close() error {
	c.fail(&fault.Error{In: "wait", Kind: kindClosed, Err: errors.New("the connection was closed on this side")}, 0, false)
	c.loops.Wait()
	return nil
}

// hangUp closes without a word. TLS would send one, and wait for seconds for a
// peer that reads nothing.
func (c *Conn) hangUp() {
	if t, ok := c.nc.(interface{ NetConn() net.Conn }); ok {
		_ = t.NetConn().Close()
	}
	_ = c.nc.Close()
}

// Abandon ends the connection at once because of why: what its owner knows of the
// path and the connection does not, such as a PING that nobody answers. Requests
// in flight fail with it. It does not wait.
func (c *Conn) Abandon(why *fault.Error) { c.fail(why, 0, false) }

// closeLocked takes no more requests because of why, and ends the connection if
// nothing is in flight.
func (c *Conn) closeLocked(why *fault.Error) {
	if c.closing == nil {
		c.closing = why
	}
	c.restLocked()
}

// restLocked ends a closing connection that has nothing left to do.
func (c *Conn) restLocked() {
	if c.closing != nil && !c.dead && c.inFlight == 0 && len(c.streams) == 0 {
		c.dieLocked(c.closing, http2.ErrCodeNo, true)
	}
}

// fail ends the connection at once. tell says whether the peer hears of it.
func (c *Conn) fail(why *fault.Error, code http2.ErrCode, tell bool) {
	c.mu.Lock()
	switch {
	case tell:
	case c.lastID < maxStreamID:
		why = c.closing // GOAWAY says more than the end that follows it
	case c.out.broken != nil:
		why = c.out.broken
	}
	victims := c.dieLocked(why, code, tell)
	c.mu.Unlock()
	for _, s := range victims {
		if s.answering() {
			s.settle(fault.Cut(why), false)
		} else {
			s.settle(fault.Of(why, s.sent.Load()), false)
		}
	}
	c.changed()
}

// dieLocked ends the connection and returns the streams that it took with it,
// which the caller settles.
func (c *Conn) dieLocked(why *fault.Error, code http2.ErrCode, tell bool) []*stream {
	if c.dead {
		return nil
	}
	c.dead = true
	if c.closing == nil {
		c.closing = why
	}
	c.in.settingsTimer.Stop()
	if !c.peer.seen {
		close(c.ready) // nobody waits for what cannot come
	}
	victims := make([]*stream, 0, len(c.streams))
	for _, s := range c.streams {
		victims = append(victims, s)
		c.dropLocked(s)
	}
	if len(victims) > 0 || !tell {
		// Heads that the writer has not taken are reported as unsent: they must
		// not go out any more.
		c.out.clear()
	}
	limit := time.Now()
	if tell {
		_ = c.fw.WriteGoAway(0, code, nil) // no stream of the peer's was ever taken
		limit = limit.Add(goodbye)
	}
	_ = c.nc.SetWriteDeadline(limit) // the writer ends, and closes
	if c.out.broken != nil {
		_ = c.nc.SetReadDeadline(time.Now()) // it has ended: the reader closes
	}
	c.pings.endLocked()
	c.out.wake.Signal()
	return victims
}

// dropLocked takes s off the wire: its id is no more.
func (c *Conn) dropLocked(s *stream) {
	if s.gone {
		return
	}
	s.gone = true
	delete(c.streams, s.id)
	if s.class == semantics.Interactive {
		c.urgent.Add(-1)
	} else {
		c.bulk.Add(-1)
	}
	s.offered = false
	s.taken.Broadcast()
}

func (c *Conn) changed() {
	if c.cfg.OnChange != nil {
		c.cfg.OnChange()
	}
}

// A source reads for the reader and notes when bytes arrived.
type source struct{ c *Conn }

func (r source) Read(p []byte) (int, error) {
	n, err := r.c.nc.Read(p)
	if n > 0 {
		r.c.lastRead.Store(time.Now().UnixNano())
	}
	return n, err
}

// inbound is what the reader alone uses.
type inbound struct {
	br            *bufio.Reader
	fr            *http2.Framer
	fields        fieldReader
	window        int64 // what the peer may still send on the connection
	owed          int64 // what it gets back with the next WINDOW_UPDATE
	abuse         bucket
	meter         meter
	settingsTimer *time.Timer
	settingsSent  time.Time
}

func (in *inbound) init(c *Conn) {
	in.br = bufio.NewReaderSize(source{c}, readBuffer)
	in.fr = http2.NewFramer(nil, in.br)
	in.fr.SetReuseFrames()
	in.fr.SetMaxReadFrameSize(maxReadFrame)
	in.fields.init()
	in.window = connWindow
	in.abuse.level = abuseBurst
	in.settingsSent = time.Now()
}
