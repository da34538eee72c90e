// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// leaveWait is how long the other side's close frame may take when the app has
// gone: its upstream is let go at once.
const leaveWait = 50 * time.Millisecond

// Config is plain data. The zero value is the default.
type Config struct {
	// Extensions are the Sec-WebSocket-Extensions fields of the 101.
	Extensions []string
	// ReadAhead bounds what is held of one side's data while the other does not
	// take them, in bytes; 0 = 1 MiB.
	ReadAhead int
	// Take asks a budget for n bytes of that, and Give returns them; neither may block.
	// Without room a side is read ahead by one block only. nil = no budget.
	Take func(n int64) bool
	Give func(n int64)
	// Stall is how long a side may take nothing before both are closed; 0 = for ever.
	Stall time.Duration
	// CloseWait is how long a side that was sent our close frame, or both sides
	// after theirs, may take to answer or to close; 0 = 1 s.
	CloseWait time.Duration
	// Closing is how long a side may take to answer the other's close frame;
	// 0 = 30 s, which no client is known to exceed.
	Closing time.Duration
	// PassPings passes pings and pongs from end to end instead of answering them:
	// for relays without policies, whose ends must notice by themselves when the
	// other is lost.
	PassPings bool
	// Show is given a look at those messages of the upstream that are whole and as its
	// application wrote them: of one frame, of at most 4 KiB, not compressed, and only
	// if no unknown extension was agreed on. It is called as they come, one at a time,
	// before they are passed on, and must neither block nor keep or change the bytes.
	// nil = nobody looks.
	Show func(message []byte)
	// Watcher is shared by relays that run in one process; nil = one of its own.
	Watcher *Watcher
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.ReadAhead = cmp.Or(c.ReadAhead, 1<<20)
	c.CloseWait = cmp.Or(c.CloseWait, time.Second)
	c.Closing = cmp.Or(c.Closing, 30*time.Second)
	if c.Watcher == nil {
		c.Watcher = new(Watcher)
	}
	if c.Take == nil || c.Give == nil {
		c.Take, c.Give = func(int64) bool { return true }, func(int64) {}
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.ReadAhead < 0 || c.Stall < 0 || c.CloseWait < 0 || c.Closing < 0 {
		return fmt.Errorf("ws: negative read-ahead %d, stall %v, close wait %v or closing %v", c.ReadAhead, c.Stall, c.CloseWait, c.Closing)
	}
	return nil
}

// A Leg is one of the two connections, after its handshake.
type Leg struct {
	// Conn must be readable, writable and closable at once. Close ends both others.
	Conn io.ReadWriteCloser
	// Early is what was read behind the handshake.
	Early []byte
	// Policy decides on pings to this side; nil = none.
	Policy Policy
}

// A Cause says why a relay ended.
type Cause int

// The causes.
const (
	Closed          Cause = iota + 1 // by close frames of the ends
	AppLeft                          // it closed its connection without a close frame
	AppDead                          // its policy gave it up
	AppBroke                         // it sent what is no WebSocket
	AppStalled                       // it took nothing for Config.Stall
	UpstreamDropped                  // it closed its connection without a close frame
	UpstreamReset                    // its connection failed
	UpstreamDead
	UpstreamBroke
	UpstreamStalled
	Stopped // the context ended
)

var causeNames = map[Cause]string{
	Closed: "closed", AppLeft: "app left", AppDead: "app dead", AppBroke: "app broke the protocol", AppStalled: "app stalled",
	UpstreamDropped: "upstream dropped", UpstreamReset: "upstream reset", UpstreamDead: "upstream dead",
	UpstreamBroke: "upstream broke the protocol", UpstreamStalled: "upstream stalled", Stopped: "stopped",
}

func (c Cause) String() string { return causeNames[c] }

// A Relay joins two WebSocket connections.
type Relay struct {
	cfg   Config
	ctx   context.Context // of Run
	ext   extensions
	app   *leg
	up    *leg
	toUp  *pump
	toApp *pump

	mu      sync.Mutex // guards the following
	idle    sync.Cond  // signalled when active becomes 0
	active  int        // goroutines of the relay
	over    bool       // Run has returned, or is about to
	shut    bool
	cause   Cause
	came    map[*leg]bool // the leg's close frame has come
	passed  int           // close frames of the ends that were passed on
	read    map[*leg]bool // nothing more will come from the leg
	limit   *time.Timer   // closes both connections
	expires time.Time     // when it does
}

// New returns a relay that does nothing until Run is called. It owns the
// connections from then on.
func New(app, up Leg, cfg Config) (*Relay, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Relay{cfg: cfg, ext: parseExtensions(cfg.Extensions), came: map[*leg]bool{}, read: map[*leg]bool{}}
	r.idle.L = &r.mu
	c := clock{time.Now()}
	r.app, r.up = newLeg(app, c, false), newLeg(up, c, true)
	r.toUp, r.toApp = newPump(r, r.app, r.up, app.Early), newPump(r, r.up, r.app, up.Early)
	if !r.ext.opaque {
		r.toApp.parser.show = cfg.Show
	}
	return r, nil
}

func newLeg(l Leg, c clock, masks bool) *leg {
	leg := &leg{conn: l.Conn, clock: c, masks: masks}
	leg.free.L = &leg.mu
	leg.pulse.policy = l.Policy
	leg.pulse.listener, _ = l.Policy.(Listener)
	return leg
}

// Run relays until both ends have closed, one is lost, or ctx ends; then both
// get 1001. Both connections are closed when it returns. Call it once.
func (r *Relay) Run(ctx context.Context) Cause {
	r.active, r.ctx = 2, ctx
	for _, l := range []*leg{r.app, r.up} {
		if h := &l.pulse; h.policy != nil {
			h.mu.Lock()
			h.timer = time.AfterFunc(0, func() { r.beat(l) })
			h.mu.Unlock()
		}
	}
	stop := context.AfterFunc(ctx, r.stop)
	go r.toApp.read(0)
	r.toUp.read(0)
	r.mu.Lock()
	for r.active > 0 {
		r.idle.Wait()
	}
	r.over = true
	cause := r.cause
	r.mu.Unlock()
	stop()
	r.release()
	return cause
}

// release stops the timers. Those that have fired do nothing any more.
func (r *Relay) release() {
	for _, t := range []*time.Timer{r.limit, r.app.pulse.timer, r.up.pulse.timer, r.toUp.stall, r.toApp.stall} {
		if t != nil {
			t.Stop()
		}
	}
}

// enter registers a goroutine of the relay, unless Run is over.
func (r *Relay) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return false
	}
	r.active++
	return true
}

