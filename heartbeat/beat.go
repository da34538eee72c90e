// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"cmp"
	"time"
)

const (
	// Unanswered is how many probes in a row, over at least aloneFor, a
	// connection that cannot have a fresh one beside it may leave unanswered.
	Unanswered = 4
	// aloneFor: after a blackout of 4 s the kernel's next retransmission comes
	// within 9 s of the probe, because its time-out doubles, and a queue of 3 s
	// adds 6 s both ways. This is twice the sum.
	aloneFor = 30 * time.Second
	// overdue is how late a timer may be before that counts as our own side
	// having been blocked. Goroutines of a busy machine are late by
	// milliseconds, a frozen process by seconds.
	overdue = time.Second
	// grain is how coarse the times are that a kernel tells: a tick of 4 ms, off
	// by one.
	grain = 10 * time.Millisecond
	// deafAfter is for how long a peer that has answered probes may leave them
	// unanswered while its kernel acknowledges them: servers are known that answer
	// after 8-30 s. From then on it is judged by its answers alone.
	deafAfter = 40 * time.Second
	// farJump is the longest step of the clock that is believed.
	farJump = 24 * time.Hour
)

// Signs of life and trouble, as the owner sees them when it asks.
type Signs struct {
	Heard time.Time     // when the peer last sent a byte of any kind; zero = never
	Acked time.Time     // when its kernel last acknowledged anything (TCP_INFO), of a peer that is no proxy; zero = not known
	RTO   time.Duration // the flow's present retransmission time-out; 0 = not known
	Trip  time.Duration // the longest round trip that its kernel expects, smoothed and four times the spread; 0 = not known
}

// resent is when what was sent in vain has been sent again, and was answered, at the
// latest: the kernel does so within its time-out. Of a round trip that is not known, the
// time-out itself is the only bound.
func (s Signs) resent() time.Duration {
	if s.Trip == 0 {
		return 2 * s.RTO
	}
	return min(2*s.RTO, s.RTO+max(s.Trip, minTimeout))
}

// A Step is what the owner does next. Due is when it asks again at the latest;
// after all but Wait that is now. A zero Due: not before something else happens.
type Step struct {
	Action Action
	Due    time.Time
}

// A Beat keeps one long-lived connection that can be probed, and notices its
// death. See the package's text for its rules.
type Beat struct {
	cfg  BeatConfig
	path *Path
	base time.Time // the times below count from it; moves with a clock that jumps
	last time.Duration
	due  time.Duration // when it wanted to be asked, 0 = it is not waiting

	seenHeard, seenAcked int64 // as last given, so that a clock set back makes nothing new
	heard                time.Duration
	answered             time.Duration // the last sign of life that is no more than a probe's answer
	acked                time.Duration // the last acknowledgement
	active               time.Duration // the last byte in either direction, probes apart
	blocked              time.Duration // until when our own side was
	began                time.Duration // when the probe left that began the doubt
	idle                 time.Duration // the silence before it
	open                 time.Duration // when the first probe left after which nothing came but acknowledgements; 0 = there is none
	trial                time.Duration // what a spare connection is trying, 0 = nothing
	gap                  time.Duration // between the last two probes; 0 = there were none

	suspect time.Duration // when a last probe is late, too

	doubt    doubt
	schedule schedule
	verdict  Verdict
	proven   bool // a probe was answered, or the kernel's acknowledgements are seen
	mine     bool // the fresh connection that is being made is this one's
	alone    uint8
	since    time.Duration // when the first of those alone left

	trip                      time.Duration // as last given in Signs
	rtt                       RTT
	probes, answers, excluded uint32
	late                      uint32
	contested, falseAlarms    uint32
}

// NewBeat returns a Beat over a connection that has just been heard. path is
// shared with the connections beside it; nil = alone. rand returns numbers in
// [0,1) and is used only here.
func NewBeat(cfg BeatConfig, path *Path, now time.Time, rand func() float64) *Beat {
	if path == nil {
		path = NewPath()
	}
	b := &Beat{cfg: cfg.WithDefaults(), path: path, base: now, seenHeard: now.UnixNano()}
	b.schedule.phase = path.join(now, rand()).Sub(now)
	b.schedule.spot = time.Duration(rand() * float64(window))
	b.schedule.probed = -maxPace // a refusal of others may be old
	b.blocked = -1
	return b
}

