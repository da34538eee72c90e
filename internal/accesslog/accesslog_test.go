// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/accesslog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write runs a log over one handler, records what record does, and returns the
// output after the end.
func write(t *testing.T, make func(io.Writer) slog.Handler, cfg accesslog.Config, record func(*accesslog.Log)) (string, *accesslog.Log) {
	t.Helper()
	var out bytes.Buffer
	l, err := accesslog.New(make(&out), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := start(func() error { return l.Run(ctx) })
	record(l)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return out.String(), l
}

func start(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

func jsonHandler(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) }
func textHandler(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }

// full is a record with every field set.
var full = accesslog.Record{
	ID: 7, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Duration: 1500 * time.Millisecond,
	Upstream: "openai", Mode: "base_url", Route: "chat", Method: "POST", ClientProtocol: "HTTP/1.1", UpstreamProtocol: "HTTP/2.0",
	Status: 200, Outcome: "cut_upstream", Cause: "upstream_truncated", Stream: true, BytesIn: 600, BytesOut: 12000,
	Phases: accesslog.Phases{Queue: 1e6, DNS: 2e6, Connect: 3e6, TLS: 4e6, Send: 5e6, Wait: 6500 * time.Microsecond}, Reused: true,
	TTFT: 250 * time.Millisecond, PerChunk: 20 * time.Millisecond, Chunks: 60, InputTokens: 11, OutputTokens: 61,
	AppRetries: 2, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
}

func TestEveryFieldIsWritten(t *testing.T) {
	for i := range reflect.ValueOf(full).NumField() {
		if reflect.ValueOf(full).Field(i).IsZero() {
			t.Fatalf("the test's record has no %s", reflect.TypeOf(full).Field(i).Name)
		}
	}
	out, _ := write(t, jsonHandler, accesslog.Config{}, func(l *accesslog.Log) { l.Record(full) })
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	want := map[string]any{
		"time": "2026-01-02T03:04:06.5Z", "level": "WARN", "msg": "request", "id": 7.0,
		"upstream": "openai", "mode": "base_url", "route": "chat", "method": "POST", "protocol": "HTTP/1.1", "upstream_protocol": "HTTP/2.0",
		"status": 200.0, "outcome": "cut_upstream", "cause": "upstream_truncated", "stream": true, "reused": true,
		"bytes_in": 600.0, "bytes_out": 12000.0, "duration_ms": 1500.0,
		"queue_ms": 1.0, "dns_ms": 2.0, "connect_ms": 3.0, "tls_ms": 4.0, "send_ms": 5.0, "wait_ms": 6.5,
		"ttft_ms": 250.0, "per_chunk_ms": 20.0, "chunks": 60.0, "input_tokens": 11.0, "output_tokens": 61.0,
		"app_retries": 2.0, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

func TestTextLine(t *testing.T) {
	r := accesslog.Record{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), ID: 9, Upstream: "ollama", Method: "GET", Outcome: "ok", Status: 200,
		InputTokens: -1, OutputTokens: -1, Duration: 1234567 * time.Nanosecond}
	out, _ := write(t, textHandler, accesslog.Config{Sample: 1}, func(l *accesslog.Log) { l.Record(r) })
	const want = "time=2026-01-02T03:04:05.001Z level=INFO msg=request id=9 upstream=ollama method=GET status=200 outcome=ok " +
		"stream=false reused=false bytes_in=0 bytes_out=0 duration_ms=1.235\n"
	if out != want {
		t.Errorf("got  %s\nwant %s", out, want)
	}
}

// TestSecretsDoNotGetOut plants a secret in every place that takes a string, in
// the shapes in which apps send them.
func TestSecretsDoNotGetOut(t *testing.T) {
	const secret = "PLANTED"
	for name, make := range map[string]func(io.Writer) slog.Handler{"json": jsonHandler, "text": textHandler} {
		for _, shape := range []string{"Bearer sk-PLANTED", "key=PLANTED", "/v1/x?key=PLANTED", "PLANTED\nlevel=INFO", "{\"a\":\"PLANTED\"}",
			"sk-" + strings.Repeat("x", 60) + "PLANTED"} {
			out, _ := write(t, make, accesslog.Config{Sample: 1}, func(l *accesslog.Log) {
				v := reflect.ValueOf(&full).Elem()
				for i := range v.NumField() {
					if v.Field(i).Kind() != reflect.String {
						continue
					}
					r := full
					reflect.ValueOf(&r).Elem().Field(i).SetString(shape)
					l.Record(r)
				}
			})
			if lines := strings.Count(out, "\n"); lines != 9 {
				t.Errorf("%s: %d lines, want one for each of 9 fields:\n%s", name, lines, out)
			}
			if strings.Contains(out, secret) {
				t.Errorf("%s, %q: the log has the secret:\n%s", name, shape, out)
			}
		}
	}
	// What an app sends in any shape: its method and its trace id.
	out, _ := write(t, textHandler, accesslog.Config{}, func(l *accesslog.Log) {
		r := full
		r.Method, r.TraceID = secret, secret+strings.Repeat("0", 32-len(secret))
		l.Record(r)
	})
	if strings.Contains(out, secret) || !strings.Contains(out, "method=OTHER") {
		t.Errorf("the log has the secret: %s", out)
	}
}

// TestNoFieldForASecret keeps Record from getting a field that could hold what an
// app said.
func TestNoFieldForASecret(t *testing.T) {
	known := map[string]bool{"Upstream": true, "Mode": true, "Route": true, "Method": true, "ClientProtocol": true, "UpstreamProtocol": true,
		"Outcome": true, "Cause": true, "TraceID": true}
	for f := range reflect.TypeFor[accesslog.Record]().Fields() {
		switch f.Type.Kind() {
		case reflect.String:
			if !known[f.Name] {
				t.Errorf("field %s takes any text: is it a name from a closed set? Then list it here and plant a secret in it", f.Name)
			}
		case reflect.Slice, reflect.Map, reflect.Pointer, reflect.Interface:
			t.Errorf("field %s is a %s", f.Name, f.Type)
		}
	}
}

func TestWhatIsLogged(t *testing.T) {
	tests := []struct {
		name   string
		change func(*accesslog.Record)
		level  string // "" = not logged with sample 0
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
		{"no answer", func(r *accesslog.Record) { r.Outcome = "upstream_error" }, "WARN"},
		{"outcome is missing", func(r *accesslog.Record) { r.Outcome = "" }, "WARN"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := accesslog.Record{Outcome: "ok", Status: 200, Method: "GET"}
			tt.change(&r)
			out, l := write(t, textHandler, accesslog.Config{}, func(l *accesslog.Log) { l.Record(r) })
			if tt.level == "" && out != "" || tt.level != "" && !strings.Contains(out, "level="+tt.level+" ") {
				t.Errorf("got %q, want level %q", out, tt.level)
			}
			if l.Dropped() != 0 {
				t.Errorf("dropped %d", l.Dropped())
			}
			quiet := func(w io.Writer) slog.Handler {
				return slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelError})
			}
			if out, l := write(t, quiet, accesslog.Config{Sample: 1}, func(l *accesslog.Log) { l.Record(r) }); out != "" || l.Dropped() != 0 {
				t.Errorf("a handler for errors alone got %q; dropped %d", out, l.Dropped())
			}
		})
	}
}

