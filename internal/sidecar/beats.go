// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/warmwire/warmwire/heartbeat"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/transport"
)

const (
	pathsName  = "heartbeat.paths" // in the state's folder: what was learned of paths
	pathsMost  = 1000
	reachLimit = 10 * time.Second       // for the connection that shows whether a path lives
	askAgain   = 250 * time.Millisecond // while such a connection is being made
	unwatched  = 100 * 365 * 24 * time.Hour
)

// beats are the heartbeats of all WebSockets that run.
type beats struct {
	paths *heartbeat.Limits
	file  string

	mu   sync.Mutex // guards live
	live map[*legBeat]struct{}
}

// newBeats takes what an earlier process has learned; a file that is none of ours is as
// good as nothing.
func newBeats(dir string) *beats {
	b := &beats{paths: heartbeat.NewLimits(pathsMost), file: filepath.Join(dir, pathsName), live: make(map[*legBeat]struct{})}
	if data, err := readState(b.file); err == nil {
		b.paths.Load(data)
	}
	return b
}

// watchConfig is how silent answers over HTTP/2, HTTP/3 and HTTP/1.1 are probed.
func watchConfig(h config.Heartbeat) heartbeat.Config {
	if h.Mode == "off" {
		return heartbeat.Config{Silence: unwatched, MaxSilence: unwatched}
	}
	c := heartbeat.Config{Silence: time.Duration(h.MinInterval), MaxSilence: time.Duration(h.MaxInterval), Patience: time.Duration(h.Timeout)}
	if h.Mode == "fixed" && c.MaxSilence > 0 {
		c.Silence = c.MaxSilence
	}
	return c
}

// beatConfig is how WebSockets are.
func beatConfig(h config.Heartbeat, app bool) heartbeat.BeatConfig {
	mode := map[string]heartbeat.Mode{"adaptive": heartbeat.Adaptive, "fixed": heartbeat.Fixed, "off": heartbeat.Off}[h.Mode]
	return heartbeat.BeatConfig{
		Mode: mode, MinInterval: time.Duration(h.MinInterval), MaxInterval: time.Duration(h.MaxInterval), Timeout: time.Duration(h.Timeout), NoFresh: app,
	}
}

// heartbeats makes those of one WebSocket to u. The kernel of a parent proxy says nothing of
// the API's.
func (s *Sidecar) heartbeats(u config.Upstream, way *transport.Transport, pick picker) func(io.ReadWriteCloser) *ingress.Heartbeats {
	return func(socket io.ReadWriteCloser) *ingress.Heartbeats {
		h := s.heartbeatOf(u)
		if h.Mode == "off" {
			return nil
		}
		now := time.Now()
		beat := func(app bool, path *heartbeat.Path) *legBeat {
			return &legBeat{s: s, upstream: u.Name, app: app, verdict: heartbeat.Alive,
				beat: heartbeat.NewBeat(beatConfig(h, app), path, now, rand.Float64)}
		}
		origin := originOf(u, socket)
		path := s.beats.paths.Path(networkID(), origin.String())
		app, up := beat(true, nil), &upBeat{legBeat: beat(false, path)}
		up.reach = func(ctx context.Context) error { return way.Reach(ctx, origin) }
		if sock, ok := socket.(transport.Socket); ok {
			if conn := sock.Watch(); pick.direct(authority(origin)) {
				up.conn = conn
			}
		}
		end := func() {}
		if h.Search && h.Mode == "adaptive" {
			end = s.searchPath(path, way, origin, u.Name, beatConfig(h, false))
		}
		s.beats.add(app, up.legBeat)
		if again := s.heartbeatOf(u); again != h { // tuned just now, before it was in the list
			app.set(beatConfig(again, true))
			up.set(beatConfig(again, false))
		}
		return &ingress.Heartbeats{
			App: app, Upstream: up, Pulse: func() (ingress.Pulse, ingress.Pulse) { return app.pulse(), up.pulse() },
			End: func() {
				end()
				s.beats.remove(app, up.legBeat)
			},
		}
	}
}

// heartbeatOf are the present settings of u, which may have been tuned since it was built.
func (s *Sidecar) heartbeatOf(u config.Upstream) config.Heartbeat {
	if b := s.shown.Load(); b != nil {
		for _, now := range b.Upstreams {
			if now.Name == u.Name {
				return now.Heartbeat
			}
		}
	}
	return u.Heartbeat
}

func (b *beats) add(legs ...*legBeat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range legs {
		b.live[l] = struct{}{}
	}
}