func (r *Relay) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active--; r.active == 0 {
		r.idle.Signal()
	}
}

// settle sets the cause. Only the first one counts.
func (r *Relay) settle(c Cause) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause != 0 {
		return false
	}
	r.cause = c
	return true
}

// close closes both connections.
func (r *Relay) close() {
	r.mu.Lock()
	if r.shut {
		r.mu.Unlock()
		return
	}
	r.shut = true
	r.mu.Unlock()
	_ = r.app.conn.Close()
	_ = r.up.conn.Close()
	r.toUp.discard()
	r.toApp.discard()
}

// within closes both connections after d, if they are not closed by then.
func (r *Relay) within(d time.Duration) {
	at := time.Now().Add(d)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.limit == nil:
		r.limit = time.AfterFunc(d, r.expired)
	case at.Before(r.expires):
		r.limit.Reset(d)
	default:
		return
	}
	r.expires = at
}

func (r *Relay) expired() {
	if r.enter() {
		defer r.leave()
		r.close()
	}
}

// closeCame takes note of a close frame of p's source.
func (r *Relay) closeCame(p *pump) {
	r.settle(Closed)
	r.mu.Lock()
	r.came[p.from] = true
	r.mu.Unlock()
	r.within(r.cfg.Closing)
	r.check()
}

// closePassed takes note that it was passed on.
func (r *Relay) closePassed(p *pump) {
	r.mu.Lock()
	r.passed++
	both := r.passed == 2
	r.mu.Unlock()
	if both {
		r.within(r.cfg.CloseWait)
		r.check()
	}
}

// appEnded is told as soon as the app's connection has ended without a close
// frame: what it was waiting for is cancelled.
func (r *Relay) appEnded() {
	if r.settle(AppLeft) {
		r.abandon()
	}
}

