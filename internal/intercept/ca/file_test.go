// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ca

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

func TestAnAuthorityOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir() + "/state/ca"
	first := openCA(t, dir, Config{}).Certificates()[0]
	if got := openCA(t, dir, Config{}).Certificates()[0]; !got.Equal(first) {
		t.Error("a second start has another authority")
	}
	for path, want := range map[string]fs.FileMode{"": 0o700, fileName: 0o600, lockName: 0o600} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("mode of %q is %o, want %o", path, got, want)
		}
	}
	states, err := Read(dir, time.Now())
	if err != nil || len(states) != 1 || !states[0].Certificate.Equal(first) || states[0].Role != Active {
		t.Errorf("Read: %+v, %v", states, err)
	}
	if _, err := Read(dir+"/none", time.Now()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read where none is: %v", err)
	}
	if _, err := os.Stat(dir + "/none"); err == nil {
		t.Error("Read has made a folder")
	}
}

// A file that is not as it must be is an error, and is not touched.
func TestAFileIsRefused(t *testing.T) {
	whole := func(t *testing.T, dir string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, fileName))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	foreign := openCA(t, t.TempDir()+"/ca", Config{Hosts: []string{"other.example"}})
	foreignText, err := encode(foreign.current.Load().list)
	if err != nil {
		t.Fatal(err)
	}
	keyOf := func(text []byte) []byte {
		i := bytes.Index(text, []byte("-----BEGIN PRIVATE"))
		return text[i:bytes.LastIndex(text, []byte("-----END PRIVATE"))]
	}
	for _, tt := range []struct {
		name string
		want Reason
		edit func(text []byte) []byte
	}{
		{"cut", Damaged, func(b []byte) []byte { return b[:len(b)/2] }},
		{"cut by a byte", Damaged, func(b []byte) []byte { return b[:len(b)-3] }},
		{"empty", OtherKind, func([]byte) []byte { return nil }},
		{"zeros, as after a loss of power", OtherKind, func(b []byte) []byte { return make([]byte, len(b)) }},
		{"something behind", Damaged, func(b []byte) []byte { return append(b, "{}"...) }},
		{"another format", OtherKind, func(b []byte) []byte { return bytes.Replace(b, []byte("ca-1"), []byte("ca-2"), 1) }},
		{"a PEM file", OtherKind, func([]byte) []byte { return PEM(foreign.Certificates()...) }},
		{"an unknown key", Damaged, func(b []byte) []byte { return bytes.Replace(b, []byte(`"key"`), []byte(`"kez"`), 1) }},
		{"another's key", Mismatch, func(b []byte) []byte { return bytes.Replace(b, keyOf(b), keyOf(foreignText), 1) }},
		{"a changed certificate", OtherKind, func(b []byte) []byte { return changeSignature(t, b) }},
		{"no authority", Damaged, func([]byte) []byte { return []byte(`{"format":"warmwire-ca-1","authorities":[]}`) }},
		{"never signs", Damaged, func(b []byte) []byte {
			i := bytes.Index(b, []byte(`"signs_from": `)) + len(`"signs_from": `)
			return append(slices.Clone(b[:i]), "null}]}"...)
		}},
		{"too long", TooLong, func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), maxFile)...) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir() + "/ca"
			openCA(t, dir, Config{Hosts: []string{"api.example"}})
			changed := tt.edit(whole(t, dir))
			if err := os.WriteFile(filepath.Join(dir, fileName), changed, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, dir, tt.want)
			if !bytes.Equal(whole(t, dir), changed) {
				t.Error("the file was changed")
			}
		})
	}
}

// changeSignature breaks the last bytes of the certificate, which is its signature.
func changeSignature(t *testing.T, text []byte) []byte {
	t.Helper()
	end := bytes.Index(text, []byte(`\n-----END CERTIFICATE`))
	out := slices.Clone(text)
	for i := end - 1; ; i-- { // the last character but the padding
		if c := out[i]; c != '=' {
			i -= 4
			if out[i] == 'A' {
				out[i] = 'B'
			} else {
				out[i] = 'A'
			}
			return out
		}
	}
}

// refused opens a folder in every way and wants the same refusal.
func refused(t *testing.T, dir string, want Reason) {
	t.Helper()
	_, err := Open(dir, Config{Hosts: []string{"api.example"}})
	_, readErr := Read(dir, time.Now())
	for _, err := range []error{err, readErr} {
		e, ok := errors.AsType[*FileError](err)
		if !ok || e.Reason != want {
			t.Errorf("%v, want reason %q", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("the error shows the content: %v", err)
		}
	}
}

func TestAFileOfOthersIsRefused(t *testing.T) {
	make := func(t *testing.T) (dir, file string) {
		dir = t.TempDir() + "/ca"
		openCA(t, dir, Config{Hosts: []string{"api.example"}})
		return dir, filepath.Join(dir, fileName)
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		want Reason
		do   func(t *testing.T, dir, file string) error
	}{
		{"others read it", TooOpen, func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o644) }},
		{"the group writes it", TooOpen, func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o620) }},
		{"others enter the folder", TooOpen, func(_ *testing.T, dir, _ string) error { return os.Chmod(dir, 0o755) }},
		{"another's file", Owner, func(t *testing.T, _, file string) error { testenv.NeedRoot(t); return os.Chown(file, 12345, -1) }},
		{"another's folder", Owner, func(t *testing.T, dir, _ string) error { testenv.NeedRoot(t); return os.Chown(dir, 12345, -1) }},
		{"a symbolic link", NotPlain, func(_ *testing.T, dir, file string) error {
			return errors.Join(os.Rename(file, dir+"/real"), os.Symlink("real", file))
		}},
		{"a folder in its place", NotPlain, func(_ *testing.T, _, file string) error {
			return errors.Join(os.Remove(file), os.Mkdir(file, 0o700))
		}},
		{"a pipe", NotPlain, func(_ *testing.T, _, file string) error {
			return errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600))
		}},
		{"a file in the folder's place", NotPlain, func(_ *testing.T, dir, _ string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, file := make(t)
			must(t, tt.do(t, dir, file))
			refused(t, dir, tt.want)
		})
	}
}

