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
	"os"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// mockFaults are what the model API is asked for with a call, as fields and values.
var mockFaults = [][2]string{
	{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, // the network's alone
	{"Mock-Reset", "head"}, {"Mock-Reset", "head"}, {"Mock-Reset", "2"}, {"Mock-Reset", "2"}, {"Mock-Cut", "head"}, {"Mock-Cut", "2"}, {"Mock-Cut", "2"},
	{"Mock-Status", "503"}, {"Mock-Status", "429"}, {"Mock-Status", "529"}, {"Mock-Hold", "true"},
}

// patienceInLab is how long the app waits for a call there.
const patienceInLab = 15 * time.Second

// runMock makes calls through the Warmwire of "warmwire lab run", and asks the model API
// which of them came twice: none may with the defaults.
func runMock(ctx context.Context, s settings) error {
	through, api := os.Getenv("WARMWIRE_LAB_THROUGH"), os.Getenv("WARMWIRE_LAB_URL")
	if through == "" || api == "" {
		return errors.New("-mock runs inside a lab: warmwire lab run --loss 2% --blackout 1s-2s/10s --rtt 80ms -- bin/bench -mock 5000")
	}
	c := newClient(strings.TrimSuffix(through, "/"), nil, nil)
	defer c.close()
	var next, answered, others, broken atomic.Int64
	var workers errgroup.Group
	begin := time.Now()
	for range twiceWorkers {
		workers.Go(func() error {
			for {
				i := int(next.Add(1))
				if i > s.mock || ctx.Err() != nil {
					return nil
				}
				switch status, err := c.mocked(ctx, i); {
				case err != nil:
					broken.Add(1)
				case status == http.StatusOK:
					answered.Add(1)
				default:
					others.Add(1)
				}
			}
		})
	}
	_ = workers.Wait() // they return none
	took := time.Since(begin)
	ids, err := mockStats(ctx, api)
	if err != nil {
		return err
	}
	again := 0
	for _, n := range ids {
		if n > 1 {
			again++
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	line(w, "calls", "arrived", "more than once", "app got 200", "another status", "broken off", "s")
	line(w, "---", "---", "---", "---", "---", "---", "---")
	line(w, fmt.Sprint(s.mock), fmt.Sprint(len(ids)), fmt.Sprint(again), fmt.Sprint(answered.Load()), fmt.Sprint(others.Load()), fmt.Sprint(broken.Load()),
		fmt.Sprintf("%.0f", took.Seconds()))
	if err := w.Flush(); err != nil {
		return err
	}
	if again > 0 {
		return fmt.Errorf("%d of %d calls came more than once", again, s.mock)
	}
	return nil
}

func (c *client) mocked(ctx context.Context, n int) (status int, err error) {
	fault := mockFaults[rand.IntN(len(mockFaults))]
	if n%300 == 0 {
		fault = [2]string{"Mock-Reset", "head:conn"} // with all that runs on the connection
	}
	limit := patienceInLab
	if fault[0] == "Mock-Hold" { // never answered: the app leaves
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions",
		io.MultiReader(strings.NewReader(`{"model": "mock", "stream": true, "messages": []}`))) // no GetBody
	if err != nil {
		return 0, err
	}
	for name, value := range map[string]string{"Mock-Id": fmt.Sprint(n), "Mock-Tokens": "5", "Mock-Gap": "20ms", "Mock-Retry-After": "0", fault[0]: fault[1]} {
		if name != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// mockStats are the arrivals by id.
func mockStats(ctx context.Context, api string) (map[string]int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(api, "/")+"/mock/stats", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var stats struct {
		IDs   map[string]int `json:"ids"`
		Other int            `json:"other_ids"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&stats); err != nil {
		return nil, err
	}
	if stats.Other > 0 {
		return nil, fmt.Errorf("the model API did not count %d arrivals by id", stats.Other)
	}
	return stats.IDs, nil
}
