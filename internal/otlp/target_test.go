// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	collectormetrics "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func endpoint(t testing.TB, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func answer(status int, contentType, body string, fields ...string) *http.Response {
	h := http.Header{"Content-Type": {contentType}}
	for i := 0; i+1 < len(fields); i += 2 {
		h.Set(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body))}
}

// TestSend looks at the request as a collector does.
func TestSend(t *testing.T) {
	for _, tt := range []struct {
		endpoint string
		encoding Encoding
		signal   Signal
		want     string
		media    string
	}{
		{"http://collector:4318", Protobuf, Traces, "http://collector:4318/v1/traces", "application/x-protobuf"},
		{"https://collector/otlp/", JSON, Metrics, "https://collector/otlp/v1/metrics", "application/json"},
	} {
		var got *http.Request
		var body string
		out := roundTrip(func(r *http.Request) (*http.Response, error) {
			got = r
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			body = string(b)
			return answer(200, tt.media, ""), nil
		})
		header := http.Header{"Api-Key": {"s3cret"}, "Content-Type": {"text/odd"}}
		target, err := New(out, Config{Endpoint: endpoint(t, tt.endpoint), Encoding: tt.encoding, Header: header})
		if err != nil {
			t.Fatal(err)
		}
		if res := target.Send(t.Context(), tt.signal, []byte("message")); res != (Result{}) {
			t.Errorf("result %+v", res)
		}
		if got.Method != "POST" || got.URL.String() != tt.want || body != "message" || got.Header.Get("Content-Type") != tt.media ||
			got.Header.Get("Content-Encoding") != "gzip" || got.Header.Get("Api-Key") != "s3cret" || got.ContentLength <= 0 {
			t.Errorf("%s %s %v, %d bytes, body %q", got.Method, got.URL, got.Header, got.ContentLength, body)
		}
	}
}

func TestEndpointsThatAreNone(t *testing.T) {
	for _, raw := range []string{"/v1", "http://user:pass@host"} {
		if _, err := New(nil, Config{Endpoint: endpoint(t, raw)}); err == nil {
			t.Errorf("%s is taken", raw)
		}
	}
}

