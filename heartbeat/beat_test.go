// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// none is a chance that always falls on the beginning.
func none() float64 { return 0 }

// A line drives one Beat by hand. Times count from its beginning.
type line struct {
	t     *testing.T
	b     *Beat
	heard time.Duration
	acked time.Duration
	rto   time.Duration
	trip  time.Duration
}

func newLine(t *testing.T, cfg BeatConfig, path *Path) *line {
	return &line{t: t, b: NewBeat(cfg, path, at(0), none), rto: 280 * ms}
}

func (l *line) next(now time.Duration) Step {
	signs := Signs{Heard: at(l.heard), RTO: l.rto, Trip: l.trip}
	if l.acked > 0 {
		signs.Acked = at(l.acked)
	}
	return l.b.Next(at(now), signs)
}

// want asks and checks the action; it returns when it wants to be asked again.
func (l *line) want(now time.Duration, action Action, verdict Verdict) time.Duration {
	l.t.Helper()
	step := l.next(now)
	if step.Action != action || l.b.Verdict() != verdict {
		l.t.Fatalf("at %v: %v, %v; want %v, %v", now, step.Action, l.b.Verdict(), action, verdict)
	}
	return step.Due.Sub(epoch)
}

func (l *line) answer(now, rtt time.Duration) {
	l.heard = now
	l.b.Answered(at(now), rtt)
}

// proven lets the first probe be answered, and returns when that was.
func (l *line) proven() time.Duration {
	l.t.Helper()
	due := l.want(0, Wait, Alive)
	l.want(due, Probe, Alive)
	l.answer(due+80*ms, 80*ms)
	return due + 80*ms
}

// probes are the times of the first probes of a peer that answers after 80 ms, and
// which sends and gets bytes at the times given.
func (l *line) probes(n int, heard, sent []time.Duration) (all []time.Duration) {
	for now := time.Duration(0); len(all) < n; {
		step := l.next(now)
		next := step.Due.Sub(epoch)
		if step.Action == Probe {
			all = append(all, now)
			now += 80 * ms
			l.answer(now, 80*ms)
			continue
		}
		if step.Action != Wait {
			l.t.Fatalf("%v at %v", step.Action, now)
		}
		switch {
		case len(sent) > 0 && sent[0] <= next && (len(heard) == 0 || sent[0] < heard[0]):
			now, sent = sent[0], sent[1:]
			l.b.Sent(at(now))
		case len(heard) > 0 && heard[0] <= next:
			now, heard = heard[0], heard[1:]
			l.heard = now
		default:
			now = next
		}
	}
	return all
}

