// SPDX-License-Identifier: Apache-2.0

// Package dialect watches a copy of a model API's answer: first token, terminal
// event, errors inside a stream, usage and sequence numbers.
//
// It never alters a byte and never fails: input it cannot follow makes the
// watcher silent, with a reason. Memory is bounded whatever arrives. There are no
// goroutines and no clocks of its own; a compressed answer is decoded by a
// coroutine that runs only inside Observe and End, so End must be called once
// for every watcher. A Watcher is for one caller at a time.
package dialect

import (
	"iter"
	"mime"
	"net/http"
	"strings"
	"time"
)

// Kind names the family of model API that an upstream speaks.
type Kind string

// The kinds of API.
const (
	OpenAI    Kind = "openai"
	Anthropic Kind = "anthropic"
	Gemini    Kind = "gemini"
	None      Kind = "none"
)

// API is one streaming call of a Kind.
type API string

// The calls that are told apart; Unknown is every other path.
const (
	Unknown     API = ""
	Chat        API = "chat"
	Responses   API = "responses"
	Completions API = "completions"
	Messages    API = "messages"
	Generate    API = "streamGenerateContent"
)

// Detect tells the call from the path, whatever prefix stands before it.
func Detect(path string) API {
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimRight(path, "/")
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		return Chat
	case strings.HasSuffix(path, "/completions"):
		return Completions
	case strings.HasSuffix(path, "/messages"):
		return Messages
	case strings.HasSuffix(path, ":streamGenerateContent"), strings.HasSuffix(path, ":generateContent"):
		return Generate
	case strings.HasSuffix(path, "/responses"), strings.Contains(path, "/responses/"):
		return Responses
	}
	return Unknown
}

// Report is what has been seen so far.
type Report struct {
	Stream          bool
	ExpectsTerminal bool
	TerminalSeen    bool
	ErrorEvent      bool
	ErrorType       string // of a closed set, else "other"; empty without an error
	FirstToken      time.Time
	LastToken       time.Time
	Chunks          int  // token-bearing events
	Gaps            Gaps // between them
	Events          int
	InputTokens     int64 // -1 when unknown
	OutputTokens    int64 // -1 when unknown
	LastSequence    int64 // -1 when unknown
	Silent          bool  // the watcher gave up
	Reason          string
}

const keep = 64 << 10 // bytes kept of one event, or of each end of a plain answer

// Watcher follows one answer. A nil Watcher watches nothing.
type Watcher struct {
	kind     Kind
	rep      Report
	identity bool
	ended    bool
	now      time.Time
	sse      sse
	head     []byte // a plain answer's first bytes
	tail     ring   // and its last
	dec      *decoder
	next     func() (struct{}, bool)
	stop     func()
}

// NewWatcher decides from the request and the response what to watch; nil means
// nothing. path is the request's path without the upstream's own prefix.
func NewWatcher(k Kind, method, path string, status int, header http.Header) *Watcher {
	api := Detect(path)
	if k == None || k == "" || status != http.StatusOK || method == http.MethodHead {
		return nil
	}
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || (media != "text/event-stream" && media != "application/json") {
		return nil
	}
	w := &Watcher{kind: k, identity: true}
	w.rep = Report{Stream: media == "text/event-stream", InputTokens: -1, OutputTokens: -1, LastSequence: -1}
	w.rep.ExpectsTerminal = w.rep.Stream && api != Unknown && api != Generate
	w.sse.boundary = true
	switch coding := strings.ToLower(strings.Join(header.Values("Content-Encoding"), ",")); coding {
	case "", "identity":
	case "gzip", "x-gzip", "deflate", "zstd", "br":
		w.identity = false
		w.dec = &decoder{w: w, coding: coding}
		w.next, w.stop = iter.Pull(w.dec.run)
	default:
		w.identity = false
		w.silence("unknown content coding")
	}
	return w
}