// Processes that make an authority at once end with one.
func TestProcessesAtOnceEndWithOne(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() + "/ca"
	var all sync.WaitGroup
	var mu sync.Mutex
	got := make(map[string]int)
	for range 8 {
		all.Go(func() {
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), childVariable+"="+dir)
			out, err := cmd.CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			got[strings.TrimSpace(string(out))]++
		})
	}
	all.Wait()
	if len(got) != 1 || len(strings.Join(keysOf(got), "")) != 64 {
		t.Errorf("the processes have %v, want one fingerprint", got)
	}
}

func keysOf(m map[string]int) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}

// A process sees what another has changed within five seconds, keeps what it has
// while that cannot be read, and says so.
func TestChangesOfAnotherProcessAreSeen(t *testing.T) {
	dir, clock := t.TempDir()+"/ca", newClock()
	cfg := Config{Hosts: []string{"api.example"}, Now: clock.now}
	a, other := openCA(t, dir, cfg), openCA(t, dir, cfg)
	first := issuer(t, a, "api.example")
	if err := errors.Join(other.Rotate(time.Time{}), other.Switch(), other.Retire()); err != nil {
		t.Fatal(err)
	}
	clock.t = clock.t.Add(lookEvery - 1)
	if got := issuer(t, a, "api.example"); got != first {
		t.Error("looked too early")
	}
	clock.t = clock.t.Add(1)
	second := issuer(t, a, "api.example")
	if second == first || len(a.Certificates()) != 1 {
		t.Error("the rotation was not seen")
	}

	if err := os.Chmod(filepath.Join(dir, fileName), 0o644); err != nil {
		t.Fatal(err)
	}
	clock.t = clock.t.Add(-time.Hour) // a clock that was put back does not stop the looks
	if got := issuer(t, a, "api.example"); got != second {
		t.Errorf("signed by %.8s, want the last good one", got)
	}
	if _, err := a.States(); err == nil || !strings.Contains(err.Error(), string(TooOpen)) {
		t.Errorf("States: %v, want the reason", err)
	}
	if err := os.Chmod(filepath.Join(dir, fileName), 0o600); err != nil {
		t.Fatal(err)
	}
	clock.t = clock.t.Add(lookEvery)
	if _, err := a.States(); err != nil {
		t.Errorf("States: %v", err)
	}
}

// Two that change at once both succeed, one after the other.
func TestChangesAtOnceDoNotOverwriteEachOther(t *testing.T) {
	dir := t.TempDir() + "/ca"
	a, b := openCA(t, dir, Config{}), openCA(t, dir, Config{})
	var all sync.WaitGroup
	errs := make([]error, 2)
	for i, each := range []*Authority{a, b} {
		all.Go(func() { errs[i] = each.Rotate(time.Time{}) })
	}
	all.Wait()
	if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), ErrNextExists) {
		t.Errorf("%v and %v, want one rotation", errs[0], errs[1])
	}
}

// What a process that was killed has left holds keys, and goes.
func TestLeftoversAreRemoved(t *testing.T) {
	dir := t.TempDir() + "/ca[1]*"
	a := openCA(t, dir, Config{})
	left := filepath.Join(dir, "."+fileName+"-12345")
	if err := os.WriteFile(left, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Rotate(time.Time{}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != fileName && e.Name() != lockName {
			t.Errorf("%s is left", e.Name())
		}
	}
}

func FuzzFile(f *testing.F) {
	a := newCA(f, Config{Hosts: []string{"api.example", "127.0.0.1"}})
	one, err := encode(a.current.Load().list)
	if err != nil {
		f.Fatal(err)
	}
	if err := a.Rotate(time.Time{}); err != nil {
		f.Fatal(err)
	}
	two, err := encode(a.current.Load().list)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(one)
	f.Add(two)
	f.Add([]byte(`{"format":"warmwire-ca-1","authorities":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := decode("f", text)
		if err != nil {
			if e, ok := errors.AsType[*FileError](err); !ok || len(e.Error()) > 400 {
				t.Fatalf("an error of no kind, or with content: %v", err)
			}
			return
		}
		again, err := encode(list)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decode("f", again); err != nil || len(got) != len(list) {
			t.Fatalf("what was read cannot be written and read: %v", err)
		}
		s := &signers{list: list}
		for _, now := range []time.Time{{}, time.Unix(1_800_000_000, 0)} {
			s.states(now)
			_, _ = s.forName("api.example", now)
		}
	})
}
