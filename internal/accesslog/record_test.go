// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwire/warmwire/internal/accesslog"
	"github.com/warmwire/warmwire/internal/testenv"
)

var formats = []accesslog.Format{accesslog.Text, accesslog.JSON, accesslog.MessagePack}

// fullFields is full as JSON has it.
func fullFields() map[string]any {
	return map[string]any{
		"time": "2026-01-02T03:04:06.5Z", "level": "WARN", "msg": "request", "id": 7.0,
		"upstream": "openai", "tenant": "team-a", "mode": "base_url", "route": "chat", "method": "POST", "protocol": "HTTP/1.1", "upstream_protocol": "HTTP/2.0",
		"status": 200.0, "outcome": "cut_upstream", "cause": "upstream_truncated", "stream": true, "reused": true,
		"bytes_in": 600.0, "bytes_out": 12000.0, "duration_ms": 1500.0,
		"queue_ms": 1.0, "dns_ms": 2.0, "connect_ms": 3.0, "tls_ms": 4.0, "send_ms": 5.0, "wait_ms": 6.5,
		"retry_ms": 7.0, "first_token_ms": 8.0, "provider_ms": 9.0, "held_ms": 10.0, "network_ms": 11.0, "app_ms": 12.0, "fault": "network", "conn": 17.0,
		"ttft_ms": 250.0, "per_chunk_ms": 20.0, "chunks": 60.0, "input_tokens": 11.0, "output_tokens": 61.0,
		"attempts": 3.0, "resumes": 1.0, "app_retries": 2.0, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
	}
}

func TestEveryFieldIsWritten(t *testing.T) {
	for i := range reflect.ValueOf(full).NumField() {
		if reflect.ValueOf(full).Field(i).IsZero() {
			t.Fatalf("the test's record has no %s", reflect.TypeOf(full).Field(i).Name)
		}
	}
	out := write(t, accesslog.Config{Format: accesslog.JSON}, full)
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	if diff := cmp.Diff(fullFields(), got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

// viaSlog writes a record as package log/slog does.
func viaSlog(h slog.Handler, r *accesslog.Record) error {
	level := slog.LevelWarn
	if r.Outcome == "ok" {
		level = slog.LevelInfo
	}
	line := slog.NewRecord(r.Time.Add(r.Duration), level, "request", 0)
	attrs := make([]slog.Attr, 0, 32)
	name := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	some := func(key string, n int64) {
		if n > 0 {
			attrs = append(attrs, slog.Int64(key, n))
		}
	}
	took := func(key string, d time.Duration) {
		if d > 0 {
			attrs = append(attrs, slog.Float64(key, float64(d.Round(time.Microsecond).Microseconds())/1000))
		}
	}
	attrs = append(attrs, slog.Uint64("id", r.ID))
	name("upstream", r.Upstream)
	name("tenant", r.Tenant)
	name("mode", r.Mode)
	name("route", r.Route)
	name("method", r.Method)
	name("protocol", r.ClientProtocol)
	name("upstream_protocol", r.UpstreamProtocol)
	attrs = append(attrs, slog.Int("status", r.Status))
	name("outcome", r.Outcome)
	name("cause", r.Cause)
	attrs = append(attrs, slog.Bool("stream", r.Stream), slog.Bool("reused", r.Reused), slog.Int64("bytes_in", r.BytesIn), slog.Int64("bytes_out", r.BytesOut),
		slog.Float64("duration_ms", float64(r.Duration.Round(time.Microsecond).Microseconds())/1000))
	took("queue_ms", r.Phases.Queue)
	took("dns_ms", r.Phases.DNS)
	took("connect_ms", r.Phases.Connect)
	took("tls_ms", r.Phases.TLS)
	took("send_ms", r.Phases.Send)
	took("wait_ms", r.Phases.Wait)
	took("retry_ms", r.Phases.Retry)
	took("first_token_ms", r.Phases.FirstToken)
	took("provider_ms", r.Parts.Provider)
	took("held_ms", r.Parts.Held)
	took("network_ms", r.Parts.Network)
	took("app_ms", r.Parts.App)
	name("fault", r.Fault)
	some("conn", int64(r.Conn))
	took("ttft_ms", r.TTFT)
	took("per_chunk_ms", r.PerChunk)
	some("chunks", int64(r.Chunks))
	some("input_tokens", r.InputTokens)
	some("output_tokens", r.OutputTokens)
	some("attempts", int64(r.Attempts))
	some("resumes", int64(r.Resumes))
	some("app_retries", int64(r.AppRetries))
	name("trace_id", r.TraceID)
	line.AddAttrs(attrs...)
	return h.Handle(context.Background(), line)
}

// TestLinesAreThoseOfSlog: readers of the process's log need to know one form.
func TestLinesAreThoseOfSlog(t *testing.T) {
	zone := time.FixedZone("", -9000)
	records := []accesslog.Record{full, well(1), {Time: full.Time, Method: "PUT", Outcome: "ok", InputTokens: -1, OutputTokens: -1}}
	for _, d := range []time.Duration{1, 499, 500, 999, 1000, 1500, 10_000, 100_000, 120_000, 123_456, 1e6, 1_234_567, 999_999_499, 999_999_500, 16 * time.Minute} {
		r := full
		r.Time, r.Duration, r.TTFT = time.Date(2031, 12, 31, 23, 59, 59, int(d), zone), d, d
		records = append(records, r)
	}
	for format, make := range map[accesslog.Format]func(io.Writer) slog.Handler{
		accesslog.Text: func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) },
		accesslog.JSON: func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		var want bytes.Buffer
		h := make(&want)
		for i := range records {
			if err := viaSlog(h, &records[i]); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want.String(), write(t, accesslog.Config{Format: format, Sample: 1}, records...)); diff != "" {
			t.Errorf("format %v (-slog +ours):\n%s", format, diff)
		}
	}
}

