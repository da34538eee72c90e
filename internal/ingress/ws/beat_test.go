// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const deadReason = "Warmwire: the upstream does not answer any more"

// beats has both legs pinged after 10 s of silence, and given up 3 s later.
func beats(app, up *Leg, _ *Config) {
	app.Policy = &Fixed{Idle: 10 * time.Second, Wait: 3 * time.Second}
	up.Policy = &Fixed{Idle: 10 * time.Second, Wait: 3 * time.Second}
}

// upBeats has only the upstream pinged.
func upBeats(_, up *Leg, _ *Config) {
	up.Policy = &Fixed{Idle: 10 * time.Second, Wait: 3 * time.Second}
}

// answerPings answers every ping after delay until the connection ends, and returns
// what else came.
func (p *peer) answerPings(delay time.Duration) (others []frame) {
	for {
		f, err := p.next()
		if err != nil {
			return others
		}
		if f.first != ping {
			others = append(others, f)
			continue
		}
		time.AfterFunc(delay, func() { _, _ = p.c.Write(frame{pong, f.payload}.bytes(p.mask)) })
	}
}

func TestSilentSidesArePinged(t *testing.T) {
	synctest.Test(t, play(beats, func(s *scene) {
		seen := map[string]bool{}
		for i := range 5 {
			for _, p := range []*peer{s.app, s.up} {
				f, err := p.next()
				if err != nil || f.first != ping || len(f.payload) != 8 || seen[f.payload] {
					t.Errorf("got %v, %v; want a ping with 8 bytes that are new", f, err)
				}
				seen[f.payload] = true
				s.at(time.Duration(i+1)*10*time.Second + time.Duration(i)*time.Second)
				if p == s.up {
					time.Sleep(time.Second)
					s.app.send(pong, "")
				}
				p.send(pong, f.payload)
			}
		}
		synctest.Wait()
		if st := s.relay.Stats(); st.Upstream.Pings != 5 || st.Upstream.RTT != time.Second || st.Upstream.MinRTT != time.Second || st.App.Pings != 5 {
			t.Errorf("stats %+v", st)
		}
	}))
}

func TestDeadUpstreamClosesTheApp(t *testing.T) {
	synctest.Test(t, play(upBeats, func(s *scene) {
		go s.up.next() // takes the ping and does not answer
		s.app.wantClose(1012, deadReason)
		s.at(13 * time.Second)
		go s.app.send(0x88, closing(1012, ""))
		s.app.wantEnd()
		s.ends(UpstreamDead, 13*time.Second)
		s.up.wantEnd()
	}))
}

func TestDeadUpstreamInsideALargeMessage(t *testing.T) {
	synctest.Test(t, play(upBeats, func(s *scene) {
		wire := frame{finText, strings.Repeat("x", 100_000)}.bytes(false)
		go func() {
			s.up.raw(wire[:90_000])
			_, _ = s.up.next()
		}()
		n := 0
		for n < 90_000-10 {
			f, err := s.app.next()
			if err != nil || f.first&0x80 != 0 {
				t.Fatalf("%v, %v", f, err)
			}
			n += len(f.payload)
		}
		s.app.wantClose(1012, deadReason)    // RFC 6455 §5.5.1: between fragments
		s.ends(UpstreamDead, 14*time.Second) // the app did not answer
	}))
}

func TestDeadUpstreamBehindASlowApp(t *testing.T) {
	synctest.Test(t, play(upBeats, func(s *scene) {
		s.up.send(finText, "nobody reads this yet")
		for range 10 {
			time.Sleep(100 * time.Millisecond)
			s.up.send(finText, "queued")
		}
		_, _ = s.up.next() // the ping
		time.Sleep(time.Minute)
		s.app.want(finText, "nobody reads this yet")
		for range 10 {
			s.app.want(finText, "queued")
		}
		s.app.wantClose(1012, deadReason)
		s.ends(UpstreamDead, 72*time.Second)
	}))
}

func TestDeadUpstreamBehindAnAppThatTakesNothing(t *testing.T) {
	synctest.Test(t, play(func(app, up *Leg, cfg *Config) { upBeats(app, up, cfg); cfg.Stall = time.Minute }, func(s *scene) {
		s.up.send(finText, "nobody reads this")
		_, _ = s.up.next() // the ping
		s.up.wantEnd()
		s.ends(UpstreamDead, time.Minute)
	}))
}

func TestDeadAppLetsItsUpstreamGo(t *testing.T) {
	synctest.Test(t, play(func(app, up *Leg, cfg *Config) { beats(app, up, cfg); up.Policy = nil }, func(s *scene) {
		go s.app.next()
		s.up.wantClose(1001, "")
		s.up.wantEnd()
		s.ends(AppDead, 13*time.Second)
	}))
}

