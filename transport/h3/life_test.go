// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"github.com/warmwire/warmwire/transport/semantics"
)

// GOAWAY hands back what is above its id as unprocessed, lets the rest end, and
// then closes (RFC 9114 §5.2).
func TestGoAway(t *testing.T) {
	changes := make(chan struct{}, 100)
	cfg := Config{OnChange: func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}}
	play(t, cfg, nil, common(), func(s *script) {
		first, a := s.open()
		second, _ := s.open()
		s.tell(frameGoAway, []byte{4})
		_, err := second.wait(t)
		if f := faultOf(t, err); f.Sent || f.In != "send" || f.Kind != kindClosed {
			t.Errorf("above the id: %+v", f)
		}
		if _, err := s.c.RoundTrip(request(t, "GET", "/", nil)); faultOf(t, err).Sent {
			t.Errorf("after GOAWAY: %v", err)
		}
		if s.c.Err() == nil || s.c.Available() != 0 || s.c.InFlight() != 1 {
			t.Errorf("err %v, available %d, in flight %d", s.c.Err(), s.c.Available(), s.c.InFlight())
		}
		a.say(true, fields(":status: 200"), data("whole"))
		resp, err := first.wait(t)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, resp); got != "whole" {
			t.Errorf("%q", got)
		}
		if got := s.closeCode(); got != codeNone {
			t.Errorf("code %#x", uint64(got))
		}
		if len(changes) == 0 {
			t.Error("nobody was told")
		}
	})
}

// What a reset proves.
func TestResets(t *testing.T) {
	tests := []struct {
		name string
		code errCode
		sent bool
		kind string
	}{
		{"refused unprocessed", codeRejected, false, kindReset},
		{"cancelled", codeCancelled, true, kindReset},
		{"an error of the server's", codeInternal, true, kindReset},
		{"wants HTTP/1.1", codeVersionFallback, true, kindProtocol},
		{"our fault, it says", codeMessage, true, kindProtocol},
		{"a code of nobody", 7, true, kindReset},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			play(t, Config{}, nil, common(), func(s *script) {
				c, a := s.open()
				a.CancelWrite(quic.StreamErrorCode(tt.code))
				_, err := c.wait(t)
				if f := faultOf(t, err); f.Sent != tt.sent || f.Kind != tt.kind {
					t.Errorf("before the head: %+v", f)
				}
				c, a = s.open()
				a.say(false, fields(":status: 200"), data("half"))
				resp, err := c.wait(t)
				if err != nil {
					t.Fatal(err)
				}
				half := make([]byte, 4)
				_, _ = io.ReadFull(resp.Body, half)
				a.CancelWrite(quic.StreamErrorCode(tt.code))
				_, err = io.ReadAll(resp.Body)
				if f := faultOf(t, err); !f.Sent || !errors.Is(err, io.ErrUnexpectedEOF) || string(half) != "half" {
					t.Errorf("after it: %+v", f)
				}
				s.stillWorks()
			})
		})
	}
}

// The end of the connection is that of all its requests.
func TestPeerCloses(t *testing.T) {
	tests := []struct {
		code errCode
		kind string
	}{{codeNone, kindClosed}, {codeInternal, kindReset}, {codeExcessiveLoad, kindProtocol}}
	for _, tt := range tests {
		play(t, Config{}, nil, common(), func(s *script) {
			c, _ := s.open()
			_ = s.qc.CloseWithError(quic.ApplicationErrorCode(tt.code), "")
			_, err := c.wait(t)
			if f := faultOf(t, err); !f.Sent || f.Kind != tt.kind {
				t.Errorf("%#x: %+v", uint64(tt.code), f)
			}
			_, err = s.c.RoundTrip(request(t, "GET", "/", nil))
			if f := faultOf(t, err); f.Sent {
				t.Errorf("%#x: %+v", uint64(tt.code), f)
			}
		})
	}
}

// Leaving tells the peer at once, both ways.
func TestLeaving(t *testing.T) {
	play(t, Config{}, nil, common(), func(s *script) {
		pr, pw := io.Pipe()
		defer pw.Close()
		ctx, cancel := context.WithCancel(t.Context())
		c := s.send(request(t, "POST", "/", pr).WithContext(ctx))
		a := s.next()
		began := time.Now()
		cancel()
		if got := a.resetCode(t); got != codeCancelled {
			t.Errorf("code %#x", uint64(got))
		}
		eventually(t, "the peer is told to stop", func() bool { _, err := a.Write([]byte{0x21, 0}); return err != nil })
		if took := time.Since(began); took > time.Second {
			t.Errorf("after %v", took)
		}
		if _, err := c.wait(t); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		eventually(t, "the body is closed", func() bool { _, err := pw.Write([]byte("x")); return err != nil })
		s.stillWorks()
	})
}

