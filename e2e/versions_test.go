// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// family is the part of a version in which incompatible changes show: the first number,
// or the first two of one that begins with 0.
func family(version string) string {
	return regexp.MustCompile(`^(0\.\d+|[1-9]\d*)`).FindString(strings.TrimLeft(version, "v^~"))
}

func TestFamily(t *testing.T) {
	for version, want := range map[string]string{"7.88.1": "7", "0.23.3": "0.23", "v20.20.2": "20", "10.4": "10", "^6.1": "6", "none": ""} {
		if got := family(version); got != want {
			t.Errorf("family of %q is %q, want %q", version, got, want)
		}
	}
}

// printed is what a command prints, without what goes before the version.
func printed(t *testing.T, before, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Errorf("version of %s: %v", name, err)
	}
	return family(strings.TrimPrefix(strings.TrimSpace(string(out)), before))
}

func curlVersion(t *testing.T) string {
	return printed(t, "curl ", testenv.Need(t, "curl"), "--version")
}

func chromiumVersion(t *testing.T) string {
	return printed(t, "Chromium ", testenv.Need(t, "chromium-headless-shell"), "--version")
}

func goVersion(*testing.T) string {
	return strings.Join(strings.Split(strings.TrimPrefix(runtime.Version(), "go"), ".")[:2], ".")
}

// gorillaVersion looks into the module's own list.
func gorillaVersion(t *testing.T) string {
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`gorilla/websocket v(\S+)`).FindSubmatch(text)
	if found == nil {
		t.Fatal("go.mod has no gorilla/websocket")
	}
	return family(string(found[1]))
}

// npm is the version of a package that package.json asks for.
func npm(name string) func(*testing.T) string {
	return func(t *testing.T) string {
		text, err := os.ReadFile("clients/node/package.json")
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Dependencies map[string]string }
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		return family(list.Dependencies[name])
	}
}

func module(name string) func(*testing.T) string {
	return func(t *testing.T) string {
		return printed(t, "", testenv.NeedPython(t, name), "-c", "import importlib.metadata as m; print(m.version('"+name+"'))")
	}
}

// TestLockNamesNoHost keeps the addresses of somebody's mirror out of the lock
// file: npm then takes each package from the registry it is configured for.
func TestLockNamesNoHost(t *testing.T) {
	text, err := os.ReadFile("clients/node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct{ Resolved, Integrity string }
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		t.Fatal(err)
	}
	for name, p := range lock.Packages {
		if p.Resolved != "" && !strings.HasPrefix(p.Resolved, "https://registry.npmjs.org/") {
			t.Errorf("%s comes from %s", name, p.Resolved)
		}
		if name != "" && p.Integrity == "" {
			t.Errorf("%s has no checksum", name)
		}
	}
	if len(lock.Packages) < 2 {
		t.Error("the lock file names no packages")
	}
}