func (b *beats) remove(legs ...*legBeat) {
	b.mu.Lock()
	for _, l := range legs {
		delete(b.live, l)
	}
	b.mu.Unlock()
	for _, l := range legs {
		l.end()
	}
}

// set changes the heartbeats of WebSockets that run.
func (b *beats) set(cfg *config.Config) {
	of := make(map[string]config.Heartbeat, len(cfg.Upstreams))
	for _, u := range cfg.Upstreams {
		of[u.Name] = u.Heartbeat
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.live {
		if h, there := of[l.upstream]; there {
			l.set(beatConfig(h, l.app))
		}
	}
}

// A legBeat is the heartbeat of one side of a WebSocket: it does for the policy what
// needs a network.
type legBeat struct {
	s        *Sidecar
	upstream string
	app      bool
	reach    func(context.Context) error // nil for the app's side
	conn     net.Conn                    // whose kernel is asked; nil = none is

	mu      sync.Mutex // guards the fields below
	beat    *heartbeat.Beat
	verdict heartbeat.Verdict
	alarms  uint32
	cancel  context.CancelFunc // of the connection that is being made; nil = none is
	over    bool
}

// An upBeat is that of the upstream's side, where somebody waits for an answer to what
// is sent: it implements ws.Listener too.
type upBeat struct{ *legBeat }

// Sent implements ws.Listener.
func (u *upBeat) Sent(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.beat.Sent(now)
}

// Next implements ws.Policy.
func (l *legBeat) Next(now, heard time.Time) (ping, dead bool, due time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.tellLocked()
	signs := kernelSigns(l.conn, now)
	signs.Heard = heard
	step := l.beat.Next(now, signs)
	switch step.Action {
	case heartbeat.Probe:
		l.s.metrics.HeartbeatProbe(l.upstream, l.side())
		if !l.app {
			l.s.metrics.HeartbeatInterval(l.upstream, l.beat.Stats().Interval)
		}
		return true, false, now
	case heartbeat.Leave:
		return false, true, time.Time{}
	case heartbeat.Fresh:
		l.freshLocked()
	}
	if l.cancel != nil { // its result changes what is to be done
		return false, false, now.Add(askAgain)
	}
	return false, false, step.Due
}

// freshLocked makes a connection beside this one, which tells a dead flow from a dead path.
func (l *legBeat) freshLocked() {
	if l.reach == nil || l.cancel != nil || l.over {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reachLimit)
	l.cancel = cancel
	l.s.reaching.Go(func() {
		err := l.reach(ctx)
		cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cancel = nil
		if !l.over {
			l.beat.FreshResult(time.Now(), err == nil)
			l.tellLocked()
		}
	})
}

// Pong implements ws.Policy.
func (l *legBeat) Pong(now time.Time, rtt time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat.Answered(now, rtt)
	l.tellLocked()
	if !l.app {
		l.s.metrics.HeartbeatRTT(l.upstream, rtt)
	}
}

// Blocked implements ws.Policy.
func (l *legBeat) Blocked(d time.Duration) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat.Blocked(now.Add(-d), now)
}

// tellLocked counts what has changed.
func (l *legBeat) tellLocked() {
	if v := l.beat.Verdict(); v != l.verdict {
		l.verdict = v
		l.s.metrics.Verdict(l.upstream, v.String())
	}
	if n := l.beat.Stats().FalseAlarms; n != l.alarms {
		l.s.metrics.FalseAlarms(l.upstream, int(n-l.alarms))
		l.alarms = n
	}
}

func (l *legBeat) side() string {
	if l.app {
		return "app"
	}
	return "upstream"
}

func (l *legBeat) set(cfg heartbeat.BeatConfig) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat.Set(cfg)
}

func (l *legBeat) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.cancel != nil {
		l.cancel()
	}
	l.beat.Closed(time.Now())
}

func (l *legBeat) pulse() ingress.Pulse {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.beat.Stats()
	p := ingress.Pulse{Verdict: st.Verdict.String(), RTT: st.RTT, Interval: st.Interval}
	if st.Proven {
		p.Limit = st.Limit
	}
	return p
}

// networkID tells networks apart, as far as the address by which this machine would reach
// the outside does. Nothing is sent.
func networkID() string {
	for _, far := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // documentation's: RFC 5737, RFC 3849
		c, err := net.Dial("udp", far)
		if err != nil {
			continue
		}
		local, err := netip.ParseAddrPort(c.LocalAddr().String())
		_ = c.Close()
		if err != nil {
			continue
		}
		bits := 24
		if local.Addr().Is6() {
			bits = 64
		}
		if prefix, err := local.Addr().WithZone("").Prefix(bits); err == nil {
			return prefix.String()
		}
	}
	return "none"
}
