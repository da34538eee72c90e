// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"container/list"
	"encoding/json"
	"sync"
	"time"
)

const (
	savedVersion = 1
	maxSaved     = 4 << 20 // 4 MiB; more was not written by Save
	maxName      = 512     // bytes of a network or an origin that is kept
)

// Limits holds the paths of a process, each by network and origin: what a network
// calls itself is the owner's business. It is safe for concurrent use.
type Limits struct {
	max int

	mu    sync.Mutex // before that of a Path
	paths map[pathKey]*list.Element
	order *list.List // of *entry, last used first
}

type pathKey struct{ network, origin string }

type entry struct {
	key  pathKey
	path *Path
}

// NewLimits returns one that keeps as many paths, at least one: those used last.
func NewLimits(most int) *Limits {
	return &Limits{max: max(most, 1), paths: map[pathKey]*list.Element{}, order: list.New()}
}

// Path is the path from a network to an origin. It stays good when it is forgotten
// here; then it is no longer shared with who asks next, nor saved.
func (l *Limits) Path(network, origin string) *Path {
	if len(network) > maxName || len(origin) > maxName {
		return NewPath()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.path(pathKey{network, origin})
}

// path is the path of a key, now the one used last. The lock is held.
func (l *Limits) path(key pathKey) *Path {
	if e, ok := l.paths[key]; ok {
		l.order.MoveToFront(e)
		return e.Value.(*entry).path
	}
	for len(l.paths) >= l.max {
		last := l.order.Back()
		delete(l.paths, l.order.Remove(last).(*entry).key)
	}
	p := NewPath()
	l.paths[key] = l.order.PushFront(&entry{key, p})
	return p
}

// Len is how many paths there are.
func (l *Limits) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.paths)
}

// saved is what Save writes.
type saved struct {
	Version int         `json:"version"`
	Paths   []savedPath `json:"paths"` // last used first
}

type savedPath struct {
	Network  string `json:"network"`
	Origin   string `json:"origin"`
	Survived int64  `json:"survived_ms"`
	Died     int64  `json:"died_ms,omitempty"`
	Pace     int64  `json:"pace_ms,omitempty"`
	Again    int64  `json:"search_again_unix,omitempty"`
}

// Save returns what was learned, for Load after a restart.
func (l *Limits) Save() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := saved{Version: savedVersion, Paths: []savedPath{}}
	for e := l.order.Front(); e != nil; e = e.Next() {
		en := e.Value.(*entry)
		if sp, worth := en.path.save(); worth {
			sp.Network, sp.Origin = en.key.network, en.key.origin
			s.Paths = append(s.Paths, sp)
		}
	}
	data, err := json.Marshal(s)
	if err != nil {
		panic("heartbeat: internal error: " + err.Error()) // strings and numbers
	}
	return append(data, '\n')
}

// Load takes what Save returned. What it does not understand, or what cannot be,
// is as good as nothing: the path is learned anew. It reports whether it
// understood the whole. Paths that are in use keep what they have learned.
func (l *Limits) Load(data []byte) bool {
	var s saved
	if len(data) > maxSaved || json.Unmarshal(data, &s) != nil || s.Version != savedVersion {
		return false
	}
	if len(s.Paths) > l.max {
		s.Paths = s.Paths[:l.max]
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := true
	for i := len(s.Paths) - 1; i >= 0; i-- { // so that the first is the last used
		sp := s.Paths[i]
		key := pathKey{sp.Network, sp.Origin}
		if len(sp.Network) > maxName || len(sp.Origin) > maxName || !sp.sane() {
			whole = false
			continue
		}
		if _, ok := l.paths[key]; !ok {
			if len(l.paths) >= l.max {
				continue // those in use come first
			}
			l.path(key).load(sp)
		}
	}
	return whole
}

// sane says whether Save can have written it.
func (sp savedPath) sane() bool {
	const most = int64(maxIdle / time.Millisecond)
	return sp.Survived >= int64(knownLimits[0]/2/time.Millisecond) && sp.Survived <= most &&
		(sp.Died == 0 || sp.Died >= sp.Survived && sp.Died <= most) &&
		sp.Pace >= 0 && sp.Pace <= int64(maxPace/time.Millisecond) &&
		sp.Again >= 0 && sp.Again < 1<<40
}

// save is what is worth keeping, if anything is.
func (p *Path) save() (savedPath, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sp := savedPath{Died: p.died.Milliseconds(), Pace: p.pace.Milliseconds(), Survived: p.survived.Milliseconds()}
	if !p.again.IsZero() {
		sp.Again = max(p.again.Unix(), 0)
	}
	return sp, p.proven || p.died > 0 || p.pace > 0
}

// load takes what save gave.
func (p *Path) load(sp savedPath) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.survived, p.proven = time.Duration(sp.Survived)*time.Millisecond, true
	p.died = time.Duration(sp.Died) * time.Millisecond
	p.pace = time.Duration(sp.Pace) * time.Millisecond
	if sp.Again > 0 {
		p.again = time.Unix(sp.Again, 0)
	}
}