func TestSampleDependsOnIDAlone(t *testing.T) {
	const n = 20000
	chosen := func(sample float64, set bool) string {
		cfg := accesslog.Config{Sample: sample, Capacity: n}
		if set {
			cfg.Sample = 0.5
		}
		out, _ := write(t, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, onlyID) }, cfg, func(l *accesslog.Log) {
			if set {
				if err := l.SetSample(sample); err != nil {
					t.Fatal(err)
				}
			}
			for id := range uint64(n) {
				l.Record(accesslog.Record{ID: id, Outcome: "ok", Status: 200})
			}
		})
		return out
	}
	for _, sample := range []float64{0, 0.01, 0.25, 1} {
		first := chosen(sample, false)
		got, want := strings.Count(first, "\n"), sample*n
		if math.Abs(float64(got)-want) > 4*math.Sqrt(want*(1-sample)) {
			t.Errorf("sample %v: %d of %d", sample, got, n)
		}
		if again := chosen(sample, true); again != first {
			t.Errorf("sample %v chose others after SetSample", sample)
		}
	}
}

var onlyID = &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
	if a.Key != "id" {
		return slog.Attr{}
	}
	return a
}}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []accesslog.Config{{Sample: -0.1}, {Sample: 1.1}, {Sample: math.NaN()}, {Capacity: -1}, {FlushTimeout: -1}} {
		if _, err := accesslog.New(slog.DiscardHandler, cfg); err == nil {
			t.Errorf("New took %+v", cfg)
		}
	}
	l, err := accesslog.New(slog.DiscardHandler, accesslog.Config{Sample: 1})
	if err != nil {
		t.Fatal(err)
	}
	if l.SetSample(2) == nil || l.SetSample(math.NaN()) == nil {
		t.Error("SetSample took a share above 1, or none")
	}
}

// A gate is a handler that waits until it is opened.
type gate struct {
	slog.Handler
	open    chan struct{}
	entered chan struct{} // one token for each write that waits
	lines   atomic.Int32
	fail    bool
}

func (g *gate) Handle(ctx context.Context, r slog.Record) error {
	g.entered <- struct{}{}
	<-g.open
	g.lines.Add(1)
	if g.fail {
		return errors.New("disk full")
	}
	return g.Handler.Handle(ctx, r)
}

// TestFullQueueDropsAndSaysSo: a log whose reader hangs takes no more than its
// capacity, blocks nobody, and tells how much was lost.
func TestFullQueueDropsAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		g := &gate{Handler: textHandler(&out), open: make(chan struct{}), entered: make(chan struct{}, 100)}
		l, err := accesslog.New(g, accesslog.Config{Sample: 1, Capacity: 10})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := start(func() error { return l.Run(ctx) })
		l.Record(full)
		<-g.entered // it hangs in the first write
		start := time.Now()
		for range 25 {
			l.Record(full)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("Record blocked for %v", took)
		}
		if got := l.Dropped(); got != 15 {
			t.Errorf("dropped %d, want 15", got)
		}
		close(g.open)
		synctest.Wait()
		if got := strings.Count(out.String(), "msg=request"); got != 11 {
			t.Errorf("%d lines, want 11", got)
		}
		if got := strings.Count(out.String(), "dropped=15"); got != 1 {
			t.Errorf("told %d times of the loss:\n%s", got, out.String())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if l.Record(full); l.Dropped() != 16 {
			t.Errorf("after the end: dropped %d, want 16", l.Dropped())
		}
	})
}

