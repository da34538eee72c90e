// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCloseFramesPassBothWays(t *testing.T) {
	tests := []struct {
		name, payload, answer string
	}{
		{"code and reason", closing(4001, "d\u00f6ne"), closing(4001, "d\u00f6ne")},
		{"empty", "", ""},
		{"other code in answer", closing(1011, "overloaded"), closing(1000, "")},
		{"a code that must not be sent", closing(1006, ""), closing(1002, "")}, // the ends judge
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, byApp := range []bool{true, false} {
				synctest.Test(t, play(nil, func(s *scene) {
					a, b := s.app, s.up
					if !byApp {
						a, b = b, a
					}
					go a.send(0x88, tt.payload)
					b.want(0x88, tt.payload)
					go b.send(0x88, tt.answer)
					a.want(0x88, tt.answer)
					_ = s.up.c.Close() // the server closes first
					s.app.wantEnd()
					s.ends(Closed, 0)
				}))
			}
		})
	}
}

func TestNoSideKeepsAClosedConnectionOpen(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		go s.up.send(0x88, "")
		s.app.want(0x88, "")
		go s.app.send(0x88, "")
		s.up.want(0x88, "")
		s.app.wantEnd()
		s.ends(Closed, time.Second)
	}))
}

func TestLateAnswerToACloseFrame(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		go s.app.send(0x88, closing(1000, ""))
		s.up.wantClose(1000, "")
		time.Sleep(29 * time.Second)
		go s.up.send(finText, "what was under way")
		s.app.want(finText, "what was under way")
		go s.up.send(0x88, closing(1000, ""))
		s.app.wantClose(1000, "")
		_ = s.up.c.Close()
		s.ends(Closed, 29*time.Second)
	}))
}

func TestCloseFrameThatIsNeverAnswered(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		go s.app.send(0x88, closing(1000, ""))
		s.up.wantClose(1000, "")
		s.ends(Closed, 30*time.Second)
		s.app.wantEnd()
		s.up.wantEnd()
	}))
}

func TestAppThatLeavesBehindItsCloseFrame(t *testing.T) {
	// The upstream's answer has a second to come; nobody is left to read it.
	synctest.Test(t, play(nil, func(s *scene) {
		go func() {
			s.app.send(0x88, closing(1000, ""))
			_ = s.app.c.Close()
		}()
		s.up.wantClose(1000, "")
		s.up.wantEnd()
		s.ends(Closed, time.Second)
	}))
}

func TestNothingFollowsACloseFrame(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		go s.app.raw(append(frame{0x88, ""}.bytes(true), frame{finText, "late"}.bytes(true)...))
		s.up.want(0x88, "")
		s.up.send(ping, "unanswered: our side has said goodbye")
		s.up.wantNothing(time.Second)
	}))
}

func TestAppThatLeavesEndsItsUpstreamAtOnce(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		_ = s.app.c.Close()
		s.up.wantClose(1001, "")
		s.up.wantEnd()
		s.ends(AppLeft, 0)
	}))
}

func TestAppThatLeavesDoesNotWaitForItsUpload(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		for range 100 {
			s.app.send(finBinary, strings.Repeat("x", 1000)) // and the upstream does not read
			synctest.Wait()
			time.Sleep(takeover)
		}
		_ = s.app.c.Close()
		s.ends(AppLeft, 100*takeover)
	}))
}

func TestUpstreamThatDropsLooksDropped(t *testing.T) {
	tests := []struct {
		name string
		sent []byte
		want []frame
	}{
		{"silent", nil, nil},
		{"behind a message", frame{finText, "whole"}.bytes(false), []frame{{finText, "whole"}}},
		{"in a header", append(frame{finText, "whole"}.bytes(false), 0x81), []frame{{finText, "whole"}}},
		{"in a message", frame{finText, "half of it"}.bytes(false)[:6], nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, play(nil, func(s *scene) {
				go func() {
					if tt.sent != nil {
						s.up.raw(tt.sent)
					}
					_ = s.up.c.Close()
				}()
				for _, f := range tt.want {
					s.app.want(f.first, f.payload)
				}
				s.app.wantEnd()
				s.ends(UpstreamDropped, 0)
			}))
		})
	}
}

