// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"log/slog"
	"strings"
	"time"
)

// Phases are the stages of a request before its answer began; 0 = there was none.
type Phases struct {
	Queue, DNS, Connect, TLS, Send, Wait time.Duration
}

// A Record is what may be said about one finished request. Its strings are names
// from the configuration or from the program, except Method and TraceID.
type Record struct {
	ID       uint64 // decides about sampling
	Time     time.Time
	Duration time.Duration

	Upstream         string // its configured name, forward or tunnel
	Mode             string
	Route            string // class of the route, such as chat; "" = not known
	Method           string // any that HTTP has no name for is written OTHER
	ClientProtocol   string
	UpstreamProtocol string // "" = there was no answer

	Status  int // 0 = no head was sent
	Outcome string
	Cause   string // "" = nothing went wrong
	Stream  bool

	BytesIn, BytesOut int64 // body bytes from the app and to it

	Phases       Phases
	Reused       bool          // the upstream connection was open already
	TTFT         time.Duration // 0 = no token was seen
	PerChunk     time.Duration // 0 = fewer than two chunks
	Chunks       int
	InputTokens  int64 // 0 or less = not known
	OutputTokens int64
	AppRetries   int    // attempts that the app says it made before
	TraceID      string // of the app's own trace; written if it is one (W3C Trace Context §3.2.2.3)
}

const outcomeOK = "ok"

// notable records are logged whatever the sample.
func (r *Record) notable() bool {
	return r.Outcome != outcomeOK || r.Cause != "" || r.Status >= 400
}

// level is a warning where something other than the app is at fault.
func (r *Record) level() slog.Level {
	switch r.Outcome {
	case outcomeOK:
		if r.Status >= 500 || r.Cause != "" {
			return slog.LevelWarn
		}
		return slog.LevelInfo
	case "refused", "cut_app":
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// line turns r into what a handler writes. Durations are numbers of milliseconds
// in text and JSON alike.
func (r *Record) line() slog.Record {
	line := slog.NewRecord(r.Time.Add(r.Duration), r.level(), "request", 0)
	attrs := make([]slog.Attr, 0, 24)
	add := func(a ...slog.Attr) { attrs = append(attrs, a...) }
	name := func(key, value string) {
		if value != "" {
			add(slog.String(key, clean(value)))
		}
	}
	number := func(key string, n int64) {
		if n > 0 {
			add(slog.Int64(key, n))
		}
	}
	took := func(key string, d time.Duration) {
		if d > 0 {
			add(slog.Float64(key, millis(d)))
		}
	}
	add(slog.Uint64("id", r.ID))
	name("upstream", r.Upstream)
	name("mode", r.Mode)
	name("route", r.Route)
	add(slog.String("method", knownMethod(r.Method)))
	name("protocol", r.ClientProtocol)
	name("upstream_protocol", r.UpstreamProtocol)
	add(slog.Int("status", r.Status))
	name("outcome", r.Outcome)
	name("cause", r.Cause)
	add(slog.Bool("stream", r.Stream), slog.Bool("reused", r.Reused))
	add(slog.Int64("bytes_in", r.BytesIn), slog.Int64("bytes_out", r.BytesOut))
	add(slog.Float64("duration_ms", millis(r.Duration)))
	took("queue_ms", r.Phases.Queue)
	took("dns_ms", r.Phases.DNS)
	took("connect_ms", r.Phases.Connect)
	took("tls_ms", r.Phases.TLS)
	took("send_ms", r.Phases.Send)
	took("wait_ms", r.Phases.Wait)
	took("ttft_ms", r.TTFT)
	took("per_chunk_ms", r.PerChunk)
	number("chunks", int64(r.Chunks))
	number("input_tokens", r.InputTokens)
	number("output_tokens", r.OutputTokens)
	number("app_retries", int64(r.AppRetries))
	if isTraceID(r.TraceID) {
		add(slog.String("trace_id", r.TraceID))
	}
	line.AddAttrs(attrs...)
	return line
}

// millis keeps microseconds.
func millis(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond).Microseconds()) / 1000
}

// maxName is longer than any name of ours.
const maxName = 64

// clean replaces what cannot be a name of ours, so that a value which went to the
// wrong field shows as a fault and not as a leak.
func clean(s string) string {
	if len(s) > maxName {
		return "invalid"
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("_-./", c) >= 0:
		default:
			return "invalid"
		}
	}
	return s
}

// knownMethod knows the methods of RFC 9110 §9 and RFC 5789.
func knownMethod(m string) string {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH":
		return m
	}
	return "OTHER"
}

// isTraceID wants 32 lower-case hex digits, not all zero.
func isTraceID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}
