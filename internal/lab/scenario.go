// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
)

// The path that the source study measured on: a round trip of 80 ms that wanders
// by 35 ms, over seconds. Delays drawn anew for each packet would only add to the
// round trip, because packets keep their order.
const (
	oneWay     = 40 * time.Millisecond
	spread     = 39 * time.Millisecond // even between 1 and 79 ms each way; the report says what came of it
	spreadTime = 2 * time.Second
)

// far is the path without jitter or loss.
func far() netlab.Link { return netlab.Link{Delay: oneWay} }

// jittery is the study's path.
func jittery() netlab.Link {
	return netlab.Link{Delay: oneWay, Jitter: spread, JitterTime: spreadTime}
}

func lossy(loss float64) netlab.Link {
	l := jittery()
	l.Loss = loss
	return l
}

// bursty loses 1 % of the packets, in bursts of ten on average.
func bursty() netlab.Link {
	l := jittery()
	l.Burst = netlab.Burst{Enter: 0.001, Leave: 0.1}
	return l
}

// bloated is a slow link with a queue that nobody keeps short.
func bloated() netlab.Link {
	l := far()
	l.Rate, l.Queue = 4_000_000, 3*time.Second
	return l
}

// A kind is what clients do in a scenario.
type kind int

const (
	streaming  kind = iota // hold streams open and open them again when they are cut
	firstFrame             // open a stream anew, again and again, up to its first frame
	dying                  // hold streams open until the path, or the flows, die for good
	idling                 // ask, be idle, ask again
)

// An event is what happens to the path now and then in a scenario.
type event string

const (
	noEvent  event = ""
	blackout event = "blackout" // everything is lost for 1-4 s
	spike    event = "spike"    // everything is held for 1-4 s
)

// Lengths of events.
const (
	eventMin = time.Second
	eventMax = 4 * time.Second
	// Between the end of one and the start of the next, so that streams have
	// recovered from one before the other comes: TCP may be silent after an
	// outage for as long as it was.
	eventGapMin = 7 * time.Second
	eventGapMax = 11 * time.Second
)

// A scenario is one situation.
type scenario struct {
	name  string // for the command line and tables
	about string
	kind  kind

	up, down netlab.Link
	nat      netlab.NAT
	event    event
	pauses   bool // of the model
	bulk     bool // downloads beside the streams
	flow     bool // the flows die, not the path

	// beats makes it one of those about heartbeats: with the ways of BeatArms, in a
	// network of its own, beside the others of its kind.
	beats bool
	// think is how long the model is silent between two tokens, in a study of full
	// length; thinkShort in the others, if it differs.
	think, thinkShort [2]time.Duration
	speak             bool // apps with WebSockets say something all the time, too

	// What each length of the study gives it: seconds of streaming, events, or
	// repetitions.
	smoke, short, full int
}

