// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// patience bounds every wait of a test on real sockets; nothing passes by waiting
// it out.
const patience = 10 * time.Second

// A proxy passes WebSocket handshakes on as they are and relays what follows: real
// peers on both sides of a Relay.
type proxy struct {
	t      testing.TB
	addr   string
	up     string
	setup  func(app, up *Leg, cfg *Config)
	relays chan *Relay
	causes chan Cause
}

// newProxy starts one to the server at up. setup may change what a relay is made of.
func newProxy(t testing.TB, up string, setup func(app, up *Leg, cfg *Config)) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, addr: ln.Addr().String(), up: up, setup: setup, relays: make(chan *Relay, 1000), causes: make(chan Cause, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(ctx, c) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		running.Wait()
	})
	return p
}

func (p *proxy) serve(ctx context.Context, app net.Conn) {
	up, err := net.Dial("tcp", p.up)
	if err != nil {
		_ = app.Close()
		return
	}
	fail := func() { _, _ = app.Close(), up.Close() }
	appIn, upIn := bufio.NewReader(app), bufio.NewReader(up)
	req, err := http.ReadRequest(appIn)
	if err != nil || req.Write(up) != nil {
		fail()
		return
	}
	resp, err := http.ReadResponse(upIn, req)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		fail()
		return
	}
	resp.Body = nil // the connection's, which Write would look at
	resp.ContentLength = 0
	head := "HTTP/1.1 101 Switching Protocols\r\n"
	for k, vs := range resp.Header {
		head += k + ": " + strings.Join(vs, ", ") + "\r\n"
	}
	if _, err := io.WriteString(app, head+"\r\n"); err != nil {
		fail()
		return
	}
	a, u, cfg := Leg{Conn: app, Early: early(appIn)}, Leg{Conn: up, Early: early(upIn)}, Config{Extensions: resp.Header["Sec-Websocket-Extensions"]}
	if p.setup != nil {
		p.setup(&a, &u, &cfg)
	}
	r, err := New(a, u, cfg)
	if err != nil {
		p.t.Error(err)
		fail()
		return
	}
	p.relays <- r
	p.causes <- r.Run(ctx)
}

func early(r *bufio.Reader) []byte {
	p, _ := r.Peek(r.Buffered())
	return append([]byte(nil), p...)
}

func (p *proxy) cause() Cause {
	p.t.Helper()
	select {
	case c := <-p.causes:
		return c
	case <-time.After(patience):
		p.t.Fatal("the relay has not ended")
		return 0
	}
}

// server is a gorilla server; it echoes unless serve is given.
func server(t testing.TB, compress bool, serve func(*websocket.Conn)) string {
	t.Helper()
	u := websocket.Upgrader{EnableCompression: compress}
	var running sync.WaitGroup
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := u.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		running.Add(1)
		defer running.Done()
		defer c.Close()
		if serve != nil {
			serve(c)
			return
		}
		echo(c)
	}))
	t.Cleanup(func() {
		srv.Close()
		running.Wait()
	})
	return strings.TrimPrefix(srv.URL, "http://")
}

func echo(c *websocket.Conn) {
	for {
		kind, msg, err := c.ReadMessage()
		if err != nil || c.WriteMessage(kind, msg) != nil {
			return
		}
	}
}

// client is a gorilla client through p.
func (p *proxy) client(compress bool) *websocket.Conn {
	p.t.Helper()
	d := websocket.Dialer{HandshakeTimeout: patience, EnableCompression: compress}
	c, _, err := d.Dial("ws://"+p.addr+"/", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	return c
}
