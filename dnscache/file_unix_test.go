// SPDX-License-Identifier: Apache-2.0

//go:build unix

package dnscache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestAPipeIsNotWaitedFor: nobody writes into it.
func TestAPipeIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := readFile(path)
		read <- err
	}()
	select {
	case err := <-read:
		if err == nil || !strings.Contains(err.Error(), "it is a p---------, not a file") {
			t.Errorf("readFile: %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits for a writer")
	}
}

// TestOnlyAFileIsReplaced: what stands in its place stays, and that is told.
func TestOnlyAFileIsReplaced(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"p---------": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"L---------": func(path string) error {
			return errors.Join(os.WriteFile(path+".real", nil, 0o600), os.Symlink(path+".real", path))
		},
		"d---------": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cache")
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { // as it ends it saves
				b := start(t, filepath.Dir(path), Config{CacheFile: path}, map[string]*fake{systemX: knows(host, "60 A 192.0.2.1")})
				b.want(host, "[192.0.2.1]")
			})
			if st, err := os.Lstat(path); err != nil || st.Mode().Type().String() != name {
				t.Errorf("it is now %v, %v", st.Mode(), err)
			}
			if err := replaceFile(path, nil); err == nil || err.Error() != "it is a "+name+", not a file" {
				t.Errorf("replaceFile: %v", err)
			}
		})
	}
}