// readDone takes note that p has delivered all that came from its source.
func (r *Relay) readDone(p *pump, err error) {
	cause := UpstreamReset
	switch {
	case p == r.toUp:
		cause = AppLeft
	case errors.Is(err, io.EOF):
		cause = UpstreamDropped
	}
	if r.ctx.Err() != nil { // whoever ended it may have cut the upstream too; stop tells the other side
		cause = Stopped
	}
	lost := r.settle(cause)
	r.mu.Lock()
	r.read[p.from] = true
	r.mu.Unlock()
	if lost && cause != Stopped {
		r.close()
		return
	}
	r.within(r.cfg.CloseWait)
	r.check()
}

// notSent takes note that what p carries cannot be written. Why, the other
// direction's end tells; if that does not come, the connection is cut.
func (r *Relay) notSent(p *pump, err error) {
	if err != errSealed {
		r.within(r.cfg.CloseWait)
	}
}

// check closes the connections if nothing is to be waited for any more.
func (r *Relay) check() {
	app, up := r.app.said(), r.up.said()
	r.mu.Lock()
	over := r.read[r.app] && r.read[r.up]
	if r.cause == Closed {
		// Both have said goodbye: the server closes first (RFC 6455 §7.1.1).
		over = over || r.passed == 2 && (r.read[r.app] || r.read[r.up])
		// One has left without an answer to the other's close frame.
		over = over || r.read[r.app] && !r.came[r.app] || r.read[r.up] && !r.came[r.up]
	} else {
		over = over || (r.read[r.app] || r.came[r.app] && app) && (r.read[r.up] || r.came[r.up] && up)
	}
	r.mu.Unlock()
	if over {
		r.close()
	}
}

// abandon lets the upstream go: it gets 1001 if it takes that at once.
func (r *Relay) abandon() {
	r.within(leaveWait)
	r.up.close(closeGoingAway, "")
	r.up.flush()
	r.close()
}

// stop ends both directions with 1001.
func (r *Relay) stop() {
	if !r.enter() {
		return
	}
	defer r.leave()
	r.settle(Stopped)
	r.within(r.cfg.CloseWait)
	r.bye(r.app, closeGoingAway, "")
	r.bye(r.up, closeGoingAway, "")
}

// bye sends a close frame of ours without waiting for it: either side may be stuck,
// and that must not keep the other from being told.
func (r *Relay) bye(l *leg, code uint16, reason string) {
	l.close(code, reason)
	if r.enter() {
		go func() {
			defer r.leave()
			l.flush()
			r.check()
		}()
	}
}

// dead ends the relay because l's peer does not answer.
func (r *Relay) dead(l *leg) {
	if l == r.app {
		if r.settle(AppDead) {
			r.abandon()
		}
		return
	}
	if !r.settle(UpstreamDead) {
		return
	}
	r.toApp.drained(func() { r.bid(closeRestart, "Warmwire: the upstream does not answer any more") })
	r.toUp.discard()
	_ = r.up.conn.Close()
}

// bid tells the app why its connection ends, behind all that came for it.
func (r *Relay) bid(code uint16, reason string) {
	r.within(r.cfg.CloseWait)
	r.bye(r.app, code, reason)
}

// stalled ends the relay because the target of p takes nothing.
func (r *Relay) stalled(p *pump) {
	if p.to == r.app {
		if r.settle(AppStalled) {
			r.abandon()
		} else { // what it was to be told yet it does not take either
			r.close()
		}
		return
	}
	if r.settle(UpstreamStalled) {
		_ = r.up.conn.Close()
		r.bid(closeTryAgain, fmt.Sprintf("Warmwire: the upstream took nothing for %v", r.cfg.Stall))
	}
}

// broke ends the relay because p's source does not speak WebSocket. What came
// before is passed on.
func (r *Relay) broke(p *pump, why error) {
	reason := "Warmwire: " + why.Error()
	if p.from == r.app {
		if r.settle(AppBroke) {
			r.within(r.cfg.Closing)
			r.bid(closeProtocol, reason)
			p.drained(func() { r.bye(r.up, closeGoingAway, "") })
		}
		return
	}
	if r.settle(UpstreamBroke) {
		r.within(r.cfg.Closing)
		r.bye(r.up, closeProtocol, reason)
		p.drained(func() { r.bid(closeProtocol, reason+" (from the upstream)") })
	}
}
