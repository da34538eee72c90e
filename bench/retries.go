// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
)

// The source study's experiment.
const (
	errorShare  = 0.3
	clientTries = 4 // of a client that retries: three more
	firstWait   = 100 * time.Millisecond
	burstCalls  = 200
	bursts      = 10
)

// A caller is one row: a client, what it does after an error, and the proxy before it.
type caller struct {
	name   string
	wait   func(attempt int) time.Duration // nil: it does not try again
	budget string                          // of Warmwire; "" = no proxy
	errors bool
}

func exponential(attempt int) time.Duration { return firstWait << (attempt - 1) }

// jittered is what the study calls jitter of 0-100 %.
func jittered(attempt int) time.Duration {
	return time.Duration(rand.Float64() * float64(exponential(attempt)))
}

// callers are the rows; the first is what all are compared with.
func callers() []caller {
	return []caller{
		{name: "no errors"},
		{name: "no errors, through Warmwire", budget: "0.2"},
		{name: "no retry", errors: true},
		{name: "client: exponential, 3 retries", wait: exponential, errors: true},
		{name: "client: exponential with full jitter, 3 retries", wait: jittered, errors: true},
		{name: "Warmwire, budget 0.1", budget: "0.1", errors: true},
		{name: "Warmwire, budget 0.2", budget: "0.2", errors: true},
		{name: "Warmwire, budget 0.5", budget: "0.5", errors: true},
	}
}

// A tried is what one round of a caller showed.
type tried struct {
	calls, good, missed int64 // missed: ended otherwise than with the upstream's answer
	attempts            int64 // that reached the upstream
	p50, p95            float64
}

// An experiment is the run of all callers.
type experiment struct {
	*bench
	proxies map[string]*peer // by budget
	begun   int              // rows so far, so that each has a name of its own
}

func runRetries(ctx context.Context, s settings) error {
	b, cleanup, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer cleanup()
	x := &experiment{bench: b, proxies: make(map[string]*peer)}
	for _, budget := range []string{"0.1", "0.2", "0.5", "1"} {
		p, err := b.rack.start(ctx, spec{name: "warmwire-" + budget, kind: reverse, start: startRetrying(budget)})
		if err != nil {
			return err
		}
		defer p.stop()
		x.proxies[budget] = p
	}
	start := time.Now()
	rep := &retryReport{settings: s, rounds: map[string][][]tried{}}
	for n := range s.memory {
		for _, hint := range []string{"0", ""} {
			var round []tried
			for _, c := range callers() {
				one, err := x.steady(ctx, c, hint)
				if err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				round = append(round, one)
			}
			rep.rounds[hint] = append(rep.rounds[hint], round)
		}
		fmt.Fprintf(os.Stderr, "bench: round %d of %d, %s\n", n+1, s.memory, time.Since(start).Round(time.Second))
	}
	if rep.outage, err = x.outage(ctx); err != nil {
		return err
	}
	if rep.bursts, err = x.bursts(ctx); err != nil {
		return err
	}
	return rep.write(time.Since(start))
}

// startRetrying starts Warmwire with the statuses of an overload to try again.
func startRetrying(budget string) starter {
	return func(r *rack, ctx context.Context, p *peer, address string) error {
		p.base += "/bench"
		return r.runWarmwire(ctx, p, address, fmt.Sprintf("upstreams:\n  bench: {url: 'http://%s', dialect: openai, protocols: [http/1.1],"+
			" pool: {max_h1_connections: 8000}, retry: {statuses: [429, 503], budget: %s}}\n", r.plain, budget))
	}
}

// steady has a caller make calls at a constant rate.
func (x *experiment) steady(ctx context.Context, c caller, hint string) (tried, error) {
	share := 0.0
	if c.errors {
		share = errorShare
	}
	out, _, err := x.make(ctx, c, share, 503, hint, x.callRate, x.callFor)
	return out, err
}

// make makes calls of c at a rate, and asks the upstream what it saw.
func (x *experiment) make(ctx context.Context, c caller, share float64, status int, hint string, rate int, length time.Duration) (out tried, seen tally, err error) {
	a := x.arm(c, share, status, hint)
	defer a.client.close()
	var calls sync.WaitGroup
	begin := time.Now()
	total := int(float64(rate) * length.Seconds())
	for n := 0; n < total && ctx.Err() == nil; n++ {
		due := begin.Add(time.Duration(n) * time.Second / time.Duration(rate))
		if err := pause(ctx, max(0, time.Until(due))); err != nil {
			break
		}
		calls.Go(func() { a.call(ctx, n) })
	}
	calls.Wait()
	if seen, err = x.tally(ctx, a.row); err != nil {
		return out, seen, err
	}
	out = tried{calls: int64(total), good: a.took.TotalCount(), missed: a.missed.Load(), attempts: seen.Attempts,
		p50: float64(a.took.ValueAtPercentile(50)), p95: float64(a.took.ValueAtPercentile(95))}
	return out, seen, ctx.Err()
}

