// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// endpoints are the series of upstreams that have several. There are none before the
// first use, and none of endpoints that the configuration does not have.
type endpoints struct {
	done, ejected *prometheus.CounterVec
	known         atomic.Pointer[map[string]set] // names by upstream

	m                          *Metrics
	inFlight, available, first *prometheus.Desc
	get                        atomic.Pointer[func() []Endpoint]
}

// An Endpoint is one server of an upstream, as it is now.
type Endpoint struct {
	Upstream, Name string
	InFlight       int
	Available      bool
	Latency        time.Duration // that a first byte is expected to take; 0 = not known
}

func newEndpoints(m *Metrics, counter func(name, help string, labels ...string) *prometheus.CounterVec) *endpoints {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("warmwire_endpoint_"+name, help, []string{"upstream", "endpoint"}, nil)
	}
	e := &endpoints{
		done:    counter("endpoint_attempts_total", "Attempts at endpoints that are over.", "upstream", "endpoint", "result"),
		ejected: counter("endpoint_ejections_total", "Endpoints left out, or not because too many were.", "upstream", "endpoint", "reason", "action"),
		m:       m, inFlight: desc("in_flight", "Attempts that run."), available: desc("available", "1 if it gets new requests."),
		first: desc("expected_latency_seconds", "What its first byte is expected to take."),
	}
	e.known.Store(&map[string]set{})
	m.reg.MustRegister(e)
	return e
}

// of is the label of an endpoint.
func (e *endpoints) of(upstream, name string) string { return (*e.known.Load())[upstream].of(name) }

// SetEndpoints names those that the configuration has, by upstream; series of others
// vanish.
func (m *Metrics) SetEndpoints(names map[string][]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := make(map[string]set, len(names))
	for up, list := range names {
		known[up] = newSet(list...)
	}
	gone := *m.endpoints.known.Swap(&known)
	for up, list := range gone {
		for name := range list {
			if !known[up][name] {
				l := prometheus.Labels{"upstream": up, "endpoint": name}
				m.endpoints.done.DeletePartialMatch(l)
				m.endpoints.ejected.DeletePartialMatch(l)
			}
		}
	}
}

// SetEndpointStates tells where it is known how they are.
func (m *Metrics) SetEndpointStates(get func() []Endpoint) { m.endpoints.get.Store(&get) }

// EndpointDone counts an attempt at an endpoint.
func (m *Metrics) EndpointDone(upstream, endpoint, result string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.endpoints.done.WithLabelValues(m.upstream(upstream, ""), m.endpoints.of(upstream, endpoint), m.labels.endpointResult.of(result)).Inc()
}

// EndpointEjected counts an endpoint that is left out, or would be if not too many were.
func (m *Metrics) EndpointEjected(upstream, endpoint, reason string, capped bool) {
	action := "ejected"
	if capped {
		action = "capped"
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.endpoints.ejected.WithLabelValues(m.upstream(upstream, ""), m.endpoints.of(upstream, endpoint), m.labels.ejection.of(reason), action).Inc()
}

// Describe implements [prometheus.Collector].
func (e *endpoints) Describe(ch chan<- *prometheus.Desc) {
	ch <- e.inFlight
	ch <- e.available
	ch <- e.first
}

// Collect implements [prometheus.Collector].
func (e *endpoints) Collect(ch chan<- prometheus.Metric) {
	get := e.get.Load()
	if get == nil {
		return
	}
	shown := (*get)()
	e.m.mu.RLock()
	defer e.m.mu.RUnlock()
	known := *e.known.Load()
	for _, s := range shown {
		if !e.m.known[s.Upstream] || !known[s.Upstream][s.Name] { // its configuration is on its way out or in
			continue
		}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.Upstream, s.Name)
		}
		gauge(e.inFlight, float64(s.InFlight))
		available := 0.0
		if s.Available {
			available = 1
		}
		gauge(e.available, available)
		if s.Latency > 0 {
			gauge(e.first, s.Latency.Seconds())
		}
	}
}
