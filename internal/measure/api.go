// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// An API is the protocol of a call.
type API string

// The protocols that can be measured.
const (
	Chat      API = "chat"      // OpenAI chat completions
	Responses API = "responses" // OpenAI Responses, over HTTP or a WebSocket
	Anthropic API = "anthropic" // Anthropic messages
	Gemini    API = "gemini"    // Gemini streamGenerateContent
	Realtime  API = "realtime"  // OpenAI realtime, over a WebSocket
)

// ParseAPI returns the protocol of that name.
func ParseAPI(name string) (API, error) {
	switch a := API(name); a {
	case Chat, Responses, Anthropic, Gemini, Realtime:
		return a, nil
	}
	return "", fmt.Errorf("unknown API %q: want chat, responses, anthropic, gemini or realtime", name)
}

// DetectAPI tells the protocol from a path, or returns "".
func DetectAPI(path string) API {
	path = strings.TrimRight(path, "/")
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		return Chat
	case strings.HasSuffix(path, "/responses"):
		return Responses
	case strings.HasSuffix(path, "/messages"):
		return Anthropic
	case strings.HasSuffix(path, ":streamGenerateContent"):
		return Gemini
	case strings.HasSuffix(path, "/realtime"):
		return Realtime
	}
	return ""
}

type obj = map[string]any

// A question is what one call asks.
type question struct {
	model        string
	prompt       string
	outputTokens int // 0 leaves the length to the server
}

// body is the request of api, or the first frame over a WebSocket.
func (q question) body(api API, socket bool) []byte {
	user := func(text any) []obj { return []obj{{"role": "user", "content": text}} }
	var b obj
	switch api {
	case Chat:
		b = obj{"model": q.model, "messages": user(q.prompt), "stream": true, "stream_options": obj{"include_usage": true}}
		q.limit(b, "max_completion_tokens")
	case Responses:
		b = obj{"model": q.model, "input": q.prompt}
		if socket {
			b["type"] = "response.create"
		} else {
			b["stream"] = true
		}
		q.limit(b, "max_output_tokens")
	case Anthropic:
		b = obj{"model": q.model, "messages": user(q.prompt), "stream": true, "max_tokens": 1024} // the field is required
		q.limit(b, "max_tokens")
	case Gemini:
		b = obj{"contents": []obj{{"role": "user", "parts": []obj{{"text": q.prompt}}}}}
		if q.outputTokens > 0 {
			b["generationConfig"] = obj{"maxOutputTokens": q.outputTokens}
		}
	case Realtime:
		r := obj{"conversation": "none", "output_modalities": []string{"text"}, "input": []obj{{
			"type": "message", "role": "user", "content": []obj{{"type": "input_text", "text": q.prompt}}}}}
		q.limit(r, "max_output_tokens")
		b = obj{"type": "response.create", "response": r}
	}
	text, err := json.Marshal(b)
	if err != nil {
		panic("measure: internal error: " + err.Error()) // strings and numbers only
	}
	return text
}

func (q question) limit(b obj, field string) {
	if q.outputTokens > 0 {
		b[field] = q.outputTokens
	}
}

// SetKey adds an API key to a header as the protocol wants it.
func (a API) SetKey(h http.Header, key string) {
	switch a {
	case Anthropic:
		h.Set("X-Api-Key", key)
	case Gemini:
		h.Set("X-Goog-Api-Key", key)
	default:
		h.Set("Authorization", "Bearer "+key)
	}
}

// address is u as api's own clients would call it.
func (a API) address(u *url.URL, model string) *url.URL {
	out := *u
	query := out.Query()
	switch {
	case a == Gemini && !query.Has("alt"):
		query.Set("alt", "sse") // without it the answer is one JSON array
	case a == Realtime && model != "" && !query.Has("model"):
		query.Set("model", model)
	default:
		return &out
	}
	out.RawQuery = query.Encode()
	return &out
}

// An event is what one message of a stream means.
type event struct {
	token  bool // bears output: text, reasoning, refusal, tool arguments, audio
	end    bool // the protocol's own end
	failed bool // an error inside the stream
	reason string
	prompt int // tokens as the server counts them; 0 if it does not say
	output int
}

var errNoJSON = errors.New("an event is no JSON")

// parse fills v, and lets pass what has another type than expected: a server's
// own additions are no reason to fail.
func parse(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	var typ *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &typ) {
		return errNoJSON
	}
	return nil
}

// read tells what a message means.
func (a API) read(data []byte) (event, error) {
	switch a {
	case Chat:
		return readChat(data)
	case Anthropic:
		return readAnthropic(data)
	case Gemini:
		return readGemini(data)
	}
	return readResponses(data)
}

