// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"time"
)

// TestEndpointsHaveClosedLabels: endpoints that the configuration does not have make no
// series of their own, and those that leave it take theirs along.
func TestEndpointsHaveClosedLabels(t *testing.T) {
	m := New(Config{})
	if got := page(t, m); strings.Contains(got, "warmwire_endpoint_") {
		t.Error("series of endpoints before there is one")
	}
	m.SetUpstreams([]string{"a"})
	m.SetEndpoints(map[string][]string{"a": {"x:80", "y"}})
	m.SetEndpointStates(func() []Endpoint {
		return []Endpoint{{Upstream: "a", Name: "x:80", InFlight: 3, Available: true, Latency: time.Second}, {Upstream: "a", Name: "gone"}, {Upstream: "b", Name: "y"}}
	})
	m.EndpointDone("a", "x:80", "ok")
	m.EndpointDone("a", "s3cret", "made_up")
	m.EndpointEjected("a", "y", "connect", false)
	m.EndpointEjected("a", "y", "slow", true)
	got := page(t, m)
	for _, line := range []string{
		`warmwire_endpoint_attempts_total{endpoint="x:80",result="ok",upstream="a"} 1`,
		`warmwire_endpoint_attempts_total{endpoint="other",result="other",upstream="a"} 1`,
		`warmwire_endpoint_ejections_total{action="ejected",endpoint="y",reason="connect",upstream="a"} 1`,
		`warmwire_endpoint_ejections_total{action="capped",endpoint="y",reason="slow",upstream="a"} 1`,
		`warmwire_endpoint_in_flight{endpoint="x:80",upstream="a"} 3`,
		`warmwire_endpoint_available{endpoint="x:80",upstream="a"} 1`,
		`warmwire_endpoint_expected_latency_seconds{endpoint="x:80",upstream="a"} 1`,
	} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("the page has no line %s", line)
		}
	}
	for _, no := range []string{"s3cret", "made_up", `"gone"`, `upstream="b"`} {
		if strings.Contains(got, no) {
			t.Errorf("the page has %s", no)
		}
	}
	m.SetEndpoints(map[string][]string{"a": {"y"}})
	if got := page(t, m); strings.Contains(got, "x:80") {
		t.Error("the series of an endpoint stay when it leaves")
	}
	m.SetUpstreams(nil)
	if got := page(t, m); strings.Contains(got, `upstream="a"`) {
		t.Error("the series of a stay when it leaves")
	}
}
