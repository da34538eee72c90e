// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/warmwire/warmwire/internal/testenv"
)

const trace = "4bf92f3577b34da6a3ce929d0e0e4736"

// scrape asks for the page as accept says.
func scrape(t testing.TB, m *Metrics, accept string) (contentType, body string) {
	t.Helper()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("status %d", w.Code)
	}
	return w.Header().Get("Content-Type"), w.Body.String()
}

func openMetrics(t testing.TB, m *Metrics) string {
	t.Helper()
	contentType, body := scrape(t, m, "application/openmetrics-text;version=1.0.0")
	if !strings.HasPrefix(contentType, "application/openmetrics-text") || !strings.HasSuffix(body, "# EOF\n") {
		t.Fatalf("no OpenMetrics: %s", contentType)
	}
	return body
}

// TestExemplars: a request of a recorded trace leaves its id once in each of two
// histograms, and nobody else leaves anything.
func TestExemplars(t *testing.T) {
	for _, tt := range []struct {
		name, trace string
		want        int
	}{
		{"of a recorded trace", trace, 2},
		{"without", "", 0},
		{"not a trace id", "sk-PLANTED", 0},
		{"in capitals", strings.ToUpper(trace), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := New(Config{})
			m.SetUpstreams([]string{"a"})
			r := full("a", "host", "ok", "")
			r.TraceID = tt.trace
			m.RequestDone(r)
			text := openMetrics(t, m)
			if n := strings.Count(text, ` # {trace_id="`+trace+`"} 1.0 `); n != tt.want || strings.Count(text, "trace_id") != tt.want {
				t.Errorf("%d exemplars, want %d", n, tt.want)
			}
			if strings.Contains(page(t, m), "trace_id") {
				t.Error("text without exemplars has one")
			}
			for _, f := range families(t, m) {
				for _, s := range f.GetMetric() {
					native := len(s.GetHistogram().GetExemplars())
					wanted := 0
					if f.GetName() == "warmwire_request_duration_seconds" || f.GetName() == "warmwire_time_to_first_token_seconds" {
						wanted = tt.want / 2
					}
					if native != wanted {
						t.Errorf("%s has %d exemplars beside its native buckets, want %d", f.GetName(), native, wanted)
					}
				}
			}
		})
	}
}

// families scrapes as a Prometheus server with native histograms does.
func families(t testing.TB, m *Metrics) (all []*dto.MetricFamily) {
	t.Helper()
	_, body := scrape(t, m, "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	d := expfmt.NewDecoder(strings.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim))
	for {
		f := new(dto.MetricFamily)
		switch err := d.Decode(f); err {
		case nil:
			all = append(all, f)
		case io.EOF:
			return all
		default:
			t.Fatal(err)
		}
	}
}

// TestPrometheusKeepsTheExemplars lets a real server scrape and asks it for them.
func TestPrometheusKeepsTheExemplars(t *testing.T) {
	program := testenv.Need(t, "prometheus")
	m := New(Config{})
	m.SetUpstreams([]string{"a"})
	r := full("a", "host", "ok", "")
	r.TraceID = trace
	m.RequestDone(r)
	srv := httptest.NewServer(m.Handler())
	defer srv.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	text := "scrape_configs: [{job_name: w, scrape_interval: 100ms, scrape_timeout: 100ms, static_configs: [{targets: ['" + strings.TrimPrefix(srv.URL, "http://") + "']}]}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	port := testenv.FreePorts(t, 1)[0]
	address := "127.0.0.1:" + strconv.Itoa(port)
	testenv.Run(t, exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+dir, "--web.listen-address="+address,
		"--enable-feature=exemplar-storage", "--log.level=error"), port)
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	for _, name := range []string{"warmwire_request_duration_seconds_bucket", "warmwire_time_to_first_token_seconds_bucket"} {
		deadline := time.Now().Add(time.Minute)
		for {
			got := queryExemplars(t, client, "http://"+address+"/api/v1/query_exemplars?start=0&end="+strconv.FormatInt(time.Now().Unix()+3600, 10)+"&query="+url.QueryEscape(name))
			if len(got) > 0 {
				if got[0] != trace {
					t.Errorf("%s: the exemplar is of trace %q", name, got[0])
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("Prometheus has no exemplar of %s", name)
			}
		}
	}
}

func queryExemplars(t *testing.T, client *http.Client, address string) (traces []string) {
	t.Helper()
	resp, err := client.Get(address)
	if err != nil {
		return nil // it is still starting
	}
	defer resp.Body.Close()
	var answer struct {
		Data []struct {
			Exemplars []struct {
				Labels map[string]string
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil
	}
	for _, d := range answer.Data {
		for _, e := range d.Exemplars {
			traces = append(traces, e.Labels["trace_id"])
		}
	}
	return traces
}

// BenchmarkExemplar is what a traced request pays beside one that is not.
func BenchmarkExemplar(b *testing.B) {
	for _, tt := range []struct{ name, trace string }{{"off", ""}, {"on", trace}} {
		b.Run(tt.name, func(b *testing.B) {
			m := New(Config{})
			m.SetUpstreams([]string{"openai"})
			r := full("openai", "base_url", "ok", "")
			r.TraceID = tt.trace
			b.ReportAllocs()
			for b.Loop() {
				m.RequestDone(r)
			}
		})
	}
}
