// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"sync"
	"time"
)

// stallAfter is how much later than it was sent after the one before it a frame
// may come until that counts as a stall.
const stallAfter = time.Second

// A window is a stretch of time, from the epoch.
type window struct{ start, end time.Duration }

// An attempt is one stream from opening to end.
type attempt struct {
	opened time.Duration // when it was asked for
	first  time.Duration // when its first frame came; 0 means none did
	ended  time.Duration
	heard  time.Duration // last sign of life
	cut    bool          // it ended by itself, not with the scenario
	limit  bool          // and by its client's limit
	why    string        // what it ended with

	silent         time.Duration // before it ended
	frames, stalls int
	longest        time.Duration // stall
	pings, late    int
}

// failure says that a stream could not be opened.
func (a attempt) failure() bool { return a.first == 0 && a.cut }

// A track is what one client went through in one scenario.
type track struct {
	mu       sync.Mutex
	attempts []attempt
}

func (t *track) add(a attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts = append(t.attempts, a)
}

// A log is what all clients of an arm went through, and what the path did.
type runLog struct {
	window          // of the scenario
	events []window // of the path, in order
	arms   [][]*track
	beats  *beatLog // nil: the scenario is not about heartbeats
}

// overlaps says whether an event touched the stretch.
func (l *runLog) overlaps(from, to time.Duration) bool {
	for _, e := range l.events {
		if e.start < to && e.end > from {
			return true
		}
	}
	return false
}

// follow reads a source to its end and returns the attempt.
func follow(e *env, src source, opened time.Duration, over func() bool) attempt {
	a := attempt{opened: opened}
	var last, lastSent time.Duration
	for {
		f, err := src.next()
		now := e.now()
		if err != nil {
			a.ended, a.silent = now, now-last
			heard, pings, late := src.heartbeat()
			a.heard = max(last, heard)
			a.pings, a.late = pings, late
			if !over() {
				a.cut, a.limit, a.why = true, errors.Is(err, errLimit), err.Error()
			}
			return a
		}
		if a.frames++; a.frames == 1 {
			a.first = now
		} else if stall := (now - last) - (f.sent - lastSent); stall > stallAfter {
			a.stalls++
			a.longest = max(a.longest, stall)
		}
		last, lastSent = now, f.sent
	}
}
