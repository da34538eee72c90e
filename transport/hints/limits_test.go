// SPDX-License-Identifier: Apache-2.0

package hints_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/warmwire/warmwire/transport/hints"
)

func fields(nv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(nv); i += 2 {
		h.Add(nv[i], nv[i+1])
	}
	return h
}

func TestLimits(t *testing.T) {
	now := time.Date(2026, 12, 2, 9, 30, 0, 0, time.UTC)
	tests := []struct {
		name   string
		fields http.Header
		want   []hints.Limit
	}{
		{"nothing", fields("X-Request-Id", "1"), nil},
		{"OpenAI", fields("x-ratelimit-limit-requests", "500", "x-ratelimit-remaining-requests", "499", "x-ratelimit-reset-requests", "120ms",
			"x-ratelimit-limit-tokens", "30000", "x-ratelimit-remaining-tokens", "29976", "x-ratelimit-reset-tokens", "6m0s"),
			[]hints.Limit{{"requests", 500, 499, 120 * time.Millisecond}, {"tokens", 30000, 29976, 6 * time.Minute}}},
		{"Anthropic", fields("anthropic-ratelimit-requests-limit", "50", "anthropic-ratelimit-requests-remaining", "0", "anthropic-ratelimit-requests-reset", "2026-12-02T09:30:20Z",
			"anthropic-ratelimit-output-tokens-limit", "8000", "anthropic-ratelimit-output-tokens-remaining", "7000", "anthropic-ratelimit-output-tokens-reset", "2026-12-02T09:30:08Z"),
			[]hints.Limit{{"requests", 50, 0, 20 * time.Second}, {"output-tokens", 8000, 7000, 8 * time.Second}}},
		{"by the answer's own clock", fields("Date", "Wed, 02 Dec 2026 09:29:50 GMT", "anthropic-ratelimit-requests-remaining", "3", "anthropic-ratelimit-requests-reset", "2026-12-02T09:30:00Z"),
			[]hints.Limit{{"requests", 0, 3, 10 * time.Second}}},
		{"no reset", fields("x-ratelimit-limit-requests", "10", "x-ratelimit-remaining-requests", "3"), []hints.Limit{{"requests", 10, 3, 0}}},
		{"a reset that is none", fields("x-ratelimit-remaining-requests", "3", "x-ratelimit-reset-requests", "soon"), []hints.Limit{{"requests", 0, 3, 0}}},
		{"past", fields("x-ratelimit-remaining-requests", "3", "x-ratelimit-reset-requests", "2026-12-02T09:29:00Z"), []hints.Limit{{"requests", 0, 3, 0}}},
		{"Azure's -1", fields("x-ratelimit-limit-requests", "-1", "x-ratelimit-remaining-requests", "-1"), nil},
		{"0 of 0", fields("x-ratelimit-limit-requests", "0", "x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "0"), nil},
		{"more left than there is", fields("x-ratelimit-limit-tokens", "5", "x-ratelimit-remaining-tokens", "6"), nil},
		{"said twice", fields("x-ratelimit-remaining-tokens", "6", "x-ratelimit-remaining-tokens", "7"), nil},
		{"no number", fields("x-ratelimit-remaining-tokens", "6.5", "x-ratelimit-remaining-requests", "1e3"), nil},
		{"both ways", fields("x-ratelimit-remaining-requests", "6", "anthropic-ratelimit-requests-remaining", "2"), []hints.Limit{{"requests", 0, 6, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := hints.Limits(tt.fields, now)
			if !slices.Equal(s.All(), tt.want) {
				t.Errorf("Limits = %+v, want %+v", s.All(), tt.want)
			}
		})
	}
}

func FuzzLimits(f *testing.F) {
	f.Add("500", "499", "120ms", "Wed, 02 Dec 2026 09:30:00 GMT")
	f.Add("50", "0", "2026-12-02T09:30:20Z", "")
	f.Add("-1", "1764667800", "1764667800000", "x")
	f.Fuzz(func(t *testing.T, most, left, reset, date string) {
		h := http.Header{"Date": {date}, "X-Ratelimit-Limit-Requests": {most}, "X-Ratelimit-Remaining-Requests": {left}, "X-Ratelimit-Reset-Requests": {reset},
			"Anthropic-Ratelimit-Tokens-Remaining": {left}, "Anthropic-Ratelimit-Tokens-Reset": {reset}}
		s := hints.Limits(h, time.Now())
		for _, l := range s.All() {
			if l.Remaining < 0 || l.Full < 0 || l.Most < 0 || l.Most > 0 && l.Remaining > l.Most {
				t.Errorf("%+v", l)
			}
		}
	})
}
