// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/warmwire/warmwire/internal/otlp"
)

// export sends requests and returns their spans as a collector sees them.
func export(t *testing.T, settings Settings, requests ...*Request) (spans []*trace.Span, resource map[string]string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		settings.Target, settings.Traces, settings.Upstreams = c.target(otlp.Protobuf), true, upstreams
		r := run(t, settings)
		for _, req := range requests {
			r.Done(req)
		}
		r.stop()
		for _, rs := range c.spans {
			resource = shown(rs.Resource.Attributes)
			for _, ss := range rs.ScopeSpans {
				spans = append(spans, ss.Spans...)
			}
		}
	})
	return spans, resource
}

// shown writes attributes as text.
func shown(attrs []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range attrs {
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			m[kv.Key] = fmt.Sprint(v.IntValue)
		case *common.AnyValue_DoubleValue:
			m[kv.Key] = fmt.Sprint(v.DoubleValue)
		case *common.AnyValue_BoolValue:
			m[kv.Key] = fmt.Sprint(v.BoolValue)
		}
	}
	return m
}

func wantAttrs(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if w, ok := want[k]; !ok || w != got[k] {
			t.Errorf("%s: %s is %q, want %q", what, k, got[k], w)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[k]; !ok {
			t.Errorf("%s: %s is missing", what, k)
		}
	}
}

// TestASpan: every field of a traced request.
func TestASpan(t *testing.T) {
	spans, resource := export(t, Settings{Resource: []otlp.Attr{otlp.String("deployment.environment.name", "test"), otlp.String("service.name", "gate")}}, traced())
	if len(spans) != 1 {
		t.Fatalf("%d spans", len(spans))
	}
	got := spans[0]
	if hex.EncodeToString(got.TraceId) != traceID || hex.EncodeToString(got.ParentSpanId) != parent || hex.EncodeToString(got.SpanId) != ours || got.TraceState != "" || got.Flags != 0x301 {
		t.Errorf("ids of %v", got)
	}
	begun := uint64(time.Date(2026, 12, 2, 10, 0, 0, 0, time.UTC).UnixNano())
	if got.Name != "chat" || got.Kind != trace.Span_SPAN_KIND_CLIENT || got.StartTimeUnixNano != begun || got.EndTimeUnixNano != begun+3e9 || got.Status != nil {
		t.Errorf("span %v", got)
	}
	var events []string
	for _, e := range got.Events {
		events = append(events, fmt.Sprint(e.Name, " ", time.Duration(e.TimeUnixNano-begun)))
	}
	if want := []string{"warmwire.response_head 1s", "warmwire.first_token 1.5s", "warmwire.last_token 2.5s"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	wantAttrs(t, "span", shown(got.Attributes), map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.stream": "true",
		"gen_ai.usage.input_tokens": "16", "gen_ai.usage.output_tokens": "17", "gen_ai.response.time_to_first_chunk": "1.5",
		"server.address": "api.openai.com", "server.port": "443", "http.request.method": "POST", "http.response.status_code": "200",
		"network.protocol.name": "http", "network.protocol.version": "2",
		"warmwire.request.id": "71", "warmwire.upstream": "openai", "warmwire.mode": "base_url", "warmwire.outcome": "ok", "warmwire.connection.reused": "true",
		"warmwire.chunks": "5", "warmwire.phase.send": "0.5", "warmwire.phase.wait": "0.5", "warmwire.part.provider": "2",
	})
	id := resource["service.instance.id"]
	delete(resource, "service.instance.id")
	wantAttrs(t, "resource", resource, map[string]string{"service.name": "gate", "service.version": "v1", "deployment.environment.name": "test"})
	if len(id) != 36 || id[14] != '4' {
		t.Errorf("service.instance.id is %q", id)
	}
}

// TestErrorsOfSpans: what counts as one, and what it is called.
func TestErrorsOfSpans(t *testing.T) {
	for _, tt := range []struct {
		name           string
		outcome, cause string
		status         int
		want           string // error.type; "" = no error
	}{
		{"fine", "ok", "", 200, ""},
		{"too many requests", "ok", "", 429, "429"},
		{"no connection", "upstream_error", "upstream_connect_timeout", 504, "upstream_connect_timeout"},
		{"an error in the stream", "ok", "error_event", 200, "error_event"},
		{"a cut", "cut_upstream", "upstream_reset", 200, "upstream_reset"},
		{"a cut without a cause", "cut_warmwire", "", 200, "cut_warmwire"},
		{"refused", "refused", "quota_requests", 429, "quota_requests"},
		{"the app left", "cut_app", "app_left", 200, ""},
	} {
		r := traced()
		r.Outcome, r.Cause, r.Status = tt.outcome, tt.cause, tt.status
		spans, _ := export(t, Settings{}, r)
		got := shown(spans[0].Attributes)["error.type"]
		if got != tt.want || (spans[0].GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR) != (tt.want != "") {
			t.Errorf("%s: error.type %q, status %v", tt.name, got, spans[0].Status)
		}
	}
}

