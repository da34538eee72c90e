// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// noTenant stands for callers that are not known, and requests of nobody in particular.
const noTenant = "none"

// tenants are the families by tenant. They have no series before the first request of
// one, and names of the configuration only.
type tenants struct{ requests, tokens, refusals *prometheus.CounterVec }

func newTenants(counter func(name, help string, labels ...string) *prometheus.CounterVec) tenants {
	return tenants{
		requests: counter("tenant_requests_total", "Finished requests, tunnels and WebSockets.", "tenant"),
		tokens:   counter("tenant_output_tokens_total", "Output tokens that were charged, as told by answers or as chunks counted.", "tenant", "source"),
		refusals: counter("tenant_refusals_total", "Requests refused because of who sent them, or of how much.", "tenant", "reason"),
	}
}

// SetTenants names those that the configuration has; series of others vanish.
func (m *Metrics) SetTenants(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.knownTenants
	m.knownTenants = newSet(names...)
	for name := range gone {
		if m.knownTenants[name] {
			continue
		}
		for _, v := range []*prometheus.CounterVec{m.tenants.requests, m.tenants.tokens, m.tenants.refusals, m.limits.refusals} {
			v.DeletePartialMatch(prometheus.Labels{"tenant": name})
		}
	}
}

// tenant is the label of a name. The caller holds mu.
func (m *Metrics) tenant(name string) string {
	if name == "" || name == noTenant {
		return noTenant
	}
	return m.knownTenants.of(name)
}

// TenantDone counts a finished request of a tenant.
func (m *Metrics) TenantDone(name string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.tenants.requests.WithLabelValues(m.tenant(name)).Inc()
}

// TenantTokens counts what an answer has cost.
func (m *Metrics) TenantTokens(name string, n int64, estimate bool) {
	source := "told"
	if estimate {
		source = "estimate"
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.tenants.tokens.WithLabelValues(m.tenant(name), source).Add(float64(n))
}

// TenantRefused counts a refusal; a name of "" is a caller that is not known.
func (m *Metrics) TenantRefused(name, reason string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.tenants.refusals.WithLabelValues(m.tenant(name), m.labels.denial.of(reason)).Inc()
}

// denials are why a caller is refused.
func denials() set {
	return newSet("no_proof", "unknown_token", "too_large", "jwt_malformed", "jwt_algorithm", "jwt_key", "jwt_signature", "jwt_expired", "jwt_future",
		"jwt_claims", "ambiguous", "no_keys", "not_in_role", "requests", "output_tokens", "upload", "streams")
}
