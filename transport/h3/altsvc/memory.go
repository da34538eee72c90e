// SPDX-License-Identifier: Apache-2.0

package altsvc

import (
	"cmp"
	"container/list"
	"fmt"
	"sync"
	"time"
)

// Protocol is what is remembered of all that may be offered.
const Protocol = "h3"

// Config is plain data. The zero value is the default.
//
// The pauses are Chromium's (net/http/broken_alternative_services.cc): five
// minutes, doubled at most nine times, which is nearly two days.
type Config struct {
	Pause       time.Duration // after the first failure; 0 = 5 min
	MaxDoubling int           // of the pause; 0 = 9
	StallWindow time.Duration // in which a second stall demotes; 0 = 10 min, a guess
	TrialLimit  time.Duration // after which a trial whose end nobody told is over; 0 = 30 s
	MaxOrigins  int           // 0 = 1024
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Pause = cmp.Or(c.Pause, 5*time.Minute)
	c.MaxDoubling = cmp.Or(c.MaxDoubling, 9)
	c.StallWindow = cmp.Or(c.StallWindow, 10*time.Minute)
	c.TrialLimit = cmp.Or(c.TrialLimit, 30*time.Second)
	c.MaxOrigins = cmp.Or(c.MaxOrigins, 1024)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.Pause < 0 || c.StallWindow < 0 || c.TrialLimit < 0 || c.MaxOrigins < 0 || c.MaxDoubling < 0 || c.MaxDoubling > 30 {
		return fmt.Errorf("altsvc: a negative setting, or more than 30 doublings: %+v", c)
	}
	return nil
}

// An Advice is what to do about HTTP/3 when a connection is to be opened.
type Advice int

// The advices.
const (
	TCP   Advice = iota // nothing is offered, or it is broken: leave it
	Race                // open it, and TCP a little later; the first one serves
	Trial               // TCP serves; open HTTP/3 beside it in the background, and tell what came of it
)

var advices = [...]string{"tcp", "race", "trial"}

func (a Advice) String() string { return advices[a] }

// A Memory knows the origins. Make it with New.
type Memory struct {
	cfg Config

	mu      sync.Mutex // guards the fields below
	origins map[string]*list.Element
	order   *list.List // of *origin; the last is the one not asked about for the longest
}

// An origin is what is known of one.
type origin struct {
	name   string
	said   offer // by its Alt-Svc
	record offer // by its DNS record

	failures int       // without a success that lasted
	until    time.Time // it is left alone before; zero = it is not
	restored time.Time // since when it works again; zero = it failed last, or never
	trial    time.Time // when the present one began; zero = none
	stalled  time.Time // when a stream last did
	demoted  bool      // it is left alone because of stalls
}

// An offer is a place that serves HTTP/3.
type offer struct {
	service Service
	expires time.Time
}

func (o offer) fresh(now time.Time) bool { return now.Before(o.expires) }

// New returns an empty Memory.
func New(cfg Config) (*Memory, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Memory{cfg: cfg.WithDefaults(), origins: map[string]*list.Element{}, order: list.New()}, nil
}

// find returns an origin, a new one if make is set. The lock is held.
func (m *Memory) find(name string, make bool) *origin {
	if e := m.origins[name]; e != nil {
		m.order.MoveToFront(e)
		return e.Value.(*origin)
	}
	if !make {
		return nil
	}
	for m.order.Len() >= m.cfg.MaxOrigins {
		last := m.order.Back()
		m.order.Remove(last)
		delete(m.origins, last.Value.(*origin).name)
	}
	o := &origin{name: name}
	m.origins[name] = m.order.PushFront(o)
	return o
}

