// SPDX-License-Identifier: Apache-2.0

package attribution_test

import (
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
)

// running plays steps and returns what is known so long after the last of them.
func running(steps []step, later time.Duration) attribution.Finding {
	now := time.Unix(1000, 0)
	var s attribution.Stream
	e := attribution.Evidence{RTO: 200 * ms, RTT: 10 * ms, Ordered: true}
	s.Begin(now, attribution.Source{Path: func() (attribution.Evidence, bool) { return e, true }})
	s.Came(now, attribution.Piece{Events: 1})
	s.Took(now)
	gives := false
	for _, st := range steps {
		now = now.Add(st.after)
		e.Segments += uint64(max(st.events, 1))
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
		if gives = st.write < 0; !gives {
			now = now.Add(st.write)
			s.Took(now)
		}
	}
	before := s
	f := s.Now(now.Add(later))
	if again := s.Now(now.Add(later)); again != f || before.Longest() != s.Longest() {
		panic("asking changes the stream")
	}
	return f
}

func TestWhereTheTimeGoesNow(t *testing.T) {
	burst := func(after time.Duration, events, bytes int, inside bool) step {
		return step{after: after, events: events, bytes: bytes, inside: inside}
	}
	tests := []struct {
		name   string
		steps  []step
		later  time.Duration
		fault  attribution.Fault
		proven bool
		text   string
	}{
		{"steady", steady(100, 50*ms), 20 * ms, "", false, "Healthy: an event about every 50 ms."},
		{"no event yet", nil, 500 * ms, "", false, "Healthy."},
		{"a silence that goes on", steady(100, 50*ms), 3200 * ms, attribution.FaultProvider, false, "The provider is silent, for 3.2 s now."},
		{"a silence that is over", append(steady(20, 50*ms), step{after: 4 * time.Second, events: 1}), 10 * ms, attribution.FaultProvider, false, "The provider was silent for 4.0 s."},
		{"a silence long ago", append(append(steady(20, 50*ms), step{after: 4 * time.Second, events: 1}), steady(500, 50*ms)...), 10 * ms, "", false, "Healthy"},
		{"a silence with a probe's answer", append(steady(20, 50*ms), step{after: 4 * time.Second, events: 1, asked: 200 * ms, answered: 190 * ms}), 10 * ms,
			attribution.FaultProvider, true, "The provider was silent for 4.0 s."},
		{"losses", repeat(step{after: 250 * ms, events: 5, disorder: true}, 6), 10 * ms, attribution.FaultNetwork, true, "The network loses or delays packets"},
		{"losses and batches", append(repeat(step{after: 500 * ms, events: 9, disorder: true}, 6), repeat(step{after: 500 * ms, events: 9}, 4)...), 10 * ms,
			attribution.FaultNetwork, true, "The network loses or delays packets"},
		{"an app that does not take it", append(steady(20, 50*ms), step{after: 50 * ms, events: 1, write: -1}), 2 * time.Second, attribution.FaultApp, true, "Your app read too slowly"},
		{"a full buffer", repeat(burst(900*ms, 18, 4096, true), 4), 10 * ms, attribution.FaultBuffering, true, "18 events arrived at once after 850 ms, 4 times."},
		{"a fast full buffer", repeat(burst(200*ms, 20, 4096, true), 4), 10 * ms, attribution.FaultBuffering, true, "arrived at once"},
		{"whole events by a timer", repeat(burst(time.Second, 10, 2000, false), 4), 10 * ms, attribution.FaultBuffering, false, "arrived at once"},
		{"too few to say", repeat(burst(900*ms, 18, 4096, true), 2), 10 * ms, "", false, "Healthy"},
		{"a model with four tokens a step", repeat(burst(250*ms, 4, 900, false), 40), 10 * ms, "", false, "Healthy"},
		{"a fast model", repeat(burst(60*ms, 8, 1800, false), 100), 10 * ms, "", false, "Healthy"},
		{"two events a second", repeat(burst(time.Second, 2, 500, false), 20), 10 * ms, "", false, "Healthy"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := running(tt.steps, tt.later)
			if f.Fault != tt.fault || f.Proven != tt.proven || !strings.Contains(f.Text(), tt.text) {
				t.Errorf("%q proven %v: %s %q\n%+v", f.Fault, f.Proven, f.Text(), f.Evidence(), f)
			}
		})
	}
}

// What waits for the app counts before a write to it has to wait.
func TestWhatWaitsForTheApp(t *testing.T) {
	f := running(steady(20, 50*ms), 10*ms)
	f.AppWaits(1000)
	if f.Fault != "" {
		t.Errorf("%s", f.Text())
	}
	f.AppWaits(1 << 20)
	if want := "Your app reads too slowly: 1.0 MiB wait for it."; f.Fault != attribution.FaultApp || f.Text() != want {
		t.Errorf("%q: %s, want %s", f.Fault, f.Text(), want)
	}
}

func TestBeforeTheFirstToken(t *testing.T) {
	for stage, want := range map[string]attribution.Fault{"queue": "", "send": "", "dns": attribution.FaultNetwork, "connect": attribution.FaultNetwork, "wait": attribution.FaultProvider, "first_token": attribution.FaultProvider} {
		if f := attribution.Waiting(stage, 12*time.Second); f.Fault != want || !strings.Contains(f.Text(), "12.0 s") {
			t.Errorf("%s: %q, %s", stage, f.Fault, f.Text())
		}
		if f := attribution.Waiting(stage, 900*ms); f.Fault != "" {
			t.Errorf("%s: %q at once", stage, f.Fault)
		}
	}
}
