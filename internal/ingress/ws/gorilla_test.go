// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestMessagesOfAllSizesPass(t *testing.T) {
	for _, compress := range []bool{false, true} {
		t.Run(fmt.Sprintf("deflate %v", compress), func(t *testing.T) {
			p := newProxy(t, server(t, compress, nil), nil)
			c := p.client(compress)
			for _, size := range []int{0, 1, 125, 126, 4000, 4096, 16 << 10, 65535, 65536, 65537, 70000, 1 << 20, 5 << 20} {
				msg := make([]byte, size)
				for i := range msg {
					msg[i] = byte(i * i >> 7)
				}
				if err := c.WriteMessage(websocket.BinaryMessage, msg); err != nil {
					t.Fatal(err)
				}
				kind, got, err := c.ReadMessage()
				if err != nil || kind != websocket.BinaryMessage || !bytes.Equal(got, msg) {
					t.Fatalf("size %d: %d bytes of kind %d, %v", size, len(got), kind, err)
				}
			}
			closeWith(t, c, 4001, "done")
			if got := p.cause(); got != Closed {
				t.Errorf("ended because %v, want %v", got, Closed)
			}
		})
	}
}

// closeWith closes and wants the same code back, as gorilla's servers answer.
func closeWith(t *testing.T, c *websocket.Conn, code int, reason string) {
	t.Helper()
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(patience))
	var ce *websocket.CloseError
	if _, _, err := c.ReadMessage(); !errors.As(err, &ce) || ce.Code != code {
		t.Errorf("closed with %v, want %d", err, code)
	}
	_ = c.Close()
}
