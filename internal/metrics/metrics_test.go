// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func page(t testing.TB, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	b, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("%d %v", w.Code, err)
	}
	return string(b)
}

func full(up, mode string, outcome, cause string) Request {
	return Request{Upstream: up, Mode: mode, Protocol: "HTTP/1.1", Outcome: outcome, Cause: cause, Duration: time.Second, DNS: 1, Connect: 1, TLS: 1,
		Send: 1, Wait: 1, FirstToken: 1, Provider: 1, Held: 1, Network: 1, App: 1, Fault: "network", TTFT: time.Second, PerChunk: time.Millisecond, InputTokens: 3, OutputTokens: 4, TrailersLost: 1}
}

func TestARequestIsCounted(t *testing.T) {
	m := New(Config{Version: "v1"})
	m.SetUpstreams([]string{"openai"})
	m.RequestDone(full("openai", "base_url", "cut_upstream", "upstream_reset"))
	m.RequestDone(full("", "tunnel", "ok", ""))
	m.StreamOpen("websocket", 1)
	m.UpstreamConn("openai", "h2", 1)
	m.Handshake("openai", "resumed", time.Millisecond)
	m.SetDropped(func() uint64 { return 7 })
	m.SetLogDropped(func() uint64 { return 8 })
	text := page(t, m)
	for _, want := range []string{
		`warmwire_requests_total{mode="base_url",outcome="cut_upstream",upstream="openai"} 1`,
		`warmwire_requests_total{mode="tunnel",outcome="ok",upstream="tunnel"} 1`,
		`warmwire_request_part_seconds_count{part="held",upstream="openai"} 1`,
		`warmwire_request_faults_total{fault="network",upstream="openai"} 1`,
		`warmwire_interruptions_total{cause="upstream_reset",upstream="openai"} 1`,
		`warmwire_time_to_first_token_seconds_count{upstream="openai"} 1`,
		`warmwire_tokens_total{direction="output",upstream="openai"} 4`,
		`warmwire_trailers_dropped_total 2`,
		`warmwire_upstream_connections{protocol="HTTP/2.0",upstream="openai"} 1`,
		`warmwire_tls_handshakes_total{kind="resumed",upstream="openai"} 1`,
		`warmwire_streams_open{mode="websocket"} 1`,
		`warmwire_accesslog_dropped_total 7`,
		`warmwire_log_lines_dropped_total 8`,
		`version="v1"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not on the page", want)
		}
	}
}

// TestJunkDoesNotGrowThePage plays an attacker who chooses every label value.
func TestJunkDoesNotGrowThePage(t *testing.T) {
	m := New(Config{})
	m.SetUpstreams([]string{"openai"})
	junk := func() string { return fmt.Sprintf("j%d", rand.Uint64()) }
	send := func() {
		m.RequestDone(Request{Upstream: junk(), Mode: junk(), Protocol: junk(), Outcome: junk(), Cause: junk()})
		m.Malformed(junk())
		m.Refused(junk())
		m.Intercepted(junk())
		m.Handshake(junk(), junk(), 0)
		m.Untrusted(junk(), junk(), false)
		m.Paused(junk())
		m.HeartbeatProbe(junk(), junk())
		m.Resume(junk(), junk())
		m.Retry(junk(), junk(), junk())
		m.UpstreamConn(junk(), junk(), 0)
		m.StreamOpen(junk(), 0)
	}
	send()
	before := strings.Count(page(t, m), "\n")
	for range 1000 {
		send()
	}
	if after := strings.Count(page(t, m), "\n"); after != before {
		t.Errorf("the page grew from %d to %d lines", before, after)
	}
}

func TestInterruptionsAreCutsAndOddEndsOnly(t *testing.T) {
	tests := []struct {
		outcome, cause string
		want           string // cause label; "" = no interruption
	}{
		{"ok", "", ""},
		{"ok", "missing_terminal", "missing_terminal"},
		{"ok", "error_event", "error_event"},
		{"refused", "forward_denied", ""},
		{"upstream_error", "upstream_connect_refused", ""},
		{"cut_app", "app_left", "app_left"},
		{"cut_warmwire", "idle_timeout", "idle_timeout"},
		{"cut_upstream", "upstream_tls_failed", "upstream_tls_failed"},
		{"cut_upstream", "sk-secret", "other"},
		{"cut_upstream", "", "other"},
	}
	for _, tt := range tests {
		m := New(Config{})
		m.SetUpstreams([]string{"a"})
		m.RequestDone(full("a", "host", tt.outcome, tt.cause))
		text := page(t, m)
		if has := strings.Contains(text, "warmwire_interruptions_total{"); has != (tt.want != "") {
			t.Errorf("%s %s: counted: %v", tt.outcome, tt.cause, has)
		}
		if tt.want != "" && !strings.Contains(text, `warmwire_interruptions_total{cause="`+tt.want+`",upstream="a"} 1`) {
			t.Errorf("%s %s: not counted as %s", tt.outcome, tt.cause, tt.want)
		}
	}
}

// TestWhatDidNotHappenIsNotObserved keeps zeros out of the histograms.
func TestWhatDidNotHappenIsNotObserved(t *testing.T) {
	m := New(Config{})
	m.SetUpstreams([]string{"a"})
	m.RequestDone(Request{Upstream: "a", Mode: "host", Protocol: "HTTP/2.0", Outcome: "ok", Duration: 1, InputTokens: -1, OutputTokens: -1, TrailersLost: -1})
	text := page(t, m)
	for _, name := range []string{"phase_seconds", "time_to_first_token_seconds", "time_per_output_chunk_seconds", "tokens_total"} {
		if strings.Contains(text, "warmwire_"+name) {
			t.Errorf("%s was touched", name)
		}
	}
	if !strings.Contains(text, `warmwire_request_duration_seconds_count{kind="request",upstream="a"} 1`) {
		t.Error("the request was not observed")
	}
}

func BenchmarkRequestDone(b *testing.B) {
	m := New(Config{})
	m.SetUpstreams([]string{"openai"})
	r := full("openai", "base_url", "ok", "")
	b.ReportAllocs()
	for b.Loop() {
		m.RequestDone(r)
	}
}

func BenchmarkRequestDoneParallel(b *testing.B) {
	m := New(Config{})
	m.SetUpstreams([]string{"openai"})
	r := full("openai", "base_url", "ok", "")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.RequestDone(r)
		}
	})
}

func BenchmarkPage(b *testing.B) {
	m := touched()
	b.ReportAllocs()
	for b.Loop() {
		page(b, m)
	}
}
