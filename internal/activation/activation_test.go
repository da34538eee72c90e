// SPDX-License-Identifier: Apache-2.0

//go:build unix

package activation_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/warmwire/warmwire/internal/activation"
)

const roleEnv = "WARMWIRE_TEST_SUCCESSOR" // what this binary does as a successor

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		successor(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// state is more than a pipe holds.
var state = strings.Repeat("what was tuned", 10_000)

// successor answers one connection on each listener with the name of its network.
func successor(role string) {
	s, err := activation.Inherit(os.LookupEnv, os.Unsetenv)
	if err != nil || role == "fails" {
		os.Exit(3)
	}
	if role == "leaves" {
		os.Exit(0)
	}
	if role == "hangs" {
		select {}
	}
	if string(s.State()) != state {
		os.Exit(7)
	}
	tcp, file := s.Listener(os.Getenv("TCP")), s.Listener(os.Getenv("UNIX"))
	packets := s.Packets(os.Getenv("UDP"))
	if tcp == nil || file == nil || packets == nil || s.Finish() != nil || s.Ready() != nil {
		os.Exit(4)
	}
	for _, ln := range []net.Listener{tcp, file} {
		c, err := ln.Accept()
		if err != nil {
			os.Exit(5)
		}
		_, _ = io.WriteString(c, ln.Addr().Network())
		_ = c.Close()
		_ = ln.Close()
	}
	buf := make([]byte, 10)
	n, from, err := packets.ReadFrom(buf)
	if err == nil {
		_, err = packets.WriteTo(buf[:n], from)
	}
	if err != nil {
		os.Exit(6)
	}
}

// A rig is what a process passes on.
type rig struct {
	tcp     *net.TCPListener
	unix    *net.UnixListener
	packets *net.UDPConn
	passed  []activation.Passed
}

func newRig(t *testing.T) *rig {
	t.Helper()
	var lc net.ListenConfig
	tcp, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := lc.Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	packets, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{tcp: tcp.(*net.TCPListener), unix: file.(*net.UnixListener), packets: packets.(*net.UDPConn)}
	r.unix.SetUnlinkOnClose(false)
	t.Cleanup(r.close)
	r.passed = []activation.Passed{{Socket: r.tcp}, {Socket: r.unix, Foreign: true}, {Socket: r.packets}}
	return r
}

func (r *rig) close() {
	_ = r.tcp.Close()
	_ = r.unix.Close()
	_ = r.packets.Close()
}

// command starts this binary as a successor.
func (r *rig) command(role string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "TCP="+r.tcp.Addr().String(), "UNIX=unix:"+r.unix.Addr().String(),
		"UDP="+r.packets.LocalAddr().String(), "LISTEN_PID=1", "LISTEN_FDS=9", "WATCHDOG_PID=1")
	return cmd
}

func TestSuccessorServesWhatItWasPassed(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := r.command("serves")
	if err := activation.Succeed(ctx, cmd, r.passed, []byte(state)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	for _, p := range r.passed { // shared with the child, which must not change it
		raw, err := p.Socket.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var flags int
		if err := raw.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0) }); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("%T is in blocking mode: Close would not end its Accept (%v)", p.Socket, err)
		}
	}
	addr := r.packets.LocalAddr().String()
	r.close() // only the successor has them now
	for _, at := range []net.Addr{r.tcp.Addr(), r.unix.Addr()} {
		c, err := net.Dial(at.Network(), at.String())
		if err != nil {
			t.Fatal(err)
		}
		if said, err := io.ReadAll(c); err != nil || string(said) != at.Network() {
			t.Errorf("%v: %q, %v", at, said, err)
		}
		_ = c.Close()
	}
	c, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 10)
	if _, err := io.WriteString(c, "ping"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "ping" {
		t.Errorf("over UDP: %q, %v", buf[:n], err)
	}
	if _, err := os.Stat(r.unix.Addr().String()); err != nil {
		t.Errorf("a socket that systemd keeps is gone: %v", err)
	}
}

func TestSuccessorThatDoesNotComeUp(t *testing.T) {
	r := newRig(t)
	err := activation.Succeed(t.Context(), r.command("fails"), r.passed, []byte(state))
	if err == nil || !strings.Contains(err.Error(), "ended before it was ready: exit status 3") {
		t.Errorf("fails: %v", err)
	}
	leaves := r.command("leaves")
	if err := activation.Succeed(t.Context(), leaves, r.passed, []byte(state)); err == nil || !strings.Contains(err.Error(), "ended before it was ready: exit status 0, without a word: is "+leaves.Path) {
		t.Errorf("leaves: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("enough")
	cancel(late)
	hangs := r.command("hangs")
	if err := activation.Succeed(ctx, hangs, r.passed, []byte(state)); !errors.Is(err, late) {
		t.Errorf("hangs: %v", err)
	}
	if hangs.ProcessState == nil {
		t.Error("the one that hangs is still there")
	}
	none := r.command("x")
	none.Path += "-none"
	if err := activation.Succeed(t.Context(), none, r.passed, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	c, err := net.Dial("tcp", r.tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if got, err := r.tcp.Accept(); err != nil { // it serves as before
		t.Error(err)
	} else {
		_ = got.Close()
	}
}

func TestInheritReadsTheEnvironment(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		want string // of the error; "" = none
	}{
		{"nothing", nil, ""},
		{"for another process", map[string]string{"LISTEN_PID": "1", "LISTEN_FDS": "nonsense"}, ""},
		{"no number", map[string]string{"LISTEN_PID": "self", "LISTEN_FDS": "x"}, `LISTEN_FDS="x"`},
		{"negative", map[string]string{"LISTEN_PID": "self", "LISTEN_FDS": "-1"}, `LISTEN_FDS="-1"`},
		{"too many", map[string]string{"LISTEN_PID": "self", "LISTEN_FDS": "129"}, `LISTEN_FDS="129"`},
		{"no state", map[string]string{"WARMWIRE_HANDOVER": "", "WARMWIRE_HANDOVER_STATE": "2"}, `WARMWIRE_HANDOVER_STATE: "2", where it must be 4`},
		{"too long", map[string]string{"WARMWIRE_HANDOVER": strings.Repeat("o", 129)}, "more than 128"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			unset := map[string]bool{}
			lookup := func(name string) (string, bool) {
				v, ok := tt.env[name]
				if v == "self" {
					v = strconv.Itoa(os.Getpid())
				}
				return v, ok
			}
			s, err := activation.Inherit(lookup, func(name string) error { unset[name] = true; return nil })
			if tt.want == "" && (s != nil || err != nil) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, %v; want %q", s, err, tt.want)
			}
			for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WARMWIRE_HANDOVER"} {
				if !unset[name] {
					t.Errorf("%s is left to children", name)
				}
			}
		})
	}
	var none *activation.Sockets
	if none.Listener("127.0.0.1:1") != nil || none.Packets("127.0.0.1:1") != nil || none.Foreign(1) || errors.Join(none.Finish(), none.Ready(), none.Close()) != nil {
		t.Error("no sockets are some")
	}
}
