// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"slices"
	"testing"
	"time"
)

// TestExceptions refuses a certificate at given times and looks who is left alone.
func TestExceptions(t *testing.T) {
	const m = time.Minute
	start := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name    string
		refused []time.Duration
		blind   []time.Duration
		not     []time.Duration
	}{
		{"never", nil, nil, []time.Duration{0, 60 * m}},
		{"twice", []time.Duration{0, m}, nil, []time.Duration{m, 60 * m}},
		{"three times", []time.Duration{0, 5 * m, 10 * m}, []time.Duration{10 * m, 70*m - 1}, []time.Duration{70 * m, 1000 * m}},
		{"too far apart", []time.Duration{0, 5 * m, 10*m + 1}, nil, []time.Duration{10*m + 1}},
		{"the latest three count", []time.Duration{0, 20 * m, 21 * m, 22 * m}, []time.Duration{22 * m}, []time.Duration{82 * m}},
		{"more do not prolong it", []time.Duration{0, m, 2 * m, 30 * m, 31 * m, 32 * m}, []time.Duration{62*m - 1}, []time.Duration{62 * m}},
		{"an hour later it is asked anew", []time.Duration{0, m, 2 * m, 62 * m, 63 * m}, nil, []time.Duration{63 * m}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var x Exceptions
			for _, d := range tt.refused {
				now := start.Add(d)
				if until, learned := x.Refused("a.test", 7, now); learned != (x.Blind("a.test", 7, now) && until.Equal(now.Add(blindFor))) && learned {
					t.Errorf("after %v: learned %v until %v", d, learned, until)
				}
			}
			for _, d := range tt.blind {
				if !x.Blind("a.test", 7, start.Add(d)) || len(x.List(start.Add(d))) != 1 {
					t.Errorf("at %v it is not left alone", d)
				}
			}
			for _, d := range tt.not {
				if x.Blind("a.test", 7, start.Add(d)) || len(x.List(start.Add(d))) != 0 {
					t.Errorf("at %v it is left alone", d)
				}
			}
			if x.Blind("b.test", 7, start.Add(10*m)) || x.Blind("a.test", 8, start.Add(10*m)) || x.Blind("a.test", 0, start.Add(10*m)) {
				t.Error("another host, or for another kind of client, is left alone too")
			}
		})
	}
}

func TestExceptionsAreListedClearedAndBounded(t *testing.T) {
	var x Exceptions
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for _, host := range []string{"b.test", "a.test", "a.test", "b.test", "a.test", "b.test", "c.test"} {
		x.Refused(host, 7, now)
	}
	want := []Exception{{"a.test", now.Add(time.Hour), Untrusted, 7}, {"b.test", now.Add(time.Hour), Untrusted, 7}}
	if got := x.List(now); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := x.Clear("a.test", now); n != 1 || x.Blind("a.test", 7, now) || !x.Blind("b.test", 7, now) {
		t.Errorf("cleared %d, left %v", n, x.List(now))
	}
	if n := x.Clear("", now); n != 1 || len(x.List(now)) != 0 {
		t.Errorf("cleared %d, left %v", n, x.List(now))
	}
	for i := range maxRemembered + 10 {
		x.Refused("a.test", uint64(i), now)
	}
	if len(x.entries) != maxRemembered {
		t.Errorf("%d are remembered", len(x.entries))
	}
	later := now.Add(refusalsSpan + 1)
	for range refusals {
		x.Refused("c.test", 1, later)
	}
	if !x.Blind("c.test", 1, later) || len(x.entries) != 1 {
		t.Errorf("%d are remembered when the time of the others is over", len(x.entries))
	}
}

func TestHostThatWantsACertificate(t *testing.T) {
	var x Exceptions
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	until, learned := x.WantsCertificate("a.test", now)
	if !learned || !until.Equal(now.Add(time.Hour)) || !x.Blind("a.test", 7, now) || x.Blind("a.test", 7, until) {
		t.Errorf("learned %v until %v", learned, until)
	}
	if _, learned := x.WantsCertificate("a.test", now.Add(time.Minute)); learned {
		t.Error("learned twice")
	}
	if got := x.List(now.Add(time.Minute)); len(got) != 1 || got[0] != (Exception{"a.test", now.Add(61 * time.Minute), ClientCertificate, 0}) {
		t.Errorf("listed %v", got)
	}
	if _, learned := x.WantsCertificate("a.test", now.Add(2*time.Hour)); !learned {
		t.Error("not learned again after its time")
	}
	if n := x.Clear("a.test", now.Add(2*time.Hour)); n != 1 || x.Blind("a.test", 7, now.Add(2*time.Hour)) {
		t.Errorf("cleared %d", n)
	}
}
