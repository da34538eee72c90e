// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	collectormetrics "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/warmwire/warmwire/internal/otlp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const s = time.Second

// A collector is a server in memory that reads messages with the schema's own code.
type collector struct {
	t *testing.T
	// answer is given the attempts in order, from 0; nil = all are taken.
	answer func(attempt int, r *http.Request) (*http.Response, error)

	mu       sync.Mutex // guards the fields below
	begun    time.Time
	attempts []time.Duration // when each began
	batches  []int           // spans of each message that was taken
	spans    []*trace.ResourceSpans
	metrics  []*metrics.ResourceMetrics
	raw      []string
}

func newCollector(t *testing.T) *collector { return &collector{t: t, begun: time.Now()} }

func status(code int, fields ...string) (*http.Response, error) {
	h := http.Header{}
	for i := 0; i+1 < len(fields); i += 2 {
		h.Set(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: code, Header: h, Body: http.NoBody}, nil
}

// hang answers nothing for as long as anybody waits.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

func (c *collector) RoundTrip(r *http.Request) (*http.Response, error) {
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	n := len(c.attempts)
	c.attempts = append(c.attempts, time.Since(c.begun))
	c.raw = append(c.raw, string(body))
	c.mu.Unlock()
	resp, err := status(200)
	if c.answer != nil {
		resp, err = c.answer(n, r)
	}
	if err != nil || resp.StatusCode != 200 || r.Header.Get("Content-Type") != "application/x-protobuf" {
		return resp, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, "/v1/traces"):
		var m collectortrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &m); err != nil {
			c.t.Error(err)
		}
		c.spans = append(c.spans, m.ResourceSpans...)
		c.batches = append(c.batches, len(m.ResourceSpans[0].ScopeSpans[0].Spans))
	case strings.HasSuffix(r.URL.Path, "/v1/metrics"):
		var m collectormetrics.ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &m); err != nil {
			c.t.Error(err)
		}
		c.metrics = append(c.metrics, m.ResourceMetrics...)
	default:
		c.t.Errorf("a message to %s", r.URL.Path)
	}
	return resp, nil
}

func (c *collector) target(encoding otlp.Encoding) *otlp.Target {
	c.t.Helper()
	target, err := otlp.New(c, otlp.Config{Endpoint: &url.URL{Scheme: "http", Host: "collector:4318"}, Encoding: encoding})
	if err != nil {
		c.t.Fatal(err)
	}
	return target
}

// A ledger keeps what an exporter reports.
type ledger struct {
	mu    sync.Mutex // guards spans and sends
	spans map[Outcome]int
	sends map[Outcome]int
}

func (l *ledger) report(r Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Outcome == Retried || r.Signal == otlp.Metrics {
		l.sends[r.Outcome]++
	}
	l.spans[r.Outcome] += r.Spans
}

// A purse is a budget that counts.
type purse struct {
	mu        sync.Mutex // guards the fields below
	room      int64
	used, max int64
}

func (p *purse) Take(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used+n > p.room {
		return false
	}
	p.used += n
	p.max = max(p.max, p.used)
	return true
}

func (p *purse) Give(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
}

// A rig is an exporter that runs.
type rig struct {
	*Exporter
	ledger *ledger
	purse  *purse
	stop   func() time.Duration // ends it, and returns how long that took
}

// run starts an exporter in a bubble of the fake clock, without jitter.
func run(t *testing.T, settings Settings) *rig {
	t.Helper()
	r := &rig{ledger: &ledger{spans: map[Outcome]int{}, sends: map[Outcome]int{}}, purse: &purse{room: 1 << 30}}
	x, err := New(Config{Version: "v1", Budget: r.purse, Report: r.ledger.report, Jitter: func() float64 { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Update(settings); err != nil {
		t.Fatal(err)
	}
	r.Exporter = x
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	r.stop = sync.OnceValue(func() time.Duration {
		cancel()
		begun := time.Now()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r.purse.used != 0 {
			t.Errorf("%d bytes of the budget are not given back", r.purse.used)
		}
		return time.Since(begun)
	})
	return r
}

var errReset = errors.New("connection reset")

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent  = "00f067aa0ba902b7"
	ours    = "b7ad6b7169203331"
)

var upstreams = map[string]Upstream{"openai": {"openai", "api.openai.com", 443}, "pool": {Provider: "anthropic"}}

// traced is a streamed answer in a trace that its app records.
func traced() *Request {
	return &Request{
		ID: 71, Start: time.Date(2026, 12, 2, 10, 0, 0, 0, time.UTC), Duration: 3 * s, Upstream: "openai", Mode: "base_url", Method: "POST", Protocol: "HTTP/2.0",
		Operation: "chat", Status: 200, Outcome: "ok", Trace: Trace{traceID, parent, ours, 1}, Stages: [stages]time.Duration{Send: s / 2, Wait: s / 2, Provider: 2 * s},
		TTFT: 1500 * time.Millisecond, Tokens: s, Chunks: 5, Gaps: [gaps + 1]uint32{4: 3, 6: 1}, InputTokens: 16, OutputTokens: 17, Attempts: 1, Stream: true, Reused: true,
	}
}

// answerOf is an answer in protobuf.
func answerOf(body []byte) *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/x-protobuf"}}, Body: io.NopCloser(strings.NewReader(string(body)))}
}

func mustURL(raw string) *url.URL {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	return u
}
