// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
	"golang.org/x/net/http2"
)

func isUnsent(err error) bool {
	f, ok := errors.AsType[*fault.Error](err)
	return ok && !f.Sent
}

// GOAWAY in two steps: nothing is lost by the first; the second hands back what is
// above its id, and what is below ends normally, however late.
func TestGoAwayByTheBook(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		var calls []*call
		for range 4 { // ids 1, 3, 5, 7
			c, _ := s.open()
			calls = append(calls, c)
		}
		s.do(s.fr.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil))
		synctest.Wait()
		if s.c.Available() != 0 || s.c.Err() == nil || s.c.InFlight() != 4 {
			t.Errorf("after the first GOAWAY: available %d, err %v, in flight %d", s.c.Available(), s.c.Err(), s.c.InFlight())
		}
		if _, err := s.c.RoundTrip(s.request(s.t.Context(), "GET", nil)); !isUnsent(err) {
			t.Errorf("a request after GOAWAY: %v", err)
		}
		s.do(s.fr.WriteGoAway(3, http2.ErrCodeNo, nil))
		for _, c := range calls[2:] {
			if _, err := c.wait(); !isUnsent(err) {
				t.Errorf("above the last id: %v", err)
			}
		}
		s.pass(6 * time.Second)
		for i, c := range calls[:2] {
			s.fields(uint32(2*i+1), true, ":status: 200")
			if resp, err := c.wait(); err != nil || resp.StatusCode != 200 {
				t.Errorf("below the last id: %v", err)
			}
		}
		if s.next() == nil {
			t.Error("the connection closed without GOAWAY")
		}
		if s.next() != nil {
			t.Error("the connection is still open with nothing in flight")
		}
	})
}

// The peer closes after GOAWAY: what it may have processed is not handed back.
func TestCloseAfterGoAway(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		below, id := s.open()
		s.do(s.fr.WriteGoAway(id, http2.ErrCodeEnhanceYourCalm, nil))
		_ = s.nc.Close()
		_, err := below.wait()
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || !f.Sent || f.Kind != kindClosed || !strings.Contains(f.Error(), "ENHANCE_YOUR_CALM") {
			t.Errorf("err = %v", err)
		}
	})
}

// Before SETTINGS 100 streams are assumed, then the peer's word counts, in both
// directions and at once; beyond it a request is refused unsent.
func TestConcurrencyIsThePeersWord(t *testing.T) {
	var changes atomic.Int32
	bubble(t, Config{OnChange: func() { changes.Add(1) }}, 0, nil, func(s *script) {
		if n := s.c.Available(); n != 100 {
			t.Errorf("before SETTINGS: %d", n)
		}
		s.do(s.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2}))
		if err := s.c.WaitReady(s.t.Context()); err != nil || s.c.Available() != 2 {
			t.Fatalf("after SETTINGS: %d, %v", s.c.Available(), err)
		}
		first, id := s.open()
		second, _ := s.open()
		if _, err := s.c.RoundTrip(s.request(s.t.Context(), "GET", nil)); !isUnsent(err) {
			t.Errorf("the third of two: %v", err)
		}
		before := changes.Load()
		s.fields(id, true, ":status: 204")
		_, _ = first.wait()
		synctest.Wait()
		if s.c.Available() != 1 || changes.Load() == before {
			t.Errorf("a place came free: available %d, told %v", s.c.Available(), changes.Load() != before)
		}
		s.do(s.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0}))
		synctest.Wait()
		if s.c.Available() != 0 || s.c.Err() != nil {
			t.Errorf("limit 0: available %d, err %v", s.c.Available(), s.c.Err())
		}
		_ = s.nc.Close()
		if _, err := second.wait(); err == nil {
			t.Error("no error when the peer closes")
		}
	})
}

// What an earlier connection was allowed is assumed of the next one.
func TestStreamsAssumedOfAKnownPeer(t *testing.T) {
	bubble(t, Config{AssumedStreams: 8}, 0, nil, func(s *script) {
		_, said := s.c.PeerStreams()
		if n := s.c.Available(); n != 8 || said {
			t.Errorf("before SETTINGS: %d, said %v", n, said)
		}
		s.do(s.fr.WriteSettings())
		_ = s.c.WaitReady(s.t.Context())
		if n, said := s.c.PeerStreams(); n != 100 || !said {
			t.Errorf("a peer without a limit: %d, said %v", n, said)
		}
	})
}

// Our own limit holds below the peer's.
func TestOwnStreamLimit(t *testing.T) {
	bubble(t, Config{MaxStreams: 3}, 0, common(), func(s *script) {
		if n := s.c.Available(); n != 3 {
			t.Errorf("available %d", n)
		}
	})
}

// Stream ids are never used again: when they run out the connection is full.
func TestStreamIDsRunOut(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		s.c.mu.Lock()
		s.c.nextID = maxStreamID - 4
		s.c.mu.Unlock()
		for want := range 2 {
			if n := s.c.Available(); n != 2-want {
				t.Errorf("available %d, want %d", n, 2-want)
			}
			call, id := s.open()
			s.fields(id, true, ":status: 204")
			_, _ = call.wait()
		}
		if s.c.Available() != 0 || s.c.Err() == nil {
			t.Errorf("available %d, err %v", s.c.Available(), s.c.Err())
		}
	})
}

