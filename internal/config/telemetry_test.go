// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"strings"
	"testing"
)

func TestTelemetryOfTheEnvironment(t *testing.T) {
	file := "telemetry: {otlp: {endpoint: env, headers: {API-Key: file}}}\n"
	cfg, warnings, err := Parse("f", []byte(file), env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.test:4318", "OTEL_EXPORTER_OTLP_HEADERS", " x-scope = a%20b%3D , api-key=other,"))
	if err != nil {
		t.Fatal(err)
	}
	o := cfg.Telemetry.OTLP
	if want := map[string]string{"API-Key": "file", "x-scope": "a b="}; o.Endpoint != "http://collector.test:4318" || !maps.Equal(o.ExportHeaders, want) {
		t.Errorf("%+v", o)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "go to collector.test:4318 in clear") {
		t.Errorf("warnings %q", warnings)
	}
	if shown := string(cfg.Show()); strings.Contains(shown, "a b=") || strings.Contains(shown, "API-Key: file") {
		t.Errorf("headers are shown: %s", shown)
	}
	// Without the file's word the environment is not looked at; with it and without the
	// variable nothing is exported, and that is said.
	cfg, _, err = Parse("f", nil, env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.test:4318"))
	if err != nil || cfg.Telemetry.OTLP.Endpoint != "" {
		t.Errorf("%+v %v", cfg, err)
	}
	cfg, warnings, err = Parse("f", []byte(file), noEnv)
	if err != nil || cfg.Telemetry.OTLP.Endpoint != "" || len(warnings) != 1 || !strings.Contains(warnings[0], "OTEL_EXPORTER_OTLP_ENDPOINT is not set") {
		t.Errorf("%v, warnings %q", err, warnings)
	}
	_, _, err = Parse("f", []byte(file), env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318", "OTEL_EXPORTER_OTLP_HEADERS", "s3cret"))
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a list that is none: %v", err)
	}
}

func TestTelemetryThatCannotWork(t *testing.T) {
	for _, tt := range []struct{ file, want string }{
		{"endpoint: 'localhost:4318'", "endpoint: needs http"},
		{"endpoint: 'grpc://host:4317'", "endpoint: needs http"},
		{"endpoint: 'http://host/?k=v'", "endpoint: needs http"},
		{"endpoint: 'https://h', headers: {content-type: x}", "content-type is the exporter's to write"},
		{"endpoint: 'https://h', headers: {'a b': x}", "is no field name"},
		{"endpoint: 'https://h', sample: 1.5", "outside 0 to 1"},
		{"endpoint: 'https://h', interval: 10ms", "outside 1s to 1h"},
		{"endpoint: 'https://h', timeout: 2m", "outside 100ms to 1m"},
		{"endpoint: 'https://h', protocol: grpc", "http/protobuf, http/json"},
		{"endpoint: 'https://h', ca_file: /nowhere.pem", "no such file"},
		{"endpoint: 'https://h', resource: {'': x}", "has no name"},
	} {
		_, _, err := Parse("f", []byte("telemetry: {otlp: {"+tt.file+"}}\n"), noEnv)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.file, err, tt.want)
		}
	}
}
