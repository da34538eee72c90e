// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/warmwire/warmwire/transport/fault"
	"golang.org/x/net/http2"
)

// What a peer may do wrong to one stream: the stream fails, the connection lives.
func TestStreamErrors(t *testing.T) {
	tests := []struct {
		name  string
		act   func(s *script, id uint32)
		kind  string
		sent  bool
		reset http2.ErrCode // that the peer must get; NO_ERROR = none
		body  bool          // the fault comes after the head, in the body
	}{
		{"refused", func(s *script, id uint32) { s.do(s.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream)) }, kindReset, false, 0, false},
		{"reset", func(s *script, id uint32) { s.do(s.fr.WriteRSTStream(id, http2.ErrCodeInternal)) }, kindReset, true, 0, false},
		{"reset without error", func(s *script, id uint32) { s.do(s.fr.WriteRSTStream(id, 0)) }, kindReset, true, 0, false},
		{"http/1.1 required", func(s *script, id uint32) { s.do(s.fr.WriteRSTStream(id, http2.ErrCodeHTTP11Required)) }, kindProtocol, true, 0, false},
		{"refused after the head proves nothing", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200")
			s.do(s.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream))
		}, kindReset, true, 0, true},
		{"no status", answer(":path: /"), kindBad, true, http2.ErrCodeProtocol, false},
		{"no pseudo field", answer("x: 1"), kindBad, true, http2.ErrCodeProtocol, false},
		{"two statuses", answer(":status: 200", ":status: 200"), kindBad, true, http2.ErrCodeProtocol, false},
		{"a request's pseudo field", answer(":status: 200", ":path: /"), kindBad, true, http2.ErrCodeProtocol, false},
		{"status after a field", answer("x: 1", ":status: 200"), kindBad, true, http2.ErrCodeProtocol, false},
		{"pseudo field after a field", answer(":status: 200", "x: 1", ":x: 1"), kindBad, true, http2.ErrCodeProtocol, false},
		{"status of two digits", answer(":status: 20"), kindBad, true, http2.ErrCodeProtocol, false},
		{"status with a sign", answer(":status: +20"), kindBad, true, http2.ErrCodeProtocol, false},
		{"status 101", answer(":status: 101"), kindBad, true, http2.ErrCodeProtocol, false},
		{"upper case", answer(":status: 200", "X-Up: 1"), kindBad, true, http2.ErrCodeProtocol, false},
		{"name with a space", answer(":status: 200", "a b: 1"), kindBad, true, http2.ErrCodeProtocol, false},
		{"connection field", answer(":status: 200", "connection: close"), kindBad, true, http2.ErrCodeProtocol, false},
		{"transfer coding", answer(":status: 200", "transfer-encoding: chunked"), kindBad, true, http2.ErrCodeProtocol, false},
		{"line break in a value", answer(":status: 200", "x: a\r\nb"), kindBad, true, http2.ErrCodeProtocol, false},
		{"two lengths", answer(":status: 200", "content-length: 1", "content-length: 2"), kindBad, true, http2.ErrCodeProtocol, false},
		{"length with a sign", answer(":status: 200", "content-length: +1"), kindBad, true, http2.ErrCodeProtocol, false},
		{"1xx that ends", func(s *script, id uint32) { s.fields(id, true, ":status: 103") }, kindBad, true, http2.ErrCodeProtocol, false},
		{"too many 1xx", func(s *script, id uint32) {
			for range maxInterim + 1 {
				s.fields(id, false, ":status: 103")
			}
		}, kindBad, true, http2.ErrCodeEnhanceYourCalm, false},
		{"body before head", func(s *script, id uint32) { s.data(id, false, "x") }, kindBad, true, http2.ErrCodeProtocol, false},
		{"ends before its length", func(s *script, id uint32) { s.fields(id, true, ":status: 200", "content-length: 3") },
			kindBad, true, http2.ErrCodeProtocol, false},
		{"shorter than its length", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200", "content-length: 3")
			s.data(id, true, "ab")
		}, kindBad, true, 0, true},
		{"trailers before its length", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200", "content-length: 3")
			s.fields(id, true, "x: 1")
		}, kindBad, true, 0, true},
		{"longer than its length", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200", "content-length: 3")
			s.data(id, true, "abcd")
		}, kindBad, true, http2.ErrCodeProtocol, true},
		{"second head", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200")
			s.fields(id, false, ":status: 200")
		}, kindBad, true, http2.ErrCodeProtocol, true},
		{"trailers with a status", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200")
			s.fields(id, true, ":status: 200")
		}, kindBad, true, http2.ErrCodeProtocol, true},
		{"beyond the stream's window", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200")
			for range 17 {
				s.data(id, false, strings.Repeat("x", 16<<10))
			}
		}, kindProtocol, true, http2.ErrCodeFlowControl, true},
		{"window of nothing", func(s *script, id uint32) { s.do(s.fr.WriteWindowUpdate(id, 0)) }, kindProtocol, true, http2.ErrCodeProtocol, false},
		{"window too large", func(s *script, id uint32) { s.do(s.fr.WriteWindowUpdate(id, maxWindow)) },
			kindProtocol, true, http2.ErrCodeFlowControl, false},
		{"head too large", func(s *script, id uint32) {
			big := s.block(":status: 200", "a: "+strings.Repeat("~", 600<<10), "b: "+strings.Repeat("0", 600<<10))
			s.blocks(id, big)
		}, kindTooLarge, true, http2.ErrCodeCancel, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Config{}, 0, common(), func(s *script) {
				// An upload keeps the sending side open, so that the reset is seen.
				pr, pw := io.Pipe()
				defer pw.Close()
				call := s.send(s.request(s.t.Context(), "POST", pr))
				id := want[*http2.MetaHeadersFrame](s).StreamID
				tt.act(s, id)
				synctest.Wait() // nobody reads the body before all has arrived
				resp, err := call.wait()
				if tt.body {
					if err != nil {
						t.Fatalf("RoundTrip = %v, want the fault in the body", err)
					}
					_, err = io.Copy(io.Discard, resp.Body)
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Errorf("a cut body ends with %v", err)
					}
					_ = resp.Body.Close()
				}
				f, ok := errors.AsType[*fault.Error](err)
				if !ok || f.Kind != tt.kind || f.Sent != tt.sent {
					t.Fatalf("err = %#v (%v), want %s, sent %v", err, err, tt.kind, tt.sent)
				}
				if tt.reset != 0 {
					if r := want[*http2.RSTStreamFrame](s); r.ErrCode != tt.reset {
						t.Errorf("the peer gets %v, want %v", r.ErrCode, tt.reset)
					}
				}
				s.stillWorks()
			})
		})
	}
}

