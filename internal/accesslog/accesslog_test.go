// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drain runs l until all that is queued has been written.
func drain(t *testing.T, l *Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestFailuresAreAlwaysWrittenAndSuccessesSampled(t *testing.T) {
	var out bytes.Buffer
	l, err := New(slog.NewJSONHandler(&out, nil), Config{Sample: 0.25, Capacity: 20000})
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(10000) {
		l.Record(Record{ID: id, Outcome: "ok", OutputTokens: -1})
	}
	l.Record(Record{ID: 1, Outcome: "ok", Cause: "missing_terminal"})
	l.Record(Record{ID: 2, Outcome: "cut_upstream", Cause: "upstream_reset", Method: "SECRET", TTFT: time.Second})
	drain(t, l)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if n := len(lines) - 2; n < 2350 || n > 2650 {
		t.Errorf("%d of 10000 sampled at 0.25", n)
	}
	var last map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	if last["cause"] != "upstream_reset" || last["method"] != "OTHER" || last["level"] != "WARN" || last["ttft"] != float64(time.Second) {
		t.Errorf("last record %v", last)
	}
}

func TestAFullQueueDropsAndCounts(t *testing.T) {
	l, err := New(slog.DiscardHandler, Config{Sample: 1, Capacity: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		l.Record(Record{Outcome: "ok"})
	}
	if l.Dropped() != 3 {
		t.Errorf("dropped %d, want 3", l.Dropped())
	}
	drain(t, l)
}

func TestSampleBounds(t *testing.T) {
	var out bytes.Buffer
	l, err := New(slog.NewTextHandler(&out, nil), Config{Sample: 1})
	if err != nil {
		t.Fatal(err)
	}
	l.Record(Record{ID: 1, Outcome: "ok"})
	l.SetSample(0)
	l.Record(Record{ID: 1, Outcome: "ok"})
	drain(t, l)
	if n := strings.Count(out.String(), "msg=request"); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
	if _, err := New(slog.DiscardHandler, Config{Sample: 1.1}); err == nil {
		t.Error("a share above 1 was accepted")
	}
}

func BenchmarkRecord(b *testing.B) {
	l, err := New(slog.DiscardHandler, Config{Sample: 0.01})
	if err != nil {
		b.Fatal(err)
	}
	r := Record{Outcome: "ok"}
	b.ReportAllocs()
	for b.Loop() {
		r.ID++
		l.Record(r)
	}
}
