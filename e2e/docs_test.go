// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/warmwire/warmwire/internal/testenv"
)

// A docPage is a file of the documentation.
type docPage struct {
	name  string // from the root on
	lines []string
}

// pages are all of them, as git has them or would have them.
func pages(t *testing.T) []docPage {
	t.Helper()
	out, err := exec.Command("git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []docPage
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, docPage{name, strings.Split(string(text), "\n")})
	}
	if len(all) < 20 {
		t.Fatalf("%d pages", len(all))
	}
	return all
}

// A block is fenced text.
type block struct {
	page string
	line int // of its first line
	kind string
	text []string
}

func (b block) at(i int) string { return fmt.Sprintf("%s:%d", b.page, b.line+i) }

// split returns the fenced blocks, and the lines with those blocks emptied.
func (p docPage) split() (blocks []block, prose []string) {
	open := false
	for i, line := range p.lines {
		fence, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fenced && !open:
			blocks = append(blocks, block{page: p.name, line: i + 2, kind: fence})
		case !fenced && open:
			b := &blocks[len(blocks)-1]
			b.text = append(b.text, line)
		}
		if open || fenced {
			line = ""
		}
		open = open != fenced
		prose = append(prose, line)
	}
	return blocks, prose
}

// anchors are what links to the page's headings may say, as GitHub makes them.
func (p docPage) anchors() []string {
	var all []string
	_, prose := p.split()
	for _, line := range prose {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			all = append(all, strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
					return unicode.ToLower(r)
				}
				return -1
			}, strings.TrimSpace(title)))
		}
	}
	return all
}

var (
	link   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	quoted = regexp.MustCompile("`((?:docs|deploy|internal|e2e|bench|transport|cmd)/[\\w./-]+\\.(?:md|go|json|yaml|service|socket|plist))`")
)

// TestLinksLeadSomewhere looks for each file and heading that a page leads to.
func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	links := 0
	for _, p := range all {
		_, prose := p.split()
		for i, line := range prose {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				links++
				file, anchor, _ := strings.Cut(m[1], "#")
				target := p.name
				if file != "" {
					target = filepath.Join(filepath.Dir(p.name), file)
				}
				if _, err := os.Stat(filepath.Join("..", target)); err != nil {
					t.Errorf("%s:%d: %s leads nowhere", p.name, i+1, m[1])
				}
				if anchor == "" {
					continue
				}
				at := slices.IndexFunc(all, func(q docPage) bool { return q.name == target })
				if at < 0 || !slices.Contains(all[at].anchors(), anchor) {
					t.Errorf("%s:%d: there is no heading #%s in %s", p.name, i+1, anchor, target)
				}
			}
			for _, m := range quoted.FindAllStringSubmatch(line, -1) {
				links++
				if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
					t.Errorf("%s:%d: there is no %s", p.name, i+1, m[1])
				}
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links were found", links)
	}
}

// TestExamplesAreConfigurations has the program check each block of YAML.
func TestExamplesAreConfigurations(t *testing.T) {
	program := built(t).warmwire
	variable := regexp.MustCompile(`\$\{(\w+)\}`)
	checked := 0
	for _, p := range pages(t) {
		blocks, _ := p.split()
		for _, b := range blocks {
			if b.kind != "yaml" {
				continue
			}
			checked++
			dir := t.TempDir()
			text := strings.Join(b.text, "\n")
			env := environ(dir)
			for _, m := range variable.FindAllStringSubmatch(text, -1) {
				env = append(env, m[1]+"=0123456789abcdef0123456789abcdef")
			}
			for i, file := range regexp.MustCompile(`/etc/[\w./-]+`).FindAllString(text, -1) { // as if they were there
				there := filepath.Join(dir, fmt.Sprint("file", i))
				content := strings.Repeat("0123456789abcdef", 4)
				if strings.HasSuffix(file, ".pem") {
					pem, _ := newCertificate(t)
					content = string(pem)
				}
				if err := os.WriteFile(there, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				text = strings.Replace(text, file, there, 1)
			}
			file := filepath.Join(dir, "warmwire.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(program, "config", "check", "-c", file)
			cmd.Env = env
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", b.at(0), err, out)
			}
		}
	}
	if checked < 8 {
		t.Errorf("only %d blocks were found", checked)
	}
}

// Lines with one of these are not run: they need what a test does not have. Their flags
// are looked at all the same.
var elsewhere = map[string]string{
	"make ":                    "runs other tests, builds, or takes minutes; TestMakeTargetsExist",
	"bin/warmwire run":         "runs until it is told to end; every test here does that",
	"app.py":                   "a program of the reader's; TestMatrix runs some",
	"app.js":                   "a program of the reader's; TestMatrix runs some",
	"api.openai.com":           "the real API",
	"sudo ":                    "minutes of a bad network",
	"    bin/warmwire measure": "goes on from such a line",
	"kill -HUP":                "<pid> is the reader's",
	"warmwire top          #":  "wants a terminal",
	"warmwire upgrade":         "another program takes over; TestUpgradesLoseNothing",
	"systemctl":                "needs systemd to run; its units have tests of their own",
	"install -":                "writes to the system",
	"docker":                   "needs an engine",
	"| grep heartbeat":         "has no line before the first ping",
}

// commands returns the lines of shell text, each with those that go on from it.
func (b block) commands() (lines []string, at []int) {
	for i, line := range b.text {
		if n := len(lines); n > 0 && strings.HasSuffix(lines[n-1], "\\") {
			lines[n-1] += "\n" + line
			continue
		}
		lines, at = append(lines, line), append(at, i)
	}
	return lines, at
}

var (
	invocation = regexp.MustCompile(`(?:^|[\s/(|;&"'` + "`" + `])warmwire((?: [a-z][a-z-]*)*)((?: +[^\s#&|;)` + "`" + `]+)*)`)
	flagName   = regexp.MustCompile(`(?:^|[\s\[])(--[a-z][a-z0-9-]*|-[a-zA-Z])\b`)
)

// helps remembers what `warmwire … --help` says.
type helps struct {
	program string
	mu      sync.Mutex
	known   map[string]string // guarded by mu
}

// of returns the help of the command that words begin with, and how many words name it.
func (h *helps) of(words []string) (text string, named int) {
	text = h.ask(nil)
	for i := range words {
		listed := regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(words[i]) + ` +\S`)
		if !listed.MatchString(text) {
			return text, i
		}
		text = h.ask(words[:i+1])
	}
	return text, len(words)
}

