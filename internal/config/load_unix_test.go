// SPDX-License-Identifier: Apache-2.0

//go:build unix

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAPipeIsReadAtTheStartOnly: it has nothing a second time.
func TestAPipeIsReadAtTheStartOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(path, []byte("log: {level: warn}\n"), 0o600) }() // ends with the reader
	cfg, _, err := Load(path, noEnv)
	if err != nil || cfg.Log.Level != "warn" {
		t.Fatalf("Load: %v", err)
	}
	if _, _, err := LoadAgain(path, noEnv, Over{}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), path+" is no regular file") {
		t.Errorf("LoadAgain: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("log: {level: debug}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, _, err = LoadAgain(file, noEnv, Over{}); err != nil || cfg.Log.Level != "debug" {
		t.Errorf("LoadAgain of a file: %v", err)
	}
	if _, _, err = LoadAgain("", noEnv, Over{}); err != nil {
		t.Errorf("LoadAgain of the default: %v", err)
	}
}
