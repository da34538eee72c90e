// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"strconv"
	"strings"
	"time"
)

// Realtime names an API whose sessions live on one WebSocket and end by themselves.
type Realtime string

// The APIs of that kind. They are also metric labels.
const (
	NoRealtime      Realtime = ""
	OpenAIRealtime  Realtime = "openai_realtime"
	OpenAIResponses Realtime = "openai_responses"
	GeminiLive      Realtime = "gemini_live"
)

// RealtimeWarning is how long before its end an app should hear of it: time to
// finish a turn and to open another session. A guess.
const RealtimeWarning = 5 * time.Minute

// realtimeLimits is how long a session lasts from its handshake on, where the API
// says so beforehand and keeps to it.
var realtimeLimits = map[Realtime]time.Duration{
	// 60 min (30 in the beta, 15 at first); the server gives no warning. Closed with
	// 1001 "Your session hit the maximum duration of 60 minutes." as reported in
	// github.com/pollen-robotics/reachy_mini_conversation_app/issues/134, 2025-12-05.
	OpenAIRealtime: time.Hour,
	// 60 min, then the error websocket_connection_limit_reached: OpenAI's guide to the
	// Responses API over WebSockets, as of 2026-11.
	OpenAIResponses: time.Hour,
	// Gemini Live is not here. "Around 10 minutes" by docs.cloud.google.com (Start and
	// manage live sessions, 2026-11), 58 min as reported in discuss.ai.google.dev/t/186392,
	// 2026-09-29: only the server's own goAway tells.
}

// DetectRealtime tells what a WebSocket to path speaks, whatever prefix stands
// before it.
func DetectRealtime(k Kind, path string) Realtime {
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimRight(path, "/")
	switch {
	case k == OpenAI && strings.HasSuffix(path, "/realtime"):
		return OpenAIRealtime
	case k == OpenAI && strings.HasSuffix(path, "/responses"):
		return OpenAIResponses
	case k == Gemini:
		// …v1beta.GenerativeService.BidiGenerateContent, …Constrained with a token
		// for one session, and Vertex' …LlmBidiService/BidiGenerateContent.
		method := path[strings.LastIndexAny(path, "./")+1:]
		if method == "BidiGenerateContent" || method == "BidiGenerateContentConstrained" {
			return GeminiLive
		}
	}
	return NoRealtime
}

// Limit is how long a session lasts from its handshake on; 0 = only the server knows.
func (r Realtime) Limit() time.Duration { return realtimeLimits[r] }

// A NoticeKind says what a server tells of a session.
type NoticeKind int

// The kinds of notices.
const (
	Expires   NoticeKind = iota + 1 // it ends at Notice.At
	GoAway                          // it ends after Notice.Left
	Expired                         // it has reached its limit
	Resumable                       // whether it can be resumed has changed: Notice.Resumable
)

// A Notice is what a server's message tells of its session. The handle with which
// one is resumed is a secret and not in it.
type Notice struct {
	Kind      NoticeKind
	At        time.Time
	Left      time.Duration // below zero = not said
	Resumable bool
}

// Read looks for a notice in a message of the server. It stops at the first key
// that belongs to something else, so that a model's output costs next to nothing.
func (r Realtime) Read(message []byte) (n Notice, ok bool) {
	s := scan{b: message}
	switch r {
	case OpenAIRealtime, OpenAIResponses:
		return s.openAINotice()
	case GeminiLive:
		return s.liveNotice()
	}
	return Notice{}, false
}

// open enters an object.
func (s *scan) open() bool {
	s.space()
	if s.i >= len(s.b) || s.b[s.i] != '{' {
		return false
	}
	s.i++
	return true
}

// key reads the next key of an object, up to its value; "" at the object's end, or
// where the text is none.
func (s *scan) key() []byte {
	for {
		s.space()
		if s.i >= len(s.b) {
			return nil
		}
		if s.b[s.i] != ',' {
			break
		}
		s.i++
	}
	if s.b[s.i] == '}' {
		s.i++
		return nil
	}
	if s.b[s.i] != '"' {
		return nil
	}
	key, ok := s.str()
	s.space()
	if !ok || s.i >= len(s.b) || s.b[s.i] != ':' {
		return nil
	}
	s.i++
	s.space()
	return key
}

// word reads a string or a scalar; other values are skipped.
func (s *scan) word() (text []byte, ok bool) {
	s.space()
	start := s.i
	if start < len(s.b) && s.b[start] == '"' {
		return s.str()
	}
	ok = s.value(nSkip, 1)
	return s.b[start:s.i], ok
}

func (s *scan) openAINotice() (n Notice, ok bool) {
	if !s.open() {
		return n, false
	}
	for key := s.key(); len(key) > 0; key = s.key() {
		switch string(key) {
		case "type":
			kind, whole := s.word()
			if !whole || string(kind) != "error" && string(kind) != "session.created" && string(kind) != "session.updated" {
				return Notice{}, false
			}
		case "session":
			if at, found := s.member("expires_at"); found {
				if seconds, err := strconv.ParseInt(string(at), 10, 64); err == nil && seconds > 0 {
					n, ok = Notice{Kind: Expires, At: time.Unix(seconds, 0)}, true
				}
			}
		case "error":
			if code, found := s.member("code"); found && (string(code) == "session_expired" || string(code) == "websocket_connection_limit_reached") {
				n, ok = Notice{Kind: Expired}, true
			}
		default:
			if !s.value(nSkip, 1) {
				return n, ok
			}
		}
	}
	return n, ok
}

func (s *scan) liveNotice() (n Notice, ok bool) {
	if !s.open() {
		return n, false
	}
	for key := s.key(); len(key) > 0; key = s.key() {
		switch string(key) {
		case "goAway":
			n = Notice{Kind: GoAway, Left: -1}
			if left, found := s.member("timeLeft"); found {
				if d, err := time.ParseDuration(string(left)); err == nil && d >= 0 {
					n.Left = d
				}
			}
			return n, true
		case "sessionResumptionUpdate":
			at := s.i
			handle, _ := s.member("newHandle")
			s.i = at
			may, _ := s.member("resumable")
			return Notice{Kind: Resumable, Resumable: len(handle) > 0 && string(may) == "true"}, true
		case "usageMetadata": // stands beside any of them
			if !s.value(nSkip, 1) {
				return n, false
			}
		default:
			return n, false
		}
	}
	return n, false
}

// member reads the object that comes next to its end and returns the value of one of
// its members.
func (s *scan) member(name string) (text []byte, found bool) {
	if !s.open() {
		s.value(nSkip, 1)
		return nil, false
	}
	for key := s.key(); len(key) > 0; key = s.key() {
		value, ok := s.word()
		if !ok {
			return nil, false
		}
		if string(key) == name {
			text, found = value, true
		}
	}
	return text, found
}
