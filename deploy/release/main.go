// SPDX-License-Identifier: Apache-2.0

// Command release builds what a release of Warmwire consists of: a program for each
// platform, its bill of materials (CycloneDX), Debian packages, and checksums.
//
// The same source, version and Go give the same bytes, wherever and whenever it runs:
// no path, time or user name gets in. It signs nothing and uploads nothing.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// targets are GOOS/GOARCH.
var targets = []string{"linux/amd64", "linux/arm64", "darwin/arm64", "darwin/amd64", "windows/amd64"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run() error {
	version := flag.String("version", "", "`version` to stamp, such as v1.2.3")
	out := flag.String("out", "out/release", "`folder` for the files")
	root := flag.String("root", ".", "`folder` of the repository")
	only := flag.String("only", strings.Join(targets, ","), "platforms")
	flag.Parse()
	if *version == "" {
		return fmt.Errorf("say -version")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	r := release{root: *root, out: *out, version: *version}
	for target := range strings.SplitSeq(*only, ",") {
		if !slices.Contains(targets, target) {
			return fmt.Errorf("platform %q is none of %q", target, targets)
		}
		if err := r.build(target); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	return r.sums()
}

// A release is one version in one folder.
type release struct {
	root, out, version string
	files              []string
}

// build makes the files of one platform.
func (r *release) build(target string) error {
	goos, goarch, _ := strings.Cut(target, "/")
	name := fmt.Sprintf("warmwire_%s_%s_%s", strings.TrimPrefix(r.version, "v"), goos, goarch)
	program := name
	if goos == "windows" {
		program += ".exe"
	}
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	path := filepath.Join(out, program)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.version="+r.version, "-o", path, "./cmd/warmwire")
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, text)
	}
	bill, err := billOf(path, r.version)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, name+".cdx.json"), bill, 0o644); err != nil {
		return err
	}
	r.files = append(r.files, program, name+".cdx.json")
	if goos == "linux" {
		deb, err := r.deb(path, goarch)
		if err != nil {
			return fmt.Errorf("deb: %w", err)
		}
		r.files = append(r.files, deb)
	}
	return nil
}

// sums writes SHA256SUMS, as sha256sum -c reads it.
func (r *release) sums() error {
	slices.Sort(r.files)
	var text strings.Builder
	for _, name := range r.files {
		data, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&text, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(text.String()), 0o644)
}
