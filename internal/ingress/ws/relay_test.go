// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const (
	finText   = 0x81
	finBinary = 0x82
	ping      = 0x89
	pong      = 0x8a
)

func TestFramesPassAsTheyCame(t *testing.T) {
	// Reserved bits pass only where an extension may have given them a meaning.
	synctest.Test(t, play(func(_, _ *Leg, cfg *Config) {
		cfg.Extensions = []string{"permessage-deflate; client_no_context_takeover"}
	}, func(s *scene) {
		for _, f := range []frame{
			{finText, "hello"}, {finBinary, ""}, {0x01, "a"}, {0x00, ""}, {0x80, "b"}, {0xc1, "compressed"},
			{0x41, "compressed, in "}, {0x80, "fragments"}, {finBinary, strings.Repeat("x", 125)},
			{finBinary, strings.Repeat("x", 126)}, {finBinary, strings.Repeat("x", 65535)}, {finBinary, strings.Repeat("x", 65536)},
		} {
			go s.app.send(f.first, f.payload)
			s.up.want(f.first, f.payload)
			go s.up.send(f.first, f.payload)
			s.app.want(f.first, f.payload)
		}
		s.at(0)
	}))
}

func TestBytesOfAMaskedFrameAreTheSame(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		sent := frame{finText, "not unmasked and masked again"}.bytes(true)
		go s.app.raw(sent)
		got := make([]byte, len(sent))
		if _, err := s.up.c.Read(got); err != nil || string(got) != string(sent) {
			t.Errorf("%x, %v; want %x in one write", got, err, sent)
		}
	}))
}

func TestPingsAreAnsweredWhileTheOtherSideIsStuck(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		s.app.send(finText, "nobody reads this")
		synctest.Wait()
		go s.app.send(ping, "first")
		s.app.want(pong, "first")
		s.at(takeover) // the write that is stuck is given that long
		for range 100 {
			go s.app.send(ping, "more")
			s.app.want(pong, "more")
			s.app.send(finText, "queued")
		}
		s.at(takeover)
		s.up.want(finText, "nobody reads this")
		for range 100 {
			s.up.want(finText, "queued")
		}
		go s.app.send(finText, "direct again")
		s.up.want(finText, "direct again")
		s.at(takeover)
	}))
}

func TestPingsAreAnsweredInsideALargeMessage(t *testing.T) {
	big := strings.Repeat("large ", 50_000)
	synctest.Test(t, play(nil, func(s *scene) {
		wire := frame{finText, big}.bytes(false)
		go s.up.raw(wire[:100_000])
		got := ""
		f, _ := s.app.next()
		if f.first != 0x01 {
			t.Errorf("the first fragment is %v", f)
		}
		got += f.payload
		for len(got) < 100_000-10 {
			f, _ = s.app.next()
			got += f.payload
		}
		go s.app.send(ping, "now")
		s.app.want(pong, "now")
		go s.up.raw(wire[100_000:])
		for f.first != 0x80 {
			var err error
			if f, err = s.app.next(); err != nil || f.first&0x7f != 0 {
				t.Fatalf("%v, %v", f, err)
			}
			got += f.payload
		}
		if got != big {
			t.Errorf("%d bytes, want %d, or they differ", len(got), len(big))
		}
		s.at(0)
	}))
}

func TestPongsAreAnsweredToTheSideThatIsStuck(t *testing.T) {
	// The upstream does not read, but it sends pings: their answers wait for it, and
	// of very many only the newest is kept.
	synctest.Test(t, play(nil, func(s *scene) {
		go s.app.send(finText, "stuck")
		synctest.Wait()
		for range 1000 {
			s.up.send(ping, strings.Repeat("p", 125))
		}
		s.up.send(ping, "last")
		s.up.want(finText, "stuck")
		n, got := 0, ""
		for got != "last" {
			f, err := s.up.next()
			if err != nil || f.first != pong {
				t.Fatalf("%v, %v", f, err)
			}
			got = f.payload
			n++
		}
		if n > 20 {
			t.Errorf("%d pongs were held", n)
		}
	}))
}

func TestPongsNobodyAskedForAreDropped(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		s.app.send(pong, "unsolicited")
		s.up.send(pong, "")
		go s.app.send(finText, "after")
		s.up.want(finText, "after")
		s.app.wantNothing(time.Second)
	}))
}

