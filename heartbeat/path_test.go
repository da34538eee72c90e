// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// search runs trials behind a limit until nothing more can be learned, and returns
// how long that took, the silences that were tried, and how many flows died.
func search(p *Path, now, limit time.Duration) (took time.Duration, tried []time.Duration, deaths int) {
	start := now
	for {
		idle, ok := p.begin(at(now))
		if !ok {
			return now - start, tried, deaths
		}
		now += idle
		tried = append(tried, idle)
		if idle < limit {
			p.Survived(idle)
		} else {
			p.Died(at(now), idle)
			deaths++
		}
		p.end()
	}
}

func TestLimitsAreFound(t *testing.T) {
	for _, tt := range []struct {
		limit, want time.Duration
		trials      int
		deaths      int
		most        time.Duration // that the search takes
	}{
		{limit: 60 * s, want: 60 * s, trials: 2, deaths: 2, most: 4 * time.Minute},
		{limit: 100 * s, want: 96875 * ms, trials: 2, deaths: 1, most: 4 * time.Minute},
		{limit: 120 * s, want: 116250 * ms, trials: 4, deaths: 2, most: 11 * time.Minute},
		{limit: 240 * s, want: 232500 * ms, trials: 4, deaths: 1, most: 14 * time.Minute},
		{limit: 350 * s, want: 339062500 * time.Microsecond, trials: 6, deaths: 2, most: 32 * time.Minute},
		{limit: time.Hour, want: 581250 * ms, trials: 5, deaths: 0, most: 24 * time.Minute},
	} {
		t.Run(tt.limit.String(), func(t *testing.T) {
			p := NewPath()
			took, tried, deaths := search(p, 0, tt.limit)
			got, _ := p.Limit()
			if got != tt.want || len(tried) != tt.trials || deaths != tt.deaths || took > tt.most {
				t.Errorf("limit %v after %v, %d dead of %v", got, took, deaths, tried)
			}
		})
	}
}

// A limit is found from any beginning: what is learned is never above it by a
// survival, the search ends, and at its end the limit is known to half, or to where
// it no longer matters.
func TestSearchEndsAtTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := time.Duration(rapid.Int64Range(int64(11*s), int64(2*time.Hour)).Draw(t, "limit"))
		p := NewPath()
		if limit <= firstLimit/2 { // the first connection that is silent finds out
			p.Died(at(0), firstLimit/2)
		}
		_, tried, _ := search(p, 0, limit)
		got, proven := p.Limit()
		if got > limit && proven || got/2 >= limit { // half of it must keep a flow
			t.Fatalf("learned %v of %v", got, limit)
		}
		if got*2 < limit && got < 580*s {
			t.Fatalf("learned only %v of %v", got, limit)
		}
		if len(tried) > 12 {
			t.Fatalf("%d trials", len(tried))
		}
		before := got
		if _, again, _ := search(p, 20*time.Hour, limit); len(again) != 0 && limit > firstLimit/2 {
			t.Fatalf("tried %v again within a day", again)
		}
		_, again, deaths := search(p, 60*time.Hour, limit)
		if got, _ := p.Limit(); got < before || deaths > 2 || got < 580*s && len(again) == 0 {
			t.Fatalf("a day later: %v, then %v; %v tried, %d dead", before, got, again, deaths)
		}
	})
}

// More survivals never lower a limit, more deaths never raise it, and nothing that
// is told in any order makes it senseless.
func TestLearningIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPath()
		now := epoch
		for range 100 {
			now = now.Add(time.Duration(rapid.Int64().Draw(t, "pass")))
			idle := time.Duration(rapid.OneOf(rapid.Int64(), rapid.Int64Range(0, int64(time.Hour))).Draw(t, "idle"))
			before, _ := p.Limit()
			survived := rapid.Bool().Draw(t, "survived")
			if survived {
				p.Survived(idle)
			} else {
				p.Died(now, idle)
			}
			after, _ := p.Limit()
			if survived && after < before || !survived && after > before || after < 7*s || after > maxIdle {
				t.Fatalf("%v, survived %v: %v, then %v", idle, survived, before, after)
			}
			if try, ok := p.begin(now); ok && (try <= after || try > 10*time.Minute) {
				t.Fatalf("would try %v at %v", try, after)
			}
			p.end()
		}
	})
}

