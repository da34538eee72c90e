// SPDX-License-Identifier: Apache-2.0

package hints_test

import (
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/transport/hints"
)

func TestAsked(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	const date = "Wed, 02 Dec 2026 09:30:00 GMT"
	now := time.Date(2026, 12, 2, 9, 30, 30, 0, time.UTC) // half a minute ahead of the upstream
	tests := []struct {
		name   string
		status int
		fields []string
		want   time.Duration
		ok     bool
	}{
		{"nothing", 429, nil, 0, false},
		{"seconds", 429, []string{"Retry-After", "2"}, 2 * s, true},
		{"none at all", 503, []string{"Retry-After", "0"}, 0, true},
		{"with spaces", 503, []string{"Retry-After", " 3 "}, 3 * s, true},
		{"fraction", 429, []string{"Retry-After", "2.8"}, 2800 * ms, true},
		{"below a nanosecond", 429, []string{"Retry-After", "0.0000000001"}, 1, true},
		{"milliseconds", 429, []string{"Retry-After-Ms", "1500"}, 1500 * ms, true},
		{"fraction of a millisecond", 429, []string{"Retry-After-Ms", "0.5"}, ms / 2, true},
		{"milliseconds say it better", 429, []string{"Retry-After", "1", "Retry-After-Ms", "20"}, 20 * ms, true},
		{"bad milliseconds", 429, []string{"Retry-After", "1", "Retry-After-Ms", "soon"}, s, true},
		{"the later of two", 429, []string{"Retry-After", "1", "Retry-After", "4"}, 4 * s, true},
		{"negative", 429, []string{"Retry-After", "-1"}, 0, false},
		{"exponent", 429, []string{"Retry-After", "1e9"}, 0, false},
		{"point alone", 429, []string{"Retry-After", "."}, 0, false},
		{"words", 429, []string{"Retry-After", "soon"}, 0, false},
		{"without end", 429, []string{"Retry-After", strings.Repeat("9", 400)}, 1<<63 - 1, true},
		{"IMF date against Date", 429, []string{"Date", date, "Retry-After", "Wed, 02 Dec 2026 09:30:03 GMT"}, 3 * s, true},
		{"RFC 850 date", 429, []string{"Date", date, "Retry-After", "Wednesday, 02-Dec-26 09:30:04 GMT"}, 4 * s, true},
		{"asctime date", 429, []string{"Date", date, "Retry-After", "Wed Dec  2 09:30:05 2026"}, 5 * s, true},
		{"date without Date", 429, []string{"Retry-After", "Wed, 02 Dec 2026 09:30:33 GMT"}, 3 * s, true},
		{"date that has passed", 429, []string{"Date", date, "Retry-After", "Wed, 02 Dec 2026 09:29:00 GMT"}, 0, true},
		{"two digits of the next half century", 503, []string{"Date", "Thu, 31 Dec 2026 23:59:59 GMT", "Retry-After", "Tuesday, 31-Dec-69 23:59:59 GMT"},
			time.Date(2069, 12, 31, 0, 0, 0, 0, time.UTC).Sub(time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC)), true},
		{"tokens used up", 429, []string{"X-Ratelimit-Remaining-Tokens", "0", "X-Ratelimit-Reset-Tokens", "20ms"}, 20 * ms, true},
		{"minutes", 429, []string{"X-Ratelimit-Remaining-Requests", "0", "X-Ratelimit-Reset-Requests", "6m0s"}, 360 * s, true},
		{"only the limit that was hit", 429, []string{"X-Ratelimit-Remaining-Requests", "17", "X-Ratelimit-Reset-Requests", "6m0s",
			"X-Ratelimit-Remaining-Tokens", "0", "X-Ratelimit-Reset-Tokens", "1.5s"}, 1500 * ms, true},
		{"Azure's -1", 429, []string{"X-Ratelimit-Remaining-Tokens", "-1", "X-Ratelimit-Reset-Tokens", "60s"}, 0, false},
		{"reset beside a Retry-After", 429, []string{"Retry-After", "1", "X-Ratelimit-Remaining-Tokens", "0", "X-Ratelimit-Reset-Tokens", "6m0s"}, s, true},
		{"reset of an answer that is no 429", 503, []string{"X-Ratelimit-Remaining-Tokens", "0", "X-Ratelimit-Reset-Tokens", "1s"}, 0, false},
		{"Anthropic's reset", 429, []string{"Date", date, "Anthropic-Ratelimit-Output-Tokens-Remaining", "0",
			"Anthropic-Ratelimit-Output-Tokens-Reset", "2026-12-02T09:30:02Z"}, 2 * s, true},
		{"plain seconds", 429, []string{"X-Ratelimit-Reset", "7.66"}, 7660 * ms, true},
		{"seconds since 1970", 429, []string{"Date", date, "X-Ratelimit-Reset", "1796203802"}, 2 * s, true},
		{"milliseconds since 1970", 429, []string{"Date", date, "X-Ratelimit-Reset", "1796203802500"}, 2500 * ms, true},
		{"negative reset", 429, []string{"X-Ratelimit-Reset", "-1s"}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{}
			for i := 0; i < len(tt.fields); i += 2 {
				h.Add(tt.fields[i], tt.fields[i+1])
			}
			if got, ok := hints.Asked(tt.status, h, now); got != tt.want || ok != tt.ok {
				t.Errorf("Asked(%v) = %v, %v; want %v, %v", h, got, ok, tt.want, tt.ok)
			}
		})
	}
}

