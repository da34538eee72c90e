// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"time"
)

func TestTunedValuesStandOverTheFile(t *testing.T) {
	file := []byte("defaults: {retry: {budget: 0.3}, buffer: {stall_timeout: 1m}}\nupstreams: {mine: {url: 'https://a.test'}}\n")
	cfg, _, err := parse("f", file, noEnv, Over{Tuned: map[string]string{
		"defaults.retry.budget": "0.1", "upstreams.openai.retry.budget": "0.4", "upstreams.mine.retry.statuses": "[429, 503]",
		"limits.memory": "64MiB", "log.level": "debug",
	}})
	if err != nil {
		t.Fatal(err)
	}
	mine, openai := named(cfg, "mine"), named(cfg, "openai")
	if mine.Retry.Budget != 0.1 || len(mine.Retry.Statuses) != 2 || openai.Retry.Budget != 0.4 || !openai.Builtin ||
		time.Duration(mine.Buffer.StallTimeout) != time.Minute || cfg.Limits.Memory != 64<<20 || cfg.Log.Level != "debug" {
		t.Errorf("mine %+v, openai %+v, %+v", mine, openai, cfg.Limits)
	}
}

func TestWhatCannotBeTuned(t *testing.T) {
	for path, tt := range map[string]struct{ value, want string }{
		"listen.address":                 {"127.0.0.1:1", "f: listen.address: cannot be changed while Warmwire runs"},
		"upstreams.openai.url":           {"https://a.test", "f: upstreams.openai.url: cannot be changed while Warmwire runs"},
		"upstreams.openai.headers.set":   {"{A: b}", "cannot be changed while Warmwire runs"},
		"upstreams.openai.tls.pins":      {"[]", "cannot be changed while Warmwire runs"},
		"defaults.url":                   {"https://a.test", "cannot be changed while Warmwire runs"},
		"upstreams.nobody.retry.budget":  {"0.1", `f: upstreams.nobody.retry.budget: there is no upstream "nobody"`},
		"upstreams.openai.retry.bugdet":  {"0.1", "f: upstreams.openai.retry.bugdet: unknown key"},
		"upstreams.openai":               {"{}", "unknown key"},
		"":                               {"1", "unknown key"},
		"defaults.retry.budget":          {"a lot", `f: defaults.retry.budget: "a lot" is no number`},
		"defaults.retry.base_delay":      {"1h", "is not between 0s and retry.max_delay"},
		"defaults.retry.statuses":        {"429", "f: defaults.retry.statuses: needs a list"},
		"defaults.buffer.stream_limit":   {"[", "f: defaults.buffer.stream_limit: the value is none as it would stand in the file"},
		"upstreams.openai.buffer.policy": {"&a spool", "anchors and aliases are not used here"},
	} {
		t.Run(path, func(t *testing.T) {
			if _, _, err := parse("f", nil, noEnv, Over{Tuned: map[string]string{path: tt.value}}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}
