// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/warmwire/warmwire/internal/testenv"
)

// echoUpstream is a real WebSocket server that echoes, with two subprotocols.
func echoUpstream(t *testing.T, hello func(*websocket.Conn)) string {
	up := websocket.Upgrader{Subprotocols: []string{"realtime", "v2"}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		if hello != nil {
			hello(c)
			return
		}
		for {
			kind, msg, err := c.ReadMessage()
			if err != nil {
				return
			}
			if err := c.WriteMessage(kind, msg); err != nil {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func dialWS(t *testing.T, r *rig, protocols ...string) (*websocket.Conn, *http.Response) {
	t.Helper()
	d := websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: patience}
	c, resp, err := d.Dial("ws://"+r.addr+"/up/v1/realtime", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(patience))
	return c, resp
}

func TestWebSocketMessagesPassAsTheyAre(t *testing.T) {
	r := newRig(t, echoUpstream(t, nil), nil)
	c, resp := dialWS(t, r, "v2", "realtime")
	if got := resp.Header.Get("Sec-Websocket-Protocol"); got != "v2" && got != "realtime" {
		t.Errorf("subprotocol %q", got)
	}
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20} {
		msg := bytes.Repeat([]byte("é"), size/2)
		if err := c.WriteMessage(websocket.BinaryMessage, msg); err != nil {
			t.Fatal(err)
		}
		kind, got, err := c.ReadMessage()
		if err != nil || kind != websocket.BinaryMessage || !bytes.Equal(got, msg) {
			t.Errorf("size %d: %d bytes of kind %d, %v", size, len(got), kind, err)
		}
	}
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(4001, "done"), time.Now().Add(patience))
	var ce *websocket.CloseError
	if _, _, err := c.ReadMessage(); !errors.As(err, &ce) || ce.Code != 4001 {
		t.Errorf("close %v, want the echoed 4001", err)
	}
	if rec := r.record(); rec.Outcome != OutcomeOK || rec.Mode != ModeWebSocket || rec.Status != 101 {
		t.Errorf("record %+v", rec)
	}
}

// TestWebSocketIsToldThatItsTimeIsOver wants a close frame, and not a silent end.
func TestWebSocketIsToldThatItsTimeIsOver(t *testing.T) {
	r := newRig(t, echoUpstream(t, nil), func(_ *Table, u *Upstream) { u.Total = 200 * time.Millisecond })
	c, _ := dialWS(t, r)
	var ce *websocket.CloseError
	if _, _, err := c.ReadMessage(); !errors.As(err, &ce) || ce.Code != websocket.CloseGoingAway {
		t.Errorf("closed with %v, want 1001", err)
	}
	if rec := r.record(); rec.Outcome != OutcomeCutWarmwire || rec.Cause != CauseTotal {
		t.Errorf("record %+v", rec)
	}
}

func TestWebSocketCloseCodesFromTheUpstream(t *testing.T) {
	tests := []struct {
		name  string
		hello func(*websocket.Conn)
		code  int
		why   Outcome
	}{
		{"code and reason", func(c *websocket.Conn) {
			_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1011, "overloaded"), time.Now().Add(patience))
			_, _, _ = c.ReadMessage()
		}, 1011, OutcomeOK},
		{"no code", func(c *websocket.Conn) {
			_ = c.WriteControl(websocket.CloseMessage, nil, time.Now().Add(patience))
			_, _, _ = c.ReadMessage()
		}, websocket.CloseNoStatusReceived, OutcomeOK},
		{"dropped", func(c *websocket.Conn) {}, websocket.CloseAbnormalClosure, OutcomeCutUpstream},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, echoUpstream(t, tt.hello), nil)
			c, _ := dialWS(t, r)
			_, _, err := c.ReadMessage()
			var ce *websocket.CloseError
			if !errors.As(err, &ce) || ce.Code != tt.code {
				t.Errorf("closed with %v, want %d", err, tt.code)
			}
			_ = c.Close()
			if rec := r.record(); rec.Outcome != tt.why {
				t.Errorf("outcome %s cause %s, want %s", rec.Outcome, rec.Cause, tt.why)
			}
		})
	}
}

func TestWebSocketGets1001AtShutdown(t *testing.T) {
	upClosed := make(chan int, 1)
	r := newRig(t, echoUpstream(t, func(c *websocket.Conn) {
		_ = c.WriteMessage(websocket.TextMessage, []byte("hello"))
		_, _, err := c.ReadMessage()
		var ce *websocket.CloseError
		if errors.As(err, &ce) {
			upClosed <- ce.Code
		} else {
			upClosed <- -1
		}
	}), nil)
	c, _ := dialWS(t, r)
	if _, msg, err := c.ReadMessage(); err != nil || string(msg) != "hello" {
		t.Fatalf("%q, %v", msg, err)
	}
	go r.server.Abort()
	_, _, err := c.ReadMessage()
	var ce *websocket.CloseError
	if !errors.As(err, &ce) || ce.Code != 1001 {
		t.Errorf("app closed with %v, want 1001", err)
	}
	if code := <-upClosed; code != 1001 {
		t.Errorf("upstream closed with %d, want 1001", code)
	}
	if rec := r.record(); rec.Outcome != OutcomeCutWarmwire || rec.Cause != CauseDrain {
		t.Errorf("outcome %s cause %s", rec.Outcome, rec.Cause)
	}
}

