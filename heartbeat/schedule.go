// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"cmp"
	"errors"
	"time"
)

// A Mode is how a [Beat] chooses its intervals.
type Mode uint8

// The modes.
const (
	Adaptive Mode = iota // from what the path has learned
	Fixed                // MaxInterval, or 20 s
	Off                  // no probes and no verdicts
	Spare                // as long as the path's next trial wants: for a connection that serves nobody
)

var modes = [...]string{"adaptive", "fixed", "off", "spare"}

func (m Mode) String() string { return modes[m] }

const (
	// maxInterval: a radio that wakes every five minutes costs little, and a
	// longer silence is a late surprise.
	maxInterval = 5 * time.Minute
	// fixedInterval is the customary one.
	fixedInterval = 20 * time.Second
	// busyInterval bounds the growth of the interval while something is still
	// being sent: the radio is awake anyway, and somebody waits (guess).
	busyInterval = 10 * time.Second
	// window is for how long the probes of one shared moment are spread.
	window = 250 * time.Millisecond
)

// BeatConfig is the plan of a [Beat], plain data. The zero value is the default.
type BeatConfig struct {
	Mode        Mode
	MinInterval time.Duration // between probes; 0 = 5 s
	MaxInterval time.Duration // 0 = learned: half the path's limit, 5 min at most
	Timeout     time.Duration // for a probe's answer; 0 = learned
	DeadAfter   time.Duration // for the last probe's answer, at least; 0 = 3 s
	// NoFresh says that the owner cannot make a fresh connection beside this one:
	// the app's own, say. It is then left only after [Unanswered] probes and 30 s
	// without any sign of life, and not at all if it never answered a probe.
	NoFresh bool
}

// WithDefaults returns c with its zero fields set to their defaults; MaxInterval
// and Timeout are learned at zero.
func (c BeatConfig) WithDefaults() BeatConfig {
	c.MinInterval = cmp.Or(c.MinInterval, 5*time.Second)
	c.DeadAfter = cmp.Or(c.DeadAfter, 3*time.Second)
	return c
}

// Validate reports a setting that cannot work.
func (c BeatConfig) Validate() error {
	switch d := c.WithDefaults(); {
	case c.Mode > Spare:
		return errors.New("heartbeat: an unknown mode")
	case c.MinInterval < 0 || c.MaxInterval < 0 || c.Timeout < 0 || c.DeadAfter < 0:
		return errors.New("heartbeat: a negative time")
	case d.MinInterval > maxPace:
		return errors.New("heartbeat: min_interval is above 5m")
	case c.MaxInterval > 0 && c.MaxInterval < d.MinInterval:
		return errors.New("heartbeat: max_interval is below min_interval")
	}
	return nil
}

// A schedule says when a silent connection is probed. Its times count from its
// Beat's beginning.
type schedule struct {
	phase time.Duration // of the moments that the path's connections share
	spot  time.Duration // in the window of each of them

	probed time.Duration // when the last probe left
	quick  time.Duration // silence before a probe while an answer is owed; 0 = none is
	owed   time.Duration // since when
	soon   bool          // look at once: our own side was away
}

// least is the shortest time between two probes.
func least(cfg BeatConfig, pace time.Duration) time.Duration { return max(cfg.MinInterval, pace) }

// interval is the longest silence before a probe. What the peer tolerates comes
// before what the path needs.
func interval(cfg BeatConfig, limit, pace time.Duration) time.Duration {
	d := min(limit/2, cmp.Or(cfg.MaxInterval, maxInterval))
	if cfg.Mode == Fixed {
		d = cmp.Or(cfg.MaxInterval, fixedInterval)
	}
	return max(d, least(cfg, pace))
}

// next is when a connection is probed that was last heard at heard and answered a
// probe at answered.
func (sc *schedule) next(heard, answered, least, interval time.Duration, shared bool) time.Duration {
	due := heard + interval
	if shared {
		due = sc.shared(heard, least, interval)
	}
	if sc.quick > 0 {
		due = min(due, max(sc.owed, answered)+sc.quick)
	}
	if sc.soon {
		due = 0
	}
	return max(due, sc.probed+least)
}

// shared is the last of the path's moments that ends in time, so that its
// connections wake the machine and its radio together. They are an interval apart;
// who would have to probe much too early uses the half or the quarter, and joins the
// others with the next probe.
func (sc *schedule) shared(heard, least, interval time.Duration) time.Duration {
	w := min(window, interval/8)
	for grid := interval - w; grid > interval/8; grid /= 2 {
		end := heard + interval - w - sc.phase
		due := sc.phase + end - end%grid + sc.spot*w/window
		if due >= heard+max(least, interval*3/8) {
			return due
		}
	}
	return heard + interval // there is none in the short time that remains
}

// sent notes that something was sent which the peer is expected to answer.
func (sc *schedule) sent(now, answered, least time.Duration) {
	switch {
	case sc.quick == 0:
		sc.quick, sc.owed = least, now
	case sc.owed <= answered: // the first since a probe was answered
		sc.quick, sc.owed = min(sc.quick, max(busyInterval, least)), now
	}
}
