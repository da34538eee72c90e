// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"errors"
)

// maxEvent bounds one event of a stream. The largest known limit of a client
// is 32 MiB a line (openai-go); audio deltas stay far below a mebibyte.
const maxEvent = 8 << 20

var errEventTooLong = errors.New("an event is longer than 8 MiB")

// A sseReader splits an event stream (WHATWG HTML §9.2) that arrives in pieces.
// The zero value is ready.
type sseReader struct {
	line    []byte // the unfinished line
	name    []byte
	data    []byte
	hasData bool
	afterCR bool // a LF that comes next belongs to the CR before it
	started bool // the byte order mark, if any, is behind
}

// feed takes the next bytes and calls emit with each event that they complete.
// The slices are valid during the call only.
func (s *sseReader) feed(p []byte, emit func(name, data []byte) error) error {
	for len(p) > 0 {
		if s.afterCR {
			s.afterCR = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			s.line = append(s.line, p...)
			return s.bounded()
		}
		s.line = append(s.line, p[:end]...)
		s.afterCR = p[end] == '\r'
		p = p[end+1:]
		err := s.bounded()
		if err == nil {
			err = s.endLine(emit)
		}
		s.line = s.line[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sseReader) bounded() error {
	if len(s.line)+len(s.data) > maxEvent {
		return errEventTooLong
	}
	return nil
}

func (s *sseReader) endLine(emit func(name, data []byte) error) error {
	line := s.line
	if !s.started {
		s.started = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if len(line) == 0 {
		return s.dispatch(emit)
	}
	field, value, _ := bytes.Cut(line, []byte(":")) // a comment has an empty field name
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "event":
		s.name = append(s.name[:0], value...)
	case "data":
		if s.hasData {
			s.data = append(s.data, '\n')
		}
		s.data, s.hasData = append(s.data, value...), true
	}
	return nil
}

func (s *sseReader) dispatch(emit func(name, data []byte) error) error {
	name, data, any := s.name, s.data, s.hasData
	s.name, s.data, s.hasData = s.name[:0], s.data[:0], false
	if !any { // without data nothing is dispatched
		return nil
	}
	return emit(name, data)
}
