// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"slices"
	"testing"
	"time"
)

// spells are spans of 1-4 s, one every half minute on average.
func spells(w *world, until time.Duration) (spans [][2]time.Duration) {
	for at := 10 * s; at < until; at += 15*s + time.Duration(w.rnd.Float64()*float64(30*s)) {
		length := s + time.Duration(w.rnd.Float64()*float64(3*s))
		spans = append(spans, [2]time.Duration{at, at + length})
		at += length
	}
	return spans
}

// A road is a way, and how many troubles it has.
type road struct {
	name  string
	build func(w *world, until time.Duration) (troubles int)
}

var roads = []road{
	{"clean", func(*world, time.Duration) int { return 1 }},
	{"blackouts of 1-4 s", func(w *world, until time.Duration) int {
		w.outages = spells(w, until)
		return len(w.outages)
	}},
	{"spikes of 1-4 s", func(w *world, until time.Duration) int {
		w.holds = spells(w, until)
		return len(w.holds)
	}},
	{"a queue of up to 3 s", func(w *world, _ time.Duration) int {
		w.queue = func(at time.Duration) time.Duration { // fills in 10 s, drains in 10 s
			in := at % (20 * s)
			return min(in, 20*s-in) * 3 / 10
		}
		return 1
	}},
	{"a loss of 5 %", func(w *world, _ time.Duration) int {
		w.loss = 0.05
		return 1
	}},
	{"a peer that answers after 8-30 s", func(w *world, _ time.Duration) int {
		w.pong = func(time.Duration) time.Duration { return 8*s + time.Duration(w.rnd.Float64()*float64(22*s)) }
		return 1
	}},
}

// A load is what the connections carry.
type load struct {
	name         string
	tokens, asks time.Duration
}

var loads = []load{
	{name: "pauses of 10 min", tokens: 10 * time.Minute},
	{name: "a token a second", tokens: s},
	{name: "speech to a silent model", asks: 2 * s},
}

// drive drives eight connections over a road.
func drive(r road, l load, cfg BeatConfig, ping [2]time.Duration, until time.Duration) (c client, troubles int, w *world) {
	const streams = 8
	w = newWorld(42)
	troubles = r.build(w, until)
	var all []*client
	for range streams {
		c := w.client(cfg)
		c.tokens, c.asks, c.ping = l.tokens, l.asks, ping
		all = append(all, c)
	}
	w.run(until)
	for _, one := range all {
		one.sum()
		c.cuts += one.cuts
		c.late += one.late
		c.alarms += one.alarms
		c.contested += one.contested
		c.probes += one.probes
		c.fresh += one.fresh
	}
	return c, troubles * streams, w
}

// The promise of the whole: nothing that passes cuts a connection, whatever it
// carries and however often it is probed, and nothing but a blackout makes a fresh
// connection speak against one that lives.
func TestNothingThatPassesCuts(t *testing.T) {
	plans := []struct {
		name string
		cfg  BeatConfig
	}{
		{"learned", BeatConfig{}},
		{"every 5 s", BeatConfig{MaxInterval: 5 * s}},
		{"fixed 20 s", BeatConfig{Mode: Fixed}},
		{"no fresh connection", BeatConfig{NoFresh: true, MaxInterval: 5 * s}},
	}
	for _, r := range roads {
		for _, l := range loads {
			for _, p := range plans {
				t.Run(r.name+"/"+l.name+"/"+p.name, func(t *testing.T) {
					t.Parallel()
					c, troubles, _ := drive(r, l, p.cfg, [2]time.Duration{}, 30*time.Minute)
					t.Logf("%d cuts in %d, late %d, contested %d, false alarms %d, %d probes, %d fresh", c.cuts, troubles, c.late, c.contested, c.alarms, c.probes, c.fresh)
					if c.cuts != 0 {
						t.Errorf("%d cuts", c.cuts)
					}
					if c.alarms != 0 && r.name != "blackouts of 1-4 s" {
						t.Errorf("%d false alarms", c.alarms)
					}
				})
			}
		}
	}
}

// What the same roads do to the fixed timers of the field: proof that they are bad.
func TestFixedTimersAreCut(t *testing.T) {
	for name, ping := range map[string][2]time.Duration{
		"3 s and 1.5 s": {3 * s, 1500 * ms},
		"20 s and 20 s": {20 * s, 20 * s},
	} {
		for _, r := range roads {
			t.Run(name+"/"+r.name, func(t *testing.T) {
				t.Parallel()
				c, troubles, _ := drive(r, loads[1], BeatConfig{}, ping, 30*time.Minute)
				t.Logf("%d cuts in %d troubles of streams: %.3f", c.cuts, troubles, float64(c.cuts)/float64(troubles))
				if short := ping[1] < 2*s; short && r.name == "blackouts of 1-4 s" && c.cuts*5 < troubles {
					t.Error("the blackouts cut nobody")
				}
			})
		}
	}
}