func TestBeatSchedule(t *testing.T) {
	learned := func(limit time.Duration) *Path {
		p := NewPath()
		p.Survived(limit)
		return p
	}
	for _, tt := range []struct {
		name        string
		cfg         BeatConfig
		path        *Path
		heard, sent []time.Duration
		want        []time.Duration
	}{
		// One early, to measure; then on moments a quarter of a second less than 30 s apart.
		{name: "nothing is learned", want: []time.Duration{9750 * ms, 29750 * ms, 59500 * ms}},
		{name: "limit 350 s", path: learned(340 * s), want: []time.Duration{9750 * ms, 169750 * ms, 339500 * ms}},
		{name: "limit of an hour", path: learned(600 * s), want: []time.Duration{9750 * ms, 299750 * ms, 599500 * ms}},
		{name: "no longer than said", cfg: BeatConfig{MaxInterval: time.Minute}, path: learned(340 * s), want: []time.Duration{9750 * ms, 59750 * ms, 119500 * ms}},
		{name: "limit of 8 s", path: learned(8 * s), cfg: BeatConfig{}, want: []time.Duration{9750 * ms, 29750 * ms}}, // below what is believed
		{name: "fixed", cfg: BeatConfig{Mode: Fixed}, want: []time.Duration{20 * s, 40080 * ms, 60160 * ms}},
		{name: "fixed at 45 s", cfg: BeatConfig{Mode: Fixed, MaxInterval: 45 * s}, want: []time.Duration{45 * s, 90080 * ms}},
		{name: "data postpones", cfg: BeatConfig{Mode: Fixed}, heard: []time.Duration{3 * s, 19 * s}, want: []time.Duration{39 * s, 59080 * ms}},
		{name: "an answer is owed", cfg: BeatConfig{Mode: Fixed, MaxInterval: 70 * s}, sent: []time.Duration{3 * s},
			want: []time.Duration{8 * s, 18080 * ms, 38160 * ms, 78240 * ms, 148320 * ms}},
		{name: "and given", cfg: BeatConfig{Mode: Fixed, MaxInterval: 70 * s}, sent: []time.Duration{3 * s}, heard: []time.Duration{20 * s},
			want: []time.Duration{8 * s, 18080 * ms, 90 * s}},
		{name: "somebody still speaks", cfg: BeatConfig{Mode: Fixed, MaxInterval: 70 * s}, sent: []time.Duration{3 * s, 40 * s, 80 * s, 90 * s, 110 * s},
			want: []time.Duration{8 * s, 18080 * ms, 38160 * ms, 50 * s, 70080 * ms, 90 * s}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			if got := newLine(t, tt.cfg, tt.path).probes(len(tt.want), tt.heard, tt.sent); !slices.Equal(got, tt.want) {
				t.Errorf("probes at %v\nwant      %v", got, tt.want)
			}
		})
	}
}

// A dead flow is known 3 s and a round trip after its fresh connection's answer.
func TestDeadFlowIsKnown(t *testing.T) {
	for _, tt := range []struct {
		name string
		rto  time.Duration
		trip time.Duration
		late time.Duration // the time-out of the first probe
		last time.Duration // of the last
	}{
		{name: "clean", rto: 280 * ms, late: s, last: 3 * s},
		{name: "a long retransmission time-out", rto: 4 * s, late: s, last: 8 * s},
		{name: "a long one of a short path", rto: 4 * s, trip: 280 * ms, late: s, last: 5 * s},
		{name: "of a long path", rto: 4 * s, trip: 3 * s, late: s, last: 7 * s},
		{name: "of a path that became short", rto: 2 * s, trip: 3 * s, late: s, last: 4 * s},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := NewPath()
			l := newLine(t, BeatConfig{}, path)
			l.rto, l.trip = tt.rto, tt.trip
			due := l.want(l.proven(), Wait, Thinking)
			l.want(due, Probe, Thinking)
			if late := l.want(due, Wait, Thinking); late != due+tt.late {
				t.Fatalf("late after %v", late-due)
			}
			l.want(due+tt.late, Fresh, Doubtful)
			if next := l.b.Stats().Timeout; next != 2*tt.late {
				t.Errorf("the next time-out is %v", next)
			}
			l.want(due+tt.late, Wait, Doubtful)
			fresh := due + tt.late + 240*ms
			l.b.FreshResult(at(fresh), true)
			l.want(fresh, Probe, Doubtful)
			if last := l.want(fresh, Wait, Doubtful); last != fresh+tt.last {
				t.Fatalf("dead after %v", last-fresh)
			}
			l.want(fresh+tt.last-1, Wait, Doubtful)
			l.want(fresh+tt.last, Leave, DeadFlow)
			l.want(fresh+time.Hour, Leave, DeadFlow)
			if limit, _ := path.Limit(); limit != 15*s { // it died of a silence of 20 s
				t.Errorf("limit %v", limit)
			}
		})
	}
}

