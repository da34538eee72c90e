// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/testenv"
)

const nodePackages = "../../../e2e/clients/node"

// start runs a peer and returns its lines. It ends with the test.
func start(t *testing.T, name string, args ...string) *bufio.Scanner {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return bufio.NewScanner(out)
}

func line(t *testing.T, from *bufio.Scanner) string {
	t.Helper()
	if !from.Scan() {
		t.Fatalf("the peer has ended: %v", from.Err())
	}
	return from.Text()
}

func node(t *testing.T, args ...string) *bufio.Scanner {
	t.Helper()
	return start(t, testenv.NeedNodeModules(t, nodePackages), append([]string{"testdata/peer.mjs", nodePackages}, args...)...)
}

// python starts a peer with a keepalive of a quarter of a second and a limit of one
// second, instead of twenty and twenty.
func python(t *testing.T, role string, args ...string) *bufio.Scanner {
	t.Helper()
	return start(t, testenv.NeedPython(t, "websockets"), append([]string{"testdata/peer.py", role, "0.25", "1"}, args...)...)
}

func TestNodeClientAndServer(t *testing.T) {
	t.Parallel()
	server := node(t, "server")
	p := newProxy(t, "127.0.0.1:"+line(t, server), nil)
	client := node(t, "client", "ws://"+p.addr)
	if got := line(t, client); got != "ok" {
		t.Errorf("the client says %q", got)
	}
	if got := line(t, server); got != "closed 4002 bye" {
		t.Errorf("the server says %q", got)
	}
	if got := p.cause(); got != Closed {
		t.Errorf("ended because %v", got)
	}
}

func TestNodeClientAndGorillaServer(t *testing.T) {
	t.Parallel()
	p := newProxy(t, server(t, true, nil), nil)
	if got := line(t, node(t, "client", "ws://"+p.addr)); got != "ok" {
		t.Errorf("the client says %q", got)
	}
}

// idleFor does not read c for d: what is tested is the patience of its real peer.
func idleFor(c *websocket.Conn, d time.Duration) {
	<-time.NewTimer(d).C
	_ = c.SetReadDeadline(time.Now().Add(patience))
}

func TestPythonServerWithAnAppThatDoesNotRead(t *testing.T) {
	t.Parallel()
	const pause = 2 * time.Second // more than the server's interval and limit
	t.Run("direct, for comparison", func(t *testing.T) {
		server := python(t, "server")
		c, _, err := websocket.DefaultDialer.Dial("ws://127.0.0.1:"+line(t, server), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := line(t, server); !strings.HasPrefix(got, "closed 1006") && !strings.HasPrefix(got, "closed 1011") {
			t.Errorf("the server says %q", got)
		}
	})
	t.Run("through the relay", func(t *testing.T) {
		server := python(t, "server")
		p := newProxy(t, "127.0.0.1:"+line(t, server), nil)
		c := p.client(false)
		idleFor(c, pause)
		for range 10 {
			if _, msg, err := c.ReadMessage(); err != nil || len(msg) != 1000 {
				t.Fatalf("%d bytes, %v", len(msg), err)
			}
		}
		closeWith(t, c, 1000, "")
		if got := line(t, server); got != "closed 1000 " {
			t.Errorf("the server says %q", got)
		}
	})
}

// slowServer is a gorilla server that takes nothing for pause, and then says how
// many messages of total bytes there were.
func slowServer(t *testing.T, pause time.Duration, total int) string {
	var u websocket.Upgrader
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := u.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		idleFor(c, pause)
		n := 0
		for got := 0; got < total; n++ {
			_, msg, err := c.ReadMessage()
			if err != nil {
				return
			}
			got += len(msg)
		}
		_ = c.WriteMessage(websocket.TextMessage, []byte(strconv.Itoa(n)))
		_, _, _ = c.ReadMessage()
	}))
	_ = srv.Listener.Close()
	lc := net.ListenConfig{Control: testenv.SmallReceiveBuffer}
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv.Listener = ln
	srv.Start()
	t.Cleanup(srv.Close)
	return ln.Addr().String()
}

