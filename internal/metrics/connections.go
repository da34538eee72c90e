// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxConnNames bounds the names that connections counts apart: more than any
// configuration has, also over many reloads.
const maxConnNames = 1024

// httpVersion writes an ALPN identifier as requests name their protocol.
func httpVersion(protocol string) string {
	switch protocol {
	case "h2":
		return "HTTP/2.0"
	case "h3":
		return "HTTP/3.0"
	case "http/1.1":
		return "HTTP/1.1"
	}
	return protocol
}

// connKey is the name that a connection was opened under, configured or not.
type connKey struct{ upstream, protocol string }

// connections is the gauge of open upstream connections. It counts by the name
// that a connection was opened under and decides about the label only when it is
// read: a connection outlives its upstream's configuration, and its end must be
// taken from the count that its beginning went to. Otherwise a reload would leave
// a gauge below zero.
type connections struct {
	m    *Metrics
	desc *prometheus.Desc

	mu   sync.Mutex // taken before m.mu
	open map[connKey]int
}

func newConnections(m *Metrics) *connections {
	return &connections{m: m, open: make(map[connKey]int),
		desc: prometheus.NewDesc("warmwire_upstream_connections", "Open connections to upstreams.", []string{"upstream", "protocol"}, nil)}
}

func (c *connections) add(upstream, protocol string, delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := connKey{upstream, protocol}
	if _, ok := c.open[k]; !ok && len(c.open) >= maxConnNames {
		k.upstream = other
	}
	c.open[k] += delta
}

// Describe implements [prometheus.Collector].
func (c *connections) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements [prometheus.Collector].
func (c *connections) Collect(ch chan<- prometheus.Metric) {
	for k, n := range c.shown() {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), k.upstream, k.protocol)
	}
}

// shown folds names that are not configured into other, and forgets those whose
// last connection has ended.
func (c *connections) shown() map[connKey]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.mu.RLock()
	defer c.m.mu.RUnlock()
	sums := make(map[connKey]int, len(c.open))
	for k, n := range c.open {
		label := c.m.upstream(k.upstream, "")
		if label == other && n == 0 {
			delete(c.open, k)
		}
		sums[connKey{label, k.protocol}] += n
	}
	return sums
}