// Set changes the plan of a live connection.
func (b *Beat) Set(cfg BeatConfig) {
	b.cfg, b.due = cfg.WithDefaults(), 0
	if b.cfg.Mode == Off && b.doubt.stage != dead {
		b.drop()
		b.verdict = Alive
	}
}

// Verdict is the present one.
func (b *Beat) Verdict() Verdict { return b.verdict }

// Doubting says whether a probe or a fresh connection is out.
func (b *Beat) Doubting() bool { return b.doubt.stage != quiet }

// Next says what to do now. Tell of a probe's answer with Answered before asking.
func (b *Beat) Next(now time.Time, signs Signs) Step {
	t := b.tick(now)
	b.due, b.trip = 0, signs.Trip
	if b.doubt.stage == dead {
		return Step{Leave, now}
	}
	b.listen(t, signs)
	switch {
	case b.cfg.Mode == Off:
		return Step{}
	case b.doubt.stage == quiet:
		return b.quiet(now, t)
	case b.cfg.NoFresh:
		return b.follow(t, signs)
	case b.doubt.stage == opening && !b.mine && !b.doubt.fresh:
		return b.borrow(now, t)
	}
	return b.judge(now, t, signs)
}

// quiet waits for the next probe, or sends it.
func (b *Beat) quiet(now time.Time, t time.Duration) Step {
	limit, pace := b.path.plan()
	floor := least(b.cfg, pace)
	var due time.Duration
	switch {
	case b.cfg.Mode == Spare && !b.proven: // by a peer that answers nothing it would learn wrong
		due = max(b.heard, b.schedule.probed) + floor
	case b.cfg.Mode == Spare:
		if b.trial == 0 {
			if b.trial, _ = b.path.begin(now); b.trial == 0 {
				b.doubt.stage, b.verdict = dead, Alive // there is nothing to learn
				return Step{Leave, now}
			}
		}
		due = max(b.heard, b.active, b.schedule.probed) + b.trial
	default:
		every := interval(b.cfg, limit, pace)
		if b.cfg.Mode == Adaptive && !b.rtt.Known() && b.probes == 0 {
			every = min(every, 2*floor) // the first measurement need not wait
		}
		due = b.schedule.next(b.heard, b.answered, floor, every, b.cfg.Mode == Adaptive)
		if b.answers > 0 && b.open > 0 { // only its kernel speaks
			due = min(due, max(b.schedule.probed+floor, b.open+b.deafAfter()))
		}
	}
	if t < due {
		return b.wait(t, due)
	}
	b.idle = t - max(b.heard, b.active)
	b.began = t
	b.send(t)
	b.doubt.ask(t, b.timeout())
	return Step{Probe, now}
}

// judge follows a doubt with a fresh connection.
func (b *Beat) judge(now time.Time, t time.Duration, signs Signs) Step {
	was := b.doubt.stage
	action, due := b.doubt.step(t, max(b.cfg.DeadAfter, signs.resent(), b.timeout()), firstRetry)
	switch action {
	case Wait:
		return b.wait(t, due)
	case Probe:
		b.send(t)
		b.suspect = t + b.timeout()
	case Fresh:
		if was == asked {
			b.lateProbe()
		}
		return b.borrow(now, t)
	case Leave:
		if !b.proven {
			return b.unproven(now, t)
		}
		b.verdict = DeadFlow
		if b.acked > b.began-grain && b.acked > 0 { // its process is stuck, the flow is not
			b.endTrial()
		} else {
			b.teach()
		}
	}
	return Step{action, now}
}

// borrow uses the fresh connection of another on the same path, or asks for one.
func (b *Beat) borrow(now time.Time, t time.Duration) Step {
	switch f, again := b.path.fresh(now, b.base.Add(b.doubt.sent)); f {
	case wasOpened:
		b.doubt.result(t, 0, true)
		return b.wait(t, t)
	case couldNot:
		b.verdict = PathDown
		return b.wait(t, t+again)
	case beingOpened:
		return b.wait(t, t+again)
	}
	b.mine = true
	return Step{Fresh, now}
}

