// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A peer is a connection in a simulated network.
type peer struct {
	now, heard time.Duration
	rto        time.Duration
	answers    func(at time.Duration) (time.Duration, bool) // of a probe: after how long
	opens      func(at time.Duration) (time.Duration, bool) // of a fresh connection

	probes, fresh int
}

// run asks the watch for as long as it says, or until it leaves.
func (p *peer) run(cfg Config, until time.Duration) (left time.Duration, ok bool, w *Watch) {
	epoch := time.Unix(0, 0)
	w = New(cfg)
	type arrival struct {
		at    time.Duration
		fresh bool
		ok    bool
	}
	var coming []arrival
	for p.now <= until {
		for i := 0; i < len(coming); i++ {
			if a := coming[i]; a.at <= p.now {
				if a.fresh {
					w.FreshResult(epoch.Add(p.now), a.ok)
				} else {
					p.heard = max(p.heard, a.at)
				}
				coming = append(coming[:i], coming[i+1:]...)
				i--
			}
		}
		action, due := w.Next(epoch.Add(p.now), epoch.Add(p.heard), p.rto)
		switch action {
		case Wait:
			next := due.Sub(epoch)
			for _, a := range coming {
				next = min(next, a.at)
			}
			p.now = max(next, p.now+time.Microsecond)
		case Probe:
			p.probes++
			if took, ok := p.answers(p.now); ok {
				coming = append(coming, arrival{at: p.now + took})
			}
		case Fresh:
			p.fresh++
			took, ok := p.opens(p.now)
			coming = append(coming, arrival{at: p.now + took, fresh: true, ok: ok})
		case Leave:
			return p.now, true, w
		}
	}
	return 0, false, w
}

func always(took time.Duration) func(time.Duration) (time.Duration, bool) {
	return func(time.Duration) (time.Duration, bool) { return took, true }
}

func never(took time.Duration) func(time.Duration) (time.Duration, bool) {
	return func(time.Duration) (time.Duration, bool) { return took, false }
}

const rtt = 80 * time.Millisecond

func TestThinkingIsWaitedFor(t *testing.T) {
	p := &peer{rto: 280 * time.Millisecond, answers: always(rtt), opens: always(2 * rtt)}
	if left, ok, w := p.run(Config{}, time.Hour); ok || w.Verdict() != Thinking {
		t.Errorf("left after %v, verdict %v", left, w.Verdict())
	}
	if p.fresh != 0 || p.probes < 60 || p.probes > 66 { // 5, 10, 20, 40 s, then each minute
		t.Errorf("%d probes, %d fresh connections in an hour", p.probes, p.fresh)
	}
}

func TestDeadFlowIsLeft(t *testing.T) {
	p := &peer{rto: 280 * time.Millisecond, answers: never(0), opens: always(2 * rtt)}
	left, ok, w := p.run(Config{}, time.Hour)
	// 5 s of silence, 1 s for the first probe, the fresh connection, then 3 s.
	if want := 9*time.Second + 2*rtt; !ok || left < want || left > want+10*time.Millisecond || w.Verdict() != DeadFlow {
		t.Errorf("left %v after %v, want %v: %v", ok, left, want, w.Verdict())
	}
}

// The kernel retransmits what is unanswered only after its time-out, which has
// grown in a silence: until then nothing proves the flow dead.
func TestRetransmissionIsWaitedFor(t *testing.T) {
	p := &peer{rto: 6 * time.Second, answers: never(0), opens: always(2 * rtt)}
	left, ok, _ := p.run(Config{}, time.Hour)
	if want := (5+1+12)*time.Second + 2*rtt; !ok || left < want || left > want+10*time.Millisecond {
		t.Errorf("left %v after %v, want %v", ok, left, want)
	}
}

func TestPathDownIsWaitedFor(t *testing.T) {
	p := &peer{rto: 280 * time.Millisecond, answers: never(0), opens: never(time.Second)}
	if left, ok, w := p.run(Config{}, time.Hour); ok || w.Verdict() != PathDown {
		t.Errorf("left after %v, verdict %v", left, w.Verdict())
	}
	if p.fresh < 1000 {
		t.Errorf("%d fresh connections in an hour", p.fresh)
	}
}

// A blackout of 4 s, at any moment of the watch: the flow answers once the
// kernel has retransmitted, and is not left.
func TestBlackoutIsSurvived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "start"))
		length := time.Duration(rapid.Int64Range(0, int64(30*time.Second)).Draw(t, "length"))
		end := start + length
		blocked := func(at time.Duration) bool { return at+rtt > start && at < end }
		p := &peer{
			answers: func(at time.Duration) (time.Duration, bool) {
				if !blocked(at) {
					return rtt, true
				}
				// Retransmissions double from 280 ms; the first after the end arrives.
				again := at
				for rto := 280 * time.Millisecond; again < end; rto *= 2 {
					again += rto
				}
				return again + rtt - at, true
			},
			opens: func(at time.Duration) (time.Duration, bool) {
				if blocked(at) {
					return time.Second, false
				}
				return 2 * rtt, true
			},
			// What TCP_INFO says late in the blackout: at least half of the
			// time since the first loss.
			rto: max(280*time.Millisecond, length),
		}
		if left, ok, _ := p.run(Config{}, end+5*time.Minute); ok {
			t.Fatalf("blackout %v + %v: left at %v", start, length, left)
		}
	})
}

// A stream that flows is never probed.
func TestFlowIsLeftAlone(t *testing.T) {
	epoch := time.Unix(0, 0)
	w := New(Config{})
	for now := time.Duration(0); now < time.Minute; now += time.Second {
		if action, due := w.Next(epoch.Add(now), epoch.Add(now-100*time.Millisecond), 0); action != Wait || due.Before(epoch.Add(now)) {
			t.Fatalf("%v: %v until %v", now, action, due)
		}
	}
}

// What comes after a long thought brings back the short silence.
func TestSilenceBeginsAnew(t *testing.T) {
	epoch := time.Unix(0, 0)
	w := New(Config{})
	at := func(d time.Duration) time.Time { return epoch.Add(d) }
	step := func(now, heard time.Duration, want Action) time.Duration {
		t.Helper()
		action, due := w.Next(at(now), at(heard), 0)
		if action != want {
			t.Fatalf("at %v: %v, want %v", now, action, want)
		}
		return due.Sub(epoch)
	}
	const s = time.Second
	step(5*s, 0, Probe)
	if due := step(6*s, 5*s+rtt, Wait); due < 15*s {
		t.Errorf("the next probe at %v, want 10 s after the last", due)
	}
	step(20*s, 19*s, Wait) // data came
	step(24*s, 19*s, Probe)
}

func TestConfig(t *testing.T) {
	for _, bad := range []Config{{Silence: -1}, {DeadAfter: -1}, {Silence: time.Minute, MaxSilence: time.Second}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if err := (Config{Silence: 2 * time.Minute}).Validate(); err != nil {
		t.Error(err)
	}
}
