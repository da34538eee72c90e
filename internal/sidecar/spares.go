// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/warmwire/warmwire/heartbeat"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/dial"
)

// lookAgain is how often a path is asked whether there is something to learn.
const lookAgain = time.Minute

// spares are the connections that serve nobody: one for each path on which a
// WebSocket is open and of which something can be learned.
type spares struct {
	mu      sync.Mutex // guards the field below
	running map[*heartbeat.Path]*search
}

// A search learns how long one path bears silence, while users want it to.
type search struct {
	users int
	stop  context.CancelFunc
}

// join begins the search of a path, if none is running, and returns what ends it for
// this user.
func (s *Sidecar) searchPath(path *heartbeat.Path, way *transport.Transport, u *url.URL, upstream string, cfg heartbeat.BeatConfig) (leave func()) {
	sp := &s.spares
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.running == nil {
		sp.running = make(map[*heartbeat.Path]*search)
	}
	run := sp.running[path]
	if run == nil {
		ctx, cancel := context.WithCancel(context.Background())
		run = &search{stop: cancel}
		sp.running[path] = run
		cfg.Mode = heartbeat.Spare
		t := &trial{s: s, path: path, way: way, url: u, upstream: upstream, cfg: cfg}
		s.reaching.Go(func() { t.run(ctx) })
	}
	run.users++
	return sync.OnceFunc(func() {
		sp.mu.Lock()
		defer sp.mu.Unlock()
		if run.users--; run.users == 0 {
			run.stop()
			delete(sp.running, path)
		}
	})
}

// A trial keeps one spare connection after the other.
type trial struct {
	s        *Sidecar
	path     *heartbeat.Path
	way      *transport.Transport
	url      *url.URL
	upstream string
	cfg      heartbeat.BeatConfig
}

// run ends with ctx, or when the origin turns out to have no such connections.
func (t *trial) run(ctx context.Context) {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		if t.path.Searching(time.Now()) {
			opening, cancel := context.WithTimeout(ctx, reachLimit)
			spare, err := t.way.Spare(opening, t.url)
			cancel()
			switch {
			case err == nil:
				t.follow(ctx, spare)
				spare.Close()
			case errors.Is(err, transport.ErrNoSpare):
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// pong is the answer to a probe.
type pong struct {
	at   time.Time
	took time.Duration
}

// follow does what the policy says until the connection has served its purpose.
func (t *trial) follow(ctx context.Context, spare *transport.Spare) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beat := heartbeat.NewBeat(t.cfg, t.path, time.Now(), rand.Float64)
	pongs, fresh := make(chan pong), make(chan bool)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		signs := kernelSigns(spare.NetConn(), now)
		signs.Heard = spare.Heard()
		step := beat.Next(now, signs)
		switch step.Action {
		case heartbeat.Probe:
			t.s.metrics.HeartbeatProbe(t.upstream, "spare")
			t.s.reaching.Go(func() {
				if took, err := spare.Ping(ctx); err == nil {
					offer(ctx, pongs, pong{time.Now(), took})
				}
			})
		case heartbeat.Fresh:
			t.s.reaching.Go(func() {
				opening, done := context.WithTimeout(ctx, reachLimit)
				defer done()
				offer(ctx, fresh, t.way.Reach(opening, t.url) == nil)
			})
		case heartbeat.Leave:
			return
		}
		timer.Reset(max(time.Until(step.Due), time.Millisecond))
		select {
		case <-timer.C:
		case p := <-pongs:
			beat.Answered(p.at, p.took)
		case ok := <-fresh:
			beat.FreshResult(time.Now(), ok)
		case <-spare.Gone():
			if spare.InOrder() {
				beat.Ended(time.Now())
			} else {
				beat.Closed(time.Now())
			}
			return
		case <-ctx.Done():
			beat.Retire()
			return
		}
	}
}

// offer sends v to whoever waits for it until ctx ends.
func offer[T any](ctx context.Context, to chan<- T, v T) {
	select {
	case to <- v:
	case <-ctx.Done():
	}
}

// kernelSigns is what the kernel knows of a connection; nothing is not known.
func kernelSigns(c net.Conn, now time.Time) heartbeat.Signs {
	if c == nil {
		return heartbeat.Signs{}
	}
	info, ok := dial.ReadInfo(c)
	if !ok {
		return heartbeat.Signs{}
	}
	return heartbeat.Signs{Acked: now.Add(-info.LastAcked), RTO: info.RTO, Trip: info.RTT + 4*info.RTTVar}
}
