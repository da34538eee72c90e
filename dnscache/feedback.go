// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	// A suspect answer is looked at again after this long, and doubling.
	minDoubt, maxDoubt = 5 * time.Second, time.Minute
	// sameAddress names of different owners at one address within sameWithin
	// look like a login page. Guess.
	sameAddress = 3
	sameWithin  = time.Minute
	maxSlow     = 16
)

var (
	errNoAnswer = errors.New("no resolver has a usable answer")
	errDenied   = errors.New("a resolver says that the name is gone, which is not believed yet")
	errLogin    = errors.New("the address had a certificate for another name, and no resolver knows another address: a network login page?")
)

// recent are the last answers that came without encryption.
type recent struct {
	list [16]recentAnswer
	next int
}

type recentAnswer struct {
	zone string
	addr netip.Addr
	at   time.Duration
}

// same notes an answer and reports whether too many others were the same.
func (l *recent) same(zone string, addr netip.Addr, now time.Duration) bool {
	zones := map[string]bool{zone: true}
	for _, x := range l.list {
		if x.addr == addr && now-x.at < sameWithin {
			zones[x.zone] = true
		}
	}
	l.list[l.next%len(l.list)] = recentAnswer{zone, addr, now}
	l.next++
	return len(zones) >= sameAddress
}

// isSuspectLocked reports whether an answer looks like that of a network's login
// page: an unencrypted one that gives a public name a private address, gives
// names of several owners one address, or may not be kept although the last one
// could.
func (r *Resolver) isSuspectLocked(e *entry, o *outcome, now time.Duration) bool {
	name := hostKey(e.key)
	if o.turn.server.encrypted || r.scopes.of(name, r.conf.Search) != scopePublic {
		return false
	}
	var addrs []netip.Addr
	gone := false
	for _, which := range [2]int{partA, partAAAA} {
		p := &o.parts[which]
		addrs = append(addrs, p.addrs...)
		gone = gone || p.state == partGood && p.ttl == 0 && e.parts[which].state == partGood && e.parts[which].ttl > 0
	}
	if e.confirmed(addrs) {
		return false
	}
	private := slices.ContainsFunc(addrs, isPrivate)
	same := len(addrs) == 1 && r.recent.same(zoneOf(name), addrs[0], now)
	return private || same || gone
}

// confirmed reports whether all addresses are among those kept already.
func (e *entry) confirmed(addrs []netip.Addr) bool {
	return len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		return !slices.Contains(e.parts[partA].addrs, a) && !slices.Contains(e.parts[partAAAA].addrs, a)
	})
}

// doubtLocked serves a suspect answer for a short while and keeps the last good
// one behind it.
func (r *Resolver) doubtLocked(e *entry, o outcome, now time.Duration) {
	d := &doubt{life: minDoubt, parts: e.parts}
	if old := e.doubt; old != nil {
		d.parts = old.parts
		d.life = min(2*old.life, maxDoubt)
	} else {
		r.spawnEvent(EventSuspect, hostKey(e.key), fmt.Errorf("resolver %s: the address may be a network login page's", o.turn.server.name))
	}
	mergeParts(&d.parts, &o, now, 0)
	d.until = now + d.life
	e.doubt = d
}

// spawnEvent tells of an event while Resolver.mu is held.
func (r *Resolver) spawnEvent(kind EventKind, subject string, err error) {
	if r.cfg.OnEvent != nil && !r.closed {
		r.running.Go(func() { r.event(kind, subject, err) })
	}
}

// disbelieveLocked reports whether a denial of a name that has addresses is not
// to be believed yet.
func (r *Resolver) disbelieveLocked(e *entry, o *outcome) bool {
	if o.turn.server.encrypted || !o.asked.addresses() || !e.hasGood(r.now(), r.cfg.Stale) ||
		r.scopes.of(hostKey(e.key), r.conf.Search) != scopePublic {
		return false
	}
	if !o.nxdomain() && !(o.asked[partA] && o.asked[partAAAA]) {
		return false // one family is gone, the other one is there
	}
	e.denied++
	return e.denied < deniedTimes
}

