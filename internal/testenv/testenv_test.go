// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A verdict stands in for a test and keeps how it was ended.
type verdict struct {
	testing.TB
	ended  string // "skip" or "fail"
	reason string
}

func (v *verdict) Helper()                  {}
func (v *verdict) Context() context.Context { return context.Background() }

func (v *verdict) Skipf(format string, args ...any) { v.end("skip", format, args...) }

func (v *verdict) Fatalf(format string, args ...any) { v.end("fail", format, args...) }

func (v *verdict) end(how, format string, args ...any) {
	v.ended, v.reason = how, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// judge runs f as a test would be run and says how it ended.
func judge(f func(testing.TB)) *verdict {
	v := &verdict{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(v)
	}()
	<-done
	return v
}

func TestMissingNeedSkipsHereAndFailsInCI(t *testing.T) {
	empty := t.TempDir()
	needs := map[string]func(testing.TB){
		"no-such-program": func(t testing.TB) { Need(t, "no-such-program") },
		"no_such_module":  func(t testing.TB) { NeedPython(t, "no_such_module") },
		"npm ci":          func(t testing.TB) { NeedNodeModules(t, empty) },
	}
	for _, env := range []struct{ ci, want string }{{"", "skip"}, {"1", "fail"}} {
		for word, need := range needs {
			t.Run(env.want+" "+word, func(t *testing.T) {
				t.Setenv(ciVariable, env.ci)
				v := judge(need)
				if v.ended != env.want || !strings.Contains(v.reason, word) {
					t.Errorf("ended %q with %q, want %q with a reason that names %q", v.ended, v.reason, env.want, word)
				}
			})
		}
	}
}

func TestNeedFindsPrograms(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "some-tool")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if got := Need(t, "some-tool"); got != path {
		t.Errorf("Need = %q, want %q", got, path)
	}
}

func TestNeedRoot(t *testing.T) {
	t.Setenv(ciVariable, "")
	want := "skip"
	if os.Geteuid() == 0 {
		want = ""
	}
	if v := judge(NeedRoot); v.ended != want {
		t.Errorf("ended %q as user %d, want %q", v.ended, os.Geteuid(), want)
	}
}
