// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gorilla/websocket"
)

// A canned connection gives what it was made with and takes anything.
type canned struct {
	net.Conn
	in io.Reader
	on func(p []byte) // is shown what is written
}

func (c *canned) Read(p []byte) (int, error) { return c.in.Read(p) }

func (c *canned) Write(p []byte) (int, error) {
	if c.on != nil {
		c.on(p)
	}
	return len(p), nil
}

func (c *canned) Close() error                     { return nil }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

// hijacked is a ResponseWriter whose connection is canned.
type hijacked struct {
	http.ResponseWriter
	c *canned
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.c, bufio.NewReadWriter(bufio.NewReader(h.c), bufio.NewWriter(h.c)), nil
}

// gorillaReads has gorilla's server or client read wire up to its close frame.
func gorillaReads(wire []byte, server bool) error {
	c, err := gorillaConn(clearRSV(wire), server)
	if err != nil {
		return err
	}
	for {
		_, r, err := c.NextReader()
		var ce *websocket.CloseError
		switch {
		case errors.As(err, &ce) && ce.Code == websocket.CloseNormalClosure:
			return nil
		case err != nil:
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
	}
}

func gorillaConn(wire []byte, server bool) (*websocket.Conn, error) {
	const key = "dGhlIHNhbXBsZSBub25jZQ=="
	if server {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13", "Sec-Websocket-Key": key} {
			r.Header.Set(k, v)
		}
		var u websocket.Upgrader
		return u.Upgrade(hijacked{httptest.NewRecorder(), &canned{in: bytes.NewReader(wire)}}, r, nil)
	}
	var in bytes.Buffer
	c := &canned{in: &in}
	c.on = func(p []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(p)))
		if err != nil {
			return
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		fmt.Fprintf(&in, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			base64.StdEncoding.EncodeToString(sum[:]))
		in.Write(wire)
		c.on = nil
	}
	d := websocket.Dialer{NetDial: func(string, string) (net.Conn, error) { return c, nil }}
	conn, _, err := d.Dial("ws://x/", nil)
	return conn, err
}

// clearRSV takes RSV1 away, since nothing of it is really compressed.
func clearRSV(wire []byte) []byte {
	wire = bytes.Clone(wire)
	for at := 0; at < len(wire); {
		wire[at] &^= bitRSV1
		h, need := readHeader(wire[at:])
		if need > 0 {
			break
		}
		at += h.size + int(h.length)
	}
	return wire
}
