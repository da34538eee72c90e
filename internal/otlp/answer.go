// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/json"
	"errors"
	"mime"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
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
	err = fields(answer, func(n protowire.Number, kind protowire.Type, value []byte) error {
		if n != 1 || kind != protowire.BytesType {
			return nil
		}
		partial, _ := protowire.ConsumeBytes(value)
		return fields(partial, func(n protowire.Number, kind protowire.Type, value []byte) error {
			if n == 1 && kind == protowire.VarintType {
				v, _ := protowire.ConsumeVarint(value)
				rejected = max(int64(v), 0)
			}
			return nil
		})
	})
	return rejected, err
}

// fields calls each for every field of a message.
func fields(message []byte, each func(n protowire.Number, kind protowire.Type, value []byte) error) error {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return errAnswer
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return errAnswer
		}
		if err := each(n, kind, message[:size]); err != nil {
			return err
		}
		message = message[size:]
	}
	return nil
}
