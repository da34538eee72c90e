// SPDX-License-Identifier: Apache-2.0

//go:build unix

package dnscache

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
