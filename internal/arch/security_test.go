// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// promise is a row of a table of docs/security.md, but for heads and rules.
	promise = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|$`)
	// keeper is a test that such a row names: a package and a function, or a target of the Makefile.
	keeper = regexp.MustCompile("`(?:([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)|make ([a-z-]+))`")
)

// TestSecurityPromisesHaveTheirTests looks for each test that docs/security.md names, and
// for promises without one.
func TestSecurityPromisesHaveTheirTests(t *testing.T) {
	root := filepath.Join("..", "..")
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	doc, makefile := read("docs/security.md"), read("Makefile")
	sources := map[string]string{} // of the tests of a package
	rows := promise.FindAllStringSubmatch(doc, -1)
	if len(rows) < 30 {
		t.Errorf("%d promises are found: has the form of the table changed?", len(rows))
	}
	for _, row := range rows {
		if row[2] == "kept by" {
			continue
		}
		keepers := keeper.FindAllStringSubmatch(row[2], -1)
		if len(keepers) == 0 || len(keepers) != strings.Count(row[2], "`")/2 {
			t.Errorf("%q: kept by %s, want tests only", row[1], row[2])
		}
		for _, k := range keepers {
			pkg, name, target := k[1], k[2], k[3]
			if target != "" {
				if !strings.Contains(makefile, "\n"+target+":") {
					t.Errorf("%q: make has no %s", row[1], target)
				}
				continue
			}
			if _, ok := sources[pkg]; !ok {
				files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range files {
					rel, err := filepath.Rel(root, file)
					if err != nil {
						t.Fatal(err)
					}
					sources[pkg] += read(rel)
				}
			}
			if !strings.Contains(sources[pkg], "\nfunc "+name+"(") {
				t.Errorf("%q: %s has no %s", row[1], pkg, name)
			}
		}
	}
}