// follow is a doubt without a fresh connection: it cannot tell a dead flow from a
// path that is down, so only much evidence will do.
func (b *Beat) follow(t time.Duration, signs Signs) Step {
	if due := b.doubt.sent + b.doubt.limit; t < due {
		return b.wait(t, due)
	}
	if b.alone == 0 {
		b.alone, b.since = 1, b.doubt.sent
	}
	b.lateProbe()
	if b.alone >= Unanswered && t-b.since >= max(aloneFor, 2*signs.RTO) {
		if !b.proven {
			return b.unproven(b.base.Add(t), t)
		}
		b.doubt.stage, b.verdict = dead, DeadFlow
		return Step{Leave, b.base.Add(t)}
	}
	_, pace := b.path.plan()
	b.alone = min(b.alone+1, Unanswered)
	b.send(t)
	b.doubt.ask(t, max(b.timeout(), least(b.cfg, pace)))
	return Step{Probe, b.base.Add(t)}
}

// lateProbe notes that a probe is not answered in time.
func (b *Beat) lateProbe() {
	if b.verdict != Doubtful {
		b.late++
	}
	b.verdict = Doubtful
	b.rtt.Missed()
}

// unproven gives up a doubt about a peer that has never answered a probe: that it
// does not answer this one proves nothing. A spare connection to it is no use.
func (b *Beat) unproven(now time.Time, t time.Duration) Step {
	b.drop()
	if b.cfg.Mode == Spare {
		b.path.giveUp(now)
		b.doubt.stage, b.verdict = dead, Alive
		return Step{Leave, now}
	}
	b.answered = t
	b.heard = max(b.heard, b.schedule.probed)
	return b.wait(t, t)
}

// deafAfter is deafAfter, or what is configured asks for, but never less than what
// answers have taken.
func (b *Beat) deafAfter() time.Duration {
	if b.cfg.Timeout > 0 {
		return 4 * b.cfg.Timeout
	}
	return max(deafAfter, 2*b.rtt.Tail())
}

// deaf says whether the peer's kernel alone has been speaking for too long.
func (b *Beat) deaf(t time.Duration) bool {
	return b.answers > 0 && b.open > 0 && t-b.open >= b.deafAfter()
}

// send notes that a probe leaves.
func (b *Beat) send(t time.Duration) {
	if b.open == 0 {
		b.open = max(t, 1)
	}
	if b.probes++; b.probes > 1 {
		b.gap = t - b.schedule.probed
	}
	b.schedule.probed, b.schedule.soon = t, false
}

// timeout is how long a probe's answer may take before it is late. Who talks all the
// time is never probed and has no answers to go by; its kernel knows the path.
func (b *Beat) timeout() time.Duration {
	if b.cfg.Timeout > 0 {
		return b.cfg.Timeout
	}
	d := b.rtt.Timeout()
	if !b.rtt.Known() && b.trip > 0 {
		d = min(d, max(b.trip, minTimeout)<<b.rtt.missed)
	}
	return d
}

// wait is a step that waits.
func (b *Beat) wait(t, due time.Duration) Step {
	b.due = max(due, t+time.Microsecond)
	return Step{Wait, b.base.Add(b.due)}
}

// listen takes the signs of life that are new.
func (b *Beat) listen(t time.Duration, signs Signs) {
	if acked := signs.Acked.UnixNano(); !signs.Acked.IsZero() && acked != b.seenAcked {
		b.seenAcked, b.proven = acked, true // every kernel acknowledges
		acked := min(signs.Acked.Sub(b.base), t)
		b.acked = max(b.acked, acked)
		if b.doubt.stage != quiet && acked > b.began-grain && !b.deaf(t) {
			b.outlived(acked)
		}
	}
	heard := signs.Heard.UnixNano()
	if signs.Heard.IsZero() || heard == b.seenHeard {
		return
	}
	b.seenHeard = heard
	since := min(signs.Heard.Sub(b.base), t)
	if since >= b.open { // its process speaks, also where that came with an acknowledgement
		b.open = 0
	}
	if since <= b.heard+grain || b.doubt.stage != quiet && since <= b.began-grain {
		return // known, or the probe's answer itself, or older than the doubt
	}
	b.active, b.open = max(b.active, since), 0
	b.life(since)
	b.verdict, b.schedule.quick = Alive, 0
}

