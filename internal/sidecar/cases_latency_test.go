// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/mockapi"
	"github.com/warmwire/warmwire/internal/testenv"
)

// shown is a line of the lists of requests.
type shown struct {
	DurationMS float64            `json:"duration_ms"`
	Fault      string             `json:"fault"`
	Cause      string             `json:"cause"`
	Connection uint64             `json:"connection"`
	Stages     map[string]float64 `json:"stages_ms"`
}

// list waits until a list has an entry, and returns the first.
func (r *rig) list(path string) (shown, string) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		text := r.get(path)
		var all []shown
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			r.t.Fatalf("%v: %s", err, text)
		}
		if len(all) > 0 {
			return all[0], text
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s stays empty", path)
		}
	}
}

// TestSlowRequestsAreExplained plants faults at a model API: the list of the slowest names
// each, its stages sum to the duration, and no secret is in it.
func TestSlowRequestsAreExplained(t *testing.T) {
	for name, tt := range map[string]struct {
		model, fault, stage string
		least               float64
		batches             int // tokens that a hop collects; 0 = none does
	}{
		"a provider that stalls": {"mock?tokens=20&gap=5ms&stall=5:2500ms", "slow_provider", "provider", 2400, 0},
		"a hop that collects":    {"mock?tokens=120&gap=30ms", "buffering_hop", "held", 1200, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := modelAPI(t)
			at := strings.TrimPrefix(api.URL(), "http://")
			if tt.batches > 0 {
				at = collecting(t, api.URL(), tt.batches)
			}
			r := start(t, at, "upstreams:\n  up: {url: 'http://UPSTREAM', dialect: openai}\n")
			req, err := http.NewRequest(http.MethodPost, "http://"+r.addr+"/up/v1/chat/completions?key=PLANTED",
				strings.NewReader(`{"model":"`+tt.model+`","stream":true,"messages":[{"role":"user","content":"PLANTED"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer PLANTED")
			req.Header.Set("Content-Type", "application/json")
			if status, body := r.do(req); status != http.StatusOK || !strings.Contains(body, "[DONE]") {
				t.Fatalf("%d %.200s", status, body)
			}
			got, text := r.list("/v1/requests/slowest?by=duration")
			sum := 0.0
			for _, ms := range got.Stages {
				sum += ms
			}
			if math.Abs(sum-got.DurationMS) > 0.1 { // microseconds are cut off
				t.Errorf("the stages sum to %.3f of %.3f ms", sum, got.DurationMS)
			}
			if got.Fault != tt.fault || got.Stages[tt.stage] < tt.least {
				t.Errorf("fault %q, want %q: %s", got.Fault, tt.fault, text)
			}
			flight := r.get("/v1/flights?id=" + strconv.FormatUint(got.Connection, 10))
			if got.Connection == 0 || tt.batches == 0 && !strings.Contains(flight, `"protocol": "http/1.1"`) || strings.Contains(flight, "PLANTED") {
				t.Errorf("the flight of connection %d: %s", got.Connection, flight)
			}
			if strings.Contains(text, "PLANTED") || strings.Contains(text, "completions") {
				t.Errorf("the list has what was said: %s", text)
			}
		})
	}
}

// TestACutIsKept breaks answers off inside: what happened on their connection is kept with
// the cause, though it is gone.
func TestACutIsKept(t *testing.T) {
	for name, model := range map[string]string{"an end that is none": "mock?tokens=20&gap=5ms&cut=5", "a reset": "mock?tokens=20&gap=5ms&reset=5"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, strings.TrimPrefix(modelAPI(t).URL(), "http://"), "upstreams:\n  up: {url: 'http://UPSTREAM', dialect: openai}\n")
			resp, err := http.Post("http://"+r.addr+"/up/v1/chat/completions", "application/json", strings.NewReader(`{"model":"`+model+`","stream":true,"messages":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err == nil {
				t.Error("the answer has an end")
			}
			_ = resp.Body.Close()
			got, text := r.list("/v1/requests/interrupted")
			if got.Cause == "" || got.Connection == 0 {
				t.Fatalf("%s", text)
			}
			if flight := r.get("/v1/flights?id=" + strconv.FormatUint(got.Connection, 10)); !strings.Contains(flight, `"kept": "`) {
				t.Errorf("%s: %s", got.Cause, flight)
			}
		})
	}
}

// modelAPI runs the model API.
func modelAPI(t *testing.T) *mockapi.Server {
	t.Helper()
	api, err := mockapi.New(mockapi.Config{})
	if err == nil {
		err = api.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := api.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return api
}

// collecting is a proxy that passes n events on together.
func collecting(t *testing.T, target string, n int) string {
	return testenv.ServeRaw(t, func(c *testenv.Raw) {
		req, err := http.ReadRequest(c.In)
		if err != nil {
			return
		}
		out, err := http.NewRequest(req.Method, target+req.RequestURI, req.Body)
		if err != nil {
			t.Error(err)
			return
		}
		out.ContentLength, out.Header = req.ContentLength, req.Header
		resp, err := http.DefaultClient.Do(out)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		c.Send("HTTP/1.1 200 OK\nContent-Type: text/event-stream\nTransfer-Encoding: chunked\n\n")
		lines := bufio.NewReader(resp.Body)
		var held strings.Builder
		for events := 0; ; {
			line, err := lines.ReadString('\n')
			held.WriteString(line)
			if line == "\n" {
				events++
			}
			if events >= n && line == "\n" || err == io.EOF && held.Len() > 0 {
				c.SendExact(chunk(held.String()))
				held.Reset()
				events = 0
			}
			if err != nil {
				c.SendExact("0\r\n\r\n")
				return
			}
		}
	})
}

// TestInterruptedRequestsAreListed: what broke off says why.
func TestInterruptedRequestsAreListed(t *testing.T) {
	at := testenv.ServeRaw(t, func(c *testenv.Raw) {
		if c.Head() != "" {
			c.Send("HTTP/1.1 200 OK\nContent-Length: 10\n\nhalf")
		}
	})
	r := start(t, at, "")
	resp, err := http.Get("http://" + r.addr + "/up/x")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if got, text := r.list("/v1/requests/interrupted"); got.Cause != "upstream_truncated" {
		t.Error(text)
	}
}
