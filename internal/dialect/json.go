// SPDX-License-Identifier: Apache-2.0

package dialect

import "bytes"

// node is a place in an event that the scanner knows.
type node int

const (
	nSkip node = iota
	nRoot
	nType
	nSeq
	nUsage
	nHolder // an object whose usage, and error, count
	nError
	nErrName
	nChoices
	nChoiceDelta
	nCall
	nAudio
	nCandidates
	nContent
	nParts
	nDelta
	nDeltaText
	nToken  // a token when it is a string that is not empty
	nThing  // a token when it is there and not null
	nFinish // set when it is a string
	nIn
	nOut
	nThoughts
)

const maxDepth = 64

// scan walks one event once, without copies, and stops quietly where the text
// ends or is not JSON.
type scan struct {
	b                []byte
	i                int
	typ              []byte
	errs             [3][]byte
	nerrs            int
	in, out          int64
	thoughts, seq    int64
	err, token       bool
	delta, anthropic bool
	finish           bool
}

func child(n node, key []byte) node {
	switch n {
	case nRoot:
		return rootChild(key)
	case nHolder:
		switch string(key) {
		case "usage":
			return nUsage
		case "error":
			return nHolderError
		}
	case nError, nHolderError:
		switch string(key) {
		case "type", "code", "status":
			return nErrName
		}
	case nUsage:
		switch string(key) {
		case "prompt_tokens", "input_tokens", "promptTokenCount":
			return nIn
		case "completion_tokens", "output_tokens", "candidatesTokenCount":
			return nOut
		case "thoughtsTokenCount":
			return nThoughts
		}
	case nChoices:
		switch string(key) {
		case "delta":
			return nChoiceDelta
		case "text":
			return nToken
		}
	case nChoiceDelta, nCall, nAudio:
		return deltaChild(n, key)
	case nCandidates, nContent, nParts:
		return geminiChild(n, key)
	case nDelta:
		switch string(key) {
		case "text", "partial_json", "thinking":
			return nDeltaText
		}
	}
	return nSkip
}

const nHolderError = nThoughts + 1

func rootChild(key []byte) node {
	switch string(key) {
	case "type":
		return nType
	case "sequence_number":
		return nSeq
	case "usage", "usageMetadata":
		return nUsage
	case "response", "message":
		return nHolder
	case "error":
		return nError
	case "code":
		return nErrName
	case "choices":
		return nChoices
	case "candidates":
		return nCandidates
	case "delta":
		return nDelta
	}
	return nSkip
}

func deltaChild(n node, key []byte) node {
	switch string(key) {
	case "content", "reasoning", "reasoning_content", "refusal":
		if n == nChoiceDelta {
			return nToken
		}
	case "tool_calls", "function_call":
		if n == nChoiceDelta {
			return nCall
		}
	case "audio":
		if n == nChoiceDelta {
			return nAudio
		}
	case "function", "custom":
		if n == nCall {
			return nCall
		}
	case "name", "arguments", "input":
		if n == nCall {
			return nToken
		}
	case "data", "transcript":
		if n == nAudio {
			return nToken
		}
	}
	return nSkip
}

func geminiChild(n node, key []byte) node {
	switch string(key) {
	case "content":
		if n == nCandidates {
			return nContent
		}
	case "finishReason":
		if n == nCandidates {
			return nFinish
		}
	case "parts":
		if n == nContent {
			return nParts
		}
	case "text":
		if n == nParts {
			return nToken
		}
	case "functionCall", "inlineData", "executableCode", "codeExecutionResult":
		if n == nParts {
			return nThing
		}
	}
	return nSkip
}

func (s *scan) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\r' || s.b[s.i] == '\t') {
		s.i++
	}
}

// value reads one value; false ends the walk.
func (s *scan) value(n node, depth int) bool {
	s.space()
	if s.i >= len(s.b) || depth > maxDepth {
		return false
	}
	switch c := s.b[s.i]; {
	case c == '{' || c == '[':
		s.note(n)
		return s.group(n, depth, c == '{')
	case c == '"':
		str, ok := s.str()
		s.text(n, str)
		return ok
	default:
		return s.scalar(n)
	}
}

func (s *scan) group(n node, depth int, object bool) bool {
	s.i++
	for {
		s.space()
		if s.i >= len(s.b) {
			return false
		}
		switch s.b[s.i] {
		case '}', ']':
			s.i++
			return true
		case ',':
			s.i++
			continue
		}
		next := n
		if object {
			if s.b[s.i] != '"' {
				return false
			}
			key, ok := s.str()
			s.space()
			if !ok || s.i >= len(s.b) || s.b[s.i] != ':' {
				return false
			}
			s.i++
			var room [48]byte
			next = child(n, unescape(room[:0], key))
		}
		if !s.value(next, depth+1) {
			return false
		}
	}
}

