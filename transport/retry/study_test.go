// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/retry"
)

// busyModel answers after a time that is spread as in the source study, 182 ms at the
// 95th percentile. A share of the calls it refuses at once, each by itself.
type busyModel struct {
	share  float64
	refuse func() *http.Response

	mu     sync.Mutex // guards random
	random *rand.Rand
}

func (m *busyModel) RoundTrip(*http.Request) (*http.Response, error) {
	m.mu.Lock()
	refused := m.random.Float64() < m.share
	takes := time.Duration(100 * float64(time.Millisecond) * math.Exp(0.364*m.random.NormFloat64()))
	m.mu.Unlock()
	if refused {
		takes = 5 * time.Millisecond
	}
	<-time.NewTimer(takes).C
	if refused {
		return m.refuse(), nil
	}
	return answer(200, ""), nil
}

// load makes calls, one a millisecond, and returns the 95th percentile of those that
// were answered well, their share, and the attempts a call.
func load(t *testing.T, calls int, m *busyModel, cfg retry.Config) (p95 time.Duration, good, attempts float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tr := newTransport(t, m, cfg)
		var mu sync.Mutex
		var took []time.Duration
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				start := time.Now()
				if resp, err := tr.RoundTrip(post("x")); err == nil && resp.StatusCode == 200 {
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(start))
				}
			})
			<-time.NewTimer(time.Millisecond).C
		}
		wg.Wait()
		slices.Sort(took)
		p95, good = took[len(took)*95/100], float64(len(took))/float64(calls)
		attempts = float64(tr.Stats().Attempts) / float64(calls)
	})
	return p95, good, attempts
}

// At 30 % errors the 95th percentile of the calls that succeed stays below 1.3 of the
// one without errors, where they ask to be tried again and where they say nothing: the
// study saw 2.3. Only half as many attempts again as calls, after refusals without a
// word, are paid with more.
func TestTheStudysErrors(t *testing.T) {
	calls := 8_000
	if testing.Short() {
		calls = 4_000
	}
	asks := func() *http.Response { return answer(503, "busy", "Retry-After-Ms", "0") }
	silent := func() *http.Response { return answer(503, "busy") }
	model := func(share float64, refuse func() *http.Response) *busyModel {
		return &busyModel{share: share, random: rand.New(rand.NewPCG(1, 2)), refuse: refuse}
	}
	free, _, _ := load(t, calls, model(0, asks), retry.Config{})
	t.Logf("%-20s p95 %v", "no errors", free)
	for _, tt := range []struct {
		name   string
		refuse func() *http.Response
		budget float64
		most   float64
	}{
		{"no retry", asks, -1, 1.05}, {"asks, 0.1", asks, 0.1, 1.3}, {"asks, 0.2", asks, 0.2, 1.3}, {"asks, 0.5", asks, 0.5, 1.3},
		{"silent, 0.1", silent, 0.1, 1.3}, {"silent, 0.2", silent, 0.2, 1.3}, {"silent, 0.5", silent, 0.5, 1.5},
	} {
		p95, good, attempts := load(t, calls, model(0.3, tt.refuse), retry.Config{Statuses: []int{503}, Budget: tt.budget})
		ratio := float64(p95) / float64(free)
		t.Logf("%-20s p95 %v (%.2f), %.1f %% good, %.2f attempts", tt.name, p95, ratio, 100*good, attempts)
		if ratio > tt.most || attempts > 1+max(0, tt.budget) {
			t.Errorf("%s: p95 %.2f of the one without errors, %.3f attempts a call; want at most %v, %v", tt.name, ratio, attempts, tt.most, 1+max(0, tt.budget))
		}
	}
}