// TestAnswers: what a collector says, in the schema's own encoding.
func TestAnswers(t *testing.T) {
	partial := &collectortrace.ExportTraceServiceResponse{PartialSuccess: &collectortrace.ExportTracePartialSuccess{RejectedSpans: 7, ErrorMessage: "PLANTED"}}
	points := &collectormetrics.ExportMetricsServiceResponse{PartialSuccess: &collectormetrics.ExportMetricsPartialSuccess{RejectedDataPoints: 300, ErrorMessage: "x"}}
	inProtobuf := func(m proto.Message) string {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	inJSON := func(m proto.Message) string {
		b, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const pb, js = "application/x-protobuf", "application/json; charset=utf-8"
	for _, tt := range []struct {
		name string
		resp *http.Response
		want Result
		err  string
	}{
		{"taken", answer(200, pb, ""), Result{}, ""},
		{"taken, in JSON", answer(200, js, "{}"), Result{}, ""},
		{"a part", answer(200, pb, inProtobuf(partial)), Result{Rejected: 7}, ""},
		{"a part, in JSON", answer(200, js, inJSON(partial)), Result{Rejected: 7}, ""},
		{"a part as a number", answer(200, js, `{"partialSuccess":{"rejectedDataPoints":8}}`), Result{Rejected: 8}, ""},
		{"a part of points", answer(200, pb, inProtobuf(points)), Result{Rejected: 300}, ""},
		{"a part of points, in JSON", answer(200, js, inJSON(points)), Result{Rejected: 300}, ""},
		{"a warning only", answer(200, js, `{"partialSuccess":{"errorMessage":"careful"}}`), Result{}, ""},
		{"nonsense is taken all the same", answer(200, js, `{"partialSuccess":[]}`), Result{}, ""},
		{"less than none", answer(200, js, `{"partialSuccess":{"rejectedSpans":"-5"}}`), Result{}, ""},
		{"bad data", answer(400, pb, "PLANTED"), Result{}, "otlp: the collector answered 400"},
		{"another 2xx", answer(202, pb, ""), Result{}, "otlp: the collector answered 202"},
		{"a redirect", answer(307, pb, "", "Location", "http://elsewhere"), Result{}, "otlp: the collector answered 307"},
		{"an error of the server", answer(500, pb, ""), Result{}, "otlp: the collector answered 500"},
		{"too much", answer(429, pb, "", "Retry-After", "30"), Result{Retry: true, After: 30 * time.Second}, "otlp: the collector answered 429"},
		{"not now", answer(503, js, ""), Result{Retry: true}, "otlp: the collector answered 503"},
		{"a bad gateway", answer(502, js, ""), Result{Retry: true}, "otlp: the collector answered 502"},
		{"a late gateway", answer(504, js, ""), Result{Retry: true}, "otlp: the collector answered 504"},
	} {
		target, err := New(roundTrip(func(*http.Request) (*http.Response, error) { return tt.resp, nil }), Config{Endpoint: endpoint(t, "http://c")})
		if err != nil {
			t.Fatal(err)
		}
		got := target.Send(t.Context(), Traces, nil)
		text := ""
		if got.Err != nil {
			text = got.Err.Error()
		}
		got.Err = nil
		if got != tt.want || text != tt.err {
			t.Errorf("%s: %+v %q, want %+v %q", tt.name, got, text, tt.want, tt.err)
		}
	}
}

func TestACollectorThatSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target, err := New(roundTrip(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, context.Cause(r.Context())
		}), Config{Endpoint: endpoint(t, "http://c"), Timeout: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		res := target.Send(t.Context(), Traces, nil)
		if !res.Retry || !errors.Is(res.Err, context.DeadlineExceeded) || time.Since(begun) != 3*time.Second {
			t.Errorf("%+v after %v", res, time.Since(begun))
		}
	})
}

// TestAnAnswerWithoutEnd is read as far as is useful.
func TestAnAnswerWithoutEnd(t *testing.T) {
	read := 0
	target, err := New(roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(endless{&read})}, nil
	}), Config{Endpoint: endpoint(t, "http://c")})
	if err != nil {
		t.Fatal(err)
	}
	if res := target.Send(t.Context(), Traces, nil); res != (Result{}) || read > maxAnswer {
		t.Errorf("%+v after %d bytes", res, read)
	}
}

type endless struct{ n *int }

func (e endless) Read(p []byte) (int, error) {
	*e.n += len(p)
	return len(p), nil
}

// FuzzAnswer: whatever a collector answers in either encoding, the number is that of the
// schema's own code, if that can read it at all.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("\x0a\x02\x08\x07"), false)
	f.Add([]byte("\x0a\x07\x08\x07\x12\x03abc\x18\x01"), false)
	f.Add([]byte("\x0a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false)
	f.Add([]byte(`{"partialSuccess":{"rejectedSpans":"7","errorMessage":"no"}}`), true)
	f.Add([]byte(`{"partialSuccess":null}`), true)
	f.Fuzz(func(t *testing.T, body []byte, inJSON bool) {
		media := "application/x-protobuf"
		if inJSON {
			media = "application/json"
		}
		got, err := rejectedOf(media, body)
		if got < 0 || err != nil && got != 0 && inJSON {
			t.Fatalf("%d, %v", got, err)
		}
		var want collectortrace.ExportTraceServiceResponse
		if inJSON || proto.Unmarshal(body, &want) != nil {
			return
		}
		if err != nil || got != max(want.GetPartialSuccess().GetRejectedSpans(), 0) {
			t.Errorf("%x: %d %v, want %d", body, got, err, want.GetPartialSuccess().GetRejectedSpans())
		}
	})
}
