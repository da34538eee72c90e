// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const maxFrame = 64 << 20

// socket is one WebSocket connection. Faults count the frames it sent.
type socket struct {
	c    *call
	conn *websocket.Conn
	n    int
	fail obj // what error=N sends

	ctx     context.Context // ends with the connection
	writing sync.Mutex      // held while a message is written
	waiting sync.WaitGroup  // for what later has started
}

// upgrade obeys the options, switches protocols, and then runs f until it
// returns, the client leaves, or the server ends.
func (c *call) upgrade(fail obj, f func(*socket) error) error {
	model := c.r.URL.Query().Get("model")
	if err := c.model(model); err != nil {
		return err
	}
	if c.r.ProtoMajor != 1 {
		return c.fail(http.StatusBadRequest, "a WebSocket needs HTTP/1.1 here")
	}
	up := websocket.Upgrader{
		CheckOrigin:  func(*http.Request) bool { return true },
		Subprotocols: c.protocols(), EnableCompression: c.o.Deflate,
		// A refused upgrade is answered like any other error.
		Error: func(_ http.ResponseWriter, _ *http.Request, status int, reason error) {
			_ = c.fail(status, reason.Error())
		},
	}
	conn, err := up.Upgrade(c.w, c.r, nil)
	if err != nil {
		return nil // Error has answered
	}
	conn.SetReadLimit(maxFrame)
	// The connection is no longer net/http's: Run ends it.
	stop := context.AfterFunc(c.s.ctx, func() { _ = conn.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(c.s.ctx)
	k := &socket{c: c, conn: conn, fail: fail, ctx: ctx}
	conn.SetPingHandler(k.pinged)
	conn.SetCloseHandler(func(code int, reason string) error {
		_ = k.close(code, reason) // what the client has said, so that it can see what has arrived
		return nil
	})
	defer func() {
		_ = conn.Close()
		cancel()
		k.waiting.Wait()
	}()
	return f(k)
}

// later calls f after d, unless the connection has ended by then.
func (k *socket) later(d time.Duration, f func()) {
	k.waiting.Go(func() {
		if sleep(k.ctx, d) == nil {
			f()
		}
	})
}

// pinged answers a ping, as late as was asked for.
func (k *socket) pinged(payload string) error {
	answer := func() {
		_ = k.conn.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(time.Second)) // whoever asked has left, or asks again
	}
	switch o := &k.c.o; {
	case o.NoPong:
	case o.Pong > 0:
		k.later(o.Pong, answer)
	default:
		answer()
	}
	return nil
}

// write sends a message that faults do not count.
func (k *socket) write(kind int, b []byte) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	return k.conn.WriteMessage(kind, b)
}

// close sends a close frame, whose answer ends the connection.
func (k *socket) close(code int, reason string) error {
	const most = 123 // bytes, RFC 6455 section 5.5
	return k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason[:min(most, len(reason))]), time.Now().Add(time.Second))
}

// protocols chooses the first offered subprotocol that carries no key.
func (c *call) protocols() []string {
	var list []string
	for _, p := range websocket.Subprotocols(c.r) {
		if !strings.HasPrefix(p, "openai-insecure-api-key.") {
			list = append(list, p)
		}
	}
	return list
}

func (k *socket) sleep(d time.Duration) error { return sleep(k.c.s.ctx, d) }

// faults does what was asked for after the frames sent so far. An error means
// that the connection has to end.
func (k *socket) faults() error {
	o := &k.c.o
	if k.n == o.Stall {
		if o.StallFor == 0 {
			_, _, err := k.conn.NextReader() // returns when the client leaves or says more
			return firstError(err, errStopped)
		}
		if err := k.sleep(o.StallFor); err != nil {
			return err
		}
	}
	switch k.n {
	case o.Error:
		return k.write(websocket.TextMessage, mustJSON(k.fail))
	case o.Clean:
		return firstError(k.close(websocket.CloseNormalClosure, "ended as asked"), errStopped)
	case o.Reset:
		if conn := connOf(k.c.r.Context()); conn != nil {
			conn.reset()
		}
		return errStopped
	case o.Cut:
		return errStopped
	}
	return nil
}

func (k *socket) frame(kind int, b []byte) error {
	if k.n == 0 {
		if err := k.faults(); err != nil {
			return err
		}
	}
	if err := k.write(kind, b); err != nil {
		return err
	}
	k.n++
	return k.faults()
}

func (k *socket) json(v any) error { return k.frame(websocket.TextMessage, mustJSON(v)) }

// token waits until token i is due.
func (k *socket) token(i int) error {
	if i == 0 {
		return k.sleep(k.c.o.TTFT)
	}
	return k.sleep(k.c.o.Gap)
}

// each calls f with every frame until it returns an error or the client left,
// neither of which is for anybody to hear.
func (k *socket) each(f func(kind int, b []byte) error) error {
	for {
		kind, b, err := k.conn.ReadMessage()
		if err != nil || f(kind, b) != nil {
			return nil
		}
	}
}

func openaiSocketError() obj {
	return obj{"type": "error", "event_id": "event_error", "status": 503, "error": obj{
		"type": "server_error", "code": "server_is_overloaded", "message": "the server is overloaded", "param": nil}}
}

// responsesSocket is the Responses API over a WebSocket. Lanes are answered one
// after another, in the order of their requests.
func (c *call) responsesSocket() error {
	return c.upgrade(openaiSocketError(), func(k *socket) error {
		return k.each(func(_ int, b []byte) error {
			var req struct {
				Type     string `json:"type"`
				StreamID string `json:"stream_id"`
				responseRequest
			}
			if json.Unmarshal(b, &req) != nil || req.Type != "response.create" {
				return k.json(obj{"type": "error", "status": 400, "error": obj{
					"type": "invalid_request_error", "code": "invalid_event", "message": "want a response.create event", "param": "type"}})
			}
			o := c.o
			if err := o.fromModel(req.Model); err != nil {
				return k.json(obj{"type": "error", "status": 400, "error": obj{
					"type": "invalid_request_error", "code": "unknown_option", "message": err.Error(), "param": "model"}})
			}
			k.c.o = o
			return k.sendResponse(newResponse(&o, newContent(b, o.Size), &req.responseRequest), req.StreamID)
		})
	})
}

func (k *socket) sendResponse(r *response, streamID string) error {
	for i := range r.events {
		e := &r.events[i]
		if err := k.sleep(time.Until(r.created.Add(e.due))); err != nil {
			return err
		}
		if streamID != "" {
			e.body["stream_id"] = streamID
		}
		if err := k.json(e.body); err != nil {
			return err
		}
	}
	return nil
}
