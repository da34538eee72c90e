// SPDX-License-Identifier: Apache-2.0

package hints

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Limit is one limit of the provider's, as an answer tells it.
type Limit struct {
	Of        string        // requests, tokens, input-tokens, output-tokens
	Most      float64       // 0 = not said
	Remaining float64       // of Most
	Full      time.Duration // until nothing of it is used any more; 0 = not said
}

// kinds are the limits that are read. Others, such as those of a project or of unused
// kinds of tokens, stand beside these and are no smaller in practice.
var kinds = [...]struct{ of, most, remaining, reset string }{
	{"requests", "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{"tokens", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
	{"requests", "Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	{"tokens", "Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
	{"input-tokens", "Anthropic-Ratelimit-Input-Tokens-Limit", "Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"},
	{"output-tokens", "Anthropic-Ratelimit-Output-Tokens-Limit", "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"},
}

// maxKinds is how many limits one answer can tell of.
const maxKinds = 4

// A Set is the limits of one answer.
type Set struct {
	limits [maxKinds]Limit
	n      int
}

// All returns the limits.
func (s *Set) All() []Limit { return s.limits[:s.n] }

// Limits returns the limits that an answer tells of, each once. A limit counts if it
// says how much is left: a whole number that is not negative (Azure has sent -1, and 0
// of 0, both of which say nothing), and not more than there is. now stands in for a
// missing Date.
func Limits(h http.Header, now time.Time) (s Set) {
	date := now
	for i := range kinds {
		k := &kinds[i]
		left, there := count(h, k.remaining)
		if !there {
			continue
		}
		most, said := count(h, k.most)
		if said && (most == 0 || left > most) || s.has(k.of) {
			continue
		}
		l := Limit{Of: k.of, Most: most, Remaining: left}
		if v := h[k.reset]; len(v) == 1 {
			if t, err := http.ParseTime(h.Get("Date")); err == nil {
				date = t
			}
			if full, ok := reset(v[0], date); ok {
				l.Full = full
			}
		}
		s.limits[s.n] = l
		s.n++
	}
	return s
}

func (s *Set) has(of string) bool {
	for _, l := range s.All() {
		if l.Of == of {
			return true
		}
	}
	return false
}

// count reads a whole number.
func count(h http.Header, name string) (float64, bool) {
	v := h[name]
	if len(v) != 1 {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(v[0]), 10, 48)
	return float64(n), err == nil
}
