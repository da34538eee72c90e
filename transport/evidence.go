// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"sync"
	"time"

	"github.com/warmwire/warmwire/heartbeat"
	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/transport/dial"
	"github.com/warmwire/warmwire/transport/flight"
	"github.com/warmwire/warmwire/transport/h3"
)

// probes is when a flow was asked for a sign of life, and gave one.
type probes struct {
	mu              sync.Mutex // guards the fields below
	asked, answered time.Time
}

// ask notes a probe that leaves, unless an earlier one has no answer yet.
func (p *probes) ask(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.answered.Before(p.asked) {
		p.asked = now
	}
}

// answer notes what came at now, if a probe is out since before.
func (p *probes) answer(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered.Before(p.asked) && now.After(p.asked) {
		p.answered = now
	}
}

// Evidence is what the connection shows of its path; false = nothing. It asks the
// kernel, which takes a microsecond: it is not for every read.
func (s *socket) Evidence() (attribution.Evidence, bool) {
	f := s.flow.Load()
	if f == nil {
		return attribution.Evidence{}, false
	}
	return f.evidence()
}

// A quicPath is what a connection over QUIC shows of itself; there is no socket that is
// its own, and nothing else of it may be used.
type quicPath struct {
	net.Conn
	f *flow
}

// Evidence is what QUIC knows of the path: packets of ours that were lost. Of those that
// never came it knows nothing.
func (p *quicPath) Evidence() (attribution.Evidence, bool) { return p.f.evidence() }

// ConnectionID is as of a socket.
func (p *quicPath) ConnectionID() uint64 { return p.f.log.ID() }

// Verdict is as of a socket.
func (p *quicPath) Verdict() string { return heartbeat.Verdict(p.f.verdict.Load()).String() }

func (f *flow) evidence() (attribution.Evidence, bool) {
	if c, is := f.clientConn.(*h3.Conn); is {
		s := c.Stats()
		e := attribution.Evidence{Blind: true, Disorder: s.PacketsLost, RTO: c.RTO(), RTT: s.RTT}
		f.probes.mu.Lock()
		defer f.probes.mu.Unlock()
		e.Asked, e.Answered = f.probes.asked, f.probes.answered
		return e, true
	}
	info, known := dial.ReadInfo(f.raw)
	e := attribution.Evidence{Disorder: uint64(info.Disordered) + uint64(info.Retransmits), Segments: uint64(info.Segments), RTO: info.RTO, RTT: info.RTT}
	_, e.Ordered = f.clientConn.(pinger) // a PING's answer is behind what its peer had written, a kernel's is not
	f.probes.mu.Lock()
	e.Asked, e.Answered = f.probes.asked, f.probes.answered
	f.probes.mu.Unlock()
	return e, known || !e.Asked.IsZero()
}

// NetConn is the connection under TLS, for those who look at its path alone; over QUIC it
// shows that and is none.
func (f *flow) NetConn() net.Conn {
	if f.raw == nil {
		return &quicPath{f: f}
	}
	return f.raw
}

// ConnectionID is the connection's number in [Config].Flights; 0 = it has none.
func (s *socket) ConnectionID() uint64 {
	if f := s.flow.Load(); f != nil {
		return f.log.ID()
	}
	return 0
}

// Verdict is what the watch last said of the connection: alive, thinking, …; "" = nothing.
func (s *socket) Verdict() string {
	if f := s.flow.Load(); f != nil {
		return heartbeat.Verdict(f.verdict.Load()).String()
	}
	return ""
}

// onFrame is what tells the log of frames; nil without one.
func (f *flow) onFrame() func(out bool, at int64, kind uint8, stream, length uint32) {
	if f.log == nil {
		return nil
	}
	return func(out bool, at int64, kind uint8, stream, length uint32) {
		what := flight.FrameIn
		if out {
			what, at = flight.FrameOut, time.Now().UnixNano()
		}
		f.log.Add(at, what, kind, stream, length, 0)
	}
}

// asks notes a probe that leaves, and how the path is then.
func (f *flow) asks() {
	now := time.Now()
	f.probes.ask(now)
	f.log.Add(now.UnixNano(), flight.Probe, 0, 0, 0, 0)
	f.sample(now)
}

func (f *flow) sample(now time.Time) {
	if f.log == nil || f.raw == nil {
		return
	}
	if info, ok := dial.ReadInfo(f.raw); ok {
		f.log.Add(now.UnixNano(), flight.Path, 0, 0, info.Disordered+info.Retransmits, uint32(info.RTT.Microseconds()))
	}
}

// judged notes a verdict, and keeps the log if it is a stall.
func (f *flow) judged(v heartbeat.Verdict) {
	now := time.Now()
	f.sample(now)
	f.log.Add(now.UnixNano(), flight.Verdict, uint8(v), 0, 0, 0)
	switch v {
	case heartbeat.Alive, heartbeat.Thinking:
	default:
		f.log.Keep(v.String())
	}
}

// broke keeps the log of a connection that ended under requests.
func (f *flow) broke() {
	if f.tried.Load() {
		f.log.Keep("cut")
	}
}