// TestWhoIsTraced: the app decides about its traces, the share about those without one.
func TestWhoIsTraced(t *testing.T) {
	for _, tt := range []struct {
		name   string
		trace  Trace
		sample float64
		want   bool
	}{
		{"the app records it", Trace{traceID, parent, ours, 1}, 0, true},
		{"the app does not", Trace{traceID, parent, "", 2}, 1, false},
		{"no trace, no share", Trace{}, 0, false},
		{"no trace, all of them", Trace{}, 1, true},
		{"the operator's own traceparent", Trace{traceID, parent, "", 1}, 0, true},
	} {
		r := traced()
		r.Trace = tt.trace
		spans, _ := export(t, Settings{Sample: tt.sample}, r)
		if (len(spans) == 1) != tt.want {
			t.Errorf("%s: %d spans", tt.name, len(spans))
			continue
		}
		if !tt.want {
			continue
		}
		span := spans[0]
		if len(span.SpanId) != 8 || len(span.TraceId) != 16 {
			t.Errorf("%s: %v", tt.name, span)
		}
		if root := tt.trace.ID == ""; root && (len(span.ParentSpanId) != 0 || span.Flags != 0x103 || span.TraceState != "ot=th:0") {
			t.Errorf("%s: %v", tt.name, span)
		}
	}
}

// TestTheShareIsKept, and is what OpenTelemetry's samplers would keep of the same ids.
func TestTheShareIsKept(t *testing.T) {
	for _, tt := range []struct {
		share     float64
		state     string
		last, out string // ids' last 14 digits: the first that is kept, and one less
	}{
		{0.5, "ot=th:8", "80000000000000", "7fffffffffffff"},
		{0.25, "ot=th:c", "c0000000000000", "bfffffffffffff"},
		{1, "ot=th:0", "00000000000000", ""},
	} {
		sampler := newSampler(tt.share)
		pad := strings.Repeat("a", 18)
		if sampler.state != tt.state || !sampler.keeps(pad+tt.last) || tt.out != "" && sampler.keeps(pad+tt.out) {
			t.Errorf("share %v: %+v", tt.share, sampler)
		}
	}
	kept := 0
	sampler := newSampler(0.1)
	for range 10_000 {
		q := queued{}
		if q.join(sampler) {
			kept++
		}
	}
	if sd := math.Sqrt(10_000 * 0.1 * 0.9); math.Abs(float64(kept)-1000) > 6*sd {
		t.Errorf("%d of 10000 are kept, want 1000", kept)
	}
	if newSampler(0).keeps(traceID) {
		t.Error("a share of 0 keeps one")
	}
}

// TestNothingOfTheAppIsInASpan plants a secret in every text that an app could choose.
func TestNothingOfTheAppIsInASpan(t *testing.T) {
	r := traced()
	r.Method = "PLANTED"
	r.Operation = ""
	r.Trace = Trace{ID: traceID, Parent: parent, Flags: 1}
	spans, _ := export(t, Settings{}, r)
	if text := spans[0].String(); strings.Contains(text, "PLANTED") || spans[0].Name != "HTTP" || shown(spans[0].Attributes)["http.request.method"] != "_OTHER" {
		t.Errorf("%s", text)
	}
}

// TestUnknownPlacesAreLeftOut: what is not known is not said.
func TestUnknownPlacesAreLeftOut(t *testing.T) {
	many, gone := traced(), traced()
	many.Upstream, many.Attempts, many.Protocol = "pool", 3, ""
	gone.Upstream, gone.Operation, gone.Method, gone.Status = "gone", "", "GET", 0
	spans, _ := export(t, Settings{}, many, gone)
	attrs := shown(spans[0].Attributes)
	if _, ok := attrs["server.address"]; ok || attrs["gen_ai.provider.name"] != "anthropic" || attrs["http.request.resend_count"] != "2" || attrs["network.protocol.name"] != "" {
		t.Errorf("several endpoints: %v", attrs)
	}
	attrs = shown(spans[1].Attributes)
	if _, ok := attrs["gen_ai.operation.name"]; ok || spans[1].Name != "GET" || attrs["http.response.status_code"] != "" || attrs["server.port"] != "" {
		t.Errorf("an upstream that has gone: %s %v", spans[1].Name, attrs)
	}
}
