// SPDX-License-Identifier: Apache-2.0

package attribution

import "time"

const (
	// togetherSpan is how far apart reads may be that came together: one batch of
	// packets can need several reads. A guess, above the time that a read takes and
	// below the gap of fast models.
	togetherSpan = 2 * time.Millisecond
	// leastGap is the shortest silence that is looked into; a repair on a short path
	// is hardly longer.
	leastGap = 20 * time.Millisecond
	// unusual is how many usual gaps a silence must last to be looked into.
	unusual = 2
	// leastHold is the shortest silence before events that came together that may be
	// a hop's: models that give several tokens a step do so ten times a second and more.
	leastHold = 100 * time.Millisecond
	// pattern is how many of them are no coincidence.
	pattern = 3
	// lookEvery bounds how old what was known before a silence can be.
	lookEvery = time.Second
	// repairs is how many retransmission time-outs a repair takes that nothing
	// measured: the time-out and one backoff.
	repairs = 3
)

// Parts is where the time went. They sum to the whole.
type Parts struct {
	Provider time.Duration // it had sent nothing that was still to come
	Held     time.Duration // again and again events came together that were made apart
	Network  time.Duration // they were lost, late, or behind something that was
	App      time.Duration // it did not take what was there
}

// Total is their sum.
func (p Parts) Total() time.Duration { return p.Provider + p.Held + p.Network + p.App }

// Evidence is what a connection shows of its path.
type Evidence struct {
	// Disorder counts what a faultless network does not do to a connection: segments
	// that came before earlier ones, and segments of ours that had to be sent again.
	Disorder uint64
	RTO      time.Duration // the retransmission time-out now; 0 = unknown
	RTT      time.Duration // of a probe, at best; 0 = unknown

	// Asked is when the last probe left, Answered when the last answer to one came;
	// Answered before Asked means that one is out. Ordered says that the answer comes
	// behind all that the peer had sent before.
	Asked, Answered time.Time
	Ordered         bool
}

// A Source is asked for what the relay does not see.
type Source struct {
	Path func() (Evidence, bool) // false = nothing is known; nil = never is
	Lag  func() bool             // whether bytes wait outside for the app; nil = unknown
}

// A Stream books the time of one answer. Begin it before anything else.
type Stream struct {
	src   Source
	parts Parts
	begun time.Time
	at    time.Time // up to here all is booked, or in plain or gap

	events  int           // that came
	waited  time.Duration // for them: the usual gap is its share
	longest time.Duration // silence of the provider

	plain  time.Duration // ordinary waits since the last look
	looked time.Time
	lag    bool // at the last look
	seen   Evidence
	known  bool // seen is

	gap    time.Duration // the silence before what comes now, not booked yet
	usual  time.Duration // the usual gap then
	late   verdict
	came   int           // events that came together after it
	held   time.Duration // by a hop, or by the network if that happens seldom
	holds  int
	faults int // silences with evidence against the network
}

// A verdict is what was found about a silence when it ended.
type verdict struct {
	open     bool // there is a silence to be judged
	disorder bool
	probed   time.Duration // of it, a probe was out for too long
	proved   time.Duration // of it, a probe's answer proves that nothing was on its way
	lag      bool
	rto      time.Duration
}

// Begin starts, or starts again, at now.
func (s *Stream) Begin(now time.Time, src Source) {
	*s = Stream{src: src, begun: now, at: now}
	s.look(now)
}

// Came books the wait that ended now with n events, 0 if bytes are no events.
func (s *Stream) Came(now time.Time, n int) {
	gap := now.Sub(s.at)
	s.at = now
	if gap <= togetherSpan && s.late.open {
		s.plain += gap
		s.came += n
		s.events += n
		return
	}
	s.settle()
	if now.Equal(s.begun) { // what it begins with was not waited for
		return
	}
	events, waited := s.events, s.waited
	s.events += n
	s.waited += gap
	if gap >= leastGap && float64(gap)*float64(events) >= unusual*float64(waited) {
		s.gap, s.usual, s.came = gap, waited/time.Duration(max(events, 1)), n
		s.judge(now)
		return
	}
	s.plain += gap
	s.longest = max(s.longest, gap)
	if now.Sub(s.looked) >= lookEvery {
		s.look(now)
	}
}

// Took books the time until the app had taken what came.
func (s *Stream) Took(now time.Time) {
	s.parts.App += now.Sub(s.at)
	s.at = now
}

// End books the rest and returns the whole. It ends the stream.
func (s *Stream) End(now time.Time) Parts {
	s.Came(now, 0)
	s.settle()
	if s.plain < lookEvery/2 {
		s.src = Source{} // not worth a look
	}
	s.look(now)
	p := s.parts
	if s.holds >= pattern && s.holds > s.faults {
		p.Held += s.held
	} else {
		p.Network += s.held
	}
	return p
}

// Longest is the longest silence of the provider.
func (s *Stream) Longest() time.Duration { return s.longest }

// look asks how things stand, and books the ordinary waits since the last look.
func (s *Stream) look(now time.Time) {
	was := s.lag
	s.lag = s.src.Lag != nil && s.src.Lag()
	if was && s.lag { // the app had something to read all the time
		s.parts.App += s.plain
	} else {
		s.parts.Provider += s.plain
	}
	s.plain, s.looked = 0, now
	if s.src.Path != nil {
		s.seen, s.known = s.src.Path()
	}
}

// judge looks into the silence that ended now.
func (s *Stream) judge(now time.Time) {
	before, known, lag := s.seen, s.known, s.lag
	s.look(now)
	s.late = verdict{open: true, lag: lag && s.lag}
	if !s.known {
		return
	}
	e, begun := s.seen, now.Add(-s.gap)
	s.late.disorder = known && e.Disorder > before.Disorder
	s.late.rto = e.RTO
	if e.Asked.IsZero() || !e.Answered.After(begun) && e.Answered.After(e.Asked) {
		return // nobody asked in this silence
	}
	from, until := later(e.Asked, begun), now
	if !e.Answered.Before(e.Asked) {
		until = e.Answered
	}
	if took := until.Sub(e.Asked); took > 2*e.RTT+leastGap {
		s.late.probed = max(0, until.Sub(from)-e.RTT)
	} else if e.Ordered && e.Answered.After(begun) {
		s.late.proved = e.Answered.Sub(begun)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// settle books the last silence, now that all that came after it is known.
func (s *Stream) settle() {
	v, gap := s.late, s.gap
	if !v.open {
		return
	}
	s.late, s.gap = verdict{}, 0
	if v.lag {
		s.parts.App += gap
		return
	}
	room := gap - min(gap, v.proved)
	usual := s.waited / time.Duration(max(s.events, 1))
	if s.usual > 0 {
		usual = min(usual, s.usual) // one long silence makes no gap usual
	}
	// What came together was made apart, at the stream's pace: so long the first of it
	// waited for the rest.
	late := min(room, time.Duration(max(s.came-1, 0))*usual)
	fault := v.disorder || v.probed > 0
	if v.disorder {
		late = max(late, min(room-min(room, usual), repairs*v.rto))
	}
	late = max(late, min(room, v.probed))
	switch {
	case fault:
		s.parts.Network += late
		s.faults++
	case late >= leastHold:
		s.held += late
		s.holds++
	default:
		late = 0
	}
	s.parts.Provider += gap - late
	s.longest = max(s.longest, gap-late)
}