// Answered tells of a probe's answer and how long it took; negative = not known.
// Call it before Next.
func (b *Beat) Answered(now time.Time, rtt time.Duration) {
	t := b.tick(now)
	if b.doubt.stage == dead {
		return
	}
	b.answers++
	b.open = 0
	if rtt >= 0 && t-rtt <= b.blocked {
		b.excluded++
	} else {
		b.rtt.Add(b.base.Add(t), rtt)
	}
	if b.answered = t; b.doubt.stage != quiet {
		b.outlived(t)
	}
	b.proven, b.heard = true, max(b.heard, t)
}

// outlived ends a doubt with a probe's answer.
func (b *Beat) outlived(t time.Duration) {
	b.path.Survived(b.clean(b.idle))
	b.life(t)
	b.proven = true
	b.answered, b.verdict = t, Thinking
	if b.schedule.quick > 0 { // it is probed less often while it only answers probes
		b.schedule.quick = min(2*b.schedule.quick, maxInterval)
	}
}

// clean is a silence that says something about the path: none in which our own
// side was blocked or asleep does.
func (b *Beat) clean(idle time.Duration) time.Duration {
	if max(b.heard, b.active) <= b.blocked {
		return 0
	}
	return idle
}

// life ends a doubt.
func (b *Beat) life(t time.Duration) {
	b.heard = max(b.heard, t)
	b.schedule.soon = false
	if b.doubt.stage == quiet {
		return
	}
	if b.doubt.stage == judging {
		if b.contested++; b.proven && t > b.suspect {
			b.falseAlarms++
		}
	}
	b.endTrial()
	b.drop()
}

// drop forgets a doubt.
func (b *Beat) drop() {
	b.doubt.end()
	b.alone, b.due = 0, 0
	b.mine = false // what is being made is still the path's
}

// teach tells the path what killed the flow.
func (b *Beat) teach() {
	b.path.Died(b.base.Add(max(b.heard, b.active)+b.idle), b.clean(b.idle))
	b.endTrial()
}

func (b *Beat) endTrial() {
	if b.trial > 0 {
		b.trial = 0
		b.path.end()
	}
}

// FreshResult tells whether the fresh connection could be made, in ten seconds or
// less. It is called once for each Fresh, also when the doubt has ended meanwhile.
func (b *Beat) FreshResult(now time.Time, ok bool) {
	t := b.tick(now)
	pause := b.path.freshResult(now, ok)
	b.mine = false
	if b.doubt.result(t, pause, ok) && !ok {
		b.verdict = PathDown
	}
	b.due = 0
}

// Refused tells that the peer will not be probed so often: HTTP/2's
// ENHANCE_YOUR_CALM. No connection of the path probes as often again.
func (b *Beat) Refused() {
	limit, pace := b.path.plan()
	b.path.Refused(max(cmp.Or(b.gap, interval(b.cfg, limit, pace)), least(b.cfg, pace)))
}

// Closed tells that the peer has closed the connection. Of a spare one that is the
// end of a trial.
func (b *Beat) Closed(now time.Time) {
	t := b.tick(now)
	if b.trial > 0 && b.doubt.stage == quiet {
		b.path.Died(now, b.clean(t-max(b.heard, b.active)))
	}
	b.Retire()
}

// Ended tells that the peer has closed the connection in order, with a FIN or with
// GOAWAY: of a spare one, that the path has passed something on after its whole silence,
// and that nothing longer can be tried there for a while.
func (b *Beat) Ended(now time.Time) {
	t := b.tick(now)
	if b.trial > 0 && b.doubt.stage == quiet {
		b.path.Survived(b.clean(t - max(b.heard, b.active)))
		b.trial = 0
		b.path.giveUp(now)
	}
	b.Retire()
}

