// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func mustPatch(t testing.TB, text string) Patch {
	t.Helper()
	p, err := ParsePatch([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPatchIsAsIfItStoodInTheFile loads a file with a patch over it, and the file that the
// patch makes of it.
func TestPatchIsAsIfItStoodInTheFile(t *testing.T) {
	const file = "log: {level: warn}\nforward: {deny: [a.test]}\ndefaults: {retry: {budget: 0.3}}\n" +
		"upstreams:\n  mine: {url: 'https://a.test', headers: {set: {X-A: one, X-B: two}}, retry: {budget: 0.4, statuses: [429]}}\n"
	for name, tt := range map[string]struct{ patch, file string }{
		"nothing":            {`{}`, file},
		"a value":            {`{"log": {"level": "debug"}}`, strings.Replace(file, "warn", "debug", 1)},
		"a number":           {`{"defaults": {"retry": {"budget": 0.1}}}`, strings.Replace(file, "0.3", "0.1", 1)},
		"null is default":    {`{"log": {"level": null}}`, strings.Replace(file, "level: warn", "", 1)},
		"null below others":  {`{"upstreams": {"mine": {"retry": {"budget": null}}}}`, strings.Replace(file, "budget: 0.4, ", "", 1)},
		"a section goes":     {`{"upstreams": {"mine": {"retry": null}}}`, strings.Replace(file, ", retry: {budget: 0.4, statuses: [429]}", "", 1)},
		"nothing to go":      {`{"drain": {"wait": null}, "tenants": {"nobody": null}}`, file},
		"a list is whole":    {`{"forward": {"deny": ["b.test"]}}`, strings.Replace(file, "[a.test]", "[b.test]", 1)},
		"a map is merged":    {`{"upstreams": {"mine": {"headers": {"set": {"X-B": null, "X-C": "three"}}}}}`, strings.Replace(file, "X-B: two", "X-C: three", 1)},
		"a section is made":  {`{"drain": {"wait": "3s"}}`, file + "drain: {wait: 3s}\n"},
		"an upstream":        {`{"upstreams": {"new": {"url": "https://b.test"}}}`, file + "  new: {url: 'https://b.test'}\n"},
		"a tenant":           {`{"tenants": {"a": {"tokens": ["0123456789abcdef"], "roles": ["r"]}}, "roles": {"r": {"upstreams": ["*"]}}}`, file + "tenants: {a: {tokens: [0123456789abcdef], roles: [r]}}\nroles: {r: {upstreams: ['*']}}\n"},
		"classes, endpoints": {`{"upstreams": {"mine": {"classes": [{"path": "/b*", "class": "batch"}], "endpoints": [{"url": "https://c.test", "weight": 2}]}}}`, strings.Replace(file, "url: 'https://a.test',", "url: 'https://a.test', classes: [{path: /b*, class: batch}], endpoints: [{url: 'https://c.test', weight: 2}],", 1)},
		"a builtin goes":     {`{"upstreams": {"openai": {"disabled": true}}}`, file + "  openai: {disabled: true}\n"},
		"a dollar":           {`{"upstreams": {"mine": {"headers": {"set": {"X-A": "$$1 ${HOME}"}}}}}`, strings.Replace(file, "X-A: one", "X-A: '$$1 ${HOME}'", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			env := func(string) (string, bool) { return "/home/me", true }
			got, _, err := parse("f", []byte(file), env, Over{Patch: mustPatch(t, tt.patch)})
			if err != nil {
				t.Fatal(err)
			}
			want, _, err := parse("f", []byte(tt.file), env, Over{})
			if err != nil {
				t.Fatal(err)
			}
			if !same(got, want) {
				t.Errorf("got\n%swant\n%s", got.Show(), want.Show())
			}
		})
	}
}

func TestPatchesThatAreRefused(t *testing.T) {
	deep := strings.Repeat(`{"a":`, maxPatchDepth+1) + "1" + strings.Repeat("}", maxPatchDepth+1)
	for patch, want := range map[string]string{
		``: "it ends too early", `{`: "it ends too early", `[]`: "must be an object", `null`: "must be an object", `"s3cret`: "it ends too early",
		`{"a": 1} {}`: "more behind it", `{"log": {"level": "info"}, "log": {}}`: "stands twice", "{\"\xff\": 1}": "no JSON",
		deep: "deeper than 16", `{"log": s3cret}`: "no JSON",
	} {
		if _, err := ParsePatch([]byte(patch)); !errors.Is(err, ErrPatch) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%.60q: %v, want %s", patch, err, want)
		}
	}
	for patch, want := range map[string]string{
		`{"log": {"levle": "debug"}}`:                                     "f: log.levle: unknown key: did you mean level?",
		`{"log": {"levle": null}}`:                                        "f: log.levle: unknown key",
		`{"lgo": null}`:                                                   "f: lgo: unknown key",
		`{"log": {"level": {"a": null}}}`:                                 "f: log.level.a: unknown key",
		`{"log": {"level": "loud"}}`:                                      `f: log.level: "loud" is not known here`,
		`{"log": 7}`:                                                      "f: log: this is a section",
		`{"upstreams": {"new": {}}}`:                                      "f: upstreams.new.url: is needed",
		`{"upstreams": {"New": {"url": "https://a.test"}}}`:               "f: upstreams.New: a name has lower-case letters",
		`{"defaults": {"url": "https://a.test"}}`:                         "f: defaults.url: belongs to one upstream",
		`{"defaults": {"timeouts": {"total": "1s", "connect": "2s"}}}`:    "defaults.timeouts.connect",
		`{"listen": {"token": "****"}}`:                                   "f: listen.token: **** stands for a secret",
		`{"tenants": {"a": {"tokens": ["****", "0123456789abcdef"]}}}`:    "tenants.a.tokens: **** stands for a secret",
		`{"parent_proxy": "http://hidden@p.test:1"}`:                      "parent_proxy: **** stands for a secret",
		`{"upstreams": {"openai": {"headers": {"set": {"X": "${NO}"}}}}}`: "the environment variable NO is not set",
	} {
		_, _, err := parse("f", nil, noEnv, Over{Patch: mustPatch(t, patch)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", patch, err, want)
		}
	}
}

// TestPatchOfWhatIsShown sends all that is shown back: nothing changes, secrets are kept,
// and a change beside them is all there is.
func TestPatchOfWhatIsShown(t *testing.T) {
	file := []byte("listen: {token: s3cret-s3cret}\nparent_proxy: 'http://u:s3cret@p.test:1'\njwt: {issuer: i, secret: s3cret-s3cret-s3cret-s3cret-s3cret}\n" +
		"upstreams: {mine: {url: 'https://a.test', headers: {set: {Authorization: s3cret}}, tls: {min_version: '1.3'}}}\n" +
		"tenants: {a: {tokens: [s3cret-s3cret-s3cret], claims: {sub: x}, roles: [r], keys: {openai: s3cret}}}\nroles: {r: {upstreams: ['*']}}\n")
	cfg, _, err := parse("f", file, noEnv, Over{})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(cfg.Tree())
	if err != nil || bytes.Contains(shown, []byte("s3cret")) {
		t.Fatalf("%v in %s", err, shown)
	}
	if p := mustPatch(t, string(shown)).Unlike(cfg); !p.Empty() {
		t.Errorf("changes %v", p.Paths())
	}
	tree := cfg.Tree()
	tree["log"].(map[string]any)["level"] = "debug"
	shown, _ = json.Marshal(tree)
	p := mustPatch(t, string(shown)).Unlike(cfg)
	if got := p.Paths(); !slices.Equal(got, []string{"log.level"}) {
		t.Errorf("changes %v", got)
	}
	now, _, err := parse("f", file, noEnv, Over{Patch: p})
	if err != nil {
		t.Fatal(err)
	}
	if got := Diff(cfg, now); !slices.Equal(got, []Change{{"log.level", "info", "debug"}}) {
		t.Errorf("%v", got)
	}
	other, _, err := parse("f", bytes.ReplaceAll(file, []byte("s3cret"), []byte("geheim")), noEnv, Over{})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, c := range Diff(cfg, other) {
		keys = append(keys, c.Key)
		if !strings.Contains(c.To, "****") && !strings.Contains(c.To, "hidden@") || strings.Contains(c.To, "geheim") {
			t.Errorf("%+v", c)
		}
	}
	if want := []string{"jwt.secret", "listen.token", "parent_proxy", "tenants.a.keys.openai", "tenants.a.tokens", "upstreams.mine.headers.set.Authorization"}; !slices.Equal(keys, want) {
		t.Errorf("%v, want %v", keys, want)
	}
	tag, again := cfg.Tag([]byte("k")), cfg.Tag([]byte("k"))
	if tag == other.Tag([]byte("k")) || tag == cfg.Tag([]byte("l")) || tag != again {
		t.Error("the tag does not tell configurations apart")
	}
}

// TestPatchesAfterEachOther has one patch after another mean what RFC 7396 says of both.
func TestPatchesAfterEachOther(t *testing.T) {
	const file = "upstreams:\n  mine: {url: 'https://a.test', retry: {budget: 0.4, statuses: [429]}}\n"
	for name, tt := range map[string]struct {
		over    Over
		patches []string
		want    string
	}{
		"taken away and made again": {Over{}, []string{`{"upstreams": {"mine": {"retry": null}}}`, `{"upstreams": {"mine": {"retry": {"budget": 0.1}}}}`},
			"upstreams:\n  mine: {url: 'https://a.test', retry: {budget: 0.1}}\n"},
		"the later one": {Over{}, []string{`{"log": {"level": "debug"}}`, `{"log": {"level": "warn", "format": "json"}}`, `{"log": {"level": null}}`}, file + "log: {format: json}\n"},
		"over what is tuned": {Over{Tuned: map[string]string{"log.level": "debug", "upstreams.mine.retry.budget": "0.1"}}, []string{`{"log": {"level": "warn"}}`},
			strings.Replace(file, "0.4", "0.1", 1) + "log: {level: warn}\n"},
		"in what is tuned, with names that look like numbers": {Over{Tuned: map[string]string{"upstreams.mine.routing.weights": "{1: 010, 2020-01-01: 3}"}},
			[]string{`{"upstreams": {"mine": {"endpoints": [{"url": "https://a.test", "name": "1"}, {"url": "https://b.test", "name": "2020-01-01"}], "routing": {"weights": {"2020-01-01": 5}}}}}`},
			strings.Replace(file, "retry:", "endpoints: [{url: 'https://a.test', name: '1'}, {url: 'https://b.test', name: '2020-01-01'}], routing: {weights: {'1': 10, '2020-01-01': 5}}, retry:", 1)},
		"in what is tuned": {Over{Tuned: map[string]string{"upstreams.mine.routing.weights": "{a: 2, b: 3}"}},
			[]string{`{"upstreams": {"mine": {"endpoints": [{"url": "https://a.test", "name": "a"}, {"url": "https://b.test", "name": "b"}], "routing": {"weights": {"b": 5}}}}}`},
			strings.Replace(file, "retry:", "endpoints: [{url: 'https://a.test', name: a}, {url: 'https://b.test', name: b}], routing: {weights: {a: 2, b: 5}}, retry:", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			over := tt.over
			for _, p := range tt.patches {
				over = over.With(mustPatch(t, p))
			}
			passedOn(t, over)
			got, _, err := parse("f", []byte(file), noEnv, over)
			if err != nil {
				t.Fatal(err)
			}
			want, _, err := parse("f", []byte(tt.want), noEnv, Over{})
			if err != nil || !same(got, want) {
				t.Errorf("%v: %v", err, Diff(want, got))
			}
		})
	}
	over := Over{}.With(mustPatch(t, `{"log": {"level": "debug"}, "drain": {"wait": "1s"}}`)).Tune(map[string]string{"log.level": ""})
	if got := over.Patch.Paths(); !slices.Equal(got, []string{"drain.wait"}) {
		t.Errorf("taken back with tune: %v is left", got)
	}
}

// passedOn wants an Over to be the same for the process that it is handed to.
func passedOn(t *testing.T, over Over) {
	t.Helper()
	text, err := over.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := UnmarshalOver(text); err != nil || !reflect.DeepEqual(got.Patch, over.Patch) || !maps.Equal(got.Tuned, over.Tuned) {
		t.Fatalf("%v: %#v became %#v", err, over, got)
	}
}

func TestUnmarshalOverRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                   "",
		"half":                      `{"tuned": {"log.level": "de`,
		"two":                       `{} {}`,
		"of a later version":        `{"tuned": {}, "more": 1}`,
		"a node of a later version": `{"patch": {"fields": {"log": {"append": 1}}}}`,
	} {
		if over, err := UnmarshalOver([]byte(text)); err == nil {
			t.Errorf("%s: %#v", name, over)
		}
	}
}

