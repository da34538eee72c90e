// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/ingress/peer"
)

// What has arrived when a deadline passes is found, and nothing is waited for.
func TestProbeFindsWhatIsThere(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			s, err := New(http.NotFoundHandler(), Config{Left: peer.Left})
			if err != nil {
				t.Fatal(err)
			}
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = t.TempDir() + "/s"
			}
			l, err := net.Listen(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			client := dial(t, network, l.Addr().String())
			nc, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			c := newConn(context.Background(), s, nc)
			c.mu.Lock()
			c.setDeadlineLocked(past)
			c.mu.Unlock()
			if c.probe() {
				t.Error("found something on a quiet connection")
			}
			if c.in != nil {
				t.Error("a quiet connection holds a buffer")
			}
			send(t, client, "G") // loopback: readable when the write returns
			c.mu.Lock()
			c.setDeadlineLocked(past)
			c.mu.Unlock()
			if err := c.fill(); !isTimeout(err) {
				t.Errorf("fill after the deadline: %v", err)
			}
			if !c.probe() || c.e != 1 {
				t.Errorf("the byte was not found; %d buffered", c.e)
			}
		})
	}
}

func TestIdleConnectionIsClosed(t *testing.T) {
	_, addr := serveOn(t, "tcp", Config{IdleTimeout: 30 * time.Millisecond}, echo)
	c := dial(t, "tcp", addr)
	send(t, c, get)
	expect(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nGET / host=a body=\"\"")
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("got %q, %v, want a clean end", b, err)
	}
}
