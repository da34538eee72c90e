// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// accepted returns both ends of a connection that d opened on loopback.
func accepted(t *testing.T, d *Dialer) (ours, theirs net.Conn, err error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	ours, err = d.DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { _ = ours.Close() })
	theirs, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close() })
	return ours, theirs, nil
}

func TestEnded(t *testing.T) {
	for name, end := range map[string]func(net.Conn) error{
		"FIN": net.Conn.Close,
		"RST": func(c net.Conn) error { return errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()) },
		"bytes and FIN": func(c net.Conn) error {
			_, err := c.Write([]byte("bye"))
			return errors.Join(err, c.Close())
		},
	} {
		ours, theirs, err := accepted(t, New(Config{}))
		if err != nil {
			t.Fatal(err)
		}
		if Ended(ours) || Ended(tls.Client(ours, &tls.Config{ServerName: "x"})) {
			t.Errorf("%s: ended before", name)
		}
		if err := end(theirs); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(5 * time.Second); !Ended(ours); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not seen", name)
			}
			<-time.NewTimer(time.Millisecond).C
		}
		if _ = ours.Close(); !Ended(ours) {
			t.Errorf("%s: what we have closed has not ended", name)
		}
	}
	a, b := net.Pipe()
	defer func() { _ = errors.Join(a.Close(), b.Close()) }()
	if Ended(a) {
		t.Error("a pipe cannot be asked")
	}
}

func TestReadInfo(t *testing.T) {
	ours, theirs, err := accepted(t, New(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(theirs, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]net.Conn{"TCP": ours, "TLS over it": tls.Client(ours, &tls.Config{ServerName: "x"})} {
		info, ok := ReadInfo(c)
		if !ok || info.RTT <= 0 || info.RTO <= 0 {
			t.Errorf("%s: %+v, %v", name, info, ok)
		}
	}
	a, b := net.Pipe()
	defer func() { _ = errors.Join(a.Close(), b.Close()) }()
	if _, ok := ReadInfo(a); ok {
		t.Error("a pipe has TCP_INFO")
	}
	_ = ours.Close()
	if _, ok := ReadInfo(ours); ok {
		t.Error("a closed connection has TCP_INFO")
	}
}

func TestSocketOptions(t *testing.T) {
	ours, _, err := accepted(t, New(Config{Congestion: "reno"}))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := ours.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var timeout, lowat, nodelay int
	var congestion string
	var errs [4]error
	if err := raw.Control(func(fd uintptr) {
		timeout, errs[0] = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		lowat, errs[1] = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		nodelay, errs[2] = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY)
		congestion, errs[3] = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if timeout != userTimeout || lowat != notSentLowat || nodelay == 0 || strings.TrimRight(congestion, "\x00") != "reno" {
		t.Errorf("user timeout %d, not sent %d, no delay %d, congestion control %q", timeout, lowat, nodelay, congestion)
	}
}

func TestUnknownCongestionControlIsAnError(t *testing.T) {
	_, _, err := accepted(t, New(Config{Congestion: "fastest"}))
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), `congestion control "fastest"`) {
		t.Errorf("%v", err)
	}
}

// A probe is answered by the peer's kernel, whatever its program does, and that
// is seen.
func TestProbe(t *testing.T) {
	ours, _, err := accepted(t, New(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	silence := func() time.Duration {
		info, ok := ReadInfo(ours)
		if !ok {
			t.Fatal("no TCP_INFO")
		}
		return info.LastHeard
	}
	deadline := time.Now().Add(10 * time.Second)
	wait := func(what string, done func() bool) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for !done() {
			if <-tick.C; time.Now().After(deadline) {
				t.Fatalf("%s: silent for %v", what, silence())
			}
		}
	}
	wait("before the probe", func() bool { return silence() > 1200*time.Millisecond })
	if !Probe(ours) {
		t.Fatal("cannot be probed")
	}
	wait("after the probe", func() bool { return silence() < 500*time.Millisecond })
	Unprobe(ours)
	wait("after the end of probing", func() bool { return silence() > 1200*time.Millisecond })
	a, b := net.Pipe()
	defer func() { _ = errors.Join(a.Close(), b.Close()) }()
	if Probe(a) {
		t.Error("a pipe can be probed")
	}
}
