// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"github.com/warmwire/warmwire/internal/attribution"
)

// maxTold is how many healthy streams are told of in words: as many as a person reads.
const maxTold = 200

// A findingStatus is where the time of a stream goes, or went, in words and figures.
type findingStatus struct {
	Fault     string             `json:"fault,omitempty"`     // slow_provider, network, slow_reader or buffering_hop; none if nothing stands out
	Certainty string             `json:"certainty,omitempty"` // of the fault: proven or likely
	Text      string             `json:"text"`                // for people, in one sentence
	Evidence  []string           `json:"evidence,omitempty"`  // likewise
	SpanMS    float64            `json:"span_ms"`             // what the parts are of: the last 10 to 20 s of a stream that runs
	PartsMS   map[string]float64 `json:"parts_ms,omitempty"`  // provider, held, network, app
	Stage     string             `json:"stage,omitempty"`     // before the first token: what is waited for
	WaitsMS   float64            `json:"waits_ms,omitempty"`  // since the last byte came, or since the stage began
	WaitsFor  string             `json:"waits_for,omitempty"` // provider or app
	RTTMS     float64            `json:"rtt_ms,omitempty"`    // round trip to the upstream
	Packets   uint64             `json:"packets,omitempty"`   // that came from it in the span
	Late      uint64             `json:"late_packets"`        // of them out of order, or of ours sent again
	Batches   int                `json:"batches,omitempty"`   // in the span
}

func findingOf(f *attribution.Finding) *findingStatus {
	st := &findingStatus{
		Fault: string(f.Fault), Text: f.Text(), Evidence: f.Evidence(), SpanMS: millis(f.Span), Stage: f.Stage, RTTMS: millis(f.RTT),
		Packets: f.Segments, Late: f.Disorder, Batches: f.Batches.Count, PartsMS: partsOf(f.Parts),
	}
	switch {
	case f.Fault == "":
	case f.Proven:
		st.Certainty = "proven"
	default:
		st.Certainty = "likely"
	}
	if f.Running {
		st.WaitsMS, st.WaitsFor = millis(f.Waits), "provider"
		if f.Gives {
			st.WaitsFor = "app"
		}
	}
	return st
}

func partsOf(p attribution.Parts) map[string]float64 {
	if p.Total() == 0 {
		return nil
	}
	return map[string]float64{"provider": millis(p.Provider), "held": millis(p.Held), "network": millis(p.Network), "app": millis(p.App)}
}
