// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
)

// quickBeat is a heartbeat that probes as often as the fixed one beside it.
const quickBeat = "min_interval: 1s, max_interval: 3s"

// knownUpstream is the one whose path was learned by an earlier Warmwire.
const knownUpstream = "wsknown"

// BeatArms returns the ways of the scenarios about heartbeats: fixed ones and those
// of Warmwire. Those that probe as often as a fixed one show what its judgement is
// worth: with the default interval, few probes would meet a blackout.
func BeatArms() []Arm {
	ww := func(name, about, upstream, heartbeat string, tls bool, make func(*env) client) Arm {
		return Arm{Name: name, About: "through Warmwire, " + about, make: make, tls: tls, upstream: upstream, heartbeat: heartbeat}
	}
	const quick = "; it may probe after 1 s and must every 3 s"
	return []Arm{
		{Name: "tcp", About: "direct, HTTP/1.1, no limit: what the network alone does", make: plainDirect(0)},
		{Name: "ws 3/1.5", About: "direct, WebSocket, ping every 3 s, 1.5 s for its pong", make: wsDirect(3*time.Second, 1500*time.Millisecond)},
		{Name: "ws 20/20", About: "direct, WebSocket, ping every 20 s, 20 s for its pong", make: wsDirect(20*time.Second, 20*time.Second)},
		{Name: "h2 3+1.5", About: "direct, HTTP/2 over TLS, PING after 3 s of silence, 1.5 s for its answer", make: h2Direct(3*time.Second, 1500*time.Millisecond), tls: true},
		ww("ww ws", "WebSocket", "ws", "", false, throughWS("ws")),
		ww("ww h2", "HTTP/2 over TLS upstream", "h2", "", true, throughHTTP("h2")),
		ww("ww h1", "HTTP/1.1 upstream", "h1", "", false, throughHTTP("h1")),
		ww("ww ws known", "WebSocket; what the NAT bears was learned before", knownUpstream, "", false, throughWS(knownUpstream)),
		ww("ww ws 3s", "WebSocket"+quick, "wsquick", quickBeat, false, throughWS("wsquick")),
		ww("ww h2 3s", "HTTP/2 over TLS upstream"+quick, "h2quick", quickBeat, true, throughHTTP("h2quick")),
		ww("ww h1 3s", "HTTP/1.1 upstream"+quick, "h1quick", quickBeat, false, throughHTTP("h1quick")),
	}
}

// beatScenarios returns those about heartbeats. They run side by side, each in a
// network of its own.
func beatScenarios() []scenario {
	both := func(s scenario, l netlab.Link) scenario { s.up, s.down, s.beats = l, l, true; return s }
	silent := [2]time.Duration{5 * time.Second, 20 * time.Second}
	talks := [2]time.Duration{200 * time.Millisecond, 300 * time.Millisecond}
	all := []scenario{
		both(scenario{name: "talk-blackouts", about: "a token every 250 ms, and WebSockets' apps speak; wandering, and nothing passes for 1-4 s now and then",
			kind: streaming, event: blackout, think: talks, speak: true, short: 4, full: 100}, jittery()),
		both(scenario{name: "silent-blackouts", about: "a token every 5-20 s; wandering, and nothing passes for 1-4 s now and then",
			kind: streaming, event: blackout, think: silent, smoke: 2, short: 4, full: 100}, jittery()),
		both(scenario{name: "silent-spikes", about: "a token every 5-20 s; wandering, and everything is held for 1-4 s now and then",
			kind: streaming, event: spike, think: silent, short: 4, full: 60}, jittery()),
		both(scenario{name: "silent-bloat", about: "a token every 5-20 s; 4 Mbit/s, a queue of 3 s and eight downloads beside",
			kind: streaming, bulk: true, think: silent, short: 45, full: 600}, bloated()),
		both(scenario{name: "model-thinks", about: "wandering, and the model is silent for 1-2 min (short: 15-25 s) before each token",
			kind: streaming, think: [2]time.Duration{time.Minute, 2 * time.Minute}, thinkShort: [2]time.Duration{15 * time.Second, 25 * time.Second}, short: 50, full: 840}, jittery()),
		withNAT(both(scenario{name: "dead-talk", about: "a token every 250 ms, and WebSockets' apps speak; a NAT forgets all flows, the path lives",
			kind: dying, flow: true, think: talks, speak: true, smoke: 26, short: 30, full: 60}, far()), 0),
		withNAT(both(scenario{name: "dead-silent", about: "no token; a NAT forgets all flows, the path lives",
			kind: dying, flow: true, think: [2]time.Duration{time.Hour, 2 * time.Hour}, short: 48, full: 90}, far()), 0),
		natScenario("nat-10", 10*time.Second, 48, 0), // no NAT is that forgetful: a scaled form
	}
	for _, limit := range []time.Duration{60, 100, 240, 350} {
		all = append(all, natScenario(fmt.Sprintf("nat-%d", limit), limit*time.Second, 0, 840))
	}
	return all
}

