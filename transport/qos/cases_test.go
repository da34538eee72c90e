// SPDX-License-Identifier: Apache-2.0

package qos_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/qos"
)

// A throttle is an upstream that refuses with Retry-After until a moment, and notes when
// it is asked.
type throttle struct {
	until time.Time
	after string // "" = what is left, in whole seconds

	mu    sync.Mutex // guards asked
	asked []time.Time
}

func (u *throttle) RoundTrip(req *http.Request) (*http.Response, error) {
	now := time.Now()
	u.mu.Lock()
	u.asked = append(u.asked, now)
	u.mu.Unlock()
	if now.Before(u.until) {
		after := u.after
		if after == "" {
			after = "10"
		}
		return answer(429, io.NopCloser(strings.NewReader("later")), "Retry-After", after), nil
	}
	return streams(req)
}

// offsets are when it was asked, counted from a moment.
func (u *throttle) offsets(from time.Time) []time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []time.Duration
	for _, at := range u.asked {
		out = append(out, at.Sub(from))
	}
	slices.Sort(out)
	return out
}

// TestAStormOfRefusedCallsDoesNotComeBackAtOnce: 200 calls, and the upstream refuses for
// ten seconds (case B116). Those that were under way hear that; those that wait are kept
// until it is over, and then one goes ahead of the others.
func TestAStormOfRefusedCallsDoesNotComeBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &throttle{until: time.Now().Add(10 * s)}
		r := newRig(t, up.RoundTrip, qos.Config{Limit: 20, Pace: true, QueueTimeout: time.Minute})
		r.send(burst(200, call{name: "c", lasts: s})...)
		at := up.offsets(r.from)
		if len(at) != 200 {
			t.Fatalf("%d came, want all 200", len(at))
		}
		early := 0
		for _, d := range at {
			if d < 10*s {
				early++
			}
			if d > 0 && d < 10*s {
				t.Errorf("one came at %v, inside of what the upstream asked to be left alone", d)
			}
		}
		// The first answer, which comes at once here, stops the rest.
		if early == 0 || early > 20 {
			t.Errorf("%d came before the refusal was known, want 20 at most", early)
		}
		if at[early] != 10*s {
			t.Errorf("the next came at %v, want 10s", at[early])
		}
		for i := range at[early:] {
			if slots := at[early:]; i >= 20 && slots[i]-slots[i-20] < s {
				t.Errorf("more than 20 within %v", slots[i]-slots[i-20])
			}
		}
	})
}

// TestWhatIsAskedForIsKeptToTheLastFraction: a Retry-After of 2.8 s is not 2 (case B115).
func TestWhatIsAskedForIsKeptToTheLastFraction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &throttle{until: time.Now().Add(2800 * ms), after: "2.8"}
		r := newRig(t, up.RoundTrip, qos.Config{Pace: true})
		r.send(call{name: "a", lasts: s}, call{name: "b", at: 1, lasts: s})
		r.want(event{"a", 0, ""}, event{"b", 2800 * ms, ""})
	})
}

// TestALongRefusalReachesTheApp: an upstream that refuses for ten minutes (case B118) is
// no queue of ten minutes. Each call hears of it, at once, and with when to come again.
func TestALongRefusalReachesTheApp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &throttle{until: time.Now().Add(10 * time.Minute), after: "600"}
		r := newRig(t, up.RoundTrip, qos.Config{Pace: true})
		resp, err := r.way.RoundTrip(request(t))
		if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "600" {
			t.Fatalf("the first call got %v, %v; want the upstream's own answer", resp, err)
		}
		_ = resp.Body.Close()
		begin := time.Now()
		_, err = r.way.RoundTrip(request(t))
		var e *qos.Error
		if !errors.As(err, &e) || e.Reason != qos.Paced || e.RetryAfter() != time.Minute || time.Since(begin) != 0 {
			t.Errorf("the next got %v after %v, want to hear at once to come again in a minute", err, time.Since(begin))
		}
		time.Sleep(time.Minute) // then one tries
		resp, err = r.way.RoundTrip(request(t))
		if err != nil || resp.StatusCode != 429 {
			t.Fatalf("a minute later a call got %v, %v; want the upstream's word", resp, err)
		}
		_ = resp.Body.Close()
		if at := up.offsets(r.from); !slices.Equal(at, []time.Duration{0, time.Minute}) {
			t.Errorf("the upstream was asked at %v, want twice", at)
		}
	})
}

// TestTheLearnedLimitFindsWhatAnUpstreamBears: one that answers in 50 ms up to twelve
// requests at once and refuses more. The limit comes down to it, and few are refused.
func TestTheLearnedLimitFindsWhatAnUpstreamBears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, refused, late := 0, 0, 0
		from := time.Now()
		up := way(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if running >= 12 {
				refused++
				if time.Since(from) > 30*s {
					late++
				}
				return answer(429, io.NopCloser(strings.NewReader(""))), nil
			}
			running++
			mu.Unlock()
			due := time.NewTimer(50 * ms)
			<-due.C
			mu.Lock()
			running--
			return answer(200, io.NopCloser(strings.NewReader(""))), nil
		})
		r := newRig(t, up, qos.Config{Adaptive: true, Limit: 100, QueueTimeout: time.Hour})
		var work sync.WaitGroup
		for range 60 { // callers without end: more than it bears
			work.Go(func() {
				for time.Since(from) < 60*s {
					resp, err := r.way.RoundTrip(request(t))
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode == http.StatusTooManyRequests {
						pause(t.Context(), 20*ms)
					}
				}
			})
		}
		work.Wait()
		if limit := r.gate.State().Limit; limit < 8 || limit > 16 {
			t.Errorf("the limit is %d at an upstream that bears 12", limit)
		}
		if late > 200 { // of some 7000
			t.Errorf("%d refused, %d of them in the last half minute", refused, late)
		}
		t.Logf("%d refused, %d of them in the last half minute", refused, late)
	})
}
