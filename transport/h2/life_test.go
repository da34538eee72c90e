// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/contract"
	"github.com/warmwire/warmwire/transport/fault"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// However a connection ends, a request under way fails with the right word, and a
// body is never ended cleanly.
func TestBreaks(t *testing.T) {
	tests := []struct {
		name string
		act  func(s *script)
		kind string
	}{
		{"closed", func(s *script) { _ = s.nc.Close() }, kindClosed},
		{"reset", func(s *script) { s.nc.Reset() }, kindReset},
		{"closed within a frame", func(s *script) {
			_, err := s.nc.Write([]byte{0, 0, 100, 0, 0, 0, 0, 0, 3, 'x'})
			s.do(err)
			_ = s.nc.Close()
		}, kindClosed},
		{"closed by us", func(s *script) { _ = s.c.Close() }, kindClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			told := make(chan struct{}, 100)
			bubble(t, Config{OnChange: func() { told <- struct{}{} }}, 0, common(), func(s *script) {
				waiting, _ := s.open()
				streaming, id := s.open()
				s.fields(id, false, ":status: 200")
				s.data(id, false, "half")
				resp, err := streaming.wait()
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for len(told) > 0 {
					<-told
				}
				tt.act(s)
				_, err = waiting.wait()
				f, ok := errors.AsType[*fault.Error](err)
				if !ok || f.Kind != tt.kind || !f.Sent || f.In != "wait" {
					t.Errorf("waiting: %#v (%v)", err, err)
				}
				b, err := io.ReadAll(resp.Body)
				f, ok = errors.AsType[*fault.Error](err)
				if !errors.Is(err, io.ErrUnexpectedEOF) || !ok || f.Kind != tt.kind || !f.Sent || !strings.HasPrefix("half", string(b)) {
					t.Errorf("streaming: %q, %v", b, err)
				}
				_ = resp.Body.Close()
				if _, err := s.c.RoundTrip(s.request(s.t.Context(), "GET", nil)); !isUnsent(err) {
					t.Errorf("afterwards: %v", err)
				}
				if s.c.Available() != 0 || s.c.InFlight() != 0 || s.c.Err() == nil || len(told) == 0 {
					t.Errorf("available %d, in flight %d, err %v, told %d times", s.c.Available(), s.c.InFlight(), s.c.Err(), len(told))
				}
			})
		})
	}
}

// The peer may forbid the HPACK table at any time.
func TestHeaderTableIsThePeers(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		s.stillWorks()
		s.do(s.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
		synctest.Wait()
		s.fr.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(0)
		var updates int
		s.fr.ReadMetaHeaders = nil
		dec := hpack.NewDecoder(0, func(hpack.HeaderField) {})
		for range 2 {
			call := s.get(s.t.Context())
			h := want[*http2.HeadersFrame](s)
			if b := h.HeaderBlockFragment(); len(b) > 0 && b[0]&0xe0 == 0x20 {
				updates++
			}
			if _, err := dec.Write(h.HeaderBlockFragment()); err != nil {
				t.Errorf("a table is used: %v", err)
			}
			s.fields(h.StreamID, true, ":status: 204")
			_, _ = call.wait()
		}
		if updates != 1 {
			t.Errorf("%d size updates", updates)
		}
	})
}

// The peer's limit of a head is kept: what is over it is not sent.
func TestHeadOverThePeersLimit(t *testing.T) {
	bubble(t, Config{}, 0, common(http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 2000}), func(s *script) {
		req := s.request(s.t.Context(), "GET", nil)
		req.Header.Set("X-Big", strings.Repeat("x", 2000))
		_, err := s.c.RoundTrip(req)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != kindTooLarge || f.Sent {
			t.Errorf("err = %v", err)
		}
		s.stillWorks()
	})
}

// What is not a valid request is refused before anything is sent, and says nothing
// of values.
func TestInvalidRequests(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(r *http.Request)
	}{
		{"method", func(r *http.Request) { r.Method = "G ET" }},
		{"field name", func(r *http.Request) { r.Header["x y"] = []string{"secret"} }},
		{"field value", func(r *http.Request) { r.Header["X"] = []string{"secret\r\nX: y"} }},
		{"pseudo field", func(r *http.Request) { r.Header[":path"] = []string{"/secret"} }},
		{"protocol without CONNECT", func(r *http.Request) { r.Header[":protocol"] = []string{"websocket"} }},
		{"space in the target", func(r *http.Request) { r.RequestURI = "/secret x" }},
		{"target without slash", func(r *http.Request) { r.RequestURI = "secret" }},
		{"authority", func(r *http.Request) { r.Host = "secret x" }},
		{"no authority", func(r *http.Request) { r.Host, r.URL.Host = "", "" }},
		{"trailer name", func(r *http.Request) { r.Trailer = http.Header{"Content-Length": nil} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Config{}, 0, common(), func(s *script) {
				body := &contract.Body{R: strings.NewReader("x")}
				req := s.request(s.t.Context(), "POST", body)
				tt.spoil(req)
				_, err := s.c.RoundTrip(req)
				if err == nil || strings.Contains(err.Error(), "secret") {
					t.Errorf("err = %v", err)
				}
				if n := body.Closed.Load(); n != 1 {
					t.Errorf("the body was closed %d times", n)
				}
				s.stillWorks()
			})
		})
	}
}

