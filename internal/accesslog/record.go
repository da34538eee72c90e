// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"log/slog"
	"time"
)

// Phases are the stages of a request before the first token; 0 = there was none.
type Phases struct {
	Queue, DNS, Connect, TLS, Send, Wait, Retry, FirstToken time.Duration
}

// Parts are where the time went after them; 0 = nowhere there.
type Parts struct {
	Provider, Held, Network, App time.Duration
}

// A Record is what may be said about one finished request. Its strings are names
// from the configuration or from the program, except Method and TraceID.
type Record struct {
	ID       uint64 // decides about sampling where there is no TraceID
	Time     time.Time
	Duration time.Duration

	Upstream         string // its configured name, forward or tunnel
	Tenant           string // its configured name; "" = there are none, or the caller is not known
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
	Parts        Parts
	Fault        string        // what the request suffered from most; "" = nothing that stands out
	Conn         uint64        // number of the upstream connection; 0 = not written
	Reused       bool          // the upstream connection was open already
	TTFT         time.Duration // 0 = no token was seen
	PerChunk     time.Duration // 0 = fewer than two chunks
	Chunks       int
	InputTokens  int64 // 0 or less = not known
	OutputTokens int64
	Attempts     int    // requests of ours that it took, if more than one; 0 = not written
	Resumes      int    // times that a cut stream was gone on with; 0 = not written
	AppRetries   int    // attempts that the app says it made before
	TraceID      string // of the app's own trace; written if it is one (W3C Trace Context §3.2.2.3)
}

const outcomeOK = "ok"

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

// end is when the request was over.
func (r *Record) end() time.Time { return r.Time.Add(r.Duration) }

// encode writes r as one line. Durations are numbers of milliseconds in every
// format.
func (r *Record) encode(e *encoder) {
	e.begin(r.end(), r.level(), "request")
	e.uint("id", r.ID)
	e.name("upstream", r.Upstream)
	e.name("tenant", r.Tenant)
	e.name("mode", r.Mode)
	e.name("route", r.Route)
	e.str("method", knownMethod(r.Method))
	e.name("protocol", r.ClientProtocol)
	e.name("upstream_protocol", r.UpstreamProtocol)
	e.count("status", int64(r.Status))
	e.name("outcome", r.Outcome)
	e.name("cause", r.Cause)
	e.bool("stream", r.Stream)
	e.bool("reused", r.Reused)
	e.count("bytes_in", r.BytesIn)
	e.count("bytes_out", r.BytesOut)
	e.millis("duration_ms", r.Duration)
	e.took("queue_ms", r.Phases.Queue)
	e.took("dns_ms", r.Phases.DNS)
	e.took("connect_ms", r.Phases.Connect)
	e.took("tls_ms", r.Phases.TLS)
	e.took("send_ms", r.Phases.Send)
	e.took("wait_ms", r.Phases.Wait)
	e.took("retry_ms", r.Phases.Retry)
	e.took("first_token_ms", r.Phases.FirstToken)
	e.took("provider_ms", r.Parts.Provider)
	e.took("held_ms", r.Parts.Held)
	e.took("network_ms", r.Parts.Network)
	e.took("app_ms", r.Parts.App)
	e.name("fault", r.Fault)
	e.some("conn", int64(r.Conn))
	e.took("ttft_ms", r.TTFT)
	e.took("per_chunk_ms", r.PerChunk)
	e.some("chunks", int64(r.Chunks))
	e.some("input_tokens", r.InputTokens)
	e.some("output_tokens", r.OutputTokens)
	e.some("attempts", int64(r.Attempts))
	e.some("resumes", int64(r.Resumes))
	e.some("app_retries", int64(r.AppRetries))
	if _, ok := traceRandomness(r.TraceID); ok {
		e.str("trace_id", r.TraceID)
	}
	e.end(true)
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
		if !inName[s[i]] {
			return "invalid"
		}
	}
	return s
}

// inName are the bytes of names. None of them needs quoting in text or JSON.
var inName = func() (t [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") {
		t[c] = true
	}
	return t
}()

// knownMethod knows the methods of RFC 9110 §9 and RFC 5789.
func knownMethod(m string) string {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH":
		return m
	}
	return "OTHER"
}