// Who talks all the time was never probed: the first time-out is the kernel's.
func TestTheKernelKnowsThePathOfATalker(t *testing.T) {
	for name, tt := range map[string]struct {
		trip, late time.Duration
	}{"not known": {0, 3 * s}, "short": {280 * ms, s}, "long": {2 * s, 2 * s}, "longer than the first guess": {5 * s, 3 * s}} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t, BeatConfig{}, nil)
			l.trip = tt.trip
			due := l.want(0, Wait, Alive)
			l.want(due, Probe, Alive)
			if late := l.want(due, Wait, Alive); late != due+tt.late {
				t.Errorf("late after %v, want %v", late-due, tt.late)
			}
			l.acked = due + 10*ms // the doubt must not be one about a peer that answers nothing
			l.want(due+20*ms, Wait, Thinking)
			due = l.want(due+20*ms, Wait, Thinking)
			l.want(due, Probe, Thinking)
			l.want(due+tt.late, Fresh, Doubtful)
			l.b.FreshResult(at(due+tt.late), true)
			l.want(due+tt.late, Probe, Doubtful)
			l.want(due+tt.late+max(3*s, 2*tt.late), Leave, DeadFlow)
		})
	}
}

func TestAnswerEndsADoubt(t *testing.T) {
	for name, end := range map[string]func(l *line, now time.Duration) Verdict{
		"a probe's answer":     func(l *line, now time.Duration) Verdict { l.answer(now, now); return Thinking },
		"a byte":               func(l *line, now time.Duration) Verdict { l.heard = now; return Alive },
		"an acknowledgement":   func(l *line, now time.Duration) Verdict { l.acked = now; return Thinking },
		"our own side's sleep": func(l *line, now time.Duration) Verdict { l.b.Blocked(at(now-time.Hour), at(now)); return Doubtful },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t, BeatConfig{}, nil)
			due := l.want(l.proven(), Wait, Thinking)
			l.want(due, Probe, Thinking)
			l.want(due+s, Fresh, Doubtful)
			l.b.FreshResult(at(due+2*s), true)
			l.want(due+2*s, Probe, Doubtful)
			now := due + 2*s + 2900*ms
			verdict := end(l, now)
			l.want(now, Wait, verdict)
			if l.b.Doubting() {
				t.Error("it still doubts")
			}
			want := uint32(1)
			if verdict == Doubtful {
				want = 0 // nothing refuted it
			}
			if st := l.b.Stats(); st.Late != 1 || st.Contested != want || st.FalseAlarms != want {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A server that answers its pings late, now after 80 ms and then after 30 s, lives as
// long as its kernel says so.
func TestLatePongsAreNoDeath(t *testing.T) {
	l := newLine(t, BeatConfig{}, nil)
	now := l.proven()
	for _, late := range []time.Duration{8 * s, 30 * s, 100 * ms, 30 * s} {
		due := l.want(now, Wait, Thinking)
		l.want(due, Probe, Thinking)
		l.acked = due + 80*ms
		l.want(due+s, Wait, Thinking)
		now = due + late
		l.answer(now, late)
	}
	if st := l.b.Stats(); st.Late != 0 || st.FalseAlarms != 0 {
		t.Errorf("%+v", st)
	}
}

// A server whose process is stuck is left, though its kernel acknowledges all; and the
// path learns nothing from that.
func TestAStuckProcessIsLeft(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  BeatConfig
		deaf time.Duration
	}{"as learned": {BeatConfig{}, 40 * s}, "as configured": {BeatConfig{Timeout: 2 * s}, 8 * s}} {
		t.Run(name, func(t *testing.T) {
			path := NewPath()
			l := newLine(t, tt.cfg, path)
			due := l.want(l.proven(), Wait, Thinking)
			first, _ := due, l.want(due, Probe, Thinking)
			for now := due; ; now += 10 * ms {
				step := l.next(now)
				switch step.Action {
				case Probe:
					l.acked = now + ms
				case Fresh:
					l.b.FreshResult(at(now), true)
				case Leave:
					if took := now - first; took < tt.deaf+3*s || took > tt.deaf+15*s || l.b.Verdict() != DeadFlow {
						t.Errorf("left after %v, %v", took, l.b.Verdict())
					}
					if limit, proven := path.Limit(); limit < 20*s || !proven && limit != firstLimit {
						t.Errorf("the path has learned %v", limit)
					}
					return
				}
				if now > first+5*time.Minute {
					t.Fatal("it is never left")
				}
			}
		})
	}
}

// What the peer closes in order was passed on by the path after that silence; what we
// close ourselves says nothing.
func TestASpareConnectionThatIsClosed(t *testing.T) {
	for name, end := range map[string]func(*Beat, time.Duration){
		"in order": func(b *Beat, now time.Duration) { b.Ended(at(now)) },
		"broken":   func(b *Beat, now time.Duration) { b.Closed(at(now)) },
		"by us":    func(b *Beat, _ time.Duration) { b.Retire() },
	} {
		path := NewPath()
		l := newLine(t, BeatConfig{Mode: Spare}, path)
		due := l.want(0, Wait, Alive)
		l.want(due, Probe, Alive)
		l.answer(due+80*ms, 80*ms)
		now := due + 80*ms
		if due = l.want(now, Wait, Thinking); due-now < firstLimit {
			t.Fatalf("%s: tries %v", name, due-now)
		}
		end(l.b, now+75*s)
		want := map[string]time.Duration{"in order": 75 * s, "broken": firstLimit, "by us": firstLimit}[name]
		if limit, proven := path.Limit(); limit != want || proven != (name == "in order") {
			t.Errorf("%s: limit %v, proven %v", name, limit, proven)
		}
		if searching := path.Searching(at(now + 76*s)); searching != (name == "by us") {
			t.Errorf("%s: searching %v", name, searching)
		}
		l.want(now+77*s, Leave, Thinking)
	}
}

// A kernel tells ages in ticks, so that the same byte seems to come at another time
// whenever it is asked: that is no sign of life.
func TestCoarseTimesAreNoLife(t *testing.T) {
	l := newLine(t, BeatConfig{}, nil)
	due := l.want(l.proven(), Wait, Thinking)
	start := l.heard
	wobble := func(now time.Duration, action Action, verdict Verdict) {
		t.Helper()
		l.heard = start + (now/7)%(4*ms)
		l.acked = start + (now/11)%(4*ms)
		l.want(now, action, verdict)
	}
	for now := start; now < due; now += 333 * ms {
		wobble(now, Wait, Thinking)
	}
	wobble(due, Probe, Thinking)
	wobble(due+s, Fresh, Doubtful)
	l.b.FreshResult(at(due+s), true)
	wobble(due+s, Probe, Doubtful)
	for now := due + s; now < due+4*s; now += 333 * ms {
		wobble(now, Wait, Doubtful)
	}
	wobble(due+4*s, Leave, DeadFlow)
}

// What never answered a probe is not left for not answering one.
func TestPeerWithoutPongsIsKept(t *testing.T) {
	for _, cfg := range []BeatConfig{{}, {NoFresh: true}, {Mode: Fixed}} {
		l := newLine(t, cfg, nil)
		probes := 0
		for now := time.Duration(0); now < 3*time.Hour; {
			step := l.next(now)
			switch step.Action {
			case Leave:
				t.Fatalf("%+v: left after %v", cfg, now)
			case Probe:
				probes++
			case Fresh:
				l.b.FreshResult(at(now), true)
			}
			now = max(step.Due.Sub(epoch), now+ms)
		}
		if probes < 100 {
			t.Errorf("%d probes", probes)
		}
	}
}

// A spare connection to such a peer teaches nothing.
func TestSpareNeedsAnswers(t *testing.T) {
	p := NewPath()
	l := newLine(t, BeatConfig{Mode: Spare}, p)
	l.want(5*s, Probe, Alive)
	l.want(8*s, Fresh, Doubtful)
	l.b.FreshResult(at(9*s), true)
	l.want(9*s, Probe, Doubtful)
	l.want(60*s, Leave, Alive)
	if p.Searching(at(10 * time.Minute)) {
		t.Error("another one is tried at once")
	}
	if limit, _ := p.Limit(); limit != firstLimit {
		t.Errorf("limit %v", limit)
	}
}

// The server's own limit ends a spare connection, and that is learned.
func TestSpareThatIsClosedTeaches(t *testing.T) {
	p := NewPath()
	l := newLine(t, BeatConfig{Mode: Spare}, p)
	l.want(5*s, Probe, Alive)
	l.answer(5080*ms, 80*ms)
	if due := l.want(5080*ms, Wait, Thinking); due != 5080*ms+96875*ms {
		t.Fatalf("due %v", due)
	}
	l.b.Closed(at(5080*ms + 75*s))
	if try, ok := p.begin(at(2 * time.Minute)); ok { // between 60 and 75 s nothing is gained
		t.Errorf("tries %v", try)
	}
}

// A peer that is known to be slow is given its time for the last probe, too.
func TestSlowPeerIsGivenItsTime(t *testing.T) {
	l := newLine(t, BeatConfig{Mode: Fixed}, nil)
	now := 20 * s
	for range 20 {
		l.next(now)
		now += 8 * s
		l.answer(now, 8*s)
		now = l.want(now, Wait, Thinking)
	}
	l.want(now, Probe, Thinking)
	late := l.want(now, Wait, Thinking)
	l.want(late, Fresh, Doubtful)
	l.b.FreshResult(at(late), true)
	l.want(late, Probe, Doubtful)
	if due := l.want(late, Wait, Doubtful); late-now < 10*s || due-late < 20*s {
		t.Errorf("late after %v, dead after %v more", late-now, due-late)
	}
}

// The result of a fresh connection that comes after the old one's answer is news for
// the path alone.
func TestLateResultIsNoDoubt(t *testing.T) {
	for _, ok := range []bool{true, false} {
		l := newLine(t, BeatConfig{}, nil)
		due := l.want(l.proven(), Wait, Thinking)
		l.want(due, Probe, Thinking)
		l.want(due+s, Fresh, Doubtful)
		l.answer(due+2*s, 2*s)
		l.want(due+2*s, Wait, Thinking)
		l.b.FreshResult(at(due+3*s), ok)
		if l.want(due+3*s, Wait, Thinking); l.b.Doubting() {
			t.Errorf("a result of %v begins a doubt", ok)
		}
	}
}

// A clock that is set back neither makes old signs new nor stops the verdict.
func TestClockThatIsSetBack(t *testing.T) {
	l := newLine(t, BeatConfig{}, nil)
	due := l.want(l.proven(), Wait, Thinking)
	l.acked = l.heard
	l.want(due, Probe, Thinking)
	back := due - 48*time.Hour
	late := l.want(back, Wait, Thinking)
	if late != back+s {
		t.Fatalf("late after %v", late-back)
	}
	l.want(late, Fresh, Doubtful)
	l.b.FreshResult(at(late), true)
	l.want(late, Probe, Doubtful)
	l.want(late+3*s, Leave, DeadFlow)
}

// Without a fresh connection only much evidence will do.
func TestAloneIsPatient(t *testing.T) {
	l := newLine(t, BeatConfig{NoFresh: true}, nil)
	due := l.want(l.proven(), Wait, Thinking)
	start, probes := due, 0
	for {
		step := l.next(due)
		if step.Action == Leave {
			break
		}
		if step.Action == Fresh {
			t.Fatal("asked for a fresh connection")
		}
		if step.Action == Probe {
			probes++
		}
		due = max(step.Due.Sub(epoch), due)
	}
	if took := due - start; took < aloneFor || took > 40*s || probes < Unanswered || l.b.Verdict() != DeadFlow {
		t.Errorf("left after %v and %d probes", took, probes)
	}
}

// While the path is down its connections make one fresh connection together, less
// and less often, and afterwards all go on.
func TestPathDownIsAskedOnce(t *testing.T) {
	w := newWorld(3)
	w.outages = [][2]time.Duration{{10 * time.Minute, 20 * time.Minute}}
	var all []*client
	for range 100 {
		c := w.client(BeatConfig{})
		c.asks = 5 * s
		all = append(all, c)
	}
	w.run(19 * time.Minute)
	down := 0
	for _, c := range all {
		if c.beat.Verdict() == PathDown {
			down++
		}
	}
	w.run(40 * time.Minute)
	cuts, fresh := 0, 0
	for _, c := range all {
		cuts += c.cuts
		fresh += c.fresh
	}
	t.Logf("%d of 100 know that the path is down, %d cuts, %d fresh connections", down, cuts, fresh)
	if down != 100 || cuts != 0 || fresh > 80 || fresh < 20 {
		t.Error("not as it should be")
	}
}

// The probes of a path wake the machine together.
func TestProbesFallTogether(t *testing.T) {
	count := func(cfg BeatConfig) (probes, wakes int) {
		w := newWorld(5)
		w.path.Survived(340 * s)
		var all []*client
		for i := range 50 {
			w.at(time.Duration(i)*7*s, func() { all = append(all, w.client(cfg)) })
		}
		w.run(10 * time.Minute)
		clear(w.wakes)
		for _, c := range all {
			probes -= c.probes
		}
		w.run(70 * time.Minute)
		for _, c := range all {
			probes += c.probes
		}
		return probes, len(w.wakes)
	}
	probes, wakes := count(BeatConfig{})
	fixed, alone := count(BeatConfig{Mode: Fixed})
	t.Logf("50 connections, an hour: %d probes in %d moments; a timer of 20 s %d in %d", probes, wakes, fixed, alone)
	if wakes > 2*22 || probes > 1200 {
		t.Error("they do not")
	}
}

// Once a peer refuses, no connection of its path probes as often, now or later.
func TestRefusalSlowsThePath(t *testing.T) {
	path := NewPath()
	first := newLine(t, BeatConfig{Mode: Fixed}, path)
	if got := first.probes(2, nil, nil); got[1]-got[0] != 20080*ms {
		t.Fatal(got)
	}
	first.b.Refused()
	for _, cfg := range []BeatConfig{{}, {Mode: Fixed}, {MaxInterval: 10 * s}} {
		l := newLine(t, cfg, path)
		got := l.probes(3, nil, []time.Duration{s})
		if every := l.b.Stats().Interval; every < 40*s {
			t.Errorf("%+v: interval %v", cfg, every)
		}
		for i := 1; i < len(got); i++ {
			if got[i]-got[i-1] < 40*s {
				t.Errorf("%+v: probes at %v", cfg, got)
			}
		}
	}
}

func TestPlanChangesLive(t *testing.T) {
	l := newLine(t, BeatConfig{}, nil)
	now := l.proven()
	l.want(now, Wait, Thinking)
	l.b.Set(BeatConfig{Mode: Fixed, MaxInterval: 7 * s})
	if due := l.want(now, Wait, Thinking); due != now+7*s {
		t.Errorf("due %v", due)
	}
	l.want(now+7*s, Probe, Thinking)
	l.want(now+8*s, Fresh, Doubtful)
	l.b.Set(BeatConfig{Mode: Off})
	if step := l.next(now + 20*s); step != (Step{}) || l.b.Verdict() != Alive {
		t.Errorf("off: %+v, %v", step, l.b.Verdict())
	}
	l.b.Set(BeatConfig{})
	l.want(now+time.Hour, Probe, Alive)
}

// Time in which our own side did not run is not the peer's silence.
func TestOwnBlockDoesNotCount(t *testing.T) {
	path := NewPath()
	path.Survived(340 * s)
	l := newLine(t, BeatConfig{}, path)
	due := l.want(l.proven(), Wait, Thinking)
	l.want(due, Probe, Thinking)
	l.want(due, Wait, Thinking)
	// The process stops for 3 s when the answer is due, or for 10 min.
	l.want(due+4*s, Wait, Thinking)
	l.answer(due+4*s+ms, 4*s+ms)
	if st := l.b.Stats(); st.Excluded != 1 || st.RTT != 80*ms {
		t.Errorf("the answer that waited is measured: %+v", st)
	}
	due = l.want(due+4*s+ms, Wait, Thinking)
	l.want(due+10*time.Minute, Probe, Thinking) // at once, and a doubt begins with it
	now := due + 10*time.Minute
	l.want(now+s, Fresh, Doubtful)
	l.b.FreshResult(at(now+s), true)
	l.want(now+s, Probe, Doubtful)
	l.want(now+4*s, Leave, DeadFlow)
	if limit, _ := path.Limit(); limit != 340*s {
		t.Errorf("a silence in our sleep moved the limit to %v", limit)
	}
}

// A short block moves the verdict by as much, and no more.
func TestShortBlockMovesTheVerdict(t *testing.T) {
	l := newLine(t, BeatConfig{}, nil)
	due := l.want(l.proven(), Wait, Thinking)
	l.want(due, Probe, Thinking)
	l.want(due+s, Fresh, Doubtful)
	l.b.FreshResult(at(due+s), true)
	l.want(due+s, Probe, Doubtful)
	l.b.Blocked(at(due+2*s), at(due+3500*ms))
	if dead := l.want(due+3500*ms, Wait, Doubtful); dead != due+5500*ms {
		t.Errorf("dead after %v", dead-due)
	}
	l.want(due+5500*ms, Leave, DeadFlow)
}

// Nor is a limit learned from a silence in which our own side was away.
func TestOwnBlockTeachesNothing(t *testing.T) {
	path := NewPath()
	path.Survived(340 * s)
	l := newLine(t, BeatConfig{}, path)
	now := l.proven()
	l.want(now, Wait, Thinking)
	l.b.Blocked(at(now+2*s), at(now+60*s))
	now += 60 * s
	l.want(now, Probe, Thinking)
	l.want(now+s, Fresh, Doubtful)
	l.b.FreshResult(at(now+s), true)
	l.want(now+s, Probe, Doubtful)
	l.want(now+4*s, Leave, DeadFlow)
	if limit, _ := path.Limit(); limit != 340*s {
		t.Errorf("limit %v", limit)
	}
}

func TestSleepIsLookedAtAtOnce(t *testing.T) {
	l := newLine(t, BeatConfig{}, nil)
	now := l.proven() + 6*s
	l.want(now, Wait, Thinking)
	l.b.Blocked(at(now-8*time.Hour), at(now))
	l.want(now, Probe, Thinking)
}

// Whatever is told in whatever order, and whatever the clock does: no probe is
// faster than allowed, each wait has an end in the future, and no flow is dead but
// by the rule.
func TestBeatKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := BeatConfig{Mode: Mode(rapid.IntRange(0, 3).Draw(t, "mode")), NoFresh: rapid.Bool().Draw(t, "noFresh"),
			MaxInterval: time.Duration(rapid.Int64Range(5, 700).Draw(t, "max")) * s}
		jumps := rapid.Bool().Draw(t, "jumps")
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		path := NewPath()
		now := epoch
		b := NewBeat(cfg, path, now, rnd.Float64)
		signs := Signs{Heard: now}
		var probed, opened, life time.Time
		word := now           // the last sign of life that is more than an acknowledgement
		var rto time.Duration // what it takes to be sent again, at the last probe
		due := now
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				signs.Heard, life, word = now, now, now
			case 1:
				b.Sent(now)
			case 2:
				b.Answered(now, time.Duration(rapid.Int64Range(-1, int64(time.Minute)).Draw(t, "rtt")))
				life, word = now, now
			case 3:
				signs.Acked, life = now, now
			case 4:
				signs.RTO = time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "rto"))
				signs.Trip = time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "trip"))
			case 5:
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "pass")))
			case 6:
				if jumps {
					now = now.Add(time.Duration(rapid.Int64().Draw(t, "jump")))
				} else {
					b.Blocked(now.Add(-time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "blocked"))), now)
				}
			default:
				if due.After(now) {
					now = due
				}
			}
			doubting := b.Doubting()
			step := b.Next(now, signs)
			due = step.Due
			switch step.Action {
			case Wait:
				if !due.IsZero() && (!due.After(now) || due.Sub(now) > time.Hour) {
					t.Fatalf("waits until %v at %v", due, now)
				}
			case Probe:
				if since := now.Sub(probed); !jumps && !doubting && !probed.IsZero() && since < 5*s {
					t.Fatalf("a probe %v after the last", since)
				}
				probed, rto = now, signs.resent()
			case Fresh:
				if cfg.NoFresh || cfg.Mode == Off {
					t.Fatal("a fresh connection")
				}
				ok := rapid.Bool().Draw(t, "ok")
				if b.FreshResult(now, ok); ok {
					opened = now
				}
			case Leave:
				if b.Verdict() == Alive && cfg.Mode == Spare {
					return
				}
				if b.Verdict() != DeadFlow || cfg.Mode == Off {
					t.Fatalf("left, %v", b.Verdict())
				}
				switch {
				case jumps:
				case cfg.NoFresh && (now.Sub(life) >= aloneFor || now.Sub(word) >= deafAfter):
				case !cfg.NoFresh && now.Sub(probed) >= max(3*s, rto) && !opened.IsZero() && !opened.After(probed) &&
					(opened.After(life) || now.Sub(word) >= deafAfter):
				default:
					t.Fatalf("dead %v after the last sign of life, %v after the last probe", now.Sub(life), now.Sub(probed))
				}
				return
			}
			if st := b.Stats(); st.Timeout <= 0 || st.Timeout > maxTimeout || cfg.Mode != Off && st.Interval < 5*s {
				t.Fatalf("%+v", st)
			}
		}
	})
}

