// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/semantics"
	"golang.org/x/net/http2"
)

// Both schemes until the peer's SETTINGS, then the one it speaks; the app's own
// field wins over the class; nothing unless configured.
func TestPrioritySignals(t *testing.T) {
	rfc9218 := common(http2.Setting{ID: http2.SettingNoRFC7540Priorities, Val: 1})
	tests := []struct {
		name     string
		off      bool
		settings []http2.Setting
		class    semantics.Class
		own      string
		field    string
		update   string
		weight   uint8
	}{
		{"before SETTINGS", false, nil, semantics.Interactive, "", "u=1, i", "u=1, i", 191},
		{"RFC 9218", false, rfc9218, semantics.Interactive, "", "u=1, i", "u=1, i", 0},
		{"RFC 7540", false, common(), semantics.Interactive, "", "u=1, i", "", 191},
		{"batch", false, common(), semantics.Batch, "", "u=6", "", 1},
		{"default says nothing", false, rfc9218, semantics.Default, "", "", "", 0},
		{"the app's own", false, nil, semantics.Batch, "u=0", "u=0", "u=0", 255},
		{"the app's own, with parameters", false, nil, semantics.Batch, "i;x=1, u=5;y", "i;x=1, u=5;y", "i;x=1, u=5;y", 3},
		{"the app's own, not valid", false, nil, semantics.Batch, "u=9", "u=9", "u=9", 15},
		{"off", true, nil, semantics.Interactive, "", "", "", 0},
		{"off, the app's own", true, nil, semantics.Interactive, "u=2", "u=2", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Config{Priority: !tt.off}, 0, tt.settings, func(s *script) {
				req := s.request(semantics.WithClass(s.t.Context(), tt.class), "GET", nil)
				if tt.own != "" {
					req.Header.Set("Priority", tt.own)
				}
				call := s.send(req)
				h := want[*http2.MetaHeadersFrame](s)
				field := ""
				for _, f := range h.RegularFields() {
					if f.Name == "priority" {
						field += f.Value
					}
				}
				if field != tt.field || h.Priority.Weight != tt.weight || h.Priority.StreamDep != 0 {
					t.Errorf("field %q, weight %d; want %q, %d", field, h.Priority.Weight, tt.field, tt.weight)
				}
				go func() { _, _ = s.c.Ping(s.t.Context()) }()
				update := ""
				for {
					f := s.next()
					if u, ok := f.(*http2.PriorityUpdateFrame); ok && u.PrioritizedStreamID == h.StreamID {
						update = u.Priority
					}
					if _, ok := f.(*http2.PingFrame); ok || f == nil {
						break
					}
				}
				if update != tt.update {
					t.Errorf("PRIORITY_UPDATE %q, want %q", update, tt.update)
				}
				_ = s.c.Close()
				_, _ = call.wait()
			})
		})
	}
}

// Uploads go by class, in turn within a class, and none starves. The path is
// narrow, so that it is the path that they wait for and not their own reading.
func TestUploadsGoByClass(t *testing.T) {
	over := func(nc net.Conn) net.Conn { return narrow{nc} }
	bubbleOver(t, over, Config{}, 0, common(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 8 << 20}), func(s *script) {
		classes := []semantics.Class{semantics.Batch, semantics.Batch, semantics.Default, semantics.Interactive, semantics.Interactive}
		byID := map[uint32]semantics.Class{}
		for i, class := range classes {
			s.send(s.request(semantics.WithClass(s.t.Context(), class), "POST", endless{}))
			synctest.Wait()
			byID[uint32(2*i+1)] = class
		}
		// The connection's window is used up: from here on all wait for it.
		for spent := 0; spent < initialWindow; {
			if d, ok := s.next().(*http2.DataFrame); ok {
				spent += len(d.Data())
			}
		}
		synctest.Wait()
		s.do(s.fr.WriteWindowUpdate(0, 100*16<<10))
		frames := map[uint32]int{}
		for spent := 0; spent < 100*16<<10; {
			d := want[*http2.DataFrame](s)
			spent += len(d.Data())
			frames[d.StreamID] += len(d.Data())
		}
		interactive := frames[7] + frames[9]
		if share := interactive * 100 / (100 * 16 << 10); share < 75 || share > 95 {
			t.Errorf("interactive uploads got %d %%: %v", share, frames)
		}
		if min(frames[7], frames[9])*10 < interactive*4 {
			t.Errorf("the interactive uploads did not take turns: %v", frames)
		}
		for id, class := range byID {
			if frames[id] == 0 {
				t.Errorf("stream %d of class %d starves", id, class)
			}
		}
	})
}

// A body that has just begun does not wait for a frame of each that has run for long,
// and those do not starve for it.
func TestShortUploadsGoBeforeLongOnes(t *testing.T) {
	over := func(nc net.Conn) net.Conn { return narrow{nc} }
	bubbleOver(t, over, Config{}, 0, common(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 8 << 20}), func(s *script) {
		const long, short = 20, 40
		for range long {
			s.send(s.request(s.t.Context(), "POST", endless{}))
			synctest.Wait()
		}
		s.do(s.fr.WriteWindowUpdate(0, 2*long*16<<10)) // all of them have run for a while
		for spent := 0; spent < initialWindow+2*long*16<<10; {
			if d, ok := s.next().(*http2.DataFrame); ok {
				spent += len(d.Data())
			}
		}
		for range short {
			s.send(s.request(s.t.Context(), "POST", io.NopCloser(strings.NewReader("{}"))))
			synctest.Wait()
		}
		s.do(s.fr.WriteWindowUpdate(0, 100*16<<10))
		done, before, among := 0, 0, 0
		for done < short {
			d := want[*http2.DataFrame](s)
			switch {
			case d.StreamID > 2*long:
				if len(d.Data()) > 0 {
					done++
				}
			case done == 0:
				before++
			default:
				among++
			}
		}
		if before > long/4 {
			t.Errorf("%d frames of long uploads went before the first short one", before)
		}
		if among == 0 {
			t.Errorf("the long uploads starved while %d short ones went", short)
		}
	})
}