// A router that restarts kills all flows at once, whatever their silence: the limit
// steps back once, not to nothing.
func TestManyDeathsOfOneCauseStepBackOnce(t *testing.T) {
	p := NewPath()
	search(p, 0, 350*s)
	p.Died(at(time.Hour), 170*s)
	for i := range 100 { // silences that began before it
		after := time.Duration(i) * s
		p.Died(at(time.Hour+after), after+time.Duration(100-i)*s/2)
	}
	if got, _ := p.Limit(); got != 120*s {
		t.Errorf("limit %v", got)
	}
	if _, ok := p.begin(at(time.Hour + 30*time.Minute)); ok {
		t.Error("tried again at once")
	}
	search(p, 3*time.Hour, 350*s)
	if got, _ := p.Limit(); got < 339*s {
		t.Errorf("limit %v after another search", got)
	}
}

// A network whose limit has shrunk is learned in as many deaths as steps are needed,
// also when they come soon after each other.
func TestShrunkenLimitIsLearned(t *testing.T) {
	p := NewPath()
	search(p, 0, 350*s)
	now, deaths := time.Hour, 0
	for { // a connection that is probed after half of what is known
		limit, _ := p.Limit()
		now += limit / 2
		if limit/2 < 58*s {
			break
		}
		p.Died(at(now), limit/2)
		now += 5 * s
		deaths++
	}
	if deaths != 2 {
		t.Errorf("%d deaths", deaths)
	}
}

// What dies within seconds did not die of its silence.
func TestQuickDeathsTeachNothing(t *testing.T) {
	p := NewPath()
	p.Died(at(0), minIdle-1)
	p.Died(at(0), maxIdle+1)
	p.Survived(maxIdle + 1)
	if limit, proven := p.Limit(); limit != firstLimit || proven || p.died != 0 {
		t.Errorf("limit %v, died %v", limit, p.died)
	}
}

func TestFailedFreshConnectionsPause(t *testing.T) {
	p := NewPath()
	now := epoch
	for _, want := range []time.Duration{s, 2 * s, 4 * s, 8 * s, 8 * s} {
		if f, _ := p.fresh(now, now); f != openOne {
			t.Fatalf("%v", f)
		}
		if f, again := p.fresh(now, now); f != beingOpened && f != couldNot || again <= 0 {
			t.Fatalf("a second one: %v after %v", f, again)
		}
		if got := p.freshResult(now, false); got != want {
			t.Errorf("pause %v, want %v", got, want)
		}
		if f, again := p.fresh(now.Add(want-1), now); f != couldNot || again != 1 {
			t.Errorf("in the pause: %v, again after %v", f, again)
		}
		now = now.Add(want)
	}
	if f, _ := p.fresh(now, now); f != openOne {
		t.Fatalf("%v", f)
	}
	p.freshResult(now.Add(s), true)
	if f, _ := p.fresh(now.Add(2*s), now); f != wasOpened {
		t.Errorf("after a success: %v", f)
	}
	if f, _ := p.fresh(now.Add(3*s), now.Add(2*s)); f != openOne {
		t.Errorf("an old success serves a new doubt: %v", f)
	}
}

func TestOneTrialAtATime(t *testing.T) {
	p := NewPath()
	idle, ok := p.begin(at(0))
	if _, second := p.begin(at(s)); !ok || second || p.Searching(at(s)) {
		t.Error("two trials at once, or none")
	}
	if !p.Searching(at(idle + trialSlack)) { // its owner has forgotten it
		t.Error("a lost trial blocks the search")
	}
	if !p.Searching(at(-48 * time.Hour)) {
		t.Error("a clock that was set back blocks the search")
	}
}

func TestRefusalIsRemembered(t *testing.T) {
	p := NewPath()
	p.Refused(5 * s)
	p.Refused(10 * s)
	p.Refused(s)
	if _, pace := p.plan(); pace != 20*s {
		t.Errorf("pace %v", pace)
	}
	for range 100 {
		_, pace := p.plan()
		p.Refused(max(pace, 20*s))
	}
	if _, pace := p.plan(); pace != maxPace {
		t.Errorf("pace %v", pace)
	}
}

