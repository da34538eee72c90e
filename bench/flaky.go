// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// The study's upstream: 182 ms at the 95th percentile, and a refusal is quick.
const (
	serviceMedian = 100 * time.Millisecond
	serviceSpread = 0.364 // of the logarithm: P95 is 1.82 times the median
	refusalTime   = 5 * time.Millisecond
)

// rowHeader and callHeader say for which row of a table a call is made, and which it is.
const (
	rowHeader  = "Bench-Row"
	callHeader = "Bench-Call"
)

// A flaky answers POST /v1/flaky?share=S&status=N&hint=H after a time as a model API
// takes it, and that share of all attempts, each by chance, soon with the status and
// Retry-After: H. GET /v1/tally tells what came for a row, and forgets it.
type flaky struct {
	mu   sync.Mutex // guards rows
	rows map[string]*tally
}

// A tally is what came for one row.
type tally struct {
	Attempts int64
	Calls    int64
	Second   []int64 // when second attempts came, in ns of the monotonic clock

	seen map[string]int // attempts by call
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	q := r.URL.Query()
	share, err := strconv.ParseFloat(q.Get("share"), 64)
	status, err2 := strconv.Atoi(q.Get("status"))
	if err != nil || err2 != nil {
		http.Error(w, "share or status", http.StatusBadRequest)
		return
	}
	f.count(r.Header.Get(rowHeader), r.Header.Get(callHeader))
	takes := refusalTime
	refused := rand.Float64() < share
	if !refused {
		takes = time.Duration(float64(serviceMedian) * math.Exp(serviceSpread*rand.NormFloat64()))
	}
	if pause(r.Context(), takes) != nil {
		return
	}
	if !refused {
		_, _ = io.WriteString(w, `{"ok": true}`)
		return
	}
	if hint := q.Get("hint"); hint != "" {
		w.Header().Set("Retry-After", hint)
	}
	w.WriteHeader(status)
}

func (f *flaky) count(row, call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.rows[row]
	if t == nil {
		t = &tally{seen: make(map[string]int)}
		f.rows[row] = t
	}
	t.Attempts++
	switch t.seen[call]++; t.seen[call] {
	case 1:
		t.Calls++
	case 2:
		t.Second = append(t.Second, monotonic())
	}
}

func (f *flaky) serveTally(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	row := r.URL.Query().Get("row")
	t := f.rows[row]
	if t == nil {
		t = new(tally)
	}
	delete(f.rows, row)
	_ = json.NewEncoder(w).Encode(t)
}
