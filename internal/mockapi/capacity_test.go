// SPDX-License-Identifier: Apache-2.0

package mockapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/mockapi"
)

// TestCapacityIsServedInOrder: of four calls of a second each two run at once, and one
// that leaves the queue takes nobody's place.
func TestCapacityIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, err := mockapi.New(mockapi.Config{Capacity: 2})
		if err != nil {
			t.Fatal(err)
		}
		from := time.Now()
		var mu sync.Mutex
		var ends []time.Duration
		var calls sync.WaitGroup
		call := func(ctx context.Context) {
			calls.Go(func() {
				req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"model": "m"}`))
				req.Header.Set("Mock-Ttft", "1s")
				api.Handler().ServeHTTP(httptest.NewRecorder(), req)
				mu.Lock()
				ends = append(ends, time.Since(from))
				mu.Unlock()
			})
			synctest.Wait()
		}
		leaves, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		call(t.Context())
		call(t.Context())
		call(leaves)
		call(t.Context())
		calls.Wait()
		if want := []time.Duration{time.Second / 2, time.Second, time.Second, 2 * time.Second}; !slices.Equal(ends, want) {
			t.Errorf("calls end after %v, want %v", ends, want)
		}
	})
	if _, err := mockapi.New(mockapi.Config{Capacity: -1}); err == nil {
		t.Error("a capacity below zero is taken")
	}
}
