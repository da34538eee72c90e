// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collectormetrics "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

var (
	start  = time.Unix(1764633600, 123456789)
	source = &Source{
		Resource: []Attr{String("service.name", "warmwire"), String("host.name", `a "b" \ `+"\n\x01\u2028é")},
		Scope:    "github.com/warmwire/warmwire", Version: "v1", SchemaURL: "https://opentelemetry.io/schemas/1.41.0",
	}
	spans = []Span{
		{
			TraceID: []byte("0123456789abcdef"), SpanID: []byte("01234567"), Parent: []byte("89abcdef"), TraceState: "ot=th:8", Flags: 0x301,
			Name: "chat", Kind: KindClient, Start: start, End: start.Add(time.Second), Status: StatusError,
			Attrs:  []Attr{String("empty", ""), Int("zero", 0), Int("negative", -5), Int("large", 1<<62), Seconds("nothing", 0), Seconds("s", 1500*time.Millisecond), Bool("no", false), Bool("yes", true)},
			Events: []Event{{start.Add(time.Millisecond), "first"}, {start.Add(time.Minute), "second"}},
		},
		{TraceID: bytes.Repeat([]byte{255}, 16), SpanID: bytes.Repeat([]byte{254}, 8), Name: "GET", Kind: KindClient, Start: start, End: start},
	}
	histograms = []Metric{
		{Name: "gen_ai.client.operation.duration", Description: "d", Unit: "s", Bounds: []float64{0.01, 81.92},
			Points: []Point{
				{Attrs: []Attr{String("a", "b")}, Start: start, Time: start.Add(time.Minute), Sum: 90.5, Counts: []uint64{1, 0, 1 << 40}},
				{Start: start, Time: start.Add(time.Minute), Counts: []uint64{0, 0, 0}},
			}},
		{Name: "empty", Unit: "{token}", Bounds: []float64{1}},
	}
)

func wantSpans() *collectortrace.ExportTraceServiceRequest {
	str := func(k, v string) *common.KeyValue {
		return &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: v}}}
	}
	num := func(k string, v int64) *common.KeyValue {
		return &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v}}}
	}
	real := func(k string, v float64) *common.KeyValue {
		return &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: v}}}
	}
	boolean := func(k string, v bool) *common.KeyValue {
		return &common.KeyValue{Key: k, Value: &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v}}}
	}
	const at = 1764633600123456789
	return &collectortrace.ExportTraceServiceRequest{ResourceSpans: []*trace.ResourceSpans{{
		Resource:  &resource.Resource{Attributes: []*common.KeyValue{str("service.name", "warmwire"), str("host.name", `a "b" \ `+"\n\x01\u2028é")}},
		SchemaUrl: "https://opentelemetry.io/schemas/1.41.0",
		ScopeSpans: []*trace.ScopeSpans{{
			Scope:     &common.InstrumentationScope{Name: "github.com/warmwire/warmwire", Version: "v1"},
			SchemaUrl: "https://opentelemetry.io/schemas/1.41.0",
			Spans: []*trace.Span{
				{TraceId: []byte("0123456789abcdef"), SpanId: []byte("01234567"), ParentSpanId: []byte("89abcdef"), TraceState: "ot=th:8", Flags: 0x301,
					Name: "chat", Kind: trace.Span_SPAN_KIND_CLIENT, StartTimeUnixNano: at, EndTimeUnixNano: at + 1e9,
					Status: &trace.Status{Code: trace.Status_STATUS_CODE_ERROR},
					Attributes: []*common.KeyValue{str("empty", ""), num("zero", 0), num("negative", -5), num("large", 1<<62), real("nothing", 0), real("s", 1.5),
						boolean("no", false), boolean("yes", true)},
					Events: []*trace.Span_Event{{TimeUnixNano: at + 1e6, Name: "first"}, {TimeUnixNano: at + 60e9, Name: "second"}}},
				{TraceId: bytes.Repeat([]byte{255}, 16), SpanId: bytes.Repeat([]byte{254}, 8), Name: "GET", Kind: trace.Span_SPAN_KIND_CLIENT,
					StartTimeUnixNano: at, EndTimeUnixNano: at},
			},
		}},
	}}}
}