func TestAbortEndsAWebSocketWhoseAppDoesNotRead(t *testing.T) {
	full := make(chan struct{})
	r := newRig(t, echoUpstream(t, func(c *websocket.Conn) {
		_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)) // long enough to fill every buffer
		for c.WriteMessage(websocket.BinaryMessage, make([]byte, 1<<20)) == nil {
		}
		close(full)
		_, _, _ = c.ReadMessage()
	}), nil)
	dialWS(t, r)
	<-full
	done := make(chan struct{})
	go func() {
		r.server.Abort()
		close(done)
	}()
	within(t, "Abort", 3*time.Second, done)
	if rec := r.record(); rec.Outcome == OutcomeOK {
		t.Errorf("outcome %s", rec.Outcome)
	}
}

func TestAbortEndsAnAppThatDoesNotRead(t *testing.T) {
	r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.Send("HTTP/1.1 200 OK\n\n")
		_, _ = io.Copy(c.TCPConn, zeros{})
	}), nil)
	app := r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	app.Head()
	half := r.dial() // and one that never finishes its head
	half.Send("GET /up/x HTTP/1.1\nHost:")
	done := make(chan struct{})
	go func() {
		r.server.Abort()
		close(done)
	}()
	within(t, "Abort", 3*time.Second, done)
	_, _ = io.Copy(io.Discard, half.In)
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

const wsKey = "dGhlIHNhbXBsZSBub25jZQ==" // RFC 6455 §1.3

func TestWebSocketHandshake(t *testing.T) {
	const accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
	good := "HTTP/1.1 101 Switching Protocols\nUpgrade: WebSocket\nConnection: keep-alive, UPGRADE\nSec-WebSocket-Accept: " + accept + "\n"
	tests := []struct {
		name, extra, answer string
		want                string // first line
		contains            string
	}{
		{"tokens in any case", "", good + "\n", "HTTP/1.1 101 Switching Protocols", "Connection: Upgrade\n"},
		{"hop-by-hop fields of the 101 are dropped", "", good + "Keep-Alive: 5\n\n", "HTTP/1.1 101 Switching Protocols", ""},
		{"subprotocol", "Sec-WebSocket-Protocol: a, b\n", good + "Sec-WebSocket-Protocol: b\n\n", "HTTP/1.1 101 Switching Protocols", "Sec-Websocket-Protocol: b\n"},
		{"subprotocol not offered", "", good + "Sec-WebSocket-Protocol: b\n\n", "HTTP/1.1 502 Bad Gateway", ""},
		{"no Connection", "", "HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\nSec-WebSocket-Accept: " + accept + "\n\n", "HTTP/1.1 502 Bad Gateway", ""},
		{"wrong accept", "", strings.Replace(good, "s3pP", "AAAA", 1) + "\n", "HTTP/1.1 502 Bad Gateway", ""},
		{"refused", "", "HTTP/1.1 426 Upgrade Required\nSec-WebSocket-Version: 13\nContent-Length: 3\n\nno!", "HTTP/1.1 426 Upgrade Required", "Sec-Websocket-Version: 13\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sent := make(chan string, 1)
			r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
				sent <- c.Head()
				c.Send(tt.answer)
				_, _ = io.Copy(io.Discard, c.In)
			}), nil)
			app := r.dial()
			app.Send("GET /up/v1/realtime HTTP/1.1\nHost: localhost\nConnection: keep-alive, Upgrade\nUpgrade: websocket\n" +
				"Sec-WebSocket-Key: " + wsKey + "\nSec-WebSocket-Version: 13\n" + tt.extra + "\n")
			head := app.Head()
			if line, _, _ := strings.Cut(head, "\n"); line != tt.want || !strings.Contains(head, tt.contains) {
				t.Errorf("answer %q, want %q with %q", head, tt.want, tt.contains)
			}
			if strings.Contains(head, "Keep-Alive") {
				t.Errorf("hop-by-hop field in %q", head)
			}
			up := <-sent
			for _, want := range []string{"Connection: Upgrade\n", "Upgrade: websocket\n", "Sec-Websocket-Key: " + wsKey + "\n"} {
				if !strings.Contains(up, want) {
					t.Errorf("upstream got %q, want %q in it", up, want)
				}
			}
			if tt.extra == "" && strings.Contains(up, "Sec-Websocket-Protocol") {
				t.Errorf("an empty subprotocol field was invented: %q", up)
			}
		})
	}
}

func TestWebSocketBadHandshakeIsRefused(t *testing.T) {
	r := newRig(t, "127.0.0.1:1", nil)
	for _, key := range []string{"", "Sec-WebSocket-Key: short\n", "Sec-WebSocket-Key: " + wsKey + "\nSec-WebSocket-Key: " + wsKey + "\n"} {
		app := r.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n" + key + "\n")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 400") {
			t.Errorf("key %q: %q", key, head)
		}
	}
}
