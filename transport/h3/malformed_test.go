// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
)

// Answers that are malformed end their stream and nothing else (RFC 9114 §4.1.2).
func TestMalformedAnswer(t *testing.T) {
	big := strings.Repeat("x", maxHeadBytes+1)
	tests := []struct {
		name   string
		frames [][]byte
		end    bool
		kind   string
		code   errCode
		whole  bool // the head is fine: the body fails
		got    string
	}{
		{name: "no status", frames: [][]byte{fields("x: y")}, kind: kindBad, code: codeMessage},
		{name: "an empty head", frames: [][]byte{frame(frameHeaders, []byte{0, 0})}, kind: kindBad, code: codeMessage},
		{name: "a status of two digits", frames: [][]byte{fields(":status: 20")}, kind: kindBad, code: codeMessage},
		{name: "a status below 100", frames: [][]byte{fields(":status: 099")}, kind: kindBad, code: codeMessage},
		{name: "status 101", frames: [][]byte{fields(":status: 101")}, kind: kindBad, code: codeMessage},
		{name: "two statuses", frames: [][]byte{fields(":status: 200", ":status: 200")}, kind: kindBad, code: codeMessage},
		{name: "a late pseudo-field", frames: [][]byte{fields(":status: 200", "x: y", ":path: /")}, kind: kindBad, code: codeMessage},
		{name: "upper case", frames: [][]byte{fields(":status: 200", "X: y")}, kind: kindBad, code: codeMessage},
		{name: "a field of HTTP/1", frames: [][]byte{fields(":status: 200", "transfer-encoding: chunked")}, kind: kindBad, code: codeMessage},
		{name: "a forbidden octet", frames: [][]byte{fields(":status: 200", "x: a\nb")}, kind: kindBad, code: codeMessage},
		{name: "two lengths", frames: [][]byte{fields(":status: 200", "content-length: 1", "content-length: 2")}, kind: kindBad, code: codeMessage},
		{name: "a negative length", frames: [][]byte{fields(":status: 200", "content-length: -1")}, kind: kindBad, code: codeMessage},
		{name: "a head too large", frames: [][]byte{appendFrame(nil, frameHeaders, maxHeadBytes+1)}, kind: kindTooLarge, code: codeExcessiveLoad},
		{name: "a head too large when decoded", frames: [][]byte{fields(":status: 200", "x: "+big[:maxHeadBytes-20])}, kind: kindTooLarge, code: codeExcessiveLoad},
		{name: "too many 1xx", frames: [][]byte{bytes.Repeat(fields(":status: 103"), maxInterim+1)}, kind: kindBad, code: codeMessage},
		{name: "frames that bring nothing", frames: [][]byte{bytes.Repeat([]byte{0x21, 0}, maxUseless+1)}, kind: kindBad, code: codeExcessiveLoad},
		{name: "the end without a head", end: true, kind: kindBad, code: codeMessage},
		{name: "the end after a 1xx", frames: [][]byte{fields(":status: 103")}, end: true, kind: kindBad, code: codeMessage},
		{name: "the end before the declared length, with the head", frames: [][]byte{fields(":status: 200", "content-length: 3")}, end: true, kind: kindBad, code: codeMessage},

		{name: "shorter than declared", frames: [][]byte{fields(":status: 200", "content-length: 5"), data("half")}, end: true,
			whole: true, got: "half", kind: kindBad, code: codeMessage},
		{name: "longer than declared", frames: [][]byte{fields(":status: 200", "content-length: 3"), data("four")},
			whole: true, kind: kindBad, code: codeMessage},
		{name: "a body where none may be", frames: [][]byte{fields(":status: 304"), data("x")}, whole: true, kind: kindBad, code: codeMessage},
		{name: "empty DATA without end", frames: [][]byte{fields(":status: 200"), data("a"), bytes.Repeat(data(""), maxUseless+1)},
			whole: true, got: "a", kind: kindBad, code: codeExcessiveLoad},
		{name: "a pseudo-field in the trailers", frames: [][]byte{fields(":status: 200"), data("a"), fields(":status: 200")},
			whole: true, got: "a", kind: kindBad, code: codeMessage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			play(t, Config{}, nil, common(), func(s *script) {
				c, a := s.open()
				a.say(tt.end, tt.frames...)
				resp, err := c.wait(t)
				if tt.whole && err != nil {
					t.Fatal(err)
				}
				if err == nil { // an end right after the head may be seen with it, or later
					var b []byte
					b, err = io.ReadAll(resp.Body)
					if string(b) != tt.got {
						t.Errorf("body %q, want %q", b, tt.got)
					}
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("the cut does not look like one: %v", err)
					}
				}
				if f := faultOf(t, err); f.Kind != tt.kind || !f.Sent || f.In != "wait" {
					t.Errorf("%+v", f)
				}
				if !tt.end {
					// Our request had ended, so the peer hears of it by STOP_SENDING alone.
					eventually(t, "the peer is told", func() bool { _, err := a.Write([]byte("x")); return err != nil })
					_, err := a.Write([]byte("x"))
					if e, ok := errors.AsType[*quic.StreamError](err); !ok || errCode(e.ErrorCode) != tt.code {
						t.Errorf("the peer hears %v, want %#x", err, uint64(tt.code))
					}
				}
				s.stillWorks()
			})
		})
	}
}