// Frames after END_STREAM, or after our own reset, harm nobody.
func TestFramesAfterTheEnd(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		pr, pw := io.Pipe()
		tunnel := s.request(s.t.Context(), http.MethodConnect, pr)
		call := s.send(tunnel)
		id := want[*http2.MetaHeadersFrame](s).StreamID
		s.fields(id, false, ":status: 200")
		s.data(id, true, "all")
		resp, err := call.wait()
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s.data(id, false, "more") // half-closed (remote), RFC 9113 §5.1
		if r := want[*http2.RSTStreamFrame](s); r.ErrCode != http2.ErrCodeStreamClosed {
			t.Errorf("%v", r)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "all" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		s.data(id, false, "and more")
		s.fields(id, true, "x: 1")
		s.do(s.fr.WriteWindowUpdate(id, 1))
		s.do(s.fr.WriteRSTStream(id, 0))
		_ = pw.Close()
		_ = resp.Body.Close()
		s.stillWorks()
	})
}

// Many answers cancelled midway leave the connection as it was.
func TestManyCancelledAnswers(t *testing.T) {
	piece := bytes.Repeat([]byte("x"), 32<<10)
	c := start(t, dialH2C(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil && r.URL.Path == "/endless" {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})), Config{})
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range 150 {
				ctx, cancel := context.WithCancel(t.Context())
				resp, err := c.RoundTrip(request(t, "GET", "/endless", nil).WithContext(ctx))
				if err != nil {
					t.Error(err)
					cancel()
					return
				}
				_, _ = io.CopyN(io.Discard, resp.Body, int64(i*100))
				if i%2 == 0 {
					cancel()
				}
				_ = resp.Body.Close()
				cancel()
			}
		})
	}
	workers.Wait()
	if resp := do(t, c, request(t, "GET", "/", nil)); resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	eventually(t, "nothing is in flight", func() bool { return c.InFlight() == 0 })
	if err := c.Err(); err != nil {
		t.Error(err)
	}
}

// Close is immediate even if the peer has stopped reading in the middle of an
// upload over TLS, where a last alert would have to wait.
func TestCloseWhileThePeerReadsNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	donor := httptest.NewUnstartedServer(nil) // of a certificate
	donor.StartTLS()
	defer donor.Close()
	closed := make(chan struct{})
	var peer sync.WaitGroup
	defer peer.Wait()
	defer close(closed)
	peer.Go(func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		tc := tls.Server(nc, donor.TLS)
		fr := http2.NewFramer(tc, tc)
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		_ = fr.WriteWindowUpdate(0, 1<<30)
		<-closed
	})
	nc, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, nc, Config{})
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.RoundTrip(request(t, "POST", "/", endless{}))
		failed <- err
	}()
	var before uint64
	progress := func() bool { // no write has ended since the last look
		c.mu.Lock()
		defer c.mu.Unlock()
		same := c.out.turn == before && c.out.turn > 20
		before = c.out.turn
		return same
	}
	stuck := 0
	eventually(t, "the path is full", func() bool {
		if stuck++; !progress() {
			stuck = 0
		}
		return stuck == 50
	})
	begin := time.Now()
	_ = c.Close()
	if err := <-failed; err == nil || time.Since(begin) > time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
}

// An open stream that is silent costs little, and small frames do not blow up what
// a slow app's buffer costs.
func TestMemoryOfStreams(t *testing.T) {
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	bubble(t, Config{}, 0, common(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 5000}), func(s *script) {
		const streams = 1000
		before := heap()
		for range streams {
			call, id := s.open()
			s.fields(id, false, ":status: 200")
			_, _ = call.wait()
		}
		synctest.Wait()
		each := (heap() - before) / streams
		t.Logf("an open stream costs %d bytes of heap, with its request and the peer's part", each)
		if each > 8<<10 {
			t.Errorf("an open stream costs %d bytes of heap", each)
		}
		before = heap()
		frame := strings.Repeat("x", 2100)
		for range 256 << 10 / len(frame) {
			s.data(1, false, frame)
		}
		synctest.Wait()
		if cost := heap() - before; cost > 1<<20 {
			t.Errorf("a full window of frames of 2100 bytes costs %d bytes", cost)
		}
	})
}
