// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/transport/semantics"
)

// A window's worth of a stream, and of the connection, as the peer counts them.
type account struct {
	*script
	stream map[uint32]int64
	conn   int64
}

func (s *script) account() *account {
	return &account{script: s, stream: map[uint32]int64{}, conn: initialWindow}
}

// read takes frames until what is there is read, and counts the windows.
func (a *account) read() {
	synctest.Wait()
	a.do(a.nc.SetReadDeadline(time.Now().Add(time.Nanosecond)))
	for {
		f := a.any()
		if f == nil {
			break
		}
		if w, ok := f.(*http2.WindowUpdateFrame); ok {
			if w.StreamID == 0 {
				a.conn += int64(w.Increment)
			} else {
				a.stream[w.StreamID] += int64(w.Increment)
			}
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			a.stream[h.StreamID] += firstWindow
		}
	}
	a.do(a.nc.SetReadDeadline(time.Time{}))
}

// send sends n bytes of DATA, as far as the windows go, and says how many.
func (a *account) send(id uint32, n int) int {
	sent := 0
	for n > 0 {
		m := min(int64(n), 16<<10, a.stream[id], a.conn)
		if m <= 0 {
			break
		}
		a.data(id, false, strings.Repeat("x", int(m)))
		a.stream[id] -= m
		a.conn -= m
		sent += int(m)
		n -= int(m)
		synctest.Wait()
	}
	return sent
}

