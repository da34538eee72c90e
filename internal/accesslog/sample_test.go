// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/accesslog"
)

func TestWhatIsLogged(t *testing.T) {
	tests := []struct {
		name   string
		change func(*accesslog.Record)
		level  string // "" = not in full with sample 0
	}{
		{"went well", func(*accesslog.Record) {}, ""},
		{"redirect", func(r *accesslog.Record) { r.Status = 302 }, ""},
		{"app's mistake", func(r *accesslog.Record) { r.Status = 400 }, "INFO"},
		{"too many requests", func(r *accesslog.Record) { r.Status = 429 }, "INFO"},
		{"upstream's error", func(r *accesslog.Record) { r.Status = 503 }, "WARN"},
		{"no terminal event", func(r *accesslog.Record) { r.Cause = "missing_terminal" }, "WARN"},
		{"refused", func(r *accesslog.Record) { r.Outcome = "refused" }, "INFO"},
		{"app left", func(r *accesslog.Record) { r.Outcome = "cut_app" }, "INFO"},
		{"upstream cut", func(r *accesslog.Record) { r.Outcome = "cut_upstream" }, "WARN"},
		{"we cut", func(r *accesslog.Record) { r.Outcome = "cut_warmwire" }, "WARN"},
		{"no answer", func(r *accesslog.Record) { r.Outcome, r.Status = "upstream_error", 0 }, "WARN"},
		{"outcome is missing", func(r *accesslog.Record) { r.Outcome = "" }, "WARN"},
		{"status of no class", func(r *accesslog.Record) { r.Status = 999; r.Cause = "x" }, "WARN"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := accesslog.Record{Outcome: "ok", Status: 200, Method: "GET"}
			tt.change(&r)
			out := write(t, accesslog.Config{}, r)
			if tt.level == "" && out != "" || tt.level != "" && !strings.Contains(out, "level="+tt.level+" ") {
				t.Errorf("got %q, want level %q", out, tt.level)
			}
			if out := write(t, accesslog.Config{Sample: 1, Level: slog.LevelError, Summary: time.Hour}, r); out != "" {
				t.Errorf("a log for errors alone got %q", out)
			}
		})
	}
}

// TestSharesByStatus: a class with a share of its own is no failure, whatever went
// wrong otherwise is one.
func TestSharesByStatus(t *testing.T) {
	cfg := accesslog.Config{Sample: 1, Statuses: map[int]float64{2: 0, 4: 0, 5: 1}}
	for _, tt := range []struct {
		status         int
		outcome, cause string
		want           bool
	}{
		{200, "ok", "", false}, {302, "ok", "", true}, {404, "ok", "", false}, {500, "ok", "", true},
		{200, "ok", "missing_terminal", true}, {404, "cut_app", "app_left", true}, {0, "upstream_error", "x", true}, {200, "cut_upstream", "x", true},
	} {
		r := well(1)
		r.Status, r.Outcome, r.Cause = tt.status, tt.outcome, tt.cause
		if got := write(t, cfg, r) != ""; got != tt.want {
			t.Errorf("%d %s %s: logged %v, want %v", tt.status, tt.outcome, tt.cause, got, tt.want)
		}
	}
}

// TestSampleByTrace has values of OpenTelemetry's rule: a share p keeps a trace if
// its last 56 bits are at least (1-p) * 2^56.
func TestSampleByTrace(t *testing.T) {
	const head = "4bf92f3577b34da6a3" // 18 of 32 digits: they do not count
	for _, tt := range []struct {
		sample float64
		trace  string
		want   bool
	}{
		{0.5, head + "80000000000000", true},
		{0.5, head + "7fffffffffffff", false},
		{0.25, head + "c0000000000000", true},
		{0.25, head + "bfffffffffffff", false},
		{0.25, "ffffffffffffffffff" + "bfffffffffffff", false},
		{0.25, "000000000000000000" + "c0000000000000", true},
		{0, head + "ffffffffffffff", false},
		{1, head + "00000000000000", true},
		{1.0 / 4096, head + "fff00000000000", true},
		{1.0 / 4096, head + "ffefffffffffff", false},
	} {
		for id := range uint64(20) { // which does not count either
			r := well(id)
			r.TraceID = tt.trace
			if got := write(t, accesslog.Config{Sample: tt.sample}, r) != ""; got != tt.want {
				t.Fatalf("sample %v, trace %s: logged %v, want %v", tt.sample, tt.trace, got, tt.want)
			}
		}
	}
}

