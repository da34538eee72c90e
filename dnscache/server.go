// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

const (
	samples = 32
	// firstDelay is how long a resolver of which little is known is waited for
	// before the next one is asked too (RFC 8305 section 5 takes the same for
	// connections).
	firstDelay         = 250 * time.Millisecond
	minDelay, maxDelay = 20 * time.Millisecond, time.Second
	// measured is how many samples a learned delay needs.
	measured = 4
	// deadAfter failures in a row a resolver is left alone. A false alarm costs
	// little: the probe comes within a second.
	deadAfter = 2
	// lateAfter times in a row without any answer within its delay a resolver is
	// asked last, long before its questions have timed out.
	lateAfter            = 3
	minProbe, maxProbe   = time.Second, time.Minute
	remeasureEvery       = 10 * time.Minute
	httpsPatience        = 3 // failures in a row after which HTTPS answers are waited for no more
	maxHTTPSPatienceLeft = 250
)

// A Health says what a resolver is good for now.
type Health string

// The states of a resolver.
const (
	HealthUntried Health = "untried"
	HealthAlive   Health = "alive"
	HealthLate    Health = "late" // lets others answer before it; asked last
	HealthDead    Health = "dead" // left alone and probed
)

// A server is one resolver and what has been learned of it.
type server struct {
	name      string
	x         exchange.Exchanger
	addrs     []netip.AddrPort // where it is asked, as far as that is written down
	encrypted bool
	public    bool // whoever runs it is not the site
	system    bool

	mu         sync.Mutex // guards the fields below; taken after Resolver.mu
	took       [samples]time.Duration
	count      int // of samples ever taken
	p50, p95   time.Duration
	heard      time.Duration // the last try that ended; 0 means never
	fails      int           // in a row
	late       int           // in a row
	httpsFails int           // in a row
	dead       bool
	probing    bool
	probeAt    time.Duration
	probeWait  time.Duration
	question   exchange.Question // that failed last
	asked      uint64
	answered   uint64
	failed     uint64
	err        error // the last failure
	errAt      time.Duration
}

func newServer(spec exchange.Spec, x exchange.Exchanger) *server {
	s := &server{name: spec.Name, x: x, encrypted: spec.Encrypted()}
	for _, addr := range spec.Addrs {
		s.addrs = append(s.addrs, netip.AddrPortFrom(addr, spec.Port))
	}
	// A resolver on an address of the own network is the site's.
	s.public = len(spec.Addrs) == 0 || slices.ContainsFunc(spec.Addrs, func(a netip.Addr) bool { return !isPrivate(a) })
	return s
}

// is reports whether the server is one of the given addresses.
func (s *server) is(own []netip.AddrPort) bool {
	return slices.ContainsFunc(s.addrs, func(a netip.AddrPort) bool { return slices.Contains(own, a) })
}

// delay is how long to wait for the server before the next one is asked too.
func (s *server) delay() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count < measured {
		return firstDelay
	}
	return min(max(s.p95, minDelay), maxDelay)
}

// A standing is what the order of servers is made of.
type standing struct {
	health   Health
	p50      time.Duration
	heardAgo time.Duration // of a measurement; never if there is none
}

func (s *server) standing(now time.Duration) standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := standing{health: HealthAlive, p50: s.p50, heardAgo: never}
	if s.heard > 0 {
		st.heardAgo = now - s.heard
	}
	switch {
	case s.dead:
		st.health = HealthDead
	case s.late >= lateAfter:
		st.health = HealthLate
	case s.count == 0:
		st.health = HealthUntried
	}
	return st
}

func (s *server) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
}

// overdue notes that another server had to be asked because of this one.
func (s *server) overdue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late++
}

// succeeded notes an answer. It reports whether the server had been dead.
func (s *server) succeeded(now, took time.Duration) (revived bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revived = s.dead
	s.answered++
	s.heard, s.fails, s.dead, s.probeWait, s.err = now, 0, false, 0, nil
	s.took[s.count%samples] = took
	s.count++
	sorted := s.took
	known := sorted[:min(s.count, samples)]
	slices.Sort(known)
	s.p50, s.p95 = known[len(known)/2], known[(len(known)*95+99)/100-1]
	if took <= max(s.p95, minDelay) {
		s.late = 0
	}
	return revived
}

// failedWith notes that there was no usable answer to q. It reports whether that
// was the one failure too many.
func (s *server) failedWith(now time.Duration, q exchange.Question, err error) (died bool) {
	e, ok := errors.AsType[*exchange.Error](err)
	if ok && (e.Kind == exchange.KindClosed || e.Kind == exchange.KindCanceled || e.Kind == exchange.KindBadQuestion) {
		return false // none of its doing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
	s.fails++
	s.heard, s.err, s.errAt, s.question = now, err, now, q
	died = !s.dead && s.fails >= deadAfter
	if died {
		s.dead = true
		s.probeWait = minProbe
		s.probeAt = now + minProbe
	}
	return died
}

// noteHTTPS learns whether the server answers HTTPS questions at all.
func (s *server) noteHTTPS(answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answered {
		s.httpsFails = 0
	} else if s.httpsFails < maxHTTPSPatienceLeft {
		s.httpsFails++
	}
}

func (s *server) answersHTTPS() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.httpsFails < httpsPatience
}

// probeDue reports whether a probe should start now, and else when; never if the
// server is not dead.
func (s *server) probeDue(now time.Duration) (q exchange.Question, due bool, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dead || s.probing {
		return q, false, never
	}
	if now < s.probeAt {
		return q, false, s.probeAt
	}
	s.probing = true
	return s.question, true, never
}

// probed ends a probe.
func (s *server) probed(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = false
	if s.dead {
		s.probeWait = min(2*s.probeWait, maxProbe)
		s.probeAt = now + s.probeWait
	}
}

// forget makes the server untried, as after a change of network.
func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took, s.count, s.p50, s.p95, s.heard = [samples]time.Duration{}, 0, 0, 0, 0
	s.fails, s.late, s.httpsFails, s.dead, s.probeWait, s.err = 0, 0, 0, false, 0, nil
}

// state is for an admin page.
func (s *server) state(now time.Duration) ServerState {
	health := s.standing(now).health
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ServerState{
		Name: s.name, Encrypted: s.encrypted, System: s.system, Health: health,
		P50: s.p50, P95: s.p95, Asked: s.asked, Answered: s.answered, Failed: s.failed,
	}
	if s.err != nil {
		st.LastError = fmt.Sprint(s.err)
		st.LastErrorAge = now - s.errAt
	}
	if s.dead {
		st.NextProbe = max(s.probeAt-now, 0)
	}
	return st
}