func TestPingsPassFromEndToEndIfAsked(t *testing.T) {
	synctest.Test(t, play(func(_, _ *Leg, cfg *Config) { cfg.PassPings = true }, func(s *scene) {
		go s.app.send(ping, "p")
		s.up.want(ping, "p")
		go s.up.send(pong, "p")
		s.app.want(pong, "p")
	}))
}

func TestReadAheadIsBounded(t *testing.T) {
	const limit = 256 << 10
	synctest.Test(t, play(func(_, _ *Leg, cfg *Config) { cfg.ReadAhead = limit }, func(s *scene) {
		sent := 0
		go func() {
			for {
				if _, err := s.up.c.Write(frame{finBinary, strings.Repeat("x", 1000)}.bytes(false)); err != nil {
					return
				}
				sent++
			}
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := sent * 1004; got < limit/2 || got > limit+2*smallBlock {
			t.Errorf("%d bytes were read ahead, limit %d", got, limit)
		}
		for range sent + 1000 {
			s.app.want(finBinary, strings.Repeat("x", 1000))
		}
	}))
}

func TestReadAheadIsChargedToTheBudget(t *testing.T) {
	const room = 64 << 10
	for _, read := range []bool{true, false} {
		var used, most atomic.Int64
		synctest.Test(t, play(func(_, _ *Leg, cfg *Config) {
			cfg.Take = func(n int64) bool {
				if used.Load()+n > room {
					return false
				}
				most.Store(max(most.Load(), used.Add(n)))
				return true
			}
			cfg.Give = func(n int64) { used.Add(-n) }
		}, func(s *scene) {
			var sent atomic.Int64
			go func() {
				for {
					if _, err := s.up.c.Write(frame{finBinary, strings.Repeat("x", 1000)}.bytes(false)); err != nil {
						return
					}
					sent.Add(1)
				}
			}()
			time.Sleep(time.Hour)
			synctest.Wait()
			if got := sent.Load() * 1004; got < room/2 || got > room+2*chunkSize+2*smallBlock {
				t.Errorf("%d bytes were read ahead, the budget has %d", got, room)
			}
			if read {
				for range sent.Load() + 1000 {
					s.app.want(finBinary, strings.Repeat("x", 1000))
				}
			}
		}))
		if used.Load() != 0 || most.Load() < room/2 {
			t.Errorf("%d bytes were not given back of %d", used.Load(), most.Load())
		}
	}
}

func TestADirectionThatIsStuckHasOneGoroutineMore(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		synctest.Wait()
		before := runtime.NumGoroutine()
		s.up.send(finText, "stuck")
		time.Sleep(time.Second)
		if got := runtime.NumGoroutine(); got != before+1 {
			t.Errorf("%d goroutines, one stuck direction should add 1 to %d", got, before)
		}
		s.app.want(finText, "stuck")
		synctest.Wait()
		if got := runtime.NumGoroutine(); got != before {
			t.Errorf("%d goroutines afterwards, %d before", got, before)
		}
	}))
}

func TestUnknownExtensionsAreNotTouched(t *testing.T) {
	// Reserved bits and opcodes pass, and no frame is split, since only who knows the
	// extension may (RFC 6455 §5.4): control frames wait for its end.
	big := strings.Repeat("x", 200_000)
	synctest.Test(t, play(func(_, _ *Leg, cfg *Config) { cfg.Extensions = []string{"permessage-deflate, x-shout"} }, func(s *scene) {
		go s.app.send(0xf3, "?")
		s.up.want(0xf3, "?")
		wire := frame{0xf2, big}.bytes(false)
		go s.up.raw(wire[:100_000])
		first := make([]byte, 100_000)
		for n := 0; n < len(first); {
			m, err := s.app.c.Read(first[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		s.app.send(ping, "wait")
		s.app.wantNothing(time.Second)
		go s.up.raw(wire[100_000:])
		rest := make([]byte, len(wire)-len(first))
		for n := 0; n < len(rest); {
			m, err := s.app.c.Read(rest[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		if string(first)+string(rest) != string(wire) {
			t.Error("the frame was changed")
		}
		s.app.want(pong, "wait")
	}))
}
