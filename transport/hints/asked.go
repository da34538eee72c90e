// SPDX-License-Identifier: Apache-2.0

package hints

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Forever is what a wait that cannot be counted becomes.
const Forever = time.Duration(math.MaxInt64)

// Asked says how long an answer asks to be left alone, never less than it says.
// The first of these that is there and makes sense counts: Retry-After-Ms;
// Retry-After, as seconds, fractions too, or as an HTTP-date in any of its three
// forms, which is measured against the answer's own Date; and for 429 the reset
// fields of those of the provider's limits that are used up (X-Ratelimit-Reset-*,
// Anthropic-Ratelimit-*-Reset), the latest of them. now stands in for a missing
// Date.
func Asked(status int, h http.Header, now time.Time) (wait time.Duration, ok bool) {
	for _, v := range h["Retry-After-Ms"] {
		if d, good := Decimal(strings.TrimSpace(v), time.Millisecond); good {
			wait, ok = max(wait, d), true
		}
	}
	if ok {
		return wait, true
	}
	date := now
	if t, err := http.ParseTime(h.Get("Date")); err == nil {
		date = t
	}
	for _, v := range h["Retry-After"] {
		v = strings.TrimSpace(v)
		if d, good := Decimal(v, time.Second); good {
			wait, ok = max(wait, d), true
		} else if t, err := http.ParseTime(v); err == nil {
			wait, ok = max(wait, century(t, date).Sub(date)), true
		}
	}
	if ok || status != http.StatusTooManyRequests {
		return wait, ok
	}
	return resets(h, date)
}

// century corrects the year of the form that has two digits of it: a date that
// seems to be more than 50 years ahead is past (RFC 9110 §5.6.7), and the other way
// round for net/http, which takes 69 and later for the last century.
func century(t, ref time.Time) time.Time {
	if t.Year() < ref.Year()-50 && t.AddDate(100, 0, 0).Year() <= ref.Year()+50 {
		return t.AddDate(100, 0, 0)
	}
	return t
}

// resets is the latest reset of the limits that are used up. The reset of a limit
// that has something left says when it will be full again, which nobody needs to
// wait for.
func resets(h http.Header, date time.Time) (wait time.Duration, ok bool) {
	for name, values := range h {
		limit, isReset := "", false
		if rest, found := strings.CutPrefix(name, "X-Ratelimit-Reset"); found {
			limit, isReset = "X-Ratelimit-Remaining"+rest, true
		} else if strings.HasPrefix(name, "Anthropic-Ratelimit-") && strings.HasSuffix(name, "-Reset") {
			limit, isReset = strings.TrimSuffix(name, "-Reset")+"-Remaining", true
		}
		if !isReset || len(values) == 0 {
			continue
		}
		if left := h[limit]; len(left) > 0 && left[0] != "0" { // also Azure's -1, which says nothing
			continue
		}
		if d, good := reset(values[0], date); good {
			wait, ok = max(wait, d), true
		}
	}
	return wait, ok
}

// reset reads one reset field: a duration such as 6m0s, a time of RFC 3339, plain
// seconds, or seconds or milliseconds since 1970.
func reset(v string, date time.Time) (time.Duration, bool) {
	v = strings.TrimSpace(v)
	if t, err := time.Parse(time.RFC3339, v); err == nil {
		return max(0, t.Sub(date)), true
	}
	if d, ok := Decimal(v, time.Second); ok {
		const year2001, inMilliseconds = 1e9 * time.Second, 1e12
		if d < year2001 {
			return d, true
		}
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return 0, false
		}
		if n < inMilliseconds {
			n *= 1000
		}
		if n > 1e14 { // a time beyond the year 5000
			return Forever, true
		}
		return max(0, time.UnixMilli(int64(math.Ceil(n))).Sub(date)), true
	}
	d, err := time.ParseDuration(v)
	return d, err == nil && d >= 0
}

// Decimal reads digits, with a fraction or without, as a number of units, rounded
// up to a nanosecond. What is too large is Forever; signs, exponents and the like
// are no number.
func Decimal(v string, unit time.Duration) (time.Duration, bool) {
	whole, fraction, hasFraction := strings.Cut(v, ".")
	if whole == "" || hasFraction && fraction == "" {
		return 0, false
	}
	n := uint64(0)
	for _, c := range []byte(whole) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+uint64(c-'0'), math.MaxUint32<<10)
	}
	part, scale := int64(0), int64(unit)
	rest := false // digits below a nanosecond that are not 0
	for _, c := range []byte(fraction) {
		if c < '0' || c > '9' {
			return 0, false
		}
		scale /= 10
		part += int64(c-'0') * scale
		rest = rest || scale == 0 && c != '0'
	}
	if rest {
		part++
	}
	if n >= uint64(Forever/unit) {
		return Forever, true
	}
	return time.Duration(n)*unit + time.Duration(part), true
}
