// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// twelve upstreams of which every series that can come up in service has come up.
func touched() *Metrics {
	m := New(Config{Version: "v1.2.3"})
	names := strings.Fields("openai anthropic gemini mistral deepseek xai groq openrouter dashscope moonshot zhipu ollama")
	m.SetUpstreams(names)
	m.SetTenants([]string{"gold", "team-a"})
	m.SetEndpoints(map[string][]string{"openai": {"a.example.com", "b.example.com"}})
	m.SetEndpointStates(func() []Endpoint {
		return []Endpoint{{Upstream: "openai", Name: "a.example.com", Available: true, Latency: time.Second}, {Upstream: "openai", Name: "b.example.com"}}
	})
	m.SetConcurrency(func() (all []Concurrency) {
		for _, up := range names {
			all = append(all, Concurrency{Upstream: up, Limit: 10})
		}
		return all
	})
	for _, up := range names {
		for _, mode := range []string{"base_url", "host", "websocket"} {
			touch(m, up, mode)
		}
		for _, protocol := range []string{"h2", "http/1.1"} {
			m.UpstreamConn(up, protocol, 1)
		}
		for kind := range m.labels.kind {
			m.Handshake(up, kind, time.Millisecond)
			m.Verdict(up, "thinking") // the labels are fixed, one shows the name
			m.Untrusted(up, "expired", false)
			m.Paused(up)
			m.HeartbeatProbe(up, "app")
			m.HeartbeatRTT(up, time.Second)
			m.HeartbeatInterval(up, time.Second)
			m.FalseAlarms(up, 1)
			m.Resume(up, "resumed")
			m.SessionWarning(up, "openai_realtime", "clock")
			m.Retry(up, "unsent", "retried")
			m.Retry(up, "try_later", "disabled")
			for class := range m.labels.class {
				m.LimitWait(up, class, time.Second)
			}
			m.LimitRefused(up, "gold", "tenant_over_share")
			if up == "openai" { // few have endpoints
				for _, e := range []string{"a.example.com", "b.example.com"} {
					for result := range m.labels.endpointResult {
						m.EndpointDone(up, e, result)
					}
					m.EndpointEjected(up, e, "error", false)
				}
			}
			m.LimitRefused(up, "", "upstream_limit_queue_full")
			m.RequestDone(Request{Upstream: up, Mode: "base_url", Protocol: "HTTP/1.1", Outcome: "ok", Retry: 1, Fault: "slow_reader"})
		}
	}
	for result := range m.labels.result {
		m.Lookup(result)
	}
	touch(m, "", "forward")
	touch(m, "", "tunnel")
	touch(m, "gone", "base_url")
	for mode := range m.labels.mode {
		m.StreamOpen(mode, 1)
	}
	for code := range m.labels.malformed {
		m.Malformed(code)
	}
	for reason := range m.labels.reason {
		m.Refused(reason)
	}
	for result := range m.labels.intercept {
		m.Intercepted(result)
	}
	for reason := range m.labels.denial { // of callers that are known, only what they may not
		switch reason {
		case "not_in_role", "requests", "output_tokens", "upload", "streams":
			m.TenantRefused("team-a", reason)
		default:
			m.TenantRefused("", reason)
		}
	}
	m.TenantDone("team-a")
	m.TenantTokens("team-a", 5, true)
	m.TenantTokens("team-a", 5, false)
	for result := range m.labels.export {
		m.Spans(result, 1)
		m.Export("traces", result)
		m.Export("metrics", result)
	}
	m.AcceptFailed()
	m.Reload(true)
	m.Reload(false)
	return m
}

// touch plays every way in which a request to up can end.
func touch(m *Metrics, up, mode string) {
	for outcome := range m.labels.outcome {
		r := full(up, mode, outcome, "app_left")
		m.RequestDone(r)
		if mode != "websocket" { // over HTTP/2 apps have none
			r.Protocol = "HTTP/2.0"
			m.RequestDone(r)
		}
	}
	// The causes of the relay; codes of the way out break off an answer rarely.
	for _, cause := range []string{"app_upload_truncated", "error_event", "first_token_timeout", "idle_timeout", "missing_terminal", "total_timeout",
		"upstream_reset", "upstream_truncated", "warmwire_drain", "websocket_dropped"} {
		m.RequestDone(full(up, mode, "cut_upstream", cause))
	}
}

func TestThePageStaysBelow200kB(t *testing.T) {
	n := len(page(t, touched()))
	if n > 200_000 { // of which 14 kB are there only if all twelve have limits, and 2 kB with tenants
		t.Errorf("%d bytes", n)
	}
	t.Logf("%d bytes", n)
}

// TestExemplarsStayBelow220kB scrapes as Prometheus does by default, when every request
// that there was has been traced.
func TestExemplarsStayBelow220kB(t *testing.T) {
	m := touched()
	for i, up := range strings.Fields("openai anthropic gemini mistral deepseek xai groq openrouter dashscope moonshot zhipu ollama") {
		for _, mode := range []string{"host", "websocket"} {
			for d := time.Millisecond; d < time.Hour; d *= 2 { // every bucket
				r := full(up, mode, "ok", "")
				r.Duration, r.TTFT, r.TraceID = d, d, strings.Repeat("ab", 15)+fmt.Sprintf("%02x", i)
				m.RequestDone(r)
			}
		}
	}
	n := len(openMetrics(t, m))
	if n > 220_000 {
		t.Errorf("%d bytes", n)
	}
	t.Logf("%d bytes", n)
}

// row is a line of the table in the documentation: names, type, labels.
var row = regexp.MustCompile("(?m)^\\| ((?:`[a-z_]+`(?:, )?)+) \\| ([a-z]+) \\| ([a-z, ]*)\\|")