func TestEditPatchLeavesTheRestAsItIs(t *testing.T) {
	for name, tt := range map[string]struct{ text, patch, want string }{
		"a value":            {"# mine\nlog:\n  level: info # quiet\n", `{"log": {"level": "debug"}}`, "# mine\nlog:\n  level: debug # quiet\n"},
		"a line goes":        {"log:\n  # of what\n  level: debug\n  format: json # both\ndrain: {wait: 1s}\n", `{"log": {"level": null}}`, "log:\n  # of what\n  format: json # both\ndrain: {wait: 1s}\n"},
		"the last line goes": {"log:\n  level: debug", `{"log": {"level": null}}`, "log:\n"},
		"the last of a map": {"upstreams:\n  openai:\n    headers:\n      set: # ours\n        # why\n        X-A: one # a\n    priority: batch\n", `{"upstreams": {"openai": {"headers": {"set": {"X-A": null}}}}}`,
			"upstreams:\n  openai:\n    headers:\n      set: # ours\n        # why\n        {}\n    priority: batch\n"},
		"the last of two maps": {"upstreams:\n  openai:\n    headers: {set: {X-A: one}}\n    routing:\n      weights:\n        a: 1\n    endpoints: [{url: 'https://a.test', name: a}]", `{"upstreams": {"openai": {"headers": {"set": {"X-A": null}}, "routing": {"weights": {"a": null}}}}}`,
			"upstreams:\n  openai:\n    headers: {set: {}}\n    routing:\n      weights:\n        {}\n    endpoints: [{url: 'https://a.test', name: a}]"},
		"a section goes":         {"log:\n  level: debug\n  access:\n    sample: 1\n# end\ndrain: {wait: 1s}\n", `{"log": null}`, "# end\ndrain: {wait: 1s}\n"},
		"the first in braces":    {"log: {level: debug, format: json} # a\n", `{"log": {"level": null}}`, "log: {format: json} # a\n"},
		"the last in braces":     {"log: {format: json, level: debug} # a\n", `{"log": {"level": null}}`, "log: {format: json} # a\n"},
		"the only one in braces": {"log: {level: debug} # a\n", `{"log": {"level": null}}`, "log: {} # a\n"},
		"a new upstream": {"upstreams:\n  a: {url: 'https://a.test'} # a\n", `{"upstreams": {"b": {"url": "https://b.test", "retry": {"statuses": [429, 503]}}}}`,
			"upstreams:\n  a: {url: 'https://a.test'} # a\n  b:\n    retry:\n      statuses: [429, 503]\n    url: \"https://b.test\"\n"},
		"a list with quotes":   {"forward: {deny: ['a.test', \"b].test\"]} # a\n", `{"forward": {"deny": ["c.test", ".d.test"]}}`, "forward: {deny: [c.test, \".d.test\"]} # a\n"},
		"a list of rules":      {"upstreams:\n  openai:\n    classes: [{path: /a*, class: batch}] # a\n", `{"upstreams": {"openai": {"classes": [{"path": "/b", "class": "default"}]}}}`, "upstreams:\n  openai:\n    classes: [{class: default, path: \"/b\"}] # a\n"},
		"a name with a dot":    {"upstreams:\n  v:\n    endpoints: [{url: 'https://a.test'}]\n", `{"upstreams": {"v": {"routing": {"weights": {"a.test": 2}}}}}`, "upstreams:\n  v:\n    endpoints: [{url: 'https://a.test'}]\n    routing:\n      weights:\n        a.test: 2\n"},
		"nothing is set again": {"log: {level: debug}\n", `{}`, "log: {level: debug}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustPatch(t, tt.patch)
			want, _, err := parse("f", []byte(tt.text), noEnv, Over{Patch: p})
			if err != nil {
				t.Fatal(err)
			}
			got, err := EditPatch([]byte(tt.text), p, noEnv, Over{}, want)
			if err != nil || string(got) != tt.want {
				t.Errorf("%v, got\n%swant\n%s", err, got, tt.want)
			}
		})
	}
	// What stands over several lines is left to people.
	text, p := "forward:\n  deny:\n    - a.test\n", mustPatch(t, `{"forward": {"deny": []}}`)
	want, _, err := parse("f", []byte(text), noEnv, Over{Patch: p})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := EditPatch([]byte(text), p, noEnv, Over{}, want); !errors.Is(err, errByHand) {
		t.Errorf("%v: %s", err, got)
	}
	// A file that means something only with what is not saved is none.
	first := Over{}.With(mustPatch(t, `{"upstreams": {"new": {"url": "https://a.test"}}}`))
	p = mustPatch(t, `{"upstreams": {"new": {"priority": "batch"}}}`)
	if want, _, err = parse("f", nil, noEnv, first.With(p)); err != nil {
		t.Fatal(err)
	}
	if _, err := EditPatch(nil, p, noEnv, first, want); err == nil || !strings.Contains(err.Error(), "not saved") {
		t.Error(err)
	}
}

