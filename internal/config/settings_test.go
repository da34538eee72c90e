// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestSettingsCanBePutBack takes every value in force as it is shown and puts it over the
// file: nothing changes, so that whoever changed one can undo it.
func TestSettingsCanBePutBack(t *testing.T) {
	file := []byte("defaults: {retry: {budget: 0.3}}\nupstreams: {mine: {url: 'https://a.test', protocols: [h2], heartbeat: {mode: \"off\"}}}\n")
	cfg, _, err := parse("f", file, noEnv, Over{})
	if err != nil {
		t.Fatal(err)
	}
	values := cfg.Values()
	for _, s := range Settings() {
		path := s.Key
		if s.Scope == "upstream" {
			path = "upstreams.mine." + s.Key
		}
		if _, there := values[path]; !there {
			t.Errorf("%s is not shown", path)
		}
	}
	if values["upstreams.mine.retry.budget"] != "0.3" || values["upstreams.mine.protocols"] != `["h2"]` || values["upstreams.openai.heartbeat.mode"] != "adaptive" || values["limits.memory"] != "auto" {
		t.Errorf("%v", values)
	}
	for path, value := range values {
		if strings.HasPrefix(path, "upstreams.") && !strings.HasPrefix(path, "upstreams.mine.") {
			continue // the keys are the same
		}
		again, _, err := parse("f", file, noEnv, Over{Tuned: map[string]string{path: value}})
		if err != nil {
			t.Errorf("%s=%s: %v", path, value, err)
			continue
		}
		if !maps.Equal(again.Values(), values) {
			t.Errorf("%s=%s changes %v", path, value, cfg.Changed(again))
		}
	}
	other, _, err := parse("f", file, noEnv, Over{Tuned: map[string]string{"defaults.retry.budget": "0.1", "upstreams.mine.retry.budget": "0.2"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Changed(other); !slices.Contains(got, "upstreams.mine.retry.budget") || !slices.Contains(got, "upstreams.openai.retry.budget") || slices.Contains(got, "log.level") {
		t.Errorf("changed: %v", got)
	}
}
