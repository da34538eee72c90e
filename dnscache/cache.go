// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"time"
)

const (
	// Without any answer a name is not asked for again for so long; the pause
	// doubles (RFC 9520 section 3.2: 1 s at least).
	failPause, maxFailPause = time.Second, 5 * time.Second
	// With an old answer in hand there is more time (RFC 8767 section 5).
	stalePause, maxStalePause = 2 * time.Second, 30 * time.Second
	// evictFrom is how many names one that makes room is chosen from.
	evictFrom = 16
)

// addLocked makes an entry, and room for it.
func (r *Resolver) addLocked(key string) *entry {
	if len(r.entries) >= r.cfg.MaxEntries+r.kept {
		r.evictLocked()
	}
	e := &entry{key: key, index: -1}
	r.entries[key] = e
	return e
}

// evictLocked drops the name of some that is worth the least: without an answer,
// or unused for the longest.
func (r *Resolver) evictLocked() {
	var worst *entry
	left := evictFrom
	for _, e := range r.entries { // in random order
		if e.kept || e.flight != nil {
			continue
		}
		if worst == nil || e.worth() < worst.worth() {
			worst = e
		}
		if left--; left == 0 {
			break
		}
	}
	if worst != nil {
		r.dropLocked(worst)
	}
}

func (e *entry) worth() time.Duration {
	if v := e.view.Load(); v == nil || v.err != nil {
		return 0
	}
	return time.Duration(e.used.Load())
}

func (r *Resolver) dropLocked(e *entry) {
	delete(r.entries, e.key)
	r.schedule.set(e, never)
}

// settle keeps an outcome and lands the flight. It returns false if the network
// has changed meanwhile.
func (r *Resolver) settle(c *race, o outcome) (fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gen != c.gen {
		return false
	}
	e := c.e
	if o.verdict() == verdictNegative && r.disbelieveLocked(e, &o) {
		c.failed = &o
		o.err = errDenied
		r.failLocked(c, o.err)
		return true
	}
	r.storeLocked(e, o)
	v := e.view.Load()
	if v == nil && o.verdict() == verdictNegative {
		v = &view{err: notFound(e.key, o.denial())} // for those who waited
	}
	r.landLocked(e, c.f, v, errNoAnswer)
	return true
}

// improve adds to what a flight has landed with, unless another one has begun.
func (r *Resolver) improve(c *race, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gen != c.gen || c.epoch != c.e.epoch || r.entries[c.e.key] != c.e {
		return
	}
	if o.verdict() == verdictNegative && r.disbelieveLocked(c.e, &o) {
		return
	}
	r.storeLocked(c.e, o)
}

// storeLocked merges an outcome into the entry.
func (r *Resolver) storeLocked(e *entry, o outcome) {
	now := r.now()
	e.failed, e.retry, e.fails, e.denied, e.loaded = nil, 0, 0, 0, false
	if o.verdict() == verdictPositive && r.isSuspectLocked(e, &o, now) {
		r.doubtLocked(e, o, now)
	} else {
		e.doubt = nil
		if mergeParts(&e.parts, &o, now, r.cfg.Stale) {
			r.changed = true
		}
	}
	r.touched = true
	e.render(now, r.cfg.Stale)
	r.planRefreshLocked(e)
}

// mergeParts takes what an outcome has learned. A part that failed never takes
// the place of a good one (RFC 8767 section 4). It reports whether records have
// changed.
func mergeParts(into *[parts]part, o *outcome, now, stale time.Duration) (changed bool) {
	missing := o.nxdomain()
	for i, asked := range o.asked {
		old, p := &into[i], o.parts[i]
		switch {
		case !asked:
		case missing && p.state != partNegative:
			// One family's word goes for the whole name.
			*old = *o.denial()
		case p.state == partUnknown: // still to come
		case p.state != partFailed:
			changed = changed || p.state == partGood && !old.sameRecords(&p)
			*old = p
		case old.good(now, stale):
			old.hold = now + min(partRetry<<min(old.fails, 8), maxPartRetry)
			old.fails = min(old.fails+1, 8)
		default:
			if old.state == partFailed {
				p.fails = min(old.fails+1, 8)
			}
			*old = p
		}
	}
	return changed
}

// failLocked notes that a flight brought nothing, and lands it.
func (r *Resolver) failLocked(c *race, err error) {
	e, now := c.e, r.now()
	e.failed = dnsError(e.key, err)
	pause, most := failPause, maxFailPause
	switch {
	case e.hasGood(now, r.cfg.Stale):
		pause, most = stalePause, maxStalePause
	case e.kept:
		pause, most = keptRetry, maxFailPause
	}
	e.retry = now + min(pause<<min(e.fails, 8), most)
	e.fails = min(e.fails+1, 8)
	r.planRefreshLocked(e)
	r.landLocked(e, c.f, nil, err)
}