// Report says how a connection to an address of a name went. One that failed goes
// last for a while; ok means that the peer proved to be who it should be.
func (r *Resolver) Report(name string, addr netip.Addr, ok bool) {
	addr = addr.Unmap()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, key := range [2]string{hostKey(name), hostKey(name) + "."} {
		e := r.entries[key]
		if e == nil {
			continue
		}
		if ok {
			r.confirmLocked(e, addr, now)
		} else {
			r.penaliseLocked(e, addr, now)
		}
	}
}

func (r *Resolver) confirmLocked(e *entry, addr netip.Addr, now time.Duration) {
	was := len(e.slow)
	e.slow = slices.DeleteFunc(e.slow, func(p penalty) bool { return p.addr == addr })
	changed := len(e.slow) != was
	if e.shun != nil && slices.Contains(e.shun.addrs, addr) {
		e.shun, changed = nil, true
	}
	if d := e.doubt; d != nil && (slices.Contains(d.parts[partA].addrs, addr) || slices.Contains(d.parts[partAAAA].addrs, addr)) {
		e.parts, e.doubt, changed = d.parts, nil, true
		r.changed = true
	}
	if changed {
		e.render(now, r.cfg.Stale)
		r.planRefreshLocked(e)
	}
}

func (r *Resolver) penaliseLocked(e *entry, addr netip.Addr, now time.Duration) {
	v := e.view.Load()
	if v == nil || !slices.Contains(v.addrs, addr) {
		return
	}
	e.slow = slices.DeleteFunc(e.slow, func(p penalty) bool { return p.addr == addr })
	if len(e.slow) >= maxSlow {
		e.slow = e.slow[1:]
	}
	e.slow = append(e.slow, penalty{addr, now + penaltyFor})
	e.render(now, r.cfg.Stale)
	if v = e.view.Load(); v == nil || len(e.slow) < len(v.addrs) || now-e.learned() < keptFloor || now < e.retry {
		return
	}
	// All of them failed: perhaps the service has moved.
	for i := range e.parts {
		e.parts[i].ttl = min(e.parts[i].ttl, max(now-e.parts[i].fetched, 1))
	}
	e.render(now, r.cfg.Stale)
	_, _ = r.startLocked(e, &flight{explore: true}) // full or closed: the next lookup starts one
}

// Distrust says that the present addresses of a name showed a certificate for
// another name. They are not believed for a while. Distrust returns what other
// resolvers say, or else the last good answer if that has other addresses, or an
// error.
func (r *Resolver) Distrust(ctx context.Context, name string) (Answer, error) {
	key := hostKey(name)
	f, err := r.distrust(key)
	if err == nil {
		select {
		case <-f.done:
			if f.view != nil && len(f.view.addrs) > 0 {
				return f.view.answer(r.now()), nil
			}
		case <-ctx.Done():
			return Answer{}, contextError(key, ctx.Err())
		}
	}
	r.event(EventSuspect, key, errLogin)
	if v := r.staleView(key, nil); v != nil {
		return v.answer(r.now()), nil
	}
	return Answer{}, &net.DNSError{Err: errLogin.Error(), Name: key, UnwrapErr: errLogin, IsTemporary: true}
}

func (r *Resolver) distrust(key string) (*flight, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[key]
	if e == nil {
		return nil, errNoAnswer
	}
	now := r.now()
	v := e.view.Load()
	if v != nil && len(v.addrs) > 0 {
		s := &shun{until: now + distrustFor}
		if e.shun != nil {
			s.addrs = e.shun.addrs[max(0, len(e.shun.addrs)-maxSlow):]
		}
		s.addrs = append(slices.Clone(v.addrs), s.addrs...)
		e.shun = s
	}
	without := ""
	if v != nil {
		without = v.source
	}
	e.doubt, e.failed, e.retry = nil, nil, 0
	e.render(now, r.cfg.Stale)
	return r.startLocked(e, &flight{without: without})
}
