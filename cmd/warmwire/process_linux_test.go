// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmwire/warmwire/internal/testenv"
)

// A process is the built program, for what can be done to a process only.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
	logFile string
}

// startProcess runs the program, built anew, with at most so many descriptors (0 = as many
// as this process) and a configuration to which more is added.
func startProcess(t *testing.T, descriptors int, more string) *process {
	t.Helper()
	return startProcessTo(t, nil, descriptors, more)
}

// startProcessTo gives it a standard error, nil = the log file.
func startProcessTo(t *testing.T, stderr *os.File, descriptors int, more string) *process {
	t.Helper()
	binary, err := testenv.Build("../..", "cmd/warmwire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(binary)) })
	port, dir := testenv.FreePort(t), t.TempDir()
	p := &process{t: t, address: "127.0.0.1:" + port, logFile: filepath.Join(dir, "log")}
	file := filepath.Join(dir, "w.yaml")
	text := fmt.Sprintf("listen: {address: '%s'}\nadmin: {address: none}\nstate_dir: %s\ndrain: {timeout: 100ms}\n%s", p.address, dir, more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	logFile, err := os.Create(p.logFile)
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	p.cmd = exec.Command(binary, "run", "-c", file)
	if descriptors > 0 {
		p.cmd = exec.Command("sh", "-c", `ulimit -n "$0" && exec "$@"`, fmt.Sprint(descriptors), binary, "run", "-c", file)
	}
	p.cmd.Stderr = cmp.Or(stderr, logFile)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	eventually(t, "it serves", func() bool { line, _ := p.ask(time.Second); return strings.Contains(line, "404") })
	return p
}

// ask makes a call on a connection of its own, and returns the status line.
func (p *process) ask(wait time.Duration) (string, error) {
	c, err := net.Dial("tcp", p.address)
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

func (p *process) log() string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// stop ends the process as an operator does.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("exit: %v", err)
	}
}

// TestNobodyReadsTheLog: the standard error is a pipe that is full, as behind a reader that
// hangs, or a terminal after Ctrl-S. The process serves, reloads and ends none the less.
func TestNobodyReadsTheLog(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	_ = w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := w.Write(make([]byte, 1<<20)); err == nil {
		t.Fatalf("the pipe took %d bytes", n)
	}
	p := startProcessTo(t, w, 0, "")
	for range 3 {
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if line, err := p.ask(5 * time.Second); !strings.Contains(line, "404") {
			t.Fatalf("answered %q, %v", line, err)
		}
	}
	late := time.AfterFunc(10*time.Second, func() {
		t.Error("it has not ended 10 s after SIGTERM")
		_ = p.cmd.Process.Kill()
	})
	defer late.Stop()
	p.stop()
}

// TestTheConfigurationBecomesAPipe: a reload does not wait for somebody to write into it.
func TestTheConfigurationBecomesAPipe(t *testing.T) {
	p := startProcess(t, 0, "")
	file := filepath.Join(filepath.Dir(p.logFile), "w.yaml")
	if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it refuses to reload", func() bool {
		return strings.Contains(p.log(), "w.yaml is no regular file: it is read at the start only")
	})
	if line, err := p.ask(5 * time.Second); !strings.Contains(line, "404") {
		t.Errorf("answered %q, %v", line, err)
	}
	p.stop()
}

