// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestInterceptedHosts reads whose TLS Warmwire ends: that of nobody who is not named.
func TestInterceptedHosts(t *testing.T) {
	const upstreams = "upstreams: {openai: {}, mine: {url: 'https://Mine.test:8443/x'}, plain: {url: 'http://plain.test'}}\n"
	tests := []struct {
		name, file string
		want       []string
		warning    string
	}{
		{name: "nothing by default", file: upstreams},
		{name: "names", file: "intercept: {hosts: [B.test., a.test, '::1']}\n", want: []string{"::1", "a.test", "b.test"}},
		{name: "upstreams of the file", file: "intercept: {hosts: [upstreams]}\n" + upstreams, want: []string{"api.openai.com", "mine.test"}},
		{name: "upstreams and a name", file: "intercept: {hosts: [upstreams, mine.test]}\n" + upstreams, want: []string{"api.openai.com", "mine.test"}},
		{name: "less the blind", file: "intercept: {hosts: [upstreams], blind: [mine.test]}\n" + upstreams, want: []string{"api.openai.com"}},
		{name: "both", file: "intercept: {hosts: [a.test, b.test], blind: [b.test]}\n", want: []string{"a.test"}, warning: "b.test stands in intercept.hosts too"},
		{name: "blind alone", file: "intercept: {blind: [b.test]}\n", warning: "does nothing: intercept.hosts is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, warnings, err := Parse("f", []byte(tt.file), noEnv)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, cfg.Intercepted(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("hosts (-want +got):\n%s", diff)
			}
			if got := strings.Join(warnings, "\n"); tt.warning != "" && !strings.Contains(got, tt.warning) {
				t.Errorf("warnings %q, want %q", got, tt.warning)
			}
		})
	}
}
