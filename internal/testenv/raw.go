// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bufio"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// rawPatience bounds the life of a [Raw].
const rawPatience = 10 * time.Second

// A Raw is one end of a connection whose bytes the test writes and reads itself. It is
// for one goroutine, and ends ten seconds after it began.
type Raw struct {
	*net.TCPConn
	In *bufio.Reader // of what the other end sends

	t testing.TB
}

func newRaw(t testing.TB, c net.Conn) *Raw {
	_ = c.SetDeadline(time.Now().Add(rawPatience))
	return &Raw{TCPConn: c.(*net.TCPConn), In: bufio.NewReader(c), t: t}
}

// DialRaw connects to addr.
func DialRaw(t testing.TB, addr string) *Raw {
	t.Helper()
	return dialRaw(t, addr, &net.Dialer{})
}

// DialRawNarrow opens a connection whose kernel takes little that is not read. Made
// smaller later, the kernel would drop what it has no room for.
func DialRawNarrow(t testing.TB, addr string) *Raw {
	t.Helper()
	return dialRaw(t, addr, &net.Dialer{Control: SmallReceiveBuffer})
}

func dialRaw(t testing.TB, addr string, d *net.Dialer) *Raw {
	t.Helper()
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return newRaw(t, c)
}

// ServeRaw listens on loopback and gives each connection to serve, which may run in
// parallel. It returns its address.
func ServeRaw(t testing.TB, serve func(*Raw)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				serve(newRaw(t, c))
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		conns.Wait()
	})
	return ln.Addr().String()
}

// Send writes s; lines in it end with \n and are sent with \r\n.
func (c *Raw) Send(s string) {
	c.t.Helper()
	c.SendExact(strings.ReplaceAll(s, "\n", "\r\n"))
}

// SendExact writes s as it is.
func (c *Raw) SendExact(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.TCPConn, s); err != nil {
		c.t.Errorf("write: %v", err)
	}
}

// Head reads up to the blank line and returns it with \n as line end; "" if the
// connection ends before one.
func (c *Raw) Head() string {
	c.t.Helper()
	var b strings.Builder
	for {
		line, err := c.In.ReadString('\n')
		if err != nil {
			if b.Len() > 0 {
				c.t.Errorf("read head: %v after %q", err, b.String())
			}
			return ""
		}
		if line == "\r\n" {
			return b.String()
		}
		b.WriteString(strings.TrimSuffix(line, "\r\n") + "\n")
	}
}

// Expect reads exactly what want holds.
func (c *Raw) Expect(want string) {
	c.t.Helper()
	buf := make([]byte, len(want))
	n, err := io.ReadFull(c.In, buf)
	if err != nil || string(buf) != want {
		c.t.Errorf("read %q, %v; want %q", buf[:n], err, want)
	}
}

// Rest reads until the connection ends.
func (c *Raw) Rest() (string, error) {
	b, err := io.ReadAll(c.In)
	return string(b), err
}