// Said takes the Alt-Svc field of an answer of the origin; age is the answer's Age
// field. What it says replaces what it said before (RFC 7838 §3.1). A field that is
// not valid changes nothing.
func (m *Memory) Said(now time.Time, name string, lines []string, age time.Duration) error {
	f, err := Parse(lines)
	if err != nil {
		return err
	}
	var got offer
	for _, s := range f.Services {
		if s.Protocol == Protocol {
			got = offer{service: s, expires: now.Add(s.MaxAge - age)}
			break // the first is the one it likes best
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.find(name, got.fresh(now)); o != nil {
		o.said = got
	}
	return nil
}

// Record takes what the origin's HTTPS record (RFC 9460) says of HTTP/3: host ""
// means the origin's own. port 0 means that it does not offer it.
func (m *Memory) Record(now time.Time, name, host string, port uint16, ttl time.Duration) {
	var got offer
	if port != 0 {
		got = offer{service: Service{Protocol: Protocol, Host: host, Port: port, MaxAge: ttl}, expires: now.Add(ttl)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.find(name, got.fresh(now)); o != nil {
		o.record = got
	}
}

// Ask says what to do for a connection to the origin now, and where HTTP/3 is
// unless that is TCP. Only one asker is told to make a trial.
func (m *Memory) Ask(now time.Time, name string) (Advice, Service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.find(name, false)
	if o == nil {
		return TCP, Service{}
	}
	best := o.said
	if !best.fresh(now) {
		best = o.record
	}
	switch {
	case !best.fresh(now), now.Before(o.until):
		return TCP, Service{}
	case o.until.IsZero():
		return Race, best.service
	case !o.trial.IsZero() && now.Before(o.trial.Add(m.cfg.TrialLimit)):
		return TCP, Service{}
	}
	o.trial = now
	return Trial, best.service
}

// Worked says that an answer came over HTTP/3, in a trial or not.
func (m *Memory) Worked(now time.Time, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.find(name, false)
	if o == nil || o.failures == 0 || now.Before(o.until) {
		return // what was opened before the failure proves nothing now
	}
	o.until, o.trial, o.demoted = time.Time{}, time.Time{}, false
	if o.restored.IsZero() {
		o.restored = now
	}
	m.settle(now, o)
}

// settle forgets failures after a success that lasted as long as the pause before
// it. The lock is held.
func (m *Memory) settle(now time.Time, o *origin) {
	if o.failures > 0 && !o.restored.IsZero() && now.Sub(o.restored) >= m.pause(o.failures) {
		o.failures, o.restored = 0, time.Time{}
	}
}

// pause is how long an origin is left alone after so many failures.
func (m *Memory) pause(failures int) time.Duration {
	return m.cfg.Pause << min(failures-1, m.cfg.MaxDoubling)
}

// Failed says that HTTP/3 could not be opened, or ended without an answer, while
// TCP serves. It returns until when it is left alone.
func (m *Memory) Failed(now time.Time, name string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.find(name, false)
	if o == nil {
		return time.Time{}
	}
	m.fail(now, o)
	return o.until
}

func (m *Memory) fail(now time.Time, o *origin) {
	if now.Before(o.until) {
		return // one of several that were under way
	}
	m.settle(now, o)
	o.failures++
	o.until = now.Add(m.pause(o.failures))
	o.restored, o.trial = time.Time{}, time.Time{}
}

// Stalled says that a stream over HTTP/3 stood still while TCP to the origin
// flowed. One may be the path's bad moment; a second one within the window demotes
// the origin. It says whether it is demoted.
func (m *Memory) Stalled(now time.Time, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.find(name, false)
	if o == nil {
		return false
	}
	again := !o.stalled.IsZero() && now.Sub(o.stalled) <= m.cfg.StallWindow
	o.stalled = now
	if again && !now.Before(o.until) {
		m.fail(now, o)
		o.demoted, o.stalled = true, time.Time{}
	}
	return now.Before(o.until)
}

// NetworkChanged forgets what was learned of the network that is no more: what is
// broken, and the offers that are not for every network (RFC 7838 §2.2).
func (m *Memory) NetworkChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.order.Front(); e != nil; {
		next := e.Next()
		o := e.Value.(*origin)
		*o = origin{name: o.name, said: o.said, record: o.record}
		if !o.said.service.Persist {
			o.said = offer{}
		}
		if o.said == (offer{}) && o.record == (offer{}) {
			m.order.Remove(e)
			delete(m.origins, o.name)
		}
		e = next
	}
}

// A State is what is known of an origin, for people to look at.
type State struct {
	Offered  bool
	Broken   bool      // it is left alone; Demoted says why, Until how long at least
	Demoted  bool      // because its streams stalled
	Until    time.Time // a trial is made after
	Failures int
}

// State returns what is known of an origin.
func (m *Memory) State(now time.Time, name string) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.origins[name]
	if e == nil {
		return State{}
	}
	o := e.Value.(*origin)
	return State{
		Offered: o.said.fresh(now) || o.record.fresh(now), Broken: !o.until.IsZero(),
		Demoted: o.demoted, Until: o.until, Failures: o.failures,
	}
}

// Len is how many origins are known.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.order.Len()
}