// What breaks the rules of frames and streams ends the connection, with its code
// (RFC 9114 §8). In-flight requests fail and a body that has begun is cut.
func TestBrokenPeer(t *testing.T) {
	ask := func(end bool, frames ...[]byte) func(s *script) {
		return func(s *script) {
			_, a := s.open()
			a.say(end, frames...)
		}
	}
	control := func(kind uint64, p ...byte) func(s *script) {
		return func(s *script) { s.tell(kind, p) }
	}
	uni := func(b ...byte) func(s *script) {
		return func(s *script) {
			str, err := s.qc.OpenUniStream()
			if err != nil {
				s.t.Fatal(err)
			}
			_, _ = str.Write(b)
		}
	}
	tests := []struct {
		name string
		do   func(s *script)
		code errCode
	}{
		{"DATA before a head", ask(false, data("x")), codeFrameUnexpected},
		{"SETTINGS on a request", ask(false, frame(frameSettings, nil)), codeFrameUnexpected},
		{"GOAWAY on a request", ask(false, frame(frameGoAway, []byte{0})), codeFrameUnexpected},
		{"a push", ask(false, frame(framePushPromise, []byte{0})), codeID},
		{"a frame of HTTP/2 on a request", ask(false, frame(0x06, nil)), codeFrameUnexpected},
		{"fields that are no QPACK", ask(false, frame(frameHeaders, []byte{0, 0, 0xff})), codeQPACKDecompress},
		{"fields of a table that is not", ask(false, frame(frameHeaders, []byte{1, 0, 0x80})), codeQPACKDecompress},
		{"the end inside a head", ask(true, []byte{frameHeaders, 10, 0}), codeFrame},
		{"the end inside a frame's header", ask(true, []byte{frameHeaders}), codeFrame},
		{"a second SETTINGS", control(frameSettings), codeFrameUnexpected},
		{"HEADERS on the control stream", control(frameHeaders), codeFrameUnexpected},
		{"MAX_PUSH_ID", control(frameMaxPushID, 0), codeFrameUnexpected},
		{"CANCEL_PUSH", control(frameCancelPush, 0), codeID},
		{"a frame of HTTP/2 on the control stream", control(0x02), codeFrameUnexpected},
		{"GOAWAY for a push", control(frameGoAway, 1), codeID},
		{"GOAWAY of no length", control(frameGoAway), codeFrame},
		{"GOAWAY with more than an id", control(frameGoAway, 0, 0), codeFrame},
		{"a frame too large", func(s *script) { _, _ = s.control.Write(appendFrame(nil, frameGoAway, maxSettings+1)) }, codeExcessiveLoad},
		{"a second control stream", uni(streamControl), codeStreamCreation},
		{"a push stream", uni(streamPush, 0), codeID},
		{"an instruction for no table", uni(streamEncoder, 0x3f, 0x01), codeQPACKEncoder},
		{"the control stream's end", func(s *script) { _ = s.control.Close() }, codeClosedCritical},
		{"the control stream's reset", func(s *script) { s.control.CancelWrite(0) }, codeClosedCritical},
		{"GOAWAY that grows", func(s *script) {
			_, a := s.open() // so that the first GOAWAY does not end it
			s.tell(frameGoAway, []byte{4})
			s.tell(frameGoAway, []byte{8})
			_ = a
		}, codeID},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			play(t, Config{}, nil, common(), func(s *script) {
				c, a := s.open()
				a.say(false, fields(":status: 200"), data("half"))
				resp, err := c.wait(t)
				if err != nil {
					t.Fatal(err)
				}
				half := make([]byte, 4)
				if _, err := io.ReadFull(resp.Body, half); err != nil {
					t.Fatal(err)
				}
				tt.do(s)
				if got := s.closeCode(); got != tt.code {
					t.Errorf("code %#x, want %#x", uint64(got), uint64(tt.code))
				}
				_, err = io.ReadAll(resp.Body)
				if f := faultOf(t, err); f.Kind != kindProtocol || !errors.Is(err, io.ErrUnexpectedEOF) || !f.Sent {
					t.Errorf("%+v", f)
				}
				if s.c.Err() == nil || s.c.Available() != 0 {
					t.Error("the connection takes requests")
				}
			})
		})
	}
}

