// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"cmp"
	"errors"
	"math"
	"time"
)

// Config is the plan of a [Watch], plain data. The zero value is the default.
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

// A Watch follows one connection while something is asked on it.
type Watch struct {
	cfg     Config
	doubt   doubt
	verdict Verdict
	base    time.Time     // the first time it was told; all below count from it
	silence time.Duration // before the next probe
	answer  time.Duration // when the last one came
}

// New returns a watch over a connection that has just been heard.
func New(cfg Config) *Watch {
	cfg = cfg.WithDefaults()
	return &Watch{cfg: cfg, silence: cfg.Silence, answer: math.MinInt64}
}

// Verdict is the present one.
func (w *Watch) Verdict() Verdict { return w.verdict }

// Doubting says whether a probe or a fresh connection is out.
func (w *Watch) Doubting() bool { return w.doubt.stage != quiet }

// Next says what to do now. heard is when the peer last sent a byte of any kind,
// rto the flow's present retransmission time-out, 0 if that is not known. After
// Wait it is asked again at the time that comes with it, or earlier.
func (w *Watch) Next(now, heard time.Time, rto time.Duration) (Action, time.Time) {
	if w.base.IsZero() {
		w.base = now
	}
	t, h := now.Sub(w.base), heard.Sub(w.base)
	if w.doubt.stage != dead && w.doubt.stage != quiet && h > w.doubt.sent {
		w.answered(h)
	}
	if w.doubt.stage == quiet {
		if h > w.answer { // by more than a probe's answer
			w.verdict, w.silence = Alive, w.cfg.Silence
		}
		if due := h + w.silence; t < due {
			return Wait, w.base.Add(due)
		}
		// What follows is only a fresh connection: the time-out, which grows
		// while nothing is acknowledged, need not be waited for.
		w.doubt.ask(t, w.cfg.Patience)
		return Probe, time.Time{}
	}
	was := w.doubt.stage
	action, due := w.doubt.step(t, max(w.cfg.DeadAfter, 2*rto), w.cfg.Retry)
	switch {
	case action == Wait:
		return Wait, w.base.Add(due)
	case action == Fresh && was == asked:
		w.verdict = Doubtful
	case action == Leave:
		w.verdict = DeadFlow
	}
	return action, time.Time{}
}

// answered ends a doubt: the peer lives. It is probed less often while it only
// thinks.
func (w *Watch) answered(heard time.Duration) {
	w.doubt.end()
	w.answer, w.verdict = heard, Thinking
	w.silence = min(2*w.silence, w.cfg.MaxSilence)
}

// FreshResult says whether the fresh connection could be made.
func (w *Watch) FreshResult(now time.Time, ok bool) {
	if w.doubt.result(now.Sub(w.base), w.cfg.Retry, ok) && !ok {
		w.verdict = PathDown
	}
}
