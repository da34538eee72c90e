// SPDX-License-Identifier: Apache-2.0

package altsvc

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const day = 24 * time.Hour

func TestParse(t *testing.T) {
	h3 := func(host string, port uint16, age time.Duration, persist bool) Field {
		return Field{Services: []Service{{Protocol: "h3", Host: host, Port: port, MaxAge: age, Persist: persist}}}
	}
	tests := []struct {
		name  string
		lines []string
		want  Field
		bad   bool
	}{
		{name: "as Cloudflare says it", lines: []string{`h3=":443"; ma=86400`}, want: h3("", 443, day, false)},
		{name: "no age is a day", lines: []string{`h3=":443"`}, want: h3("", 443, day, false)},
		{name: "another host and persist", lines: []string{`h3="Alt.Example.com:8443";ma=60 ; persist=1`}, want: h3("alt.example.com", 8443, time.Minute, true)},
		{name: "IPv6", lines: []string{`h3="[2001:DB8::1]:443"`}, want: h3("2001:db8::1", 443, day, false)},
		{name: "quoted and unknown parameters", lines: []string{`h3=":443"; MA="5"; v="46,43"; x=y; persist=2`}, want: h3("", 443, 5*time.Second, false)},
		{name: "escapes", lines: []string{`h3="\:\443"`}, want: h3("", 443, day, false)},
		{name: "coded protocol, RFC 7838 §3", lines: []string{`w%3Dx%3Ay=":1"`}, want: Field{Services: []Service{{Protocol: "w=x:y", Port: 1, MaxAge: day}}}},
		{name: "an age beyond all", lines: []string{`h3=":443"; ma=99999999999999999999`}, want: h3("", 443, 365*day, false)},
		{name: "age zero", lines: []string{`h3=":443"; ma=0`}, want: h3("", 443, 0, false)},
		{name: "clear", lines: []string{" clear "}, want: Field{Clear: true}},
		{name: "two lines and empty elements", lines: []string{`, h3=":1",`, `,h2="a:2"; ma=1`}, want: Field{Services: []Service{
			{Protocol: "h3", Port: 1, MaxAge: day}, {Protocol: "h2", Host: "a", Port: 2, MaxAge: time.Second}}}},

		{name: "Clear is no clear", lines: []string{"Clear"}, bad: true},
		{name: "clear among others", lines: []string{`clear, h3=":443"`}, bad: true},
		{name: "nothing", lines: []string{""}, bad: true},
		{name: "no lines", bad: true},
		{name: "no port", lines: []string{`h3="host"`}, bad: true},
		{name: "port zero", lines: []string{`h3=":0"`}, bad: true},
		{name: "port too large", lines: []string{`h3=":65536"`}, bad: true},
		{name: "port with a sign", lines: []string{`h3=":+44"`}, bad: true},
		{name: "not quoted", lines: []string{`h3=:443`}, bad: true},
		{name: "no end", lines: []string{`h3=":443`}, bad: true},
		{name: "a host with a path", lines: []string{`h3="a/b:443"`}, bad: true},
		{name: "a zone", lines: []string{`h3="[fe80::1%eth0]:443"`}, bad: true},
		{name: "IPv6 without its end", lines: []string{`h3="[::1:443"`}, bad: true},
		{name: "IPv4 in brackets", lines: []string{`h3="[1.2.3.4]:443"`}, bad: true},
		{name: "a negative age", lines: []string{`h3=":443"; ma=-1`}, bad: true},
		{name: "a parameter without a value", lines: []string{`h3=":443"; ma`}, bad: true},
		{name: "no comma", lines: []string{`h3=":443" h2=":443"`}, bad: true},
		{name: "a bad code", lines: []string{`h%zz=":443"`}, bad: true},
		{name: "a control character", lines: []string{"h3=\":443\x00\""}, bad: true},
		{name: "too long", lines: []string{strings.Repeat(" ", maxBytes) + `h3=":443"`}, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.lines)
			if (err != nil) != tt.bad {
				t.Fatalf("Parse(%q) = %v", tt.lines, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseIsBounded(t *testing.T) {
	got, err := Parse([]string{strings.Repeat(`h2=":1",`, 100)})
	if err != nil || len(got.Services) != maxServices {
		t.Errorf("%d services, %v", len(got.Services), err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`h3=":443"; ma=86400`, "clear", `h3="[::1]:1";persist=1, h2="x:2"`, `a%3D="\"b:1"`, `h3=":443"; v="a,b"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got, err := Parse([]string{line})
		if err != nil {
			if got.Clear || got.Services != nil {
				t.Errorf("%q: an error and %+v", line, got)
			}
			return
		}
		if got.Clear == (len(got.Services) > 0) || len(got.Services) > maxServices {
			t.Errorf("%q: %+v", line, got)
		}
		var again []string
		for _, s := range got.Services {
			if s.Port == 0 || s.MaxAge < 0 || s.MaxAge > maxAge || len(s.Host) > 255 {
				t.Errorf("%q: %+v", line, s)
			}
			host := s.Host
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			var id strings.Builder
			for _, b := range []byte(s.Protocol) {
				if 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("!#$&'*+-.^_`|~", b) >= 0 { // no longer than it was
					id.WriteByte(b)
				} else {
					fmt.Fprintf(&id, "%%%02X", b)
				}
			}
			if s.Protocol == "" {
				t.Errorf("%q: a protocol without a name", line)
			}
			persist := 0
			if s.Persist {
				persist = 1
			}
			again = append(again, fmt.Sprintf(`%s="%s:%d"; ma=%d; persist=%d`, id.String(), host, s.Port, s.MaxAge/time.Second, persist))
		}
		if got.Clear {
			return
		}
		if twice, err := Parse(again); err != nil || !cmp.Equal(twice, got) {
			t.Errorf("%q: %+v, then %+v, %v", line, got, twice, err)
		}
	})
}

// A clock stands where its test puts it.
type clock struct {
	t *testing.T
	m *Memory
	d time.Duration
}

var epoch = time.Unix(1_000_000, 0)

func newClock(t *testing.T, cfg Config) *clock {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{t: t, m: m}
	c.said(`h3=":443"; ma=31536000`)
	return c
}

func (c *clock) now() time.Time { return epoch.Add(c.d) }

const api = "https://api.test:443"

func (c *clock) said(line string) {
	c.t.Helper()
	if err := c.m.Said(c.now(), api, []string{line}, 0); err != nil {
		c.t.Fatal(err)
	}
}

// asks says what the advice is at d.
func (c *clock) asks(d time.Duration, want Advice) {
	c.t.Helper()
	c.d = d
	got, s := c.m.Ask(c.now(), api)
	if got != want {
		c.t.Errorf("at %v: %v, want %v", d, got, want)
	}
	if (got != TCP) != (s.Port != 0) {
		c.t.Errorf("at %v: %v with %+v", d, got, s)
	}
}

func (c *clock) failed(d time.Duration) {
	c.d = d
	c.m.Failed(c.now(), api)
}

func (c *clock) worked(d time.Duration) {
	c.d = d
	c.m.Worked(c.now(), api)
}

const (
	secs = time.Second
	mins = time.Minute
)

func TestOffersEnd(t *testing.T) {
	c := newClock(t, Config{})
	c.said(`h2=":443", h3=":8443"; ma=60`)
	c.asks(0, Race)
	c.asks(60*secs-1, Race)
	c.asks(60*secs, TCP)
	c.m.Record(c.now(), api, "", 443, mins)
	c.asks(60*secs, Race)
	if _, got := c.m.Ask(c.now(), api); got.Port != 443 {
		t.Errorf("%+v", got)
	}
	c.said("clear") // takes back what was said, and not the record
	c.asks(61*secs, Race)
	c.m.Record(c.now(), api, "", 0, 0)
	c.asks(61*secs, TCP)
	if err := c.m.Said(c.now(), api, []string{`h3=":443"; ma=60`}, 59*secs); err != nil {
		t.Fatal(err)
	}
	c.asks(62*secs-1, Race)
	c.asks(62*secs, TCP)
	c.said(`h3=":443"`)
	c.said(`h2=":443"`) // replaces all
	c.asks(63*secs, TCP)
	c.said(`h3=":443"`)
	if err := c.m.Said(c.now(), api, []string{"nonsense"}, 0); err == nil {
		t.Error("nonsense is accepted")
	}
	c.asks(64*secs, Race)
}

func TestUnknownOriginIsLeftToTCP(t *testing.T) {
	m, _ := New(Config{})
	if a, _ := m.Ask(epoch, api); a != TCP {
		t.Errorf("advice %v", a)
	}
	m.Worked(epoch, api)
	if until := m.Failed(epoch, api); !until.IsZero() {
		t.Errorf("until %v", until)
	}
	if m.Stalled(epoch, api) || m.Len() != 0 {
		t.Error("what is not known is remembered")
	}
	if err := m.Said(epoch, api, []string{"clear"}, 0); err != nil || m.Len() != 0 {
		t.Errorf("%v, %d origins", err, m.Len())
	}
}

func TestPauseGrows(t *testing.T) {
	c := newClock(t, Config{})
	at := time.Duration(0)
	for i := range 12 {
		c.failed(at)
		pause := 5 * mins << min(i, 9)
		c.asks(at, TCP)
		c.asks(at+pause-1, TCP)
		c.asks(at+pause, Trial)
		at += pause
	}
	if got := c.m.State(c.now(), api); got.Failures != 12 || !got.Broken {
		t.Errorf("%+v", got)
	}
}

// Nobody but one is told to make the trial; the others go by TCP, until it is over
// or must have been forgotten.
func TestOneTrialAtATime(t *testing.T) {
	c := newClock(t, Config{})
	c.failed(0)
	c.asks(5*mins, Trial)
	c.asks(5*mins, TCP)
	c.asks(5*mins+30*secs-1, TCP)
	c.asks(5*mins+30*secs, Trial)
	c.worked(5*mins + 31*secs)
	c.asks(5*mins+31*secs, Race)
}

// Failures are forgotten only by a success that lasts as long as the pause that
// went before: a path that works for a moment again and again is not tried ever so
// often.
func TestSuccessMustLast(t *testing.T) {
	c := newClock(t, Config{})
	c.failed(0)
	c.asks(5*mins, Trial)
	c.worked(5 * mins)
	c.failed(10*mins - 1) // the second
	c.asks(20*mins-2, TCP)
	c.asks(20*mins-1, Trial)
	c.worked(20 * mins)
	c.worked(29 * mins)
	c.failed(30 * mins) // 10 minutes later: the first again
	c.asks(35*mins-1, TCP)
	c.asks(35*mins, Trial)
	c.worked(35 * mins)
	c.worked(40 * mins)
	if got := c.m.State(c.now(), api); got.Failures != 0 || got.Broken {
		t.Errorf("%+v", got)
	}
}

// Of several connections that fail at once one counts, and an answer that comes
// late over a connection from before proves nothing.
func TestFailuresOfOneMomentCountOnce(t *testing.T) {
	c := newClock(t, Config{})
	for range 10 {
		c.failed(0)
	}
	c.worked(1 * mins)
	c.asks(5*mins-1, TCP)
	c.asks(5*mins, Trial)
}

func TestSecondStallDemotes(t *testing.T) {
	c := newClock(t, Config{})
	stalled := func(d time.Duration, want bool) {
		t.Helper()
		c.d = d
		if got := c.m.Stalled(c.now(), api); got != want {
			t.Errorf("at %v: demoted %v, want %v", d, got, want)
		}
	}
	stalled(0, false)
	c.asks(0, Race)
	stalled(10*mins+1, false) // too long after
	stalled(20*mins+1, true)
	if got := c.m.State(c.now(), api); !got.Demoted || !got.Until.Equal(epoch.Add(25*mins+1)) {
		t.Errorf("%+v", got)
	}
	c.asks(25*mins, TCP)
	c.asks(25*mins+1, Trial)
	c.worked(25*mins + 2)
	c.asks(25*mins+2, Race)
	if got := c.m.State(c.now(), api); got.Demoted {
		t.Errorf("%+v", got)
	}
	stalled(26*mins, false) // one alone again
}

func TestAnotherNetwork(t *testing.T) {
	c := newClock(t, Config{})
	c.said(`h3=":443"; persist=1`)
	c.failed(0)
	c.asks(1*secs, TCP)
	c.m.NetworkChanged()
	c.asks(1*secs, Race)
	c.said(`h3=":443"`)
	c.m.NetworkChanged()
	c.asks(1*secs, TCP)
	if n := c.m.Len(); n != 0 {
		t.Errorf("%d origins", n)
	}
	c.m.Record(c.now(), api, "", 443, mins)
	c.m.NetworkChanged()
	c.asks(1*secs, Race)
}

func TestMemoryIsBounded(t *testing.T) {
	m, _ := New(Config{MaxOrigins: 3})
	for i := range 10 {
		if err := m.Said(epoch, fmt.Sprint(i), []string{`h3=":443"`}, 0); err != nil {
			t.Fatal(err)
		}
		m.Ask(epoch, "0") // in use
	}
	if a, _ := m.Ask(epoch, "0"); a != Race || m.Len() != 3 {
		t.Errorf("advice %v, %d origins", a, m.Len())
	}
	if a, _ := m.Ask(epoch, "5"); a != TCP {
		t.Errorf("advice %v about what made room", a)
	}
}

func TestConfig(t *testing.T) {
	for _, bad := range []Config{{Pause: -1}, {MaxDoubling: 31}, {MaxOrigins: -1}, {StallWindow: -1}, {TrialLimit: -1}} {
		if _, err := New(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if got := fmt.Sprint(TCP, Race, Trial); got != "tcp race trial" {
		t.Error(got)
	}
}

// Whatever happens in whatever order: a pause is never cut short, at most one
// trial is out, and what is not offered is not advised.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, _ := New(Config{})
		now := epoch
		var until, trial, offered time.Time
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(4*time.Minute)).Draw(t, "pass")))
			switch rapid.SampledFrom([]string{"said", "clear", "ask", "worked", "failed", "stalled", "network"}).Draw(t, "what") {
			case "said":
				_ = m.Said(now, api, []string{`h3=":443"; ma=600`}, 0)
				offered = now.Add(10 * time.Minute)
			case "clear":
				_ = m.Said(now, api, []string{"clear"}, 0)
				offered = time.Time{}
			case "worked":
				m.Worked(now, api)
				if !now.Before(until) {
					trial = time.Time{}
				}
			case "failed":
				if u := m.Failed(now, api); u.After(until) {
					until, trial = u, time.Time{}
				}
			case "stalled":
				if m.Stalled(now, api) {
					if u := m.State(now, api).Until; u.After(until) {
						until, trial = u, time.Time{}
					}
				}
			case "network":
				m.NetworkChanged()
				until, trial, offered = time.Time{}, time.Time{}, time.Time{}
			case "ask":
				a, _ := m.Ask(now, api)
				switch {
				case a != TCP && !now.Before(offered):
					t.Fatalf("%v, and nothing is offered", a)
				case a != TCP && now.Before(until):
					t.Fatalf("%v, %v before the pause is over", a, until.Sub(now))
				case a == Trial && now.Before(trial.Add(30*time.Second)):
					t.Fatalf("a second trial")
				case a == Trial:
					trial = now
				}
			}
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	m, _ := New(Config{MaxOrigins: 8})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				now, name := epoch.Add(time.Duration(j)*time.Second), fmt.Sprint((i+j)%12)
				_ = m.Said(now, name, []string{`h3=":443"`}, 0)
				m.Ask(now, name)
				m.Worked(now, name)
				m.Stalled(now, name)
				m.Failed(now, name)
				m.State(now, name)
			}
			m.NetworkChanged()
		})
	}
	wg.Wait()
	if m.Len() > 8 {
		t.Errorf("%d origins", m.Len())
	}
}
