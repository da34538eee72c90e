// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// programs are built once: the product, and the Go client.
type programs struct{ warmwire, client string }

var build = sync.OnceValues(func() (programs, error) {
	var flags []string
	if raceEnabled { // races show best under real clients
		flags = append(flags, "-race")
	}
	var p programs
	var err error
	if p.warmwire, err = testenv.Build("..", "cmd/warmwire", flags...); err != nil {
		return p, err
	}
	p.client, err = testenv.Build("..", "e2e/clients/go")
	return p, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	p, _ := build() // a failed build has failed the tests already
	for _, path := range []string{p.warmwire, p.client} {
		if path != "" {
			os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

func built(t *testing.T) programs {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A sidecar is a Warmwire that runs.
type sidecar struct {
	origin, admin string
	state         string // the folder of what is kept between runs
	log           *lockedBuffer
}

// settings are YAML beside what every test needs: "key: value, …" for the listener and
// for each upstream.
type settings struct{ listen, upstream string }

// startWarmwire runs the real program in front of u. It is told to end when the test
// does, and must end well.
func startWarmwire(t *testing.T, u *upstream, caFile string, more settings) sidecar {
	t.Helper()
	program := built(t).warmwire
	address, admin := freeAddress(t), freeAddress(t)
	config := fmt.Sprintf("listen: {address: %s, %s}\nadmin: {address: %s}\nupstreams:\n", address, more.listen, admin)
	for _, api := range []string{"openai", "anthropic", "gemini"} {
		config += fmt.Sprintf("  %s: {url: %q, tls: {ca_file: %q}, %s}\n", api, u.tls[api], caFile, more.upstream)
	}
	file := filepath.Join(t.TempDir(), "warmwire.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	state := t.TempDir()
	cmd := exec.Command(program, "run", "-c", file)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + state, "STATE_DIRECTORY=" + state}
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { stopWarmwire(t, cmd, ended, &log) })
	waitReady(t, program, file, &log)
	return sidecar{"http://" + address, "http://" + admin, state, &log}
}

func stopWarmwire(t *testing.T, cmd *exec.Cmd, ended <-chan error, log *lockedBuffer) {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("warmwire: %v", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("warmwire ended with %v\n%s", err, log)
		}
	case <-time.After(patience):
		t.Error("warmwire does not end by SIGTERM:", cmd.Process.Kill())
		<-ended
	}
	if t.Failed() {
		t.Logf("warmwire's log:\n%s", log)
	}
}

func waitReady(t *testing.T, program, file string, log *lockedBuffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for exec.CommandContext(ctx, program, "health", "-c", file).Run() != nil {
		select {
		case <-ctx.Done():
			t.Fatalf("warmwire is not ready\n%s", log)
		case <-tick.C:
		}
	}
}

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", testenv.FreePort(t))
}

// A lockedBuffer collects the output of a child that still runs.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
