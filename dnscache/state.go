// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// A State is a picture of the Resolver, for an admin page.
type State struct {
	Mode     Mode
	Kept     int // names that are refreshed always
	InFlight int // lookups
	Names    []NameState
	Servers  []ServerState
}

// A NameState is what is known of one name.
type NameState struct {
	Name     string
	Addrs    []netip.Addr
	Services []Service
	Source   string
	Age      time.Duration
	TTL      time.Duration // what is left; 0 if there is nothing fresh
	Stale    bool
	Kept     bool
	Suspect  bool   // it may be a network's login page
	Error    string // why there is no address, or no new answer
}

// A ServerState says how a resolver does.
type ServerState struct {
	Name         string
	Encrypted    bool
	System       bool
	Health       Health
	P50, P95     time.Duration // of the last answers; 0 if there is none
	Asked        uint64
	Answered     uint64
	Failed       uint64
	LastError    string        // "" once it has answered again
	LastErrorAge time.Duration // with LastError
	NextProbe    time.Duration // from now, if it is dead
}

// State returns a picture of the cache and the resolvers.
func (r *Resolver) State() State {
	servers := r.servers()
	now := r.now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	st := State{Mode: r.cfg.Mode, Kept: r.kept, InFlight: r.flights, Names: make([]NameState, 0, len(r.entries))}
	for _, e := range r.entries {
		st.Names = append(st.Names, e.state(now))
	}
	slices.SortFunc(st.Names, func(a, b NameState) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range servers {
		st.Servers = append(st.Servers, s.state(now))
	}
	return st
}

func (e *entry) state(now time.Duration) NameState {
	n := NameState{Name: e.key, Kept: e.kept, Suspect: e.doubt != nil && now < e.doubt.until}
	if e.failed != nil {
		n.Error = e.failed.Err
	}
	v := e.view.Load()
	switch {
	case v == nil:
	case v.err != nil:
		n.Error = v.err.Err
	case now < v.until:
		a := v.answer(now)
		n.Addrs, n.Services, n.Source, n.Age, n.TTL, n.Stale = a.Addrs, a.Services, a.Source, a.Age, a.TTL, a.Stale
	}
	return n
}
