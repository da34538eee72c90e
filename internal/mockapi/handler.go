// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const maxJSONBody = 64 << 20

type obj = map[string]any

var (
	errAbort   = errors.New("broken off as asked") // ends in http.ErrAbortHandler
	errStopped = errors.New("ended as asked")      // a clean early end
)

// call is one request on its way through the server.
type call struct {
	s    *Server
	w    *countingWriter
	r    *http.Request
	o    Options
	calm bool   // first=K is used up
	body []byte // set by readJSON
	api  string // whose error bodies to use
}

// countingWriter counts the body bytes that were written.
type countingWriter struct {
	http.ResponseWriter
	n int64
}

func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.n += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the server's own writer.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack is what a WebSocket upgrade asks for by this name.
func (w *countingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

type countingBody struct {
	io.ReadCloser
	n *int64
}

func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	*b.n += int64(n)
	return n, err
}

func (s *Server) routes() {
	handle := func(pattern, api string, f func(*call) error) {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, api, f) })
	}
	handle("POST /v1/chat/completions", "openai", (*call).chatCompletions)
	handle("POST /v1/responses", "openai", (*call).responses)
	handle("GET /v1/responses", "openai", (*call).responsesSocket)
	handle("GET /v1/responses/{id}", "openai", (*call).responseGet)
	handle("POST /v1/responses/{id}/cancel", "openai", (*call).responseCancel)
	handle("POST /v1/embeddings", "openai", (*call).embeddings)
	handle("GET /v1/models", "openai", (*call).models)
	handle("POST /v1/files", "openai", (*call).files)
	handle("GET /v1/realtime", "openai", (*call).realtime)
	handle("POST /v1/messages", "anthropic", (*call).messages)
	handle("POST /v1/messages/count_tokens", "anthropic", (*call).countTokens)
	handle("POST /v1beta/models/{call}", "gemini", (*call).gemini)
	handle("GET /ws/{service}", "gemini", (*call).live)
	handle("GET /bytes", "openai", (*call).bytes)
	handle("/", "openai", func(c *call) error {
		return c.fail(http.StatusNotFound, "no such path here: "+c.r.Method+" "+c.r.URL.Path)
	})
	s.mux.HandleFunc("GET /mock/stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Stats()) // the client has left; nobody is to be told
	})
}

// Handler is the whole API for use in another server. There goaway is refused,
// because it needs a connection of the mock's own.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/echo"):
			// A mux would redirect paths such as /echo//a/../b, which have to arrive as they are.
			s.serve(w, r, "openai", (*call).echo)
			return
		case strings.HasPrefix(r.URL.Path, "//"):
			// Google's client puts two slashes before the path of a Live session.
			u, copied := *r.URL, *r
			u.Path, u.RawPath = "/"+strings.TrimLeft(u.Path, "/"), ""
			copied.URL, r = &u, &copied
		}
		s.mux.ServeHTTP(w, r)
	})
}

// serve counts the request, applies what the header asks for, and runs f.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, api string, f func(*call) error) {
	if !s.handled.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.handled.leave()
	id := r.Header.Get("Mock-Id")
	seq, arrivals := s.stats.start(id)
	event := Event{Kind: Started, Seq: seq, ID: id, Method: r.Method, Path: r.URL.Path}
	s.stats.tell(event)

	var in int64
	r.Body = countingBody{r.Body, &in}
	out := &countingWriter{ResponseWriter: w}
	notice := func() {
		if s.ctx.Err() == nil {
			event := event
			event.Kind = Cancelled
			s.stats.update(func(n *Stats) { n.Cancelled++ })
			s.stats.tell(event)
		}
	}
	noticed := make(chan struct{})
	stop := context.AfterFunc(r.Context(), func() { defer close(noticed); notice() })
	defer func() { // also when the handler breaks off
		if !stop() {
			<-noticed
		} else if r.Context().Err() != nil {
			notice() // the handler saw the end of the context before the function above
		}
		s.stats.update(func(n *Stats) { n.Finished++; n.InFlight--; n.BytesIn += in; n.BytesOut += out.n })
		event.Kind = Finished
		s.stats.tell(event)
	}()

	if c := connOf(r.Context()); c != nil && c.goneAway() {
		s.stats.update(func(n *Stats) { n.AfterGoaway++ })
	}
	c := &call{s: s, w: out, r: r, o: defaultOptions(), api: api}
	err := c.begin(arrivals)
	if err == nil {
		err = s.inPlace(r.Context(), func() error { return f(c) })
	}
	if errors.Is(err, errAbort) {
		panic(http.ErrAbortHandler)
	}
}

// inPlace runs f when one of Config.Capacity is free. A channel serves in order.
func (s *Server) inPlace(ctx context.Context, f func() error) error {
	if s.places == nil {
		return f()
	}
	select {
	case s.places <- struct{}{}:
	case <-ctx.Done():
		return errStopped
	}
	defer func() { <-s.places }()
	return f()
}

