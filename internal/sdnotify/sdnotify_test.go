// SPDX-License-Identifier: Apache-2.0

package sdnotify_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/sdnotify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMessages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Skipf("no datagrams on Unix sockets here: %v", err)
	}
	defer c.Close()
	n, err := sdnotify.New(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		send func() error
		want string
	}{
		{func() error { return n.Send("READY=1", sdnotify.Status("two\nlines")) }, "READY=1\nSTATUS=two lines"},
		{func() error { return n.Stopping(3 * time.Second) }, "STOPPING=1\nEXTEND_TIMEOUT_USEC=3000000\nSTATUS=draining"},
	} {
		if err := tt.send(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1000)
		k, err := c.Read(buf)
		if err != nil || string(buf[:k]) != tt.want {
			t.Errorf("got %q, %v; want %q", buf[:k], err, tt.want)
		}
	}
	_ = c.Close()
	if n.Send("READY=1") == nil {
		t.Error("nobody listens, and that is fine")
	}
}

func TestNobodyListens(t *testing.T) {
	n, err := sdnotify.New("")
	if n != nil || err != nil {
		t.Fatal(n, err)
	}
	if err := n.Send("READY=1"); err != nil {
		t.Error(err)
	}
	if err := n.Reloading(); err != nil {
		t.Error(err)
	}
	if err := n.Stopping(time.Second); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"x", "@", "vsock:2:1"} {
		if _, err := sdnotify.New(bad); err == nil {
			t.Errorf("New(%q) takes it", bad)
		}
	}
}

func TestWatchdog(t *testing.T) {
	tests := []struct {
		usec, pid string
		want      time.Duration
		bad       bool
	}{
		{"", "", 0, false},
		{"30000000", "", 15 * time.Second, false},
		{"30000000", "7", 15 * time.Second, false},
		{"30000000", "8", 0, false},
		{"0", "", 0, true},
		{"-1", "", 0, true},
		{"x", "", 0, true},
		{"9223372036854775807", "", 0, true},
	}
	for _, tt := range tests {
		got, err := sdnotify.Watchdog(tt.usec, tt.pid, 7)
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("Watchdog(%q, %q) = %v, %v; want %v", tt.usec, tt.pid, got, err, tt.want)
		}
	}
}