// Without SETTINGS there are requests, but nothing is known of the peer.
func TestSettings(t *testing.T) {
	play(t, Config{}, nil, nil, func(s *script) {
		s.stillWorks()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := s.c.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitReady = %v", err)
		}
	})
	play(t, Config{}, nil, []uint64{settingMaxFieldSection, 300, 0x21, 5}, func(s *script) {
		req := request(t, "GET", "/", nil)
		req.Header.Set("X-Big", strings.Repeat("x", 300))
		_, err := s.c.RoundTrip(req)
		if f := faultOf(t, err); f.Sent || f.Kind != kindTooLarge {
			t.Errorf("%+v", f)
		}
		if s.c.ExtendedConnect() {
			t.Error("extended CONNECT is offered")
		}
	})
	for name, settings := range map[string][]uint64{"twice": {9, 1, 9, 1}, "of HTTP/2": {3, 1}, "not a bool": {settingConnect, 2}} {
		p := []byte{}
		for _, v := range settings {
			p = quicvarint.Append(p, v)
		}
		if _, err := parseSettings(p); err == nil || err.(*connError).code != codeSettings {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parseSettings([]byte{6, 0x40}); err == nil || err.(*connError).code != codeFrame {
		t.Errorf("half a setting: %v", err)
	}
}

// A tunnel's two ways end apart (RFC 9220).
func TestExtendedConnect(t *testing.T) {
	play(t, Config{}, nil, []uint64{settingConnect, 1}, func(s *script) {
		pr, pw := io.Pipe()
		req := request(t, http.MethodConnect, "/chat", pr)
		req.Header[":protocol"] = []string{"websocket"}
		c := s.send(req)
		a := s.next()
		if a.fields[":protocol"] != "websocket" || a.fields[":path"] != "/chat" || a.fields[":scheme"] != "https" {
			t.Errorf("%v", a.fields)
		}
		a.say(true, fields(":status: 200"), data("bye"))
		resp, err := c.wait(t)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "bye" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		_, _ = io.WriteString(pw, "still")
		if kind, p := a.frame(); kind != frameData || string(p) != "still" {
			t.Errorf("frame %#x %q", kind, p)
		}
		if s.c.InFlight() != 1 {
			t.Errorf("%d in flight", s.c.InFlight())
		}
		_ = resp.Body.Close()
		if got := a.resetCode(t); got != codeCancelled {
			t.Errorf("code %#x", uint64(got))
		}
		eventually(t, "nothing is in flight", func() bool { return s.c.InFlight() == 0 })
		s.stillWorks()
	})
	play(t, Config{}, nil, common(), func(s *script) {
		req := request(t, http.MethodConnect, "/chat", nil)
		req.Header[":protocol"] = []string{"websocket"}
		if _, err := s.c.RoundTrip(req); err == nil {
			t.Error("extended CONNECT to a peer that does not offer it")
		}
	})
}

// The class and the app's own priority reach the peer as field and frame.
func TestPriority(t *testing.T) {
	play(t, Config{Priority: true}, nil, common(), func(s *script) {
		str, err := s.qc.AcceptUniStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		control := &asked{br: bufio.NewReader(str)}
		_, _ = control.br.ReadByte() // its type
		for name, tt := range map[string]struct {
			class semantics.Class
			own   string
			want  string
		}{
			"interactive": {semantics.Interactive, "", "u=1, i"}, "default": {semantics.Default, "", ""}, "batch": {semantics.Batch, "", "u=6"},
			"the app's own": {semantics.Batch, "u=0", "u=0"},
		} {
			req := request(t, "GET", "/", nil)
			if tt.own != "" {
				req.Header.Set("Priority", tt.own)
			}
			c := s.send(req.WithContext(semantics.WithClass(req.Context(), tt.class)))
			a := s.next()
			if got := a.fields["priority"]; got != tt.want {
				t.Errorf("%s: field %q, want %q", name, got, tt.want)
			}
			if tt.want != "" {
				kind, p := control.frame()
				for kind == frameSettings {
					kind, p = control.frame()
				}
				id, n, _ := quicvarint.Parse(p)
				if kind != framePriorityUpdate || id != uint64(a.StreamID()) || string(p[n:]) != tt.want {
					t.Errorf("%s: frame %#x of %d: %q", name, kind, id, p[n:])
				}
			}
			a.say(true, fields(":status: 204"))
			if resp, err := c.wait(t); err != nil {
				t.Error(err)
			} else {
				_ = resp.Body.Close()
			}
		}
	})
}

// The peer's limit of streams is met once, and known from then on: Available tells
// the truth, nothing waits, and OnChange says when there is room again.
func TestStreamLimit(t *testing.T) {
	var changes atomic.Int32
	cfg := Config{OnChange: func() { changes.Add(1) }}
	play(t, cfg, &quic.Config{MaxIncomingStreams: 3}, common(), func(s *script) {
		var calls []*call
		var askeds []*asked
		for range 3 {
			c, a := s.open()
			calls, askeds = append(calls, c), append(askeds, a)
		}
		_, err := s.c.RoundTrip(request(t, "GET", "/", nil))
		if f := faultOf(t, err); f.Sent || s.c.Err() != nil {
			t.Errorf("%+v; %v", f, s.c.Err())
		}
		if n := s.c.Available(); n != 0 {
			t.Errorf("available %d", n)
		}
		for i := range calls {
			before := changes.Load()
			_, _ = io.Copy(io.Discard, askeds[i].br) // a stream is over for QUIC when its end was read
			askeds[i].say(true, fields(":status: 200"))
			resp, err := calls[i].wait(t)
			if err != nil {
				t.Fatal(err)
			}
			_ = readAll(t, resp)
			eventually(t, "there is room again", func() bool { return s.c.Available() == i+1 && changes.Load() > before })
		}
		for range 3 {
			s.open()
		}
	})
}

// A stream that nobody reads stops at its window, and no other waits for it.
func TestUnreadStream(t *testing.T) {
	const window = 32 << 10
	play(t, Config{StreamWindow: window, MaxStreamWindow: window}, nil, common(), func(s *script) {
		var calls []*call
		for range 20 {
			c, a := s.open()
			_, _ = a.Write(fields(":status: 200"))
			_ = a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			n, err := a.Write(frame(frameData, make([]byte, 1<<20)))
			if err == nil || n > window+2<<10 {
				t.Errorf("%d bytes were taken, %v", n, err)
			}
			calls = append(calls, c)
		}
		s.stillWorks()
		for _, c := range calls {
			if resp, err := c.wait(t); err == nil {
				_ = resp.Body.Close()
			}
		}
		eventually(t, "nothing is in flight", func() bool { return s.c.InFlight() == 0 })
	})
}

// Shutdown lets what is in flight end; Close does not.
func TestEndOfOurOwn(t *testing.T) {
	play(t, Config{}, nil, common(), func(s *script) {
		c, a := s.open()
		s.c.Shutdown()
		if _, err := s.c.RoundTrip(request(t, "GET", "/", nil)); faultOf(t, err).Sent {
			t.Errorf("%v", err)
		}
		a.say(true, fields(":status: 200"), data("whole"))
		resp, err := c.wait(t)
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, resp); got != "whole" {
			t.Errorf("%q", got)
		}
		if got := s.closeCode(); got != codeNone {
			t.Errorf("code %#x", uint64(got))
		}
	})
	play(t, Config{}, nil, common(), func(s *script) {
		c, _ := s.open()
		_ = s.c.Close()
		_, err := c.wait(t)
		if f := faultOf(t, err); f.Kind != kindClosed || !f.Sent {
			t.Errorf("%+v", f)
		}
	})
	play(t, Config{}, nil, common(), func(s *script) { // nothing is in flight
		s.c.Shutdown()
		if got := s.closeCode(); got != codeNone {
			t.Errorf("code %#x", uint64(got))
		}
	})
}

