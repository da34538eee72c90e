// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/retry"
)

// An outage must not become a storm: of a minute in which every call fails, attempts
// are at most the calls and their budget, and the budget is used.
func TestAttemptsInAnOutage(t *testing.T) {
	rate := 300
	if testing.Short() {
		rate = 100
	}
	for _, share := range []float64{0.1, 0.2, 0.5, -1} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTransport(t, way(func(*http.Request) (*http.Response, error) { return nil, errRefusedConn }), retry.Config{Budget: share})
				var wg sync.WaitGroup
				const seconds = 60
				for range rate * seconds {
					wg.Go(func() { _, _ = tr.RoundTrip(post("x")) })
					time.Sleep(time.Second / time.Duration(rate)) // the bubble's clock
				}
				wg.Wait()
				calls, attempts := rate*seconds, int(tr.Stats().Attempts)
				t.Logf("%d calls, %d attempts: %.3f", calls, attempts, float64(attempts)/float64(calls))
				if most := int(float64(calls) * (1 + max(0, share))); attempts > most || attempts < most*98/100 {
					t.Errorf("%d attempts for %d calls, want at most %d and nearly so many", attempts, calls, most)
				}
			})
		})
	}
}

// With all calls counted before any fails, the budget is given out to the last one.
func TestTheBudgetIsExactAtOnce(t *testing.T) {
	const calls = 500
	synctest.Test(t, func(t *testing.T) {
		var here atomic.Int64
		gate := make(chan struct{})
		tr := newTransport(t, way(func(*http.Request) (*http.Response, error) {
			if n := here.Add(1); n == calls {
				close(gate)
			}
			<-gate
			return nil, errRefusedConn
		}), retry.Config{MaxAttempts: 10})
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() { _, _ = tr.RoundTrip(post("x")) })
		}
		wg.Wait()
		if got := here.Load(); got != calls+calls/5 {
			t.Errorf("%d attempts, want %d", got, calls+calls/5)
		}
	})
}

// A few calls may use their attempts although a fifth of them is none, and an app
// that tries again by itself uses the same budget up.
func TestTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{steps: []func() (*http.Response, error){fails(errRefusedConn)}}
		tr := newTransport(t, s, retry.Config{})
		for range 5 {
			_, _ = tr.RoundTrip(post("x"))
		}
		if want := 5 + retry.Floor; len(s.at) != want {
			t.Errorf("%d attempts for five calls, want %d", len(s.at), want)
		}
		time.Sleep(11 * time.Second)
		s.at = nil
		for range retry.Floor {
			req := post("x")
			req.Header.Set("X-Stainless-Retry-Count", "1")
			_, _ = tr.RoundTrip(req)
		}
		if len(s.at) != retry.Floor+2 { // the first two found something left
			t.Errorf("%d attempts for %d that the app made again, want %d", len(s.at), retry.Floor, retry.Floor+2)
		}
	})
}

// Failed calls must not line up: 200 that fail together come again spread, whatever
// the answer asked for.
func TestRetryInstantsHaveNoSpike(t *testing.T) {
	for _, after := range []string{"", "0", "1", "2"} {
		t.Run("Retry-After "+after, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const calls, bins = 200, 10
				start := time.Now()
				var mu sync.Mutex
				var again []time.Duration
				random := rand.New(rand.NewPCG(1, uint64(len(after))))
				tr := newTransport(t, way(func(req *http.Request) (*http.Response, error) {
					mu.Lock()
					defer mu.Unlock()
					if d := time.Since(start); d > 0 {
						again = append(again, d)
					}
					if after == "" {
						return answer(429, "slow down"), nil
					}
					return answer(429, "slow down", "Retry-After", after), nil
				}), retry.Config{Statuses: []int{429}, Budget: 1, MaxAttempts: 2, Rand: func() float64 {
					mu.Lock()
					defer mu.Unlock()
					return random.Float64()
				}})
				var wg sync.WaitGroup
				for range calls {
					wg.Go(func() { _, _ = tr.RoundTrip(post("x")) })
				}
				wg.Wait()
				if len(again) != calls {
					t.Fatalf("%d attempts again, want %d", len(again), calls)
				}
				asked, _ := strconv.Atoi("0" + after)
				spread := max(50*time.Millisecond, time.Duration(asked)*time.Second/2)
				if after == "" {
					spread = 100 * time.Millisecond
				}
				histogram := make([]int, bins)
				for _, d := range again {
					d -= time.Duration(asked) * time.Second
					if d < 0 || d >= spread {
						t.Fatalf("an attempt %v after what was asked, want between 0 and %v", d, spread)
					}
					histogram[int(d*bins/spread)]++
				}
				for _, n := range histogram {
					if n > 3*calls/bins {
						t.Errorf("retry instants %v have a spike over three times the mean", histogram)
					}
				}
			})
		})
	}
}

// An upstream executes what it answers well, and what it is cut off from. Whatever
// it does, nothing is executed twice, and nothing that was executed is sent again.
func TestNothingIsExecutedTwice(t *testing.T) {
	calls := 100_000
	if testing.Short() {
		calls = 10_000
	}
	for name, cfg := range map[string]retry.Config{
		"default":        {Budget: 1, MaxAttempts: 5},
		"statuses named": {Budget: 1, MaxAttempts: 5, Statuses: []int{429, 503, 529}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const workers = 100
				up := &faulty{executed: make([]atomic.Int32, calls)}
				tr := newTransport(t, up, cfg)
				var wg sync.WaitGroup
				for w := range workers {
					wg.Go(func() {
						for i := w; i < calls; i += workers {
							req := post("call")
							req.Header.Set("Id", strconv.Itoa(i))
							resp, err := tr.RoundTrip(req)
							if err == nil {
								_ = resp.Body.Close()
							}
						}
					})
				}
				wg.Wait()
				for i := range up.executed {
					if n := up.executed[i].Load(); n > 1 {
						t.Fatalf("call %d was executed %d times", i, n)
					}
				}
				stats := tr.Stats()
				t.Logf("%+v, %d executed", stats, up.did.Load())
				if up.after.Load() != 0 || stats.Attempts <= int64(calls)*5/4 {
					t.Errorf("%d attempts after an execution, %d attempts for %d calls; want none, and many that were tried again", up.after.Load(), stats.Attempts, calls)
				}
			})
		})
	}
}

type faulty struct {
	executed   []atomic.Int32
	did, after atomic.Int64
}

func (f *faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	_ = req.Body.Close()
	id, err := strconv.Atoi(req.Header.Get("Id"))
	if err != nil {
		return nil, err
	}
	if f.executed[id].Load() > 0 {
		f.after.Add(1)
	}
	execute := func() { f.executed[id].Add(1); f.did.Add(1) }
	switch rand.IntN(12) {
	case 0:
		return nil, errRefusedConn
	case 1:
		return nil, errRefusedStream
	case 2:
		return nil, &fault{phase: "send", code: "upstream_closed"}
	case 3:
		return answer(429, "", "Retry-After-Ms", "5"), nil
	case 4:
		return answer(503, ""), nil
	case 5:
		execute()
		return nil, errCut
	case 6:
		execute()
		return answer(500, ""), nil
	case 7:
		execute()
		return nil, &fault{phase: "wait", code: "upstream_response_header_timeout", sent: true, expired: true}
	case 8:
		execute()
		return nil, &fault{phase: "wait", code: "upstream_closed", sent: true}
	}
	execute()
	return answer(200, "done"), nil
}