// TestAWrongTraceIDIsNone: then the request's id decides, and nothing is written of
// it.
func TestAWrongTraceIDIsNone(t *testing.T) {
	kept := 0
	const n = 400
	for i, bad := range []string{strings.Repeat("0", 32), strings.Repeat("F", 32), strings.Repeat("f", 31), strings.Repeat("f", 33), strings.Repeat("f", 31) + "g", "\x00" + strings.Repeat("f", 31)} {
		r := well(1)
		r.TraceID = bad
		if out := write(t, accesslog.Config{Sample: 1}, r); out == "" || strings.Contains(out, "trace_id") {
			t.Errorf("a trace id of %q: %q", bad, out)
		}
		for id := range uint64(n) {
			r.ID = uint64(i)*n + id
			out := write(t, accesslog.Config{Sample: 0.5}, r)
			if out != "" {
				kept++
			}
		}
	}
	if kept < 6*n*4/10 || kept > 6*n*6/10 {
		t.Errorf("%d of %d are written at a share of 0.5", kept, 6*n)
	}
}

var anID = regexp.MustCompile(`\bid=(\d+)`)

// chosen are the ids that a log writes of n.
func chosen(t *testing.T, cfg accesslog.Config, n int, change func(*accesslog.Record)) []string {
	t.Helper()
	cfg.Capacity = n
	r := start(t, cfg)
	for id := range uint64(n) {
		rec := well(id)
		change(&rec)
		r.Record(rec)
	}
	var ids []string
	for _, m := range anID.FindAllStringSubmatch(r.end(), -1) {
		ids = append(ids, m[1])
	}
	return ids
}

func TestSampleIsTheShareAndLargerOnesHaveAllOfSmaller(t *testing.T) {
	const n = 20000
	for name, change := range map[string]func(*accesslog.Record){
		"by id": func(*accesslog.Record) {},
		"by trace": func(r *accesslog.Record) {
			r.TraceID = fmt.Sprintf("%016x%016x", r.ID+1, (r.ID+1)*0x9e3779b97f4a7c15)
		},
	} {
		var smaller []string
		for _, sample := range []float64{0, 0.01, 0.25, 1} {
			got := chosen(t, accesslog.Config{Sample: sample}, n, change)
			want := sample * n
			if math.Abs(float64(len(got))-want) > 4*math.Sqrt(want*(1-sample)) {
				t.Errorf("%s, sample %v: %d of %d", name, sample, len(got), n)
			}
			for _, id := range smaller { // both are in the order of the ids
				if _, found := slices.BinarySearchFunc(got, id, byNumber); !found {
					t.Fatalf("%s: %s is in a smaller sample than %v, and not in this one", name, id, sample)
				}
			}
			if sample < 1 {
				smaller = got
			}
		}
	}
}

// byNumber compares numbers without leading zeros.
func byNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// TestAnOutageIsNoFlood: 1000 failures a second for a minute leave the first ones
// and ten a second of each upstream and outcome; the summary has them all.
func TestAnOutageIsNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Summary: time.Minute})
		begin := time.Now()
		for range 60 {
			for i := range 1000 {
				rec := well(uint64(i))
				rec.Time, rec.Outcome, rec.Cause, rec.Status = time.Now(), "upstream_error", "upstream_connect_refused", 502
				r.Record(rec)
				if i == 0 { // another fails now and then: it is not hidden
					rec.Upstream = "gemini"
					r.Record(rec)
				}
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(begin); took != time.Minute {
			t.Fatalf("the requests waited for the log: %v", took)
		}
		out := r.end()
		const want = 100 + 59*10
		if got := strings.Count(out, "msg=request") - strings.Count(out, "upstream=gemini") + 1; got != want {
			t.Errorf("%d lines about openai, want %d", got, want)
		}
		for _, want := range []string{
			"msg=summary upstream=openai outcome=upstream_error window_ms=60000 requests=60000 in_full=690 left_out=59310 status_5xx=60000",
			"msg=summary upstream=gemini outcome=upstream_error window_ms=60000 requests=60 in_full=60 status_5xx=60",
		} {
			if strings.Count(out, want) != 1 {
				t.Errorf("the summary has no %q:\n%s", want, lastLines(out, 3))
			}
		}
		if r.Dropped() != 0 {
			t.Errorf("dropped %d", r.Dropped())
		}
	})
}

