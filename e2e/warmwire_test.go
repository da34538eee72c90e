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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
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
	if netlab.Main() { // this process is a child of a lab
		return
	}
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
	program, file string // the program, and its configuration
	log           *lockedBuffer
}

// environ is all that the program gets to know.
func environ(state string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + state, "STATE_DIRECTORY=" + state}
}

// print returns what one of the program's commands prints.
func (s sidecar) print(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.program, append(args, "-c", s.file)...)
	cmd.Env = environ(s.state)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("warmwire %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// settings are YAML beside what every test needs: "key: value, …" for the listener and
// for each upstream, and whole lines for the top.
type settings struct {
	listen, upstream, top string
	listed                bool     // the upstream's other names are upstreams too, and intercepted
	hosts                 []string // to be intercepted as well
}

// config is the file of a Warmwire in front of u.
func (s settings) config(u *upstream, address, admin, caFile, dir string) string {
	config := fmt.Sprintf("listen: {address: %s, %s}\nadmin: {address: %s}\n%s", address, s.listen, admin, s.top)
	config += fmt.Sprintf("dns: {hosts_file: %s}\n", filepath.Join(dir, "hosts"))
	names := slices.Clone(s.hosts)
	upstreams := "upstreams:\n"
	for _, api := range []string{"openai", "anthropic", "gemini"} {
		line := "  %s: {url: %q, tls: {ca_file: %q}, %s}\n"
		upstreams += fmt.Sprintf(line, api, u.tls[api], caFile, s.upstream)
		if s.listed {
			names = append(names, listedName(api))
			upstreams += fmt.Sprintf(line, "listed-"+api, u.listed[api], caFile, s.upstream)
		}
	}
	return config + fmt.Sprintf("intercept: {hosts: [%s]}\n", strings.Join(names, ", ")) + upstreams
}

// startWarmwire runs the real program in front of u. It is told to end when the test
// does, and must end well.
func startWarmwire(t *testing.T, u *upstream, caFile string, more settings) sidecar {
	t.Helper()
	program := built(t).warmwire
	address, admin := freeAddress(t), freeAddress(t)
	state, dir := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "warmwire.yaml")
	for path, text := range map[string]string{
		file:                        more.config(u, address, admin, caFile, dir),
		filepath.Join(dir, "hosts"): "127.0.0.1 localhost openai.test anthropic.test gemini.test\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log lockedBuffer
	cmd := exec.Command(program, "run", "-c", file)
	cmd.Env = environ(state)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { stopWarmwire(t, cmd, ended, &log) })
	waitReady(t, program, file, &log)
	return sidecar{"http://" + address, "http://" + admin, state, program, file, &log}
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
