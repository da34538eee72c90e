// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// penaltyFor is how long an address that failed goes last. Guess: as long as
	// browsers remember.
	penaltyFor = 5 * time.Minute
	// distrustFor is how long addresses whose certificate was for another name
	// are not believed. A change of network ends it.
	distrustFor = 10 * time.Minute
	// deniedTimes is how often in a row a name that had addresses must be said
	// not to exist over a way that anyone can answer on: a router whose line is
	// down says so of all names.
	deniedTimes = 3
)

// An entry is what is known of one name. All but view and used is guarded by
// Resolver.mu.
type entry struct {
	key  string               // in lower case; with a last dot if it was asked for so
	view atomic.Pointer[view] // what lookups read; nil while there is nothing to tell
	used atomic.Int64         // the last lookup, to the second

	parts  [parts]part
	doubt  *doubt  // a suspect answer that stands before parts
	shun   *shun   // what is not believed
	flight *flight // nil if none is on its way
	slow   []penalty
	failed *net.DNSError // why the last flight brought nothing
	retry  time.Duration // no flight before, with failed
	fails  uint8
	denied uint8 // answers in a row that took a good name for missing
	epoch  uint32
	kept   bool
	loaded bool // from the file, and not learned anew since
	index  int  // in the schedule; -1 if not in it
	due    time.Duration
}

// A doubt is an answer that may be a network's login page. It is served, since a
// site may map names on purpose, but not kept, until Report confirms it.
type doubt struct {
	parts [parts]part
	until time.Duration
	life  time.Duration
}

// A shun holds addresses that showed a certificate for another name.
type shun struct {
	addrs []netip.Addr
	until time.Duration
}

type penalty struct {
	addr  netip.Addr
	until time.Duration
}

// A view is what lookups read of an entry. It is never changed.
type view struct {
	addrs    []netip.Addr
	services []Service
	source   string
	err      *net.DNSError // the name has no address; then addrs is empty
	fetched  time.Duration // of its oldest part
	learned  time.Duration // of the newest part of the entry
	due      time.Duration // from then on a lookup starts a refresh
	expires  time.Duration
	until    time.Duration // from then on the view must be built anew
	once     bool          // TTL 0: serves those who waited for it, and in need
	kicked   atomic.Bool   // a lookup has started the refresh
}

// showing returns the parts that lookups see.
func (e *entry) showing(now time.Duration) *[parts]part {
	if e.doubt != nil && now < e.doubt.until {
		return &e.doubt.parts
	}
	return &e.parts
}

// render makes the view anew. A nil view means that nothing is known.
func (e *entry) render(now, stale time.Duration) {
	shown := e.showing(now)
	v := &view{fetched: never, learned: e.learned(), due: never, expires: never, until: never}
	for _, which := range [2]int{partAAAA, partA} { // RFC 8305 section 4
		if p := &shown[which]; p.good(now, stale) && !e.shuns(p.addrs, now) {
			v.addrs = append(v.addrs, p.addrs...)
			v.take(p, stale)
		}
	}
	if len(v.addrs) == 0 {
		v = e.negative(shown, now)
		e.view.Store(v)
		return
	}
	for which := range shown {
		p := &shown[which]
		if p.state == partNegative || p.state == partFailed {
			v.due, v.expires = min(v.due, p.due()), min(v.expires, p.expires())
		}
	}
	if p := &shown[partHTTPS]; p.good(now, stale) {
		v.services = p.services
		v.take(p, stale)
	}
	v.addrs = slices.Clip(v.addrs)
	e.punish(v, now)
	if e.doubt != nil && shown == &e.doubt.parts {
		v.expires, v.until = min(v.expires, e.doubt.until), min(v.until, e.doubt.until)
		v.due = min(v.due, e.doubt.until-e.doubt.life*(100-refreshAt)/100)
	}
	e.view.Store(v)
}

// take makes the view depend on a good part.
func (v *view) take(p *part, stale time.Duration) {
	v.source = p.source
	v.fetched = min(v.fetched, p.fetched)
	v.due = min(v.due, p.due())
	v.expires = min(v.expires, p.expires())
	v.until = min(v.until, p.fetched+p.ttl+stale)
	v.once = v.once || p.ttl == 0
}

// negative returns the view of a name without addresses, or nil if that is not
// known.
func (e *entry) negative(shown *[parts]part, now time.Duration) *view {
	a, aaaa := &shown[partA], &shown[partAAAA]
	var said *part
	switch {
	case a.nxdomain() && now < a.expires():
		said = a
	case aaaa.nxdomain() && now < aaaa.expires():
		said = aaaa
	case a.state == partNegative && aaaa.state == partNegative && now < min(a.expires(), aaaa.expires()):
		said = a
	}
	if said == nil || said.ttl < 0 {
		return nil
	}
	expires := min(a.expires(), aaaa.expires())
	return &view{err: notFound(e.key, said), source: said.source, fetched: said.fetched, learned: e.learned(), due: never, expires: expires, until: never}
}

// punish puts the addresses that failed last.
func (e *entry) punish(v *view, now time.Duration) {
	if len(e.slow) == 0 {
		return
	}
	e.slow = slices.DeleteFunc(e.slow, func(p penalty) bool { return now >= p.until })
	var last []netip.Addr
	for _, p := range e.slow {
		if i := slices.Index(v.addrs, p.addr); i >= 0 {
			v.addrs = slices.Delete(v.addrs, i, i+1) // the view's own array
			last = append(last, p.addr)
			v.until = min(v.until, p.until)
		}
	}
	v.addrs = append(v.addrs, last...)
}

// shuns reports whether none of the addresses is believed.
func (e *entry) shuns(addrs []netip.Addr, now time.Duration) bool {
	if e.shun == nil || len(addrs) == 0 {
		return false
	}
	if now >= e.shun.until {
		e.shun = nil
		return false
	}
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(e.shun.addrs, a) })
}

// wants returns the parts that a flight should ask for.
func (e *entry) wants(now time.Duration) partSet {
	if e.doubt != nil || e.shun != nil || e.loaded {
		return allParts()
	}
	var s partSet
	for i := range e.parts {
		s[i] = e.parts[i].wanted(now)
	}
	if !s.addresses() && e.view.Load() == nil {
		return allParts()
	}
	return s
}

// hasGood reports whether an address can be served.
func (e *entry) hasGood(now, stale time.Duration) bool {
	return e.parts[partA].good(now, stale) || e.parts[partAAAA].good(now, stale)
}

// clear forgets what is known of the name.
func (e *entry) clear() {
	e.parts = [parts]part{}
	e.forgive()
	e.loaded = false
	e.view.Store(nil)
}

// forgive forgets failures and doubts.
func (e *entry) forgive() {
	e.doubt, e.shun, e.slow, e.failed = nil, nil, nil, nil
	e.retry, e.fails, e.denied = 0, 0, 0
}

// expire makes what is known stale as of now, so that it is asked for again.
func (e *entry) expire(now time.Duration) {
	for i := range e.parts {
		p := &e.parts[i]
		switch p.state {
		case partGood:
			p.ttl = min(p.ttl, now-p.fetched)
			p.hold = 0
		default:
			*p = part{}
		}
	}
}