// A PING is answered by the peer's QUIC, whatever its HTTP does.
func TestPing(t *testing.T) {
	play(t, Config{}, nil, common(), func(s *script) {
		for range 3 {
			before := time.Now()
			took, err := s.c.Ping(t.Context())
			if err != nil || took <= 0 || took > time.Second {
				t.Errorf("%v, %v", took, err)
			}
			if heard := s.c.LastReceived(); heard.Before(before) {
				t.Errorf("last heard %v before the PING", before.Sub(heard))
			}
		}
		if rtt, rto := s.c.RTT(), s.c.RTO(); rtt <= 0 || rto <= rtt {
			t.Errorf("RTT %v, RTO %v", rtt, rto)
		}
		if st := s.c.Stats(); !st.Complete || st.PacketsReceived == 0 || st.CongestionWindow == 0 {
			t.Errorf("%+v", st)
		}
		_ = s.c.Close()
		if _, err := s.c.Ping(t.Context()); err == nil {
			t.Error("a PING over a closed connection")
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for name, bad := range map[string]Config{
		"no TLS": {}, "negative window": {TLS: &tls.Config{}, StreamWindow: -1}, "limit too large": {TLS: &tls.Config{}, MaxStreamWindow: 1 << 31},
		"negative streams": {TLS: &tls.Config{}, MaxStreams: -1}, "negative timeout": {TLS: &tls.Config{}, IdleTimeout: -1},
	} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