func TestAnyByteIsLife(t *testing.T) {
	// It never answers a ping, but a byte of a large frame comes now and then.
	synctest.Test(t, play(upBeats, func(s *scene) {
		var others []frame
		var reading sync.WaitGroup
		reading.Go(func() {
			for {
				f, err := s.up.next()
				if err != nil {
					return
				}
				others = append(others, f)
			}
		})
		go func() {
			for {
				if _, err := s.app.next(); err != nil {
					return
				}
			}
		}()
		s.up.raw(frame{finText, strings.Repeat("x", 100_000)}.bytes(false)[:100])
		for range 1000 {
			time.Sleep(12999 * time.Millisecond)
			s.up.raw([]byte("x"))
		}
		_ = s.app.c.Close()
		s.ends(AppLeft, 1000*12999*time.Millisecond)
		reading.Wait()
		if n := len(others); n != 1001 { // 1000 pings and 1001
			t.Errorf("%d frames went to the upstream", n)
		}
	}))
}

func TestBusySidesAreNotPinged(t *testing.T) {
	synctest.Test(t, play(beats, func(s *scene) {
		for range 20 {
			go s.app.send(finText, "x")
			s.up.want(finText, "x")
			go s.up.send(finText, "y")
			s.app.want(finText, "y")
			time.Sleep(9 * time.Second)
		}
	}))
}

func TestPongsThatComeLateButInTime(t *testing.T) {
	synctest.Test(t, play(beats, func(s *scene) {
		var done sync.WaitGroup
		done.Go(func() { s.up.answerPings(3*time.Second - 1) })
		done.Go(func() { s.app.answerPings(0) })
		time.Sleep(time.Hour)
		s.stop()
		s.ends(Stopped, time.Hour+time.Second)
		done.Wait()
	}))
}

func TestOurOwnBlockingIsNotHeldAgainstThePeer(t *testing.T) {
	// The app reads nothing for an hour, so that the upstream is not read either. Its
	// answers to pings are behind what is not read.
	synctest.Test(t, play(func(app, up *Leg, cfg *Config) { upBeats(app, up, cfg); cfg.ReadAhead = 64 << 10 }, func(s *scene) {
		var sending sync.WaitGroup
		sending.Go(func() {
			for range 200 {
				s.up.send(finBinary, strings.Repeat("x", 1000))
			}
		})
		go s.up.answerPings(time.Second)
		time.Sleep(time.Hour)
		for range 200 {
			s.app.want(finBinary, strings.Repeat("x", 1000))
		}
		sending.Wait()
		s.app.wantNothing(time.Hour)
		s.stop()
	}))
}

func TestAPingThatCannotBeWrittenIsNotHeldAgainstThePeer(t *testing.T) {
	synctest.Test(t, play(upBeats, func(s *scene) {
		s.app.send(finText, "the upstream does not read")
		time.Sleep(time.Hour)
		go s.up.answerPings(time.Second)
		s.app.wantNothing(time.Hour)
		s.stop()
	}))
}

// recorder is a Policy that notes what it is told.
type recorder struct {
	Fixed
	mu      sync.Mutex
	rtts    []time.Duration
	blocked []time.Duration
}

func (r *recorder) Pong(_ time.Time, rtt time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rtts = append(r.rtts, rtt)
}

func (r *recorder) Blocked(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = append(r.blocked, d)
	r.Fixed.Blocked(d)
}

func TestPolicyIsToldRoundTripsAndBlocking(t *testing.T) {
	rec := &recorder{Fixed: Fixed{Idle: 10 * time.Second, Wait: 3 * time.Second}}
	synctest.Test(t, play(func(_, up *Leg, cfg *Config) { up.Policy, cfg.ReadAhead = rec, 1 }, func(s *scene) {
		f, _ := s.up.next()
		time.Sleep(80 * time.Millisecond)
		s.up.send(pong, "no answer to anything")
		s.up.send(pong, f.payload)
		s.up.send(pong, f.payload) // the second counts for nothing
		for range 3 {
			s.up.send(finText, "nobody reads this")
			time.Sleep(takeover)
		}
		time.Sleep(4 * time.Second)
		for range 3 {
			s.app.want(finText, "nobody reads this")
		}
		synctest.Wait()
		if want := []time.Duration{80 * time.Millisecond}; !slices.Equal(rec.rtts, want) {
			t.Errorf("round trips %v, want %v", rec.rtts, want)
		}
		if want := []time.Duration{4*time.Second + takeover}; !slices.Equal(rec.blocked, want) {
			t.Errorf("blocked %v, want %v", rec.blocked, want)
		}
	}))
}
