// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

const (
	// checkEvery is how often files and clocks are looked at: resolv.conf must
	// show within 5 s.
	checkEvery = 4 * time.Second
	// sleptFor is by how much the wall clock must have run ahead of the monotonic
	// one to say that the machine slept. Guess: more than clocks are set by.
	sleptFor = 10 * time.Second
	// maxRefreshes bounds the lookups that nobody waits for.
	maxRefreshes = 32
	// retransmit is well over the round trip of a far resolver, and under a
	// second so that a lost datagram is no drama.
	retransmit = 500 * time.Millisecond
)

// A Resolver answers names. Make one with [New].
type Resolver struct {
	cfg     Config
	seams   seams
	base    time.Time
	hosts   *Hosts
	scopes  scoper
	groups  []group
	boot    *bootstrap
	life    context.Context // ended by Close
	end     context.CancelFunc
	running sync.WaitGroup // flights, attempts, probes, and servers that are closed; none is added once closed is set
	wake    chan struct{}  // holds a token when Run has something to do

	mu        sync.RWMutex // guards the fields below
	closed    bool
	entries   map[string]*entry
	schedule  schedule
	kept      int
	flights   int
	refreshes int
	gen       uint64 // counts changes of network
	system    []*server
	conf      ResolvConf
	confFile  fileStamp
	own       []netip.AddrPort // where our stubs listen
	recent    recent
	changed   bool // something worth writing to the file soon
	touched   bool // something changed at all

	complaints complaints
}

// seams are what tests replace.
type seams struct {
	open func(exchange.Spec, exchange.Config) (exchange.Exchanger, error)
	wall func() time.Time // the clock that goes on while the machine sleeps
	// native asks the operating system where resolv.conf cannot be read.
	native func() exchange.Exchanger
}

// New returns a Resolver with what the cache file has. It opens no socket.
func New(cfg Config) (*Resolver, error) {
	return newResolver(cfg, seams{
		open:   exchange.Open,
		wall:   func() time.Time { return time.Now().Round(0) },
		native: func() exchange.Exchanger { return newNative() },
	})
}

func newResolver(cfg Config, s seams) (*Resolver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	r := &Resolver{
		cfg: cfg, seams: s, base: time.Now(), hosts: NewHosts(cfg.HostsFile), wake: make(chan struct{}, 1),
		entries: map[string]*entry{},
		scopes:  scoper{local: localSuffixes(), nowhere: nowhereSuffixes()},
	}
	for _, domain := range cfg.SystemDomains {
		r.scopes.system = append(r.scopes.system, suffixKey(domain))
	}
	r.life, r.end = context.WithCancel(context.Background())
	r.boot = &bootstrap{r: r, known: map[string][]netip.Addr{}}
	if err := r.build(); err != nil {
		_ = r.Close()
		return nil, err
	}
	r.readSystem()
	r.load()
	return r, nil
}

// build opens the configured resolvers and groups them by what their answer
// counts.
func (r *Resolver) build() error {
	var before, after []*server
	into, hasSystem := &before, false
	for _, text := range r.cfg.Resolvers {
		if strings.EqualFold(text, systemResolver) {
			into, hasSystem = &after, true
			continue
		}
		s, err := r.open(text)
		if err != nil {
			return err
		}
		*into = append(*into, s)
	}
	listed, system := group{servers: before}, group{system: true}
	switch {
	case r.cfg.Mode == ModeResolversOnly:
		r.groups = []group{listed}
		if len(r.scopes.system) > 0 {
			r.groups = append(r.groups, group{system: true, only: scopeSystem})
		}
	case r.cfg.Mode == ModeResolversFirst || len(before)+len(after) > 0 && r.cfg.Mode == ModeAuto:
		r.groups = []group{listed, system}
		if hasSystem {
			r.groups = append(r.groups, group{servers: after})
		}
	case len(before) > 0:
		r.groups = []group{system, listed}
	default:
		builtin := group{builtin: true}
		for _, name := range exchange.Presets() {
			s, err := r.open(name)
			if err != nil {
				return err
			}
			builtin.servers = append(builtin.servers, s)
		}
		r.groups = []group{system, builtin}
	}
	for _, addr := range r.cfg.Bootstrap {
		s, err := r.open("udp://" + urlHost(addr))
		if err != nil {
			return err
		}
		r.boot.servers = append(r.boot.servers, s)
	}
	return nil
}

