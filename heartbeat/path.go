// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"sync"
	"time"
)

// lastLimit is where the search ends: no interval is longer than half of it.
const lastLimit = 2 * maxInterval

// The idle limits that NATs, firewalls and balancers are known to have, shortest
// first: UDP in home routers 15 and 30 s, nginx and AWS ALB 60 s, CDNs 100 and
// 120 s, Azure 240 s, AWS NLB 350 s.
var knownLimits = [...]time.Duration{
	15 * time.Second, 30 * time.Second,
	60 * time.Second, 100 * time.Second, 120 * time.Second, 240 * time.Second, 350 * time.Second, lastLimit,
}

const (
	// firstLimit is assumed of a path nobody has tried: half of it keeps flows
	// alive behind all of the known limits for TCP.
	firstLimit = 60 * time.Second
	// minIdle is the shortest silence that is believed to have killed a flow:
	// what dies sooner dies of something else (guess; pools use 5 s, probes of a
	// flow that somebody waits for come after 5-10 s).
	minIdle = 10 * time.Second
	maxIdle = 24 * time.Hour
	// oneCause: deaths this close together that contradict what was known, after
	// silences that began before the first of them, have one cause, a router that
	// restarted say, and move the limit once.
	oneCause = 10 * time.Minute
	// After a contradiction, and after a search has ended, the limits above are
	// tried again.
	searchAfterStep, searchAfterEnd = time.Hour, 24 * time.Hour
	// trialSlack is what a trial takes beyond its silence.
	trialSlack = 2 * time.Minute
	// freshLease is how long the others wait for one connection's fresh one; the
	// transport gives up after as long. They look this often, and after a failure
	// all wait, twice as long each time, up to the study's longest reconnect
	// delay.
	freshLease              = 10 * time.Second
	pollFresh               = 250 * time.Millisecond
	firstRetry, latestRetry = time.Second, 8 * time.Second
	// maxPace bounds what refusals do.
	maxPace = 5 * time.Minute
)

// A Path is what is known of one network path to one origin. Connections that
// share it wake in the same moments, ask for one fresh connection instead of many,
// and learn from each other how long a flow may be silent. It is safe for
// concurrent use.
type Path struct {
	mu       sync.Mutex
	survived time.Duration // a silence that flows outlive
	proven   bool          // or is that assumed?
	died     time.Duration // the shortest silence that killed a flow; 0 = none did
	pace     time.Duration // the peer wants no probes that are closer; 0 = it never said
	stepped  time.Time     // when a death last contradicted what was proven
	again    time.Time     // when limits at and above died are tried again
	trial    time.Time     // when the trial that is running must have ended
	opening  time.Time     // until then nobody makes a fresh connection: another does, or it has failed
	pause    time.Duration // after the last failure; 0 = it did not fail
	opened   time.Time     // when the last one was made
	base     time.Time     // of the shared moments
}

// NewPath returns a path of which nothing is known.
func NewPath() *Path { return &Path{survived: firstLimit} }

// Limit is how long a flow may be silent, and whether that was seen or is the
// first guess.
func (p *Path) Limit() (d time.Duration, proven bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.survived, p.proven
}

// plan is what a schedule needs to know.
func (p *Path) plan() (limit, pace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.survived, p.pace
}

// Survived says that a flow was silent for so long, both ways, and then answered.
func (p *Path) Survived(idle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if idle > maxIdle {
		return
	}
	p.proven = p.proven || idle >= p.survived
	p.survived = max(p.survived, idle)
	if p.died > 0 && p.died <= p.survived {
		p.died = 0 // the limit has grown, or that flow died of something else
	}
}

// Died says that a flow was silent for so long, both ways, until now, and was then
// found dead while the path lived. What died of something else, or while the
// machine slept, is not told.
func (p *Path) Died(now time.Time, idle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if idle < minIdle || idle > maxIdle {
		return
	}
	if idle <= p.survived {
		since := now.Sub(p.stepped)
		if !p.stepped.IsZero() && since >= 0 && since < oneCause && since <= idle {
			return
		}
		p.survived, p.proven, p.stepped = below(idle), false, now
		p.again = now.Add(searchAfterStep)
	}
	if p.died == 0 || idle < p.died {
		p.died = idle
	}
}

