// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/mockapi"
	"github.com/warmwire/warmwire/transport/retry"
)

// A model API over real connections asks for time in its own ways, and is called
// again with the same body.
func TestModelAPIAsksForTime(t *testing.T) {
	base := serveMock(t)
	real := &http.Transport{}
	defer real.CloseIdleConnections()
	tests := []struct {
		name, model string
		status      int
		decided     string
	}{
		{"429 with milliseconds", "mock;status=429,retry-after-ms=20", 200, "try_later retried"},
		{"503 with seconds", "mock;status=503,retry-after=0.02", 200, "try_later retried"},
		{"529 without a hint", "mock;status=529", 200, "answered retried"},
		{"429 that forbids", "mock;status=429,should-retry=false", 429, "answered forbidden"},
		{"429 for too long", "mock;status=429,retry-after=60", 429, "try_later too_long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &decisions{}
			tr := newTransport(t, real, retry.Config{Statuses: []int{429, 503, 529}, OnAttempt: d.note, BaseDelay: time.Millisecond})
			body := `{"model":"` + tt.model + `","stream":true,"messages":[{"role":"user","content":"hello"}]}`
			req, err := http.NewRequest(http.MethodPost, base+"/v1/chat/completions", io.NopCloser(strings.NewReader(body)))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = int64(len(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Mock-Id", tt.name)
			req.Header.Set("Mock-First", "1")
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != tt.status || tt.status == 200 && !bytes.HasSuffix(got, []byte("[DONE]\n\n")) {
				t.Errorf("got %d %q, %v; want %d", resp.StatusCode, got, err, tt.status)
			}
			if v := strings.Join(d.verdicts(), ", "); v != tt.decided {
				t.Errorf("decided %q, want %q", v, tt.decided)
			}
		})
	}
}

// serveMock runs a model API and returns its address.
func serveMock(t *testing.T) string {
	t.Helper()
	api, err := mockapi.New(mockapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return api.URL()
}

// An upstream whose clock is off names a date, and refuses until exactly then: the
// next attempt comes after it, by the upstream's clock.
func TestNeverBeforeTheUpstreamsDate(t *testing.T) {
	for _, skew := range []time.Duration{-30 * time.Second, 0, 30 * time.Second} {
		for _, form := range []string{http.TimeFormat, "Monday, 02-Jan-06 15:04:05 GMT", time.ANSIC} {
			for begin := time.Duration(0); begin < time.Second; begin += 100 * time.Millisecond {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(begin)
					clock := func() time.Time { return time.Now().UTC().Add(skew) }
					allowed := clock().Add(2800 * time.Millisecond)
					early := 0
					up := way(func(*http.Request) (*http.Response, error) {
						if !clock().Before(allowed) {
							return answer(200, ""), nil
						}
						early++
						until := allowed.Add(time.Second - 1).Truncate(time.Second) // as a date says it
						return answer(429, "", "Date", clock().Format(http.TimeFormat), "Retry-After", until.Format(form)), nil
					})
					cfg := all(&decisions{})
					cfg.Rand = func() float64 { return 0 }
					resp, err := newTransport(t, up, cfg).RoundTrip(post("x"))
					if err != nil || resp.StatusCode != 200 || early != 1 {
						t.Errorf("skew %v, %q: got %v, %v after %d refusals, want an answer after one", skew, form, resp, err, early)
					}
				})
			}
		}
	}
}

// A refusal that lasts reaches the app while it still waits, whatever it asks for and
// however many attempts there may be.
func TestARefusalReachesTheAppInTime(t *testing.T) {
	for _, after := range []string{"", "0", "0.3", "1", "2", "3", "4.9", "5", "600"} {
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				s := &script{steps: []func() (*http.Response, error){answers(429, "busy", "Retry-After", after)}}
				cfg := all(&decisions{})
				cfg.MaxAttempts, cfg.Budget, cfg.Rand = 10, 1, rand.Float64
				start := time.Now()
				resp, err := newTransport(t, s, cfg).RoundTrip(post("x"))
				if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") != after {
					t.Fatalf("got %v, %v; want the 429", resp, err)
				}
				if d := time.Since(start); d > 7500*time.Millisecond {
					t.Errorf("asked for %q: the refusal came after %v", after, d)
				}
			})
		}
	}
}
