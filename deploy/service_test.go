// SPDX-License-Identifier: Apache-2.0

//go:build linux

package deploy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmwire/warmwire/internal/testenv"
)

// patience is far above what anything here takes on a busy machine.
const patience = 30 * time.Second

// A manager stands in for the service manager's end of sd_notify(3).
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

func newManager(t *testing.T) *manager {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &manager{t, path, conn}
}

// next returns the first message from here on that holds an assignment to name, and
// its value.
func (m *manager) next(name string) (value, message string) {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		n, err := m.conn.Read(buf)
		if err != nil {
			m.t.Fatalf("no message with %s: %v", name, err)
		}
		message = string(buf[:n])
		for line := range strings.Lines(message) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
				return v, message
			}
		}
	}
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano() / 1000
}

// configure writes a configuration with its state beside it.
func configure(t *testing.T, text string) (file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "warmwire.yaml")
	if err := os.WriteFile(file, []byte(text+"state_dir: "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// launch starts a program that others will succeed, and waits until it listens on a
// port. It and all its successors are gone after the test; what they wrote is shown if
// the test fails.
func launch(t *testing.T, cmd *exec.Cmd, port int) (log string) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = out // a file: a pipe would be open until the last successor ends
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the group may be gone already
		<-ended
		if t.Failed() {
			t.Log(read(t, out.Name()))
		}
		_ = out.Close()
	})
	deadline := time.Now().Add(patience)
	for pidListening(port) == "" {
		if time.Now().After(deadline) {
			t.Fatalf("nobody listens on %d", port)
		}
		runtime.Gosched()
	}
	return out.Name()
}

// TestServiceUnderSystemd is the life of the service as systemd sees it: activated by
// a connection, ready, alive, reloaded, refused a bad reload, replaced, stopped.
func TestServiceUnderSystemd(t *testing.T) {
	activate := testenv.Need(t, "systemd-socket-activate")
	m := newManager(t)
	ports := testenv.FreePorts(t, 2)
	proxySocket := filepath.Join(t.TempDir(), "proxy.sock")
	file := configure(t, fmt.Sprintf("listen: {addresses: ['localhost:%d', 'unix:%s']}\nadmin: {address: '127.0.0.1:%d'}\n", ports[0], proxySocket, ports[1]))
	log := launch(t, exec.Command(activate, "-l", fmt.Sprintf("127.0.0.1:%d", ports[0]), "-l", proxySocket, "-l", fmt.Sprintf("127.0.0.1:%d", ports[1]),
		"-E", "NOTIFY_SOCKET="+m.path, "-E", "WATCHDOG_USEC=200000", "-E", "HOME="+t.TempDir(), program(t), "run", "-c", file), ports[0])

	admin := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if body := fetch(t, admin+"/readyz"); body != "ready\n" { // asked before the process was there
		t.Errorf("readyz: %q", body)
	}
	if _, message := m.next("READY"); !strings.Contains(message, "STATUS=serving on 127.0.0.1:"+strconv.Itoa(ports[0])) {
		t.Errorf("ready: %q", message)
	}
	m.next("WATCHDOG")
	if body := fetch(t, fmt.Sprintf("http://localhost:%d/nobody", ports[0])); !strings.Contains(body, "unknown_upstream") {
		t.Errorf("through the activated port: %q", body)
	}
	if c, err := net.Dial("unix", proxySocket); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}

	pid := pidOf(t, ports[1])
	before := monotonic(t)
	signalTo(t, pid, syscall.SIGHUP)
	_, message := m.next("RELOADING")
	_, usec, _ := strings.Cut(message, "MONOTONIC_USEC=")
	if at, err := strconv.ParseInt(usec, 10, 64); err != nil || at < before || at > monotonic(t) {
		t.Errorf("reloading: %q, want a time since %d", message, before)
	}
	m.next("READY")

	good := read(t, file)
	if err := os.WriteFile(file, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	signalTo(t, pid, syscall.SIGHUP)
	m.next("RELOADING")
	if _, message := m.next("READY"); !strings.Contains(message, "refused") {
		t.Errorf("after a bad file: %q", message)
	}
	if out, err := exec.CommandContext(t.Context(), program(t), "upgrade", "-c", file).CombinedOutput(); err == nil {
		t.Errorf("upgrade with a bad file: %s", out)
	}
	signalTo(t, pid, syscall.SIGUSR2) // its successor refuses the file, and it goes on
	for deadline := time.Now().Add(patience); !strings.Contains(read(t, log), "this process goes on"); {
		if m.next("WATCHDOG"); time.Now().After(deadline) {
			t.Fatal("the upgrade with a bad file does not fail")
		}
	}
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), program(t), "upgrade", "-c", file).CombinedOutput(); err != nil || string(out) != "upgraded\n" {
		t.Fatalf("upgrade: %v\n%s", err, out)
	}
	value, _ := m.next("MAINPID")
	next, err := strconv.Atoi(value)
	if err != nil || next == pid {
		t.Fatalf("MAINPID=%q after %d", value, pid)
	}
	if body := fetch(t, admin+"/readyz"); body != "ready\n" {
		t.Errorf("readyz of the successor: %q", body)
	}
	untilGone(t, pid)
	m.next("WATCHDOG") // only the successor can still send it: the message below is newer
	signalTo(t, next, syscall.SIGTERM)
	if _, message := m.next("STOPPING"); !strings.Contains(message, "EXTEND_TIMEOUT_USEC=30000000") { // 25 s and 5 s
		t.Errorf("stopping: %q", message)
	}
	untilGone(t, next)
	if _, err := os.Stat(proxySocket); err != nil {
		t.Errorf("systemd's socket file is gone: %v", err)
	}
}

// TestSocketNobodyWants starts with a socket that the configuration does not name.
func TestSocketNobodyWants(t *testing.T) {
	activate := testenv.Need(t, "systemd-socket-activate")
	ports := testenv.FreePorts(t, 2)
	file := configure(t, fmt.Sprintf("listen: {address: '127.0.0.1:%d'}\nadmin: {address: none}\n", ports[0]))
	cmd := exec.CommandContext(t.Context(), activate, "-l", fmt.Sprintf("127.0.0.1:%d", ports[1]), "-E", "HOME="+t.TempDir(), program(t), "run", "-c", file)
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case err := <-ended:
			want := fmt.Sprintf("systemd passes a socket on tcp 127.0.0.1:%d, which is no listen.address", ports[1])
			if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(said.String(), want) {
				t.Errorf("ended with %v: %s", err, said.String())
			}
			return
		case <-limit.C:
			t.Fatal(cmd.Process.Kill(), <-ended, "still runs: "+said.String())
		case <-tick.C:
			if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[1])); err == nil {
				_ = c.Close()
			}
		}
	}
}

func signalTo(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("signal %d: %v", pid, err)
	}
}

// untilGone waits for a process to end; nobody may be there to collect it.
func untilGone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d has not ended", pid)
		}
	}
}

// pidOf asks the kernel who listens on a port.
func pidOf(t *testing.T, port int) int {
	t.Helper()
	pid, err := strconv.Atoi(pidListening(port))
	if err != nil {
		t.Fatalf("nobody listens on %d", port)
	}
	return pid
}

// pidListening is "" if nobody does.
func pidListening(port int) string {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	inode := ""
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 9 && f[1] == fmt.Sprintf("0100007F:%04X", port) && f[3] == "0A" {
			inode = "socket:[" + f[9] + "]"
		}
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil || inode == "" {
		return ""
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == inode {
			return strings.Split(link, "/")[2]
		}
	}
	return ""
}
