// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/netlab"
)

// childVariable says which part this program plays, if it is a child of a test.
const (
	childVariable = "NETLAB_TEST_CHILD"
	childSleeper  = "sleeper"
	childVictim   = "victim"
)

func TestMain(m *testing.M) {
	if netlab.Main() {
		return
	}
	switch os.Getenv(childVariable) {
	case childSleeper:
		sleeper(os.Args[1])
	case childVictim:
		victim()
	default:
		goleak.VerifyTestMain(m)
	}
}

// A child is this program in another part, on a host of the lab if there is one.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startChild(t testing.TB, host *netlab.Host, part string, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	if host != nil {
		cmd = host.Command(self, args...)
	}
	cmd.Env = append(os.Environ(), childVariable+"="+part)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A child that hangs must not hang the test.
	watchdog := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		watchdog.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed or not, its output was what counts
	})
	return &child{cmd: cmd, in: in, lines: bufio.NewScanner(out)}
}

func (c *child) expect(t testing.TB, want string) {
	t.Helper()
	if got := c.line(); got != want {
		t.Fatalf("the child says %q, want %q", got, want)
	}
}

func (c *child) line() string {
	c.lines.Scan()
	return c.lines.Text()
}

// victim makes a lab, says where, and waits to be killed.
func victim() {
	lab, err := netlab.New(context.Background(), netlab.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range []*netlab.Host{lab.Client, lab.Server} {
		_ = h.Do(func() error {
			name, err := os.Readlink("/proc/thread-self/ns/net")
			fmt.Println(name)
			return err
		})
	}
	sleep := lab.Client.Command("sleep", "600")
	fmt.Println(sleep.Start())
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// hold opens a namespace by one of the links to it, so that its number is not given to
// the next one, which may be another lab's; who else holds it is still seen.
func hold(t *testing.T, link string) {
	t.Helper()
	f, err := os.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	name := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
	held.Store(name, true)
	t.Cleanup(func() { held.Delete(name) })
}

// held are the links that the tests themselves made.
var held sync.Map

// holders are the processes that are in a namespace or hold it open, but for the tests
// themselves.
func holders(namespace string) []string {
	var pids []string
	for _, pattern := range []string{"/proc/[0-9]*/ns/net", "/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
		links, _ := filepath.Glob(pattern)
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && to == namespace {
				if _, ours := held.Load(link); ours {
					continue
				}
				pids = append(pids, link)
			}
		}
	}
	return pids
}

// forwarders are the forwarders that a process has started.
func forwarders(parent int) []string {
	var found []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		stat, _ := os.ReadFile(name)
		cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) && strings.HasPrefix(string(cmdline), "netlab-forwarder") {
			found = append(found, filepath.Dir(name))
		}
	}
	return found
}

func TestKilledProcessLeavesNothing(t *testing.T) {
	t.Parallel()
	if err := netlab.Available(); err != nil {
		newLab(t, netlab.Config{}) // skips or fails
	}
	v := startChild(t, nil, childVictim)
	client, server := v.line(), v.line()
	v.expect(t, "<nil>")
	v.expect(t, "ready")
	running := forwarders(v.cmd.Process.Pid)
	if len(running) != 1 || len(holders(client)) == 0 || len(holders(server)) == 0 {
		t.Fatalf("forwarders %v, namespaces %q %q: the lab does not run", running, client, server)
	}
	hold(t, holders(client)[0])
	hold(t, holders(server)[0])
	if err := v.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "forwarder and namespaces gone", func() bool {
		_, err := os.Stat(running[0])
		return os.IsNotExist(err) && len(holders(client)) == 0 && len(holders(server)) == 0
	})
}

func TestCloseLeavesNothing(t *testing.T) {
	lab := newLab(t, netlab.Config{})
	var namespaces []string
	for _, h := range []*netlab.Host{lab.Client, lab.Server} {
		err := h.Do(func() error {
			hold(t, "/proc/thread-self/ns/net")
			name, err := os.Readlink("/proc/thread-self/ns/net")
			namespaces = append(namespaces, name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := lab.Close(); err != nil {
		t.Fatal(err)
	}
	for _, ns := range namespaces {
		if h := holders(ns); len(h) > 0 {
			t.Errorf("%s is held by %v", ns, h)
		}
	}
	if f := forwarders(os.Getpid()); len(f) > 0 {
		t.Errorf("forwarders left: %v", f)
	}
	if _, err := lab.Stats(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Stats after Close = %v, want net.ErrClosed", err)
	}
	if err := lab.Client.Do(func() error { return nil }); err == nil {
		t.Error("Do works after Close")
	}
}
