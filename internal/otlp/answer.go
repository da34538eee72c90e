// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"mime"
	"strconv"
	"strings"
)

var errAnswer = errors.New("otlp: the answer cannot be read")

// rejectedOf returns how much of a message was refused though the rest was taken
// (OTLP §Partial Success). An empty answer means that nothing was.
func rejectedOf(contentType string, answer []byte) (int64, error) {
	if len(answer) == 0 {
		return 0, nil
	}
	if media, _, err := mime.ParseMediaType(contentType); err == nil && media == "application/json" {
		return rejectedJSON(answer)
	}
	return rejectedProtobuf(answer)
}

// A count is an int64, which protobuf's JSON writes as text and may write as a number.
type count int64

// UnmarshalJSON implements [json.Unmarshaler].
func (c *count) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	if text == "null" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	*c = count(n)
	return err
}

func rejectedJSON(answer []byte) (int64, error) {
	var a struct {
		PartialSuccess struct {
			RejectedSpans, RejectedDataPoints count
		}
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return 0, errAnswer
	}
	return max(int64(a.PartialSuccess.RejectedSpans), int64(a.PartialSuccess.RejectedDataPoints), 0), nil
}

// rejectedProtobuf reads field 1 of field 1: both signals have it there.
func rejectedProtobuf(answer []byte) (rejected int64, err error) {
	err = fields(answer, func(n int, _ uint64, body []byte) error {
		if n != 1 || body == nil {
			return nil
		}
		return fields(body, func(n int, v uint64, body []byte) error {
			if n == 1 && body == nil {
				rejected = max(int64(v), 0)
			}
			return nil
		})
	})
	return rejected, err
}

// fields calls each for every field of a message; body is nil for numbers.
func fields(message []byte, each func(n int, v uint64, body []byte) error) error {
	for len(message) > 0 {
		tag, size := binary.Uvarint(message)
		if size <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errAnswer
		}
		message = message[size:]
		var v uint64
		var body []byte
		switch tag & 7 {
		case wireVarint:
			v, size = binary.Uvarint(message)
		case wireFixed64:
			size = 8
		case wireFixed32:
			size = 4
		case wireBytes:
			var length uint64
			if length, size = binary.Uvarint(message); size <= 0 || length > uint64(len(message)-size) {
				return errAnswer
			}
			body = message[size : size+int(length) : size+int(length)]
			size += int(length)
		default:
			return errAnswer
		}
		if size <= 0 || size > len(message) {
			return errAnswer
		}
		message = message[size:]
		if err := each(int(tag>>3), v, body); err != nil {
			return err
		}
	}
	return nil
}