// An armed is a caller with its client.
type armed struct {
	caller
	client *client
	path   string
	row    string
	missed atomic.Int64

	mu   sync.Mutex // guards took
	took *hdrhistogram.Histogram
}

func (x *experiment) arm(c caller, share float64, status int, hint string) *armed {
	x.begun++
	a := &armed{caller: c, took: histogram(), row: fmt.Sprintf("%d", x.begun),
		path: fmt.Sprintf("/v1/flaky?share=%v&status=%d&hint=%s", share, status, hint)}
	if c.budget != "" {
		a.client = x.proxies[c.budget].client(x.ca)
	} else {
		a.client = newClient("http://"+x.rack.plain, nil, x.ca)
	}
	return a
}

// call makes one call with its retries, and notes how long it took if it was good.
func (a *armed) call(ctx context.Context, n int) {
	begin := time.Now()
	for attempt := 1; ; attempt++ {
		status, err := a.attempt(ctx, n)
		switch {
		case err != nil:
			a.missed.Add(1)
			return
		case status == http.StatusOK:
			a.mu.Lock()
			defer a.mu.Unlock()
			_ = a.took.RecordValue(max(1, time.Since(begin).Microseconds()))
			return
		case a.wait == nil || attempt == clientTries || pause(ctx, a.wait(attempt)) != nil:
			return
		}
	}
}

func (a *armed) attempt(ctx context.Context, n int) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.client.base+a.path, strings.NewReader(`{"model": "m"}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set(rowHeader, a.row)
	req.Header.Set(callHeader, fmt.Sprint(n))
	resp, err := a.client.http.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, err
}

// tally asks the upstream what came for a row.
func (x *experiment) tally(ctx context.Context, row string) (out tally, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+x.rack.plain+"/v1/tally?row="+url.QueryEscape(row), nil)
	if err != nil {
		return out, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

// storms are the callers of an outage and of bursts.
func storms(budget string) []caller {
	return []caller{
		{name: "client: exponential, 3 retries", wait: exponential},
		{name: "client: exponential with full jitter, 3 retries", wait: jittered},
		{name: "Warmwire, budget " + budget, budget: budget},
	}
}

// An outcomeOf is a caller with what an outage made of it.
type outcomeOf struct {
	name  string
	tried tried
}

// outage fails every attempt, of all callers side by side: nothing but counts is taken
// from it.
func (x *experiment) outage(ctx context.Context) ([]outcomeOf, error) {
	all := storms("0.2")
	out := make([]outcomeOf, len(all))
	var group errgroup.Group
	rows := make([]*experiment, len(all)) // each with names of rows of its own
	for i := range all {
		one := *x
		one.begun += 1000 * (i + 1)
		rows[i] = &one
	}
	for i, c := range all {
		group.Go(func() (err error) {
			out[i].name = c.name
			out[i].tried, _, err = rows[i].make(ctx, c, 1, 503, "", x.callRate/5, x.outageFor)
			return err
		})
	}
	return out, group.Wait()
}

// A burst is when calls that began and failed at one moment came again.
type burst struct {
	name  string
	again int
	spike float64 // see spike
}

// bursts makes calls at one moment, all of which are told to come later.
func (x *experiment) bursts(ctx context.Context) ([]burst, error) {
	var out []burst
	for _, c := range storms("1") {
		var offsets []time.Duration
		for range bursts {
			begin := monotonic()
			_, seen, err := x.make(ctx, c, 1, http.StatusTooManyRequests, "", 1e6, burstCalls*time.Microsecond)
			if err != nil {
				return nil, err
			}
			for _, at := range seen.Second {
				offsets = append(offsets, time.Duration(at-begin))
			}
		}
		if len(offsets) == 0 {
			return nil, errors.New("no call of a burst was tried again")
		}
		out = append(out, burst{c.name, len(offsets), spike(offsets, firstWait)})
	}
	return out, nil
}

// spike is how many moments are in the fullest tenth of a span, over how many would be
// there if they were spread evenly over one span.
func spike(at []time.Duration, span time.Duration) float64 {
	bins := make(map[time.Duration]int)
	most := 0
	for _, d := range at {
		bin := 10 * d / span
		bins[bin]++
		most = max(most, bins[bin])
	}
	return 10 * float64(most) / float64(len(at))
}