func (r *Resolver) open(text string) (*server, error) {
	spec, err := exchange.ParseSpec(text)
	if err != nil {
		return nil, err
	}
	x, err := r.seams.open(spec, exchange.Config{
		Dial: r.cfg.Dial, Roots: r.cfg.Roots, Sessions: r.cfg.Sessions, Bootstrap: r.boot.lookup, Retransmit: retransmit,
	})
	if err != nil {
		return nil, err
	}
	return newServer(spec, x), nil
}

func urlHost(addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	return "[" + strings.Replace(addr.String(), "%", "%25", 1) + "]"
}

// now is the time since the Resolver was made, and more than zero.
func (r *Resolver) now() time.Duration { return time.Since(r.base) + 1 }

// Run refreshes answers before they run out, probes dead resolvers, watches
// resolv.conf and the clock, and writes the cache file, until ctx ends. It then
// writes the file a last time and returns nil. Call it once.
func (r *Resolver) Run(ctx context.Context) error {
	var filing sync.WaitGroup
	filing.Go(func() { r.keepFile(ctx) })
	defer filing.Wait()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	clock := newWatch(r.seams.wall(), r.now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-due.C:
		case <-check.C:
			if clock.slept(r.seams.wall(), r.now()) {
				r.NetworkChanged()
			}
			r.readSystem()
		}
		due.Reset(r.work())
	}
}

// work starts what is due and returns how long to wait for the next.
func (r *Resolver) work() time.Duration {
	now := r.now()
	next := r.refreshDue(now)
	for _, s := range r.servers() {
		q, due, at := s.probeDue(now)
		next = min(next, at)
		if due {
			r.spawn(func() { r.probe(s, q) })
		}
	}
	return min(max(next-now, 0), time.Hour)
}

// spawn runs f, unless the Resolver is closed.
func (r *Resolver) spawn(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.running.Go(f)
	}
	return !r.closed
}

// servers returns all that answer names, the system's included.
func (r *Resolver) servers() []*server {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []*server
	for _, g := range r.groups {
		if g.system {
			all = append(all, r.system...)
		}
		all = append(all, g.servers...)
	}
	return all
}

// poke makes Run look for work.
func (r *Resolver) poke() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look
	}
}

// Close ends the lookups in flight and waits for all that runs but Run, whose
// context its caller ends.
func (r *Resolver) Close() error {
	r.mu.Lock()
	r.closed = true
	all := append(slices.Clone(r.system), r.boot.servers...) // the system's may be for bootstrap only
	r.mu.Unlock()
	r.end()
	for _, s := range append(all, r.servers()...) {
		_ = s.x.Close() // always nil
	}
	r.running.Wait()
	return nil
}

func (r *Resolver) event(kind EventKind, subject string, err error) {
	if r.cfg.OnEvent != nil {
		r.cfg.OnEvent(Event{Kind: kind, Subject: subject, Err: err})
	}
}

// complaints keep one lasting fault from being told again and again.
type complaints struct {
	mu   sync.Mutex
	told map[EventKind]string
}

// complain tells of an error unless it was the last thing told of its kind; nil
// ends it.
func (r *Resolver) complain(kind EventKind, subject string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.complaints.mu.Lock()
	same := r.complaints.told[kind] == text
	if !same {
		if r.complaints.told == nil {
			r.complaints.told = map[EventKind]string{}
		}
		r.complaints.told[kind] = text
	}
	r.complaints.mu.Unlock()
	if !same && err != nil {
		r.event(kind, subject, err)
	}
}

// A watch compares two clocks.
type watch struct {
	wall time.Time
	mono time.Duration
}

func newWatch(wall time.Time, mono time.Duration) *watch { return &watch{wall.Round(0), mono} }

// slept reports whether the wall clock ran ahead since the last call.
func (w *watch) slept(wall time.Time, mono time.Duration) bool {
	ahead := wall.Round(0).Sub(w.wall) - (mono - w.mono)
	w.wall, w.mono = wall.Round(0), mono
	return ahead > sleptFor
}
