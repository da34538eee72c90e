// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
)

// startLimit is how long a Warmwire may take to be reachable.
const startLimit = 20 * time.Second

// warmwireAddr is where it listens, in the network namespace of the client host.
const (
	warmwireAddr = "127.0.0.1:8484"
	adminAddr    = "127.0.0.1:8485"
)

// An Upstream is a server that Warmwire is configured for.
type Upstream struct {
	Name, URL string
	CA        []byte        // PEM, or nil
	Heartbeat string        // YAML, "" for the default
	Bears     time.Duration // silence that flows to it are known to outlive; 0 = not known
}

// A process is a Warmwire beside the clients.
type process struct {
	addr   string
	dir    string
	cmd    *exec.Cmd
	output *tail
	exited chan struct{}
	err    error // of exited
}

// startWarmwire starts the program on a host and returns when it can be reached.
// admin is where its metrics are, or none.
func startWarmwire(ctx context.Context, host *netlab.Host, program, admin string, upstreams []Upstream) (_ *process, err error) {
	dir, err := os.MkdirTemp("", "warmwire-lab-")
	if err != nil {
		return nil, err
	}
	p := &process{addr: warmwireAddr, dir: dir, output: new(tail), exited: make(chan struct{})}
	file, err := writeConfig(dir, admin, upstreams)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	p.cmd = host.Command(program, "run", "-c", file)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.Env = append(os.Environ(), "WARMWIRE_CONFIG=")
	ended, err := spawn(p.cmd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), os.RemoveAll(dir))
	}
	go func() {
		p.err = <-ended
		close(p.exited)
	}()
	addrs := []string{p.addr}
	if admin != "none" {
		addrs = append(addrs, admin)
	}
	for _, addr := range addrs {
		if err := p.reachable(ctx, host, addr); err != nil {
			return nil, errors.Join(err, p.stop())
		}
	}
	return p, nil
}

// writeConfig writes a configuration as a user would.
func writeConfig(dir, admin string, upstreams []Upstream) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {address: %s}\nadmin: {address: %q}\nstate_dir: %q\ndrain: {timeout: 1s}\nupstreams:\n", warmwireAddr, admin, filepath.Join(dir, "state"))
	for _, u := range upstreams {
		fmt.Fprintf(&b, "  %s:\n    url: %s\n", u.Name, u.URL)
		if u.CA != nil {
			file := filepath.Join(dir, u.Name+".pem")
			if err := os.WriteFile(file, u.CA, 0o600); err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "    tls: {ca_file: %q}\n", file)
		}
		if u.Heartbeat != "" {
			fmt.Fprintf(&b, "    heartbeat: {%s}\n", u.Heartbeat)
		}
	}
	if err := writePaths(filepath.Join(dir, "state"), upstreams); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "warmwire.yaml")
	return file, os.WriteFile(file, []byte(b.String()), 0o600)
}

// writePaths writes what an earlier Warmwire would have learned of the paths.
func writePaths(state string, upstreams []Upstream) error {
	type path struct {
		Network  string `json:"network"`
		Origin   string `json:"origin"`
		Survived int64  `json:"survived_ms"`
	}
	var known struct {
		Version int    `json:"version"`
		Paths   []path `json:"paths"`
	}
	known.Version = 1
	for _, u := range upstreams {
		if u.Bears > 0 {
			known.Paths = append(known.Paths, path{netlab.FirstNetwork().String(), u.URL, u.Bears.Milliseconds()})
		}
	}
	if known.Paths == nil {
		return nil
	}
	data, err := json.Marshal(known)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(state, "heartbeat.paths"), data, 0o600)
}

func (p *process) reachable(ctx context.Context, host *netlab.Host, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		c, err := host.Dial(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-p.exited:
			return fmt.Errorf("warmwire ended at once: %w\n%s", p.err, p.output)
		case <-ctx.Done():
			return fmt.Errorf("warmwire cannot be reached: %w\n%s", err, p.output)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the process and removes its files.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case <-p.exited:
	case <-limit.C:
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	if p.err != nil {
		// Not wrapped: the caller takes an exit error for that of the command.
		p.err = fmt.Errorf("warmwire ended badly: %v\n%s", p.err, p.output)
	}
	return errors.Join(p.err, os.RemoveAll(p.dir))
}

// A tail keeps the last of what a process printed.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if extra := t.buf.Len() - tailBytes; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