// A peer that never sends SETTINGS is left after the limit, to the nanosecond.
func TestSettingsTimeout(t *testing.T) {
	bubble(t, Config{SettingsTimeout: 3 * time.Second}, 0, nil, func(s *script) {
		begin := time.Now()
		_, err := s.c.RoundTrip(s.request(s.t.Context(), "GET", nil))
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != kindProtocol || !f.Expired || time.Since(begin) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

// Leaving costs nothing: RST_STREAM(CANCEL) goes out in the same instant.
func TestCancelIsImmediate(t *testing.T) {
	tests := []struct {
		name  string
		begin bool // the answer has begun
		leave func(cancel func(), resp *http.Response)
	}{
		{"context while waiting", false, func(cancel func(), _ *http.Response) { cancel() }},
		{"context while streaming", true, func(cancel func(), _ *http.Response) { cancel() }},
		{"body closed", true, func(_ func(), resp *http.Response) { _ = resp.Body.Close() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, Config{}, 0, common(), func(s *script) {
				ctx, cancel := context.WithCancelCause(s.t.Context())
				cause := errors.New("the app left")
				call := s.get(ctx)
				id := want[*http2.MetaHeadersFrame](s).StreamID
				var resp *http.Response
				if tt.begin {
					s.fields(id, false, ":status: 200")
					s.data(id, false, "token")
					resp, _ = call.wait()
				}
				s.pass(time.Second)
				now := time.Now()
				tt.leave(func() { cancel(cause) }, resp)
				r := want[*http2.RSTStreamFrame](s)
				if r.ErrCode != http2.ErrCodeCancel || r.StreamID != id || time.Since(now) != 0 {
					t.Errorf("%v after %v", r, time.Since(now))
				}
				cancel(cause)
				synctest.Wait() // the reset is on its way before the body knows of the end
				if !tt.begin {
					if _, err := call.wait(); !errors.Is(err, cause) {
						t.Errorf("err = %v", err)
					}
				} else if n, err := resp.Body.Read(make([]byte, 9)); n != 0 || err == nil || err == io.EOF {
					t.Errorf("after leaving: %d bytes, %v", n, err)
				}
				s.stillWorks()
			})
		})
	}
}

// A body whose Read waits for the app delays neither cancellation nor Close, and
// is closed exactly once.
func TestBlockedUploadDelaysNothing(t *testing.T) {
	for _, how := range []string{"cancel", "close"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, Config{}, 0, common(), func(s *script) {
				body := &blocking{unblock: make(chan struct{})}
				ctx, cancel := context.WithCancel(s.t.Context())
				defer cancel()
				call := s.send(s.request(ctx, "POST", body))
				want[*http2.MetaHeadersFrame](s)
				synctest.Wait()
				now := time.Now()
				if how == "cancel" {
					cancel()
				} else {
					_ = s.c.Close()
				}
				if _, err := call.wait(); err == nil || time.Since(now) != 0 {
					t.Errorf("after %v: %v", time.Since(now), err)
				}
				synctest.Wait()
				if n := body.closed.Load(); n != 1 {
					t.Errorf("closed %d times", n)
				}
				close(body.unblock)
				synctest.Wait()
				if n := body.closed.Load(); n != 1 {
					t.Errorf("closed %d times in the end", n)
				}
			})
		})
	}
}

// A blocking body's Read does not return before unblock, whatever is closed.
type blocking struct {
	unblock chan struct{}
	closed  atomic.Int32
}

func (b *blocking) Read([]byte) (int, error) {
	<-b.unblock
	return 0, io.ErrClosedPipe
}

func (b *blocking) Close() error {
	b.closed.Add(1)
	return nil
}

// Requests that the writer could not take are provably unsent when the connection
// breaks, and never reach the wire.
func TestUnwrittenHeadsAreUnsent(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		s.do(s.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
		s.do(s.fr.WriteWindowUpdate(0, 1<<20))
		synctest.Wait()
		// The peer reads nothing: an upload fills the path, and the writer waits.
		upload := s.send(s.request(s.t.Context(), "POST", strings.NewReader(strings.Repeat("x", 1<<20))))
		synctest.Wait()
		behind := s.get(s.t.Context())
		synctest.Wait()
		s.nc.Reset()
		if _, err := behind.wait(); !isUnsent(err) {
			t.Errorf("the request behind: %v", err)
		}
		if _, err := upload.wait(); err == nil || isUnsent(err) {
			t.Errorf("the upload: %v", err)
		}
	})
}