func (h *helps) ask(words []string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := strings.Join(words, " ")
	if text, ok := h.known[key]; ok {
		return text
	}
	out, _ := exec.Command(h.program, append(slices.Clone(words), "--help")...).CombinedOutput()
	h.known[key] = string(out)
	return string(out)
}

// check says what is wrong with the invocations of warmwire in text.
func (h *helps) check(text string) (wrong []string) {
	for _, m := range invocation.FindAllStringSubmatch(text, -1) {
		words := strings.Fields(m[1])
		help, named := h.of(words)
		if len(words) > 0 && named == 0 {
			wrong = append(wrong, fmt.Sprintf("there is no command %q", words[0]))
			continue
		}
		own, _, _ := strings.Cut(m[2], " -- ") // after that come another program's
		for _, f := range flagName.FindAllStringSubmatch(own, -1) {
			if !regexp.MustCompile(`(?m)(?:^|\s|,)` + regexp.QuoteMeta(f[1]) + `\b`).MatchString(help) {
				wrong = append(wrong, fmt.Sprintf("warmwire %s has no flag %s", strings.Join(words[:named], " "), f[1]))
			}
		}
	}
	return wrong
}

// TestCommandsOfThePages runs each block of shell text, but for lines that are for
// elsewhere, against a Warmwire in front of the built-in model API, and looks whether the
// commands and flags of all pages exist.
func TestCommandsOfThePages(t *testing.T) {
	for _, program := range []string{"bash", "curl"} {
		testenv.Need(t, program)
	}
	h := &helps{program: built(t).warmwire, known: map[string]string{}}
	spared := map[string]bool{}
	ran := 0
	for _, p := range pages(t) {
		blocks, prose := p.split()
		for i, line := range prose {
			for j, code := range strings.Split(line, "`") {
				if j%2 == 0 || !strings.Contains(code, "warmwire ") || strings.HasPrefix(code, "helm ") {
					continue
				}
				for _, w := range h.check(code) {
					t.Errorf("%s:%d: %s", p.name, i+1, w)
				}
			}
		}
		for _, b := range blocks {
			if b.kind != "sh" {
				continue
			}
			lines, at := b.commands()
			var script []string
			for i, line := range lines {
				for _, w := range h.check(line) {
					t.Errorf("%s: %s", b.at(at[i]), w)
				}
				skip := false
				for mark := range elsewhere {
					if strings.Contains(line, mark) {
						skip, spared[mark] = true, true
					}
				}
				if !skip {
					script = append(script, line)
				}
			}
			if len(strings.TrimSpace(strings.Join(script, ""))) == 0 {
				continue
			}
			ran++
			t.Run(strings.ReplaceAll(b.at(0), "/", "_"), func(t *testing.T) { runAsReader(t, strings.Join(script, "\n")) })
		}
	}
	for mark, why := range elsewhere {
		if !spared[mark] {
			t.Errorf("no line has %q any more (%s)", mark, why)
		}
	}
	if ran < 8 {
		t.Errorf("only %d blocks were run", ran)
	}
}

// runAsReader runs shell text where Warmwire runs.
func runAsReader(t *testing.T, script string) {
	u := newUpstream(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, u.caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	const key = "sk-reader"
	close(u.begin(key).first) // nothing is held back
	s := startWarmwire(t, u, ca, settings{upstream: "reattach: {wait: 1m}"})
	for at, there := range map[string]string{"http://127.0.0.1:8484": s.origin, "http://127.0.0.1:8485": s.admin} {
		script = strings.ReplaceAll(script, at, there)
	}
	// A page that leads to a path that is not there must be seen.
	if err := os.WriteFile(filepath.Join(s.state, ".curlrc"), []byte("fail-with-body\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(s.program, filepath.Join(dir, "bin", "warmwire")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(environ(s.state), "WARMWIRE_CONFIG="+s.file, "OPENAI_API_KEY="+key, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s\nprints\n%s", err, script, out)
	}
	t.Logf("%s\nprints\n%s", script, out)
}
