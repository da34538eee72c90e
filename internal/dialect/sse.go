// SPDX-License-Identifier: Apache-2.0

package dialect

import "bytes"

// sse parses an event stream (WHATWG HTML §9.2.5 and §9.2.6).
type sse struct {
	line     []byte // of a line not yet ended, at most keep bytes
	data     []byte
	name     []byte
	hasData  bool
	cr       bool // the last byte was CR: a LF right after belongs to it
	started  bool // the first line, which may carry a BOM, is behind
	partial  bool // bytes of the current line have been seen
	boundary bool
}

func (s *sse) feed(p []byte, emit func(name, data []byte)) {
	for len(p) > 0 {
		if s.cr {
			s.cr = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		if j := bytes.IndexByte(part, '\r'); j >= 0 {
			i = j
		}
		if i < 0 {
			s.hold(p)
			s.partial, s.boundary = true, false
			return
		}
		s.cr = p[i] == '\r'
		line := p[:i]
		if s.partial {
			s.hold(line)
			line = s.line
		}
		s.take(line, emit)
		s.line, s.partial = s.line[:0], false
		p = p[i+1:]
	}
}

func (s *sse) hold(p []byte) {
	s.line = append(s.line, p[:min(len(p), keep-len(s.line))]...)
}

func (s *sse) take(line []byte, emit func(name, data []byte)) {
	if !s.started {
		s.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 {
		if s.hasData && len(s.data) > 0 {
			emit(s.name, s.data)
		}
		s.data, s.name, s.hasData = s.data[:0], s.name[:0], false
		s.boundary = true
		return
	}
	s.boundary = false
	field, value, _ := bytes.Cut(line, []byte(":"))
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(field) {
	case "data":
		if s.hasData && len(s.data) < keep {
			s.data = append(s.data, '\n')
		}
		s.hasData = true
		s.data = append(s.data, value[:min(len(value), keep-len(s.data))]...)
	case "event":
		s.name = append(s.name[:0], value[:min(len(value), 128)]...)
	}
}

// ring keeps the last bytes of a plain answer.
type ring struct {
	b []byte
}

// add keeps at most twice keep, so that bytes move rarely.
func (r *ring) add(p []byte) {
	if len(p) > keep {
		p = p[len(p)-keep:]
	}
	if len(r.b)+len(p) > 2*keep {
		n := copy(r.b, r.b[len(r.b)-keep:])
		r.b = r.b[:n]
	}
	r.b = append(r.b, p...)
}