func TestPythonClientWithAnUpstreamThatDoesNotRead(t *testing.T) {
	t.Parallel()
	const size = 700_000 // less than the relay reads ahead, more than the kernel takes
	p := newProxy(t, slowServer(t, 2*time.Second, size), func(_, up *Leg, _ *Config) {
		_ = up.Conn.(*net.TCPConn).SetWriteBuffer(8 << 10)
	})
	if got := line(t, python(t, "client", "ws://"+p.addr, fmt.Sprint(size))); got != "ok" {
		t.Errorf("the client says %q", got)
	}
	select {
	case r := <-p.relays:
		if s := r.Stats(); s.App.BytesIn < size {
			t.Errorf("stats %+v", s)
		}
	default:
		t.Error("no relay")
	}
}

func TestServerThatDelaysPongs(t *testing.T) {
	t.Parallel()
	const delay = 300 * time.Millisecond
	p := newProxy(t, server(t, false, func(c *websocket.Conn) {
		c.SetPingHandler(func(payload string) error {
			time.AfterFunc(delay, func() { _ = c.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(patience)) })
			return nil
		})
		echo(c)
	}), func(_, up *Leg, _ *Config) { up.Policy = &Fixed{Idle: 10 * time.Millisecond, Wait: patience} })
	c := p.client(false)
	r := <-p.relays
	quiet := time.NewTicker(50 * time.Millisecond) // longer than what it takes for a silence
	defer quiet.Stop()
	for deadline := time.Now().Add(patience); r.Stats().Upstream.RTT == 0; {
		if time.Now().After(deadline) {
			t.Fatal("no pong counted")
		}
		<-quiet.C
		if err := c.WriteMessage(websocket.TextMessage, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.ReadMessage(); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.Stats().Upstream; s.MinRTT < delay || s.Pings == 0 {
		t.Errorf("stats %+v", s)
	}
	closeWith(t, c, 1000, "")
}

func TestServerThatNeverAnswersPingsButSends(t *testing.T) {
	t.Parallel()
	p := newProxy(t, server(t, false, func(c *websocket.Conn) {
		c.SetPingHandler(func(string) error { return nil })
		go func() { _, _, _ = c.ReadMessage() }() // takes pings, and the end
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for range 40 {
			<-tick.C
			if c.WriteMessage(websocket.TextMessage, []byte("x")) != nil {
				return
			}
		}
		_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(4000, "all"), time.Now().Add(patience))
	}), func(_, up *Leg, _ *Config) { up.Policy = &Fixed{Idle: 10 * time.Millisecond, Wait: time.Second} })
	c := p.client(false)
	n := 0
	for {
		_, _, err := c.ReadMessage()
		if err != nil {
			if !websocket.IsCloseError(err, 4000) {
				t.Error(err)
			}
			break
		}
		n++
	}
	if s := (<-p.relays).Stats().Upstream; n != 40 || s.Pings < 2 || s.RTT != 0 {
		t.Errorf("%d messages, stats %+v", n, s)
	}
}

func TestAppThatStopsReading(t *testing.T) {
	t.Parallel()
	closed := make(chan error, 1)
	p := newProxy(t, server(t, false, func(c *websocket.Conn) {
		go func() {
			_, _, err := c.ReadMessage()
			closed <- err
		}()
		for c.WriteMessage(websocket.BinaryMessage, make([]byte, 100_000)) == nil {
		}
	}), func(_, _ *Leg, cfg *Config) { cfg.Stall = 300 * time.Millisecond })
	p.client(false)
	if got := p.cause(); got != AppStalled {
		t.Errorf("ended because %v", got)
	}
	if err := <-closed; !websocket.IsCloseError(err, 1001) {
		t.Errorf("the upstream was told %v", err)
	}
}
