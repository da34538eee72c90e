// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build compiles the command in folder command of the module at root with the
// given flags of `go build` and returns its path. The caller removes the folder
// that holds it.
//
// It looks at each source file, because the test cache knows the files that a
// test looked at but not those that the compiler read for it: without that, a
// change of the program would leave the verdict of its tests at "(cached)".
func Build(root, command string, flags ...string) (string, error) {
	if err := lookAtSources(root); err != nil {
		return "", fmt.Errorf("look at the sources: %w", err)
	}
	dir, err := os.MkdirTemp("", "warmwire-build-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(command))
	cmd := exec.Command("go", append(append([]string{"build", "-o", path}, flags...), "./"+command)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir) // the build's error is the one to report
		return "", fmt.Errorf("go build ./%s: %w\n%s", command, err, out)
	}
	return path, nil
}

func lookAtSources(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		switch {
		case entry.IsDir() && (name == "node_modules" || name == "testdata" || name == "out" || strings.HasPrefix(name, ".") && path != root):
			return fs.SkipDir
		case entry.IsDir() || strings.HasSuffix(name, "_test.go"):
			return nil
		case strings.HasSuffix(name, ".go") || name == "go.mod" || name == "go.sum":
			_, err := os.Stat(path)
			return err
		}
		return nil
	})
}
