// SPDX-License-Identifier: Apache-2.0

package attribution_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
)

const ms = time.Millisecond

// A step is one read of an answer.
type step struct {
	after    time.Duration // since the app took the last
	events   int
	bytes    int
	inside   bool          // it ends inside an event
	write    time.Duration // the app takes it so late
	disorder bool          // a segment came out of order meanwhile
	lag      bool          // bytes wait for the app from now on
	asked    time.Duration // so long before it came a probe left; 0 = none
	answered time.Duration // so long before it came its answer was there; 0 = it was not
}

// steady is n events, one at a time.
func steady(n int, gap time.Duration) []step {
	out := make([]step, n)
	for i := range out {
		out[i] = step{after: gap, events: 1}
	}
	return out
}

// play returns where the time of the steps went, and how much there was.
func play(steps []step) (s attribution.Stream, p attribution.Parts, total time.Duration) {
	start := time.Unix(1000, 0)
	now, lag := start, false
	e := attribution.Evidence{RTO: 200 * ms, RTT: 10 * ms, Ordered: true}
	s.Begin(now, attribution.Source{
		Path: func() (attribution.Evidence, bool) { return e, true },
		Lag:  func() bool { return lag },
	})
	s.Came(now, attribution.Piece{Events: 1})
	for _, st := range steps {
		now = now.Add(st.after)
		if st.disorder {
			e.Disorder++
		}
		if st.asked > 0 {
			e.Asked = now.Add(-st.asked)
			if st.answered > 0 {
				e.Answered = now.Add(-st.answered)
			}
		}
		s.Came(now, attribution.Piece{Events: st.events, Bytes: st.bytes, Inside: st.inside})
		lag = st.lag
		now = now.Add(st.write)
		s.Took(now)
	}
	return s, s.End(now), now.Sub(start)
}

func TestWhereTheTimeWent(t *testing.T) {
	tests := []struct {
		name  string
		steps []step
		want  attribution.Parts
		fault attribution.Fault
	}{
		{"steady", steady(100, 50*ms), attribution.Parts{Provider: 5000 * ms}, ""},
		{"a provider that thinks", append(steady(20, 50*ms), step{after: 5 * time.Second, events: 1}),
			attribution.Parts{Provider: 6000 * ms}, attribution.FaultProvider},
		{"a reader that takes its time", []step{{after: 50 * ms, events: 1, write: 400 * ms}, {after: ms, events: 9, write: 400 * ms}, {after: ms, events: 9}},
			attribution.Parts{Provider: 52 * ms, App: 800 * ms}, attribution.FaultApp},
		{"a reader that the kernel waits for", []step{{after: 50 * ms, events: 1, lag: true}, {after: 1050 * ms, events: 1, lag: true}, {after: 1000 * ms, events: 1}},
			attribution.Parts{Provider: 1100 * ms, App: 1000 * ms}, attribution.FaultApp},
		{"a hop that collects", repeat(step{after: 500 * ms, events: 10}, 6),
			attribution.Parts{Provider: 6 * 50 * ms, Held: 6 * 450 * ms}, attribution.FaultBuffering},
		{"an outage", append(steady(20, 50*ms), step{after: 5 * time.Second, events: 100}),
			attribution.Parts{Provider: 1050 * ms, Network: 4950 * ms}, attribution.FaultNetwork},
		{"losses", repeat(step{after: 250 * ms, events: 5, disorder: true}, 6),
			attribution.Parts{Provider: 6 * 50 * ms, Network: 6 * 200 * ms}, attribution.FaultNetwork},
		{"a loss before which there was a thought", append(steady(20, 50*ms), step{after: 5 * time.Second, events: 1, disorder: true}),
			attribution.Parts{Provider: 5400 * ms, Network: 600 * ms}, attribution.FaultNetwork},
		{"a probe that stays out", append(steady(20, 50*ms), step{after: 4 * time.Second, events: 1, asked: 3 * time.Second}),
			attribution.Parts{Provider: 2010 * ms, Network: 2990 * ms}, attribution.FaultNetwork},
		{"a probe whose answer is late", append(steady(20, 50*ms), step{after: 4 * time.Second, events: 1, asked: 3 * time.Second, answered: 1 * time.Second}),
			attribution.Parts{Provider: 3010 * ms, Network: 1990 * ms}, attribution.FaultNetwork},
		{"a probe that proves the provider silent", append(steady(20, 50*ms), step{after: 4 * time.Second, events: 40, asked: 110 * ms, answered: 100 * ms}),
			attribution.Parts{Provider: 5000 * ms}, attribution.FaultProvider},
		{"several tokens a step", repeat(step{after: 60 * ms, events: 4}, 20), attribution.Parts{Provider: 1200 * ms}, ""},
		{"no events at all", []step{{after: 50 * ms}, {after: 500 * ms}, {after: 50 * ms}}, attribution.Parts{Provider: 600 * ms}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, got, total := play(tt.steps)
			if got != tt.want || got.Total() != total {
				t.Errorf("%+v in %v, want %+v", got, total, tt.want)
			}
			fault := attribution.Summary{Parts: got, Longest: s.Longest(), Tokens: 100}.Fault()
			if fault != tt.fault {
				t.Errorf("the fault is %q, want %q", fault, tt.fault)
			}
		})
	}
}

