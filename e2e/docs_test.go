// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// shellBlocks are the blocks of shell text of all pages.
func shellBlocks(t *testing.T) (all []block) {
	t.Helper()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(pages, "../README.md", "../deploy/README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shell := false
		for i, line := range strings.Split(string(text), "\n") {
			fence, fenced := strings.CutPrefix(strings.TrimSpace(line), "```")
			switch {
			case fenced:
				if shell = fence == "sh"; shell {
					all = append(all, block{page: strings.TrimPrefix(path, "../"), line: i + 2})
				}
			case shell:
				b := &all[len(all)-1]
				b.text = append(b.text, line)
			}
		}
	}
	return all
}

// A block is one of fenced shell text.
type block struct {
	page string
	line int // of its first line
	text []string
}

// Lines with one of these are not run: they need what a test does not have.
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
func (b block) commands() (lines []string) {
	for _, line := range b.text {
		if n := len(lines); n > 0 && strings.HasSuffix(lines[n-1], "\\") {
			lines[n-1] += "\n" + line
			continue
		}
		lines = append(lines, line)
	}
	return lines
}

// TestCommandsOfThePages runs each block of shell text, but for lines that are for
// elsewhere, against a Warmwire in front of the built-in model API. Whether the commands
// and flags of the other lines exist is looked at in cmd/warmwire.
func TestCommandsOfThePages(t *testing.T) {
	for _, program := range []string{"bash", "curl"} {
		testenv.Need(t, program)
	}
	spared := map[string]bool{}
	ran := 0
	for _, b := range shellBlocks(t) {
		var script []string
		for _, line := range b.commands() {
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
		if strings.TrimSpace(strings.Join(script, "")) == "" {
			continue
		}
		ran++
		t.Run(strings.ReplaceAll(fmt.Sprintf("%s:%d", b.page, b.line), "/", "_"), func(t *testing.T) { runAsReader(t, strings.Join(script, "\n")) })
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
	cmd.Env = append(environ(s.state), "WARMWIRE_CONFIG="+s.file, "OPENAI_API_KEY="+key, "STATE="+s.state, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s\nprints\n%s", err, script, out)
	}
	t.Logf("%s\nprints\n%s", script, out)
}
