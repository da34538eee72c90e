// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// epoch is the time of all files: the version says which release it is.
var epoch = time.Unix(1_767_225_600, 0) // 2026-01-01

const maintainer = "Warmwire <maintainers@warmwire.invalid>"

// deb makes a Debian package of a program and returns its name. It enables nothing:
// installing it starts no service.
func (r *release) deb(program, goarch string) (string, error) {
	version := debVersion(r.version)
	dir, err := os.MkdirTemp("", "warmwire-deb-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	files, size, err := r.debFiles(program, goarch, version)
	if err != nil {
		return "", err
	}
	files["DEBIAN/control"] = []byte(fmt.Sprintf("Package: warmwire\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\n"+
		"Section: net\nPriority: optional\nHomepage: https://github.com/warmwire/warmwire\nRecommends: ca-certificates\n"+
		"Description: sidecar for programs that call model APIs\n"+
		" Keeps the way to OpenAI, Anthropic, Gemini and compatible APIs warm,\n watched and bounded, on a port of this machine.\n",
		version, goarch, maintainer, (size+1023)/1024))
	for name, data := range files {
		mode := fs.FileMode(0o644)
		if name == "usr/bin/warmwire" {
			mode = 0o755
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, data, mode); err != nil {
			return "", err
		}
	}
	if err := settle(dir); err != nil {
		return "", err
	}
	name := fmt.Sprintf("warmwire_%s_%s.deb", version, goarch)
	cmd := exec.Command("dpkg-deb", "--root-owner-group", "-Zxz", "--build", dir, filepath.Join(r.out, name))
	cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch.Unix()))
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("dpkg-deb: %w\n%s", err, text)
	}
	return name, nil
}

// debFiles are the contents, by path, and their size.
func (r *release) debFiles(program, goarch, version string) (map[string][]byte, int, error) {
	files := map[string][]byte{}
	for name, from := range map[string]string{
		"usr/bin/warmwire":                    program,
		"lib/systemd/system/warmwire.service": filepath.Join(r.root, "deploy/systemd/warmwire.service"),
		"lib/systemd/system/warmwire.socket":  filepath.Join(r.root, "deploy/systemd/warmwire.socket"),
	} {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, 0, err
		}
		if strings.HasSuffix(name, ".service") {
			data = bytes.ReplaceAll(data, []byte("/usr/local/bin/warmwire"), []byte("/usr/bin/warmwire"))
		}
		files[name] = data
	}
	files["usr/share/doc/warmwire/copyright"] = []byte("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n" +
		"Upstream-Name: warmwire\nSource: https://github.com/warmwire/warmwire\n\nFiles: *\nCopyright: 2026 the Warmwire authors\nLicense: Apache-2.0\n" +
		" On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n")
	var changes bytes.Buffer
	z, err := gzip.NewWriterLevel(&changes, gzip.BestCompression)
	if err != nil {
		return nil, 0, err
	}
	fmt.Fprintf(z, "warmwire (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of the source.\n\n -- %s  %s\n", version, maintainer, epoch.UTC().Format(time.RFC1123Z))
	if err := z.Close(); err != nil {
		return nil, 0, err
	}
	files["usr/share/doc/warmwire/changelog.gz"] = changes.Bytes()
	files["usr/share/lintian/overrides/warmwire"] = []byte("# Go programs are static; --help and docs/ are the manual.\n" +
		"warmwire: statically-linked-binary\nwarmwire: no-manual-page\nwarmwire: initial-upload-closes-no-bugs\n")
	size := 0
	for _, data := range files {
		size += len(data)
	}
	return files, size, nil
}

// settle gives all below dir one time.
func settle(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(path, epoch, epoch)
	})
}

// debVersion makes a version that begins with a digit, as Debian wants, of a tag or of
// what git describes.
func debVersion(v string) string {
	v = strings.NewReplacer("-", ".", "_", ".").Replace(strings.TrimPrefix(v, "v"))
	if v == "" || v[0] < '0' || v[0] > '9' {
		v = "0~" + v
	}
	return v
}
