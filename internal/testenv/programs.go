// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Limits of a program that a test starts.
const (
	startLimit = 20 * time.Second
	stopLimit  = 5 * time.Second // of SIGTERM; then SIGKILL
	lookEvery  = 20 * time.Millisecond
)

// Ports are taken from below the range from which Linux gives connections theirs
// (net.ipv4.ip_local_port_range): whoever makes thousands of those beside a test would
// else take a port between the moment it is found and the moment it is used.
const firstPort, lastPort = 10_000, 32_000

// given are the ports that this process has handed out, none of them twice.
var given sync.Map

// Port finds a port of 127.0.0.1 that nothing uses over TCP or UDP, for now.
func Port() (int, error) {
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		p, err := net.ListenPacket("udp", addr)
		if err == nil {
			_ = p.Close()
		}
		_ = l.Close()
		if err == nil {
			return port, nil
		}
	}
	return 0, errors.New("no free ports")
}

// FreePorts returns n ports of 127.0.0.1 that nothing uses over TCP or UDP, for now.
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		port, err := Port()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = port
	}
	return ports
}

// FreePort is FreePorts for one, as configuration files want it.
func FreePort(t testing.TB) string {
	t.Helper()
	return strconv.Itoa(FreePorts(t, 1)[0])
}

// Run starts a server and waits until it listens on the TCP ports of 127.0.0.1. It
// ends with the test, or with stop: by SIGTERM, at which servers end their workers,
// and if that does not help by SIGKILL. If the test fails, what it printed is shown.
func Run(t testing.TB, cmd *exec.Cmd, ports ...int) (stop func()) {
	t.Helper()
	p := start(t, cmd)
	for _, port := range ports {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		p.until(t, "listen on "+addr, func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	return p.stop
}

// OpenSSL starts `openssl s_server -www` with args on a free port of 127.0.0.1, and
// returns its address when it listens. It ends as with Run.
func OpenSSL(t testing.TB, args ...string) (addr string, stop func()) {
	t.Helper()
	p := start(t, exec.Command(Need(t, "openssl"), append([]string{"s_server", "-accept", "127.0.0.1:0", "-www"}, args...)...))
	p.until(t, "say where it listens", func() bool {
		_, rest, _ := strings.Cut(p.printed.String(), "ACCEPT ")
		at, _, whole := strings.Cut(rest, "\n")
		addr = at
		return whole
	})
	return addr, p.stop
}

// A program is one that runs.
type program struct {
	name    string
	printed output
	exited  chan struct{}
	stop    func()
}

func start(t testing.TB, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{name: filepath.Base(cmd.Path), exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.printed, &p.printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // being stopped is no fault
	}()
	p.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(stopLimit, func() { _ = cmd.Process.Kill() })
		<-p.exited
		kill.Stop()
	})
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s printed:\n%s", p.name, p.printed.String())
		}
	})
	return p
}

// until waits for what a program shall do.
func (p *program) until(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick, limit := time.NewTicker(lookEvery), time.NewTimer(startLimit)
	defer tick.Stop()
	defer limit.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-p.exited:
			t.Fatalf("%s ended", p.name)
		case <-limit.C:
			t.Fatalf("%s does not %s", p.name, what)
		}
	}
}

// output is what a program has printed so far.
type output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