func readChat(data []byte) (event, error) {
	if string(data) == "[DONE]" {
		return event{end: true}, nil
	}
	type text struct {
		Arguments string `json:"arguments"`
	}
	var m struct {
		Error   *apiError `json:"error"`
		Choices []struct {
			Delta struct {
				Content, Reasoning, Refusal string
				ReasoningContent            string `json:"reasoning_content"`
				FunctionCall                text   `json:"function_call"`
				ToolCalls                   []struct {
					Function text `json:"function"`
				} `json:"tool_calls"`
				Audio struct{ Data, Transcript string }
			}
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Output int `json:"completion_tokens"`
		}
	}
	if err := parse(data, &m); err != nil {
		return event{}, err
	}
	if m.Error != nil {
		return event{failed: true, reason: m.Error.name()}, nil
	}
	e := event{prompt: m.Usage.Prompt, output: m.Usage.Output}
	for _, c := range m.Choices {
		d := c.Delta
		e.token = e.token || d.Content+d.Reasoning+d.Refusal+d.ReasoningContent+d.FunctionCall.Arguments+d.Audio.Data+d.Audio.Transcript != ""
		for _, call := range d.ToolCalls {
			e.token = e.token || call.Function.Arguments != ""
		}
	}
	return e, nil
}

// readResponses serves the realtime protocol too: both speak of response.*.
func readResponses(data []byte) (event, error) {
	var m struct {
		Type     string
		Delta    string
		Code     string // of an error event of Responses
		Error    *apiError
		Response struct {
			Status string
			Error  *apiError
			Usage  struct {
				Prompt int `json:"input_tokens"`
				Output int `json:"output_tokens"`
			}
		}
	}
	if err := parse(data, &m); err != nil {
		return event{}, err
	}
	e := event{prompt: m.Response.Usage.Prompt, output: m.Response.Usage.Output}
	switch m.Type {
	case "response.completed", "response.incomplete":
		e.end = true
	case "response.done": // realtime
		switch m.Response.Status {
		case "failed", "cancelled":
			e.failed, e.reason = true, "response "+m.Response.Status
		default:
			e.end = true
		}
	case "response.failed":
		e.failed, e.reason = true, m.Response.Error.name()
	case "error":
		e.failed, e.reason = true, m.Error.name()
		if m.Error == nil && m.Code != "" {
			e.reason = (&apiError{Type: m.Code}).name()
		}
	default:
		e.token = strings.HasPrefix(m.Type, "response.") && strings.HasSuffix(m.Type, ".delta") && m.Delta != ""
		if !e.token && m.Type == "" && m.Error != nil {
			e.failed, e.reason = true, m.Error.name()
		}
	}
	return e, nil
}

func readAnthropic(data []byte) (event, error) {
	type usage struct {
		Prompt int `json:"input_tokens"`
		Output int `json:"output_tokens"`
	}
	var m struct {
		Type  string
		Error *apiError
		Delta struct {
			Text, Thinking string
			PartialJSON    string `json:"partial_json"`
		}
		Message struct{ Usage usage }
		Usage   usage
	}
	if err := parse(data, &m); err != nil {
		return event{}, err
	}
	e := event{}
	switch m.Type {
	case "message_start":
		e.prompt = m.Message.Usage.Prompt // its output count is a beginning only
	case "message_delta":
		e.output = m.Usage.Output
	case "content_block_delta": // a signature is no output
		e.token = m.Delta.Text+m.Delta.Thinking+m.Delta.PartialJSON != ""
	case "message_stop":
		e.end = true
	case "error":
		e.failed, e.reason = true, m.Error.name()
	}
	return e, nil
}

func readGemini(data []byte) (event, error) {
	var m struct {
		Error      *apiError
		Candidates []struct {
			FinishReason string
			Content      struct {
				Parts []struct {
					Text         string
					FunctionCall json.RawMessage
					InlineData   struct{ Data string }
				}
			}
		}
		UsageMetadata struct {
			PromptTokenCount, CandidatesTokenCount, ThoughtsTokenCount int
		}
	}
	if err := parse(data, &m); err != nil {
		return event{}, err
	}
	if m.Error != nil {
		return event{failed: true, reason: m.Error.name()}, nil
	}
	u := m.UsageMetadata
	e := event{prompt: u.PromptTokenCount, output: u.CandidatesTokenCount + u.ThoughtsTokenCount}
	for _, c := range m.Candidates {
		e.end = e.end || c.FinishReason != ""
		for _, p := range c.Content.Parts {
			e.token = e.token || p.Text != "" || len(p.FunctionCall) > 0 || p.InlineData.Data != ""
		}
	}
	return e, nil
}

// endsByEOF tells whether the body's end, and not its last event, is the end.
func (a API) endsByEOF() bool { return a == Gemini }

// An apiError is what the APIs say of an error, without its message: that may
// hold part of a key or of the prompt.
type apiError struct {
	Type   string
	Status string
	Code   any
}

var plainName = regexp.MustCompile(`^[A-Za-z][A-Za-z_.-]{1,47}$`)

// name is the error's code, type or status, if it looks like one.
func (e *apiError) name() string {
	if e != nil {
		code, _ := e.Code.(string)
		for _, s := range []string{code, e.Type, e.Status} {
			if plainName.MatchString(s) {
				return s
			}
		}
	}
	return "unnamed error"
}

// bodyError names the error in the body of an answer that is no success.
func bodyError(body []byte) string {
	var m struct{ Error *apiError }
	if parse(body, &m) != nil || m.Error == nil {
		return ""
	}
	if n := m.Error.name(); n != "unnamed error" {
		return n
	}
	return ""
}
