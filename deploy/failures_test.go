// SPDX-License-Identifier: Apache-2.0

//go:build linux

package deploy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// A replaceable is a process whose program and configuration may be replaced.
type replaceable struct {
	t             *testing.T
	program, file string
	text          string // of the file
	cmd           *exec.Cmd
	port          int
	base, admin   string
	log           string
	finish        chan struct{}
}

func newReplaceable(t *testing.T, upstream func(finish chan struct{}) *httptest.Server) *replaceable {
	t.Helper()
	r := &replaceable{t: t, program: filepath.Join(t.TempDir(), "warmwire"), finish: make(chan struct{})}
	if err := os.Link(program(t), r.program); err != nil {
		if out, err := exec.Command("cp", program(t), r.program).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	ports := testenv.FreePorts(t, 2)
	r.port, r.base = ports[0], fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	r.admin = fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	r.text = fmt.Sprintf("listen: {address: '127.0.0.1:%d'}\nadmin: {address: '127.0.0.1:%d'}\nupstreams:\n  up: {url: '%s'}\n", ports[0], ports[1], upstream(r.finish).URL)
	r.file = configure(t, r.text)
	r.text = read(t, r.file)
	r.cmd = exec.Command(r.program, "run", "-c", r.file)
	r.cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	r.log = launch(t, r.cmd, r.port)
	return r
}

// become puts another program in the place of the one that runs.
func (r *replaceable) become(script string, mode os.FileMode) {
	r.t.Helper()
	next := r.program + ".new"
	if err := os.WriteFile(next, []byte(script), mode); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(next, r.program); err != nil {
		r.t.Fatal(err)
	}
}

func (r *replaceable) upgrade() (string, error) { return r.upgradeBy(r.file) }

func (r *replaceable) upgradeBy(file string) (string, error) {
	out, err := exec.CommandContext(r.t.Context(), program(r.t), "upgrade", "-c", file).CombinedOutput()
	return string(out), err
}

// serves asks once, over a new connection.
func (r *replaceable) serves(when string) {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	if err := (&loadgen{base: r.base}).ask(client); err != nil {
		r.t.Errorf("%s: %v", when, err)
	}
}

// TestFailedUpgradesChangeNothing tries successors that cannot take over.
func TestFailedUpgradesChangeNothing(t *testing.T) {
	r := newReplaceable(t, func(f chan struct{}) *httptest.Server { return lines(t, f) })
	good := read(t, r.program)
	for _, tt := range []struct {
		name, program string
		mode          os.FileMode
		config, want  string
	}{
		{"a program that ends", "#!/bin/sh\nexit 7\n", 0o755, r.text, "exit status 7"},
		{"a program that ends well", "#!/bin/sh\nexit 0\n", 0o755, r.text, "ended before it was ready"},
		{"not a program", "nothing that runs", 0o755, r.text, "exec format error"},
		{"a program that nobody may run", "#!/bin/sh\n", 0o644, r.text, "permission denied"},
		{"a broken configuration", good, 0o755, "nonsense: true\n" + r.text, "ended before it was ready"},
		{"an upstream without URL", good, 0o755, r.text + "  bad: {url: ''}\n", "ended before it was ready"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.become(tt.program, tt.mode)
			if err := os.WriteFile(r.file, []byte(tt.config), 0o600); err != nil {
				t.Fatal(err)
			}
			// The command itself needs to know where to ask.
			if err := os.WriteFile(r.file+".good", []byte(r.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := r.upgradeBy(r.file + ".good"); err == nil || !strings.Contains(out, tt.want) {
				t.Errorf("%v: %s", err, out)
			}
			r.serves("afterwards")
			if pid := pidOf(t, r.port); pid != r.cmd.Process.Pid {
				t.Errorf("process %d serves, want %d", pid, r.cmd.Process.Pid)
			}
		})
	}
	r.become(good, 0o755)
	if err := os.WriteFile(r.file, []byte(r.text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := r.upgrade(); err != nil {
		t.Errorf("a good one after all: %v: %s", err, out)
	}
	untilGone(t, r.cmd.Process.Pid)
	r.serves("the successor")
}

// TestUpgradeKeepsWhatWasChanged tunes and patches without saving, and finds both in the
// successor. What does not fit the file any more refuses the upgrade.
func TestUpgradeKeepsWhatWasChanged(t *testing.T) {
	r := newReplaceable(t, func(f chan struct{}) *httptest.Server { return lines(t, f) })
	if out, err := exec.CommandContext(t.Context(), program(t), "tune", "-c", r.file, "upstreams.up.retry.budget=0.125").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	patch := `{"log": {"level": "debug"}, "upstreams": {"more": {"url": "https://more.test", "headers": {"set": {"X-Key": "s3cret"}}}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, r.admin+"/v1/config", strings.NewReader(patch))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(read(t, filepath.Join(filepath.Dir(r.file), "admin.token"))))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("patch: %s", resp.Status)
	}
	want := r.config()
	for _, part := range []string{`"budget":0.125`, `"level":"debug"`, `"https://more.test"`} {
		if !strings.Contains(want, part) {
			t.Fatalf("%s is not in %s", part, want)
		}
	}
	first := r.cmd.Process.Pid
	for range 2 { // and on to the one after
		if out, err := r.upgrade(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		untilGone(t, first)
		if got := r.config(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		first = pidOf(t, r.port)
	}
	if log := read(t, r.log); strings.Contains(log, "s3cret") {
		t.Error("the log has a secret")
	}
	if err := os.WriteFile(r.file, []byte(strings.Replace(r.text, "  up:", "  renamed:", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := r.upgrade()
	if err == nil || !strings.Contains(out, "ended before it was ready") {
		t.Errorf("with a key that is tuned gone from the file: %v: %s", err, out)
	}
	if log := read(t, r.log); !strings.Contains(log, "upstreams.up") {
		t.Errorf("the log does not say why; the command says %v: %s", err, out)
	}
	if got := r.config(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	signalTo(t, first, syscall.SIGTERM)
	untilGone(t, first)
}

// config is the configuration in force.
func (r *replaceable) config() string {
	r.t.Helper()
	return strings.Join(strings.Fields(fetch(r.t, r.admin+"/v1/config")), "")
}

// TestUpgradesAtOnce asks for several, amid reloads: one is made, and nobody is refused.
func TestUpgradesAtOnce(t *testing.T) {
	r := newReplaceable(t, func(f chan struct{}) *httptest.Server { return lines(t, f) })
	ctx, stop := context.WithCancel(t.Context())
	load := &loadgen{base: r.base}
	var asking, storm, upgrades sync.WaitGroup
	asking.Go(func() { load.run(ctx, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}) })
	storm.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if ctx.Err() != nil || syscall.Kill(r.cmd.Process.Pid, syscall.SIGHUP) != nil {
				return
			}
		}
	})
	said, failed := make([]string, 4), make([]error, 4)
	for i := range said {
		upgrades.Go(func() { said[i], failed[i] = r.upgrade() })
	}
	upgrades.Wait()
	stop()
	asking.Wait()
	storm.Wait()
	made := 0
	for i, err := range failed {
		switch {
		case err == nil:
			made++
		case !strings.Contains(said[i], "another upgrade is under way") && !strings.Contains(said[i], "a successor has taken over already"):
			t.Errorf("%v: %s", err, said[i])
		}
	}
	if made == 0 {
		t.Errorf("none was made: %q", said)
	}
	if load.asked == 0 || len(load.wrong) > 0 {
		t.Errorf("%d of %d requests failed: %v", len(load.wrong), load.asked, load.wrong[0])
	}
	untilGone(t, r.cmd.Process.Pid)
	r.serves("afterwards")
	signalTo(t, pidOf(t, r.port), syscall.SIGTERM)
}

// TestStopAmidUpgrade ends a process whose successor is not ready: both are gone.
func TestStopAmidUpgrade(t *testing.T) {
	r := newReplaceable(t, func(f chan struct{}) *httptest.Server { return lines(t, f) })
	pidFile := filepath.Join(t.TempDir(), "pid")
	r.become("#!/bin/sh\necho $$ >"+pidFile+"\nexec sleep 600\n", 0o755)
	answered := make(chan string, 1)
	go func() {
		out, err := r.upgrade()
		answered <- fmt.Sprintf("%v: %s", err, out)
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	pid := 0
	for deadline := time.Now().Add(patience); pid == 0; <-tick.C {
		text, _ := os.ReadFile(pidFile)
		_, _ = fmt.Sscan(string(text), &pid)
		if time.Now().After(deadline) {
			t.Fatal("the successor was not started")
		}
	}
	r.serves("while a successor begins")
	start := time.Now()
	signalTo(t, r.cmd.Process.Pid, syscall.SIGTERM)
	untilGone(t, r.cmd.Process.Pid)
	untilGone(t, pid)
	t.Logf("gone after %s; upgrade says %s", time.Since(start).Round(time.Millisecond), <-answered)
}

// TestNoUpgradeAmidDrain is refused, and what runs ends as it would have.
func TestNoUpgradeAmidDrain(t *testing.T) {
	r := newReplaceable(t, func(f chan struct{}) *httptest.Server { return lines(t, f) })
	resp, err := http.Get(r.base + "/up/stream")
	if err != nil {
		t.Fatal(err)
	}
	signalTo(t, r.cmd.Process.Pid, syscall.SIGTERM)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !strings.Contains(read(t, r.log), "draining"); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("it does not drain")
		}
	}
	if out, err := r.upgrade(); err == nil || !strings.Contains(out, "being stopped") {
		t.Errorf("%v: %s", err, out)
	}
	close(r.finish)
	if err := readStream(resp); err != nil {
		t.Error(err)
	}
	untilGone(t, r.cmd.Process.Pid)
}
