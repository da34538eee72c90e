// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/heartbeat"
	"github.com/warmwire/warmwire/transport/dial"
	"github.com/warmwire/warmwire/transport/flight"
)

// freshLimit bounds the connection that is made to see whether the path lives.
const freshLimit = 10 * time.Second

// A flow is one connection as its watch sees it: HTTP/2 probes with PING, HTTP/1.1
// lets the kernel probe.
type flow struct {
	clientConn
	raw   *socket // nil over QUIC
	quic  bool
	wake  chan struct{} // capacity 1; something changed
	asked atomic.Int32  // requests whose answer has not begun

	watched  atomic.Int32 // sockets on it that are watched by their owners
	verdict  atomic.Int32 // of its watch, a heartbeat.Verdict
	released atomic.Bool  // a socket that is watched by its owner has it for itself

	tried, worked atomic.Bool // a request was sent in vain; one was answered
	answered      func()      // at the first answer; nil = nobody is told

	probes probes
	log    *flight.Log // nil = nothing is recorded
}

// RoundTrip wakes the watch: a silence is counted from here, and what the
// connection told it before the end of asked must be looked at again.
func (f *flow) RoundTrip(req *http.Request) (*http.Response, error) {
	f.asked.Add(1)
	f.changed()
	resp, err := f.clientConn.RoundTrip(req)
	f.asked.Add(-1)
	f.changed()
	if err != nil && req.Context().Err() == nil {
		var e *Error
		if errors.As(err, &e) && e.Sent && e.Kind != "upstream_dead_flow" {
			f.tried.Store(true)
		}
	}
	if err == nil {
		f.guard(req, resp)
	}
	if err == nil && f.answered != nil && !f.worked.Swap(true) {
		f.answered()
	}
	return resp, err
}

// Ended says whether the peer has ended the connection though nobody has read that yet.
func (f *flow) Ended() bool { return f.raw != nil && dial.Ended(f.raw) }

// busy says whether anything is open on the connection that nobody else watches.
func (f *flow) busy() bool { return f.asked.Load() > 0 || f.InFlight() > int(f.watched.Load()) }

// A pinger has a probe of its own.
type pinger interface {
	Ping(ctx context.Context) (time.Duration, error)
	LastReceived() time.Time
}

// changed is called by the connection; it does not block.
func (f *flow) changed() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// heard is when the peer last sent anything, and the flow's retransmission
// time-out.
func (f *flow) heard(now time.Time) (heard time.Time, rto time.Duration) {
	if c, is := f.clientConn.(interface {
		LastReceived() time.Time
		RTO() time.Duration
	}); is && f.quic {
		return c.LastReceived(), c.RTO()
	}
	info, ok := dial.ReadInfo(f.raw)
	if p, is := f.clientConn.(pinger); is {
		return p.LastReceived(), info.RTO
	}
	if !ok { // no probe, no doubt
		return now, 0
	}
	heard = now.Add(-info.LastHeard)
	f.probes.answer(heard)
	return heard, info.RTO
}

// watch follows a connection for as long as it lives: while a request is open on
// it and it is silent, it is probed, and it is left when its flow is dead.
func (o *origin) watch(ctx context.Context, f *flow) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var w *heartbeat.Watch
	fresh := make(chan bool, 1)
	probing, opening := false, false
	last := heartbeat.Alive
	timer := time.NewTimer(0)
	defer timer.Stop()
	for f.Err() == nil || f.busy() {
		if f.released.Load() && !probing {
			return
		}
		due := time.Duration(-1)
		o.learn(f)
		if !f.busy() && !probing { // a doubt is followed to its end
			w = nil
		} else {
			if w == nil {
				w = heartbeat.New(*o.t.heartbeat.Load())
			}
			now := time.Now()
			heard, rto := f.heard(now)
			action, at := w.Next(now, heard, rto)
			switch action {
			case heartbeat.Wait:
				due = time.Until(at)
			case heartbeat.Probe:
				probing = true
				f.probe(ctx)
				due = 0
			case heartbeat.Fresh:
				o.pool.Suspect(f)
				if !opening { // else its end is near, and says the same
					opening = true
					o.watching.Go(func() {
						ok := o.opens(ctx)
						select {
						case fresh <- ok:
						case <-ctx.Done():
						}
					})
				}
				due = 0
			}
			last = o.tell(f, last, w.Verdict())
			if action == heartbeat.Leave {
				if f.quic { // TCP flows: that is the verdict
					o.t.cfg.HTTP3.Offers.Stalled(time.Now(), o.key)
				}
				f.abandon()
				return
			}
			if probing && !w.Doubting() {
				probing = false
				if !f.quic {
					dial.Unprobe(f.raw)
				}
				o.pool.Clear(f)
			}
		}
		if due >= 0 {
			timer.Reset(due)
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-f.wake:
		case ok := <-fresh:
			opening = false
			if w != nil {
				w.FreshResult(time.Now(), ok)
			}
		case <-ctx.Done():
			return
		}
	}
}

// tell tells of a new verdict.
func (o *origin) tell(f *flow, last, now heartbeat.Verdict) heartbeat.Verdict {
	if now != last {
		f.verdict.Store(int32(now))
		f.judged(now)
	}
	if now != last && o.t.cfg.OnVerdict != nil {
		o.t.cfg.OnVerdict(now.String())
	}
	return now
}

// learn keeps what the next connection should know before its peer has spoken.
func (o *origin) learn(f *flow) {
	if c, ok := f.clientConn.(interface{ PeerStreams() (int, bool) }); ok {
		if n, said := c.PeerStreams(); said && n > 0 {
			o.streams.Store(int64(n))
		}
	}
}

// probe asks the peer for a sign of life; the answer is seen in heard.
func (f *flow) probe(ctx context.Context) {
	if p, ok := f.clientConn.(pinger); ok {
		f.asks()
		go func() { // PING goes ahead of what waits to be sent
			ctx, cancel := context.WithTimeout(ctx, freshLimit)
			defer cancel()
			if _, err := p.Ping(ctx); err == nil {
				f.probes.answer(time.Now())
				f.log.Add(time.Now().UnixNano(), flight.Answer, 0, 0, 0, 0)
				f.changed()
			}
		}()
		return
	}
	f.asks()
	dial.Probe(f.raw)
}

// abandon makes what waits on the connection fail as that of a dead flow.
func (f *flow) abandon() {
	dead := &Error{In: "wait", Kind: "upstream_dead_flow", Expired: true, Sent: true,
		Err: errors.New("the upstream answers a new connection, and the one of this request no more")}
	f.Abandon(dead)
}

// A socket is the connection under TLS. It tells the gauge when it is closed.
type socket struct {
	net.Conn
	flow    atomic.Pointer[flow] // nil until there is one, and of none
	closed  atomic.Bool
	onClose func()
}

// Close closes the connection.
func (s *socket) Close() error {
	if !s.closed.Swap(true) {
		s.onClose()
	}
	return s.Conn.Close()
}

// CloseWrite ends the sending side alone.
func (s *socket) CloseWrite() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// NetConn is the connection itself.
func (s *socket) NetConn() net.Conn { return s.Conn }