// natScenario is one in which tokens are further apart than a NAT remembers.
func natScenario(name string, limit time.Duration, short, full int) scenario {
	silence := limit + limit/8 + 2*time.Second
	return withNAT(scenario{name: name, about: fmt.Sprintf("a token every %v; a NAT forgets flows that are idle for %v, and says nothing", silence.Round(time.Second), limit),
		kind: streaming, beats: true, up: far(), down: far(), think: [2]time.Duration{silence, silence + time.Second}, short: short, full: full}, limit)
}

// think is between which times the model is silent, 0 if it is as usual.
func (l Length) think(s scenario) (low, high time.Duration) {
	if l != Full && s.thinkShort[1] > 0 {
		return s.thinkShort[0], s.thinkShort[1]
	}
	return s.think[0], s.think[1]
}

// BeatCounts is what a Warmwire says of the heartbeats of one upstream.
type BeatCounts struct {
	Pings       int `json:"pings"` // of WebSockets, to the upstream
	Doubts      int `json:"doubts"`
	PathDown    int `json:"path_down"`
	DeadFlow    int `json:"dead_flow"`
	FalseAlarms int `json:"false_alarms"`
}

// parseMetrics reads the counts of all upstreams from a page in Prometheus' text
// format.
func parseMetrics(page io.Reader) (map[string]BeatCounts, error) {
	counts := map[string]BeatCounts{}
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		name, rest, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "warmwire_heartbeat_"), "{")
		labels, value, ok2 := strings.Cut(rest, "} ")
		if !ok || !ok2 {
			continue
		}
		label := map[string]string{}
		for _, l := range strings.Split(labels, ",") { // no value of these has a comma
			k, v, _ := strings.Cut(l, "=")
			label[k] = strings.Trim(v, `"`)
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		n := int(f)
		c := counts[label["upstream"]]
		switch name + " " + cmp.Or(label["verdict"], label["side"]) {
		case "probes_total upstream":
			c.Pings = n
		case "verdicts_total doubtful":
			c.Doubts = n
		case "verdicts_total path_down":
			c.PathDown = n
		case "verdicts_total dead_flow":
			c.DeadFlow = n
		case "false_alarms_total ":
			c.FalseAlarms = n
		}
		counts[label["upstream"]] = c
	}
	return counts, lines.Err()
}

// A beatLog is what was seen of the ways of a scenario about heartbeats, beside
// their streams. Its slices follow the arms.
type beatLog struct {
	counts  []BeatCounts
	packets []uint64 // on the wire, both ways, while the scenario ran
	bytes   []uint64
	asked   []time.Duration // when the first packet of a dead flow came to the NAT; 0 = none did
	doubted []time.Duration // when Warmwire had its first doubt after the death; 0 = it had none
	judged  []time.Duration // when it left the first flow
}

// A BeatResult is what one way went through in a scenario about heartbeats.
type BeatResult struct {
	Warmwire *BeatCounts `json:"warmwire,omitempty"`
	// Again are the cuts of streams that had been cut before; Unnoticed the streams
	// that were dead in the end without anybody knowing.
	Again     int `json:"again"`
	Unnoticed int `json:"unnoticed"`

	Pings   float64 `json:"pings_per_hour"` // and stream
	Packets float64 `json:"packets_per_hour"`
	Bytes   float64 `json:"bytes_per_hour"`

	// Of a death: from the first packet that nobody answered, and from Warmwire's
	// doubt, until the first stream knew; 0 = not known.
	FromAsked time.Duration `json:"from_asked,omitempty"`
	FromDoubt time.Duration `json:"from_doubt,omitempty"`
	ToDoubt   time.Duration `json:"to_doubt,omitempty"` // from the death to the doubt
}

// tardy is how much later than the model speaks a token may be, if the stream lives:
// TCP's retransmissions after a blackout of 4 s, or a queue of 3 s both ways.
const tardy = 10 * time.Second

