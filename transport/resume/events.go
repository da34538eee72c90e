// SPDX-License-Identifier: Apache-2.0

package resume

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// A scanner finds the ends of events in bytes that arrive in pieces (WHATWG HTML
// §9.2.5: lines end with LF, CR or both, events with an empty line).
type scanner struct {
	seen int  // bytes of the present event that were looked at
	text bool // the present line has bytes
	cr   bool // the last byte was CR: a LF right after it belongs to it
}

// next returns the length of the event that b begins with, 0 if its end has not come.
// Until it has, b must be the same bytes and more.
func (s *scanner) next(b []byte) int {
	for s.seen < len(b) {
		c := b[s.seen]
		s.seen++
		switch {
		case c == '\n' && s.cr:
			s.cr = false
		case c == '\n', c == '\r':
			s.cr = c == '\r'
			if !s.text {
				if s.cr && s.seen < len(b) && b[s.seen] == '\n' {
					s.cr = false
					s.seen++
				}
				n := s.seen
				s.seen = 0
				return n
			}
			s.text = false
		default:
			s.cr, s.text = false, true
			s.seen += lineEnd(b[s.seen:])
		}
	}
	return 0
}

// lineEnd is the length of the line that b begins with, or that of b.
func lineEnd(b []byte) int {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i]
	}
	if i := bytes.IndexByte(b, '\r'); i >= 0 {
		return i
	}
	return len(b)
}

// created is what is read of a response.created event.
type created struct {
	Type     string `json:"type"`
	Sequence *int64 `json:"sequence_number"`
	Response struct {
		ID         string `json:"id"`
		Background bool   `json:"background"`
		Store      bool   `json:"store"`
	} `json:"response"`
}

// resumable reads the first event of a stream, and says whether the stream can be
// continued.
func resumable(data []byte) (id string, sequence int64, ok bool) {
	var e created
	if json.Unmarshal(data, &e) != nil || e.Type != "response.created" || e.Sequence == nil {
		return "", 0, false
	}
	r := &e.Response
	return r.ID, *e.Sequence, r.Background && r.Store && safeID(r.ID)
}

// An event is what is read of each.
type event struct {
	kind     string
	sequence int64
	numbered bool
}

// parse reads an event. What is none of the Responses API has no kind and no number.
func parse(raw []byte) event {
	data, _ := data(raw)
	if string(data) == "[DONE]" {
		return event{kind: "[DONE]"}
	}
	return members(data)
}

// members reads the type and the number of a JSON object, and no more of it than it
// must: they come first.
func members(b []byte) (e event) {
	p := parser{b: b}
	if !p.take('{') {
		return e
	}
	for kindSeen := false; !kindSeen || !e.numbered; {
		key, ok := p.str()
		if !ok || !p.take(':') {
			break
		}
		p.space()
		from := p.at
		if !p.skip() {
			break
		}
		value := b[from:p.at]
		switch string(key) {
		case "type":
			if kindSeen = true; len(value) > 2 && value[0] == '"' {
				e.kind = kinds[string(value[1:len(value)-1])]
			}
		case "sequence_number":
			if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				e.sequence, e.numbered = n, true
			}
		}
		if !p.take(',') {
			break
		}
	}
	return e
}

// kinds are the types that matter: nothing comes after these.
var kinds = map[string]string{
	"response.completed": "end", "response.failed": "end", "response.incomplete": "end", "response.cancelled": "end",
	"error": "error",
}

// A parser walks over JSON. What is not well-formed ends it, sooner or later.
type parser struct {
	b  []byte
	at int
}

func (p *parser) space() {
	for p.at < len(p.b) && (p.b[p.at] == ' ' || p.b[p.at] == '\t' || p.b[p.at] == '\n' || p.b[p.at] == '\r') {
		p.at++
	}
}

func (p *parser) take(c byte) bool {
	p.space()
	if p.at < len(p.b) && p.b[p.at] == c {
		p.at++
		return true
	}
	return false
}

// str takes a string and returns what is between its quotes, escapes and all.
func (p *parser) str() ([]byte, bool) {
	if !p.take('"') {
		return nil, false
	}
	for from := p.at; p.at < len(p.b); p.at++ {
		switch p.b[p.at] {
		case '\\':
			p.at++
		case '"':
			p.at++
			return p.b[from : p.at-1], true
		}
	}
	return nil, false
}

// skip takes a value.
func (p *parser) skip() bool {
	for depth := 0; ; {
		p.space()
		if p.at >= len(p.b) {
			return false
		}
		switch c := p.b[p.at]; c {
		case '"':
			if _, ok := p.str(); !ok {
				return false
			}
		case '{', '[':
			p.at++
			depth++
			continue
		case '}', ']':
			p.at++
			depth--
		case ',', ':':
			if depth == 0 {
				return false
			}
			p.at++
			continue
		default:
			for p.at < len(p.b) && !strings.ContainsRune(",:{}[]\" \t\r\n", rune(p.b[p.at])) {
				p.at++
			}
		}
		if depth <= 0 {
			return depth == 0
		}
	}
}

// data returns the data of an event: its one line of it, or several joined by LF.
func data(raw []byte) (data []byte, has bool) {
	raw = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))
	for len(raw) > 0 {
		n := lineEnd(raw)
		line := raw[:n]
		raw = raw[min(n+1, len(raw)):] // a LF after CR makes an empty line, which says nothing
		field, value, _ := bytes.Cut(line, []byte(":"))
		if string(field) != "data" {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if has {
			data = append(append(data[:len(data):len(data)], '\n'), value...)
		} else {
			data, has = value, true
		}
	}
	return data, has
}

// safeID says that id may stand in a path as it is.
func safeID(id string) bool {
	if id == "" || len(id) > 256 || id[0] == '.' {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return true
}