// TestEndIsBounded: a reader of the log that hangs does not hold up the exit.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{Handler: textHandler(io.Discard), open: make(chan struct{}), entered: make(chan struct{}, 100)}
		l, err := accesslog.New(g, accesslog.Config{Sample: 1, FlushTimeout: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := start(func() error { return l.Run(ctx) })
		for range 5 {
			l.Record(full)
		}
		<-g.entered
		start := time.Now()
		cancel()
		if err := <-ended; !errors.Is(err, accesslog.ErrFlush) {
			t.Errorf("Run = %v, want ErrFlush", err)
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("Run took %v to give up, want 3s", took)
		}
		close(g.open) // the write comes back: the goroutine ends without writing the rest
		synctest.Wait()
		if got := g.lines.Load(); got != 1 {
			t.Errorf("%d lines, want the one that hung", got)
		}
		if got := l.Dropped(); got != 4 {
			t.Errorf("dropped %d, want 4", got)
		}
	})
}

func TestFailedWritesAreCounted(t *testing.T) {
	g := &gate{Handler: textHandler(io.Discard), open: make(chan struct{}), entered: make(chan struct{}, 100), fail: true}
	close(g.open)
	_, l := write(t, func(io.Writer) slog.Handler { return g }, accesslog.Config{}, func(l *accesslog.Log) { l.Record(full); l.Record(full) })
	if got := l.Dropped(); got != 2 {
		t.Errorf("dropped %d, want 2", got)
	}
}

// TestCrowd: what is not dropped is written, once each.
func TestCrowd(t *testing.T) {
	const writers, each = 8, 2000
	out, l := write(t, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, onlyID) },
		accesslog.Config{Sample: 1, Capacity: writers * each}, func(l *accesslog.Log) {
			var wg sync.WaitGroup
			for w := range uint64(writers) {
				wg.Go(func() {
					for i := range uint64(each) {
						l.Record(accesslog.Record{ID: w*each + i, Outcome: "ok"})
					}
				})
			}
			wg.Wait()
		})
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		if seen[line] {
			t.Fatalf("%q twice", line)
		}
		seen[line] = true
	}
	if len(seen) != writers*each || l.Dropped() != 0 {
		t.Errorf("%d lines of %d, dropped %d", len(seen), writers*each, l.Dropped())
	}
}

// A counting handler takes everything at once.
type counting struct {
	slog.Handler
	lines atomic.Int64
}

func (c *counting) Enabled(context.Context, slog.Level) bool  { return true }
func (c *counting) Handle(context.Context, slog.Record) error { c.lines.Add(1); return nil }

// BenchmarkRecord is what a request pays. "queued" has a writer that keeps up,
// "growing" fills an empty queue to its end, whose memory is new each time, and
// "overrun" has a writer that cannot keep up.
func BenchmarkRecord(b *testing.B) {
	ok := full
	ok.Outcome, ok.Cause = "ok", ""
	newLog := func(b *testing.B, sample float64) *accesslog.Log {
		l, err := accesslog.New(textHandler(io.Discard), accesslog.Config{Sample: sample})
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	b.Run("queued", func(b *testing.B) {
		b.ReportAllocs()
		c := &counting{}
		l, err := accesslog.New(c, accesslog.Config{Sample: 1})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := start(func() error { return l.Run(ctx) })
		n := int64(0)
		for b.Loop() {
			ok.ID++
			l.Record(ok)
			if n++; n%128 == 0 {
				b.StopTimer()
				for c.lines.Load() < n {
					runtime.Gosched()
				}
				b.StartTimer()
			}
		}
		cancel()
		if err := <-ended; err != nil || l.Dropped() > 0 {
			b.Errorf("Run = %v, dropped %d", err, l.Dropped())
		}
	})
	b.Run("growing", func(b *testing.B) {
		b.ReportAllocs()
		l := newLog(b, 1)
		for b.Loop() {
			if ok.ID++; ok.ID%4096 == 0 {
				l = newLog(b, 1)
			}
			l.Record(ok)
		}
	})
	b.Run("not sampled", func(b *testing.B) {
		b.ReportAllocs()
		l := newLog(b, 0)
		for b.Loop() {
			ok.ID++
			l.Record(ok)
		}
	})
	b.Run("overrun", func(b *testing.B) {
		b.ReportAllocs()
		l := newLog(b, 1)
		ctx, cancel := context.WithCancel(b.Context())
		ended := start(func() error { return l.Run(ctx) })
		for b.Loop() {
			ok.ID++
			l.Record(ok)
		}
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(b.N)-float64(l.Dropped()), "written")
	})
}