// TestTheTableIsTheRegistry compares docs/metrics.md with what is gathered, both
// ways.
func TestTheTableIsTheRegistry(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, r := range row.FindAllStringSubmatch(string(doc), -1) {
		labels := strings.Split(strings.ReplaceAll(r[3], " ", ""), ",")
		slices.Sort(labels)
		for name := range strings.SplitSeq(r[1], ", ") {
			documented[strings.Trim(name, "`")] = r[2] + " " + strings.Join(labels, ",")
		}
	}
	families, err := touched().reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	gathered := map[string]string{}
	for _, f := range families {
		if name, ok := strings.CutPrefix(f.GetName(), "warmwire_"); ok {
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			gathered[name] = strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, ",")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(gathered)) {
		if documented[name] != gathered[name] {
			t.Errorf("%s: docs/metrics.md has %q, the registry %q", name, documented[name], gathered[name])
		}
	}
	for name := range documented {
		if gathered[name] == "" {
			t.Errorf("docs/metrics.md has %s, the registry does not", name)
		}
	}
}

// TestLabelValuesAreDocumented keeps the lists below the table whole.
func TestLabelValuesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	l := newLabels()
	for _, s := range []set{l.mode, l.protocol, l.outcome, l.cause, l.reason, l.malformed, l.distrust, l.attempt, l.decision, l.resumed, l.api, l.warning, l.intercept, l.class, l.endpointResult, l.ejection, l.signal, l.export} {
		for _, v := range slices.Sorted(maps.Keys(s)) {
			if !bytes.Contains(doc, []byte("`"+v+"`")) {
				t.Errorf("docs/metrics.md does not have %s", v)
			}
		}
	}
}

// TestCodesOfTheSourceAreKnown finds the codes where they are written: one that a
// label's set does not have would be counted as other.
func TestCodesOfTheSourceAreKnown(t *testing.T) {
	l := newLabels()
	tests := []struct {
		files, code string
		least       int // codes that the pattern must find, so that it cannot rot unseen
		known       set
	}{
		{"../ingress/http1/*.go", `\bbad\("([a-z0-9_]+)"|RequestError\{[^"}]*"([a-z0-9_]+)"`, 20, l.malformed},
		{"../ingress/*.go", `refusal\{[^"}]*"([a-z0-9_]+)"|Refused\("([a-z0-9_]+)"`, 8, l.reason},
		{"../webguard/*.go", `\bCode\w+\s+= "([a-z0-9_]+)"`, 3, l.reason},
		{"../ingress/*.go", `\bCause\w+\s+= "([a-z0-9_]+)"`, 10, l.cause},
		{"../ingress/realtime.go", `\bWarn\w+\s+WarningReason = "([a-z_]+)"`, 4, l.warning},
		{"../ingress/intercept.go", `\bInterceptResult = "([a-z_]+)"`, 8, l.intercept},
		{"../dialect/realtime.go", `\bRealtime = "([a-z_]+)"`, 3, l.api},
		{"../../transport/*.go", `\bKind\b[^"\n]*"([a-z0-9_]+)"`, 5, l.cause},
		{"../../tlspool/trust/errors.go", `\bReason = "([a-z_]+)"`, 12, l.distrust},
		{"../../transport/qos/errors.go", `Reason = "([a-z_]+)"`, 4, l.cause},
		{"../../transport/dial/*.go", `\bKind\b[^"\n]*"([a-z0-9_]+)"`, 5, l.cause},
	}
	for _, tt := range tests {
		files, err := filepath.Glob(tt.files)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range regexp.MustCompile(tt.code).FindAllStringSubmatch(string(src), -1) {
				code := strings.Join(g[1:], "")
				found[code] = true
				if !tt.known[code] {
					t.Errorf("%s: %s is in no set of labels.go", f, code)
				}
			}
		}
		if len(found) < tt.least {
			t.Errorf("%s %s finds %d codes, want %d or more", tt.files, tt.code, len(found), tt.least)
		}
	}
}

// TestEachCodeIsExplained looks for whatever may stand as cause or reason in the page that
// people look into when it does.
func TestEachCodeIsExplained(t *testing.T) {
	doc, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	silent := []string{"connections", "loop", "other"} // labels that no error has as its code
	for _, codes := range []set{causes(), reasons(), malformedCodes()} {
		for code := range codes {
			if !slices.Contains(silent, code) && !bytes.Contains(doc, []byte("`"+code+"`")) {
				t.Errorf("docs/troubleshooting.md does not explain %s", code)
			}
		}
	}
}

// TestNativeHistograms scrapes as a Prometheus server with native histograms does.
func TestNativeHistograms(t *testing.T) {
	m := New(Config{})
	m.SetUpstreams([]string{"a"})
	for _, d := range []time.Duration{90 * time.Second, 110 * time.Second} {
		m.RequestDone(Request{Upstream: "a", Mode: "host", Outcome: "ok", Duration: d, TTFT: d})
	}
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	d := expfmt.NewDecoder(w.Body, expfmt.NewFormat(expfmt.TypeProtoDelim))
	for {
		var f dto.MetricFamily
		if err := d.Decode(&f); err != nil {
			t.Fatalf("no family of the first token: %v", err)
		}
		if f.GetName() != "warmwire_time_to_first_token_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if h.GetSampleCount() != 2 || len(h.GetPositiveDelta()) < 2 {
			t.Errorf("90 s and 110 s share one native bucket: %v", h)
		}
		if top := h.GetBucket()[len(h.GetBucket())-1].GetUpperBound(); top != 120 {
			t.Errorf("classic buckets end at %v s, want 120", top)
		}
		return
	}
}
