// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const s = time.Second

// find returns the scenario of a name.
func find(t *testing.T, name string) scenario {
	t.Helper()
	for _, sc := range scenarios() {
		if sc.name == name {
			return sc
		}
	}
	t.Fatalf("no scenario %s", name)
	return scenario{}
}

func analysed(t *testing.T, name string, log *runLog) *ArmResult {
	t.Helper()
	return analyse(Short, find(t, name), BeatArms(), log, rand.New(rand.NewPCG(1, 1))).Arms[0]
}

// One arm of two streams and two blackouts: the first stream is cut in the
// first, after the path was back; the second stream is cut in both, during the
// second once more, and without any reason in between.
func TestCutsAreTakenApart(t *testing.T) {
	log := &runLog{window: window{0, 60 * s}, events: []window{{10 * s, 12 * s}, {30 * s, 34 * s}}, arms: [][]*track{{
		{attempts: []attempt{
			{opened: 0, first: s, heard: 10 * s, ended: 13 * s, cut: true, limit: true, stalls: 0, frames: 200},
			{opened: 13 * s, first: 14 * s, heard: 60 * s, ended: 60 * s, stalls: 1, longest: 5 * s, frames: 800},
		}},
		{attempts: []attempt{
			{opened: 0, first: s, heard: 10 * s, ended: 11 * s, cut: true, why: "read: connection reset by peer"},
			{opened: 11 * s, ended: 11500 * time.Millisecond, cut: true, why: "refused"}, // not opened
			{opened: 12 * s, first: 12 * s, heard: 20 * s, ended: 21 * s, cut: true, limit: true},
			{opened: 21 * s, first: 22 * s, heard: 30 * s, ended: 32 * s, cut: true, limit: true, pings: 4, late: 1},
			{opened: 33 * s, first: 35 * s, heard: 60 * s, ended: 60 * s},
		}},
	}}}
	got := analysed(t, "blackouts", log)
	want := &ArmResult{
		Minutes: (60 + 11 + 9 + 11 + 27) / 60.0, Frames: 1000, Cuts: 4, AfterEvent: 1, FalseAlarms: 1, Unopened: 1,
		Why: map[string]int{"limit": 3, "reset by peer": 1}, Stalls: 1, LongestStall: 5 * s, Pings: 4, LatePings: 1,
		PerEvent: Estimate{Mean: 0.75, Low: 0.5, High: 1, N: 2}, // 2 of 2, then 1 of 2
	}
	want.CutsPerMinute = 4 / want.Minutes
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestCutInADelaySpikeIsAFalseAlarm(t *testing.T) {
	log := &runLog{window: window{0, 30 * s}, events: []window{{10 * s, 12 * s}}, arms: [][]*track{{
		{attempts: []attempt{{opened: 0, first: s, heard: 10 * s, ended: 11 * s, cut: true, limit: true}}},
	}}}
	if got := analysed(t, "spikes", log); got.FalseAlarms != 1 || got.PerEvent.Mean != 1 {
		t.Errorf("false alarms %d, per spike %v", got.FalseAlarms, got.PerEvent.Mean)
	}
}

func TestDeathIsTimedFromItsMoment(t *testing.T) {
	log := &runLog{window: window{0, 30 * s}, events: []window{{5 * s, 30 * s}}, arms: [][]*track{{
		{attempts: []attempt{{opened: 0, first: s, ended: 7 * s, cut: true}}},
		{attempts: []attempt{{opened: 0, first: s, ended: 9 * s, cut: true}}},
		{attempts: []attempt{{opened: 0, first: s, ended: 30 * s}}},
		{attempts: []attempt{{opened: 4 * s, first: 6 * s, ended: 30 * s}}}, // of another flow
		{attempts: []attempt{{opened: 4 * s, ended: 30 * s}}},               // it never began
	}}}
	got := analysed(t, "dead-path", log)
	if got.Known != 2 || got.Later != 2 || got.Unknown != 1 || got.KnownBy != 4*s {
		t.Errorf("%+v", got)
	}
}

func TestAnswersAfterFailuresCountFromTheFirstTry(t *testing.T) {
	log := &runLog{window: window{0, 60 * s}, arms: [][]*track{{
		{attempts: []attempt{
			{opened: 40 * s, ended: 50 * s, cut: true},
			{opened: 40 * s, first: 51 * s, ended: 51 * s},
			{opened: 55 * s, ended: 59 * s, cut: true},
		}},
	}}}
	got := analysed(t, "idle-nat", log)
	if got.Asked != 2 || got.Answered != 1 || got.Failed != 2 || got.Median != 11*s || got.OverASec != 1 {
		t.Errorf("%+v", got)
	}
}

func TestBootstrap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	if got := bootstrap(make([]float64, 60), random); got != (Estimate{Mean: 0, Low: 0, High: 0.05, N: 60}) {
		t.Errorf("no cut in 60 events: %+v, want the rule of three", got)
	}
	half := make([]float64, 100)
	for i := range 50 {
		half[i] = 1
	}
	got := bootstrap(half, random)
	// The interval of a share of a half in 100 is ±0.098.
	if got.Mean != 0.5 || got.Low < 0.37 || got.Low > 0.43 || got.High < 0.57 || got.High > 0.63 {
		t.Errorf("half of 100: %+v", got)
	}
	if got := bootstrap(nil, random); got != (Estimate{}) {
		t.Errorf("no event: %+v", got)
	}
}