// TestOutOfDescriptors: more apps come than there are descriptors for. The process
// neither spins nor floods its log, and serves again afterwards.
func TestOutOfDescriptors(t *testing.T) {
	for name, one := range map[string]struct {
		atStart, taken, apps int
		says                 string
	}{
		"too few from the start": {atStart: 256, apps: 500, says: "limits.connections is more than the file descriptors"},
		// It has let apps in for more than it has now.
		"taken away": {taken: 64, apps: 200, says: "cannot accept connections"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, one.atStart, "")
			if one.taken > 0 {
				few := unix.Rlimit{Cur: uint64(one.taken), Max: uint64(one.taken)}
				if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
					t.Fatal(err)
				}
			}
			var held []net.Conn
			for range one.apps { // the kernel takes them, Warmwire cannot
				c, err := net.Dial("tcp", p.address)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, c)
			}
			eventually(t, "it says what is short", func() bool { return strings.Contains(p.log(), one.says) })
			before := cpuTicks(t, p.cmd.Process.Pid)
			for until := time.Now().Add(2 * time.Second); time.Now().Before(until); { // of pressure
				line, err := p.ask(time.Until(until))
				if err == nil && !strings.Contains(line, "503") {
					t.Errorf("answered under pressure: %q", line)
				}
				<-time.NewTimer(100 * time.Millisecond).C
			}
			if used := cpuTicks(t, p.cmd.Process.Pid) - before; used > 100 { // of 200
				t.Errorf("it spins: %d0 ms of CPU in 2 s", used)
			}
			for _, c := range held {
				_ = c.Close()
			}
			eventually(t, "it serves again", func() bool { line, _ := p.ask(time.Second); return strings.Contains(line, "404") })
			p.stop()
			if n := strings.Count(p.log(), "\n"); n > 20 {
				t.Errorf("%d lines of log:\n%.2000s", n, p.log())
			}
		})
	}
}

// TestSleep stops the process, as a laptop's sleep does, until the upstream has closed
// what was kept open. The first call afterwards succeeds at once, and is made once.
func TestSleep(t *testing.T) {
	const idle = 500 * time.Millisecond
	var calls atomic.Int32
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			calls.Add(1)
			_, _ = io.Copy(w, r.Body)
		}
	}))
	up.EnableHTTP2, up.Config.IdleTimeout, up.Config.ErrorLog = true, idle, log.New(io.Discard, "", 0)
	up.StartTLS()
	defer up.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: up.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	upstream := fmt.Sprintf("{url: '%s', tls: {ca_file: %s}", up.URL, ca)
	p := startProcess(t, 0, "upstreams:\n  h2: "+upstream+", protocols: [h2]}\n  h1: "+upstream+", protocols: [http/1.1]}\n")
	for _, name := range []string{"h1", "h2"} {
		call := func() {
			t.Helper()
			resp, err := http.Post("http://"+p.address+"/"+name+"/v1/x", "text/plain", strings.NewReader("question"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || string(body) != "question" || err != nil {
				t.Errorf("%s: %d %q, %v", name, resp.StatusCode, body, err)
			}
		}
		const sleeps = 3
		calls.Store(0)
		call()
		for range sleeps {
			if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			<-time.NewTimer(3 * idle).C
			if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			call()
			if took := time.Since(begun); took > time.Second {
				t.Errorf("%s: the first call took %v", name, took)
			}
		}
		if n := calls.Load(); n != 1+sleeps {
			t.Errorf("%s: %d calls arrived of %d", name, n, 1+sleeps)
		}
	}
	p.stop()
}

// TestStreamsOutlastASleep: the limits of a stream pass while the process stands still,
// and what they wait for has come meanwhile. Nothing is cut.
func TestStreamsOutlastASleep(t *testing.T) {
	const tokens = 20
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for i := range tokens {
			<-time.NewTimer(100 * time.Millisecond).C
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	defer up.Close()
	p := startProcess(t, 0, "upstreams:\n  up: {url: '"+up.URL+"', dialect: openai, timeouts: {first_token: 1s, idle: 1s, total: 4s}}\n")
	results := make(chan error, 10)
	for i := range cap(results) {
		go func() {
			<-time.NewTimer(time.Duration(i) * 50 * time.Millisecond).C // some wait for their first token
			resp, err := http.Post("http://"+p.address+"/up/v1/chat/completions", "application/json", strings.NewReader("{}"))
			if err != nil {
				results <- err
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if n := strings.Count(string(body), "data: "); err == nil && n != tokens+1 {
				err = fmt.Errorf("%d events of %d: %s", n, tokens+1, body)
			}
			results <- err
		}()
	}
	<-time.NewTimer(500 * time.Millisecond).C
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	<-time.NewTimer(5 * time.Second).C
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	p.stop()
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