// A tunnel is what happens behind a NAT.
type tunnel struct {
	w       *world
	clients []*client
	spares  int           // that were opened
	died    int           // of these
	learned time.Duration // when the limit last changed
	limit   time.Duration
}

// behind keeps eight silent connections behind a NAT, and a spare one while there is
// something to learn.
func behind(w *world, cfg BeatConfig) *tunnel {
	tn := &tunnel{w: w, limit: firstLimit}
	for range 8 {
		tn.clients = append(tn.clients, w.client(cfg))
	}
	var spare *client
	var look func()
	look = func() {
		if limit, _ := w.path.Limit(); limit != tn.limit {
			tn.limit, tn.learned = limit, w.now
		}
		switch {
		case spare != nil && spare.cuts > 0: // its client would open the next one
			spare.done, spare = true, nil
			tn.died++
		case spare != nil && spare.done:
			spare = nil
		case spare == nil && w.path.Searching(at(w.now)):
			tn.spares++
			spare = w.client(BeatConfig{Mode: Spare})
		}
		w.at(w.now+s, look)
	}
	look()
	return tn
}

// count is the cuts of the clients, and their probes.
func (tn *tunnel) count() (cuts, probes int) {
	for _, c := range tn.clients {
		cuts += c.cuts
		probes += c.probes
	}
	return cuts, probes
}

// A NAT that forgets cuts nobody once its limit is learned, nor before if the limit
// is a known one, and is told far less often than by a fixed timer of 20 s.
func TestNATLimitsAreLearned(t *testing.T) {
	for _, tt := range []struct {
		nat     time.Duration
		limit   time.Duration // that is learned, at least
		within  time.Duration // after so long
		spares  int           // that it costs, at most
		cuts    int           // of eight connections while it is learned, at most
		perHour float64       // probes of one connection afterwards, at most
	}{
		{nat: 25 * s, limit: 15 * s, within: time.Hour, spares: 3, cuts: 8, perHour: 720},
		{nat: 60 * s, limit: 60 * s, within: 5 * time.Minute, spares: 3, perHour: 130},
		{nat: 100 * s, limit: 96 * s, within: 5 * time.Minute, spares: 3, perHour: 92},
		{nat: 240 * s, limit: 232 * s, within: 20 * time.Minute, spares: 3, perHour: 34},
		{nat: 350 * s, limit: 339 * s, within: 20 * time.Minute, spares: 3, perHour: 23},
		{nat: 0, limit: 581 * s, within: 30 * time.Minute, spares: 1, perHour: 15},
	} {
		t.Run(tt.nat.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(1)
			w.nat = func(time.Duration) time.Duration { return tt.nat }
			tn := behind(w, BeatConfig{})
			w.run(2 * time.Hour)
			cuts, probes := tn.count()
			spares, died, learned := tn.spares, tn.died, tn.learned
			w.run(22 * time.Hour)
			later, all := tn.count()
			perHour := float64(all-probes) / 8 / 20
			t.Logf("limit %v known after %v, by %d spare connections of which %d died; %d cuts of 8 connections; then %.1f probes an hour, %d cuts; %d spare connections in a day",
				tn.limit, learned.Round(s), spares, died, cuts, perHour, later-cuts, tn.spares)
			if tn.limit < tt.limit || tt.nat > 0 && tn.limit > tt.nat || learned > tt.within || spares > tt.spares || cuts > tt.cuts || later != cuts || perHour > tt.perHour {
				t.Error("not as good as it was")
			}
		})
	}
}

// A flow that dies while the path lives is known by the rule, whatever the jitter
// does: 3 s after the fresh connection's answer and the round trip of asking, or twice
// the retransmission time-out that the kernel has come to; while somebody waits, within
// seconds of the death.
func TestDeadFlowIsKnownSoon(t *testing.T) {
	for _, tt := range []struct {
		name         string
		asks         time.Duration
		after, since time.Duration // at most, since the fresh answer and since the death
	}{
		{name: "silent", after: 3*s + 100*ms, since: 36 * s},
		{name: "somebody waits", asks: 2 * s, after: 3*s + 100*ms, since: 17 * s},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var after, since []time.Duration
			for seed := range uint64(200) {
				w := newWorld(seed)
				c := w.client(BeatConfig{})
				c.asks = tt.asks
				died := 2*time.Minute + time.Duration(w.rnd.Float64()*float64(time.Minute))
				w.at(died, func() { c.flow.dead = true })
				w.run(10 * time.Minute)
				if c.cuts != 1 {
					t.Fatalf("%d cuts", c.cuts)
				}
				after, since = append(after, c.left-c.freshOK), append(since, c.left-died)
			}
			slices.Sort(after)
			slices.Sort(since)
			t.Logf("after the fresh answer: median %v, most %v; after the death: median %v, most %v", after[100], after[199], since[100], since[199])
			if after[199] > tt.after || after[0] < 3*s || since[199] > tt.since {
				t.Error("too late, or too soon")
			}
		})
	}
}
