// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"net/http"
	"testing"
	"time"
)

func head(nv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(nv); i += 2 {
		h.Set(nv[i], nv[i+1])
	}
	return h
}

// starts plays requests that start as soon as the pacer lets them, each answered at once
// with the fields of h, or with none after the first if once. It returns when.
func starts(p *pacer, now time.Time, n int, status int, h http.Header, once bool) []time.Duration {
	from, out := now, []time.Duration(nil)
	for i := range n {
		if at := p.ready(now); !at.IsZero() {
			now = at
		}
		out = append(out, now.Sub(from))
		p.started(now)
		fields := h
		if once && i > 0 {
			fields, status = http.Header{}, 200
		}
		p.answered(now, now, status, fields, uint64(i+1), uint64(i+1))
	}
	return out
}

var noon = time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)

func same(t *testing.T, got []time.Duration, want ...time.Duration) {
	t.Helper()
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("starts at %v, want %v", got, want)
		}
	}
}

// TestRequestsFollowWhatIsLeft: of 60 a minute two are left, so that two start at once and
// the others one a second.
func TestRequestsFollowWhatIsLeft(t *testing.T) {
	h := head("x-ratelimit-limit-requests", "60", "x-ratelimit-remaining-requests", "2", "x-ratelimit-reset-requests", "58s")
	same(t, starts(&pacer{}, noon, 6, 200, h, true), 0, 0, 0, time.Second, 2*time.Second, 3*time.Second)
}

// TestTokensFollowWhatOthersTook: of 6000 tokens a minute each request took 300.
func TestTokensFollowWhatOthersTook(t *testing.T) {
	p, now := &pacer{}, noon
	left := []string{"900", "600", "300", "0"}
	for i, l := range left {
		p.started(now)
		p.answered(now, now, 200, head("anthropic-ratelimit-tokens-limit", "6000", "anthropic-ratelimit-tokens-remaining", l,
			"anthropic-ratelimit-tokens-reset", now.Add(time.Minute).Format(time.RFC3339)), uint64(i+1), uint64(i+1))
	}
	if c := p.bucket("tokens").cost; c != 300 {
		t.Fatalf("a request is taken to need %v tokens, want 300", c)
	}
	if at := p.ready(now).Sub(now); at != 3*time.Second { // 300 of 100 a second
		t.Errorf("the next starts after %v, want 3s", at)
	}
}