// str reads a string and returns it still escaped.
func (s *scan) str() ([]byte, bool) {
	s.i++
	start := s.i
	for {
		j := bytes.IndexByte(s.b[s.i:], '"')
		if j < 0 {
			str := s.b[start:]
			s.i = len(s.b)
			return str, false
		}
		end := s.i + j
		k := end
		for k > start && s.b[k-1] == '\\' {
			k--
		}
		s.i = end + 1
		if (end-k)%2 == 0 {
			return s.b[start:end], true
		}
	}
}

// unescape serves keys, which are ASCII and short where they matter.
func unescape(room, key []byte) []byte {
	if bytes.IndexByte(key, '\\') < 0 {
		return key
	}
	for i := 0; i < len(key) && len(room) < cap(room); i++ {
		c := key[i]
		if c == '\\' && i+5 < len(key) && key[i+1] == 'u' {
			c = 0
			for _, h := range key[i+2 : i+6] {
				c = c<<4 | hex(h)
			}
			i += 5
		} else if c == '\\' && i+1 < len(key) {
			i++
			c = key[i]
		}
		room = append(room, c)
	}
	return room
}

func hex(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	if c >= 'A' {
		return c - 'A' + 10
	}
	return c - '0'
}

// note marks what is known by merely being there.
func (s *scan) note(n node) {
	switch n {
	case nError:
		s.err = true
	case nThing:
		s.token = true
	}
}

func (s *scan) text(n node, str []byte) {
	s.note(n)
	if len(str) == 0 {
		return
	}
	switch n {
	case nType:
		s.typ = str
	case nErrName:
		if s.nerrs < len(s.errs) {
			s.errs[s.nerrs] = str
			s.nerrs++
		}
	case nToken:
		s.token = true
	case nDelta:
		s.delta = true
	case nDeltaText:
		s.anthropic = true
	case nFinish:
		s.finish = true
	}
}

func (s *scan) scalar(n node) bool {
	start := s.i
	var v int64
	num := true
	for s.i < len(s.b) {
		c := s.b[s.i]
		if c == ',' || c == '}' || c == ']' || c <= ' ' {
			break
		}
		if c < '0' || c > '9' || s.i-start > 17 {
			num = false
		} else {
			v = v*10 + int64(c-'0')
		}
		s.i++
	}
	if s.i == start || s.i >= len(s.b) {
		return false
	}
	if string(s.b[start:s.i]) != "null" && string(s.b[start:s.i]) != "false" {
		s.note(n)
	}
	if num {
		switch n {
		case nIn:
			s.in = v
		case nOut:
			s.out = v
		case nThoughts:
			s.thoughts = v
		case nSeq:
			s.seq = v
		}
	}
	return true
}

// errorType picks the first name of the closed set.
func (s *scan) errorType() string {
	for _, e := range s.errs[:s.nerrs] {
		for _, k := range [...]string{"overloaded_error", "rate_limit_error", "timeout_error", "authentication_error", "permission_error",
			"not_found_error", "billing_error", "invalid_request_error", "request_too_large", "api_error", "server_error",
			"server_is_overloaded", "rate_limit_exceeded", "insufficient_quota", "context_length_exceeded", "websocket_connection_limit_reached",
			"INVALID_ARGUMENT", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "NOT_FOUND"} {
			if string(e) == k {
				return k
			}
		}
	}
	return "other"
}

// plain looks for the usage of an answer that is no stream. Of a long answer the
// last usage object in the kept end counts.
func (w *Watcher) plain() {
	s := scan{b: w.head, in: -1, out: -1, seq: -1}
	if len(w.head) < keep || len(w.tail.b) == 0 {
		s.value(nRoot, 0)
	} else {
		s.b = w.tail.b
		i := max(bytes.LastIndex(s.b, []byte(`"usage"`)), bytes.LastIndex(s.b, []byte(`"usageMetadata"`)))
		if i < 0 {
			return
		}
		s.i = i + bytes.IndexByte(s.b[i:], ':') + 1
		s.value(nUsage, 0)
	}
	w.rep.InputTokens = s.in
	if s.out >= 0 {
		w.rep.OutputTokens = s.out + s.thoughts
	}
}
