// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics(strings.NewReader(`# HELP warmwire_heartbeat_probes_total pings
warmwire_heartbeat_probes_total{side="app",upstream="ws"} 3
warmwire_heartbeat_probes_total{side="upstream",upstream="ws"} 12
warmwire_heartbeat_verdicts_total{upstream="ws",verdict="alive"} 9
warmwire_heartbeat_verdicts_total{upstream="ws",verdict="doubtful"} 4
warmwire_heartbeat_verdicts_total{upstream="h2",verdict="path_down"} 2
warmwire_heartbeat_verdicts_total{upstream="h2",verdict="dead_flow"} 1
warmwire_heartbeat_false_alarms_total{upstream="ws"} 5
warmwire_requests_total{upstream="ws",outcome="ok"} 7
`))
	want := map[string]BeatCounts{"ws": {Pings: 12, Doubts: 4, FalseAlarms: 5}, "h2": {PathDown: 2, DeadFlow: 1}}
	delete(got, "") // of metrics without an upstream
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got\n%s", err, diff)
	}
	if _, err := parseMetrics(strings.NewReader(`warmwire_heartbeat_false_alarms_total{upstream="ws"} many`)); err == nil {
		t.Error("a count that is none was read")
	}
}

// armOf is the place of a way about heartbeats.
func armOf(t *testing.T, name string) int {
	t.Helper()
	i := slices.IndexFunc(BeatArms(), func(a Arm) bool { return a.Name == name })
	if i < 0 {
		t.Fatalf("no way %s", name)
	}
	return i
}

// beatsAnalysed is the result of a scenario of which one way has the tracks.
func beatsAnalysed(t *testing.T, scenario, way string, log *runLog, tracks ...*track) *ArmResult {
	t.Helper()
	log.arms = make([][]*track, len(BeatArms()))
	log.arms[armOf(t, way)] = tracks
	return analyse(Short, find(t, scenario), BeatArms(), log, nil).Arms[armOf(t, way)]
}

// Of two streams behind a NAT one is cut twice, and one is dead at the end without
// anybody knowing. Together they were watched for half an hour each.
func TestCutsBehindANATAreTakenApart(t *testing.T) {
	log := &runLog{window: window{0, 1800 * s}, beats: newBeatLog(len(BeatArms()))}
	i := armOf(t, "ww ws")
	log.beats.counts[i], log.beats.packets[i], log.beats.bytes[i] = BeatCounts{Pings: 60}, 300, 15000
	got := beatsAnalysed(t, "nat-10", "ww ws", log,
		&track{attempts: []attempt{
			{opened: 0, first: s, ended: 20 * s, cut: true, silent: 19 * s},
			{opened: 20 * s, ended: 21 * s, cut: true}, // not opened
			{opened: 21 * s, first: 22 * s, ended: 60 * s, cut: true, silent: 30 * s},
			{opened: 60 * s, first: 61 * s, ended: 1800 * s, silent: 5 * s},
		}},
		&track{attempts: []attempt{{opened: 0, first: s, ended: 1800 * s, silent: 40 * s}}})
	want := &BeatResult{Warmwire: &BeatCounts{Pings: 60}, Again: 1, Unnoticed: 1, Pings: 60, Packets: 300, Bytes: 15000}
	if diff := gocmp.Diff(want, got.Beats); diff != "" || got.Cuts != 2 {
		t.Errorf("%d cuts, -want +got\n%s", got.Cuts, diff)
	}
}

func TestADeathIsTimedFromWhatNobodyAnswered(t *testing.T) {
	log := &runLog{window: window{0, 30 * s}, events: []window{{5 * s, 30 * s}}, beats: newBeatLog(len(BeatArms()))}
	i := armOf(t, "ww h2")
	log.beats.asked[i], log.beats.doubted[i], log.beats.judged[i] = 10*s, 11*s, 14500*time.Millisecond
	got := beatsAnalysed(t, "dead-talk", "ww h2", log,
		&track{attempts: []attempt{{opened: 0, first: s, ended: 15 * s, cut: true}}},
		&track{attempts: []attempt{{opened: 0, first: s, ended: 14 * s, cut: true}}})
	if got.Beats.FromAsked != 4*s || got.Beats.FromDoubt != 3500*time.Millisecond || got.Beats.ToDoubt != 6*s || got.KnownBy != 10*s {
		t.Errorf("%+v, known by %v", got.Beats, got.KnownBy)
	}
}

// Each aim can be missed, and what Warmwire does not do is none.
func TestMissedAims(t *testing.T) {
	good := func() *ArmResult {
		return &ArmResult{Known: 4, Beats: &BeatResult{Warmwire: &BeatCounts{}, FromDoubt: 3100 * time.Millisecond}}
	}
	for _, tt := range []struct {
		kind, event string
		speak       bool
		spoil       func(*ArmResult)
		want        string
	}{
		{"streaming", "blackout", false, func(*ArmResult) {}, ""},
		{"streaming", "blackout", false, func(a *ArmResult) { a.PerEvent.Mean = 0.019 }, ""},
		{"streaming", "blackout", false, func(a *ArmResult) { a.PerEvent.Mean = 0.021 }, "0.021 cuts per blackout"},
		{"streaming", "spike", false, func(a *ArmResult) { a.Beats.Warmwire.FalseAlarms = 1 }, "1 false alarms"},
		{"streaming", "spike", false, func(a *ArmResult) { a.FalseAlarms = 2 }, "2 cuts"},
		{"streaming", "blackout", false, func(a *ArmResult) { a.Beats.Warmwire.FalseAlarms = 1 }, ""},
		{"streaming", "blackout", false, func(a *ArmResult) { a.FalseAlarms = 1 }, "1 false alarms"},
		{"streaming", "", false, func(a *ArmResult) { a.Cuts = 1 }, "1 cuts"},
		{"streaming", "", false, func(a *ArmResult) { a.Beats.Unnoticed = 1 }, "1 streams were dead"},
		{"nat", "", false, func(a *ArmResult) { a.Cuts = 3 }, ""},
		{"nat", "", false, func(a *ArmResult) { a.Beats.Again = 2 }, "2 cuts of streams"},
		{"dying", "", false, func(*ArmResult) {}, ""},
		{"dying", "", false, func(a *ArmResult) { a.Unknown = 1 }, "1 of 5 streams did not know"},
		{"dying", "", false, func(a *ArmResult) { a.Known = 0 }, "0 of 0 streams did not know"},
		{"dying", "", false, func(a *ArmResult) { a.Beats.FromDoubt = 6 * s }, "6s from the doubt"},
		{"dying", "", true, func(a *ArmResult) { a.Beats.FromDoubt, a.Beats.ToDoubt = 12*s, 5*s }, ""},
		{"dying", "", true, func(a *ArmResult) { a.Beats.FromDoubt, a.Beats.ToDoubt = 13*s, 5*s }, "13s from the doubt"},
	} {
		rival, ours := &ArmResult{Cuts: 9, Unknown: 4, Beats: &BeatResult{Unnoticed: 3}}, good()
		tt.spoil(ours)
		var idle time.Duration
		if tt.kind == "nat" {
			tt.kind, idle = "streaming", time.Minute
		}
		r := &Result{BeatArms: []ArmInfo{{Name: "ws"}, {Name: "ww"}}, Scenarios: []*ScenarioResult{
			{Name: "sc", Kind: tt.kind, Event: tt.event, Heartbeats: true, Speak: tt.speak, NATIdle: idle, Path: PathInfo{RTT: 80 * time.Millisecond}, Arms: []*ArmResult{rival, ours}},
			{Name: "other", Kind: "streaming", Arms: []*ArmResult{{Cuts: 5}}},
		}}
		got := strings.Join(r.Missed(), "; ")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s %s: missed %q, want %q", tt.kind, tt.event, got, tt.want)
		}
	}
}

// Each number about heartbeats is in the tables, and those of other ways are not
// mixed with them.
func TestHeartbeatTables(t *testing.T) {
	ww := &BeatCounts{Pings: 7, Doubts: 31, PathDown: 32, DeadFlow: 33, FalseAlarms: 34}
	r := &Result{Length: Short, Arms: []ArmInfo{{"plainway", "direct"}}, BeatArms: []ArmInfo{{"ws", "fixed"}, {"ww", "Warmwire"}}}
	add := func(name, kind, event string, arms ...*ArmResult) {
		var idle time.Duration
		if strings.HasPrefix(name, "nat-") {
			idle = time.Minute
		}
		r.Scenarios = append(r.Scenarios, &ScenarioResult{Name: name, Kind: kind, Event: event, Heartbeats: true, NATIdle: idle, Took: 30 * s, Arms: arms})
	}
	add("silent-spikes", "streaming", "spike", &ArmResult{Cuts: 9, FalseAlarms: 5, PerEvent: Estimate{Mean: 0.42}, Beats: &BeatResult{Unnoticed: 3}}, &ArmResult{Beats: &BeatResult{Warmwire: ww}})
	add("nat-60", "streaming", "", &ArmResult{Cuts: 8, Beats: &BeatResult{Again: 6, Unnoticed: 1, Pings: 180, Packets: 540, Bytes: 33400}}, &ArmResult{Beats: &BeatResult{Warmwire: &BeatCounts{}}})
	add("dead-talk", "dying", "", &ArmResult{Unknown: 2, Beats: &BeatResult{}},
		&ArmResult{Known: 4, KnownIn: 9 * s, KnownBy: 9200 * time.Millisecond, Beats: &BeatResult{Warmwire: &BeatCounts{}, FromAsked: 4080 * time.Millisecond, FromDoubt: 3070 * time.Millisecond}})
	var b bytes.Buffer
	if err := WriteMarkdown(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"0.42", "9 (5); 3", "8, 6, 1", "180, 540, 33", "31, 32, 33; 34", "9.0 s (9.2 s)", "4.08 s, 3.07 s", "2 not within 30s",
		"silent-spikes, ww: 34 false alarms, of them 0 cuts, want none",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "plainway") {
		t.Errorf("a way that was not measured is in\n%s", b.String())
	}
}
