// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
)

const repository = "../.."

// pages are all documents, by their path in the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != repository && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata" || name == "bin") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(repository, path)
		out[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil || len(out) < 20 {
		t.Fatalf("%d pages: %v", len(out), err)
	}
	return out
}

var fenced = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```")

// blocks are the contents of a page's fenced blocks in one language.
func blocks(page, language string) (out []string) {
	for _, m := range fenced.FindAllStringSubmatch(page, -1) {
		if m[1] == language {
			out = append(out, m[2])
		}
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are what #… of a page may name, as GitHub makes it.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		out[strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	all := pages(t)
	for path, page := range all {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(path), file))
			}
			if _, err := os.Stat(filepath.Join(repository, target)); err != nil {
				t.Errorf("%s: there is no %s", path, m[1])
			} else if anchor != "" && !anchors(all[target])[anchor] {
				t.Errorf("%s: %s has no heading for #%s", path, target, anchor)
			}
		}
	}
}

// TestConfigurationsInTheDocumentsLoad checks each yaml block as config check does. In
// place of files that it names one stands that is there.
func TestConfigurationsInTheDocumentsLoad(t *testing.T) {
	env := func(string) (string, bool) { return "0123456789abcdef0123456789abcdef", true }
	files := regexp.MustCompile(`(?m)token_files: \[[^\]]*\]`)
	cas := regexp.MustCompile(`ca_file: [^\s}]+`)
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("0123456789abcdef-of-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for path, page := range pages(t) {
		if strings.HasPrefix(path, "deploy/") { // of other programs
			continue
		}
		for _, block := range blocks(page, "yaml") {
			seen++
			if _, _, err := config.Parse(path, []byte(files.ReplaceAllString(cas.ReplaceAllString(block, "ca_file: "+tokens), "token_files: ["+tokens+"]")), env); err != nil {
				t.Errorf("%v\n%s", err, block)
			}
		}
	}
	if seen < 8 {
		t.Errorf("only %d", seen)
	}
}

// TestCommandsInTheDocumentsExist looks at each command of warmwire in sh blocks and
// between backquotes: its subcommands and flags are there, and what tune names is a key.
func TestCommandsInTheDocumentsExist(t *testing.T) {
	seen := 0
	inline := regexp.MustCompile("`((?:bin/)?warmwire [^`]+)`")
	for path, page := range pages(t) {
		shell := blocks(page, "sh")
		for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
			shell = append(shell, m[1])
		}
		for _, block := range shell {
			for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", " ")) {
				line, _, _ = strings.Cut(line, " #")
				for _, words := range commands(line) {
					seen++
					if fault := wrongIn(words); fault != "" {
						t.Errorf("%s: %s: %s", path, strings.Join(words, " "), fault)
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d commands", seen)
	}
	for line, want := range map[string]string{
		"bin/warmwire runn": "no subcommand", "warmwire tune --sav a=b": "no flag", "FOO=1 warmwire ca shwo": "no subcommand",
		"warmwire lab run --rtt 1s -- warmwire measure --plto x": "no flag", "warmwire tune upstreams.openai.retry.bugdet=1": "no key",
	} {
		fault := ""
		for _, words := range commands(line) {
			fault += wrongIn(words)
		}
		if !strings.Contains(fault, want) {
			t.Errorf("%s: %q, want %s", line, fault, want)
		}
	}
}

// commands are the calls of warmwire in a line, each from its name on.
func commands(line string) (out [][]string) {
	words := strings.Fields(line)
	for i := 0; i < len(words); i++ {
		if strings.Trim(filepath.Base(words[i]), "\"'`$()") != "warmwire" || i+1 < len(words) && strings.HasPrefix(words[i+1], "/") || strings.HasPrefix(words[i], "/") || i > 0 && strings.HasPrefix(words[i-1], "-") && words[i-1] != "--" {
			continue
		}
		end := i + 1
		for end < len(words) && words[end] != "--" && !strings.ContainsAny(words[end], "|&;>") {
			end++
		}
		out = append(out, words[i:end])
		i = end - 1
	}
	return out
}

// wrongIn says what a call has that the program has not.
func wrongIn(words []string) string {
	cmd := rootCommand()
	at := 1
	for ; at < len(words) && !strings.HasPrefix(words[at], "-"); at++ {
		var next *cobra.Command
		for _, c := range cmd.Commands() {
			if c.Name() == words[at] {
				next = c
			}
		}
		if next == nil {
			break
		}
		cmd = next
	}
	if cmd.HasSubCommands() && at < len(words) && !strings.HasPrefix(words[at], "-") {
		return "no subcommand " + words[at]
	}
	for _, w := range words[at:] {
		w = strings.Trim(w, "'\"")
		name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
		switch {
		case strings.HasPrefix(w, "--"):
			if cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil && name != "help" {
				return "no flag " + w
			}
		case cmd.Name() == "tune" && strings.Contains(w, "=") && name != "KEY":
			_, _, err := config.LoadOver("", os.LookupEnv, config.Over{Tuned: map[string]string{name: ""}})
			if err != nil && strings.Contains(err.Error(), "unknown key") {
				return "no key " + name
			}
		}
	}
	return ""
}

var (
	metricName = regexp.MustCompile(`warmwire_[a-z0-9_]*[a-z0-9]`)
	adminPath  = regexp.MustCompile(`(?:GET|POST|PATCH|8485)[ ` + "`" + `]*(/v1/[a-z_./]*[a-z])`)
)

// TestNamesInTheDocumentsExist looks for metrics on their page, which a test holds against
// the program, and for paths in the description of the admin listener.
func TestNamesInTheDocumentsExist(t *testing.T) {
	all := pages(t)
	text, err := os.ReadFile(repository + "/internal/admin/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var api struct{ Paths map[string]any }
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	listed := all["docs/metrics.md"]
	series := regexp.MustCompile(`_(bucket|sum|count)$`)
	for path, page := range all {
		if strings.HasPrefix(path, "docs/decisions/") { // of their day
			continue
		}
		for _, name := range metricName.FindAllString(page, -1) {
			if short := strings.TrimPrefix(series.ReplaceAllString(name, ""), "warmwire_"); !strings.Contains(listed, short) {
				t.Errorf("%s: there is no metric %s in docs/metrics.md", path, name)
			}
		}
		for _, m := range adminPath.FindAllStringSubmatch(page, -1) {
			if api.Paths[m[1]] == nil && strings.Contains(m[0], "8485") {
				t.Errorf("%s: the admin listener has no %s", path, m[1])
			}
		}
	}
}

// TestReadmesAreInStep holds the Chinese README against the English one: the same code and
// as many headings of each rank.
func TestReadmesAreInStep(t *testing.T) {
	all := pages(t)
	english, chinese := all["README.md"], all["README.zh-CN.md"]
	a, b := fenced.FindAllStringSubmatch(english, -1), fenced.FindAllStringSubmatch(chinese, -1)
	if len(a) != len(b) {
		t.Fatalf("%d blocks in English, %d in Chinese", len(a), len(b))
	}
	comments := regexp.MustCompile(`(?m) *#.*$`) // translated
	for i := range a {
		if x, y := comments.ReplaceAllString(a[i][2], ""), comments.ReplaceAllString(b[i][2], ""); x != y {
			t.Errorf("block %d: %q in English, %q in Chinese", i+1, x, y)
		}
	}
	ranks := regexp.MustCompile(`(?m)^#+ `)
	x := strings.Join(ranks.FindAllString(fenced.ReplaceAllString(english, ""), -1), "")
	if y := strings.Join(ranks.FindAllString(fenced.ReplaceAllString(chinese, ""), -1), ""); x != y {
		t.Errorf("headings %q in English, %q in Chinese", x, y)
	}
	if !strings.Contains(english, "](README.zh-CN.md)") || !strings.Contains(chinese, "](README.md)") {
		t.Error("they are not linked")
	}
}

// TestCodesAndKeysInTheDocumentsExist looks for what the pages that help by symptom and by
// knob name: codes in the sources, keys in the reference.
func TestCodesAndKeysInTheDocumentsExist(t *testing.T) {
	all := pages(t)
	var sources strings.Builder
	for _, dir := range []string{"internal", "transport", "bufferctl", "tlspool"} {
		err := filepath.WalkDir(filepath.Join(repository, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			sources.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	named := regexp.MustCompile("`([a-z0-9_]+(?:\\.[a-z0-9_]+)*)`")
	seen := 0
	for _, path := range []string{"docs/troubleshooting.md", "docs/connections.md", "docs/realtime.md", "docs/base-url.md", "docs/forward-proxy.md", "docs/admin-api.md"} {
		for _, m := range named.FindAllStringSubmatch(all[path], -1) {
			name := m[1]
			isKey := strings.Contains(all["docs/configuration.md"], "`"+name+"`")
			switch {
			case isKey || strings.HasPrefix(name, "warmwire_") || strings.HasSuffix(name, ".yaml"):
			case strings.Contains(name, "."):
				t.Errorf("%s: there is no key %s", path, name)
			case strings.Contains(all["docs/metrics.md"], "`"+name+"`"):
			case strings.Contains(name, "_") && !strings.Contains(sources.String(), `"`+name+`"`):
				t.Errorf("%s: there is no code %s", path, name)
			}
			seen++
		}
	}
	if seen < 80 {
		t.Errorf("only %d names", seen)
	}
}
