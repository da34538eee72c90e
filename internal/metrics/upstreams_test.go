// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestSeriesOfVanishedUpstreamsVanish(t *testing.T) {
	m := New(Config{})
	m.SetUpstreams([]string{"a", "b"})
	for _, up := range []string{"a", "b"} {
		m.RequestDone(full(up, "base_url", "cut_app", "app_left"))
		m.UpstreamConn(up, "h2", 1)
		m.Handshake(up, "full", 0)
	}
	m.SetUpstreams([]string{"b"})
	if text := page(t, m); strings.Contains(text, `upstream="a"`) || strings.Count(text, `upstream="b"`) == 0 {
		t.Error("want series of b, and nothing of a")
	}
	m.RequestDone(full("a", "base_url", "ok", "")) // it had begun before
	if text := page(t, m); strings.Contains(text, `upstream="a"`) || !strings.Contains(text, `warmwire_requests_total{mode="base_url",outcome="ok",upstream="other"} 1`) {
		t.Error("want the late request counted as other")
	}
}

// TestGaugesSurviveReloads: connections outlive the configuration that they were
// opened under.
func TestGaugesSurviveReloads(t *testing.T) {
	m := New(Config{})
	steps := []struct {
		known string
		up    string
		delta int
		want  string // value by upstream
	}{
		{"a b", "a", 2, "a=2"},
		{"a b", "b", 1, "a=2 b=1"},
		{"b", "a", -1, "b=1 other=1"}, // a has gone and still has two
		{"b a", "a", 1, "a=2 b=1"},    // a is back before the last old one ended
		{"b", "a", -2, "b=1"},
		{"b c", "c", 1, "b=1 c=1"},
		{"b c", "", 1, "b=1 c=1 forward=1"},
	}
	for i, s := range steps {
		m.SetUpstreams(strings.Fields(s.known))
		m.UpstreamConn(s.up, "h2", s.delta)
		page(t, m) // a scrape forgets what has ended
		var got []string
		for line := range strings.SplitSeq(page(t, m), "\n") {
			if rest, ok := strings.CutPrefix(line, `warmwire_upstream_connections{protocol="HTTP/2.0",upstream="`); ok {
				got = append(got, strings.Replace(rest, `"} `, "=", 1))
			}
		}
		if strings.Join(got, " ") != s.want {
			t.Errorf("step %d: %v, want %s", i, got, s.want)
		}
	}
}

func TestConnectionNamesAreBounded(t *testing.T) {
	m := New(Config{})
	for i := range 10 * maxConnNames {
		m.UpstreamConn(fmt.Sprint("u", i), "h2", 1)
	}
	if n := len(m.conns.open); n > maxConnNames+1 {
		t.Errorf("%d names are kept", n)
	}
	if text := page(t, m); !strings.Contains(text, fmt.Sprintf(`warmwire_upstream_connections{protocol="HTTP/2.0",upstream="other"} %d`, 10*maxConnNames)) {
		t.Error("connections of names beyond the bound are not counted")
	}
}

// TestAVanishedUpstreamStaysAway ends requests while their upstream goes.
func TestAVanishedUpstreamStaysAway(t *testing.T) {
	m := New(Config{})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					m.RequestDone(full("a", "base_url", "ok", ""))
					m.Handshake("a", "full", 0)
					m.UpstreamConn("a", "h2", 1)
					m.UpstreamConn("a", "h2", -1)
				}
			}
		})
	}
	for range 200 {
		m.SetUpstreams([]string{"a"})
		m.SetUpstreams(nil)
		families, err := m.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, s := range f.GetMetric() {
				for _, l := range s.GetLabel() {
					if l.GetName() == "upstream" && l.GetValue() == "a" {
						t.Fatalf("%s has a series of a", f.GetName())
					}
				}
			}
		}
	}
	close(stop)
	wg.Wait()
}
