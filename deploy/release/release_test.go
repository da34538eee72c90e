// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// whole is off where each change is tested with all others: two builds and two packages
// take half a minute.
var whole = flag.Bool("release", false, "build a release twice, as make deploy-check does")

// makeRelease builds a release of this platform from root.
func makeRelease(t *testing.T, root string) *release {
	t.Helper()
	r := &release{root: root, out: t.TempDir(), version: "v1.2.3-4-gabc"}
	if err := r.build(runtime.GOOS + "/" + runtime.GOARCH); err != nil {
		t.Fatal(err)
	}
	if err := r.sums(); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReleaseIsReproducible builds the same source in two folders and wants the same
// bytes, and looks at what came out.
func TestReleaseIsReproducible(t *testing.T) {
	if !*whole || runtime.GOOS != "linux" {
		t.Skip("runs with -release (make deploy-check), on Linux")
	}
	testenv.Need(t, "dpkg-deb")
	elsewhere := filepath.Join(t.TempDir(), "another", "place")
	// Copying also tells the test cache which sources the verdict depends on.
	for _, part := range []string{"go.mod", "go.sum", "cmd", "internal", "transport", "dnscache", "tlspool", "bufferctl", "heartbeat", "deploy"} {
		copyTree(t, filepath.Join("../..", part), filepath.Join(elsewhere, part))
	}
	a, b := makeRelease(t, "../.."), makeRelease(t, elsewhere)
	if len(a.files) != 3 {
		t.Errorf("files %q, want a program, a bill and a package", a.files)
	}
	for _, name := range append(slices.Clone(a.files), "SHA256SUMS") {
		if !bytes.Equal(content(t, a, name), content(t, b, name)) {
			t.Errorf("%s differs between two folders", name)
		}
	}
	program := filepath.Join(a.out, "warmwire_1.2.3-4-gabc_linux_"+runtime.GOARCH)
	out, err := exec.CommandContext(t.Context(), program, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "warmwire v1.2.3-4-gabc (go1.") {
		t.Errorf("version: %q, %v", out, err)
	}
	if info, err := os.Stat(program); err != nil || info.Size() > 25<<20 {
		t.Errorf("the program, and with it the image, is over 25 MB: %v, %v", info.Size(), err)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = a.out
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	checkBill(t, a)
	checkDeb(t, filepath.Join(a.out, "warmwire_1.2.3.4.gabc_"+runtime.GOARCH+".deb"))
}

func content(t *testing.T, r *release, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(r.out, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// checkBill holds the bill against what `go version -m` says.
func checkBill(t *testing.T, r *release) {
	t.Helper()
	var b bill
	i := slices.IndexFunc(r.files, func(f string) bool { return strings.HasSuffix(f, ".cdx.json") })
	if err := json.Unmarshal(content(t, r, r.files[i]), &b); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", filepath.Join(r.out, strings.TrimSuffix(r.files[i], ".cdx.json"))).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps, refs := 0, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "dep" {
			continue
		}
		deps++
		if !slices.ContainsFunc(b.Components, func(c component) bool { return c.Name == f[1] && c.Version == f[2] && c.PURL == purl(f[1], f[2]) }) {
			t.Errorf("%s %s is not in the bill", f[1], f[2])
		}
	}
	for _, c := range b.Components {
		if refs[c.Ref] {
			t.Errorf("%s stands twice", c.Ref)
		}
		refs[c.Ref] = true
	}
	if b.Format != "CycloneDX" || b.SpecVersion != "1.6" || len(b.Components) != deps+1 || b.Metadata.Component.Version != r.version { // and std
		t.Errorf("%s %s: %d components of %d modules, version %s", b.Format, b.SpecVersion, len(b.Components), deps, b.Metadata.Component.Version)
	}
}

// checkDeb lets Debian's tools look at the package.
func checkDeb(t *testing.T, deb string) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--extract", deb, dir).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, out)
	}
	unit, err := os.ReadFile(filepath.Join(dir, "lib/systemd/system/warmwire.service"))
	if err != nil || !bytes.Contains(unit, []byte("ExecStart=/usr/bin/warmwire run")) || bytes.Contains(unit, []byte("/usr/local")) {
		t.Errorf("the unit starts another program: %v\n%s", err, unit)
	}
	if info, err := os.Stat(filepath.Join(dir, "usr/bin/warmwire")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the program: %v, %v", info, err)
	}
	out, err := exec.CommandContext(t.Context(), testenv.Need(t, "lintian"), "--allow-root", "--fail-on", "error,warning", deb).CombinedOutput()
	if err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

func TestDebVersion(t *testing.T) {
	for v, want := range map[string]string{"v1.2.3": "1.2.3", "v1.2.3-4-gabc-dirty": "1.2.3.4.gabc.dirty", "3ab7c1f": "3ab7c1f", "abc123": "0~abc123", "devel": "0~devel"} {
		if got := debVersion(v); got != want {
			t.Errorf("debVersion(%q) = %q, want %q", v, got, want)
		}
	}
}

func TestPURL(t *testing.T) {
	for _, tt := range [][3]string{
		{"golang.org/x/net", "v0.62.0", "pkg:golang/golang.org/x/net@v0.62.0"},
		{"example.org/a b", "v2.0.0+incompatible", "pkg:golang/example.org/a%20b@v2.0.0%2Bincompatible"},
	} {
		if got := purl(tt[0], tt[1]); got != tt[2] {
			t.Errorf("purl = %q, want %q", got, tt[2])
		}
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	walk(t, from, func(path string, data []byte) {
		rel, err := filepath.Rel(from, path)
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(to, rel)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, data, 0o644); err != nil {
			t.Fatal(err)
		}
	})
}

func walk(t *testing.T, dir string, see func(path string, data []byte)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !d.Type().IsRegular() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testdata/") {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			see(path, data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