func repeat(st step, n int) []step {
	out := make([]step, n)
	for i := range out {
		out[i] = st
	}
	return out
}

// Whatever comes, the parts sum to the whole to the nanosecond, and none is negative.
func TestThePartsSumToTheWhole(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		steps := make([]step, r.IntN(60))
		for i := range steps {
			steps[i] = step{
				after: time.Duration(r.ExpFloat64() * float64(40*ms)), events: r.IntN(12), write: time.Duration(r.ExpFloat64() * float64(ms)),
				disorder: r.IntN(5) == 0, lag: r.IntN(4) == 0,
			}
			if r.IntN(4) == 0 {
				steps[i].after = time.Duration(r.ExpFloat64() * float64(5*time.Second))
			}
			if r.IntN(3) == 0 {
				steps[i].asked = time.Duration(r.Int64N(int64(3 * time.Second)))
				steps[i].answered = time.Duration(r.Int64N(int64(steps[i].asked) + 1))
			}
		}
		_, p, total := play(steps)
		if p.Total() != total || min(p.Provider, p.Held, p.Network, p.App) < 0 {
			t.Fatalf("seed %d: %+v sums to %v of %v", seed, p, p.Total(), total)
		}
	}
}

func TestFaultsBeforeTheStream(t *testing.T) {
	for name, tt := range map[string]struct {
		s    attribution.Summary
		want attribution.Fault
	}{
		"nothing":            {attribution.Summary{Head: time.Second}, ""},
		"a slow head":        {attribution.Summary{Head: 12 * time.Second}, attribution.FaultProvider},
		"a slow opening":     {attribution.Summary{Opening: 3 * time.Second}, attribution.FaultNetwork},
		"all of it at once":  {attribution.Summary{Head: 3 * time.Second, Tokens: 100, Parts: attribution.Parts{App: ms}}, attribution.FaultBuffering},
		"a short answer":     {attribution.Summary{Head: 3 * time.Second, Tokens: 2}, ""},
		"one late, not much": {attribution.Summary{Parts: attribution.Parts{Provider: time.Minute, Network: time.Second}}, ""},
	} {
		if got := tt.s.Fault(); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func BenchmarkToken(b *testing.B) {
	var s attribution.Stream
	now := time.Unix(1000, 0)
	s.Begin(now, attribution.Source{Path: func() (attribution.Evidence, bool) { return attribution.Evidence{}, true }})
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(20 * ms)
		s.Came(now, attribution.Piece{Events: 1})
		now = now.Add(20 * time.Microsecond)
		s.Took(now)
	}
}
