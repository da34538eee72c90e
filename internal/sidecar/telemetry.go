// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/internal/otlp"
	"github.com/warmwire/warmwire/internal/telemetry"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport"
)

// A collector is where telemetry goes and what it was built from: a reload keeps it if it
// would come out the same, so that nothing is sent twice. A nil collector is none.
type collector struct {
	made      string
	target    *otlp.Target
	transport *transport.Transport
}

// newTelemetry makes the exporter.
func (s *Sidecar) newTelemetry() (err error) {
	s.telemetry, err = telemetry.New(telemetry.Config{
		Version: cmp.Or(s.opt.Version, "unknown"), Budget: s.memory, Jitter: rand.Float64, Report: s.telemetryReport(),
	})
	return err
}

// buildCollector makes the way to the collector of cfg, as jwt.keys_url is reached: by the
// same resolver, and through the parent proxy where one applies.
func (s *Sidecar) buildCollector(cfg *config.Config, old *collector) (*collector, error) {
	o := cfg.Telemetry.OTLP
	if o.Endpoint == "" || !o.Traces && !o.Metrics {
		return nil, nil
	}
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, err
	}
	ca, err := readFiles(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp.ca_file: %w", err)
	}
	made := fmt.Sprintf("%q %q %q %v %x %q %q", o.Endpoint, o.Protocol, o.ExportHeaders, o.Timeout, sha256.Sum256(ca[0]), cfg.ParentProxy, cfg.NoProxy)
	if old != nil && old.made == made {
		return old, nil
	}
	pick, err := parentPicker(cfg)
	if err != nil {
		return nil, err
	}
	trusted, err := trust.New(trust.Config{CA: ca[0], Store: s.roots})
	if err != nil {
		return nil, fmt.Errorf("telemetry.otlp.ca_file: %w", err)
	}
	c := &collector{made: made}
	if c.transport, err = transport.New(s.dialer(time.Duration(o.Timeout), "", pick), transport.Config{Trust: trusted, Sessions: s.sessions}); err != nil {
		return nil, err
	}
	header := make(http.Header, len(o.ExportHeaders))
	for name, v := range o.ExportHeaders {
		header.Set(name, v)
	}
	encoding := otlp.Protobuf
	if o.Protocol == "http/json" {
		encoding = otlp.JSON
	}
	c.target, err = otlp.New(c.transport, otlp.Config{Endpoint: endpoint, Header: header, Encoding: encoding, Timeout: time.Duration(o.Timeout)})
	if err != nil {
		c.transport.Close()
	}
	return c, err
}

// useCollector has telemetry go to c from now on.
func (s *Sidecar) useCollector(c *collector, cfg *config.Config) {
	o := cfg.Telemetry.OTLP
	settings := telemetry.Settings{
		Traces: o.Traces, Metrics: o.Metrics, Sample: o.Sample, Interval: time.Duration(o.Interval), Upstreams: make(map[string]telemetry.Upstream, len(cfg.Upstreams)),
	}
	if c != nil {
		settings.Target = c.target
	}
	for _, name := range slices.Sorted(maps.Keys(o.Resource)) {
		settings.Resource = append(settings.Resource, otlp.String(name, o.Resource[name]))
	}
	for _, u := range cfg.Upstreams {
		settings.Upstreams[u.Name] = conventional(u)
	}
	_ = s.telemetry.Update(settings) // config has checked it
	if old := s.collector; old != nil && old != c {
		old.transport.Retire()
	}
	s.collector = c
}

// conventional is what the GenAI semantic conventions want to know of an upstream.
func conventional(u config.Upstream) telemetry.Upstream {
	if u.URL == nil {
		return telemetry.Upstream{Provider: provider("", u.Dialect)}
	}
	host := strings.ToLower(u.URL.Hostname())
	up := telemetry.Upstream{Provider: provider(host, u.Dialect)}
	if len(u.Endpoints) > 0 { // one of several, which is not known afterwards
		return up
	}
	up.Address = host
	if up.Port, _ = strconv.Atoi(u.URL.Port()); up.Port == 0 {
		up.Port = map[string]int{"http": 80, "https": 443}[u.URL.Scheme]
	}
	return up
}

