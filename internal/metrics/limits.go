// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// limits are the series of upstreams with limits of requests. There are none before the
// first use.
type limits struct {
	waits, seconds, refusals *prometheus.CounterVec // how the waits are spread is in phase_seconds
	now                      *concurrency
}

func newLimits(m *Metrics, counter func(name, help string, labels ...string) *prometheus.CounterVec) *limits {
	l := &limits{
		waits:    counter("limit_waits_total", "Requests that waited because of limits and then began.", "upstream", "class"),
		seconds:  counter("limit_wait_seconds_total", "For how long they waited.", "upstream", "class"),
		refusals: counter("limit_refusals_total", "Requests that limits did not let in.", "upstream", "tenant", "reason"),
		now:      newConcurrency(m),
	}
	m.reg.MustRegister(l.now)
	return l
}

// LimitWait takes for how long a request waited because of limits.
func (m *Metrics) LimitWait(upstream, class string, waited time.Duration) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	up, c := m.upstream(upstream, ""), m.labels.class.of(class)
	m.limits.waits.WithLabelValues(up, c).Inc()
	m.limits.seconds.WithLabelValues(up, c).Add(waited.Seconds())
}

// LimitRefused counts a request that limits did not let in.
func (m *Metrics) LimitRefused(upstream, tenant, reason string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.limits.refusals.WithLabelValues(m.upstream(upstream, ""), m.tenant(tenant), m.labels.cause.of(reason)).Inc()
}

// A Concurrency is how many requests of an upstream with limits run and wait, by class.
type Concurrency struct {
	Upstream         string
	Limit            int // 0 = none
	Running, Waiting map[string]int
}

// SetConcurrency tells where that is known.
func (m *Metrics) SetConcurrency(get func() []Concurrency) { m.limits.now.get.Store(&get) }

// concurrency shows it when the page is read.
type concurrency struct {
	m               *Metrics
	limit, requests *prometheus.Desc
	get             atomic.Pointer[func() []Concurrency]
}

func newConcurrency(m *Metrics) *concurrency {
	return &concurrency{
		m:        m,
		limit:    prometheus.NewDesc("warmwire_limit_concurrency", "Requests that may run at once, as is in force.", []string{"upstream"}, nil),
		requests: prometheus.NewDesc("warmwire_limit_requests", "Requests to upstreams with limits that run or wait.", []string{"upstream", "class", "state"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (c *concurrency) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.limit
	ch <- c.requests
}

// Collect implements [prometheus.Collector].
func (c *concurrency) Collect(ch chan<- prometheus.Metric) {
	get := c.get.Load()
	if get == nil {
		return
	}
	shown := (*get)()
	c.m.mu.RLock()
	defer c.m.mu.RUnlock()
	for _, u := range shown {
		if !c.m.known[u.Upstream] { // its configuration is on its way out or in
			continue
		}
		if u.Limit > 0 {
			ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(u.Limit), u.Upstream)
		}
		for class := range c.m.labels.class {
			ch <- prometheus.MustNewConstMetric(c.requests, prometheus.GaugeValue, float64(u.Running[class]), u.Upstream, class, "running")
			ch <- prometheus.MustNewConstMetric(c.requests, prometheus.GaugeValue, float64(u.Waiting[class]), u.Upstream, class, "waiting")
		}
	}
}