func TestDroppedUpstreamsLastWordsReachASlowApp(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		for range 50 {
			s.up.send(finText, "one of many")
			time.Sleep(takeover)
		}
		_ = s.up.c.Close()
		time.Sleep(time.Minute)
		for range 50 {
			s.app.want(finText, "one of many")
		}
		s.app.wantEnd()
		s.ends(UpstreamDropped, time.Minute+50*takeover)
	}))
}

func TestStopTellsBothSides(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		s.stop()
		s.app.wantClose(1001, "")
		s.up.wantClose(1001, "")
		go s.app.send(0x88, closing(1001, ""))
		go s.up.send(0x88, closing(1001, ""))
		s.ends(Stopped, 0)
		s.app.wantEnd()
		s.up.wantEnd()
	}))
}

func TestStopDoesNotWaitForSidesThatAreStuck(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		go func() { _, _ = s.up.c.Write(frame{finText, "nobody reads this"}.bytes(false)) }()
		synctest.Wait()
		s.stop()
		s.up.wantClose(1001, "")
		s.ends(Stopped, time.Second)
	}))
}

func TestStopBetweenFragments(t *testing.T) {
	big := frame{finText, strings.Repeat("x", 100_000)}.bytes(false)
	synctest.Test(t, play(nil, func(s *scene) {
		go s.up.raw(big[:50_000])
		got := 0
		for got < 50_000-10 {
			f, err := s.app.next()
			if err != nil {
				t.Fatal(err)
			}
			got += len(f.payload)
		}
		s.stop()
		s.app.wantClose(1001, "")
		s.up.wantClose(1001, "")
		s.ends(Stopped, time.Second)
	}))
}

func TestASideThatTakesNothingIsCut(t *testing.T) {
	const limit = 5 * time.Second
	stall := func(_, _ *Leg, cfg *Config) { cfg.Stall = limit }
	t.Run("app", func(t *testing.T) {
		synctest.Test(t, play(stall, func(s *scene) {
			s.up.send(finText, "nobody reads this")
			s.up.wantClose(1001, "")
			s.up.wantEnd()
			s.ends(AppStalled, limit)
		}))
	})
	t.Run("upstream", func(t *testing.T) {
		synctest.Test(t, play(stall, func(s *scene) {
			s.app.send(finText, "nobody reads this")
			s.app.wantClose(1013, "Warmwire: the upstream took nothing for 5s")
			go s.app.send(0x88, closing(1013, ""))
			s.app.wantEnd()
			s.ends(UpstreamStalled, limit)
		}))
	})
	t.Run("not one that is slow", func(t *testing.T) {
		synctest.Test(t, play(stall, func(s *scene) {
			go func() {
				for range 20 {
					s.up.send(finBinary, strings.Repeat("x", chunkSize))
				}
			}()
			for range 20 {
				time.Sleep(limit - 1)
				s.app.want(finBinary, strings.Repeat("x", chunkSize))
			}
			_ = s.app.c.Close()
			s.up.wantClose(1001, "")
			s.ends(AppLeft, 20*(limit-1))
		}))
	})
	t.Run("never without a limit", func(t *testing.T) {
		synctest.Test(t, play(nil, func(s *scene) {
			s.up.send(finText, "late")
			time.Sleep(24 * time.Hour)
			s.app.want(finText, "late")
		}))
	})
}

