// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/transport/dial"
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
	info, known := dial.ReadInfo(s)
	e := attribution.Evidence{Disorder: uint64(info.Disordered) + uint64(info.Retransmits), RTO: info.RTO, RTT: info.RTT}
	_, e.Ordered = f.clientConn.(pinger) // a PING's answer is behind what its peer had written, a kernel's is not
	f.probes.mu.Lock()
	e.Asked, e.Answered = f.probes.asked, f.probes.answered
	f.probes.mu.Unlock()
	return e, known || !e.Asked.IsZero()
}

// NetConn is the connection under TLS, for those who look at its path alone; nil over QUIC.
func (f *flow) NetConn() net.Conn {
	if f.raw == nil {
		return nil
	}
	return f.raw
}