func TestLongDurationsAreWholeNumbers(t *testing.T) {
	r := well(1)
	r.Duration = 26 * time.Hour // slog's text would be 9.36e+07
	if out := write(t, accesslog.Config{Sample: 1}, r); !strings.Contains(out, " duration_ms=93600000\n") {
		t.Errorf("got %s", out)
	}
}

// hostile are what apps send where something else belongs.
var hostile = []string{"Bearer sk-PLANTED", "key=PLANTED", "/v1/x?key=PLANTED", "PLANTED\nlevel=INFO", `{"a":"PLANTED"}`, `","msg":"PLANTED`, "PLANTED\x00\xff\u2028",
	"\\PLANTED", "sk-" + strings.Repeat("x", 60) + "PLANTED"}

// TestSecretsDoNotGetOut plants a secret in every place that takes a string, in
// the shapes in which apps send them.
func TestSecretsDoNotGetOut(t *testing.T) {
	for _, format := range formats {
		for _, shape := range hostile {
			var records []accesslog.Record
			v := reflect.ValueOf(&full).Elem()
			for i := range v.NumField() {
				if v.Field(i).Kind() == reflect.String {
					r := full
					reflect.ValueOf(&r).Elem().Field(i).SetString(shape)
					records = append(records, r)
				}
			}
			if len(records) != 11 {
				t.Fatalf("%d fields take a string", len(records))
			}
			cfg := accesslog.Config{Sample: 1, Format: format, Summary: time.Hour} // and one at the end
			out := write(t, cfg, records...)
			if strings.Contains(out, "PLANTED") {
				t.Errorf("format %v, %q: the log has the secret:\n%.300q", format, shape, out)
			}
			if got := strings.Count(out, "request") - strings.Count(out, "requests"); got != 11 {
				t.Errorf("format %v, %q: %d lines of requests, want 11:\n%.300q", format, shape, got, out)
			}
			if format == accesslog.JSON {
				checkJSON(t, out)
			}
		}
	}
	r := full
	r.Method, r.TraceID = "PLANTED", "PLANTED"+strings.Repeat("0", 25)
	if out := write(t, accesslog.Config{}, r); strings.Contains(out, "PLANTED") || !strings.Contains(out, "method=OTHER") {
		t.Errorf("the log has the secret: %s", out)
	}
}

// checkJSON wants an object a line, none with a field twice.
func checkJSON(t testing.TB, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if strings.Count(line, `":`) != len(got) {
			t.Fatalf("%q: %d fields", line, len(got))
		}
	}
}

