// SPDX-License-Identifier: Apache-2.0

package metrics

// Spans counts n spans by what became of them.
func (m *Metrics) Spans(result string, n int) {
	m.spans.WithLabelValues(m.labels.export.of(result)).Add(float64(n))
}

// Export counts an attempt to send telemetry, or what it came to in the end.
func (m *Metrics) Export(signal, result string) {
	m.exports.WithLabelValues(m.labels.signal.of(signal), m.labels.export.of(result)).Inc()
}
