// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"cmp"
	"errors"
	"time"
)

// Config is plain data. The zero value is the default.
type Config struct {
	Silence    time.Duration // before the first probe; 0 = 5 s
	MaxSilence time.Duration // between probes of a peer that thinks; 0 = 1 min
	Patience   time.Duration // for the first probe's answer; 0 = 1 s
	DeadAfter  time.Duration // for the last probe's answer, at least; 0 = 3 s
	Retry      time.Duration // between fresh connections while the path is down; 0 = 1 s
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Silence = cmp.Or(c.Silence, 5*time.Second)
	c.MaxSilence = cmp.Or(c.MaxSilence, max(time.Minute, c.Silence))
	c.Patience = cmp.Or(c.Patience, time.Second)
	c.DeadAfter = cmp.Or(c.DeadAfter, 3*time.Second)
	c.Retry = cmp.Or(c.Retry, time.Second)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	switch d := c.WithDefaults(); {
	case c.Silence < 0 || c.MaxSilence < 0 || c.Patience < 0 || c.DeadAfter < 0 || c.Retry < 0:
		return errors.New("heartbeat: a negative time")
	case d.MaxSilence < d.Silence:
		return errors.New("heartbeat: the longest silence between probes is below the first")
	}
	return nil
}

// An Action is what the owner does next.
type Action int

// The actions.
const (
	Wait  Action = iota // until the time that comes with it, then ask again
	Probe               // send a probe on the connection
	Fresh               // make a fresh connection beside it, and tell FreshResult
	Leave               // close it: its flow is dead
)

// A Verdict is what the watch thinks of the peer.
type Verdict int

// The verdicts.
const (
	Alive    Verdict = iota // it was heard lately, or nothing is known against it
	Thinking                // silent, and the last probe was answered
	Doubtful                // a probe is late
	PathDown                // and a fresh connection cannot be made
	DeadFlow
)

var verdicts = [...]string{"alive", "thinking", "doubtful", "path_down", "dead_flow"}

func (v Verdict) String() string { return verdicts[v] }

// stage is how far a doubt has come.
type stage int

const (
	quiet   stage = iota // nothing is asked
	asked                // the first probe is out
	opening              // a fresh connection is being made
	down                 // it could not be; the next one is tried later
	judging              // it was made; the last probe is out
	dead
)

// A Watch follows one connection.
type Watch struct {
	cfg     Config
	stage   stage
	verdict Verdict
	silence time.Duration // before the next probe
	sent    time.Time     // of the probe that is out
	limit   time.Duration // for its answer
	answer  time.Time     // when the last one came
	retry   time.Time     // of the next fresh connection
	fresh   bool          // the fresh connection was made: probe once more
}

// New returns a watch over a connection that has just been heard.
func New(cfg Config) *Watch {
	cfg = cfg.WithDefaults()
	return &Watch{cfg: cfg, silence: cfg.Silence}
}

// Verdict is the present one.
func (w *Watch) Verdict() Verdict { return w.verdict }

// Doubting says whether a probe or a fresh connection is out.
func (w *Watch) Doubting() bool { return w.stage != quiet }

// Next says what to do now. heard is when the peer last sent a byte of any kind,
// rto the flow's present retransmission time-out, 0 if that is not known. After
// Wait it is asked again at the time that comes with it, or earlier.
func (w *Watch) Next(now, heard time.Time, rto time.Duration) (Action, time.Time) {
	if w.stage != dead && w.stage != quiet && heard.After(w.sent) {
		w.answered(heard)
	}
	switch w.stage {
	case quiet:
		if heard.After(w.answer) { // by more than a probe's answer
			w.verdict, w.silence = Alive, w.cfg.Silence
		}
		due := heard.Add(w.silence)
		if now.Before(due) {
			return Wait, due
		}
		// What follows is only a fresh connection: the time-out, which grows
		// while nothing is acknowledged, need not be waited for.
		w.stage, w.sent, w.limit = asked, now, w.cfg.Patience
		return Probe, time.Time{}
	case asked:
		if due := w.sent.Add(w.limit); now.Before(due) {
			return Wait, due
		}
		w.stage, w.verdict = opening, Doubtful
		return Fresh, time.Time{}
	case opening:
		if w.fresh {
			w.fresh = false
			w.stage, w.sent, w.limit = judging, now, max(w.cfg.DeadAfter, 2*rto)
			return Probe, time.Time{}
		}
		return Wait, now.Add(w.cfg.Retry)
	case down:
		if now.Before(w.retry) {
			return Wait, w.retry
		}
		w.stage = opening
		return Fresh, time.Time{}
	case judging:
		if due := w.sent.Add(w.limit); now.Before(due) {
			return Wait, due
		}
		w.stage, w.verdict = dead, DeadFlow
	case dead:
	}
	return Leave, time.Time{}
}

// answered ends a doubt: the peer lives. It is probed less often while it only
// thinks.
func (w *Watch) answered(heard time.Time) {
	w.answer = heard
	w.stage, w.verdict, w.fresh = quiet, Thinking, false
	w.silence = min(2*w.silence, w.cfg.MaxSilence)
}

// FreshResult says whether the fresh connection could be made.
func (w *Watch) FreshResult(now time.Time, ok bool) {
	if w.stage != opening {
		return // the peer was heard meanwhile
	}
	if w.fresh = ok; !ok {
		w.stage, w.verdict, w.retry = down, PathDown, now.Add(w.cfg.Retry)
	}
}
