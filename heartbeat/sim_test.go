// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
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

// A road is a way for two hours, and how many troubles it has.
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

// drive drives eight connections over a road for two hours.
func drive(r road, l load, cfg BeatConfig, ping [2]time.Duration) (c client, troubles int, w *world) {
	const hours, streams = 2, 8
	w = newWorld(42)
	troubles = r.build(w, hours*time.Hour)
	var all []*client
	for range streams {
		c := w.client(cfg)
		c.tokens, c.asks, c.ping = l.tokens, l.asks, ping
		all = append(all, c)
	}
	w.run(hours * time.Hour)
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
					c, troubles, _ := drive(r, l, p.cfg, [2]time.Duration{})
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

// What the same roads do to the fixed timers of the field: the figures of the
// documentation, and proof that the roads are bad.
func TestFixedTimersAreCut(t *testing.T) {
	for name, ping := range map[string][2]time.Duration{
		"3 s and 1.5 s": {3 * s, 1500 * ms},
		"20 s and 20 s": {20 * s, 20 * s},
	} {
		for _, r := range roads {
			t.Run(name+"/"+r.name, func(t *testing.T) {
				t.Parallel()
				c, troubles, _ := drive(r, loads[1], BeatConfig{}, ping)
				t.Logf("%d cuts in %d troubles of streams: %.3f", c.cuts, troubles, float64(c.cuts)/float64(troubles))
				if short := ping[1] < 2*s; short && r.name == "blackouts of 1-4 s" && c.cuts*5 < troubles {
					t.Error("the blackouts cut nobody")
				}
			})
		}
	}
}
