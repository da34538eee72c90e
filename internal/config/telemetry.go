// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Telemetry is what is exported beside the metrics page.
type Telemetry struct{ OTLP OTLP }

// OTLP is the export to an OpenTelemetry collector.
type OTLP struct {
	Endpoint          string // URL; "" = nothing is exported
	Protocol          string // http/protobuf or http/json
	ExportHeaders     map[string]string
	Traces, Metrics   bool
	Sample            float64
	Interval, Timeout Duration
	CAFile            string
	Resource          map[string]string
}

// The variables that endpoint env reads (OpenTelemetry Protocol Exporter).
const (
	otlpEndpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	otlpHeaders  = "OTEL_EXPORTER_OTLP_HEADERS"
)

// telemetry is the export, with what the environment says if the file wants that.
func (p *parser) telemetry() Telemetry {
	get := func(key string) value { return p.get(topKeys, "telemetry.otlp."+key, "telemetry.otlp."+key) }
	o := OTLP{
		Endpoint: get("endpoint").text, Protocol: get("protocol").text, ExportHeaders: maps.Clone(get("headers").dict), Traces: get("traces").text == "true",
		Metrics: get("metrics").text == "true", Sample: float(get("sample").text), Interval: duration(get("interval").text), Timeout: duration(get("timeout").text),
		CAFile: get("ca_file").text, Resource: get("resource").dict,
	}
	if o.Endpoint != "env" {
		return Telemetry{o}
	}
	o.Endpoint, _ = p.getenv(otlpEndpoint)
	text, _ := p.getenv(otlpHeaders)
	if o.ExportHeaders == nil {
		o.ExportHeaders = make(map[string]string)
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, escaped, ok := strings.Cut(pair, "=")
		v, err := url.PathUnescape(strings.TrimSpace(escaped))
		switch name = strings.TrimSpace(name); {
		case strings.TrimSpace(pair) == "":
		case !ok || err != nil || !httpguts.ValidHeaderFieldName(name):
			p.addf(get("endpoint").line, "telemetry.otlp.endpoint", "%s is no list of name=value,name=value", otlpHeaders) // without a word of it
		case !hasField(o.ExportHeaders, name): // the file's own count
			o.ExportHeaders[name] = v
		}
	}
	return Telemetry{o}
}

func hasField(fields map[string]string, name string) bool {
	for have := range fields {
		if strings.EqualFold(have, name) {
			return true
		}
	}
	return false
}

// ownFields are those that the exporter writes.
var ownFields = []string{"Content-Type", "Content-Encoding", "User-Agent"}

func (c *checker) telemetry() {
	o := c.cfg.Telemetry.OTLP
	addf := func(key, format string, args ...any) {
		c.addf(c.line("telemetry.otlp."+key), "telemetry.otlp."+key, format, args...)
	}
	c.exportHeaders(o)
	if !(o.Sample >= 0 && o.Sample <= 1) {
		addf("sample", "%v is outside 0 to 1", o.Sample)
	}
	if o.Interval < Duration(time.Second) || o.Interval > Duration(time.Hour) {
		addf("interval", "%v is outside 1s to 1h", o.Interval)
	}
	if o.Timeout < Duration(100*time.Millisecond) || o.Timeout > Duration(time.Minute) {
		addf("timeout", "%v is outside 100ms to 1m", o.Timeout)
	}
	for name := range o.Resource {
		if name == "" {
			addf("resource", "an attribute has no name")
		}
	}
	if o.Endpoint == "" {
		switch v := c.values["telemetry.otlp.endpoint"]; {
		case v.text == "env":
			c.warnf(v.line, "telemetry.otlp.endpoint", "%s is not set: nothing is exported", otlpEndpoint)
		case o.CAFile != "" || len(o.ExportHeaders) > 0:
			c.warnf(0, "telemetry.otlp", "does nothing without telemetry.otlp.endpoint")
		}
		return
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.RawQuery != "" || !validHost(u.Hostname()) || u.Scheme != "https" && u.Scheme != "http" {
		addf("endpoint", "needs http://host:port or https://host:port, with a path at most: credentials go into telemetry.otlp.headers")
		return
	}
	if u.Scheme == "http" && len(o.ExportHeaders) > 0 && !loopback(u.Hostname()) {
		c.warnf(c.line("telemetry.otlp.headers"), "telemetry.otlp.headers", "go to %s in clear", u.Host)
	}
	if !o.Traces && !o.Metrics {
		c.warnf(c.line("telemetry.otlp.endpoint"), "telemetry.otlp.endpoint", "gets nothing: telemetry.otlp.traces and metrics are both false")
	}
	if o.CAFile == "" {
		return
	}
	if info, err := os.Stat(o.CAFile); err != nil {
		addf("ca_file", "%v", err)
	} else if info.IsDir() {
		addf("ca_file", "%s is a folder", o.CAFile)
	} else if u.Scheme == "http" {
		addf("ca_file", "does nothing for an endpoint without TLS")
	}
}

func (c *checker) exportHeaders(o OTLP) {
	const key = "telemetry.otlp.headers"
	for _, name := range slices.Sorted(maps.Keys(o.ExportHeaders)) {
		if !httpguts.ValidHeaderFieldName(name) {
			c.addf(c.line(key), key, "%q is no field name", name)
		}
		if !httpguts.ValidHeaderFieldValue(o.ExportHeaders[name]) {
			c.addf(c.line(key), key, "the value of %s has bytes that no field may have", name)
		}
		if canonical := http.CanonicalHeaderKey(name); slices.Contains(notInjectable, canonical) || slices.Contains(ownFields, canonical) {
			c.addf(c.line(key), key, "%s is the exporter's to write", name)
		}
	}
}

func (o OTLP) show() map[string]any {
	headers := make(map[string]string, len(o.ExportHeaders))
	for name := range o.ExportHeaders {
		headers[name] = hidden
	}
	return map[string]any{"endpoint": o.Endpoint, "protocol": o.Protocol, "headers": headers, "traces": o.Traces, "metrics": o.Metrics, "sample": o.Sample,
		"interval": o.Interval.String(), "timeout": o.Timeout.String(), "ca_file": o.CAFile, "resource": o.Resource}
}