// Retire tells that the owner has closed the connection, for reasons of its own.
func (b *Beat) Retire() {
	b.endTrial()
	b.doubt.stage = dead
}

// Sent tells that something was sent to the peer that it may answer: somebody waits,
// so a silence from here on is looked into after MinInterval, twice that, and so on.
// Ask Next after the first of them, and after the first since a probe was answered:
// the next probe may be nearer than it said.
func (b *Beat) Sent(now time.Time) {
	t := b.tick(now)
	_, pace := b.path.plan()
	b.active = t
	b.schedule.sent(t, b.answered, least(b.cfg, pace))
}

// Blocked tells that our own side could not read from one time to another, by the
// wall clock, or that the machine slept. It does not count: not as the peer's
// silence, nor in the round trip of an answer that waited, nor in what the path can
// bear. A Beat that is asked more than a second after the time it named sees that by
// itself, but not a sleep, in which the clock of timers stands still.
func (b *Beat) Blocked(from, to time.Time) {
	t := b.tick(to)
	b.away(t-max(to.Round(0).Sub(from.Round(0)), 0), t)
	b.due = 0
}

// away moves what is waited for by the time that does not count. After a long one
// the doubt begins anew, with a probe at once.
func (b *Beat) away(from, to time.Duration) {
	gap := to - from
	if gap <= 0 {
		return
	}
	b.blocked = to
	if b.open > 0 {
		b.open += gap
	}
	if gap >= b.cfg.MinInterval {
		if b.doubt.stage != quiet && b.doubt.stage != dead {
			b.drop()
		}
		b.schedule.soon = b.cfg.Mode != Spare
		return
	}
	if b.doubt.stage != quiet {
		b.doubt.sent += to - min(max(from, b.doubt.sent), to)
		// What came meanwhile has yet to be read.
		b.doubt.sent = max(b.doubt.sent, to-b.doubt.limit+min(b.doubt.limit, overdue))
	}
}

// tick is the time since the beginning. It never goes back: a clock that does takes
// the beginning with it, and so does one that jumps ahead by more than a day.
func (b *Beat) tick(now time.Time) time.Duration {
	t := now.Sub(b.base)
	if jump := t - b.last; t < b.last || jump > farJump {
		t = b.last
		if jump > 0 {
			t += farJump
		}
		b.base = now.Add(-t)
	}
	b.last = t
	if b.due > 0 && t > b.due+overdue {
		b.away(b.due, t)
		b.due = 0
	}
	return t
}

// Stats is the evidence for a verdict, and what it cost.
type Stats struct {
	Verdict  Verdict
	Interval time.Duration // the longest silence before a probe
	Timeout  time.Duration // for the next probe's answer
	Limit    time.Duration // the path's idle limit, as far as known
	Proven   bool          // it was seen, not assumed

	LastRTT, RTT, Variance, MinRTT, TailRTT time.Duration // 0 = none was measured

	Probes, Answers uint32
	Late            uint32 // doubts: probes that were not answered in time
	Contested       uint32 // of these, answered after a fresh connection was
	FalseAlarms     uint32 // of these, answered when the probe after it was late, too
	Excluded        uint32 // answers that were no measurement
}

// Stats returns the present ones.
func (b *Beat) Stats() Stats {
	limit, pace := b.path.plan()
	_, proven := b.path.Limit()
	st := Stats{
		Verdict: b.verdict, Timeout: b.timeout(), Limit: limit, Proven: proven,
		LastRTT: b.rtt.Last(), RTT: b.rtt.Smoothed(), Variance: b.rtt.Variance(), MinRTT: b.rtt.Min(), TailRTT: b.rtt.Tail(),
		Probes: b.probes, Answers: b.answers, Late: b.late, Contested: b.contested, FalseAlarms: b.falseAlarms, Excluded: b.excluded,
	}
	if b.cfg.Mode != Off {
		st.Interval = interval(b.cfg, limit, pace)
	}
	return st
}