var plain = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// Whatever a server sends, nothing breaks, no wait is negative, and a number is
// never rounded down.
func FuzzAsked(f *testing.F) {
	for _, v := range []string{"1", "2.8", "0.0000000001", "-1", "1e9", "Wed, 02 Dec 2026 09:30:03 GMT", "Wednesday, 02-Dec-26 09:30:04 GMT",
		"Wed Dec  2 09:30:05 2026", "6m0s", "2026-12-02T09:30:02Z", "1796203802", "1796203802500", "99999999999999999999", "9223372036.9"} {
		f.Add(v, v, v, "Wed, 02 Dec 2026 09:30:00 GMT", uint16(429))
	}
	now := time.Date(2026, 12, 2, 9, 30, 30, 0, time.UTC)
	f.Fuzz(func(t *testing.T, after, ms, reset, date string, status uint16) {
		h := http.Header{"Date": {date}, "X-Ratelimit-Reset-Tokens": {reset}, "Anthropic-Ratelimit-Tokens-Reset": {reset}}
		if got, ok := hints.Asked(int(status), h, now); got < 0 || !ok && got != 0 {
			t.Errorf("Asked(%v) = %v, %v", h, got, ok)
		}
		for field, unit := range map[string]int64{"Retry-After": int64(time.Second), "Retry-After-Ms": int64(time.Millisecond)} {
			v := after
			if field == "Retry-After-Ms" {
				v = ms
			}
			got, ok := hints.Asked(int(status), http.Header{"Date": {date}, field: {v}}, now)
			if got < 0 || !ok && got != 0 {
				t.Errorf("Asked(%s: %q) = %v, %v", field, v, got, ok)
			}
			if !plain.MatchString(v) || len(v) > 300 {
				continue
			}
			exact, _ := new(big.Rat).SetString(v)
			exact.Mul(exact, big.NewRat(unit, 1))
			diff := new(big.Rat).Sub(big.NewRat(int64(got), 1), exact)
			if !ok || got < 1<<60 && (diff.Sign() < 0 || diff.Cmp(big.NewRat(1, 1)) >= 0) {
				t.Errorf("Asked(%s: %q) = %v, %v: %v nanoseconds beside what it says", field, v, got, ok, diff)
			}
		}
	})
}