// A stream that ends inside a DATA frame, or after part of what follows, is cut:
// that is an error however clean the end of QUIC's stream is (RFC 9114 §7.1).
func TestTruncatedBody(t *testing.T) {
	head := fields(":status: 200")
	for name, tail := range map[string][]byte{
		"inside DATA":           append(appendFrame(nil, frameData, 10), "half"...),
		"inside DATA's header":  append(data("half"), frameData),
		"inside the trailers":   append(data("half"), frameHeaders, 20, 0),
		"inside something else": append(data("half"), 0x21, 20, 0),
	} {
		t.Run(name, func(t *testing.T) {
			play(t, Config{}, nil, common(), func(s *script) {
				c, a := s.open()
				a.say(true, head, tail)
				resp, err := c.wait(t)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				if string(b) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%q, %v", b, err)
				}
			})
		})
	}
}

// Nothing comes after the trailers (RFC 9114 §4.1).
func TestAfterTrailers(t *testing.T) {
	for name, tail := range map[string][]byte{"DATA": data("more"), "HEADERS": fields("x: z")} {
		t.Run(name, func(t *testing.T) {
			play(t, Config{}, nil, common(), func(s *script) {
				c, a := s.open()
				a.say(true, fields(":status: 200"), data("body"), fields("x: y"), tail)
				resp, err := c.wait(t)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(resp.Body)
				if string(b) != "body" || !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%q, %v", b, err)
				}
				if got := s.closeCode(); got != codeFrameUnexpected {
					t.Errorf("code %#x", uint64(got))
				}
			})
		})
	}
}

// A frame may come in pieces of any size.
func TestFramesInPieces(t *testing.T) {
	play(t, Config{}, nil, common(), func(s *script) {
		c, a := s.open()
		all := bytes.Join([][]byte{
			frame(0x21, []byte("ignored")), fields(":status: 103", "link: a"), fields(":status: 200", "trailer: x-sum"),
			data("one"), frame(0x40, []byte("ignored too")), data(""), data("two"), fields("x-sum: 42"), frame(0x21, nil),
		}, nil)
		go func() {
			for i := range all {
				_, _ = a.Write(all[i : i+1])
			}
			_ = a.Close()
		}()
		resp, err := c.wait(t)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, resp); got != "onetwo" || resp.Trailer.Get("X-Sum") != "42" {
			t.Errorf("%q, %v", got, resp.Trailer)
		}
		s.stillWorks()
	})
}