// begin applies the options of the header.
func (c *call) begin(arrivals int64) error {
	if err := c.o.fromHeader(c.r.Header); err != nil {
		return firstError(c.fail(http.StatusBadRequest, err.Error()), errStopped)
	}
	if c.calm = c.o.First > 0 && arrivals > int64(c.o.First); c.calm {
		c.o.calm()
	}
	switch {
	case c.o.Reject:
		return firstError(c.fail(http.StatusExpectationFailed, "expectation rejected"), errStopped)
	case c.o.Read > 0:
		c.r.Body = slowBody{c.r.Body, c.o.Read, c.r.Context()}
	}
	return nil
}

// slowBody reads at a rate.
type slowBody struct {
	io.ReadCloser
	rate int // bytes a second
	ctx  context.Context
}

func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), max(1, b.rate/20), 16<<10)])
	if sleepErr := sleep(b.ctx, time.Duration(n)*time.Second/time.Duration(b.rate)); sleepErr != nil {
		return n, sleepErr
	}
	return n, err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readJSON reads the body into v and applies the options in the model's name.
func (c *call) readJSON(v any, model func() string) error {
	if c.o.NoRead {
		c.body = []byte("{}")
	} else {
		body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxJSONBody))
		if err != nil {
			return firstError(c.fail(http.StatusBadRequest, "body: "+err.Error()), errStopped)
		}
		c.body = body
	}
	if err := json.Unmarshal(c.body, v); err != nil {
		return firstError(c.fail(http.StatusBadRequest, "body is no JSON of the expected shape"), errStopped)
	}
	return c.model(model())
}

// model applies the options in a model's name and the faults that come before
// the head.
func (c *call) model(name string) error {
	if err := c.o.fromModel(name); err != nil {
		return firstError(c.fail(http.StatusBadRequest, err.Error()), errStopped)
	}
	if c.calm {
		c.o.calm()
	}
	return c.beforeHead()
}

// beforeHead does what has been asked for before the first byte of the answer.
// It is where every handler passes that obeys options.
func (c *call) beforeHead() error {
	ctx := c.r.Context()
	if c.o.Goaway != never && (connOf(ctx) == nil || c.r.ProtoMajor != 2) {
		return firstError(c.fail(http.StatusBadRequest, "mock option \"goaway\" needs HTTP/2 on one of the mock's own addresses"), errStopped)
	}
	if c.o.Early != 0 {
		c.w.Header().Set("Link", "</style.css>; rel=preload")
		c.w.WriteHeader(c.o.Early)
		c.w.Header().Del("Link")
	}
	if c.o.Hold {
		<-ctx.Done()
		return errAbort
	}
	if sleep(ctx, c.o.Head) != nil {
		return errAbort
	}
	if c.o.Reset == beforeHead {
		return c.reset()
	}
	if c.o.Cut == beforeHead {
		return errAbort
	}
	if c.o.Status != 0 {
		return firstError(c.fail(c.o.Status, "status asked for"), errStopped)
	}
	return nil
}

// reset breaks the connection, or on HTTP/2 the stream: net/http answers a
// broken-off handler with RST_STREAM INTERNAL_ERROR there.
func (c *call) reset() error {
	conn := connOf(c.r.Context())
	if conn != nil && (c.r.ProtoMajor < 2 || c.o.ResetConn) {
		conn.reset()
	}
	return errAbort
}

// fail answers with the API's own error body.
func (c *call) fail(status int, message string) error {
	h := c.w.Header()
	c.commonHeader()
	set := func(name, value string) {
		if value != "" {
			h.Set(name, value)
		}
	}
	set("Retry-After", c.o.RetryAfter)
	set("Retry-After-Ms", c.o.RetryAfterMS)
	set("X-Should-Retry", c.o.ShouldRetry)
	body := mustJSON(errorBody(c.api, status, message))
	if status == http.StatusNoContent || status == http.StatusNotModified {
		c.w.WriteHeader(status) // RFC 9110 sections 15.3.5 and 15.4.5: no content
		return nil
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	_, err := c.w.Write(body)
	return err
}

// commonHeader sets the fields that the real APIs send with every answer.
func (c *call) commonHeader() {
	h := c.w.Header()
	id := newContent(c.body, 0)
	switch c.api {
	case "anthropic":
		h.Set("Request-Id", id.id("req_"))
	case "gemini":
		h.Set("Server-Timing", "gfet4t7; dur=1")
	default:
		h.Set("X-Request-Id", id.id("req_"))
		h.Set("Openai-Processing-Ms", "1")
		h.Set("Openai-Version", "2020-10-01")
	}
	if c.o.Close {
		h.Set("Connection", "close")
	}
}

func errorBody(api string, status int, message string) obj {
	switch api {
	case "anthropic":
		return obj{"type": "error", "error": obj{"type": anthropicErrorType(status), "message": message}, "request_id": "req_mock"}
	case "gemini":
		return obj{"error": obj{"code": status, "message": message, "status": strings.ToUpper(strings.ReplaceAll(http.StatusText(status), " ", "_"))}}
	}
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status >= 500:
		kind = "server_error"
	}
	return obj{"error": obj{"message": message, "type": kind, "param": nil, "code": nil}}
}

func anthropicErrorType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 402:
		return "billing_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 504:
		return "timeout_error"
	case 529:
		return "overloaded_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("mockapi: internal error: %v", err))
	}
	return b
}