// An endless body is what a bulk upload looks like for as long as a test takes.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

// A head never waits for uploads that are queued.
func TestHeadsOvertakeUploads(t *testing.T) {
	bubble(t, Config{}, 0, common(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 8 << 20}), func(s *script) {
		s.do(s.fr.WriteWindowUpdate(0, 8<<20))
		for range 10 {
			s.send(s.request(semantics.WithClass(s.t.Context(), semantics.Batch), "POST", endless{}))
		}
		synctest.Wait() // the path is full: the writer waits for the peer
		s.get(s.t.Context())
		synctest.Wait()
		behind := 0
		for {
			f := s.next()
			if h, ok := f.(*http2.MetaHeadersFrame); ok && h.PseudoValue("method") == "GET" {
				break
			}
			if d, ok := f.(*http2.DataFrame); ok {
				behind += len(d.Data())
			}
		}
		// What was on the way, 256 KiB, and the one write that was waiting.
		if behind > 256<<10+maxRound {
			t.Errorf("%d bytes of bulk went first", behind)
		}
	})
}

// A narrow path takes bytes at 10 Mbit/s and holds none back, as a socket does with
// TCP_NOTSENT_LOWAT.
type narrow struct{ net.Conn }

func (n narrow) Write(p []byte) (int, error) {
	<-time.NewTimer(time.Duration(len(p)) * 8 * time.Second / 10_000_000).C
	return n.Conn.Write(p)
}

// 50 bulk uploads add less than 5 ms to an interactive request at 10 Mbit/s, and
// less than 5 ms more than its own bytes to its upload.
func TestBulkUploadsDelayInteractiveLittle(t *testing.T) {
	settings := common(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 8 << 20})
	over := func(nc net.Conn) net.Conn { return narrow{nc} }
	bubbleOver(t, over, Config{}, 0, settings, func(s *script) {
		s.do(s.fr.WriteWindowUpdate(0, 64<<20))
		for range 50 {
			s.send(s.request(semantics.WithClass(s.t.Context(), semantics.Batch), "POST", endless{}))
		}
		sent := time.Now().Add(2 * time.Second)
		go func() {
			s.pass(2 * time.Second)
			ctx := semantics.WithClass(s.t.Context(), semantics.Interactive)
			_, _ = s.c.RoundTrip(s.request(ctx, "PUT", bytes.NewReader(make([]byte, 10_000))))
		}()
		var id uint32
		for f := s.next(); f != nil; f = s.next() {
			took := time.Since(sent)
			if h, ok := f.(*http2.MetaHeadersFrame); ok && h.PseudoValue("method") == "PUT" {
				if id = h.StreamID; took > 5*time.Millisecond {
					t.Errorf("the head took %v", took)
				}
			}
			if d, ok := f.(*http2.DataFrame); ok && id != 0 && d.StreamID == id && d.StreamEnded() {
				if took > 13*time.Millisecond { // 8 ms are its own
					t.Errorf("10 kB took %v", took)
				}
				return
			}
		}
		t.Error("the interactive request never came")
	})
}

// Extended CONNECT: a stream as a tunnel, each way with its own end.
func TestExtendedConnect(t *testing.T) {
	bubble(t, Config{}, 0, common(http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1}), func(s *script) {
		if !s.c.ExtendedConnect() {
			t.Error("not offered")
		}
		pr, pw := io.Pipe()
		req := s.request(s.t.Context(), http.MethodConnect, pr)
		req.Header[":protocol"] = []string{"websocket"}
		call := s.send(req)
		h := want[*http2.MetaHeadersFrame](s)
		got := ""
		for _, f := range h.PseudoFields() {
			got += fmt.Sprintf("%s=%s ", f.Name, f.Value)
		}
		if got != ":method=CONNECT :scheme=https :path=/v1 :authority=api.test :protocol=websocket " || len(h.RegularFields()) != 0 {
			t.Errorf("%s and %v", got, h.RegularFields())
		}
		s.fields(h.StreamID, false, ":status: 200")
		resp, err := call.wait()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(pw, "ping")
		if d := want[*http2.DataFrame](s); string(d.Data()) != "ping" {
			t.Errorf("%q", d.Data())
		}
		s.data(h.StreamID, true, "pong")
		if b, err := io.ReadAll(resp.Body); string(b) != "pong" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		_, _ = io.WriteString(pw, "after the peer's end")
		if d := want[*http2.DataFrame](s); string(d.Data()) != "after the peer's end" {
			t.Errorf("%q", d.Data())
		}
		_ = pw.Close()
		if d := want[*http2.DataFrame](s); !d.StreamEnded() {
			t.Errorf("%v", d)
		}
		_ = resp.Body.Close()
		if n := s.c.InFlight(); n != 0 {
			t.Errorf("%d in flight", n)
		}
	})
}

// Without the peer's offer nothing is sent.
func TestExtendedConnectIsRefusedWithoutOffer(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		req := s.request(s.t.Context(), http.MethodConnect, bytes.NewReader([]byte("x")))
		req.Header[":protocol"] = []string{"websocket"}
		if _, err := s.c.RoundTrip(req); err == nil {
			t.Error("sent without an offer")
		}
		s.stillWorks()
	})
}
