// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"net/http"
	"strconv"
	"time"
)

// gaps are the bounds of the histograms of time in the GenAI semantic conventions:
// 10 ms, and each twice the one before.
const gaps = 14

// A Trace is what the app's traceparent says.
type Trace struct {
	ID     string // 32 hex digits; "" = none was sent
	Parent string // 16 hex digits
	Span   string // ours, which the upstream was told; "" = it was told nothing of it
	Flags  byte
}

// sampled says that whoever began the trace records it.
func (t Trace) sampled() bool { return t.Flags&1 != 0 }

// A Stage is a part of a request's time.
type Stage int

// The stages, in order; they sum to the request's duration.
const (
	Queue Stage = iota
	DNS
	Connect
	TLS
	Send
	Wait
	Retry
	FirstToken
	Provider
	Held
	Network
	App
	stages
)

// stageNames are the names of their attributes.
var stageNames = [stages]string{"warmwire.phase.queue", "warmwire.phase.dns", "warmwire.phase.connect", "warmwire.phase.tls", "warmwire.phase.send",
	"warmwire.phase.wait", "warmwire.phase.retry", "warmwire.phase.first_token", "warmwire.part.provider", "warmwire.part.held", "warmwire.part.network", "warmwire.part.app"}

// A Request is what a finished request showed. Its strings are from the configuration or
// from the program, except Method and those of Trace.
type Request struct {
	ID             uint64
	Start          time.Time
	Duration       time.Duration
	Upstream       string // "" = a host that is none
	Tenant, Mode   string
	Method         string
	Protocol       string // of the upstream, such as HTTP/2.0
	Operation      string // gen_ai.operation.name; "" = none
	Status         int
	Outcome, Cause string
	Fault          string
	Trace          Trace
	Stages         [stages]time.Duration
	TTFT           time.Duration
	Tokens         time.Duration // from the first to the last
	Chunks         int
	Gaps           [gaps + 1]uint32
	InputTokens    int64 // -1 = unknown
	OutputTokens   int64
	Attempts       int
	Stream, Reused bool
}

// left says that the app ended the request itself: that is no error of anybody's.
func (r *Request) left() bool { return r.Outcome == "cut_app" }

// errorType is error.type: why the request did not do what it was for; "" = it did.
func (r *Request) errorType() string {
	switch {
	case r.left():
		return ""
	case r.Cause != "":
		return r.Cause
	case r.Outcome != "ok" && r.Outcome != "":
		return r.Outcome
	case r.Status >= 400 && r.Status <= 599:
		return strconv.Itoa(r.Status)
	}
	return ""
}

// methodOf is http.request.method, whose set is closed by the conventions.
func methodOf(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace, http.MethodPatch:
		return m
	}
	return "_OTHER"
}

// An Upstream is what the conventions want to know of one.
type Upstream struct {
	Provider string // gen_ai.provider.name
	Address  string // server.address; "" = there are several
	Port     int
}
