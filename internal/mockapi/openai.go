// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"strings"
	"time"
)

type chatRequest struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func (c *call) chatCompletions() error {
	var req chatRequest
	if err := c.readJSON(&req, func() string { return req.Model }); err != nil {
		return err
	}
	text := newContent(c.body, c.o.Size)
	usage := obj{"prompt_tokens": 8, "completion_tokens": c.o.Tokens, "total_tokens": 8 + c.o.Tokens}
	base := func(kind string, choices []obj) obj {
		return obj{
			"id": text.id("chatcmpl-"), "object": kind, "created": time.Now().Unix(), "model": req.Model,
			"system_fingerprint": "fp_mock", "service_tier": "default", "choices": choices,
		}
	}
	if !req.Stream {
		answer := base("chat.completion", []obj{{
			"index": 0, "logprobs": nil, "finish_reason": "stop",
			"message": obj{"role": "assistant", "content": strings.Join(text.tokens(c.o.Tokens), ""), "refusal": nil, "annotations": []any{}},
		}})
		answer["usage"] = usage
		return c.unary(answer)
	}
	st, err := c.open("text/event-stream; charset=utf-8", -1, sseEvent(&c.o, "", mustJSON(obj{"error": obj{
		"message": "the server is overloaded", "type": "server_error", "param": nil, "code": "server_is_overloaded"}})))
	if err != nil {
		return err
	}
	chunk := func(delta obj, finish any) error {
		v := base("chat.completion.chunk", []obj{{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}})
		if req.StreamOptions.IncludeUsage {
			v["usage"] = nil
		}
		return st.sse("", mustJSON(v))
	}
	return st.end(c.chatStream(st, text, chunk, func() error {
		if !req.StreamOptions.IncludeUsage {
			return nil
		}
		v := base("chat.completion.chunk", []obj{})
		v["usage"] = usage
		return st.sse("", mustJSON(v))
	}))
}

func (c *call) chatStream(st *stream, text *content, chunk func(delta obj, finish any) error, usage func() error) error {
	if err := chunk(obj{"role": "assistant", "content": "", "refusal": nil}, nil); err != nil {
		return err
	}
	for i := range c.o.Tokens {
		if err := st.token(i); err != nil {
			return err
		}
		if err := chunk(obj{"content": text.token()}, nil); err != nil {
			return err
		}
	}
	if err := chunk(obj{}, "stop"); err != nil {
		return err
	}
	if err := usage(); err != nil {
		return err
	}
	return st.sse("", []byte("[DONE]"))
}

func (c *call) embeddings() error {
	var req struct {
		Model          string          `json:"model"`
		Input          json.RawMessage `json:"input"`
		EncodingFormat string          `json:"encoding_format"`
		Dimensions     int             `json:"dimensions"`
	}
	if err := c.readJSON(&req, func() string { return req.Model }); err != nil {
		return err
	}
	var several []json.RawMessage
	n := 1
	if json.Unmarshal(req.Input, &several) == nil && len(several) > 0 && several[0][0] == '"' {
		n = len(several)
	}
	dimensions := 8
	if req.Dimensions > 0 {
		dimensions = min(req.Dimensions, 4096)
	}
	text := newContent(c.body, 0)
	data := make([]obj, n)
	for i := range data {
		vector := make([]float32, dimensions)
		packed := make([]byte, 0, 4*dimensions)
		for k := range vector {
			vector[k] = text.rand.Float32()*2 - 1
			packed = binary.LittleEndian.AppendUint32(packed, math.Float32bits(vector[k]))
		}
		var embedding any = vector
		if req.EncodingFormat == "base64" {
			embedding = base64.StdEncoding.EncodeToString(packed)
		}
		data[i] = obj{"object": "embedding", "index": i, "embedding": embedding}
	}
	return c.unary(obj{"object": "list", "data": data, "model": req.Model, "usage": obj{"prompt_tokens": 8 * n, "total_tokens": 8 * n}})
}

func (c *call) models() error {
	if err := c.beforeHead(); err != nil {
		return err
	}
	return c.unary(obj{"object": "list", "data": []obj{{"id": "mock", "object": "model", "created": 1700000000, "owned_by": "mock"}}})
}