func wantMetrics() *collectormetrics.ExportMetricsServiceRequest {
	const at = 1764633600123456789
	sum, none := 90.5, 0.0
	point := func(attrs []*common.KeyValue, sum *float64, counts ...uint64) *metrics.HistogramDataPoint {
		p := &metrics.HistogramDataPoint{Attributes: attrs, StartTimeUnixNano: at, TimeUnixNano: at + 60e9, Sum: sum, BucketCounts: counts, ExplicitBounds: []float64{0.01, 81.92}}
		for _, n := range counts {
			p.Count += n
		}
		return p
	}
	all := wantSpans().ResourceSpans[0]
	return &collectormetrics.ExportMetricsServiceRequest{ResourceMetrics: []*metrics.ResourceMetrics{{
		Resource: all.Resource, SchemaUrl: all.SchemaUrl,
		ScopeMetrics: []*metrics.ScopeMetrics{{Scope: all.ScopeSpans[0].Scope, SchemaUrl: all.SchemaUrl, Metrics: []*metrics.Metric{
			{Name: "gen_ai.client.operation.duration", Description: "d", Unit: "s", Data: &metrics.Metric_Histogram{Histogram: &metrics.Histogram{
				AggregationTemporality: metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE,
				DataPoints: []*metrics.HistogramDataPoint{
					point([]*common.KeyValue{{Key: "a", Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: "b"}}}}, &sum, 1, 0, 1<<40),
					point(nil, &none, 0, 0, 0),
				}}}},
			{Name: "empty", Unit: "{token}", Data: &metrics.Metric_Histogram{Histogram: &metrics.Histogram{
				AggregationTemporality: metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}}},
		}}},
	}}}
}

// decode reads a message as the schema's own generated code does. In JSON the ids are
// hex, which protobuf's mapping does not know (OTLP §JSON Protobuf Encoding).
func decode(t *testing.T, encoding Encoding, message []byte, into proto.Message) {
	t.Helper()
	if encoding == Protobuf {
		if err := proto.Unmarshal(message, into); err != nil {
			t.Fatal(err)
		}
		return
	}
	var tree any
	if err := json.Unmarshal(message, &tree); err != nil {
		t.Fatalf("%v: %s", err, message)
	}
	text, err := json.Marshal(idsInBase64(t, tree))
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(text, into); err != nil { // unknown names are errors
		t.Fatalf("%v: %s", err, message)
	}
}

func idsInBase64(t *testing.T, tree any) any {
	switch v := tree.(type) {
	case map[string]any:
		for name, child := range v {
			switch name {
			case "traceId", "spanId", "parentSpanId":
				id, err := hex.DecodeString(child.(string))
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				v[name] = base64.StdEncoding.EncodeToString(id)
			case "kind", "code", "aggregationTemporality", "flags":
				if _, ok := child.(float64); !ok { // numbers, not names
					t.Errorf("%s is %v", name, child)
				}
			case "intValue", "startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "count":
				if _, ok := child.(string); !ok {
					t.Errorf("%s is %v, want text", name, child)
				}
			default:
				v[name] = idsInBase64(t, child)
			}
		}
	case []any:
		for i := range v {
			v[i] = idsInBase64(t, v[i])
		}
	}
	return tree
}

// TestTheSchemaReadsWhatIsWritten decodes both encodings with the code that OpenTelemetry
// generates from its schema.
func TestTheSchemaReadsWhatIsWritten(t *testing.T) {
	for name, encoding := range map[string]Encoding{"protobuf": Protobuf, "json": JSON} {
		t.Run(name, func(t *testing.T) {
			gotSpans := new(collectortrace.ExportTraceServiceRequest)
			decode(t, encoding, EncodeSpans(encoding, source, spans), gotSpans)
			if diff := cmp.Diff(wantSpans(), gotSpans, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			gotMetrics := new(collectormetrics.ExportMetricsServiceRequest)
			decode(t, encoding, EncodeMetrics(encoding, source, histograms), gotMetrics)
			if diff := cmp.Diff(wantMetrics(), gotMetrics, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzEncode: whatever text is in an attribute, both encodings can be read and say the
// same.
func FuzzEncode(f *testing.F) {
	f.Add("key", "value", int64(1), int64(5))
	f.Add("\xff\x00\"", "\\\u2028\x7f", int64(-1), int64(-1))
	f.Fuzz(func(t *testing.T, key, value string, n, wait int64) {
		one := []Span{{TraceID: []byte("0123456789abcdef"), SpanID: []byte("01234567"), Name: value, Start: time.Unix(0, n), End: time.Unix(n, wait),
			Attrs: []Attr{String(key, value), Int(value, n), Seconds(key, time.Duration(wait))}}}
		inProtobuf, inJSON := new(collectortrace.ExportTraceServiceRequest), new(collectortrace.ExportTraceServiceRequest)
		decode(t, Protobuf, EncodeSpans(Protobuf, source, one), inProtobuf)
		decode(t, JSON, EncodeSpans(JSON, source, one), inJSON)
		if diff := cmp.Diff(inProtobuf, inJSON, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	})
}

// BenchmarkEncode is what a span costs the process, without and with its compression.
func BenchmarkEncode(b *testing.B) {
	batch := make([]Span, 512)
	for i := range batch {
		batch[i] = spans[0]
	}
	for name, encoding := range map[string]Encoding{"protobuf": Protobuf, "json": JSON} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				EncodeSpans(encoding, source, batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(batch)), "ns/span")
		})
		b.Run(name+"+gzip", func(b *testing.B) {
			for b.Loop() {
				message := EncodeSpans(encoding, source, batch)
				if _, err := compress(message); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(batch)), "ns/span")
		})
	}
}