// analyseBeats makes results of what was seen of the i-th arm.
func analyseBeats(r *ArmResult, l Length, sc scenario, log *runLog, i int, arm Arm) {
	b := &BeatResult{}
	r.Beats = b
	seen := log.beats
	if arm.upstream != "" {
		b.Warmwire = &seen.counts[i]
	}
	_, high := l.think(sc)
	for _, t := range log.arms[i] {
		cuts := 0
		for _, a := range t.attempts {
			if a.cut && !a.failure() {
				cuts++
			}
			if sc.kind == streaming && !a.cut && a.first > 0 && a.silent > high+tardy {
				b.Unnoticed++
			}
		}
		b.Again += max(0, cuts-1)
	}
	hours := (log.end - log.start).Hours() * float64(len(log.arms[i]))
	pings := r.Pings
	if b.Warmwire != nil {
		pings = b.Warmwire.Pings
	}
	b.Pings, b.Packets, b.Bytes = float64(pings)/hours, float64(seen.packets[i])/hours, float64(seen.bytes[i])/hours
	if sc.kind != dying {
		return
	}
	known := firstKnown(log, log.arms[i])
	if known > 0 && seen.asked[i] > 0 {
		b.FromAsked = known - seen.asked[i]
	}
	if seen.judged[i] > 0 && seen.doubted[i] > 0 {
		b.FromDoubt, b.ToDoubt = seen.judged[i]-seen.doubted[i], seen.doubted[i]-log.events[0].start
	}
}

// firstKnown is when the first stream ended after a death, 0 if none did.
func firstKnown(log *runLog, tracks []*track) time.Duration {
	var known []time.Duration
	for _, t := range tracks {
		for _, a := range t.attempts {
			if a.cut && !a.failure() && a.ended >= log.events[0].start {
				known = append(known, a.ended)
			}
		}
	}
	if len(known) == 0 {
		return 0
	}
	return slices.Min(known)
}

// Aims of Warmwire's heartbeats.
const (
	mostCuts  = 0.02 // for each blackout or spike and stream
	judgement = 3 * time.Second
	judgeRTTs = 2 // of the fresh connection, which may need TLS
	// judgeSlack is for what a busy machine and a look every 50 ms add.
	judgeSlack = 2 * time.Second
)

// Missed says which aims of Warmwire's heartbeats were missed. The costs are none of
// these: they are compared in a table.
func (r *Result) Missed() []string {
	var missed []string
	for _, s := range r.Scenarios {
		for i, a := range s.Arms {
			if a.Beats == nil || a.Beats.Warmwire == nil {
				continue
			}
			for _, why := range missedBy(s, a) {
				missed = append(missed, fmt.Sprintf("%s, %s: %s", s.Name, r.BeatArms[i].Name, why))
			}
		}
	}
	return missed
}

// missedBy says which aims one way of Warmwire's has missed in a scenario.
func missedBy(s *ScenarioResult, a *ArmResult) (missed []string) {
	miss := func(bad bool, format string, args ...any) {
		if bad {
			missed = append(missed, fmt.Sprintf(format, args...))
		}
	}
	b := a.Beats
	if s.Kind == "dying" {
		late := judgement
		if s.Speak {
			// What the kernel has sent in vain makes its time-out grow to the time that
			// has passed, and a probe waits behind that: it is given twice as long.
			late = max(late, 2*b.ToDoubt)
		}
		late += judgeRTTs*s.Path.RTT + judgeSlack
		miss(a.Unknown > 0 || a.Known == 0, "%d of %d streams did not know of the death", a.Unknown, a.Known+a.Unknown)
		miss(b.FromDoubt > late, "%v from the doubt to the verdict, want %v at most", b.FromDoubt.Round(time.Millisecond), late.Round(time.Millisecond))
		return missed
	}
	switch {
	case s.NATIdle > 0:
		miss(b.Again > 0, "%d cuts of streams that had been cut before", b.Again)
	case s.Event != "":
		miss(a.PerEvent.Mean >= mostCuts, "%.3f cuts per %s and stream, want less than %v", a.PerEvent.Mean, s.Event, mostCuts)
	default:
		miss(a.Cuts > 0, "%d cuts, want none", a.Cuts)
	}
	alarms := a.FalseAlarms
	if s.Event != string(blackout) { // there TCP may be silent for as long again as the path was
		alarms = max(alarms, b.Warmwire.FalseAlarms)
	}
	miss(alarms > 0, "%d false alarms, of them %d cuts, want none", alarms, a.FalseAlarms)
	miss(b.Unnoticed > 0, "%d streams were dead and nobody knew", b.Unnoticed)
	return missed
}
