// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sidecar_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPipesInPlacesOfFiles: the start does not wait for those that nobody writes into.
func TestPipesInPlacesOfFiles(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	state := t.TempDir()
	for _, name := range []string{"idle.limits", "heartbeat.paths", "dns.cache"} {
		if err := syscall.Mkfifo(filepath.Join(state, name), 0o600); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(10*time.Second, func() { // lets whoever waits go on
			t.Errorf("the start waits for a writer of %s", name)
			f, err := os.OpenFile(filepath.Join(state, name), os.O_WRONLY|syscall.O_NONBLOCK, 0)
			_ = errors.Join(err, f.Close())
		})
		r := startIn(t, state, addr, "")
		late.Stop()
		if status, body := r.call("/up/x"); status != 200 {
			t.Errorf("%d %s", status, body)
		}
		if name == "idle.limits" && !strings.Contains(r.log.String(), "is no regular file") {
			t.Errorf("log: %s", r.log)
		}
		r.stop()
	}
}
