// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"slices"
	"time"
)

// A group is a line of the configured order.
type group struct {
	servers []*server // of equal trust: the fastest first
	system  bool      // the system's servers instead, each after the one before
	builtin bool      // for kept names only: nobody chose these
	only    scope     // if not scopePublic, for names of that scope alone
}

// A turn is a server in the order in which a name is asked for. The answer of a
// lower tier counts more.
type turn struct {
	server *server
	tier   int
	names  []string // to ask for, the next one when the one before does not exist
}

// plan returns who is asked for a name, in order. dead reports that all of them
// are. Resolver.mu is held.
func (r *Resolver) planLocked(e *entry, explore bool) (turns []turn, dead bool) {
	now := r.now()
	name := hostKey(e.key)
	sc := r.scopes.of(name, r.conf.Search)
	tier := 0
	for _, g := range r.groups {
		switch {
		case g.only != scopePublic && g.only != sc:
			continue
		case g.system:
			names := r.conf.Candidates(e.key)
			for _, s := range r.system {
				if !s.is(r.own) {
					turns = append(turns, turn{s, tier, names})
					tier++
				}
			}
			continue
		case sc == scopeSystem, g.builtin && (!e.kept || sc != scopePublic):
			continue
		}
		for _, s := range inOrder(g.servers, now, explore) {
			if !s.is(r.own) && !(s.public && sc == scopeLocal) {
				turns = append(turns, turn{s, tier, []string{name}})
			}
		}
		tier++
	}
	isDead := func(t turn) bool { return t.server.standing(now).health == HealthDead }
	alive := slices.DeleteFunc(slices.Clone(turns), isDead)
	if len(alive) == 0 {
		return turns, true
	}
	return alive, false
}

// inOrder sorts servers of equal trust: by measured time, those that are late
// last. With explore, when nobody waits for the answer, one that has not been
// measured for long comes first.
func inOrder(servers []*server, now time.Duration, explore bool) []*server {
	if len(servers) < 2 {
		return servers
	}
	type ranked struct {
		s    *server
		st   standing
		rank int
	}
	list := make([]ranked, len(servers))
	var oldest *ranked
	for i, s := range servers {
		list[i] = ranked{s: s, st: s.standing(now)}
		one := &list[i]
		switch one.st.health {
		case HealthUntried:
			one.rank = 1
		case HealthLate:
			one.rank = 2
		case HealthDead:
			one.rank = 3
		}
		if one.rank < 3 && one.st.heardAgo >= remeasureEvery && (oldest == nil || one.st.heardAgo > oldest.st.heardAgo) {
			oldest = one
		}
	}
	if explore && oldest != nil {
		oldest.rank = -1
	}
	slices.SortStableFunc(list, func(a, b ranked) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return int(a.st.p50 - b.st.p50)
	})
	out := make([]*server, len(list))
	for i := range list {
		out[i] = list[i].s
	}
	return out
}

// wait is how long a turn is waited for before the next one is taken too.
func (t turn) wait(next turn) time.Duration {
	if d := t.server.delay(); t.tier == next.tier || d == 0 {
		return d
	}
	// The better answer is worth some time: a site may map names on purpose.
	return max(2*t.server.delay(), tierDelay)
}

// tierDelay is when an answer that counts more is late. Guess: half of what makes
// people look up.
const tierDelay = 500 * time.Millisecond