// TestWhatBeganSinceIsTakenOff: three requests began after the one whose answer says that
// three are left.
func TestWhatBeganSinceIsTakenOff(t *testing.T) {
	p := &pacer{}
	h := head("x-ratelimit-limit-requests", "10", "x-ratelimit-remaining-requests", "3", "x-ratelimit-reset-requests", "7s")
	p.answered(noon, noon, 200, h, 1, 4)
	if at := p.ready(noon).Sub(noon); at != time.Second {
		t.Errorf("the next starts after %v, want 1s", at)
	}
	p.answered(noon, noon, 200, head("x-ratelimit-limit-requests", "10", "x-ratelimit-remaining-requests", "9", "x-ratelimit-reset-requests", "1s"), 3, 4)
	if at := p.ready(noon); !at.IsZero() {
		t.Errorf("a later answer says that there is more, and the next starts at %v", at)
	}
	p.answered(noon, noon, 200, head("x-ratelimit-limit-requests", "10", "x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "10s"), 2, 4)
	if at := p.ready(noon); !at.IsZero() {
		t.Errorf("an older answer changed that: the next starts at %v", at)
	}
}

// TestAHoldIsKeptAndLeftWithOneRequest: nothing before Retry-After is over, then one
// request a second until one is answered well.
func TestAHoldIsKeptAndLeftWithOneRequest(t *testing.T) {
	p := &pacer{}
	p.started(noon)
	p.answered(noon, noon, 429, head("Retry-After", "7"), 1, 1)
	at := func(now time.Time) time.Duration {
		if t := p.ready(now); !t.IsZero() {
			return t.Sub(noon)
		}
		return 0
	}
	const s = time.Second
	if got := at(noon.Add(3 * s)); got != 7*s {
		t.Fatalf("the next starts at %v, want 7s", got)
	}
	p.answered(noon.Add(4*s), noon, 200, http.Header{}, 0, 1) // sent before: says nothing of now
	p.started(noon.Add(7 * s))
	if got := at(noon.Add(7 * s)); got != 8*s {
		t.Errorf("beside the first one the next starts at %v, want 8s", got)
	}
	p.answered(noon.Add(7*s+1), noon.Add(7*s), 200, http.Header{}, 2, 2)
	if got := at(noon.Add(7*s + 1)); got != 0 {
		t.Errorf("after a good answer the next starts at %v, want at once", got)
	}
}

func TestAHoldHasAnEnd(t *testing.T) {
	p := &pacer{}
	p.answered(noon, noon, 503, head("Retry-After", "86400"), 1, 1)
	if got := p.ready(noon).Sub(noon); got != time.Minute {
		t.Errorf("a day is asked for, and the next try is after %v, want a minute", got)
	}
	p.started(noon.Add(time.Minute))
	if got := p.ready(noon.Add(2*time.Minute + 1)); !got.IsZero() {
		t.Errorf("two minutes later, with no answer at all, requests are kept until %v", got)
	}
}

func TestWhatSaysNothingKeepsNobody(t *testing.T) {
	for name, h := range map[string]http.Header{
		"nothing":         {},
		"Azure":           head("x-ratelimit-limit-requests", "-1", "x-ratelimit-remaining-requests", "-1", "x-ratelimit-reset-requests", "0"),
		"no reset":        head("x-ratelimit-limit-requests", "60", "x-ratelimit-remaining-requests", "0"),
		"no limit":        head("x-ratelimit-remaining-requests", "0"),
		"reset long past": head("x-ratelimit-limit-tokens", "60", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "2001-01-01T00:00:00Z"),
	} {
		same(t, starts(&pacer{}, noon, 3, 200, h, false), 0, 0, 0)
		_ = name
	}
}

// TestWithoutALimitItsResetIsWaitedFor: how fast it fills is not known.
func TestWithoutALimitItsResetIsWaitedFor(t *testing.T) {
	h := head("x-ratelimit-remaining-requests", "1", "x-ratelimit-reset-requests", "9s")
	same(t, starts(&pacer{}, noon, 3, 200, h, true), 0, 0, 9*time.Second)
}

func TestOldWordsAreForgotten(t *testing.T) {
	p := &pacer{}
	h := head("x-ratelimit-limit-requests", "1000", "x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "240h")
	p.answered(noon, noon, 200, h, 1, 1)
	if p.ready(noon.Add(forget)).IsZero() {
		t.Error("what is left is forgotten too early")
	}
	if at := p.ready(noon.Add(forget + 1)); !at.IsZero() {
		t.Errorf("what was said two minutes ago keeps requests until %v", at)
	}
}

func FuzzPacer(f *testing.F) {
	f.Add("60", "2", "58s", "7", 429, uint64(1), uint64(4))
	f.Add("0", "0", "-1", "", 200, uint64(9), uint64(1))
	f.Add("18446744073709551615", "1", "2999-01-01T00:00:00Z", "9999999999999", 503, uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, most, left, reset, after string, status int, request, last uint64) {
		p := &pacer{}
		last = max(last, request)
		for i := range uint64(3) {
			p.started(noon)
			p.answered(noon.Add(time.Second), noon, status, head("X-Ratelimit-Limit-Tokens", most, "X-Ratelimit-Remaining-Tokens", left, "X-Ratelimit-Reset-Tokens", reset,
				"X-Ratelimit-Remaining-Requests", left, "X-Ratelimit-Reset-Requests", reset, "Retry-After", after), request+i, last+i)
		}
		if at := p.ready(noon.Add(time.Second)); at.Sub(noon) > forget+longestHold && p.buckets == nil {
			t.Errorf("requests are kept until %v", at)
		}
		if at := p.ready(noon.Add(2*forget + longestHold)); !at.IsZero() {
			t.Errorf("requests are kept for ever: until %v", at)
		}
	})
}
