// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/warmwire/warmwire/internal/netlab"
)

// watchEvery is how often Warmwire is asked for its verdicts while a flow is dead.
const watchEvery = 50 * time.Millisecond

// apart runs scenarios side by side, each in a network of its own with its own
// Warmwire. The results come in order; those of scenarios that failed are missing.
func apart(ctx context.Context, opt Options, chosen []scenario) ([]*ScenarioResult, error) {
	results := make([]*ScenarioResult, len(chosen))
	var group errgroup.Group
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for i, sc := range chosen {
		group.Go(func() (err error) {
			own, stop := context.WithCancelCause(ctx) // which closing the site ends
			defer stop(nil)
			defer func() {
				if err != nil {
					err = fmt.Errorf("lab: %s: %w", sc.name, err)
					cancel(err) // the others would only be late
				}
			}()
			site, err := newSite(own, stop, opt, BeatArms(), true)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, site.close()) }()
			s := &study{Options: opt, site: site, random: rand.New(rand.NewPCG(opt.Seed, uint64(100+i)))}
			if opt.Progress != nil {
				opt.Progress(sc.name, s.takes(sc))
			}
			results[i], err = s.run(own, sc)
			return err
		})
	}
	err := group.Wait()
	var done []*ScenarioResult
	for _, r := range results {
		if r != nil {
			done = append(done, r)
		}
	}
	return done, err
}

// learned puts in what a Warmwire would have learned of the scenario's NAT: a trial
// ends a little before the limit.
func (sc scenario) learned(upstreams []Upstream) []Upstream {
	out := slices.Clone(upstreams)
	for i := range out {
		if out[i].Name == knownUpstream {
			out[i].Bears = sc.nat.Idle - sc.nat.Idle/32
		}
	}
	return out
}

// counts asks the Warmwire of a lab what it thinks of its connections.
func (e *env) counts(ctx context.Context) (map[string]BeatCounts, error) {
	t := &http.Transport{DialContext: e.dial, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("read warmwire's metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	return parseMetrics(resp.Body)
}

// newBeatLog returns one without anything.
func newBeatLog(arms int) *beatLog {
	times := func() []time.Duration { return make([]time.Duration, arms) }
	return &beatLog{make([]BeatCounts, arms), make([]uint64, arms), make([]uint64, arms), times(), times(), times()}
}

// beginWatch looks at a Warmwire's verdicts until the end of ctx; the function it
// returns waits for that and reads what the NAT saw. The flows die now.
func (s *study) beginWatch(ctx context.Context, sc scenario, log *runLog) (ended func() error) {
	if !sc.beats {
		return func() error { return nil }
	}
	log.beats = newBeatLog(len(s.site.arms))
	before, err := s.site.env.counts(ctx)
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for sleep(ctx, watchEvery) == nil {
			now, nerr := s.site.env.counts(ctx)
			if nerr != nil {
				continue // the scenario is over, or the next one tells
			}
			at := s.site.env.now()
			for i, arm := range s.site.arms {
				was, is := before[arm.upstream], now[arm.upstream]
				if is.Doubts > was.Doubts && log.beats.doubted[i] == 0 {
					log.beats.doubted[i] = at
				}
				if is.DeadFlow > was.DeadFlow && log.beats.judged[i] == 0 {
					log.beats.judged[i] = at
				}
			}
		}
	})
	return func() error {
		cancel()
		watching.Wait()
		st, serr := s.site.lab.Stats()
		now := s.site.env.now()
		for i := range s.site.arms {
			if since := portStats(st, s.site.ports[i]).UnknownSince; since > 0 {
				log.beats.asked[i] = now - since
			}
		}
		return errors.Join(err, serr)
	}
}

// still ends the kernel's keepalive of a connection, which Go has turned on. Most servers
// and many clients have none, and behind a NAT it would do the work of the heartbeat.
func still(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAlive(false) // it fails where the connection is gone already
	}
}

// A stillListener accepts connections without it.
type stillListener struct{ net.Listener }

func (l stillListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		still(c)
	}
	return c, err
}

// portStats are those of one port of the server.
func portStats(st netlab.Stats, port uint16) netlab.PortStats {
	for _, p := range st.Ports {
		if p.Port == port {
			return p
		}
	}
	return netlab.PortStats{}
}

// tally takes what the network and Warmwire have counted during a scenario.
func (s *study) tally(ctx context.Context, log *runLog, before, after netlab.Stats, was map[string]BeatCounts) error {
	if log.beats == nil {
		log.beats = newBeatLog(len(s.site.arms))
	}
	now, err := s.site.env.counts(ctx)
	if err != nil {
		return err
	}
	for i, arm := range s.site.arms {
		p, q := portStats(before, s.site.ports[i]), portStats(after, s.site.ports[i])
		log.beats.packets[i], log.beats.bytes[i] = q.Packets-p.Packets, q.Bytes-p.Bytes
		a, b := was[arm.upstream], now[arm.upstream]
		log.beats.counts[i] = BeatCounts{b.Pings - a.Pings, b.Doubts - a.Doubts, b.PathDown - a.PathDown, b.DeadFlow - a.DeadFlow, b.FalseAlarms - a.FalseAlarms}
	}
	return nil
}

// portNumber is the port of an address with one.
func portNumber(addr string) uint16 {
	n, _ := strconv.ParseUint(portOf(addr), 10, 16)
	return uint16(n)
}
