// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/otlp"
)

// SchemaURL names the version of the semantic conventions whose names are used.
const SchemaURL = "https://opentelemetry.io/schemas/1.41.0"

// span builds the span of r, whose trace has been settled. Its attributes are put behind
// those in room, which is returned.
func (r *queued) span(up Upstream, room []otlp.Attr) (otlp.Span, []otlp.Attr) {
	begin := len(room)
	room = r.attrs(up, room)
	s := otlp.Span{
		TraceID: unhex(r.Trace.ID), SpanID: unhex(r.Trace.Span), Parent: unhex(r.Trace.Parent), TraceState: r.state, Flags: uint32(r.Trace.Flags) | otlp.FlagsHasIsRemote,
		Name: r.Operation, Kind: otlp.KindClient, Start: r.Start, End: r.Start.Add(r.Duration), Attrs: room[begin:len(room):len(room)],
	}
	if s.Name == "" {
		s.Name = methodOf(r.Method)
	}
	if s.Name == "_OTHER" { // the conventions' name for spans of such methods
		s.Name = "HTTP"
	}
	if r.Trace.Parent != "" {
		s.Flags |= otlp.FlagsIsRemote
	}
	if r.errorType() != "" {
		s.Status = otlp.StatusError
	}
	if head := r.head(); r.Status != 0 && head > 0 {
		s.Events = append(s.Events, otlp.Event{Time: r.Start.Add(head), Name: "warmwire.response_head"})
	}
	if r.TTFT > 0 {
		s.Events = append(s.Events, otlp.Event{Time: r.Start.Add(r.TTFT), Name: "warmwire.first_token"})
		if r.Tokens > 0 {
			s.Events = append(s.Events, otlp.Event{Time: r.Start.Add(r.TTFT + r.Tokens), Name: "warmwire.last_token"})
		}
	}
	return s, room
}

// head is how long it took until the answer's head was there.
func (r *Request) head() (d time.Duration) {
	for _, stage := range r.Stages[:FirstToken] {
		d += stage
	}
	return d
}

// attrs appends the attributes of r to a.
func (r *Request) attrs(up Upstream, a []otlp.Attr) []otlp.Attr {
	text := func(key, v string) {
		if v != "" {
			a = append(a, otlp.String(key, v))
		}
	}
	number := func(key string, v int64, there bool) {
		if there {
			a = append(a, otlp.Int(key, v))
		}
	}
	if r.Operation != "" {
		text("gen_ai.operation.name", r.Operation)
		text("gen_ai.provider.name", up.Provider)
		if r.Stream {
			a = append(a, otlp.Bool("gen_ai.request.stream", true))
		}
		number("gen_ai.usage.input_tokens", r.InputTokens, r.InputTokens >= 0)
		number("gen_ai.usage.output_tokens", r.OutputTokens, r.OutputTokens >= 0)
		if r.Stream && r.TTFT > 0 {
			a = append(a, otlp.Seconds("gen_ai.response.time_to_first_chunk", r.TTFT))
		}
	}
	text("server.address", up.Address)
	number("server.port", int64(up.Port), up.Address != "")
	text("error.type", r.errorType())
	text("http.request.method", methodOf(r.Method))
	number("http.response.status_code", int64(r.Status), r.Status != 0)
	number("http.request.resend_count", int64(r.Attempts-1), r.Attempts > 1)
	if _, version, ok := strings.Cut(r.Protocol, "/"); ok {
		text("network.protocol.name", "http")
		text("network.protocol.version", strings.TrimSuffix(version, ".0"))
	}
	number("warmwire.request.id", int64(r.ID), true)
	text("warmwire.upstream", r.Upstream)
	text("warmwire.tenant", r.Tenant)
	text("warmwire.mode", r.Mode)
	text("warmwire.outcome", r.Outcome)
	text("warmwire.cause", r.Cause)
	text("warmwire.fault", r.Fault)
	a = append(a, otlp.Bool("warmwire.connection.reused", r.Reused))
	number("warmwire.chunks", int64(r.Chunks), r.Chunks > 0)
	for i, d := range r.Stages {
		if d > 0 {
			a = append(a, otlp.Seconds(stageNames[i], d))
		}
	}
	return a
}

// unhex is nil for what is no id.
func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) == 0 {
		return nil
	}
	return b
}

// A sampler decides which requests without a trace get one, as OpenTelemetry's consistent
// probability sampling does: R, the last 56 bits of the trace id, is compared with
// T = (1 - share) × 2⁵⁶, and the trace is kept if R ≥ T.
type sampler struct {
	threshold uint64 // T
	none      bool
	state     string // tracestate of what is kept: with which share
}

const randomBits = 56

func newSampler(share float64) sampler {
	if !(share > 0) {
		return sampler{none: true}
	}
	t := uint64((1 - min(share, 1)) * (1 << randomBits))
	digits := strings.TrimRight(fmt.Sprintf("%014x", t), "0")
	if digits == "" {
		digits = "0"
	}
	return sampler{threshold: t, state: "ot=th:" + digits}
}

// keeps says whether the trace of id, 32 hex digits, is one of the share.
func (s sampler) keeps(id string) bool {
	if s.none {
		return false
	}
	r, err := strconv.ParseUint(id[len(id)-randomBits/4:], 16, 64)
	return err == nil && r >= s.threshold
}
