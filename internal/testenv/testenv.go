// SPDX-License-Identifier: Apache-2.0

// Package testenv lets a test say what it needs from the machine, and starts the
// servers of other people that it is run against, or speaks to a program octet by octet.
//
// A need that is not met skips the test with the reason, so that `go test ./...`
// is useful on a laptop with nothing but Go. With WARMWIRE_CI set the same need
// fails the test, because there the machine is ours to prepare: a test that
// silently skips in CI guards nothing.
//
// It installs nothing, leaves nothing running when a test ends, keeps no state, and
// is imported by tests only. All functions are safe for concurrent
// use.
package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// ciVariable is set by .ci/run; any non-empty value counts.
const ciVariable = "WARMWIRE_CI"

// SkipOrFail ends the test: skipped with the reason, or failed with it in CI.
// The reason says what is missing and how to get it.
func SkipOrFail(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv(ciVariable) != "" {
		t.Fatalf("missing in CI, where nothing may be skipped: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Need returns the path of a program, or ends the test if it is not there.
// Some live where a user's PATH does not look, so the sbin folders count too.
func Need(t testing.TB, program string) string {
	t.Helper()
	for _, name := range []string{program, "/usr/sbin/" + program, "/sbin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	SkipOrFail(t, "needs the program %s: install it", program)
	return ""
}

// NeedRoot ends the test unless it runs as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if id := os.Geteuid(); id != 0 {
		SkipOrFail(t, "needs root (runs as user %d)", id)
	}
}

// NeedPython returns the system's Python (Debian's, which has Debian's modules;
// a python3 earlier in PATH may be another one), or ends the test if one of the
// modules cannot be imported.
func NeedPython(t testing.TB, modules ...string) string {
	t.Helper()
	const python = "/usr/bin/python3"
	for _, module := range modules {
		if err := exec.CommandContext(t.Context(), python, "-c", "import "+module).Run(); err != nil {
			SkipOrFail(t, "needs %s with the module %s: apt-get install python3-%s", python, module, module)
		}
	}
	return Need(t, python)
}

// NeedNodeModules returns the path of node, or ends the test if dir has no
// installed node_modules.
func NeedNodeModules(t testing.TB, dir string) string {
	t.Helper()
	if _, err := os.Stat(dir + "/node_modules"); err != nil {
		SkipOrFail(t, "needs npm packages: npm ci --ignore-scripts --prefix %s", dir)
	}
	return Need(t, "node")
}