// settleFailed is settle for a flight that brought nothing.
func (r *Resolver) settleFailed(c *race) (fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gen != c.gen {
		return false
	}
	err := errNoAnswer
	if c.failed != nil && c.failed.err != nil {
		err = c.failed.err
	}
	if c.failed != nil && c.e.standsWithout(c.asked, r.now()) {
		mergeParts(&c.e.parts, c.failed, r.now(), r.cfg.Stale)
		c.e.render(r.now(), r.cfg.Stale)
		r.planRefreshLocked(c.e)
		r.landLocked(c.e, c.f, c.e.view.Load(), err)
		return true
	}
	r.failLocked(c, err)
	return true
}

// standsWithout reports whether the name has a fresh address among the parts that
// were not asked for, so that it does not matter much that these failed.
func (e *entry) standsWithout(asked partSet, now time.Duration) bool {
	for _, which := range [2]int{partA, partAAAA} {
		if p := &e.parts[which]; !asked[which] && p.state == partGood && now < p.fetched+p.ttl {
			return e.doubt == nil
		}
	}
	return false
}

// Keep sets the names that are refreshed whether they are used or not, and never
// pushed out: those of the configured upstreams.
func (r *Resolver) Keep(names []string) {
	keep := make(map[string]bool, len(names))
	for _, name := range names {
		if bare := hostKey(name); isName(bare) && !isLocalhost(bare) {
			keep[bare] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.kept && !keep[e.key] {
			e.kept = false
			r.kept--
			r.planRefreshLocked(e)
		}
	}
	now := r.now()
	for key := range keep {
		e := r.entries[key]
		if e == nil {
			e = r.addLocked(key)
		}
		if e.kept {
			continue
		}
		e.kept = true
		r.kept++
		if e.view.Load() == nil || e.loaded {
			r.schedule.set(e, now)
		} else {
			r.planRefreshLocked(e)
		}
	}
	r.poke()
}

// Flush forgets a name, or all with "".
func (r *Resolver) Flush(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gen++
	r.touched, r.changed = true, true
	for _, key := range r.keysLocked(name) {
		r.forgetLocked(r.entries[key])
	}
	r.poke()
}

func (r *Resolver) keysLocked(name string) (keys []string) {
	for key := range r.entries {
		if name == "" || hostKey(key) == hostKey(name) {
			keys = append(keys, key)
		}
	}
	return keys
}

// forgetLocked drops what is known of an entry; kept ones are asked for again.
func (r *Resolver) forgetLocked(e *entry) {
	e.clear()
	switch {
	case e.kept:
		r.schedule.set(e, r.now())
	case e.flight == nil:
		r.dropLocked(e)
	}
}

// NetworkChanged says that the machine is on another network, or has slept: what
// is known of the own network's names and all failures are forgotten, and public
// names are asked for again, with the last good answer in hand.
func (r *Resolver) NetworkChanged() {
	for _, s := range r.servers() {
		s.forget()
	}
	r.mu.Lock()
	r.suspectAllLocked(func(*entry) bool { return true })
	r.mu.Unlock()
	r.event(EventNetworkChanged, "", nil)
	r.poke()
}

// systemChangedLocked forgets what the system's resolvers have said.
func (r *Resolver) systemChangedLocked() {
	r.suspectAllLocked(func(e *entry) bool {
		return e.parts[partA].system || e.parts[partAAAA].system || e.doubt != nil || e.failed != nil || e.view.Load() == nil
	})
	r.poke()
}

func (r *Resolver) suspectAllLocked(which func(*entry) bool) {
	r.gen++
	r.recent = recent{}
	now := r.now()
	for _, e := range r.entries {
		if !which(e) {
			continue
		}
		if r.scopes.of(hostKey(e.key), r.conf.Search) != scopePublic || e.hasPrivate() {
			r.forgetLocked(e) // the other network's view
			continue
		}
		e.expire(now)
		e.forgive()
		e.loaded = true // its last good answer serves at once
		e.render(now, r.cfg.Stale)
		if e.kept {
			r.schedule.set(e, now)
		} else {
			r.planRefreshLocked(e)
		}
	}
}

func (e *entry) hasPrivate() bool {
	for i := range e.parts {
		for _, addr := range e.parts[i].addrs {
			if isPrivate(addr) {
				return true
			}
		}
	}
	return false
}

// revived forgets failures and denials, which the server that is back may have
// spared us, and asks again for what is stale.
func (r *Resolver) revived() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, e := range r.entries {
		v := e.view.Load()
		if e.failed == nil && v != nil && v.err == nil && now < v.due {
			continue
		}
		e.failed, e.retry, e.fails = nil, 0, 0
		if v != nil && v.err != nil {
			e.parts = [parts]part{}
			e.view.Store(nil)
		}
		if e.kept || e.hasGood(now, r.cfg.Stale) {
			r.schedule.set(e, now)
		}
	}
	r.poke()
}
