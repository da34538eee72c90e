// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Gate lets requests to one upstream in.
type Gate struct {
	mu      sync.Mutex // guards everything below
	cfg     Config
	limit   limiter
	pace    pacer
	lines   [numClasses]line
	flows   map[flowKey]*flow
	running int
	waiting int
	last    uint64    // the number of the request that started last
	lasts   float64   // s that a slot is held, the mean of late
	turn    time.Time // when the present epoch of needs ends
	wake    *time.Timer
	peaks   []int // room for evenPart
}

// NewGate returns a gate that keeps to cfg.
func NewGate(cfg Config) (*Gate, error) {
	g := &Gate{flows: make(map[flowKey]*flow)}
	return g, g.Update(cfg)
}

// Update changes what the gate keeps to. What runs runs on, what waits is judged anew but
// for its time-out, and what was learned stays where it is still of use.
func (g *Gate) Update(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.WithDefaults()
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if cfg.Adaptive {
		g.limit.set(cfg.Floor, cfg.Limit)
	}
	if !cfg.Pace {
		g.pace = pacer{}
	}
	g.cfg = cfg
	g.dispatch(now)
	return nil
}

// most is how many requests may run at once, 0 = any number.
func (g *Gate) most() int {
	if g.cfg.Adaptive {
		return max(1, g.limit.now())
	}
	return g.cfg.Limit
}

// A slot is one request that was let in.
type slot struct {
	g      *Gate
	f      *flow
	number uint64
	begun  time.Time
	once   sync.Once
}

// enter lets a request in, or has it wait.
func (g *Gate) enter(ctx context.Context, t Ticket) (*slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	now := time.Now()
	t.Class = min(t.Class, Batch)
	g.mu.Lock()
	cfg := &g.cfg
	onStart, onRefuse, limit := cfg.OnStart, cfg.OnRefuse, cfg.QueueTimeout
	g.roll(now)
	f := g.flowOf(t)
	if g.mayPass(f) && g.free(now) && g.mayStart(f) {
		g.passed(t.Class)
		s := g.start(f, now)
		g.mu.Unlock()
		onStart(t, 0)
		return s, nil
	}
	w, displaced, err := g.enqueue(f, t, now)
	g.mu.Unlock()
	if displaced != nil {
		onRefuse(displaced.t, displaced.err.Reason)
	}
	if err != nil {
		onRefuse(t, err.Reason)
		return nil, err
	}
	return g.wait(ctx, w, limit, onStart, onRefuse)
}

// enqueue puts a request into the queue, and starts those that may. displaced is who had
// to go for it.
func (g *Gate) enqueue(f *flow, t Ticket, now time.Time) (w, displaced *waiter, err *Error) {
	if at := g.paced(now); at.Sub(now) > g.cfg.QueueTimeout {
		return nil, nil, &Error{Paced, at.Sub(now)}
	}
	if g.waiting >= g.cfg.Queue {
		if displaced, err = g.displace(f); err != nil {
			return nil, nil, err
		}
	}
	w = &waiter{f: f, t: t, begun: now, decided: make(chan struct{})}
	g.add(w)
	g.dispatch(now)
	return w, displaced, nil
}

// wait waits for what becomes of w.
func (g *Gate) wait(ctx context.Context, w *waiter, limit time.Duration, onStart func(Ticket, time.Duration), onRefuse func(Ticket, Reason)) (*slot, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	late, left := false, false
	select {
	case <-w.decided:
	case <-timer.C:
		late = true
	case <-ctx.Done():
		left = true
	}
	now := time.Now()
	g.mu.Lock()
	if w.slot == nil && w.err == nil { // it waits still
		g.remove(w)
		w.err = &Error{QueueTimeout, g.eta(now)}
		g.dispatch(now) // somebody may have waited behind it
		late = late && !left
	} else {
		late = false // it was decided just now
	}
	g.mu.Unlock()
	switch {
	case left:
		if w.slot != nil {
			w.slot.release()
		}
		return nil, context.Cause(ctx)
	case w.slot != nil:
		onStart(w.t, w.slot.begun.Sub(w.begun))
		return w.slot, nil
	case late:
		onRefuse(w.t, w.err.Reason)
	}
	return nil, w.err // who displaced it has told
}

// eta is when there may be room for one more, as far as that is known.
func (g *Gate) eta(now time.Time) time.Duration {
	if at := g.paced(now); !at.IsZero() {
		return at.Sub(now)
	}
	if most := g.most(); most > 0 {
		return time.Duration(g.lasts * float64(g.waiting+1) / float64(most) * float64(time.Second))
	}
	return 0
}

// paced is until when the upstream is to be left alone; the zero time if it is not.
func (g *Gate) paced(now time.Time) time.Time {
	if !g.cfg.Pace {
		return time.Time{}
	}
	return g.pace.ready(now)
}

