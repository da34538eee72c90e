// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwire/warmwire/internal/accesslog"
)

// TestSummary: everything is summed up each period and at the end, by upstream and
// outcome; what did not happen is not written.
func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Format: accesslog.JSON, Summary: time.Minute})
		for i := range 4 {
			rec := full
			rec.ID, rec.Outcome, rec.Cause = uint64(i), "ok", ""
			rec.Status = []int{200, 204, 404, 301}[i]
			r.Record(rec)
		}
		r.Record(accesslog.Record{Upstream: "gemini", Outcome: "refused", Status: 403, InputTokens: -1, OutputTokens: -1, Duration: 2 * time.Millisecond})
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if got := r.out.count("summary"); got != 0 {
			t.Errorf("%d lines of a summary before its time", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		want := []map[string]any{{
			"time": "2000-01-01T00:01:00Z", "level": "INFO", "msg": "summary", "upstream": "openai", "outcome": "ok", "window_ms": 60000.0,
			"requests": 4.0, "in_full": 1.0, "status_2xx": 2.0, "status_3xx": 1.0, "status_4xx": 1.0, "streams": 4.0,
			"bytes_in": 2400.0, "bytes_out": 48000.0, "input_tokens": 44.0, "output_tokens": 244.0, "attempts": 12.0, "resumes": 4.0, "app_retries": 8.0,
			"duration_sum_ms": 6000.0, "duration_p50_ms": 1500.0, "duration_p90_ms": 1500.0, "duration_p99_ms": 1500.0, "duration_max_ms": 1500.0,
			"ttft_p50_ms": 250.0, "ttft_p90_ms": 250.0, "ttft_p99_ms": 250.0, "ttft_max_ms": 250.0,
		}, {
			"time": "2000-01-01T00:01:00Z", "level": "INFO", "msg": "summary", "upstream": "gemini", "outcome": "refused", "window_ms": 60000.0,
			"requests": 1.0, "in_full": 1.0, "status_4xx": 1.0, "bytes_in": 0.0, "bytes_out": 0.0,
			"duration_sum_ms": 2.0, "duration_p50_ms": 2.0, "duration_p90_ms": 2.0, "duration_p99_ms": 2.0, "duration_max_ms": 2.0,
		}}
		if diff := cmp.Diff(want, summaries(t, r.out.String()), roughly); diff != "" {
			t.Errorf("summary (-want +got):\n%s", diff)
		}
		time.Sleep(90 * time.Second) // an empty minute
		r.Record(well(1))
		out := r.end()
		if got := summaries(t, out); len(got) != 3 || got[2]["time"] != "2000-01-01T00:02:30Z" || got[2]["window_ms"] != 30000.0 || got[2]["requests"] != 1.0 {
			t.Errorf("summaries: %v", got)
		}
	})
}

// roughly compares quantiles as exactly as a histogram's bucket.
var roughly = cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= max(a, b)/32 })

func summaries(t *testing.T, out string) []map[string]any {
	t.Helper()
	var list []map[string]any
	for line := range strings.Lines(out) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if m["msg"] == "summary" {
			list = append(list, m)
		}
	}
	return list
}

func TestSummaryQuantiles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 10, 16, 999, 1000} {
		r := start(t, accesslog.Config{Format: accesslog.JSON, Summary: time.Hour})
		all := make([]time.Duration, n)
		for i := range all {
			all[i] = time.Duration(math.Exp(rnd.Float64()*30)) * time.Microsecond / 10 // 0.1 µs to 12 days
			rec := well(uint64(i))
			rec.Duration = all[i]
			r.Record(rec)
		}
		got := summaries(t, r.end())[0]
		slices.Sort(all)
		for name, q := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1} {
			want := all[max(int(math.Ceil(q*float64(n))), 1)-1].Seconds() * 1000
			have := got["duration_"+name+"_ms"].(float64)
			if want > 60_000_000 && name != "max" {
				want = 68_719_476.736 // the last bucket begins about here
				have = max(have, want)
			}
			if math.Abs(have-want) > want/32+0.001 {
				t.Errorf("%d values: %s %v ms, want %v", n, name, have, want)
			}
		}
	}
}

// TestSummaryIsBounded: names that should not be there do not eat memory.
func TestSummaryIsBounded(t *testing.T) {
	r := start(t, accesslog.Config{Format: accesslog.JSON, Summary: time.Hour, Capacity: 1})
	for i := range uint64(5000) {
		rec := well(i)
		rec.Upstream = fmt.Sprintf("u%d", i)
		r.Record(rec)
	}
	total, got := 0.0, summaries(t, r.end())
	for _, row := range got {
		total += row["requests"].(float64)
	}
	last := got[len(got)-1]
	if len(got) != 512 || total != 5000 || last["upstream"] != "other" || last["outcome"] != "other" {
		t.Errorf("%d rows with %v requests, last %v", len(got), total, last)
	}
}
