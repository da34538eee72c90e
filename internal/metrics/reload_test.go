// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// churn is one reload of a configuration that loses what the one before had, with
// requests to both in between.
func churn(m *Metrics, i int) {
	up := []string{"a", "b"}[i%2]
	m.SetUpstreams([]string{"stays", up})
	m.SetTenants([]string{"team-" + up})
	m.SetEndpoints(map[string][]string{up: {up + ".example.com"}})
	for _, name := range []string{"stays", "a", "b"} { // one of them has gone: what still runs ends
		touch(m, name, "base_url")
		m.UpstreamConn(name, "h2", 1)
		m.UpstreamConn(name, "h2", -1)
		m.Handshake(name, "full", time.Millisecond)
		m.Verdict(name, "thinking")
		m.Untrusted(name, "expired", false)
		m.Paused(name)
		m.HeartbeatProbe(name, "app")
		m.HeartbeatRTT(name, time.Second)
		m.HeartbeatInterval(name, time.Second)
		m.FalseAlarms(name, 1)
		m.Resume(name, "resumed")
		m.SessionWarning(name, "openai_realtime", "clock")
		m.Retry(name, "unsent", "retried")
		m.LimitWait(name, "default", time.Second)
		m.LimitRefused(name, "team-"+name, "tenant_over_share")
		m.EndpointDone(name, name+".example.com", "ok")
		m.EndpointEjected(name, name+".example.com", "error", false)
		m.TenantDone("team-" + name)
		m.TenantTokens("team-"+name, 1, true)
		m.TenantRefused("team-"+name, "requests")
	}
}

// TestReloadsCostNothingInTheEnd changes the label sets a thousand times under load:
// what was removed is on no line of the page, and neither the page, what a scrape
// allocates nor the heap grow.
func TestReloadsCostNothingInTheEnd(t *testing.T) {
	m := New(Config{})
	measure := func() (lines int, allocs float64, heap uint64) {
		page(t, m) // a scrape forgets connections that have ended
		lines = strings.Count(page(t, m), "\n")
		allocs = testing.AllocsPerRun(5, func() { page(t, m) })
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return lines, allocs, stats.HeapAlloc
	}
	for i := range 100 {
		churn(m, i)
		gone := []string{"b", "a"}[i%2]
		for line := range strings.SplitSeq(page(t, m), "\n") {
			if strings.Contains(line, `="`+gone+`"`) || strings.Contains(line, `="team-`+gone+`"`) || strings.Contains(line, `="`+gone+`.example.com"`) {
				t.Fatalf("after reload %d: %s", i, line)
			}
		}
	}
	lines, allocs, heap := measure()
	for i := range 1000 {
		churn(m, i)
	}
	lines2, allocs2, heap2 := measure()
	if lines2 != lines {
		t.Errorf("the page grew from %d to %d lines", lines, lines2)
	}
	if allocs2 > allocs*1.02 {
		t.Errorf("a scrape made %.0f allocations and makes %.0f", allocs, allocs2)
	}
	if heap2 > heap+heap/4 { // the collector's own noise is a few percent
		t.Errorf("the heap grew from %d to %d bytes", heap, heap2)
	}
	t.Logf("%d lines, %.0f allocations, %d and %d bytes of heap", lines, allocs, heap, heap2)
}
