// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

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
		Send: 1, Wait: 1, TTFT: time.Second, PerChunk: time.Millisecond, InputTokens: 3, OutputTokens: 4, TrailersLost: 1}
}

func TestARequestIsCounted(t *testing.T) {
	m := New(Config{Version: "v1"})
	m.SetUpstreams([]string{"openai"})
	m.RequestDone(full("openai", "base_url", "cut_upstream", "upstream_reset"))
	m.RequestDone(full("", "tunnel", "ok", ""))
	m.StreamOpen("websocket", 1)
	m.UpstreamConn("openai", "h2", 1)
	m.Handshake("openai", "resumed")
	m.SetDropped(func() uint64 { return 7 })
	text := page(t, m)
	for _, want := range []string{
		`warmwire_requests_total{mode="base_url",outcome="cut_upstream",protocol="HTTP/1.1",upstream="openai"} 1`,
		`warmwire_requests_total{mode="tunnel",outcome="ok",protocol="HTTP/1.1",upstream="tunnel"} 1`,
		`warmwire_interruptions_total{cause="upstream_reset",upstream="openai"} 1`,
		`warmwire_time_to_first_token_seconds_count{upstream="openai"} 1`,
		`warmwire_tokens_total{direction="output",upstream="openai"} 4`,
		`warmwire_trailers_dropped_total 2`,
		`warmwire_upstream_connections{protocol="h2",upstream="openai"} 1`,
		`warmwire_tls_handshakes_total{kind="resumed",upstream="openai"} 1`,
		`warmwire_streams_open{mode="websocket"} 1`,
		`warmwire_accesslog_dropped_total 7`,
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
		m.Handshake(junk(), junk())
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

func TestThePageStaysBelow200kB(t *testing.T) {
	m := New(Config{})
	names := strings.Fields("openai anthropic gemini mistral deepseek xai groq openrouter dashscope moonshot zhipu ollama")
	m.SetUpstreams(names)
	for _, up := range names {
		for mode := range m.labels.mode {
			for outcome := range m.labels.outcome {
				m.RequestDone(full(up, mode, outcome, "app_left"))
			}
		}
		for cause := range m.labels.cause {
			m.RequestDone(full(up, "base_url", "cut_upstream", cause))
		}
	}
	if n := len(page(t, m)); n > 200_000 {
		t.Errorf("%d bytes", n)
	}
}

func TestSeriesOfVanishedUpstreamsVanish(t *testing.T) {
	m := New(Config{})
	m.SetUpstreams([]string{"a", "b"})
	m.RequestDone(full("a", "base_url", "ok", ""))
	m.RequestDone(full("b", "base_url", "ok", ""))
	m.SetUpstreams([]string{"b"})
	m.RequestDone(full("a", "base_url", "ok", ""))
	text := page(t, m)
	if strings.Contains(text, `upstream="a"`) || !strings.Contains(text, `upstream="b"`) || !strings.Contains(text, `upstream="other"`) {
		t.Error("want b and other, and nothing of a")
	}
}

func TestEveryMetricIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{})
	m.SetUpstreams([]string{"a"})
	m.RequestDone(full("a", "base_url", "cut_app", "app_left"))
	m.Malformed("bare_lf")
	m.Refused("connections")
	m.Reload(true)
	m.Handshake("a", "full")
	m.UpstreamConn("a", "h2", 1)
	m.StreamOpen("tunnel", 1)
	for line := range strings.SplitSeq(page(t, m), "\n") {
		if name, ok := strings.CutPrefix(line, "# TYPE warmwire_"); ok {
			name, _, _ = strings.Cut(name, " ")
			if !strings.Contains(string(doc), "`"+name+"`") {
				t.Errorf("docs/metrics.md does not have %s", name)
			}
		}
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