func TestBrokenFraming(t *testing.T) {
	long := binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, 1<<63)
	tests := []struct {
		name    string
		fromApp bool
		raw     []byte
		why     string
	}{
		{"app does not mask", true, frame{finText, "x"}.bytes(false), "a frame of a client is not masked"},
		{"upstream masks", false, frame{finText, "x"}.bytes(true), "a frame of a server is masked"},
		{"reserved opcode", false, frame{0x83, "x"}.bytes(false), "a reserved opcode"},
		{"reserved control opcode", true, frame{0x8b, "x"}.bytes(true), "a reserved opcode"},
		{"RSV1 without an extension", false, frame{0xc1, "x"}.bytes(false), "a reserved bit that no extension gave a meaning"},
		{"RSV2", true, frame{0xa1, "x"}.bytes(true), "a reserved bit that no extension gave a meaning"},
		{"fragmented ping", false, frame{0x09, "x"}.bytes(false), "a control frame that is fragmented or too long"},
		{"long ping", false, frame{0x89, strings.Repeat("x", 126)}.bytes(false), "a control frame that is fragmented or too long"},
		{"length beyond 63 bits", true, append(long, 0, 0, 0, 0), "a length beyond 63 bits"},
		{"continuation of nothing", true, frame{0x80, "x"}.bytes(true), "a continuation of no message"},
		{"message in a message", false, append(frame{0x01, "x"}.bytes(false), frame{0x81, "y"}.bytes(false)...), "a message inside a message"},
		{"HTTP", false, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), "a control frame that is fragmented or too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, play(nil, func(s *scene) {
				from, to, cause := s.up, s.app, UpstreamBroke
				if tt.fromApp {
					from, to, cause = s.app, s.up, AppBroke
				}
				go from.raw(append(frame{finText, "good"}.bytes(tt.fromApp), tt.raw...))
				to.want(finText, "good")
				if strings.HasSuffix(tt.name, "in a message") {
					to.want(0x01, "x")
				}
				reason := "Warmwire: " + tt.why
				go from.wantClose(1002, reason)
				if tt.fromApp {
					to.wantClose(1001, "")
				} else {
					to.wantClose(1002, reason+" (from the upstream)")
				}
				go func() { _, _ = to.c.Write(frame{0x88, ""}.bytes(!tt.fromApp)) }()
				to.wantEnd()
				s.ends(cause, time.Second) // from may go on to send what it likes
			}))
		})
	}
}

func TestRSV1OfAFragmentThatIsNotTheFirst(t *testing.T) {
	synctest.Test(t, play(func(_, _ *Leg, cfg *Config) { cfg.Extensions = []string{"permessage-deflate"} }, func(s *scene) {
		go s.up.raw(append(frame{0x41, "x"}.bytes(false), frame{0xc0, "y"}.bytes(false)...))
		s.app.want(0x41, "x")
		s.app.wantClose(1002, "Warmwire: RSV1 on a fragment that is not the first (from the upstream)")
	}))
}

func TestLargeFramesOfACompressedMessage(t *testing.T) {
	// RSV1 stays on the first fragment alone (RFC 7692 §6.1).
	synctest.Test(t, play(func(_, _ *Leg, cfg *Config) { cfg.Extensions = []string{"permessage-deflate"} }, func(s *scene) {
		go s.up.send(0xc2, strings.Repeat("x", 100_000))
		f, err := s.app.next()
		if err != nil || f.first != 0x42 {
			t.Fatalf("%v, %v", f, err)
		}
		for n := len(f.payload); n < 100_000; n += len(f.payload) {
			if f, err = s.app.next(); err != nil || f.first&0x7f != 0 {
				t.Fatalf("%v, %v", f, err)
			}
		}
		if f.first != 0x80 {
			t.Errorf("the last fragment is %v", f)
		}
	}))
}

func TestHugeLengthIsStreamed(t *testing.T) {
	synctest.Test(t, play(nil, func(s *scene) {
		go func() {
			head := append([]byte{0x82, 0xff}, binary.BigEndian.AppendUint64(nil, 1<<62)...)
			_, err := s.app.c.Write(append(head, 0, 0, 0, 0))
			for err == nil {
				_, err = s.app.c.Write(make([]byte, 100_000))
			}
		}()
		for got := 0; got < 20<<20; {
			f, err := s.up.next()
			if err != nil || f.first&0x80 != 0 {
				t.Fatalf("%v, %v", f, err)
			}
			got += len(f.payload)
		}
		_ = s.app.c.Close()
		for {
			f, err := s.up.next()
			if err == io.EOF {
				t.Fatal("the end was not told")
			}
			if f.first == 0x88 {
				break
			}
		}
	}))
}
