// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// Close reasons of the two APIs at the end of a session.
const (
	openAIExpired = "Your session hit the maximum duration of 60 minutes."
	geminiExpired = "Deadline expired before operation could complete."
)

// realtime answers response.create, conversation.item.create and session.update, and
// sends every other frame back as it came.
func (c *call) realtime() error {
	return c.upgrade(openaiSocketError(), func(k *socket) error {
		length := cmp.Or(c.o.Session, time.Hour)
		session := obj{"type": "realtime", "object": "realtime.session", "id": "sess_mock", "model": c.r.URL.Query().Get("model"),
			"output_modalities": []string{"text"}, "expires_at": time.Now().Add(length).Unix()}
		if k.json(obj{"type": "session.created", "event_id": "event_0", "session": session}) != nil {
			return nil
		}
		k.later(length, func() {
			_ = k.write(websocket.TextMessage, mustJSON(obj{"type": "error", "event_id": "event_expired", "error": obj{
				"type": "invalid_request_error", "code": "session_expired", "message": openAIExpired, "param": nil, "event_id": nil}}))
			_ = k.close(websocket.CloseGoingAway, openAIExpired)
		})
		return k.each(func(kind int, b []byte) error {
			var event struct {
				Type string `json:"type"`
				Item obj    `json:"item"`
			}
			if kind == websocket.TextMessage && json.Unmarshal(b, &event) == nil {
				switch event.Type {
				case "response.create":
					return k.realtimeResponse(newContent(b, c.o.Size))
				case "conversation.item.create":
					return k.realtimeItem(newContent(b, 0), event.Item)
				case "session.update":
					return k.json(obj{"type": "session.updated", "event_id": "event_1", "session": session})
				}
			}
			return k.frame(kind, b)
		})
	})
}

// realtimeItem takes an item into the conversation.
func (k *socket) realtimeItem(text *content, item obj) error {
	if item == nil {
		item = obj{}
	}
	if item["id"] == nil {
		item["id"] = text.id("item_")
	}
	item["object"], item["status"] = "realtime.item", "completed"
	for _, name := range []string{"conversation.item.added", "conversation.item.done"} {
		if err := k.json(obj{"type": name, "event_id": text.id("event_"), "previous_item_id": nil, "item": item}); err != nil {
			return err
		}
	}
	return nil
}

// realtimeResponse is one answer in text, with the events around it.
func (k *socket) realtimeResponse(text *content) error {
	id, item, all := text.id("resp_"), text.id("item_"), ""
	var failed error // nothing is sent after it
	event := func(name string, v obj) error {
		if v["type"], v["event_id"] = name, text.id("event_"); failed == nil {
			failed = k.json(v)
		}
		return failed
	}
	state := func(status string, output ...obj) obj {
		return obj{"object": "realtime.response", "id": id, "status": status, "status_details": nil, "output": output, "usage": nil}
	}
	message := func(status string, parts ...obj) obj {
		return obj{"id": item, "object": "realtime.item", "type": "message", "status": status, "role": "assistant", "content": parts}
	}
	place := func(v obj) obj {
		v["response_id"], v["item_id"], v["output_index"], v["content_index"] = id, item, 0, 0
		return v
	}
	part := func() obj { return obj{"type": "output_text", "text": all} }
	if err := firstError(
		event("response.created", obj{"response": state("in_progress")}),
		event("response.output_item.added", obj{"response_id": id, "output_index": 0, "item": message("in_progress")}),
		event("response.content_part.added", place(obj{"part": part()})),
	); err != nil {
		return err
	}
	for i := range k.c.o.Tokens {
		if err := k.token(i); err != nil {
			return err
		}
		token := text.token()
		all += token
		if err := event("response.output_text.delta", place(obj{"delta": token})); err != nil {
			return err
		}
	}
	done := message("completed", part())
	return firstError(
		event("response.output_text.done", place(obj{"text": all})),
		event("response.content_part.done", place(obj{"part": part()})),
		event("response.output_item.done", obj{"response_id": id, "output_index": 0, "item": done}),
		event("response.done", obj{"response": state("completed", done)}),
	)
}

// live is the Gemini Live protocol; answers come as JSON in binary frames.
func (c *call) live() error {
	if !strings.HasSuffix(c.r.PathValue("service"), "BidiGenerateContent") {
		return c.fail(http.StatusNotFound, "no such service: "+c.r.PathValue("service"))
	}
	return c.upgrade(obj{"goAway": obj{"timeLeft": "0s"}}, func(k *socket) error {
		ready, keeps := false, false
		return k.each(func(_ int, b []byte) error {
			var in struct {
				Setup *struct {
					Model             string           `json:"model"`
					SessionResumption *json.RawMessage `json:"sessionResumption"`
				} `json:"setup"`
			}
			if json.Unmarshal(b, &in) != nil || (in.Setup == nil) != ready {
				return firstError(k.close(websocket.ClosePolicyViolation, "want setup first and once"), errStopped)
			}
			if ready {
				return k.liveTurn(newContent(b, c.o.Size), keeps)
			}
			ready, keeps = true, in.Setup.SessionResumption != nil
			if err := k.c.o.fromModel(in.Setup.Model); err != nil {
				return firstError(k.close(websocket.ClosePolicyViolation, err.Error()), errStopped)
			}
			k.liveEnd()
			return k.frame(websocket.BinaryMessage, mustJSON(obj{"setupComplete": obj{}}))
		})
	})
}

// liveEnd ends the session when its time is over, and says so before.
func (k *socket) liveEnd() {
	o := &k.c.o
	if o.Session == 0 {
		return
	}
	if o.Notice > 0 {
		k.later(o.Session-o.Notice, func() {
			left := strconv.FormatFloat(o.Notice.Seconds(), 'f', -1, 64) + "s"
			_ = k.write(websocket.BinaryMessage, mustJSON(obj{"goAway": obj{"timeLeft": left}}))
		})
	}
	k.later(o.Session, func() { _ = k.close(websocket.CloseInternalServerErr, geminiExpired) })
}

// liveTurn answers; behind the answer comes the handle with which a session goes on that
// wants to be kept.
func (k *socket) liveTurn(text *content, keeps bool) error {
	say := func(v obj) error { return k.frame(websocket.BinaryMessage, mustJSON(v)) }
	for i := range k.c.o.Tokens {
		if err := k.token(i); err != nil {
			return err
		}
		turn := obj{"modelTurn": obj{"role": "model", "parts": []obj{{"text": text.token()}}}}
		if err := say(obj{"serverContent": turn}); err != nil {
			return err
		}
	}
	if err := say(obj{"serverContent": obj{"generationComplete": true}}); err != nil {
		return err
	}
	if err := say(obj{"serverContent": obj{"turnComplete": true}}); err != nil || !keeps {
		return err
	}
	return say(obj{"sessionResumptionUpdate": obj{"newHandle": text.id("handle_"), "resumable": true}})
}
