// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"
)

// Flags of a traceparent (W3C Trace Context Level 2 §3.2.2.5).
const (
	flagSampled = 0x01
	flagRandom  = 0x02
)

// A Trace is the trace that an app's own traceparent names: ids and a bit, nothing else
// of what the app sent.
type Trace struct {
	ID     string // 32 hex digits; "" = the app sent no traceparent
	Parent string // 16 hex digits: the app's span
	Span   string // 16 hex digits: ours, which the upstream was told; "" = it got the app's traceparent as it came
	Flags  byte
}

// Sampled says that whoever began the trace records it.
func (t Trace) Sampled() bool { return t.Flags&flagSampled != 0 }

// traceOf reads the traceparent of h. Of a version that is not known what version 00 has
// is read (§3.2.2, §4.3); several fields are none (§3.2).
func traceOf(h http.Header) Trace {
	values := h["Traceparent"]
	if len(values) != 1 {
		return Trace{}
	}
	v := values[0]
	if len(v) < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-' || v[:2] == "ff" ||
		len(v) > 55 && (v[:2] == "00" || v[55] != '-') {
		return Trace{}
	}
	version, id, parent, flags := v[:2], v[3:35], v[36:52], v[53:55]
	if !isLowerHex(version) || !isID(id) || !isID(parent) || !isLowerHex(flags) {
		return Trace{}
	}
	bits, _ := hex.DecodeString(flags) // was looked at
	return Trace{ID: id, Parent: parent, Flags: bits[0] & (flagSampled | flagRandom)}
}

func isLowerHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// isID says whether s is an id: those of zeros mean that there is none.
func isID(s string) bool { return isLowerHex(s) && strings.Trim(s, "0") != "" }

// continueTrace puts a span of ours between the app's and the upstream's, if the app
// records the trace and spans are exported. tracestate stays: none of it is ours. A
// traceparent of the operator's own (headers.set) stays as well.
func (e *exchange) continueTrace(h http.Header) {
	trace := &e.rec.Trace
	if !e.t.ContinueTraces || !trace.Sampled() {
		return
	}
	if sent := h["Traceparent"]; len(sent) != 1 || sent[0] != e.r.Header.Get("Traceparent") {
		return
	}
	trace.Span = newSpanID()
	h["Traceparent"] = []string{"00-" + trace.ID + "-" + trace.Span + "-" + hex.EncodeToString([]byte{trace.Flags})}
}

// newSpanID returns a random id (§3.2.2.4).
func newSpanID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	id[0] |= 1              // it must not be all zeros
	return hex.EncodeToString(id[:])
}
