// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

func TestHouseKeepsItsRules(t *testing.T) {
	problems, err := check(os.DirFS("../.."), houseRules)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// TestExceptionsAreInUse keeps the allow-lists from outliving their reason.
func TestExceptionsAreInUse(t *testing.T) {
	for list, files := range map[string]map[string]string{"inits": houseRules.inits, "sleeps": houseRules.sleeps} {
		for name, reason := range files {
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("%s allows %s, which is gone: %v", list, name, err)
			}
			if reason == "" {
				t.Errorf("%s allows %s without a reason", list, name)
			}
		}
	}
}

// faultRules is a small house with the same kinds of rules as the real one.
var faultRules = rules{
	packages: map[string]map[string]string{
		"cmd/warmwire":         {"internal/sidecar": "builds it"},
		"internal/sidecar":     {"...": "sees everything"},
		"internal/ingress/...": {"internal/ingress/...": "its own parts", "internal/dialect": "a copy"},
		"internal/dialect":     nothing,
		"internal/mockapi":     nothing,
		"internal/metrics":     nothing,
		"transport":            nothing,
		"heartbeat":            nothing,
	},
	tests:     map[string]string{"internal/mockapi": "an upstream"},
	libraries: map[string]library{"github.com/prometheus/client_golang": {[]string{"internal/metrics"}, "one place"}},
	silent:    map[string]string{"heartbeat": "leaf"},
	ambient:   map[string]string{},
	inits:     map[string]string{"internal/dialect/allowed.go": "proves the list"},
	sleeps:    map[string]string{"internal/dialect/allowed_test.go": "proves the list"},
}

// TestFaultsAreFound checks trees in which each rule is broken. The comment at
// the top of an archive holds the problems it must give, one a line; none means
// that the tree is right. @PATH@ stands for the folder that no file may name.
func TestFaultsAreFound(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	var proven []string
	for _, name := range archives {
		t.Run(strings.TrimSuffix(path.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			tree := fstest.MapFS{}
			for _, f := range archive.Files {
				tree[f.Name] = &fstest.MapFile{Data: expand(f.Data)}
			}
			var got, want []string
			problems, err := check(tree, faultRules)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range problems {
				got = append(got, p.String())
				proven = append(proven, p.rule)
			}
			for line := range strings.Lines(string(archive.Comment)) {
				want = append(want, strings.TrimSpace(line))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	for _, rule := range allRules(t) {
		if !slices.Contains(proven, rule) {
			t.Errorf("no archive in testdata breaks the rule %q", rule)
		}
	}
}

// expand fills in what an archive cannot hold: the forbidden folder and lines
// enough to be too many.
func expand(data []byte) []byte {
	return []byte(strings.NewReplacer(
		"@PATH@", "/wor"+"k",
		"@80LINES@\n", strings.Repeat("\t_ = 0\n", 80),
		"@78LINES@\n", strings.Repeat("\t_ = 0\n", 78),
		"@800LINES@\n", strings.Repeat("// line\n", 800),
	).Replace(string(data)))
}

// allRules reads the rules' names from the checker's own source, so that a new
// rule without a planted fault is noticed.
func allRules(t *testing.T) []string {
	t.Helper()
	source, err := os.ReadFile("check_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, part := range strings.Split(string(source), "c.report(\"")[1:] {
		name, _, _ := strings.Cut(part, `"`)
		names = append(names, name)
	}
	if len(names) < 10 {
		t.Fatalf("found only the rules %v", names)
	}
	return names
}
