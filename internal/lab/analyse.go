// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// analyse makes a result of what was logged.
func analyse(l Length, sc scenario, arms []Arm, log *runLog, random *rand.Rand) *ScenarioResult {
	out := &ScenarioResult{
		Name: sc.name, About: sc.about, Event: string(sc.event), Took: (log.end - log.start).Round(time.Millisecond),
		Kind: [...]string{"streaming", "first", "dying", "idle"}[sc.kind], Heartbeats: sc.beats, NATIdle: sc.nat.Idle, Speak: sc.speak,
	}
	if sc.event != noEvent {
		out.Events = len(log.events)
		var down time.Duration
		for _, e := range log.events {
			down += e.end - e.start
		}
		out.TimeDown = float64(down) / float64(log.end-log.start)
	}
	for i, tracks := range log.arms {
		r := new(ArmResult)
		switch sc.kind {
		case streaming:
			analyseStreams(r, sc, log, tracks, random)
		case dying:
			analyseDeath(r, log, tracks)
		case firstFrame, idling:
			analyseAnswers(r, tracks)
		}
		if sc.beats {
			analyseBeats(r, l, sc, log, i, arms[i])
		}
		out.Arms = append(out.Arms, r)
	}
	return out
}

func analyseStreams(r *ArmResult, sc scenario, log *runLog, tracks []*track, random *rand.Rand) {
	r.Why = map[string]int{}
	for _, t := range tracks {
		for _, a := range t.attempts {
			if a.failure() {
				r.Unopened++
				continue
			}
			r.Minutes += (a.ended - a.opened).Minutes()
			r.Frames += a.frames
			r.Stalls += a.stalls
			r.LongestStall = max(r.LongestStall, a.longest)
			r.Pings += a.pings
			r.LatePings += a.late
			if !a.cut {
				continue
			}
			r.Cuts++
			r.Why[reason(a)]++
			// A delay spike loses nothing, so a cut in it is a false alarm too. Of a NAT
			// that forgets, nobody knows whether it had.
			if sc.nat.Idle == 0 && (sc.event != blackout || !log.overlaps(a.heard-2*oneWay, a.ended)) {
				r.FalseAlarms++
			}
		}
	}
	r.CutsPerMinute = float64(r.Cuts) / r.Minutes
	if sc.event != noEvent {
		analyseEvents(r, log, tracks, random)
	}
}

// reason names the end of an attempt without what differs each time.
func reason(a attempt) string {
	if a.limit {
		return "limit"
	}
	for _, known := range []string{"reset by peer", "connection lost", "unexpected EOF", "EOF", "timed out", "close 1006", "close 1012", "stream error"} {
		if strings.Contains(a.why, known) {
			return known
		}
	}
	return "other"
}

// analyseEvents tells which share of the open streams each event cut. Streams in
// one event are not independent, so the event is the unit of the statistics.
func analyseEvents(r *ArmResult, log *runLog, tracks []*track, random *rand.Rand) {
	var shares []float64
	for i, e := range log.events {
		until := log.end
		if i+1 < len(log.events) {
			until = log.events[i+1].start
		}
		open, cut := 0, 0
		for _, t := range tracks {
			for _, a := range t.attempts {
				if a.failure() || a.opened > e.start || a.ended <= e.start {
					continue
				}
				open++
				if a.cut && a.ended < until {
					cut++
					if a.ended > e.end {
						r.AfterEvent++
					}
				}
				break
			}
		}
		if open > 0 {
			shares = append(shares, float64(cut)/float64(open))
		}
	}
	r.PerEvent = bootstrap(shares, random)
}

// bootstrap returns the mean and its interval of 95 % by resampling. Where all
// values are equal it cannot know better than that a rarer outcome was not among
// n: then the far end is that of the rule of three.
func bootstrap(values []float64, random *rand.Rand) Estimate {
	n := len(values)
	if n == 0 {
		return Estimate{}
	}
	e := Estimate{Mean: mean(values), N: n}
	if slices.Min(values) == slices.Max(values) {
		rule := min(1, 3/float64(n))
		e.Low, e.High = e.Mean, e.Mean
		if e.Mean < 0.5 {
			e.High = max(e.Mean, rule)
		} else {
			e.Low = min(e.Mean, 1-rule)
		}
		return e
	}
	const rounds = 2000
	means := make([]float64, rounds)
	sample := make([]float64, n)
	for i := range means {
		for j := range sample {
			sample[j] = values[random.IntN(n)]
		}
		means[i] = mean(sample)
	}
	slices.Sort(means)
	e.Low, e.High = means[rounds*25/1000], means[rounds*975/1000]
	return e
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / math.Max(1, float64(len(values)))
}

// analyseDeath tells how long it took to know of a death. Of a stream that began after
// it nothing has died.
func analyseDeath(r *ArmResult, log *runLog, tracks []*track) {
	death := log.events[0]
	r.Why = map[string]int{}
	var took []time.Duration
	for _, t := range tracks {
		for _, a := range t.attempts {
			switch {
			case a.failure() || a.ended < death.start:
				r.Failed++
			case a.first == 0 || a.first > death.start:
				r.Later++
			case a.cut:
				took = append(took, a.ended-death.start)
				r.Why[reason(a)]++
			default:
				r.Unknown++
			}
		}
	}
	slices.Sort(took)
	r.Known, r.KnownIn = len(took), quantile(took, 0.5)
	if len(took) > 0 {
		r.KnownBy = slices.Max(took)
	}
}

// analyseAnswers tells how long first frames took and how often there were none.
// For answers after idleness, the time includes the failures before.
func analyseAnswers(r *ArmResult, tracks []*track) {
	var took []time.Duration
	for _, t := range tracks {
		slices.SortStableFunc(t.attempts, func(a, b attempt) int { return cmp.Compare(a.ended, b.ended) })
		for _, a := range t.attempts {
			if a.cut {
				r.Failed++
				continue
			}
			took = append(took, a.first-a.opened)
		}
	}
	r.Asked, r.Answered = answers(tracks), len(took)
	r.quantiles(took)
}

// answers is how many were asked for: attempts that begin together are one.
func answers(tracks []*track) int {
	n := 0
	for _, t := range tracks {
		last := time.Duration(-1)
		for _, a := range t.attempts {
			if a.opened != last {
				n, last = n+1, a.opened
			}
		}
	}
	return n
}
