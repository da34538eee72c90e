// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmwire/warmwire/internal/testenv"
)

// TestOutOfDescriptors takes descriptors away from a process that has let apps in for
// more: it waits without spinning or flooding its log, and serves again afterwards.
func TestOutOfDescriptors(t *testing.T) {
	binary, err := testenv.Build("../..", "cmd/warmwire")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(binary))
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "w.yaml")
	text := fmt.Sprintf("listen: {address: '127.0.0.1:%s'}\nadmin: {address: none}\nstate_dir: %s\ndrain: {timeout: 100ms}\n", port, dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	cmd := exec.Command(binary, "run", "-c", file)
	cmd.Stderr = logFile
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + port
	ask := func(wait time.Duration) (string, error) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(wait))
		if _, err := fmt.Fprint(c, "GET /nobody HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
			return "", err
		}
		return bufio.NewReader(c).ReadString('\n')
	}
	eventually(t, "it serves", func() bool { line, _ := ask(time.Second); return strings.Contains(line, "404") })
	few := unix.Rlimit{Cur: 64, Max: 64}
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	for range 200 { // the kernel takes them, Warmwire cannot
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	eventually(t, "it says that it is out of descriptors", func() bool {
		log, _ := os.ReadFile(logFile.Name())
		return strings.Contains(string(log), "cannot accept connections")
	})
	before := cpuTicks(t, cmd.Process.Pid)
	line, err := ask(2 * time.Second) // two seconds of pressure
	if err == nil {
		t.Logf("answered under pressure: %q", line)
	}
	if used := cpuTicks(t, cmd.Process.Pid) - before; used > 100 { // of 200
		t.Errorf("it spins: %d0 ms of CPU in 2 s", used)
	}
	for _, c := range held {
		_ = c.Close()
	}
	eventually(t, "it serves again", func() bool { line, _ := ask(time.Second); return strings.Contains(line, "404") })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	log, err := os.ReadFile(logFile.Name())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "\n"); n > 20 {
		t.Errorf("%d lines of log:\n%.2000s", n, log)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(20 * time.Second)
	for range tick.C {
		if holds() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// cpuTicks is what a process has used, in hundredths of a second (proc(5)).
func cpuTicks(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var user, system int
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return user + system
}