// TestQuietTimeIsNotSavedUp: after an hour without failures no more are written at
// once than at the start.
func TestQuietTimeIsNotSavedUp(t *testing.T) {
	r := start(t, accesslog.Config{})
	rec := well(1)
	rec.Outcome = "cut_upstream"
	for range 2 {
		for range 1000 {
			r.Record(rec)
		}
		rec.Time = rec.Time.Add(time.Hour)
	}
	if got := strings.Count(r.end(), "msg=request"); got != 200 {
		t.Errorf("%d lines of two outages, want the first 100 of each", got)
	}
}

func lastLines(s string, n int) string {
	lines := strings.SplitAfter(s, "\n")
	return strings.Join(lines[max(len(lines)-n-1, 0):], "")
}

// TestAFullSampleHasEveryFailure: whoever asks for all gets all.
func TestAFullSampleHasEveryFailure(t *testing.T) {
	got := chosen(t, accesslog.Config{Sample: 1}, 2000, func(r *accesslog.Record) { r.Outcome = "cut_upstream" })
	if len(got) != 2000 {
		t.Errorf("%d of 2000", len(got))
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []accesslog.Config{
		{Sample: -0.1}, {Sample: 1.1}, {Sample: math.NaN()}, {Capacity: -1}, {FlushTimeout: -1}, {Summary: -1}, {FailureRate: -1}, {FailureRate: math.NaN()},
		{FailureBurst: -1}, {Format: 3}, {Format: -1}, {Statuses: map[int]float64{0: 1}}, {Statuses: map[int]float64{6: 1}}, {Statuses: map[int]float64{2: 2}},
		{File: t.TempDir()}, {File: t.TempDir() + "/none/log"},
	} {
		if _, err := accesslog.New(nil, nil, cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	r := start(t, accesslog.Config{Sample: 1})
	if r.Update(accesslog.Config{Sample: 2}) == nil || r.Update(accesslog.Config{File: t.TempDir()}) == nil {
		t.Error("Update took what New refuses")
	}
	if r.Record(well(1)); r.end() == "" {
		t.Error("a refused Update changed the sample")
	}
}

func TestUpdateChangesWhatIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{})
		r.Record(well(1))
		if err := r.Update(accesslog.Config{Sample: 1, Format: accesslog.JSON, Summary: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		r.Record(well(2))
		synctest.Wait()
		if got := r.out.String(); got != `{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"request","id":2,"upstream":"openai","method":"GET",`+
			`"status":200,"outcome":"ok","stream":false,"reused":false,"bytes_in":0,"bytes_out":0,"duration_ms":0}`+"\n" {
			t.Errorf("got %s", got)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := r.out.count(`"msg":"summary","upstream":"openai","outcome":"ok","window_ms":3000,"requests":2,"in_full":1,`); got != 1 {
			t.Errorf("%d summaries:\n%s", got, r.out)
		}
		r.end()
	})
}

// TestUpdateIsSeenByAQuietLog: settings do not wait for the next record.
func TestUpdateIsSeenByAQuietLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{})
		r.Record(well(1))
		time.Sleep(time.Second)
		if err := r.Update(accesslog.Config{Summary: 3 * time.Second}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := r.out.count("msg=summary upstream=openai outcome=ok window_ms=3000 requests=1 in_full=0 "); got != 1 {
			t.Errorf("%d summaries:\n%s", got, r.out)
		}
		r.end()
	})
}