// free says whether one more request of some kind may start.
func (g *Gate) free(now time.Time) bool {
	if most := g.most(); most > 0 && g.running >= most {
		return false
	}
	return g.paced(now).IsZero()
}

// start lets a request of f in.
func (g *Gate) start(f *flow, now time.Time) *slot {
	g.last++
	g.running++
	g.lines[f.key.class].running++
	f.running++
	f.peak = max(f.peak, f.running)
	f.charge(&g.lines[f.key.class], g.lasts)
	if g.cfg.Adaptive {
		g.limit.started(g.running)
	}
	if g.cfg.Pace {
		g.pace.started(now)
	}
	return &slot{g: g, f: f, number: g.last, begun: now}
}

// dispatch starts what may start of those that wait, and looks again when that may be
// different for another reason than a slot that becomes free.
func (g *Gate) dispatch(now time.Time) {
	g.roll(now)
	for g.waiting > 0 && g.free(now) {
		f := g.next()
		if f == nil {
			break
		}
		w := f.queue[0]
		g.remove(w)
		g.passed(f.key.class)
		w.slot = g.start(f, now)
		close(w.decided)
	}
	g.watch(now)
}

// watch sets the timer for those that wait though there is a slot.
func (g *Gate) watch(now time.Time) {
	if g.waiting == 0 || g.most() > 0 && g.running >= g.most() {
		if g.wake != nil {
			g.wake.Stop()
		}
		return
	}
	at := g.paced(now)
	if at.IsZero() {
		at = g.turn
	}
	d := max(at.Sub(now), time.Microsecond)
	if g.wake == nil {
		g.wake = time.AfterFunc(d, g.look)
		return
	}
	g.wake.Reset(d)
}

func (g *Gate) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dispatch(time.Now())
}

// answered takes what the head of an answer shows.
func (s *slot) answered(resp *http.Response) {
	g, now := s.g, time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cfg.Adaptive {
		switch status := resp.StatusCode; {
		case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == 529:
			g.limit.refused(now, s.begun)
		case status >= 200 && status < 400:
			g.limit.answered(now, now.Sub(s.begun))
		}
	}
	if g.cfg.Pace {
		g.pace.answered(now, s.begun, resp.StatusCode, resp.Header, s.number, g.last)
	}
	if g.waiting > 0 {
		g.dispatch(now)
	}
}

// Refused tells of a refusal (429, 503 or 529) that a layer below kept to itself, and how
// long it waits before it tries again.
func (g *Gate) Refused(wait time.Duration) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cfg.Adaptive {
		g.limit.refused(now, now)
	}
	if g.cfg.Pace && wait > 0 {
		g.pace.refused(now, wait)
	}
}

// release gives the slot back. Only the first call counts.
func (s *slot) release() { s.once.Do(s.end) }

func (s *slot) end() {
	g, now := s.g, time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	held := now.Sub(s.begun).Seconds()
	g.lasts = smoothed(g.lasts, held)
	s.f.lasts = smoothed(s.f.lasts, held)
	g.running--
	g.lines[s.f.key.class].running--
	s.f.running--
	if g.waiting > 0 {
		g.dispatch(now)
	}
}

// smoothed follows a mean; the first value is taken as it is.
func smoothed(mean, v float64) float64 {
	if mean == 0 {
		return v
	}
	return mean + (v-mean)/8
}

// State is what a gate does now.
type State struct {
	Limit   int // as it is in force; 0 = none
	Running [Classes]int
	Waiting [Classes]int
	Hold    time.Duration // for which nothing starts because the upstream says so
	Limits  []LimitState
	Tenants map[string]TenantState // "" = nobody in particular
}

// A LimitState is one of the upstream's own limits, as it is taken to be now.
type LimitState struct {
	Of        string
	Most      int64 // 0 = not known
	Remaining int64
}

// A TenantState is what a tenant has.
type TenantState struct{ Running, Waiting int }

// State returns it.
func (g *Gate) State() State {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	s := State{Limit: g.most(), Tenants: map[string]TenantState{}}
	for c := range g.lines {
		s.Running[c], s.Waiting[c] = g.lines[c].running, g.lines[c].waiting
	}
	for _, f := range g.flows {
		t := s.Tenants[f.key.tenant]
		t.Running, t.Waiting = t.Running+f.running, t.Waiting+len(f.queue)
		if t != (TenantState{}) {
			s.Tenants[f.key.tenant] = t
		}
	}
	if at := g.paced(now); !at.IsZero() {
		s.Hold = at.Sub(now)
	}
	if g.cfg.Pace {
		for i := range g.pace.buckets {
			b := &g.pace.buckets[i]
			if now.Sub(b.heard) <= forget {
				b.fill(now)
				s.Limits = append(s.Limits, LimitState{b.of, int64(b.most), max(0, int64(b.level))})
			}
		}
	}
	slices.SortFunc(s.Limits, func(a, b LimitState) int { return strings.Compare(a.Of, b.Of) })
	return s
}
