// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"google.golang.org/protobuf/proto"

	collectormetrics "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
)

// A collector is a server that reads OTLP with the schema's own code.
type collector struct {
	*httptest.Server
	mu      sync.Mutex // guards the fields below
	spans   []*trace.Span
	metrics map[string]*metrics.Metric
	raw     strings.Builder // all that was sent, heads among it
	header  http.Header     // of the last message
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{metrics: map[string]*metrics.Metric{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		if err != nil {
			t.Error(err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.header = r.Header.Clone()
		fmt.Fprintf(&c.raw, "%s %v\n%s\n", r.URL, r.Header, body)
		switch r.URL.Path {
		case "/v1/traces":
			var m collectortrace.ExportTraceServiceRequest
			if err := proto.Unmarshal(body, &m); err != nil {
				t.Error(err)
			}
			c.spans = append(c.spans, m.ResourceSpans[0].ScopeSpans[0].Spans...)
		case "/v1/metrics":
			var m collectormetrics.ExportMetricsServiceRequest
			if err := proto.Unmarshal(body, &m); err != nil {
				t.Error(err)
			}
			for _, metric := range m.ResourceMetrics[0].ScopeMetrics[0].Metrics {
				c.metrics[metric.Name] = metric
			}
		default:
			t.Errorf("a message to %s", r.URL.Path)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// value is an attribute of a span as text; "" = there is none.
func value(s *trace.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return strings.Trim(a.Value.String()[strings.Index(a.Value.String(), ":")+1:], `"`)
		}
	}
	return ""
}

const (
	appTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	appSpan  = "00f067aa0ba902b7"
)

// TestTracesAreContinued: what the upstream is told of the trace, and what the collector,
// for every kind of app.
func TestTracesAreContinued(t *testing.T) {
	for _, tt := range []struct {
		name   string
		send   []string // lines
		more   string   // settings of telemetry.otlp
		exact  bool     // the upstream gets what the app sent, octet for octet
		traced bool     // there is a span
	}{
		{name: "recorded", send: []string{"Traceparent: 00-" + appTrace + "-" + appSpan + "-01", "Tracestate: a=b", "Tracestate: c@d=e f"}, traced: true},
		{name: "of a later version", send: []string{"Traceparent: cc-" + appTrace + "-" + appSpan + "-03-more"}, traced: true},
		{name: "not recorded", send: []string{"Traceparent: 00-" + appTrace + "-" + appSpan + "-00", "Tracestate: a=b"}, more: ", sample: 1", exact: true},
		{name: "recorded, but traces are off", send: []string{"Traceparent: 00-" + appTrace + "-" + appSpan + "-01"}, more: ", traces: false", exact: true},
		{name: "none, and a share of none", more: ", sample: 0", exact: true},
		{name: "none, and a share of all", more: ", sample: 1", exact: true, traced: true},
		{name: "none that is one", send: []string{"Traceparent: 00-PLANTED"}, more: ", sample: 1", exact: true, traced: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up, heads := answering(t, okAnswer)
			c := newCollector(t)
			r := start(t, up, "telemetry: {otlp: {endpoint: '"+c.URL+"', headers: {Api-Key: s3cret-of-the-collector}"+tt.more+"}}\n")
			w := r.dial()
			w.Send("GET /up/v1/models/PLANTED?key=PLANTED HTTP/1.1\nHost: " + r.addr + "\nAuthorization: Bearer PLANTED\n" + strings.Join(append(tt.send, "X-Last: PLANTED", "\n"), "\n"))
			if head := w.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
				t.Fatalf("answer %q", head)
			}
			var got []string
			parent := ""
			for line := range strings.Lines(<-heads) {
				line = strings.TrimSpace(line)
				if v, ok := strings.CutPrefix(line, "Traceparent: "); ok {
					parent = v
				}
				if strings.HasPrefix(line, "Trace") {
					got = append(got, line)
				}
			}
			r.stop() // which sends what waits
			if len(got) != len(tt.send) {
				t.Errorf("the upstream got %q, the app sent %q", got, tt.send)
			}
			if (len(c.spans) == 1) != tt.traced {
				t.Fatalf("%d spans", len(c.spans))
			}
			for _, line := range tt.send {
				if has := strings.Contains(strings.Join(got, "\n")+"\n", line+"\n"); !has && (tt.exact || strings.HasPrefix(line, "Tracestate")) {
					t.Errorf("the upstream got %q, want %q in it", got, line)
				}
			}
			if raw := c.raw.String(); strings.Contains(raw, "PLANTED") || tt.traced && c.header.Get("Api-Key") != "s3cret-of-the-collector" {
				t.Errorf("the collector got %q", raw)
			}
			if strings.Contains(r.log.String(), "s3cret") {
				t.Error("the log has the collector's key")
			}
			if !tt.traced {
				return
			}
			span := c.spans[0]
			if value(span, "http.response.status_code") != "200" || value(span, "warmwire.upstream") != "up" || value(span, "server.address") != "127.0.0.1" || span.Name != "GET" {
				t.Errorf("%v", span)
			}
			if tt.exact {
				if len(span.ParentSpanId) != 0 || hex.EncodeToString(span.TraceId) == appTrace {
					t.Errorf("a trace of its own has a parent: %v", span)
				}
				return
			}
			flags := map[bool]string{true: "03", false: "01"}[strings.Contains(tt.send[0], "-03")]
			if want := "00-" + appTrace + "-" + hex.EncodeToString(span.SpanId) + "-" + flags; parent != want || hex.EncodeToString(span.TraceId) != appTrace || hex.EncodeToString(span.ParentSpanId) != appSpan {
				t.Errorf("the upstream was told %q, want %q; the span is %v", parent, want, span)
			}
		})
	}
}

const tokens = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// TestACallOfAModelIsMeasured: the GenAI names, from the usage in the stream to the
// collector, with secrets in every place where an app puts them.
func TestACallOfAModelIsMeasured(t *testing.T) {
	event := func(s string) string { return chunk("data: " + s + "\n\n") }
	up, _ := answering(t, tokens+event(`{"model":"PLANTED","choices":[{"index":0,"delta":{"content":"PLANTED"}}]}`)+event(`{"choices":[{"index":0,"delta":{"content":"b"}}]}`)+
		event(`{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2}}`)+event("[DONE]")+"0\r\n\r\n")
	c := newCollector(t)
	r := start(t, up, "upstreams: {up: {url: 'http://UPSTREAM', dialect: openai}}\ntelemetry: {otlp: {endpoint: '"+c.URL+"', sample: 1}}\n")
	req, err := http.NewRequest("POST", "http://"+r.addr+"/up/v1/chat/completions?key=PLANTED", strings.NewReader(`{"model":"PLANTED","messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer PLANTED")
	if code, _ := r.do(req); code != 200 {
		t.Fatalf("status %d", code)
	}
	r.stop()
	if len(c.spans) != 1 {
		t.Fatalf("%d spans", len(c.spans))
	}
	span := c.spans[0]
	for key, want := range map[string]string{"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.usage.input_tokens": "11", "gen_ai.usage.output_tokens": "2",
		"gen_ai.request.stream": "true", "http.request.method": "POST", "warmwire.chunks": "2"} {
		if got := value(span, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if span.Name != "chat" || len(span.Events) < 2 {
		t.Errorf("%v", span)
	}
	for name, points := range map[string]int{"gen_ai.client.operation.duration": 1, "gen_ai.client.operation.time_to_first_chunk": 1,
		"gen_ai.client.operation.time_per_output_chunk": 1, "gen_ai.client.token.usage": 2} {
		if m := c.metrics[name]; m == nil || len(m.GetHistogram().GetDataPoints()) != points {
			t.Errorf("%s: %v", name, m)
		}
	}
	if strings.Contains(c.raw.String(), "PLANTED") {
		t.Errorf("what the app sent is exported: %q", c.raw.String())
	}
}

// TestAHostileCollectorIsNobodysTrouble: requests are served while it takes connections and
// says nothing; a reload takes what waits to one that works; the page tells of it, and
// exemplars lead to the trace.
func TestAHostileCollectorIsNobodysTrouble(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	t.Cleanup(api.Close)
	up := strings.TrimPrefix(api.URL, "http://")
	asked := make(chan struct{}, 100)
	hostile := testenv.ServeRaw(t, func(w *testenv.Raw) {
		if w.Head() != "" {
			asked <- struct{}{}
			_, _ = io.Copy(io.Discard, w.In)
		}
	})
	settings := "telemetry: {otlp: {endpoint: 'http://%s', sample: 1, timeout: 1m}}\n"
	r := start(t, up, fmt.Sprintf(settings, hostile))
	for range 600 { // more than a batch
		if code, _ := r.call("/up/v1/models"); code != 200 {
			t.Fatalf("status %d", code)
		}
	}
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("the collector was not asked")
	}
	if code, _ := r.call("/up/v1/models"); code != 200 {
		t.Errorf("status %d while the collector hangs", code)
	}
	c := newCollector(t)
	r.write(up, fmt.Sprintf(settings, strings.TrimPrefix(c.URL, "http://")))
	if code, body := r.post("/v1/reload"); code/100 != 2 {
		t.Fatalf("reload: %d %s", code, body)
	}
	r.metric(`warmwire_otlp_spans_total{result="exported"} 512`)
	if page := r.get("/metrics"); strings.Contains(page, `warmwire_otlp_spans_total{result="dropped"}`) {
		t.Errorf("spans were dropped")
	}
	r.stop()
	if n := len(c.spans); n != 601 {
		t.Errorf("%d spans came to the second collector, want 601", n)
	}
}

// TestTheCollectorsKeyIsNotShown anywhere an operator looks.
func TestTheCollectorsKeyIsNotShown(t *testing.T) {
	up, _ := answering(t, okAnswer)
	r := start(t, up, "telemetry: {otlp: {endpoint: 'http://127.0.0.1:9', headers: {Api-Key: s3cret-of-the-collector}, sample: 1}}\n")
	r.call("/up/v1/models")
	for _, path := range []string{"/v1/status", "/v1/settings", "/metrics"} {
		if strings.Contains(r.get(path), "s3cret") {
			t.Errorf("%s shows it", path)
		}
	}
	r.stop()
	if strings.Contains(r.log.String(), "s3cret") {
		t.Errorf("the log has it: %s", r.log)
	}
	if !strings.Contains(r.log.String(), "telemetry is not taken by the collector") {
		t.Error("the log does not say that the collector cannot be reached")
	}
}