// providers are the well-known values of gen_ai.provider.name by the end of a host's name.
var providers = [...]struct{ suffix, name string }{
	{"api.openai.com", "openai"}, {".openai.azure.com", "azure.ai.openai"}, {".services.ai.azure.com", "azure.ai.inference"},
	{"api.anthropic.com", "anthropic"}, {"generativelanguage.googleapis.com", "gcp.gemini"}, {"aiplatform.googleapis.com", "gcp.vertex_ai"},
	{".amazonaws.com", "aws.bedrock"}, {"api.mistral.ai", "mistral_ai"}, {"api.x.ai", "x_ai"}, {"api.groq.com", "groq"}, {"api.deepseek.com", "deepseek"},
	{"api.perplexity.ai", "perplexity"}, {"api.cohere.com", "cohere"}, {".ml.cloud.ibm.com", "ibm.watsonx.ai"},
}

// provider is gen_ai.provider.name: who it is, or else whose API it speaks.
func provider(host, dialect string) string {
	for _, p := range providers {
		if host == p.suffix || strings.HasPrefix(p.suffix, ".") && strings.HasSuffix(host, p.suffix) || strings.HasSuffix(host, "-"+p.suffix) {
			return p.name
		}
	}
	if dialect == "gemini" {
		return "gcp.gemini"
	}
	return dialect
}

// telemetryNoteEvery limits how often a collector that does not work is logged.
const telemetryNoteEvery = time.Minute

// telemetryReport counts what becomes of telemetry, and logs when exports begin to fail,
// now and then while they do, and when they work again.
func (s *Sidecar) telemetryReport() func(telemetry.Report) {
	var mu sync.Mutex // guards the fields below
	var failing, noted time.Time
	return func(r telemetry.Report) {
		if r.Spans > 0 {
			s.metrics.Spans(string(r.Outcome), r.Spans)
		}
		if r.Outcome == telemetry.Dropped {
			return
		}
		s.metrics.Export(string(r.Signal), string(r.Outcome))
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		switch {
		case r.Err == nil && r.Outcome == telemetry.Exported:
			if !failing.IsZero() {
				s.log.Info("telemetry is exported again", "after", now.Sub(failing).Round(time.Second).String())
			}
			failing = time.Time{}
		case r.Outcome != telemetry.Exported && now.Sub(noted) >= telemetryNoteEvery:
			noted = now
			if failing.IsZero() {
				failing = now
			}
			cause := ""
			if r.Err != nil {
				cause = r.Err.Error() // never what was sent or answered
			}
			s.log.Warn("telemetry is not taken by the collector", "signal", string(r.Signal), "outcome", string(r.Outcome), "error", cause)
		}
	}
}

// telemetryDone hands a record to the exporter, and returns the trace that its span is in.
// Tunnels are no requests, and what is in them is not known.
func (s *Sidecar) telemetryDone(r *ingress.Record) (trace string) {
	if r.Mode == ingress.ModeTunnel || !s.telemetry.Active() {
		return ""
	}
	p, parts := &r.Phases, &r.Parts
	t := telemetry.Request{
		ID: r.ID, Start: r.Start, Duration: r.Duration, Upstream: r.Upstream, Tenant: r.Tenant, Mode: string(r.Mode), Method: r.Method, Protocol: r.UpstreamProto,
		Operation: r.Operation, Status: r.Status, Outcome: string(r.Outcome), Cause: r.Cause, Fault: string(r.Fault), Trace: telemetry.Trace(r.Trace),
		TTFT: r.TTFT, Tokens: r.PerChunk * time.Duration(max(r.Chunks-1, 0)), Chunks: r.Chunks, Gaps: r.Gaps, InputTokens: r.InputTokens, OutputTokens: r.OutputTokens,
		Attempts: r.Attempts, Stream: r.Stream, Reused: r.Reused,
	}
	t.Stages = [...]time.Duration{p.Queue, p.DNS, p.Connect, p.TLS, p.Send, p.Wait, p.Retry, p.FirstToken, parts.Provider, parts.Held, parts.Network, parts.App}
	return s.telemetry.Done(&t)
}

// closeCollector ends the way to it.
func (s *Sidecar) closeCollector() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if s.collector != nil {
		s.collector.transport.Close()
	}
}
