// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// The Connection Attempt Delay of RFC 8305 §5: what it recommends, until the
	// host's own round trips are known (§8), and the bounds that it gives.
	stagger    = 250 * time.Millisecond
	staggerMin = 100 * time.Millisecond
	staggerMax = 2 * time.Second

	// How long an address that failed goes last: doubled with each failure in a
	// row. A family that is broken is thus asked again now and then.
	shunMin = 30 * time.Second
	shunMax = 10 * time.Minute

	// winnerFor is how long the family of the last connection goes first. RFC
	// 6555 §4.2 had ten minutes for it.
	winnerFor = 10 * time.Minute

	maxHosts     = 1024 // remembered; those used longest ago are forgotten
	maxAddresses = 64   // of one host that failed
)

// A Memory remembers how the addresses of hosts did, so that the next dial asks
// the best one first. The zero value is empty. It is bounded, and safe for
// concurrent use.
type Memory struct {
	mu    sync.Mutex // guards hosts and all in it
	hosts map[string]*past
}

// A past is what is known of one host.
type past struct {
	used   time.Time
	winner netip.Addr
	won    time.Time
	rtt    time.Duration // smoothed time to connect; 0 means unknown
	failed map[netip.Addr]shunned
}

// shunned addresses go last until a time.
type shunned struct {
	until time.Time
	wait  time.Duration
}

// host returns the past of a host, making it if there is none.
func (m *Memory) host(name string, now time.Time) *past {
	p := m.hosts[name]
	if p == nil {
		if len(m.hosts) >= maxHosts {
			m.forgetOldest()
		}
		if m.hosts == nil {
			m.hosts = make(map[string]*past)
		}
		p = &past{failed: make(map[netip.Addr]shunned)}
		m.hosts[name] = p
	}
	p.used = now
	return p
}

func (m *Memory) forgetOldest() {
	var oldest string
	for name, p := range m.hosts {
		if oldest == "" || p.used.Before(m.hosts[oldest].used) {
			oldest = name
		}
	}
	delete(m.hosts, oldest)
}

// order returns the addresses in the order in which to try them, the families
// taking turns (RFC 8305 §4), and how long to wait before each next one. The
// family that won last goes first, the winner first of all; what failed lately
// goes last, in the order in which it will be forgiven.
func (m *Memory) order(name string, addrs []netip.Addr) ([]netip.Addr, time.Duration) {
	now := time.Now()
	good := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if a = a.Unmap(); !slices.Contains(good, a) {
			good = append(good, a)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.hosts[name]
	if p == nil {
		return interleave(good), stagger
	}
	p.used = now
	var bad []netip.Addr
	good = slices.DeleteFunc(good, func(a netip.Addr) bool {
		shun := now.Before(p.failed[a].until)
		if shun {
			bad = append(bad, a)
		}
		return shun
	})
	slices.SortStableFunc(bad, func(a, b netip.Addr) int { return p.failed[a].until.Compare(p.failed[b].until) })
	if p.winner.IsValid() && now.Sub(p.won) < winnerFor {
		slices.SortStableFunc(good, func(a, b netip.Addr) int { return p.rank(a) - p.rank(b) })
	}
	return append(interleave(good), bad...), p.stagger()
}

// rank sorts by the last winner and its family.
func (p *past) rank(a netip.Addr) int {
	switch {
	case a == p.winner:
		return 0
	case a.Is4() == p.winner.Is4():
		return 1
	}
	return 2
}

// stagger is twice the host's usual time to connect: an answer that is not there
// by then is late.
func (p *past) stagger() time.Duration {
	if p.rtt == 0 {
		return stagger
	}
	return min(max(2*p.rtt, staggerMin), staggerMax)
}

// connected remembers a winner. took is its time to connect.
func (m *Memory) connected(name string, a netip.Addr, took time.Duration) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.host(name, now)
	p.winner, p.won = a, now
	delete(p.failed, a)
	if took = max(took, time.Microsecond); p.rtt == 0 {
		p.rtt = took
	} else {
		p.rtt += (took - p.rtt) / 8 // as RFC 6298 smooths
	}
}

// Failed says that an address could not be reached, or that a connection to it
// stalled. It goes last for a while, longer each time.
func (m *Memory) Failed(name string, a netip.Addr) {
	a = a.Unmap()
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.host(name, now)
	old, known := p.failed[a]
	if !known && len(p.failed) >= maxAddresses {
		for other, s := range p.failed { // those that are forgiven make room
			if !now.Before(s.until) {
				delete(p.failed, other)
			}
		}
		if len(p.failed) >= maxAddresses {
			return
		}
	}
	if now.Before(old.until) {
		return // several connections that fail together are one failure
	}
	wait := min(max(2*old.wait, shunMin), shunMax)
	p.failed[a] = shunned{until: now.Add(wait), wait: wait}
	if p.winner == a {
		p.winner = netip.Addr{}
	}
}

// Forget drops everything: the network is another one.
func (m *Memory) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.hosts)
}
