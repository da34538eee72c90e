// SPDX-License-Identifier: Apache-2.0

//go:build unix

package admin_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/warmwire/warmwire/internal/admin"
)

func TestTokenIsCreatedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "admin.token")
	first, err := admin.LoadOrCreateToken(path)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := base64.RawURLEncoding.DecodeString(first); err != nil || len(raw) != 32 {
		t.Errorf("token %q: %d bytes, %v", first, len(raw), err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if again, err := admin.LoadOrCreateToken(path); err != nil || again != first {
		t.Errorf("second call: %q, %v; want %q", again, err, first)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	other, err := admin.LoadOrCreateToken(filepath.Join(t.TempDir(), "t"))
	if err != nil || other == first {
		t.Errorf("another file has the token %q, %v", other, err)
	}
}

func TestTokenRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.token")
	tokens := make([]string, 16)
	var wg sync.WaitGroup
	for i := range tokens {
		wg.Go(func() {
			var err error
			if tokens[i], err = admin.LoadOrCreateToken(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, tok := range tokens {
		if tok == "" || tok != tokens[0] {
			t.Fatalf("different tokens: %q", tokens)
		}
	}
}

func TestTokenFileIsChecked(t *testing.T) {
	good := strings.Repeat("k", 43)
	tests := []struct {
		name, content string
		mode          os.FileMode
		want, problem string
	}{
		{name: "ours", content: good + "\n", mode: 0o600, want: good},
		{name: "read-only", content: good, mode: 0o400, want: good},
		{name: "line end of another system", content: good + "\r\n", mode: 0o600, want: good},
		{name: "an operator's", content: "A.b-c_d~e+f/g0123456789012345678=", mode: 0o600, want: "A.b-c_d~e+f/g0123456789012345678="},
		{name: "empty", mode: 0o600, problem: "empty"},
		{name: "only a line end", content: "\n", mode: 0o600, problem: "empty"},
		{name: "cut short", content: good[:20], mode: 0o600, problem: "at least 32"},
		{name: "too long", content: strings.Repeat("k", 5000), mode: 0o600, problem: "more than"},
		{name: "two lines", content: good + "\n" + good + "\n", mode: 0o600, problem: "damaged"},
		{name: "zero bytes", content: strings.Repeat("\x00", 43), mode: 0o600, problem: "damaged"},
		{name: "blanks", content: " " + good, mode: 0o600, problem: "damaged"},
		{name: "group reads", content: good, mode: 0o640, problem: "chmod 600"},
		{name: "world reads", content: good, mode: 0o604, problem: "chmod 600"},
		{name: "world writes", content: good, mode: 0o602, problem: "chmod 600"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(path, []byte(tt.content), tt.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil { // past the umask
				t.Fatal(err)
			}
			got, err := admin.LoadOrCreateToken(path)
			if tt.problem == "" {
				if got != tt.want || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				return
			}
			if err == nil || got != "" || !strings.Contains(err.Error(), tt.problem) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %q, %v; want an error with %q and the path", got, err, tt.problem)
			}
			if err != nil && strings.Contains(err.Error(), "kkk") {
				t.Errorf("the error shows the content: %v", err)
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != tt.content {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

func TestTokenFileThatIsNone(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe, dangling, filepath.Join(pipe, "below")} {
		if got, err := admin.LoadOrCreateToken(path); err == nil || got != "" {
			t.Errorf("%s: got %q, %v", path, got, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a link was followed to create a file")
	}
}

func TestTokenFileOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give a file away")
	}
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(strings.Repeat("k", 43)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	if got, err := admin.LoadOrCreateToken(path); err == nil || !strings.Contains(err.Error(), "4711") {
		t.Errorf("got %q, %v", got, err)
	}
}
