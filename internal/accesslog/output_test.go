// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestSameFile: a line that is written in part is ended in the same file, and
// written whole in another one.
func TestSameFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	opened := func(file string) *output {
		o, err := open(Config{File: file}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.close)
		return o
	}
	standard, file, again := opened(""), opened(path), opened(path)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	rotated := opened(path)
	for _, tt := range []struct {
		name string
		a, b *output
		want bool
	}{
		{"standard", standard, opened(""), true}, {"the file", file, again, true}, {"after rotation", file, rotated, false},
		{"file for standard", standard, file, false}, {"standard for a file", file, standard, false},
	} {
		if got := tt.a.sameFile(tt.b); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