// scenarios returns all of them, in the order of the report.
func scenarios() []scenario {
	both := func(s scenario, l netlab.Link) scenario { s.up, s.down = l, l; return s }
	return append([]scenario{
		both(scenario{name: "steady", about: "RTT 80 ms, nothing else", kind: streaming, short: 6, full: 60}, far()),
		both(scenario{name: "jitter", about: "RTT 80 ms, wandering", kind: streaming, short: 12, full: 180}, jittery()),
		both(scenario{name: "loss-1", about: "wandering, and 1 % of the packets lost each way", kind: streaming, short: 12, full: 180}, lossy(0.01)),
		both(scenario{name: "loss-2", about: "wandering, and 2 % lost each way", kind: streaming, short: 12, full: 180}, lossy(0.02)),
		both(scenario{name: "bursts", about: "wandering, and 1 % lost in bursts of 10 on average", kind: streaming, short: 12, full: 180}, bursty()),
		both(scenario{name: "blackouts", about: "wandering, and nothing passes for 1-4 s now and then", kind: streaming, event: blackout, smoke: 1, short: 5, full: 80}, jittery()),
		both(scenario{name: "spikes", about: "wandering, and everything is held (not lost) for 1-4 s now and then", kind: streaming, event: spike, short: 2, full: 30}, jittery()),
		both(scenario{name: "pauses", about: "wandering, and the model pauses for 0.5-4 s", kind: streaming, pauses: true, short: 15, full: 180}, jittery()),
		both(scenario{name: "bufferbloat", about: "4 Mbit/s, a queue of 3 s and eight downloads beside", kind: streaming, bulk: true, short: 25, full: 300}, bloated()),

		both(scenario{name: "first-steady", about: "new streams: RTT 80 ms, nothing else", kind: firstFrame, smoke: 3, short: 15, full: 100}, far()),
		both(scenario{name: "first-jitter", about: "new streams: wandering", kind: firstFrame, short: 15, full: 100}, jittery()),
		both(scenario{name: "first-loss-2", about: "new streams: wandering, and 2 % lost each way", kind: firstFrame, short: 25, full: 200}, lossy(0.02)),

		both(scenario{name: "dead-path", about: "the path dies for good", kind: dying, smoke: 6, short: 12, full: 90}, far()),
		withNAT(both(scenario{name: "dead-flow", about: "a NAT forgets all flows, the path lives", kind: dying, flow: true, short: 12, full: 90}, far()), 0),
		// Idle limits of carriers and routers begin at half a minute; the short
		// forms have a tenth of one.
		withNAT(both(scenario{name: "idle-nat", about: "a NAT forgets flows that are idle for 30 s (short: 3 s), and says nothing", kind: idling, short: 2, full: 5}, far()), theLength),
	}, beatScenarios()...)
}

// theLength stands for the idle limit that the length of the study gives a NAT.
const theLength = time.Nanosecond

// withNAT puts the scenario behind a NAT that forgets.
func withNAT(s scenario, idle time.Duration) scenario {
	s.nat = netlab.NAT{On: true, Idle: idle}
	return s
}

// A Length says how long a study runs.
type Length string

// The lengths of a study.
const (
	Smoke Length = "smoke" // a minute: whether everything works
	Short Length = "short" // about six minutes: a first look
	Full  Length = "full"  // an hour and a quarter: for the statistics
)

// ParseLength reads a length.
func ParseLength(s string) (Length, error) {
	switch l := Length(s); l {
	case Smoke, Short, Full:
		return l, nil
	}
	return "", fmt.Errorf("unknown length %q: want smoke, short or full", s)
}

// amount is what the length gives the scenario; 0 leaves it out.
func (l Length) amount(s scenario) int {
	return map[Length]int{Smoke: s.smoke, Short: s.short, Full: s.full}[l]
}

// natIdle is the limit of the NAT that forgets.
func (l Length) natIdle() time.Duration {
	if l == Full {
		return 30 * time.Second
	}
	return 3 * time.Second
}

// streams is how many streams each arm holds open.
func (l Length) streams() int {
	return cmp.Or(map[Length]int{Smoke: 2, Short: 4}[l], 5)
}

// ScenarioNames returns the names of all scenarios.
func ScenarioNames() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

// Groups of scenarios that can be chosen by one name.
const (
	Heartbeats = "heartbeats"
	Streams    = "streams" // all others
)

// choose returns the scenarios of a study: those of its length or, if some are
// named, by themselves or as a group, exactly these, which the smoke form then gives
// the short form's amount.
func choose(l Length, only []string) ([]scenario, error) {
	known := map[string]scenario{}
	for _, s := range scenarios() {
		known[s.name] = s
	}
	for _, name := range only {
		if _, ok := known[name]; !ok && name != Heartbeats && name != Streams {
			return nil, fmt.Errorf("unknown scenario %q: there are %s, %s, %s", name, Streams, Heartbeats, strings.Join(ScenarioNames(), ", "))
		}
	}
	var chosen []scenario
	for _, s := range scenarios() {
		chosenBy := len(only) == 0 || slices.Contains(only, Streams) && !s.beats || slices.Contains(only, Heartbeats) && s.beats
		if slices.Contains(only, s.name) {
			chosenBy = true
			if s.smoke == 0 {
				s.smoke = s.short
			}
		}
		if chosenBy && l.amount(s) > 0 {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}
