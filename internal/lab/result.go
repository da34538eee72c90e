// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"slices"
	"time"
)

// A Result is what a study found. Durations in JSON are nanoseconds.
type Result struct {
	Seed      uint64            `json:"seed"`
	Length    Length            `json:"length"`
	Started   time.Time         `json:"started"`
	Machine   string            `json:"machine"`
	Took      time.Duration     `json:"took"`
	Streams   int               `json:"streams"` // of each arm
	Arms      []ArmInfo         `json:"arms"`
	BeatArms  []ArmInfo         `json:"heartbeat_arms"`
	Scenarios []*ScenarioResult `json:"scenarios"`
}

// ArmInfo names an arm.
type ArmInfo struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

// A ScenarioResult is what one scenario found.
type ScenarioResult struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Kind  string `json:"kind"` // streaming, first, dying or idle
	Event string `json:"event,omitempty"`
	// Heartbeats says that its arms are those of BeatArms.
	Heartbeats bool          `json:"heartbeats,omitempty"`
	Speak      bool          `json:"speak,omitempty"` // apps with WebSockets spoke
	Took       time.Duration `json:"took"`
	Late       time.Duration `json:"forwarder_late"` // mean error of the network itself
	Path       PathInfo      `json:"path"`
	NATIdle    time.Duration `json:"nat_idle,omitempty"`
	// Events is how many there were; TimeDown is their share of the time.
	Events   int          `json:"events,omitempty"`
	TimeDown float64      `json:"time_down,omitempty"`
	Arms     []*ArmResult `json:"arms"`
}

// A PathInfo says what the path really did, as small UDP packets saw it.
type PathInfo struct {
	Sent   int           `json:"sent"`
	Lost   float64       `json:"lost"` // share; those still on their way at the end too
	RTT    time.Duration `json:"rtt"`  // mean
	Spread time.Duration `json:"spread"`
	P50    time.Duration `json:"p50"`
	P95    time.Duration `json:"p95"`
}

// An ArmResult is what one arm went through in one scenario. What does not
// apply to the scenario is zero.
type ArmResult struct {
	// Streams that were held open.
	Minutes       float64        `json:"stream_minutes,omitempty"`
	Frames        int            `json:"frames,omitempty"`
	Cuts          int            `json:"cuts"`
	CutsPerMinute float64        `json:"cuts_per_minute"`
	PerEvent      Estimate       `json:"cut_per_event_and_stream"`
	AfterEvent    int            `json:"cut_after_event"` // of the cuts in an event's wake, those after the path was back
	FalseAlarms   int            `json:"false_alarms"`    // cut although nothing was lost since the last sign of life
	Why           map[string]int `json:"why,omitempty"`   // the errors that cuts ended with
	Stalls        int            `json:"stalls"`
	LongestStall  time.Duration  `json:"longest_stall"`
	Pings         int            `json:"pings,omitempty"`
	LatePings     int            `json:"late_pings,omitempty"`
	Unopened      int            `json:"unopened"` // streams that could not be opened

	// First frames, or answers after idleness.
	Asked    int           `json:"asked,omitempty"`
	Answered int           `json:"answered,omitempty"`
	Failed   int           `json:"failed,omitempty"` // attempts
	Median   time.Duration `json:"median,omitempty"`
	P95      time.Duration `json:"p95,omitempty"`
	Worst    time.Duration `json:"worst,omitempty"`
	OverASec float64       `json:"over_1s,omitempty"` // share

	// Deaths: how long until the clients knew; Unknown never did in time.
	Known   int           `json:"known,omitempty"`
	Unknown int           `json:"unknown,omitempty"`
	Later   int           `json:"later,omitempty"`    // began after the death, of other flows
	KnownIn time.Duration `json:"known_in,omitempty"` // median
	KnownBy time.Duration `json:"known_by,omitempty"` // last

	Beats *BeatResult `json:"beats,omitempty"` // of a scenario about heartbeats
}

// An Estimate is a mean with its interval of 95 %.
type Estimate struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	N    int     `json:"n"` // events
}

// quantile returns the q-quantile of sorted values by nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// spread fills the quantiles in.
func (r *ArmResult) quantiles(took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	r.Median, r.P95, r.Worst = quantile(took, 0.5), quantile(took, 0.95), took[len(took)-1]
	slow := 0
	for _, d := range took {
		if d > time.Second {
			slow++
		}
	}
	r.OverASec = float64(slow) / float64(len(took))
}