// A peer that answers, closes and refuses the rest of an upload is heard.
func TestAnswerBeforeTheConnectionEnds(t *testing.T) {
	over := func(nc net.Conn) net.Conn { return &refusing{Conn: nc} }
	bubbleOver(t, over, Config{}, 0, common(), func(s *script) {
		pr, pw := io.Pipe()
		call := s.send(s.request(s.t.Context(), "POST", pr))
		id := want[*http2.MetaHeadersFrame](s).StreamID
		s.c.nc.(*refusing).on.Store(true)
		_, _ = io.WriteString(pw, "cannot be written")
		synctest.Wait()
		if s.c.Available() != 0 || s.c.Err() == nil {
			t.Error("a connection that cannot be written takes requests")
		}
		s.pass(100 * time.Millisecond)
		s.fields(id, false, ":status: 413")
		s.data(id, true, "too large")
		resp, err := call.wait()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); string(b) != "too large" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		_ = resp.Body.Close()
	})
}

// Without an answer the request fails a second later, for the write's reason.
func TestUnwritableConnectionEnds(t *testing.T) {
	over := func(nc net.Conn) net.Conn { return &refusing{Conn: nc} }
	bubbleOver(t, over, Config{}, 0, common(), func(s *script) {
		call, _ := s.open()
		s.c.nc.(*refusing).on.Store(true)
		begin := time.Now()
		go func() { _, _ = s.c.Ping(s.t.Context()) }()
		_, err := call.wait()
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != kindReset || time.Since(begin) != answerGrace {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

// A refusing connection can be read, but not written, once it is on.
type refusing struct {
	net.Conn
	on atomic.Bool
}

func (r *refusing) Write(p []byte) (int, error) {
	if r.on.Load() {
		return 0, syscall.EPIPE
	}
	return r.Conn.Write(p)
}

// The owner's verdict is what requests in flight fail with.
func TestAbandon(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		call, _ := s.open()
		verdict := &fault.Error{In: "wait", Kind: kindSilent, Expired: true, Err: errors.New("no PING is answered")}
		s.c.Abandon(verdict)
		_, err := call.wait()
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != kindSilent || !f.Expired || !f.Sent {
			t.Errorf("err = %#v", err)
		}
		if s.next() != nil {
			t.Error("still open")
		}
	})
}

// Expect: the body goes after one second without an answer.
func TestExpectWaitsOneSecond(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		req := s.request(s.t.Context(), "POST", strings.NewReader("body"))
		req.Header.Set("Expect", "100-continue")
		call := s.send(req)
		id := want[*http2.MetaHeadersFrame](s).StreamID
		begin := time.Now()
		f := want[*http2.DataFrame](s)
		if time.Since(begin) != time.Second || string(f.Data()) != "body" || !f.StreamEnded() {
			t.Errorf("%q after %v", f.Data(), time.Since(begin))
		}
		s.fields(id, true, ":status: 204")
		_, _ = call.wait()
	})
}

// Shutdown waits for what is in flight and takes nothing more.
func TestShutdown(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		call, id := s.open()
		s.c.Shutdown()
		if _, err := s.c.RoundTrip(s.request(s.t.Context(), "GET", nil)); !isUnsent(err) || s.c.Available() != 0 {
			t.Errorf("after Shutdown: %v", err)
		}
		s.fields(id, false, ":status: 200")
		s.data(id, true, "all of it")
		resp, err := call.wait()
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if b, err := io.ReadAll(resp.Body); string(b) != "all of it" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if g := want[*http2.GoAwayFrame](s); g.ErrCode != http2.ErrCodeNo {
			t.Errorf("%v", g)
		}
		if s.next() != nil {
			t.Error("still open")
		}
	})
}

// PING measures the round trip; callers share the one that is out; a peer that
// asks for calm gets none any more.
func TestPing(t *testing.T) {
	bubble(t, Config{}, 50*time.Millisecond, common(), func(s *script) {
		type result struct {
			d   time.Duration
			err error
		}
		results := make(chan result, 2)
		for range 2 {
			go func() {
				d, err := s.c.Ping(s.t.Context())
				results <- result{d, err}
			}()
		}
		p := want[*http2.PingFrame](s)
		s.do(s.fr.WritePing(true, p.Data))
		for range 2 {
			if r := <-results; r.err != nil || r.d != 100*time.Millisecond {
				t.Errorf("%v, %v", r.d, r.err)
			}
		}
		if s.c.RTT() != 100*time.Millisecond {
			t.Errorf("RTT %v", s.c.RTT())
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		if _, err := s.c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("unanswered: %v", err)
		}
		if want[*http2.PingFrame](s).Data == p.Data {
			t.Error("two PINGs look alike")
		}
		held, _ := s.open()
		s.do(s.fr.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings")))
		s.pass(time.Second)
		if _, err := s.c.Ping(s.t.Context()); !errors.Is(err, ErrPingRefused) {
			t.Errorf("after ENHANCE_YOUR_CALM: %v", err)
		}
		_ = s.c.Close()
		_, _ = held.wait()
	})
}

// The peer's PING is answered.
func TestPingIsAnswered(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		s.do(s.fr.WritePing(false, [8]byte{1, 2, 3}))
		if p := want[*http2.PingFrame](s); !p.IsAck() || p.Data != [8]byte{1, 2, 3} {
			t.Errorf("%v", p)
		}
	})
}
