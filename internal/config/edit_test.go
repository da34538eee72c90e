// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

func TestEditLeavesTheRestAsItIs(t *testing.T) {
	for name, tt := range map[string]struct{ text, path, value, want string }{
		"a value": {"# mine\nlog:\n  level: info   # quiet\n  # more\n", "log.level", "debug", "# mine\nlog:\n  level: debug   # quiet\n  # more\n"},
		"quoted":  {"log: {level: 'info', format: \"text\"} # both\n", "log.level", "warn", "log: {level: warn, format: \"text\"} # both\n"},
		"a new key in a section": {"log:\n  level: info # a\n\n# drains\ndrain:\n  wait: 1s\n", "drain.timeout", "9s",
			"log:\n  level: info # a\n\n# drains\ndrain:\n  wait: 1s\n  timeout: 9s\n"},
		"before what follows": {"drain:\n  wait: 1s # one\n# log\nlog:\n  level: info\n", "drain.timeout", "9s",
			"drain:\n  wait: 1s # one\n  timeout: 9s\n# log\nlog:\n  level: info\n"},
		"a new section":          {"log: {level: info}", "drain.timeout", "9s", "log: {level: info}\ndrain:\n  timeout: 9s\n"},
		"in a section in braces": {"upstreams:\n  openai: {}\n", "upstreams.openai.retry.budget", "0.1", "upstreams:\n  openai: {retry: {budget: 0.1}}\n"},
		"deep in braces":         {"upstreams: {mine: {url: 'https://a.test', retry: {budget: 0.3}}}\n", "upstreams.mine.retry.budget", "0.1", "upstreams: {mine: {url: 'https://a.test', retry: {budget: 0.1}}}\n"},
		"a built-in":             {"upstreams:\n  mine:\n    url: https://a.test\n", "upstreams.openai.priority", "batch", "upstreams:\n  mine:\n    url: https://a.test\n  openai:\n    priority: batch\n"},
		"a list":                 {"defaults:\n  retry:\n    statuses: [429] # rate\n", "defaults.retry.statuses", "[429, 503]", "defaults:\n  retry:\n    statuses: [429, 503] # rate\n"},
		"nothing":                {"", "log.level", "debug", "log:\n  level: debug\n"},
		"comments only":          {"# nothing\n", "log.level", "debug", "# nothing\nlog:\n  level: debug\n"},
		"an empty section":       {"log:\ndrain: {wait: 1s}\n", "log.level", "debug", "log: {level: debug}\ndrain: {wait: 1s}\n"},
		"behind umlauts":         {"upstreams: {mine: {headers: {set: {X: 'äöü'}}, url: 'https://a.test', priority: batch}}\n", "upstreams.mine.priority", "default", "upstreams: {mine: {headers: {set: {X: 'äöü'}}, url: 'https://a.test', priority: default}}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Edit([]byte(tt.text), map[string]string{tt.path: tt.value}, noEnv)
			if err != nil || string(got) != tt.want {
				t.Errorf("%v, got\n%swant\n%s", err, got, tt.want)
			}
		})
	}
}

func TestWhatIsEditedByHand(t *testing.T) {
	for text, change := range map[string]string{
		"defaults:\n  retry:\n    statuses:\n      - 429\n":                  "defaults.retry.statuses=[503]",
		"defaults: {retry: {statuses: [429,\n  503]}}\n":                     "defaults.retry.statuses=[503]",
		"log:\n  level: |-\n    info\n":                                      "log.level=debug",
		"defaults:\n  retry: {budget: 0.1,\n    statuses: [429]}\n":          "defaults.buffer.policy=spool",
		"upstreams:\n  mine:\n    url: https://a.test\n    priority: none\n": "upstreams.mine.retry.budget=0.1",
	} {
		key, value, _ := strings.Cut(change, "=")
		if got, err := Edit([]byte(text), map[string]string{key: value}, noEnv); err == nil {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// FuzzEdit has whatever a file looks like either changed to mean what it should, or left.
func FuzzEdit(f *testing.F) {
	f.Add("log:\n  level: info # a\n", "log.level", "debug")
	f.Add("upstreams: {mine: {url: 'https://a.test'}}", "upstreams.mine.retry.budget", "0.1")
	f.Add("defaults:\r\n\tretry: {}\r\n", "defaults.retry.statuses", "[429, 503]")
	f.Fuzz(func(t *testing.T, text, path, value string) {
		changes := map[string]string{path: value}
		out, err := Edit([]byte(text), changes, noEnv)
		if err != nil {
			return
		}
		want, _, err := parse("f", []byte(text), noEnv, Over{Tuned: changes})
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := parse("f", out, noEnv, Over{})
		if err != nil || string(got.Show()) != string(want.Show()) {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
	})
}
