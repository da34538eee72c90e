// SPDX-License-Identifier: Apache-2.0

package heartbeat

import "time"

// An Action is what the owner does next.
type Action int

// The actions.
const (
	Wait  Action = iota // until the time that comes with it, then ask again
	Probe               // send a probe on the connection
	Fresh               // trust it no more with new work, make a fresh connection beside it, and tell FreshResult
	Leave               // close it: its flow is dead, or it has served its purpose
)

// A Verdict is what is thought of the peer.
type Verdict int

// The verdicts.
const (
	Alive    Verdict = iota // it was heard lately, or nothing is known against it
	Thinking                // silent, and the last probe was answered
	Doubtful                // a probe is late
	PathDown                // and a fresh connection cannot be made
	DeadFlow                // and a fresh connection can, but the old one stays silent
)

var verdicts = [...]string{"alive", "thinking", "doubtful", "path_down", "dead_flow"}

func (v Verdict) String() string { return verdicts[v] }

// stage is how far a doubt has come.
type stage uint8

const (
	quiet   stage = iota // nothing is asked
	asked                // the first probe is out
	opening              // a fresh connection is being made
	down                 // it could not be; the next one is tried later
	judging              // it was made; the last probe is out
	dead
)

// A doubt is the way from a silence to a verdict, the same for a Watch and a Beat.
// Its times count from its owner's beginning.
type doubt struct {
	stage stage
	fresh bool          // the fresh connection was made: probe once more
	sent  time.Duration // of the probe that is out
	limit time.Duration // for its answer
	retry time.Duration // of the next fresh connection
}

// ask begins a doubt with a probe that leaves now.
func (d *doubt) ask(now, limit time.Duration) { d.stage, d.sent, d.limit = asked, now, limit }

// step says what follows; the stage is not quiet. judge is the limit for the
// answer to the last probe, again the pause before it is asked about a fresh
// connection once more.
func (d *doubt) step(now, judge, again time.Duration) (Action, time.Duration) {
	switch d.stage {
	case asked:
		if due := d.sent + d.limit; now < due {
			return Wait, due
		}
		d.stage = opening
		return Fresh, 0
	case opening:
		if d.fresh {
			d.fresh = false
			d.stage, d.sent, d.limit = judging, now, judge
			return Probe, 0
		}
		return Wait, now + again
	case down:
		if now < d.retry {
			return Wait, d.retry
		}
		d.stage = opening
		return Fresh, 0
	case judging:
		if due := d.sent + d.limit; now < due {
			return Wait, due
		}
		d.stage = dead
	}
	return Leave, 0
}

// result tells whether the fresh connection could be made; it reports whether
// anybody wanted to know.
func (d *doubt) result(now, again time.Duration, ok bool) bool {
	if d.stage != opening {
		return false // the peer was heard meanwhile
	}
	if d.fresh = ok; !ok {
		d.stage, d.retry = down, now+again
	}
	return true
}

// end ends the doubt: the peer lives.
func (d *doubt) end() { d.stage, d.fresh = quiet, false }
