// SPDX-License-Identifier: Apache-2.0

package clientenv_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/testenv"
)

// FuzzShellKeepsValues lets a real shell read what Write prints.
func FuzzShellKeepsValues(f *testing.F) {
	for _, seed := range []string{"plain", "a b", "it's", `\'$(touch x)`, "`id`", "$HOME", "a\nb", `"`, "‘’", "!x", "-n", "*", `trailing\`, "x;y&z|w", "\x01"} {
		f.Add(seed)
	}
	shell := testenv.Need(f, "sh")
	f.Fuzz(func(t *testing.T, value string) {
		if strings.ContainsRune(value, 0) || value == "" {
			return
		}
		var script strings.Builder
		if err := clientenv.Write(&script, "sh", []clientenv.Variable{{Name: "WARMWIRE_TRIED", Value: value}, {Name: "WARMWIRE_GONE"}}); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(shell, "-ec", script.String()+`printf %s "$WARMWIRE_TRIED${WARMWIRE_GONE+set}"`)
		cmd.Env = []string{"WARMWIRE_GONE=x"}
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != value {
			t.Errorf("%q became %q (%v) by %s", value, out, err, script.String())
		}
	})
}

func TestOtherShellsQuote(t *testing.T) {
	list := []clientenv.Variable{{Name: "A", Value: `it's \ $x`}, {Name: "B", Value: "‘x’"}, {Name: "C"}}
	for shell, want := range map[string]string{
		"fish":       "set -gx A 'it\\'s \\\\ $x'\nset -gx B '‘x’'\nset -e C\n",
		"powershell": "$env:A = 'it''s \\ $x'\n$env:B = '‘‘x’’'\nRemove-Item -ErrorAction SilentlyContinue Env:C\n",
	} {
		var out strings.Builder
		if err := clientenv.Write(&out, shell, list); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", shell, out.String(), err, want)
		}
	}
	if err := clientenv.Write(&strings.Builder{}, "tcsh", list); err == nil {
		t.Error("tcsh is not known, and no error")
	}
}