// TestNoFieldForASecret keeps Record from getting a field that could hold what an
// app said.
func TestNoFieldForASecret(t *testing.T) {
	known := map[string]bool{"Upstream": true, "Mode": true, "Route": true, "Method": true, "ClientProtocol": true, "UpstreamProtocol": true,
		"Outcome": true, "Cause": true, "Fault": true, "TraceID": true, "Tenant": true}
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

func FuzzRecord(f *testing.F) {
	f.Add("openai", "GET", "ok", "4bf92f3577b34da6a3ce929d0e0e4736", int64(200), int64(12345678))
	for _, h := range hostile {
		f.Add(h, h, h, h, int64(-1), int64(-1))
	}
	f.Fuzz(func(t *testing.T, name, method, outcome, trace string, status, n int64) {
		r := accesslog.Record{ID: uint64(n), Time: time.Unix(n%1e10, n%1e9), Duration: time.Duration(n), Upstream: name, Mode: name, Route: name, Method: method,
			Outcome: outcome, Cause: name, ClientProtocol: name, UpstreamProtocol: method, TraceID: trace, Status: int(status), BytesIn: n, BytesOut: -n, InputTokens: n, TTFT: time.Duration(n)}
		out := write(t, accesslog.Config{Format: accesslog.JSON, Sample: 1, Summary: time.Hour}, r)
		if strings.Count(out, "\n") != 2 {
			t.Errorf("want a line and a summary: %q", out)
		}
		checkJSON(t, out)
		for _, c := range write(t, accesslog.Config{Sample: 1, Summary: time.Hour}, r) {
			if c != '\n' && (c < ' ' || c > '~') {
				t.Errorf("text has %q", c)
			}
		}
	})
}

// unpack prints the maps of a MessagePack stream as JSON, a line each.
const unpack = `
import json, msgpack, sys
for m in msgpack.Unpacker(sys.stdin.buffer, timestamp=3, strict_map_key=True):
    m["time"] = m["time"].isoformat(timespec="microseconds")
    print(json.dumps(m))
`

// TestMessagePackIsReadByOthers compares what Python's msgpack reads with the same
// records as JSON.
func TestMessagePackIsReadByOthers(t *testing.T) {
	python := testenv.NeedPython(t, "msgpack")
	records := []accesslog.Record{full, well(0)}
	for _, n := range []int64{1, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, 1 << 52} {
		r := full
		r.ID, r.BytesIn, r.TTFT, r.Upstream = uint64(n), n-1, time.Duration(n), strings.Repeat("u", int(n%64))
		r.Time = time.Unix(n%(1<<32), 123456000)
		records = append(records, r)
	}
	for _, sec := range []int64{1<<34 - 3, 1 << 34, -1 << 30} { // with the duration just inside and outside of 34 bits, and before 1970
		r := full
		r.Time = time.Unix(sec, 5000)
		records = append(records, r)
	}
	cfg := accesslog.Config{Sample: 1, Format: accesslog.MessagePack, Summary: time.Hour}
	cmd := exec.CommandContext(t.Context(), python, "-c", unpack)
	cmd.Stdin, cmd.Stderr = strings.NewReader(write(t, cfg, records...)), os.Stderr
	unpacked, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Format = accesslog.JSON
	got, want := objects(t, string(unpacked)), objects(t, write(t, cfg, records...))
	if len(got) != len(want) {
		t.Fatalf("%d maps, want %d", len(got), len(want))
	}
	for i := range want {
		if diff := cmp.Diff(want[i], got[i]); diff != "" {
			t.Errorf("map %d (-JSON +MessagePack):\n%s", i, diff)
		}
	}
}

// objects reads lines of JSON; times become instants, and what differs between two
// runs goes.
func objects(t *testing.T, lines string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(lines) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(m["time"]))
		if err != nil {
			t.Fatal(err)
		}
		if m["time"] = at.UTC(); m["msg"] == "summary" {
			delete(m, "time")
			delete(m, "window_ms")
		}
		out = append(out, m)
	}
	return out
}

// TestMessagePackBytes needs no other's reader.
func TestMessagePackBytes(t *testing.T) {
	r := accesslog.Record{ID: 300, Time: time.Unix(1, 2), Method: "GET", Outcome: "ok", Status: 204, Duration: 1500 * time.Microsecond, BytesIn: 70000}
	file := filepath.Join(t.TempDir(), "log")
	write(t, accesslog.Config{Format: accesslog.MessagePack, Sample: 1, File: file}, r)
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := "\xde\x00\x0c" +
		"\xa4time\xd7\xff\x00\x5b\x8d\x88\x00\x00\x00\x01" + // 1500002 ns << 34 | 1 s
		"\xa5level\xa4INFO\xa3msg\xa7request\xa2id\xcd\x01\x2c\xa6method\xa3GET\xa6status\xcc\xcc\xa7outcome\xa2ok\xa6stream\xc2\xa6reused\xc2" +
		"\xa8bytes_in\xce\x00\x01\x11\x70\xa9bytes_out\x00\xabduration_ms\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"
	if string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
