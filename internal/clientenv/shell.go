// SPDX-License-Identifier: Apache-2.0

package clientenv

import (
	"fmt"
	"io"
	"strings"
)

// Shells are those that Write knows.
var Shells = []string{"sh", "fish", "powershell"}

// Write prints list as commands of a shell: for sh (also bash, zsh, dash, ksh), fish or
// powershell. Whatever a value holds stays a value. A variable without one is unset.
func Write(out io.Writer, shell string, list []Variable) error {
	set, unset, quote := "", "", sh
	switch shell {
	case "sh":
		set, unset = "export %s=%s\n", "unset %s\n"
	case "fish":
		set, unset, quote = "set -gx %s %s\n", "set -e %s\n", fish
	case "powershell":
		set, unset, quote = "$env:%s = %s\n", "Remove-Item -ErrorAction SilentlyContinue Env:%s\n", powershell
	default:
		return fmt.Errorf("clientenv: %q is no shell that is known: %s", shell, strings.Join(Shells, ", "))
	}
	for _, v := range list {
		var err error
		if v.Value == "" {
			_, err = fmt.Fprintf(out, unset, v.Name)
		} else {
			_, err = fmt.Fprintf(out, set, v.Name, quote(v.Value))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func sh(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func fish(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'" }

// powershell doubles quotes, and it takes four more characters for one.
func powershell(s string) string {
	r := strings.NewReplacer("'", "''", "\u2018", "\u2018\u2018", "\u2019", "\u2019\u2019", "\u201a", "\u201a\u201a", "\u201b", "\u201b\u201b")
	return "'" + r.Replace(s) + "'"
}