// stillWorks sends one more request over the connection.
func (s *script) stillWorks() {
	s.t.Helper()
	call, id := s.open()
	s.fields(id, true, ":status: 204")
	if resp, err := call.wait(); err != nil || resp.StatusCode != 204 {
		s.t.Errorf("the next request fails: %v", err)
	}
	if n := s.c.InFlight(); n != 0 || s.c.Err() != nil {
		s.t.Errorf("%d in flight, err %v", n, s.c.Err())
	}
}

func answer(lines ...string) func(*script, uint32) {
	return func(s *script, id uint32) { s.fields(id, false, lines...) }
}

// blocks writes a field block as HEADERS and CONTINUATIONs.
func (s *script) blocks(id uint32, block []byte) {
	n := min(len(block), 16<<10)
	s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block)}))
	for block = block[n:]; len(block) > 0; block = block[n:] {
		n = min(len(block), 16<<10)
		s.do(s.fr.WriteContinuation(id, n == len(block), block[:n]))
	}
}

// What a peer may do wrong to the connection: all fails, and it is told why.
func TestConnectionErrors(t *testing.T) {
	raw := func(typ http2.FrameType, flags http2.Flags, id uint32, payload ...byte) func(*script, uint32) {
		return func(s *script, _ uint32) { s.do(s.fr.WriteRawFrame(typ, flags, id, payload)) }
	}
	setting := func(id http2.SettingID, v uint32) func(*script, uint32) {
		return func(s *script, _ uint32) { s.do(s.fr.WriteSettings(http2.Setting{ID: id, Val: v})) }
	}
	many := func(n int, act func(*script, uint32)) func(*script, uint32) {
		return func(s *script, id uint32) {
			for range n {
				act(s, id)
			}
		}
	}
	tests := []struct {
		name string
		act  func(s *script, id uint32)
		code http2.ErrCode
	}{
		{"DATA on stream 0", raw(http2.FrameData, 0, 0, 1), http2.ErrCodeProtocol},
		{"DATA on an idle stream", raw(http2.FrameData, 0, 99, 1), http2.ErrCodeProtocol},
		{"DATA on a stream of its own", raw(http2.FrameData, 0, 2, 1), http2.ErrCodeProtocol},
		{"more padding than DATA", func(s *script, id uint32) { raw(http2.FrameData, http2.FlagDataPadded, id, 9, 1)(s, 0) }, http2.ErrCodeProtocol},
		{"padded DATA of nothing", func(s *script, id uint32) { raw(http2.FrameData, http2.FlagDataPadded, id)(s, 0) }, http2.ErrCodeFrameSize},
		{"HEADERS on an idle stream", func(s *script, _ uint32) { s.fields(99, false, ":status: 200") }, http2.ErrCodeProtocol},
		{"HEADERS too short", func(s *script, id uint32) {
			raw(http2.FrameHeaders, http2.FlagHeadersPriority|http2.FlagHeadersEndHeaders, id, 1)(s, 0)
		}, http2.ErrCodeFrameSize},
		{"more padding than HEADERS", func(s *script, id uint32) {
			raw(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, id, 9, 1)(s, 0)
		}, http2.ErrCodeProtocol},
		{"HPACK that cannot be decoded", func(s *script, id uint32) {
			raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, id, 0xff, 0xff, 0xff, 0xff, 0xff)(s, 0)
		}, http2.ErrCodeCompression},
		{"HPACK that is cut", func(s *script, id uint32) {
			raw(http2.FrameHeaders, http2.FlagHeadersEndHeaders, id, 0x40, 0x05, 'a')(s, 0)
		}, http2.ErrCodeCompression},
		{"CONTINUATION alone", func(s *script, id uint32) { s.do(s.fr.WriteContinuation(id, true, nil)) }, http2.ErrCodeProtocol},
		{"a block interrupted", func(s *script, id uint32) {
			s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id}))
			s.do(s.fr.WritePing(false, [8]byte{}))
		}, http2.ErrCodeProtocol},
		{"a frame too large", raw(http2.FrameData, 0, 1, make([]byte, 16<<10+1)...), http2.ErrCodeFrameSize},
		{"push", raw(http2.FramePushPromise, http2.FlagPushPromiseEndHeaders, 1, 0, 0, 0, 2), http2.ErrCodeProtocol},
		{"PRIORITY_UPDATE", func(s *script, id uint32) { s.do(s.fr.WritePriorityUpdate(id, "u=1")) }, http2.ErrCodeProtocol},
		{"PING too short", raw(http2.FramePing, 0, 0, 1), http2.ErrCodeFrameSize},
		{"PING on a stream", raw(http2.FramePing, 0, 1, make([]byte, 8)...), http2.ErrCodeProtocol},
		{"SETTINGS of half a setting", raw(http2.FrameSettings, 0, 0, 1), http2.ErrCodeFrameSize},
		{"an ACK with a setting", raw(http2.FrameSettings, http2.FlagSettingsAck, 0, make([]byte, 6)...), http2.ErrCodeFrameSize},
		{"push enabled", setting(http2.SettingEnablePush, 1), http2.ErrCodeProtocol},
		{"initial window too large", setting(http2.SettingInitialWindowSize, 1<<31), http2.ErrCodeFlowControl},
		{"frame size too small", setting(http2.SettingMaxFrameSize, 100), http2.ErrCodeProtocol},
		{"connect protocol 2", setting(http2.SettingEnableConnectProtocol, 2), http2.ErrCodeProtocol},
		{"scheme of priorities changed", setting(http2.SettingNoRFC7540Priorities, 1), http2.ErrCodeProtocol},
		{"RST_STREAM of an idle stream", func(s *script, _ uint32) { s.do(s.fr.WriteRSTStream(99, 0)) }, http2.ErrCodeProtocol},
		{"RST_STREAM too short", raw(http2.FrameRSTStream, 0, 1, 1), http2.ErrCodeFrameSize},
		{"GOAWAY on a stream", raw(http2.FrameGoAway, 0, 1, make([]byte, 8)...), http2.ErrCodeProtocol},
		{"window of nothing", func(s *script, _ uint32) { s.do(s.fr.WriteWindowUpdate(0, 0)) }, http2.ErrCodeProtocol},
		{"window too large", func(s *script, _ uint32) { s.do(s.fr.WriteWindowUpdate(0, maxWindow)) }, http2.ErrCodeFlowControl},
		{"windows too large by SETTINGS", func(s *script, id uint32) {
			s.do(s.fr.WriteWindowUpdate(id, maxWindow-initialWindow))
			setting(http2.SettingInitialWindowSize, initialWindow+1)(s, 0)
		}, http2.ErrCodeFlowControl},
		{"a block without end", func(s *script, id uint32) {
			s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id}))
			many(maxBlockFrames, func(s *script, _ uint32) { s.do(s.fr.WriteContinuation(id, false, []byte{0x88})) })(s, 0)
		}, http2.ErrCodeEnhanceYourCalm},
		{"empty CONTINUATIONs", func(s *script, id uint32) {
			s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id}))
			many(200, func(s *script, _ uint32) { s.do(s.fr.WriteContinuation(id, false, nil)) })(s, 0)
		}, http2.ErrCodeEnhanceYourCalm},
		{"empty DATA", func(s *script, id uint32) {
			s.fields(id, false, ":status: 200")
			many(abuseBurst+10, func(s *script, id uint32) { s.data(id, false, "") })(s, id)
		}, http2.ErrCodeEnhanceYourCalm},
		{"PINGs", many(abuseBurst+10, raw(http2.FramePing, 0, 0, make([]byte, 8)...)), http2.ErrCodeEnhanceYourCalm},
		{"PING answers", many(abuseBurst+10, raw(http2.FramePing, http2.FlagPingAck, 0, make([]byte, 8)...)), http2.ErrCodeEnhanceYourCalm},
		{"SETTINGS", many(abuseBurst+10, setting(http2.SettingMaxConcurrentStreams, 7)), http2.ErrCodeEnhanceYourCalm},
		{"window updates", many(abuseBurst+10, func(s *script, _ uint32) { s.do(s.fr.WriteWindowUpdate(0, 1)) }), http2.ErrCodeEnhanceYourCalm},
		{"resets", many(abuseBurst+10, func(s *script, id uint32) { s.do(s.fr.WriteRSTStream(id, 0)) }), http2.ErrCodeEnhanceYourCalm},
		{"priorities", many(abuseBurst+10, func(s *script, id uint32) { s.do(s.fr.WritePriority(id, http2.PriorityParam{})) }), http2.ErrCodeEnhanceYourCalm},
		{"unknown frames", many(abuseBurst+10, raw(0xbe, 0, 0)), http2.ErrCodeEnhanceYourCalm},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Config{}, 0, common(), func(s *script) {
				call, id := s.open()
				acted := make(chan struct{})
				go func() { // the peer's writes may have to wait for us to read
					defer close(acted)
					tt.act(s, id)
				}()
				goAway := want[*http2.GoAwayFrame](s)
				if goAway.ErrCode != tt.code {
					t.Errorf("GOAWAY with %v, want %v", goAway.ErrCode, tt.code)
				}
				_ = s.nc.Close()
				<-acted
				resp, err := call.wait()
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				f, ok := errors.AsType[*fault.Error](err)
				if !ok || !f.Sent || (f.Kind != kindProtocol && f.Kind != kindTooLarge && f.Kind != kindReset) {
					t.Errorf("err = %#v (%v)", err, err)
				}
				if s.c.Available() != 0 || s.c.Err() == nil || s.c.InFlight() != 0 {
					t.Errorf("available %d, err %v, in flight %d", s.c.Available(), s.c.Err(), s.c.InFlight())
				}
			})
		})
	}
}

// A peer that talks anything but HTTP/2 is known at once.
func TestPeerThatIsNotHTTP2(t *testing.T) {
	tests := []struct{ name, says string }{
		{"HTTP/1.1", "HTTP/1.1 400 Bad Request\r\n\r\n"},
		{"noise", "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x01"},
		{"an ACK first", "\x00\x00\x00\x04\x01\x00\x00\x00\x00"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Config{}, 0, nil, func(s *script) {
				call := s.get(s.t.Context())
				_, err := s.nc.Write([]byte(tt.says))
				s.do(err)
				_, err = call.wait()
				if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != kindProtocol {
					t.Errorf("err = %#v", err)
				}
				if err := s.c.WaitReady(s.t.Context()); err == nil {
					t.Error("it is called ready")
				}
			})
		})
	}
}
