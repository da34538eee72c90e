// SPDX-License-Identifier: Apache-2.0

package mockapi

import "strings"

func (c *call) messages() error {
	var req struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	if err := c.readJSON(&req, func() string { return req.Model }); err != nil {
		return err
	}
	text := newContent(c.body, c.o.Size)
	usage := func(output int) obj {
		return obj{
			"input_tokens": 8, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
			"output_tokens": output, "service_tier": "standard",
		}
	}
	message := func(content []obj, stop any, output int) obj {
		return obj{
			"id": text.id("msg_"), "type": "message", "role": "assistant", "model": req.Model,
			"content": content, "stop_reason": stop, "stop_sequence": nil, "usage": usage(output),
		}
	}
	if !req.Stream {
		all := strings.Join(text.tokens(c.o.Tokens), "")
		return c.unary(message([]obj{{"type": "text", "text": all, "citations": nil}}, "end_turn", c.o.Tokens))
	}
	st, err := c.open("text/event-stream; charset=utf-8", -1, sseEvent(&c.o, "error", mustJSON(obj{
		"type": "error", "error": obj{"type": "overloaded_error", "message": "Overloaded"}, "request_id": text.id("req_")})))
	if err != nil {
		return err
	}
	return st.end(c.messageStream(st, text, message([]obj{}, nil, 1), usage(c.o.Tokens)))
}

func (c *call) messageStream(st *stream, text *content, start, usage obj) error {
	event := func(name string, v obj) error {
		v["type"] = name
		return st.sse(name, mustJSON(v))
	}
	if err := event("message_start", obj{"message": start}); err != nil {
		return err
	}
	if err := event("content_block_start", obj{"index": 0, "content_block": obj{"type": "text", "text": ""}}); err != nil {
		return err
	}
	if err := event("ping", obj{}); err != nil {
		return err
	}
	for i := range c.o.Tokens {
		if err := st.token(i); err != nil {
			return err
		}
		delta := obj{"type": "text_delta", "text": text.token()}
		if err := event("content_block_delta", obj{"index": 0, "delta": delta}); err != nil {
			return err
		}
	}
	if err := event("content_block_stop", obj{"index": 0}); err != nil {
		return err
	}
	if err := event("message_delta", obj{"delta": obj{"stop_reason": "end_turn", "stop_sequence": nil}, "usage": usage}); err != nil {
		return err
	}
	return event("message_stop", obj{})
}

func (c *call) countTokens() error {
	var req struct {
		Model string `json:"model"`
	}
	if err := c.readJSON(&req, func() string { return req.Model }); err != nil {
		return err
	}
	return c.unary(obj{"input_tokens": len(c.body) / 4})
}