func TestLimitsSurviveARestart(t *testing.T) {
	l := NewLimits(10)
	search(l.Path("home", "a:443"), 0, 350*s)
	search(l.Path("cafe", "a:443"), 0, 100*s)
	l.Path("home", "b:443").Refused(30 * s)
	l.Path("home", "unknown:443")
	data := l.Save()
	again := NewLimits(10)
	if !again.Load(data) {
		t.Fatalf("not understood: %s", data)
	}
	if got := again.Save(); !bytes.Equal(got, data) {
		t.Errorf("saved %s\nloaded %s", data, got)
	}
	if got, proven := again.Path("home", "a:443").Limit(); got < 339*s || !proven {
		t.Errorf("%v of 350 s", got)
	}
	if got, _ := again.Path("cafe", "a:443").Limit(); got < 96*s || got > 97*s {
		t.Errorf("%v of 100 s", got)
	}
	if _, pace := again.Path("home", "b:443").plan(); pace != time.Minute {
		t.Errorf("pace %v", pace)
	}
	if again.Path("home", "a:443").Searching(at(2 * time.Hour)) {
		t.Error("searches again at once")
	}
}

func TestGarbageStartsAnew(t *testing.T) {
	for name, data := range map[string]string{
		"nothing":          "",
		"not JSON":         "limits",
		"another version":  `{"version":2,"paths":[{"network":"n","origin":"o","survived_ms":300000}]}`,
		"cut":              `{"version":1,"paths":[{"network":"n","origin":"o","survived_ms":3000`,
		"wrong type":       `{"version":1,"paths":[{"network":"n","origin":"o","survived_ms":"300000"}]}`,
		"too long":         `{"version":1,"paths":[{"network":"n","origin":"o","survived_ms":99999999999}]}`,
		"negative":         `{"version":1,"paths":[{"network":"n","origin":"o","survived_ms":-1}]}`,
		"died below":       `{"version":1,"paths":[{"network":"n","origin":"o","survived_ms":300000,"died_ms":200000}]}`,
		"name of a novel":  fmt.Sprintf(`{"version":1,"paths":[{"network":"n%s","origin":"o","survived_ms":300000}]}`, strings.Repeat("n", maxName)),
		"larger than ours": `{"version":1,"paths":[]}` + strings.Repeat(" ", maxSaved),
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLimits(10)
			l.Path("kept", "o").Refused(20 * s)
			if l.Load([]byte(data)) {
				t.Error("taken for good")
			}
			if got, proven := l.Path("n", "o").Limit(); got != firstLimit || proven {
				t.Errorf("%v", got)
			}
			if _, pace := l.Path("kept", "o").plan(); pace != 40*s {
				t.Error("what was known is lost")
			}
		})
	}
}

func TestPathsAreBounded(t *testing.T) {
	l := NewLimits(3)
	first := l.Path("n", "0")
	for i := range 100 {
		l.Path("n", fmt.Sprint(i))
		if i < 50 && l.Path("n", "0") != first {
			t.Fatal("the one used last is forgotten")
		}
	}
	if l.Len() != 3 || l.Path("n", "0") == first {
		t.Errorf("%d paths", l.Len())
	}
	l = NewLimits(3)
	if l.Path(strings.Repeat("n", maxName+1), "o"); l.Len() != 0 {
		t.Error("a name of any length is kept")
	}
}

func FuzzLoad(f *testing.F) {
	l := NewLimits(8)
	l.Path("home", "a:443").Survived(100 * s)
	l.Path("home", "b:443").Died(epoch, 20*s)
	f.Add(l.Save())
	f.Add([]byte(`{"version":1,"paths":[{"network":"","origin":"","survived_ms":5000,"died_ms":86400000,"pace_ms":300000,"search_again_unix":1099511627775}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := NewLimits(8)
		understood := l.Load(data)
		if l.Len() > 8 {
			t.Fatalf("%d paths", l.Len())
		}
		kept := l.Save()
		again := NewLimits(8)
		if !again.Load(kept) || !bytes.Equal(again.Save(), kept) {
			t.Fatalf("understood %v: %s is not read back", understood, kept)
		}
		for e := l.order.Front(); e != nil; e = e.Next() {
			p := e.Value.(*entry).path
			if d, _ := p.Limit(); d < 7*s || d > maxIdle {
				t.Fatalf("limit %v", d)
			}
			if try, ok := p.begin(epoch); ok && (try < 10*s || try > 24*time.Hour) {
				t.Fatalf("would try %v", try)
			}
		}
	})
}