func TestChoose(t *testing.T) {
	all, err := choose(Short, nil)
	longOnly := 4 // NATs with limits as they are
	if err != nil || len(all) != len(scenarios())-longOnly {
		t.Errorf("short has %d scenarios: %v", len(all), err)
	}
	smoke, err := choose(Smoke, nil)
	if err != nil || len(smoke) == 0 || len(smoke) >= len(all) {
		t.Errorf("smoke has %d scenarios: %v", len(smoke), err)
	}
	one, err := choose(Smoke, []string{"idle-nat"})
	if err != nil || len(one) != 1 || Smoke.amount(one[0]) == 0 {
		t.Errorf("a scenario that is named runs in each length: %v, %v", one, err)
	}
	streams, err := choose(Smoke, []string{Streams})
	beats, err2 := choose(Smoke, []string{Heartbeats})
	if err != nil || err2 != nil || len(streams) == 0 || len(beats) == 0 || len(streams)+len(beats) != len(smoke) {
		t.Errorf("of %d scenarios %d are about streams and %d about heartbeats: %v, %v", len(smoke), len(streams), len(beats), err, err2)
	}
	if _, err := choose(Full, []string{"rain"}); err == nil || !strings.Contains(err.Error(), "blackouts") {
		t.Errorf("unknown name: %v", err)
	}
	for _, sc := range scenarios() {
		for _, err := range []error{sc.up.Validate(), sc.down.Validate(), sc.nat.Validate()} {
			if err != nil {
				t.Errorf("%s: %v", sc.name, err)
			}
		}
		if strings.ContainsAny(sc.name, ", ") {
			t.Errorf("%q cannot be named on a command line", sc.name)
		}
	}
}

// Each number of a result is in the tables, where a reader looks for it.
func TestTables(t *testing.T) {
	r := &Result{Length: Short, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Streams: 4, Seed: 7, Arms: []ArmInfo{{"tcp", "direct"}, {"ws", "socket"}}}
	add := func(name, kind, event string, arms ...*ArmResult) {
		r.Scenarios = append(r.Scenarios, &ScenarioResult{Name: name, Kind: kind, Event: event, Events: 8, TimeDown: 0.25, Took: 30 * s, Arms: arms})
	}
	add("blackouts", "streaming", "blackout",
		&ArmResult{Minutes: 2, Cuts: 9, CutsPerMinute: 4.51, PerEvent: Estimate{Mean: 0.62, Low: 0.41, High: 0.83}, AfterEvent: 3, FalseAlarms: 5, Stalls: 4, LongestStall: 3400 * time.Millisecond, Unopened: 6},
		&ArmResult{Minutes: 1, Pings: 50, LatePings: 11})
	add("first-steady", "first", "", &ArmResult{Median: 161 * time.Millisecond, P95: 170 * time.Millisecond, Worst: 180 * time.Millisecond},
		&ArmResult{Median: 100 * time.Millisecond, P95: 100 * time.Millisecond})
	add("first-jitter", "first", "", &ArmResult{Median: 322 * time.Millisecond, P95: 340 * time.Millisecond, Worst: 1900 * time.Millisecond, OverASec: 0.13, Failed: 2},
		&ArmResult{Median: 150 * time.Millisecond, P95: 120 * time.Millisecond})
	add("dead-path", "dying", "", &ArmResult{Known: 3, KnownIn: 4500 * time.Millisecond, KnownBy: 4700 * time.Millisecond, Unknown: 1}, &ArmResult{Unknown: 4})
	add("idle-nat", "idle", "", &ArmResult{Asked: 8, Answered: 7, Failed: 9, Median: 10413 * time.Millisecond, Worst: 14000 * time.Millisecond}, &ArmResult{Asked: 8, Failed: 16})
	r.Scenarios[1].Path = PathInfo{P50: 70 * time.Millisecond, P95: 85 * time.Millisecond}
	var b bytes.Buffer
	if err := WriteMarkdown(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2026-01-02 03:04 UTC, short study, seed 7", "25 % of the time",
		"4.51", "0.62", "0.41 – 0.83", "3 of 9", "| 6 ", "0 (11 of 50)", "2.00 (3.4 s)",
		"161 ms / 170 ms / 180 ms, 0 %", "322 ms / 340 ms / 1900 ms, 13 %, 2 failed", "+100 %, +100 %", "+50 %, +20 %", "+130 %, +100 %", "+43 %, +18 %",
		"4.5 s (4.7 s), 1 not within 30s", "4 not within 30s", "7 of 8, 9 failed, 10413 ms (14000 ms)", "0 of 8, 16 failed",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
