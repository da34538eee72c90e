// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"time"
)

// TestLimitsHaveClosedLabels: upstreams and tenants that the configuration does not have,
// and classes and reasons that there are none of, make no series of their own.
func TestLimitsHaveClosedLabels(t *testing.T) {
	m := New(Config{})
	if got := page(t, m); strings.Contains(got, "warmwire_limit") {
		t.Error("series of limits before there is one")
	}
	m.SetUpstreams([]string{"a"})
	m.SetTenants([]string{"gold"})
	m.LimitRefused("a", "gold", "tenant_over_share")
	m.LimitRefused("a", "", "upstream_limit_paced")
	m.LimitRefused("a", "s3cret", "made_up")
	m.LimitRefused("gone", "none", "upstream_limit_queue_full")
	m.LimitWait("a", "urgent", time.Second)
	m.SetConcurrency(func() []Concurrency {
		return []Concurrency{{Upstream: "a", Limit: 3, Running: map[string]int{"batch": 2, "made_up": 1}}, {Upstream: "gone", Limit: 5}}
	})
	got := page(t, m)
	for _, line := range []string{
		`warmwire_limit_refusals_total{reason="tenant_over_share",tenant="gold",upstream="a"} 1`,
		`warmwire_limit_refusals_total{reason="upstream_limit_paced",tenant="none",upstream="a"} 1`,
		`warmwire_limit_refusals_total{reason="other",tenant="other",upstream="a"} 1`,
		`warmwire_limit_refusals_total{reason="upstream_limit_queue_full",tenant="none",upstream="other"} 1`,
		`warmwire_limit_waits_total{class="other",upstream="a"} 1`,
		`warmwire_limit_concurrency{upstream="a"} 3`,
		`warmwire_limit_requests{class="batch",state="running",upstream="a"} 2`,
		`warmwire_limit_requests{class="interactive",state="waiting",upstream="a"} 0`,
	} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("the page has no line %s", line)
		}
	}
	for _, no := range []string{"s3cret", "made_up", `upstream="gone"`} {
		if strings.Contains(got, no) {
			t.Errorf("the page has %s", no)
		}
	}
	m.SetUpstreams(nil)
	if got := page(t, m); strings.Contains(got, `upstream="a"`) {
		t.Error("the series of a go when it leaves")
	}
}
