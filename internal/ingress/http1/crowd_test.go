// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Clients that cancel at any moment, in any state, leave nothing hanging and
// disturb no other: every answer that comes whole is right.
func TestCrowdOfLeavingClients(t *testing.T) {
	var running atomic.Int64
	_, addr := serveOn(t, "tcp", Config{LingerTimeout: 50 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		p := make([]byte, 3000)
		for {
			n, err := r.Body.Read(p)
			if _, werr := w.Write(p[:n]); werr != nil {
				panic(http.ErrAbortHandler)
			}
			switch {
			case err == io.EOF:
				return
			case err != nil:
				panic(http.ErrAbortHandler)
			}
		}
	})
	tr := &http.Transport{MaxIdleConnsPerHost: 16}
	defer tr.CloseIdleConnections()
	var wg sync.WaitGroup
	var whole atomic.Int64
	for seed := range 16 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(seed)))
			for range 20 {
				body := bytes.Repeat([]byte{byte(rnd.Int())}, rnd.IntN(200<<10))
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if rnd.IntN(2) == 0 {
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rnd.IntN(5000))*time.Microsecond)
				}
				var src io.Reader = bytes.NewReader(body)
				if rnd.IntN(2) == 0 {
					src = io.MultiReader(src) // chunked
				}
				req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+addr, src)
				if resp, err := tr.RoundTrip(req); err == nil {
					got, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err == nil {
						whole.Add(1)
						if !bytes.Equal(got, body) {
							t.Errorf("got %d bytes, want %d", len(got), len(body))
						}
					}
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if whole.Load() < 100 {
		t.Errorf("only %d answers came whole", whole.Load())
	}
	for end := time.Now().Add(patience); running.Load() > 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d handlers hang", running.Load())
		}
	}
}