// Observe shows the watcher the next bytes of the body as they went by at now.
func (w *Watcher) Observe(p []byte, now time.Time) {
	if w == nil || w.ended || w.rep.Silent || len(p) == 0 {
		return
	}
	w.now = now
	if w.dec == nil {
		w.feed(p)
		return
	}
	w.dec.in = p
	w.dec.allowed = maxDecoded
	w.next()
	w.dec.in = nil
}

// End says that the body ended, cleanly or not, and frees the decoder.
func (w *Watcher) End(now time.Time) {
	if w == nil || w.ended {
		return
	}
	w.now = now
	if w.dec != nil {
		w.dec.eof = true
		w.dec.allowed = maxDecoded
		if !w.rep.Silent {
			w.next()
		}
		w.stop()
	}
	w.ended = true
	if !w.rep.Stream && !w.rep.Silent {
		w.plain()
	}
}

// Report returns what has been seen so far.
func (w *Watcher) Report() Report {
	if w == nil {
		return Report{InputTokens: -1, OutputTokens: -1, LastSequence: -1}
	}
	return w.rep
}

// Chunks is how many token-bearing events have been seen.
func (w *Watcher) Chunks() int {
	if w == nil {
		return 0
	}
	return w.rep.Chunks
}

// Terminal tells whether the event that ends the stream has been seen.
func (w *Watcher) Terminal() bool { return w != nil && w.rep.TerminalSeen }

// AtBoundary tells whether the bytes seen end after a whole event of an uncoded
// event stream, so that another event may follow them.
func (w *Watcher) AtBoundary() bool {
	return w != nil && w.identity && w.rep.Stream && !w.rep.Silent && w.sse.boundary
}

// Inside tells whether the bytes seen, decoded, end inside an event of an event stream.
func (w *Watcher) Inside() bool {
	return w != nil && w.rep.Stream && !w.rep.Silent && !w.sse.boundary
}

func (w *Watcher) silence(reason string) {
	w.rep.Silent, w.rep.Reason = true, reason
}

func (w *Watcher) feed(p []byte) {
	if w.rep.Stream {
		w.sse.feed(p, w.event)
		return
	}
	if n := min(len(p), keep-len(w.head)); n > 0 {
		w.head = append(w.head, p[:n]...)
		p = p[n:]
	}
	w.tail.add(p)
}

// event takes one dispatched event.
func (w *Watcher) event(name, data []byte) {
	w.rep.Events++
	if w.kind == OpenAI && string(data) == "[DONE]" {
		w.rep.TerminalSeen = true
		return
	}
	s := scan{b: data, in: -1, out: -1, seq: -1}
	s.value(nRoot, 0)
	typ := s.typ
	if len(typ) == 0 {
		typ = name
	}
	if s.in >= 0 {
		w.rep.InputTokens = s.in
	}
	if s.out >= 0 {
		w.rep.OutputTokens = s.out + s.thoughts
	}
	if s.seq >= 0 {
		w.rep.LastSequence = s.seq
	}
	if s.err || string(typ) == "error" {
		w.rep.ErrorEvent, w.rep.TerminalSeen = true, true
		w.rep.ErrorType = s.errorType()
	}
	token := s.token
	switch string(typ) {
	case "response.failed":
		w.rep.ErrorEvent, w.rep.TerminalSeen = true, true
		w.rep.ErrorType = s.errorType()
	case "response.completed", "response.incomplete":
		w.rep.TerminalSeen = true
	case "message_stop":
		w.rep.TerminalSeen = w.rep.TerminalSeen || w.kind == Anthropic
	default:
		if w.kind == OpenAI && s.delta && len(typ) > 15 && string(typ[:9]) == "response." && string(typ[len(typ)-6:]) == ".delta" {
			token = true
		}
	}
	if w.kind == Anthropic {
		token = s.anthropic && string(typ) == "content_block_delta"
	}
	if w.kind == Gemini && s.finish {
		w.rep.TerminalSeen = true
	}
	if token {
		if w.rep.Chunks > 0 {
			w.rep.Gaps.add(w.now.Sub(w.rep.LastToken))
		} else {
			w.rep.FirstToken = w.now
		}
		w.rep.LastToken = w.now
		w.rep.Chunks++
	}
}
