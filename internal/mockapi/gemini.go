// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"encoding/json"
	"net/http"
	"strings"
)

func (c *call) gemini() error {
	model, method, _ := cutLast(c.r.PathValue("call"), ":")
	var req map[string]json.RawMessage
	if err := c.readJSON(&req, func() string { return model }); err != nil {
		return err
	}
	text := newContent(c.body, c.o.Size)
	switch method {
	case "generateContent":
		return c.unary(geminiPart(text, model, strings.Join(text.tokens(c.o.Tokens), ""), "STOP", c.o.Tokens))
	case "streamGenerateContent":
		if c.r.URL.Query().Get("alt") == "sse" {
			return c.geminiSSE(text, model)
		}
		return c.geminiArray(text, model)
	case "countTokens":
		return c.unary(obj{"totalTokens": len(c.body) / 4})
	}
	return c.fail(http.StatusNotFound, "no such method: "+method)
}

// cutLast cuts at the last separator, since a model's name may hold one.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// geminiPart is one whole answer; finish is empty in all but the last one.
func geminiPart(text *content, model, part, finish string, tokens int) obj {
	candidate := obj{"index": 0, "content": obj{"role": "model", "parts": []obj{{"text": part}}}}
	if finish != "" {
		candidate["finishReason"] = finish
	}
	return obj{
		"candidates": []obj{candidate}, "modelVersion": model, "responseId": text.id(""),
		"usageMetadata": obj{"promptTokenCount": 8, "candidatesTokenCount": tokens, "totalTokenCount": 8 + tokens},
	}
}

func geminiError() []byte {
	return mustJSON(obj{"error": obj{"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}})
}

// geminiParts calls send with each answer when it is due. There is no terminal
// event: the last answer has a finish reason, and the body ends.
func (c *call) geminiParts(st *stream, text *content, model string, send func([]byte) error) error {
	for i := range c.o.Tokens {
		if err := st.token(i); err != nil {
			return err
		}
		finish := ""
		if i == c.o.Tokens-1 {
			finish = "STOP"
		}
		if err := send(mustJSON(geminiPart(text, model, text.token(), finish, i+1))); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) geminiSSE(text *content, model string) error {
	st, err := c.open("text/event-stream", -1, sseEvent(&c.o, "", geminiError()))
	if err != nil {
		return err
	}
	return st.end(c.geminiParts(st, text, model, func(b []byte) error { return st.sse("", b) }))
}

func (c *call) geminiArray(text *content, model string) error {
	st, err := c.open("application/json; charset=UTF-8", -1, append(geminiError(), ']'))
	if err != nil {
		return err
	}
	lead := "["
	err = c.geminiParts(st, text, model, func(b []byte) error {
		b = append([]byte(lead), b...)
		lead = ",\r\n"
		return st.raw(b)
	})
	if err == nil {
		if lead == "[" {
			err = st.write([]byte("[]"))
		} else {
			err = st.write([]byte("]"))
		}
	}
	return st.end(err)
}