// A peer whose answers spread eightfold, however slow it is, or which needs up to
// 4 s now and then, is never left, even where acknowledgements are not seen.
func TestSlowPeerIsNeverLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := time.Duration(rapid.Int64Range(int64(ms), int64(10*s)).Draw(t, "low"))
		high := low * time.Duration(rapid.IntRange(1, 8).Draw(t, "spread"))
		w := newWorld(rapid.Uint64().Draw(t, "seed"))
		seldom := high <= 4*s && rapid.Bool().Draw(t, "seldom")
		w.pong = func(time.Duration) time.Duration {
			if seldom && w.rnd.IntN(20) > 0 {
				return low
			}
			return low + time.Duration(w.rnd.Float64()*float64(high-low))
		}
		c := w.client(BeatConfig{MaxInterval: time.Duration(rapid.IntRange(5, 300).Draw(t, "max")) * s})
		c.asks = time.Duration(rapid.IntRange(0, 20).Draw(t, "asks")) * s
		w.run(2 * time.Hour)
		if c.cuts > 0 {
			t.Fatalf("answers in %v to %v: %d cuts, at %v", low, high, c.cuts, c.cutAt)
		}
	})
}

func TestBeatConfig(t *testing.T) {
	for _, bad := range []BeatConfig{{Mode: 9}, {MinInterval: -1}, {MaxInterval: -1}, {Timeout: -1}, {DeadAfter: -1}, {MaxInterval: s}, {MinInterval: time.Hour}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	for _, good := range []BeatConfig{{}, {Mode: Fixed, MaxInterval: 20 * s}, {MinInterval: s, MaxInterval: 2 * s}, {Mode: Off}} {
		if err := good.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestBeatIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Beat{}); size > 544 {
		t.Errorf("%d bytes", size)
	}
}