// A stream takes its window and no more while the app reads nothing; what the app
// reads comes back, in steps; other streams go on all the time.
func TestStreamWindowIsTheBuffer(t *testing.T) {
	bubble(t, Config{StreamWindow: 256 << 10}, 0, common(), func(s *script) {
		a := s.account()
		slow := s.get(s.t.Context())
		a.read()
		s.fields(1, false, ":status: 200")
		resp, err := slow.wait()
		if err != nil {
			t.Fatal(err)
		}
		if n := a.send(1, 1<<20); n != 256<<10 {
			t.Errorf("a stream that nobody reads took %d bytes", n)
		}
		for i := range 3 { // each more than the whole connection would hold if it were not credited
			other := s.get(s.t.Context())
			a.read()
			id := uint32(3 + 2*i)
			s.fields(id, false, ":status: 200")
			r, err := other.wait()
			if err != nil {
				t.Fatal(err)
			}
			total := 0
			for total < 8<<20 {
				n := a.send(id, 200<<10)
				if n == 0 {
					t.Fatalf("a reader beside a stopped one got %d bytes", total)
				}
				total += n
				if _, err := io.CopyN(io.Discard, r.Body, int64(n)); err != nil {
					t.Fatal(err)
				}
				a.read()
			}
			s.data(id, true, "")
			_ = r.Body.Close()
		}
		for range 60 << 10 { // tiny reads: less than a quarter of the window in all
			if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		before := a.stream[1]
		a.read()
		if got := a.stream[1] - before; got != 0 {
			t.Errorf("tiny reads returned %d bytes", got)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, 8<<10); err != nil {
			t.Fatal(err)
		}
		a.read()
		if got := a.stream[1] - before; got < 64<<10 || got > 68<<10 {
			t.Errorf("68 KiB consumed returned %d bytes", got)
		}
		_ = resp.Body.Close()
	})
}

// DATA for streams that are gone is returned to the connection, padding included.
func TestClosedStreamsCostNoWindow(t *testing.T) {
	bubble(t, Config{StreamWindow: 256 << 10}, 0, common(), func(s *script) {
		a := s.account()
		for i := range 100 {
			call := s.get(s.t.Context())
			a.read()
			id := uint32(1 + 2*i)
			s.fields(id, false, ":status: 200")
			resp, err := call.wait()
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			a.read()
			if n := a.send(id, 256<<10); n != 256<<10 { // 25 MiB in all
				t.Fatalf("stream %d: the connection's window is used up", id)
			}
			s.do(s.fr.WriteDataPadded(id, false, []byte("x"), make([]byte, 200)))
			a.conn -= 202
			synctest.Wait()
			a.read()
		}
		if a.conn < connWindow/2 {
			t.Errorf("the connection's window is down to %d", a.conn)
		}
		s.c.mu.Lock()
		owed := s.c.in.owed
		s.c.mu.Unlock()
		if a.conn+owed != connWindow {
			t.Errorf("%d bytes of window are lost", connWindow-a.conn-owed)
		}
	})
}

// Padding is returned to the stream too, or it would starve.
func TestPaddingIsReturned(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		a := s.account()
		call := s.get(s.t.Context())
		a.read()
		s.fields(1, false, ":status: 200")
		resp, _ := call.wait()
		for range 5000 { // 1.3 MB of padding
			s.do(s.fr.WriteDataPadded(1, false, []byte("x"), make([]byte, 255)))
			a.stream[1] -= 257
			a.conn -= 257
			if a.stream[1] < 1000 {
				a.read()
			}
			if a.stream[1] < 1000 {
				t.Fatal("padding has used up the window")
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		_ = resp.Body.Close()
	})
}

// A window that limits the app on a long path grows, up to the limit.
func TestWindowGrows(t *testing.T) {
	bubble(t, Config{MaxStreamWindow: 600 << 10}, 50*time.Millisecond, common(), func(s *script) {
		a := s.account()
		call := s.get(s.t.Context())
		s.pass(200 * time.Millisecond)
		a.read()
		s.fields(1, false, ":status: 200")
		resp, err := call.wait()
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
		best := 0
		for range 8 {
			best = max(best, a.send(1, 4<<20))
			s.pass(100 * time.Millisecond)
			a.read()
		}
		// What the app has consumed is returned by the quarter.
		if best < 450<<10 || best > 600<<10 {
			t.Errorf("the window grew to %d", best)
		}
		_ = resp.Body.Close()
	})
}

// The budget bounds what streams hold together. One that finds none has its first
// window and goes on with it; what a slow app has consumed of a full budget goes to
// others; and when all have ended, nothing is charged.
func TestBudgetBoundsWindows(t *testing.T) {
	budget, err := bufferctl.NewBudget(bufferctl.Config{Limit: 1 << 20, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, Config{StreamWindow: 256 << 10, Budget: budget}, 0, common(), func(s *script) {
		a := s.account()
		var answers []*http.Response
		took := make([]int, 12)
		for i := range took {
			call := s.get(s.t.Context())
			a.read()
			id := uint32(1 + 2*i)
			s.fields(id, false, ":status: 200")
			resp, err := call.wait()
			if err != nil {
				t.Fatal(err)
			}
			answers = append(answers, resp)
			took[i] = a.send(id, 1<<20)
			if took[i] < firstWindow {
				t.Errorf("stream %d got %d bytes", i, took[i])
			}
		}
		if took[0] != 256<<10 || took[11] != firstWindow {
			t.Errorf("streams took %d", took)
		}
		if used := budget.Used(); used > budget.Limit() || used < budget.Limit()*7/10 {
			t.Errorf("%d bytes of %d are charged", used, budget.Limit())
		}
		beyond := int64(0)
		for _, n := range took {
			beyond += int64(n - firstWindow)
		}
		if used := budget.Used(); beyond != used {
			t.Errorf("streams hold %d bytes beyond their first windows, %d are charged", beyond, used)
		}
		for range 20 { // with the first window alone, and in a full budget
			if _, err := io.CopyN(io.Discard, answers[11].Body, int64(took[11])); err != nil {
				t.Fatal(err)
			}
			a.read()
			if took[11] = a.send(23, 1<<20); took[11] < firstWindow/2 {
				t.Fatalf("the last stream goes on with %d bytes", took[11])
			}
		}
		rest := budget.Limit() - budget.Used() // others take what is left
		if !budget.Take(rest) {
			t.Fatal("cannot take what is free")
		}
		if _, err := io.CopyN(io.Discard, answers[0].Body, int64(took[0])); err != nil {
			t.Fatal(err)
		}
		a.read()
		if n := a.send(1, 1<<20); n > bufferctl.DefaultStart {
			t.Errorf("a stream took %d bytes again though the budget was full", n)
		}
		for i, resp := range answers {
			if i == 3 { // it ends by itself, and is read to its end
				s.data(uint32(1+2*i), true, "")
				synctest.Wait()
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(took[i]) {
					t.Errorf("read %d bytes: %v", n, err)
				}
			}
			_ = resp.Body.Close()
		}
		budget.Give(rest)
		if used := budget.Used(); used != 0 {
			t.Errorf("%d bytes are charged for nothing", used)
		}
	})
}

// While something interactive is open, all bulk downloads together get what the
// path holds.
func TestBulkWindowsShrinkBesideInteractive(t *testing.T) {
	bubble(t, Config{StreamWindow: 256 << 10}, 0, common(), func(s *script) {
		a := s.account()
		s.c.rtt.Store(int64(20 * time.Millisecond))
		s.c.rate.Store(1_250_000) // 10 Mbit/s: 25 kB on the way
		var bodies []*http.Response
		for i := range 10 {
			call := s.send(s.request(semantics.WithClass(s.t.Context(), semantics.Batch), "GET", nil))
			a.read()
			s.fields(uint32(1+2*i), false, ":status: 200")
			resp, err := call.wait()
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, resp)
		}
		urgent := s.send(s.request(semantics.WithClass(s.t.Context(), semantics.Interactive), "GET", nil))
		a.read()
		drain := func() int { // what is on the way for bulk: all windows together
			open := 0
			for round := range 3 {
				open = 0
				for i, b := range bodies {
					id := uint32(1 + 2*i)
					n := a.send(id, 1<<20)
					if round > 0 {
						open += n
					}
					if _, err := io.CopyN(io.Discard, b.Body, int64(n)); err != nil {
						t.Fatal(err)
					}
				}
				a.read()
			}
			return open
		}
		// The rate may have been measured anew meanwhile: ten first windows in one span.
		if got, most := drain(), s.c.bulkBudget(); got > most || most > 4*bulkFloor {
			t.Errorf("bulk has %d bytes on the way beside an interactive stream", got)
		}
		s.fields(21, true, ":status: 204")
		if _, err := urgent.wait(); err != nil {
			t.Fatal(err)
		}
		if got := drain(); got > 10*256<<10 || got < 10*192<<10 { // returned by the quarter
			t.Errorf("alone again, bulk has %d bytes on the way", got)
		}
		for _, b := range bodies {
			_ = b.Body.Close()
		}
	})
}

// Uploads keep to both windows, which SETTINGS may make negative, and to the frame
// size.
func TestUploadKeepsToTheWindows(t *testing.T) {
	bubble(t, Config{}, 0, common(), func(s *script) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 12<<10) // 192 KiB
		call := s.send(s.request(s.t.Context(), "POST", bytes.NewReader(data)))
		id := want[*http2.MetaHeadersFrame](s).StreamID
		var got []byte
		take := func(until int) {
			t.Helper()
			for len(got) < until {
				got = append(got, want[*http2.DataFrame](s).Data()...)
			}
			synctest.Wait()
			if len(got) != until {
				t.Fatalf("%d bytes came, the windows allow %d", len(got), until)
			}
		}
		quiet := func(why string) {
			t.Helper()
			s.do(s.nc.SetReadDeadline(time.Now().Add(time.Second)))
			for f := s.any(); f != nil; f = s.any() {
				if d, ok := f.(*http2.DataFrame); ok {
					t.Fatalf("%s: %v", why, d)
				}
			}
			s.do(s.nc.SetReadDeadline(time.Time{}))
		}
		take(65535)
		quiet("windows used up")
		s.do(s.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})) // -64535
		s.do(s.fr.WriteWindowUpdate(0, 1<<20))
		s.do(s.fr.WriteWindowUpdate(id, 64535))
		quiet("the window is zero, from below")
		s.do(s.fr.WriteWindowUpdate(id, 10))
		take(65545)
		s.do(s.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2000}))
		take(66545)
		s.do(s.fr.WriteWindowUpdate(id, 1<<20))
		for {
			f := want[*http2.DataFrame](s)
			if len(f.Data()) > 16<<10 {
				t.Errorf("a frame of %d bytes", len(f.Data()))
			}
			if got = append(got, f.Data()...); f.StreamEnded() {
				break
			}
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes came, not the %d sent", len(got), len(data))
		}
		s.fields(id, true, ":status: 204")
		_, _ = call.wait()
	})
}