// below is the greatest known limit that is surely below a silence that killed.
func below(idle time.Duration) time.Duration {
	limit := knownLimits[0] / 2
	for _, k := range knownLimits {
		if k <= idle-idle/10 {
			limit = k
		}
	}
	return limit
}

// Refused says that the peer will not be probed so often, with HTTP/2's
// ENHANCE_YOUR_CALM say, when probes came every interval. It is never probed as
// often again.
func (p *Path) Refused(interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace = min(max(p.pace, 2*min(interval, maxPace)), maxPace)
}

// Searching says whether something can be learned now that is worth a spare
// connection: one that serves nobody, kept by a [Beat] in mode [Spare].
func (p *Path) Searching(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.candidate(now) > 0 && !p.trying(now)
}

// begin returns the silence that a spare connection is to try, and keeps others
// from trying at the same time.
func (p *Path) begin(now time.Time) (idle time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trying(now) {
		return 0, false
	}
	idle = p.candidate(now)
	if idle > 0 {
		p.trial = now.Add(idle + trialSlack)
	}
	return idle, idle > 0
}

// end lets the next trial begin.
func (p *Path) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trial = time.Time{}
}

// giveUp lets nobody try for a while.
func (p *Path) giveUp(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trial = now.Add(searchAfterStep)
}

// trying says whether a trial is running. A lease that is longer than any trial is
// that of a clock which was set back.
func (p *Path) trying(now time.Time) bool {
	left := p.trial.Sub(now)
	return left > 0 && left <= maxIdle
}

// candidate is the silence to try next, 0 if none is worth it: just below the next
// known limit, or, once a flow has died, in the middle while that can add half. The
// lock is held.
func (p *Path) candidate(now time.Time) time.Duration {
	if !p.again.IsZero() && !now.Before(p.again) {
		p.died, p.again = 0, time.Time{}
	}
	for _, k := range knownLimits {
		try := k - k/32 // a limit kills at itself
		if try > p.survived+p.survived/16 && (p.died == 0 || try < p.died-p.died/16) {
			return try
		}
	}
	if p.died > p.survived+p.survived/2 && p.survived < lastLimit-lastLimit/32 {
		if try := p.survived + (p.died-p.survived)/2; try >= minIdle {
			return min(try, lastLimit)
		}
	}
	if p.died > 0 && p.again.IsZero() {
		p.again = now.Add(searchAfterEnd)
	}
	return 0
}

// freshness is what a path knows of fresh connections.
type freshness int

const (
	openOne     freshness = iota // none was made since: make one
	beingOpened                  // another connection's is on its way
	couldNot                     // another's could not be made, and it is too early for the next
	wasOpened                    // one was made since
)

// fresh says whether a fresh connection was made since the probe left. If not, it
// is the asker's to make, or it says when to ask again.
func (p *Path) fresh(now, since time.Time) (f freshness, again time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened.After(since) && !p.opened.After(now) {
		return wasOpened, 0
	}
	if left := p.opening.Sub(now); left > 0 && left <= freshLease {
		if p.pause > 0 {
			return couldNot, left
		}
		return beingOpened, min(left, pollFresh)
	}
	p.opening = now.Add(freshLease)
	return openOne, 0
}

// freshResult takes the result of a fresh connection, and returns how long nobody
// on the path makes another after a failure.
func (p *Path) freshResult(now time.Time, ok bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok {
		p.opening, p.opened, p.pause = time.Time{}, now, 0
		return 0
	}
	p.pause = min(max(2*p.pause, firstRetry), latestRetry)
	p.opening = now.Add(p.pause)
	return p.pause
}

// join is the beginning of the moments that the path's connections share: random,
// so that machines which start together do not probe together.
func (p *Path) join(now time.Time, random float64) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.base.IsZero() {
		p.base = now.Add(-time.Duration(random * float64(maxInterval)))
	}
	return p.base
}
