// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// textOf takes the text out of what the upstream sent, independently of the
// clients that are tested: it looks at the bytes on the upstream's side.
func textOf(kind string, sent []byte) ([]byte, error) {
	switch kind {
	case "raw":
		return sent, nil
	case "ws":
		messages, err := frames(sent)
		if err != nil {
			return nil, err
		}
		return join(messages)
	}
	var events [][]byte
	for line := range bytes.Lines(sent) {
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok && !bytes.Equal(data, []byte("[DONE]")) {
			events = append(events, data)
		}
	}
	return join(events)
}

// An event has a piece of text in the place where its API puts it.
type event struct {
	Type    string
	Choices []struct {
		Delta struct{ Content string }
	}
	Delta      json.RawMessage // a string, or an object with the text in it
	Candidates []struct {
		Content struct {
			Parts []struct{ Text string }
		}
	}
	ServerContent struct {
		ModelTurn struct {
			Parts []struct{ Text string }
		}
	}
}

func join(events [][]byte) ([]byte, error) {
	var text []byte
	for _, data := range events {
		var e event
		if err := json.Unmarshal(data, &e); err != nil {
			return nil, fmt.Errorf("event %q: %w", data, err)
		}
		for _, c := range e.Choices {
			text = append(text, c.Delta.Content...)
		}
		for _, c := range e.Candidates {
			for _, p := range c.Content.Parts {
				text = append(text, p.Text...)
			}
		}
		for _, p := range e.ServerContent.ModelTurn.Parts {
			text = append(text, p.Text...)
		}
		piece, err := delta(e)
		if err != nil {
			return nil, err
		}
		text = append(text, piece...)
	}
	if len(text) == 0 {
		return nil, errors.New("the upstream sent no text")
	}
	return text, nil
}

// delta is the text of an OpenAI Responses or realtime event, or of an
// Anthropic one.
func delta(e event) (text string, err error) {
	switch e.Type {
	case "response.output_text.delta":
		err = json.Unmarshal(e.Delta, &text)
	case "content_block_delta":
		var d struct{ Text string }
		err = json.Unmarshal(e.Delta, &d)
		text = d.Text
	}
	return text, err
}

// frames returns the messages in what a WebSocket server sent after its
// handshake; a server's frames are not masked (RFC 6455 section 5.1).
func frames(sent []byte) ([][]byte, error) {
	_, rest, ok := bytes.Cut(sent, []byte("\r\n\r\n"))
	if !ok {
		return nil, errors.New("no handshake")
	}
	var messages [][]byte
	for len(rest) >= 2 {
		opcode, size := rest[0]&0x0f, int(rest[1]&0x7f)
		head := 2
		switch {
		case size == 126 && len(rest) >= 4:
			size, head = int(binary.BigEndian.Uint16(rest[2:])), 4
		case size == 127 && len(rest) >= 10:
			size, head = int(binary.BigEndian.Uint64(rest[2:])), 10
		}
		if len(rest) < head+size {
			return nil, fmt.Errorf("frame of %d bytes is cut after %d", size, len(rest)-head)
		}
		if opcode == 1 || opcode == 2 { // Gemini's are binary
			messages = append(messages, rest[head:head+size])
		}
		rest = rest[head+size:]
	}
	return messages, nil
}
