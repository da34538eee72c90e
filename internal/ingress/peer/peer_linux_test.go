// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestMain doubles as the child process: it dials, does as told and then waits
// for its stdin to end.
func TestMain(m *testing.M) {
	if os.Getenv("PEER_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	c, err := net.Dial(os.Getenv("PEER_TEST_NETWORK"), os.Getenv("PEER_TEST_ADDR"))
	if err != nil {
		os.Exit(3)
	}
	if os.Getenv("PEER_TEST_CHILD") == "shutdown" {
		c.(interface{ CloseWrite() error }).CloseWrite()
	}
	os.Stdout.WriteString("ready\n")
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func listen(t testing.TB, network string) net.Listener {
	t.Helper()
	addr := map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "tcp": "[::]:0", "unix": filepath.Join(t.TempDir(), "s")}[network]
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Skipf("cannot listen on %s %s: %v", network, addr, err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func pair(t testing.TB, network string) (client, server net.Conn) {
	t.Helper()
	l := listen(t, network)
	addr := l.Addr().String()
	if network == "tcp" { // dual stack, reached over IPv4: a v4-mapped address
		_, port, _ := net.SplitHostPort(addr)
		addr = "127.0.0.1:" + port
	}
	client, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func readFIN(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Fatalf("read = %v, want the end of the stream", err)
	}
}

// eventually asks until the answer is left, as callers do (a peer inside close
// is seen as present for a moment).
func eventuallyLeft(t *testing.T, c net.Conn) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; {
		left, known := Left(c)
		if left && known {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Left = %v, %v, want true, true", left, known)
		}
	}
}

var networks = []string{"tcp4", "tcp6", "tcp", "unix"}

func TestLookSeesTheOwnerOfTheOtherEnd(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			_, server := pair(t, network)
			info, err := Look(server)
			if err != nil || !info.Seen || !info.Owned || info.UID != uint32(os.Getuid()) {
				t.Fatalf("Look = %+v, %v, want seen and owned by uid %d", info, err, os.Getuid())
			}
			if wantInode := network != "unix"; (info.Inode != 0) != wantInode {
				t.Errorf("inode = %d", info.Inode)
			}
		})
	}
}

type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

func TestLookUnwraps(t *testing.T) {
	_, server := pair(t, "tcp4")
	info, err := Look(wrapped{wrapped{server}})
	if err != nil || !info.Seen {
		t.Fatalf("Look = %+v, %v, want seen", info, err)
	}
}

func TestUnknownConnections(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if info, err := Look(a); info.Seen || err != nil {
		t.Errorf("Look(pipe) = %+v, %v, want unseen", info, err)
	}
	if _, known := Left(a); known {
		t.Error("Left(pipe) claims to know")
	}
}

func TestLeftTellsHalfCloseFromClose(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			client, server := pair(t, network)
			client.(interface{ CloseWrite() error }).CloseWrite()
			readFIN(t, server)
			for range 100 {
				if left, known := Left(server); left || !known {
					t.Fatalf("after shutdown(WR): Left = %v, %v, want false, true", left, known)
				}
			}
			client.Close()
			eventuallyLeft(t, server)
		})
	}
}

func TestLeftAfterReset(t *testing.T) {
	client, server := pair(t, "tcp4")
	client.(*net.TCPConn).SetLinger(0)
	client.Close()
	readFIN(t, server)
	eventuallyLeft(t, server)
}

// A listener that takes over the port of a peer that is gone is not the peer.
func TestLeftIsNotFooledByAListenerOnThePort(t *testing.T) {
	client, server := pair(t, "tcp4")
	addr := client.LocalAddr().String()
	client.(*net.TCPConn).SetLinger(0)
	client.Close()
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		t.Skipf("the port was taken by another: %v", err)
	}
	defer l.Close()
	if left, known := Left(server); !left || !known {
		t.Fatalf("Left = %v, %v, want true, true", left, known)
	}
}

type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startChild(t *testing.T, mode, network, addr string, cred *syscall.Credential) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "PEER_TEST_CHILD="+mode, "PEER_TEST_NETWORK="+network, "PEER_TEST_ADDR="+addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	cmd.Dir = "/"
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("cannot start the child: %v", err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	return &child{cmd, in}
}

func TestChildProcess(t *testing.T) {
	for _, network := range []string{"tcp4", "unix"} {
		for _, end := range []string{"exit", "kill"} {
			t.Run(network+"/"+end, func(t *testing.T) {
				l := listen(t, network)
				ch := startChild(t, "shutdown", network, l.Addr().String(), nil)
				server, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer server.Close()
				readFIN(t, server)
				if left, known := Left(server); left || !known {
					t.Fatalf("while it lives: Left = %v, %v, want false, true", left, known)
				}
				if end == "kill" {
					ch.cmd.Process.Signal(syscall.SIGKILL)
				} else {
					ch.stdin.Close()
				}
				eventuallyLeft(t, server)
			})
		}
	}
}

func TestUIDOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to start a child as another user")
	}
	const nobody = 65534
	for _, network := range []string{"tcp4", "tcp6"} {
		t.Run(network, func(t *testing.T) {
			l := listen(t, network)
			startChild(t, "hold", network, l.Addr().String(), &syscall.Credential{Uid: nobody, Gid: nobody})
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			info, err := Look(server)
			if err != nil || !info.Seen || info.UID != nobody {
				t.Fatalf("Look = %+v, %v, want uid %d", info, err, nobody)
			}
		})
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, sizeHeader+sizeMessage))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := parseAnswer(b, 1, 2)
		if err != nil && info.Seen {
			t.Errorf("seen in spite of %v", err)
		}
	})
}

func BenchmarkLook(b *testing.B) {
	for _, network := range []string{"tcp4", "tcp6", "unix"} {
		b.Run(network, func(b *testing.B) {
			_, server := pair(b, network)
			b.ReportAllocs()
			for b.Loop() {
				if info, err := Look(server); err != nil || !info.Seen {
					b.Fatal(info, err)
				}
			}
		})
	}
}

func BenchmarkLeft(b *testing.B) {
	_, server := pair(b, "tcp4")
	for b.Loop() {
		Left(server)
	}
}
