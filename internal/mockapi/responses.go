// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const maxStored = 256 // responses kept; the oldest goes first

type responseRequest struct {
	Model      string `json:"model"`
	Stream     bool   `json:"stream"`
	Background bool   `json:"background"`
	Store      *bool  `json:"store"`
}

// A timedEvent is due some time after its response was created. Its place in
// the list is its sequence number.
type timedEvent struct {
	name string
	body obj
	due  time.Duration
}

// response is one answer of the Responses API. What a client may see of it
// follows from the clock alone, so that a background response needs no
// goroutine to go on after its client left.
type response struct {
	id, item   string // of the response and of its one message
	model      string
	background bool
	streamed   bool
	text       string
	tokens     int
	created    time.Time
	events     []timedEvent

	mu        sync.Mutex // guards cancelled
	cancelled time.Time  // zero while it is not
}

func newResponse(o *Options, text *content, req *responseRequest) *response {
	r := &response{id: text.id("resp_"), item: text.id("msg_"), model: req.Model, background: req.Background, streamed: req.Stream, tokens: o.Tokens, created: time.Now()}
	tokens := text.tokens(o.Tokens)
	r.text = strings.Join(tokens, "")
	item := r.item
	at := time.Duration(0)
	add := func(name string, body obj) {
		body["type"], body["sequence_number"] = name, len(r.events)
		r.events = append(r.events, timedEvent{name, body, at})
	}
	message := func(status string, content []obj) obj {
		return obj{"id": item, "type": "message", "role": "assistant", "status": status, "content": content}
	}
	part := func(text string) obj {
		return obj{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
	}
	in := func(extra obj) obj {
		extra["item_id"], extra["output_index"], extra["content_index"] = item, 0, 0
		return extra
	}
	add("response.created", obj{"response": r.object("in_progress")})
	if r.background {
		add("response.queued", obj{"response": r.object("queued")})
	}
	add("response.in_progress", obj{"response": r.object("in_progress")})
	add("response.output_item.added", obj{"output_index": 0, "item": message("in_progress", []obj{})})
	add("response.content_part.added", in(obj{"part": part("")}))
	for i, token := range tokens {
		at = o.TTFT + time.Duration(i)*o.Gap
		add("response.output_text.delta", in(obj{"delta": token, "logprobs": []any{}}))
	}
	add("response.output_text.done", in(obj{"text": r.text, "logprobs": []any{}}))
	add("response.content_part.done", in(obj{"part": part(r.text)}))
	add("response.output_item.done", obj{"output_index": 0, "item": message("completed", []obj{part(r.text)})})
	add("response.completed", obj{"response": r.object("completed")})
	return r
}

// object is the response itself in a state.
func (r *response) object(status string) obj {
	v := obj{
		"id": r.id, "object": "response", "created_at": r.created.Unix(), "status": status, "model": r.model,
		"background": r.background, "error": nil, "incomplete_details": nil, "instructions": nil, "max_output_tokens": nil,
		"output": []obj{}, "parallel_tool_calls": true, "previous_response_id": nil,
		"reasoning": obj{"effort": nil, "summary": nil}, "store": true, "temperature": 1.0,
		"text": obj{"format": obj{"type": "text"}}, "tool_choice": "auto", "tools": []any{}, "top_p": 1.0,
		"truncation": "disabled", "usage": nil, "user": nil, "metadata": obj{},
	}
	if status == "completed" {
		v["output"] = []obj{{
			"id": r.item, "type": "message", "role": "assistant", "status": "completed",
			"content": []obj{{"type": "output_text", "text": r.text, "annotations": []any{}, "logprobs": []any{}}},
		}}
		v["usage"] = obj{
			"input_tokens": 8, "input_tokens_details": obj{"cached_tokens": 0},
			"output_tokens": r.tokens, "output_tokens_details": obj{"reasoning_tokens": 0}, "total_tokens": 8 + r.tokens,
		}
	}
	return v
}

// state is the status at a moment.
func (r *response) state(now time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.cancelled.IsZero():
		return "cancelled"
	case now.Sub(r.created) >= r.events[len(r.events)-1].due:
		return "completed"
	}
	return "in_progress"
}

func (r *response) cancel(now time.Time) {
	if r.state(now) != "in_progress" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancelled = now
}

// send streams the events after a sequence number, each when it is due.
func (r *response) send(st *stream, after int) error {
	if st.over != nil {
		return st.over
	}
	for i := max(0, after+1); i < len(r.events); i++ {
		e := &r.events[i]
		if sleep(st.c.r.Context(), time.Until(r.created.Add(e.due))) != nil {
			return errAbort
		}
		if r.state(time.Now()) == "cancelled" {
			return st.sse("response.incomplete", mustJSON(obj{
				"type": "response.incomplete", "sequence_number": i, "response": r.object("cancelled")}))
		}
		if err := st.sse(e.name, mustJSON(e.body)); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) responses() error {
	var req responseRequest
	if err := c.readJSON(&req, func() string { return req.Model }); err != nil {
		return err
	}
	text := newContent(c.body, c.o.Size)
	r := newResponse(&c.o, text, &req)
	if req.Background || req.Store != nil && *req.Store {
		c.s.store.put(r)
	}
	if !req.Stream {
		if !req.Background {
			return c.unary(r.object("completed"))
		}
		c.o.TTFT = 0 // the wait is the model's, and the answer does not wait for it
		return c.unary(r.object("queued"))
	}
	return c.responseStream(r, never)
}

func (c *call) responseStream(r *response, after int) error {
	st, err := c.open("text/event-stream; charset=utf-8", -1, sseEvent(&c.o, "error", mustJSON(obj{
		"type": "error", "code": "server_is_overloaded", "message": "the server is overloaded", "param": nil, "sequence_number": c.o.Error})))
	if err != nil {
		return err
	}
	return st.end(r.send(st, after))
}

func (c *call) responseGet() error {
	if err := c.beforeHead(); err != nil {
		return err
	}
	r := c.s.store.byID(c.r.PathValue("id"))
	if r == nil {
		return c.fail(http.StatusNotFound, "no response of that id is stored")
	}
	query := c.r.URL.Query()
	if query.Get("stream") != "true" {
		return c.unary(r.object(r.state(time.Now())))
	}
	if !r.streamed {
		return c.fail(http.StatusBadRequest, "only a response created with stream:true can be streamed again")
	}
	after := never
	if s := query.Get("starting_after"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			return c.fail(http.StatusBadRequest, "starting_after is no number")
		}
		after = n
	}
	return c.responseStream(r, after)
}

func (c *call) responseCancel() error {
	if err := c.beforeHead(); err != nil {
		return err
	}
	r := c.s.store.byID(c.r.PathValue("id"))
	switch {
	case r == nil:
		return c.fail(http.StatusNotFound, "no response of that id is stored")
	case !r.background:
		return c.fail(http.StatusBadRequest, "only a background response can be cancelled")
	}
	r.cancel(time.Now())
	return c.unary(r.object(r.state(time.Now())))
}

// store keeps the latest responses.
type store struct {
	mu    sync.Mutex // guards the fields below
	byKey map[string]*response
	order []string // oldest first
}

func newStore() *store { return &store{byKey: map[string]*response{}} }

// put keeps r. Equal requests have equal ids: the latest wins.
func (s *store) put(r *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.byKey[r.id]; !ok {
		s.order = append(s.order, r.id)
	}
	s.byKey[r.id] = r
	if len(s.order) > maxStored {
		delete(s.byKey, s.order[0])
		s.order = s.order[1:]
	}
}

func (s *store) byID(id string) *response {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[id]
}