// FuzzPatch has whatever comes as a patch refused, or mean the same over the file, after
// what is shown, and written into the file.
func FuzzPatch(f *testing.F) {
	const file = "log: {level: warn}\n# mine\nupstreams:\n  mine:\n    url: 'https://a.test' # x\n    headers: {set: {X-A: s3cret}}\n    retry:\n      budget: 0.4\n"
	f.Add(`{"log": {"level": "debug"}}`, file)
	f.Add(`{"log": null, "upstreams": {"mine": {"headers": {"set": {"X-A": "****", "b.c": "$$"}}}}}`, file)
	f.Add(`{"upstreams": {"new": {"url": "https://b.test", "retry": {"statuses": [429]}}}}`, "")
	f.Add(`{"a": {"a": [null, {"a": 1e9}]}, "a": null}`, "{}")
	f.Fuzz(func(t *testing.T, patch, text string) {
		p, err := ParsePatch([]byte(patch))
		if err != nil {
			return
		}
		_ = p.Paths()
		_ = p.Untunable()
		passedOn(t, Over{Patch: p})
		if twice := p.With(p); !reflect.DeepEqual(twice.Paths(), p.Paths()) && !strings.Contains(patch, "null") {
			t.Fatalf("%q twice: %v, once %v", patch, twice.Paths(), p.Paths())
		}
		before, _, err := parse("f", []byte(text), noEnv, Over{})
		if err != nil {
			return
		}
		p = p.Unlike(before)
		after, _, err := parse("f", []byte(text), noEnv, Over{Patch: p})
		if err != nil {
			return
		}
		if p.Empty() && !same(before, after) {
			t.Fatalf("%q is nothing and changes %v", patch, Diff(before, after))
		}
		if !p.Unmasked().Empty() && len(Diff(before, after)) == 0 && !same(before, after) {
			t.Fatalf("%q changes something that is not told", patch)
		}
		if left := mustPatch(t, patch).Unlike(after).Unlike(before); !left.Empty() && strings.Contains(text, "s3cret") {
			for _, c := range Diff(before, after) {
				if strings.Contains(c.To+c.From, "s3cret") {
					t.Fatalf("%q shows a secret: %+v", patch, c)
				}
			}
		}
		out, err := EditPatch([]byte(text), p, noEnv, Over{}, after)
		if err != nil {
			return
		}
		again, _, err := parse("f", out, noEnv, Over{})
		if err != nil || !same(again, after) {
			t.Fatalf("%q made %q of %q: %v", patch, out, text, err)
		}
	})
}
