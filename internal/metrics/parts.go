// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// parts are where the time of requests went beside the phases, and what they suffered from.
type parts struct {
	seconds *prometheus.HistogramVec
	faults  *prometheus.CounterVec
}

func newParts(counter func(name, help string, labels ...string) *prometheus.CounterVec,
	histogram func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec) *parts {
	return &parts{
		// Its series are many: the classic page has their sums and counts only.
		seconds: histogram("request_part_seconds", "Where the rest of a request's time went: attempts in vain, and after the head.", nil, "upstream", "part"),
		faults:  counter("request_faults_total", "Requests by what they suffered from most, if anything.", "upstream", "fault"),
	}
}

// observe counts those of r that were there.
func (p *parts) observe(up string, fault set, r *Request) {
	for _, part := range [...]struct {
		name string
		secs float64
	}{{"retry", r.Retry.Seconds()}, {"first_token", r.FirstToken.Seconds()}, {"provider", r.Provider.Seconds()},
		{"held", r.Held.Seconds()}, {"network", r.Network.Seconds()}, {"app", r.App.Seconds()}} {
		if part.secs > 0 {
			p.seconds.WithLabelValues(up, part.name).Observe(part.secs)
		}
	}
	if r.Fault != "" {
		p.faults.WithLabelValues(up, fault.of(r.Fault)).Inc()
	}
}
