// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestFaultedCallsAreExecutedOnce runs the whole product before an upstream that breaks
// off in every way: with its defaults nothing is executed twice, and what was refused is
// sent again. With settings that allow more the same count finds calls executed twice.
func TestFaultedCallsAreExecutedOnce(t *testing.T) {
	t.Parallel()
	warmwire, err := testenv.Build("..", "cmd/warmwire")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(warmwire))
	rows, err := twiceRows(t.Context(), settings{warmwire: warmwire, twice: 3000})
	if err != nil {
		t.Fatal(err)
	}
	control := 0
	for _, row := range rows {
		if row.executed == 0 {
			t.Errorf("%s: none of %d calls reached the upstream", row.name, row.calls)
		}
		if row.defaults && row.again > 0 {
			t.Errorf("%s: %d calls were executed more than once", row.name, row.again)
		}
		if !row.defaults {
			control += row.again
		}
	}
	if control == 0 {
		t.Error("the count finds no call executed twice even where that is allowed")
	}
	// Most of what is sent again meets another fault, or a budget that is used up on a busy
	// machine; without a second attempt none of them would be executed.
	if h2 := rows[1]; h2.refused == 0 || h2.lost >= h2.refused {
		t.Errorf("of %d calls that were refused first %d were never executed", h2.refused, h2.lost)
	}
}

// TestFlakyCountsAttempts: what an upstream saw is told by row, once.
func TestFlakyCountsAttempts(t *testing.T) {
	f := &flaky{rows: make(map[string]*tally)}
	post := func(call, share string) int {
		req := httptest.NewRequest(http.MethodPost, "/v1/flaky?status=503&hint=7&share="+share, strings.NewReader("{}"))
		req.Header.Set(rowHeader, "a row")
		req.Header.Set(callHeader, call)
		w := httptest.NewRecorder()
		f.ServeHTTP(w, req)
		if w.Code == 503 && w.Header().Get("Retry-After") != "7" {
			t.Errorf("Retry-After %q, want 7", w.Header().Get("Retry-After"))
		}
		return w.Code
	}
	for _, c := range []struct {
		call, share string
		want        int
	}{{"1", "1", 503}, {"1", "1", 503}, {"1", "0", 200}, {"2", "0", 200}, {"3", "much", 400}} {
		if got := post(c.call, c.share); got != c.want {
			t.Errorf("call %s with share %s: %d, want %d", c.call, c.share, got, c.want)
		}
	}
	for _, want := range []struct {
		attempts, calls int64
		second          int
	}{{4, 2, 1}, {0, 0, 0}} {
		w := httptest.NewRecorder()
		f.serveTally(w, httptest.NewRequest(http.MethodGet, "/v1/tally?row=a+row", nil))
		var got tally
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.Attempts != want.attempts || got.Calls != want.calls || len(got.Second) != want.second {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// TestAClientTriesAgainAsOftenAsSaid counts the attempts of each kind of client at an
// upstream that refuses all of them.
func TestAClientTriesAgainAsOftenAsSaid(t *testing.T) {
	var asked int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	for _, c := range []struct {
		wait func(int) time.Duration
		want int
	}{{nil, 1}, {func(int) time.Duration { return 0 }, clientTries}} {
		asked = 0
		a := &armed{caller: caller{wait: c.wait}, client: newClient(srv.URL, nil, nil), took: histogram()}
		a.call(context.Background(), 1)
		a.client.close()
		if asked != c.want || a.took.TotalCount() != 0 || a.missed.Load() != 0 {
			t.Errorf("%d attempts, %d good, %d broken; want %d, 0, 0", asked, a.took.TotalCount(), a.missed.Load(), c.want)
		}
	}
	if exponential(1) != 100*time.Millisecond || exponential(3) != 400*time.Millisecond || jittered(3) > 400*time.Millisecond {
		t.Error("the back-off is not the study's")
	}
}

func TestASpikeIsSeen(t *testing.T) {
	var even, same []time.Duration
	for i := range 100 {
		even = append(even, 5*time.Second+time.Duration(i)*time.Millisecond)
		same = append(same, 5*time.Second)
	}
	if a, b := spike(even, 100*time.Millisecond), spike(same, 100*time.Millisecond); a != 1 || b != 10 {
		t.Errorf("got %v and %v, want 1 and 10", a, b)
	}
}

func TestRetryReportComparesWithNoErrors(t *testing.T) {
	round := make([]tried, len(callers()))
	for i := range round {
		round[i] = tried{calls: 1000, good: 730, attempts: 1200, p50: 150, p95: 300}
	}
	round[0] = tried{calls: 1000, good: 1000, attempts: 1000, p50: 100, p95: 200}
	r := &retryReport{settings: settings{memory: 1, callRate: 1000}, rounds: map[string][][]tried{"0": {round}, "": {round}},
		outage: []outcomeOf{{"a client", tried{calls: 10, attempts: 12}}}, bursts: []burst{{"a client", 200, 2.5}}}
	text := strings.Join(strings.Fields(r.markdown(time.Unix(0, 0), time.Minute)), " ")
	for _, want := range []string{
		"| Warmwire, budget 0.2 | 73.0 (73.0–73.0) | 1.20 (1.20–1.20) | 1.50 (1.50–1.50) | 1.50 (1.50–1.50) | 0 |",
		"| a client | 10 | 12 | 1.200 |", "| a client | 200 | 2.5 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestCallsInALabAreCountedByID runs without the lab: a model API that counts an id twice
// makes the run fail, and so does one that does not know all ids.
func TestCallsInALabAreCountedByID(t *testing.T) {
	for stats, want := range map[string]string{
		`{"ids": {"1": 1, "2": 1}}`: "", `{"ids": {"1": 1, "2": 2}}`: "1 of 3 calls came more than once", `{"other_ids": 4}`: "did not count 4 arrivals",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/mock/stats" {
				_, _ = w.Write([]byte(stats))
			} else if r.Header.Get("Mock-Id") == "" {
				t.Errorf("%s without an id", r.URL)
			}
		}))
		t.Setenv("WARMWIRE_LAB_THROUGH", srv.URL)
		t.Setenv("WARMWIRE_LAB_URL", srv.URL)
		err := runMock(t.Context(), settings{mock: 3})
		srv.Close()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", stats, err, want)
		}
	}
	t.Setenv("WARMWIRE_LAB_URL", "")
	if err := runMock(t.Context(), settings{mock: 3}); err == nil {
		t.Error("it runs without a lab")
	}
}
