// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
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
		Subprotocols: c.protocols(),
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
	defer func() { _ = conn.Close() }()
	return f(&socket{c: c, conn: conn, fail: fail})
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
		return k.conn.WriteJSON(k.fail)
	case o.Clean:
		closing := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "ended as asked")
		return firstError(k.conn.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Second)), errStopped)
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
	if err := k.conn.WriteMessage(kind, b); err != nil {
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

// realtime answers response.create and session.update, and sends every other
// frame back as it came.
func (c *call) realtime() error {
	return c.upgrade(openaiSocketError(), func(k *socket) error {
		session := obj{"type": "realtime", "object": "realtime.session", "id": "sess_mock", "model": c.r.URL.Query().Get("model"), "output_modalities": []string{"text"}}
		if k.json(obj{"type": "session.created", "event_id": "event_0", "session": session}) != nil {
			return nil
		}
		return k.each(func(kind int, b []byte) error {
			var event struct {
				Type string `json:"type"`
			}
			if kind == websocket.TextMessage && json.Unmarshal(b, &event) == nil {
				switch event.Type {
				case "response.create":
					return k.realtimeResponse(newContent(b, c.o.Size))
				case "session.update":
					return k.json(obj{"type": "session.updated", "event_id": "event_1", "session": session})
				}
			}
			return k.frame(kind, b)
		})
	})
}

func (k *socket) realtimeResponse(text *content) error {
	id, item := text.id("resp_"), text.id("item_")
	event := func(name string, v obj) error {
		v["type"], v["event_id"] = name, text.id("event_")
		return k.json(v)
	}
	state := func(status string) obj {
		return obj{"object": "realtime.response", "id": id, "status": status, "status_details": nil, "output": []any{}, "usage": nil}
	}
	if err := event("response.created", obj{"response": state("in_progress")}); err != nil {
		return err
	}
	all := ""
	for i := range k.c.o.Tokens {
		if err := k.token(i); err != nil {
			return err
		}
		token := text.token()
		all += token
		if err := event("response.output_text.delta", obj{"response_id": id, "item_id": item, "output_index": 0, "content_index": 0, "delta": token}); err != nil {
			return err
		}
	}
	if err := event("response.output_text.done", obj{"response_id": id, "item_id": item, "output_index": 0, "content_index": 0, "text": all}); err != nil {
		return err
	}
	return event("response.done", obj{"response": state("completed")})
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

// live is the Gemini Live protocol; answers come as JSON in binary frames.
func (c *call) live() error {
	if !strings.HasSuffix(c.r.PathValue("service"), "BidiGenerateContent") {
		return c.fail(http.StatusNotFound, "no such service: "+c.r.PathValue("service"))
	}
	fail := obj{"goAway": obj{"timeLeft": "0s"}}
	return c.upgrade(fail, func(k *socket) error {
		ready := false
		return k.each(func(_ int, b []byte) error {
			var in struct {
				Setup *struct {
					Model string `json:"model"`
				} `json:"setup"`
			}
			if json.Unmarshal(b, &in) != nil || (in.Setup == nil) != ready {
				closing := websocket.FormatCloseMessage(websocket.ClosePolicyViolation, "want setup first and once")
				return firstError(k.conn.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Second)), errStopped)
			}
			if !ready {
				ready = true
				if err := k.c.o.fromModel(in.Setup.Model); err != nil {
					closing := websocket.FormatCloseMessage(websocket.ClosePolicyViolation, err.Error()[:min(120, len(err.Error()))])
					return firstError(k.conn.WriteControl(websocket.CloseMessage, closing, time.Now().Add(time.Second)), errStopped)
				}
				return k.frame(websocket.BinaryMessage, mustJSON(obj{"setupComplete": obj{}}))
			}
			return k.liveTurn(newContent(b, c.o.Size))
		})
	})
}

func (k *socket) liveTurn(text *content) error {
	for i := range k.c.o.Tokens {
		if err := k.token(i); err != nil {
			return err
		}
		turn := obj{"modelTurn": obj{"role": "model", "parts": []obj{{"text": text.token()}}}}
		if err := k.frame(websocket.BinaryMessage, mustJSON(obj{"serverContent": turn})); err != nil {
			return err
		}
	}
	if err := k.frame(websocket.BinaryMessage, mustJSON(obj{"serverContent": obj{"generationComplete": true}})); err != nil {
		return err
	}
	return k.frame(websocket.BinaryMessage, mustJSON(obj{"serverContent": obj{"turnComplete": true}}))
}
