// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A page receives what is written to it, and tells of each flush.
type page struct {
	*httptest.ResponseRecorder
	flushed chan time.Time
}

func (p *page) FlushError() error {
	p.ResponseRecorder.Flush()
	p.flushed <- time.Now()
	return nil
}

// TestEvents follows the events for three seconds, and has one caller too many refused.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		a, err := New(Config{Ready: func() error { return nil }, Metrics: http.NotFoundHandler(), Quit: func() {},
			Status: func() any { n++; return map[string]int{"n": n} }, Streams: func() any { return []int{} }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		start := time.Now()
		w := &page{httptest.NewRecorder(), make(chan time.Time)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.events(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/events", nil))
		}()
		for i := range 3 {
			if at := <-w.flushed; at.Sub(start) != time.Duration(i)*eventEvery {
				t.Errorf("event %d after %v", i, at.Sub(start))
			}
		}
		leave()
		<-done
		lines := bufio.NewScanner(w.Body)
		var got []int
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var state struct {
					Status  struct{ N int }
					Streams []int
				}
				if err := json.Unmarshal([]byte(text), &state); err != nil || state.Streams == nil {
					t.Errorf("%v in %q", err, text)
				}
				got = append(got, state.Status.N)
			}
		}
		if len(got) != 3 || got[2] != 3 || w.Header().Get("Content-Type") != "text/event-stream" {
			t.Errorf("%v, %v", got, w.Header())
		}
		a.watches.Store(maxWatches)
		full := httptest.NewRecorder()
		a.events(full, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/events", nil))
		if full.Code != http.StatusServiceUnavailable || full.Header().Get("Retry-After") == "" || a.watches.Load() != maxWatches {
			t.Errorf("one too many: %d %v, %d", full.Code, full.Header(), a.watches.Load())
		}
	})
}
