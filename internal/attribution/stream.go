// SPDX-License-Identifier: Apache-2.0

package attribution

import "time"

const (
	// togetherSpan is how far apart reads may be that came together: one batch of
	// packets can need several reads. A guess, above the time that a read takes and
	// below the gap of fast models. After a long silence of a stream that is slow enough
	// it is more: a 32nd of the silence, a quarter of the usual gap at most.
	togetherSpan  = 2 * time.Millisecond
	togetherShare = 32
	apartShare    = 4
	// leastGap is the shortest silence that is looked into; a repair on a short path
	// is hardly longer.
	leastGap = 20 * time.Millisecond
	// unusual is how many usual gaps a silence must last to be looked into.
	unusual = 2
	// leastHold is the shortest silence before events that came together that may be
	// a hop's if it shows its buffer: models that give several tokens a step do so ten
	// times a second and more.
	leastHold = 100 * time.Millisecond
	// leastPlainHold is that of one that passes whole events of various sizes on, as a
	// provider may too that sends several at a time. A guess.
	leastPlainHold   = 400 * time.Millisecond
	leastPlainEvents = 3
	// pattern is how many of them are no coincidence.
	pattern = 3
	// lookEvery bounds how old what was known before a silence can be.
	lookEvery = time.Second
	// recent is what is told of a stream that runs: what happened in the last one to two
	// of it.
	recent = 10 * time.Second
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
	Blind    bool          // losses on the way here do not show
	Segments uint64        // that came with data; 0 = unknown
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

// A Piece is what came with one read.
type Piece struct {
	Events int // that carry tokens; 0 if bytes are no events
	Bytes  int
	Inside bool // it ends inside an event
}

// A Stream books the time of one answer. Begin it before anything else.
type Stream struct {
	src   Source
	begun time.Time
	at    time.Time // up to here all is booked, or in plain or gap
	gives bool      // the app has not taken what came

	events  int           // that came
	waited  time.Duration // for them: the usual gap is its share
	longest time.Duration // silence of the provider

	tally tally
	marks [2]mark // when a span of recent began, the latest last

	plain  time.Duration // ordinary waits since the last look
	looked time.Time
	lag    bool // at the last look
	seen   Evidence
	known  bool     // seen is
	first  Evidence // seen at the beginning

	gap   time.Duration // the silence before what comes now, not booked yet
	usual time.Duration // the usual gap then
	late  verdict
	came  Piece // together after it
}

// A tally is what is counted.
type tally struct {
	parts  Parts
	held   time.Duration // by a hop, or by the network if that happens seldom
	holds  int
	faults int // silences with evidence against the network
	proofs int // silences of which a probe's answer proves that the network was not late

	cuts          int // of holds: ended inside an event
	events, bytes int // of holds
}

// A mark is how things stood at a time.
type mark struct {
	at      time.Time
	tally   tally
	longest time.Duration // silence since
	seen    Evidence
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
	s.first = s.seen
	s.marks = [2]mark{{at: now, seen: s.seen}, {at: now, seen: s.seen}}
}

// Came books the wait that ended now with p.
func (s *Stream) Came(now time.Time, p Piece) {
	gap := now.Sub(s.at)
	s.at, s.gives = now, true
	if s.late.open && gap <= max(togetherSpan, min(s.gap/togetherShare, s.usual/apartShare)) {
		s.plain += gap
		s.came.Events += p.Events
		s.came.Bytes += p.Bytes
		s.came.Inside = p.Inside
		s.events += p.Events
		return
	}
	s.settle()
	if now.Equal(s.begun) { // what it begins with was not waited for
		return
	}
	events, waited := s.events, s.waited
	s.events += p.Events
	s.waited += gap
	if gap >= leastGap && float64(gap)*float64(events) >= unusual*float64(waited) {
		s.gap, s.usual, s.came = gap, waited/time.Duration(max(events, 1)), p
		s.judge(now)
		return
	}
	s.plain += gap
	s.silent(gap)
	if now.Sub(s.looked) >= lookEvery {
		s.look(now)
	}
}

// Took books the time until the app had taken what came.
func (s *Stream) Took(now time.Time) {
	s.tally.parts.App += now.Sub(s.at)
	s.at, s.gives = now, false
}

// End books the rest and returns the whole. It ends the stream.
func (s *Stream) End(now time.Time) Parts {
	s.end(now)
	return s.tally.resolved(s.tally)
}

func (s *Stream) end(now time.Time) {
	if s.gives {
		s.Took(now)
	} else {
		s.Came(now, Piece{})
	}
	s.settle()
	if s.plain < lookEvery/2 {
		s.src = Source{} // not worth a look
	}
	s.look(now)
}

// resolved is where the time went, now that it is known whether a hop held events: in the
// whole stream they come together again and again, or they show its buffer's size.
func (t tally) resolved(whole tally) Parts {
	p := t.parts
	if t.holds > t.faults && (whole.holds >= pattern || t.cuts > 0) {
		p.Held += t.held
	} else {
		p.Network += t.held
	}
	return p
}

// Longest is the longest silence of the provider.
func (s *Stream) Longest() time.Duration { return s.longest }

func (s *Stream) silent(d time.Duration) {
	s.longest = max(s.longest, d)
	for i := range s.marks {
		s.marks[i].longest = max(s.marks[i].longest, d)
	}
}

// look asks how things stand, and books the ordinary waits since the last look.
func (s *Stream) look(now time.Time) {
	was := s.lag
	s.lag = s.src.Lag != nil && s.src.Lag()
	if was && s.lag { // the app had something to read all the time
		s.tally.parts.App += s.plain
	} else {
		s.tally.parts.Provider += s.plain
	}
	s.plain, s.looked = 0, now
	if s.src.Path != nil {
		s.seen, s.known = s.src.Path()
	}
	if now.Sub(s.marks[1].at) >= recent {
		s.marks = [2]mark{s.marks[1], {at: now, tally: s.tally, seen: s.seen}}
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
		s.tally.parts.App += gap
		return
	}
	room := gap - min(gap, v.proved)
	usual := s.waited / time.Duration(max(s.events, 1))
	if s.usual > 0 {
		usual = min(usual, s.usual) // one long silence makes no gap usual
	}
	// What came together was made apart, at the stream's pace: so long the first of it
	// waited for the rest.
	late := min(room, time.Duration(max(s.came.Events-1, 0))*usual)
	fault := v.disorder || v.probed > 0
	if v.disorder {
		late = max(late, min(room-min(room, usual), repairs*v.rto))
	}
	late = max(late, min(room, v.probed))
	if v.proved > gap/2 {
		s.tally.proofs++
	}
	switch {
	case fault:
		s.tally.parts.Network += late
		s.tally.faults++
	case late >= leastHold && s.holds(late):
		s.tally.held += late
	default:
		late = 0
	}
	s.tally.parts.Provider += gap - late
	s.silent(gap - late)
}

// holds counts a batch that came late, if it may be a hop's: what is passed on when a buffer
// is full ends inside an event, which a provider does not do.
func (s *Stream) holds(late time.Duration) bool {
	b, t := s.came, &s.tally
	if !b.Inside && (late < leastPlainHold || b.Events < leastPlainEvents) {
		return false
	}
	t.holds++
	t.events += b.Events
	t.bytes += b.Bytes
	if b.Inside {
		t.cuts++
	}
	return true
}
