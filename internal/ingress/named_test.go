// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/testenv"
)

// A provider answers with the bytes that the test gives it, and tells when its
// connection broke.
type provider struct {
	*httptest.Server
	asked atomic.Int32
	give  chan []byte // closed: the end
	gone  chan struct{}
	seen  chan http.Header
}

func newProvider(t *testing.T, length int64) *provider {
	p := &provider{give: make(chan []byte, 1000), gone: make(chan struct{}, 10), seen: make(chan http.Header, 10)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		p.seen <- r.Header
		_, _ = io.Copy(io.Discard, r.Body)
		if length >= 0 {
			w.Header().Set("Content-Length", fmt.Sprint(length))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		for {
			select {
			case b, more := <-p.give:
				if !more {
					return
				}
				if b == nil {
					panic(http.ErrAbortHandler)
				}
				_, _ = w.Write(b)
				_ = rc.Flush()
			case <-r.Context().Done():
				p.gone <- struct{}{}
				return
			}
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) addr() string { return p.Listener.Addr().String() }

// noise is data of which no part looks like another.
func noise(n int) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(b)
	return b
}

// namedRig is a rig whose app may come back within wait.
func namedRig(t *testing.T, p *provider, wait time.Duration, keep int64) *rig {
	dir := t.TempDir()
	return newRig(t, p.addr(), func(_ *Table, u *Upstream) {
		u.Reattach = &Reattach{Wait: wait, Spool: bufferctl.SpoolConfig{Memory: 64 << 10, File: 2*keep - 64<<10, Keep: keep, Dir: dir}}
	})
}

// A caller is one connection of an app.
type caller struct {
	*testenv.Raw
	head string
}

func (r *rig) named(id, more string) *caller {
	r.t.Helper()
	c := &caller{Raw: r.dial()}
	c.Send("POST /up/v1/chat HTTP/1.1\nHost: localhost\nContent-Length: 0\nWarmwire-Stream: " + id + "\n" + more + "\n")
	return c
}

// answered waits for the head.
func (c *caller) answered() *caller {
	c.head = c.Raw.Head()
	return c
}

// body reads the coded body to its end, and says whether it was whole.
func (c *caller) body() ([]byte, error) {
	resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(strings.ReplaceAll(c.head, "\n", "\r\n")+"\r\n"), c.In)), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// some reads n bytes of body.
func (c *caller) some(t *testing.T, n int) []byte {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReaderSize(io.MultiReader(strings.NewReader(strings.ReplaceAll(c.head, "\n", "\r\n")+"\r\n"), c.In), 16), nil)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(resp.Body, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAnAppComesBackToItsStream breaks the app's connection at several places: it goes
// on byte for byte where it says it was, and the provider is asked once.
func TestAnAppComesBackToItsStream(t *testing.T) {
	data := noise(900 << 10)
	for _, length := range []int64{-1, int64(len(data))} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			p := newProvider(t, length)
			r := namedRig(t, p, patience, 1<<20)
			app := r.named("s-1", "").answered()
			if !strings.Contains(app.head, "HTTP/1.1 200 ") || !strings.Contains(app.head, "Warmwire-Stream: s-1\n") {
				t.Fatalf("head %q", app.head)
			}
			h := <-p.seen
			if h.Get(streamHeader) != "" {
				t.Error("the name went to the provider")
			}
			p.give <- data[:1000]
			got := app.some(t, 700) // 300 bytes are on the way when it dies
			_ = app.Close()
			if rec := r.record(); rec.Outcome != OutcomeCutApp {
				t.Errorf("outcome %s", rec.Outcome)
			}
			for at := 1000; at < 500<<10; at += 10 << 10 { // the provider goes on meanwhile
				p.give <- data[at : at+10<<10]
			}
			app = r.named("s-1", "Warmwire-Position: 700\n").answered()
			if !strings.Contains(app.head, "HTTP/1.1 200 ") || !strings.Contains(app.head, "Warmwire-Position: 700\n") {
				t.Fatalf("head %q", app.head)
			}
			if length >= 0 && !strings.Contains(app.head, fmt.Sprintf("Content-Length: %d\n", length-700)) {
				t.Errorf("head %q", app.head)
			}
			got = append(got, app.some(t, 300<<10)...)
			_ = app.Close()
			at := 1000
			for at < 500<<10 {
				at += 10 << 10
			}
			p.give <- data[at:]
			close(p.give)
			app = r.named("s-1", fmt.Sprintf("Warmwire-Position: %d\n", len(got))).answered()
			rest, err := app.body()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, rest...)
			if sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("%d bytes, want %d, and not the same", len(got), len(data))
			}
			if n := p.asked.Load(); n != 1 {
				t.Errorf("the provider was asked %d times", n)
			}
		})
	}
}

// TestAnAppThatStaysAwayIsWaitedForSoLong ends the provider's stream when the time is
// over, and not before.
func TestAnAppThatStaysAwayIsWaitedForSoLong(t *testing.T) {
	p := newProvider(t, -1)
	const wait = 300 * time.Millisecond
	r := namedRig(t, p, wait, 1<<20)
	app := r.named("a", "").answered()
	p.give <- []byte("x")
	app.some(t, 1)
	away := time.Now()
	_ = app.Close()
	r.record()
	if list := r.server.Streams(); len(list) != 1 || !list[0].Absent || list[0].Upstream != "up" {
		t.Errorf("shown as %+v", list)
	}
	<-p.gone
	if took := time.Since(away); took < wait || took > wait+patience/2 {
		t.Errorf("the provider was let go after %v", took)
	}
	app = r.named("a", "Warmwire-Position: 1\n").answered()
	if !strings.HasPrefix(app.head, "HTTP/1.1 404 ") || !strings.Contains(app.head, "X-Should-Retry: false\n") {
		t.Errorf("after that: %q", app.head)
	}
	if list := r.server.Streams(); len(list) != 0 {
		t.Errorf("left over: %+v", list)
	}
}

// TestWithoutALeaveNothingChanges ignores the name where the operator has not
// allowed it.
func TestWithoutALeaveNothingChanges(t *testing.T) {
	p := newProvider(t, -1)
	r := newRig(t, p.addr(), nil)
	app := r.named("a", "").answered()
	if h := <-p.seen; h.Get(streamHeader) != "" {
		t.Error("the name went to the provider")
	}
	if strings.Contains(app.head, streamHeader) {
		t.Errorf("head %q", app.head)
	}
	_ = app.Close()
	<-p.gone
}

func TestAnAppBeforeItsHeadMayLeave(t *testing.T) {
	block := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-block
		_, _ = io.WriteString(w, "late")
	}))
	defer srv.Close()
	r := newRig(t, srv.Listener.Addr().String(), func(_ *Table, u *Upstream) {
		u.Reattach = &Reattach{Wait: patience, Spool: bufferctl.SpoolConfig{Memory: 64 << 10, Keep: 32 << 10}}
	})
	app := r.named("a", "")
	for len(r.server.Streams()) == 0 {
	}
	_ = app.Close()
	r.record()
	close(block)
	app = r.named("a", "Warmwire-Position: 0\n").answered()
	if body, err := app.body(); string(body) != "late" || err != nil {
		t.Errorf("%q %q, %v", app.head, body, err)
	}
}

// TestTheNewConnectionTakesOver comes back while the old one is still open, as after a
// change of networks.
func TestTheNewConnectionTakesOver(t *testing.T) {
	p := newProvider(t, -1)
	r := namedRig(t, p, patience, 1<<20)
	old := r.named("a", "").answered()
	p.give <- []byte("one")
	old.some(t, 3)
	app := r.named("a", "Warmwire-Position: 1\n").answered()
	if rest, _ := io.ReadAll(old.In); bytes.Contains(rest, []byte("0\r\n\r\n")) {
		t.Errorf("the old connection ended cleanly: %q", rest)
	}
	p.give <- []byte("two")
	close(p.give)
	if body, err := app.body(); string(body) != "netwo" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

// TestACutReachesAnAppThatComesBack keeps the end honest.
func TestACutReachesAnAppThatComesBack(t *testing.T) {
	p := newProvider(t, -1)
	r := namedRig(t, p, patience, 1<<20)
	app := r.named("a", "").answered()
	p.give <- []byte("one")
	app.some(t, 3)
	_ = app.Close()
	r.record()
	p.give <- nil
	app = r.named("a", "Warmwire-Position: 0\n").answered()
	if body, err := app.body(); string(body) != "one" || err == nil {
		t.Errorf("%q, %v", body, err)
	}
	if rec := r.record(); rec.Outcome != OutcomeCutUpstream || rec.Resumes != 1 {
		t.Errorf("%+v", rec)
	}
}

func TestNobodyElseGetsTheStream(t *testing.T) {
	p := newProvider(t, -1)
	r := namedRig(t, p, patience, 1<<20)
	app := r.named("a", "Authorization: Bearer mine\n").answered()
	p.give <- []byte("secret")
	for name, more := range map[string]string{
		"no key": "", "another key": "Authorization: Bearer yours\n", "another field": "X-Api-Key: Bearer mine\n",
	} {
		if other := r.named("a", more+"Warmwire-Position: 0\n").answered(); !strings.HasPrefix(other.head, "HTTP/1.1 404 ") {
			t.Errorf("%s: %q", name, other.head)
		}
	}
	elsewhere := r.dial()
	elsewhere.Send("POST /up/v1/other HTTP/1.1\nHost: localhost\nContent-Length: 0\nWarmwire-Stream: a\nAuthorization: Bearer mine\nWarmwire-Position: 0\n\n")
	if head := elsewhere.Head(); !strings.HasPrefix(head, "HTTP/1.1 404 ") {
		t.Errorf("another path: %q", head)
	}
	if got := app.some(t, 6); string(got) != "secret" {
		t.Errorf("%q", got)
	}
}

// TestAnAppThatComesBackToNothingIsNotANewRequest says where it is where no stream can
// be come back to, as after a restart with other settings: the answer is not made again.
func TestAnAppThatComesBackToNothingIsNotANewRequest(t *testing.T) {
	p := newProvider(t, -1)
	named, plain := namedRig(t, p, patience, 64<<10), newRig(t, p.addr(), nil)
	for name, head := range map[string]string{
		"not set": plain.named("a", "Warmwire-Position: 5\n").answered().head, "no name": func() string {
			app := named.dial()
			app.Send("POST /up/v1/chat HTTP/1.1\nHost: localhost\nContent-Length: 0\nWarmwire-Position: 5\n\n")
			return app.Head()
		}(), "no upstream": func() string {
			app := plain.dial()
			app.Send("POST http://" + p.addr() + "/v1/chat HTTP/1.1\nHost: x\nContent-Length: 0\nWarmwire-Stream: a\nWarmwire-Position: 5\n\n")
			return app.Head()
		}(),
	} {
		if !strings.HasPrefix(head, "HTTP/1.1 404 ") || !strings.Contains(head, "X-Should-Retry: false\n") {
			t.Errorf("%s: %q", name, head)
		}
	}
	if n := p.asked.Load(); n != 0 {
		t.Errorf("the provider was asked %d times", n)
	}
}

func TestBadNamesAndPositions(t *testing.T) {
	p := newProvider(t, -1)
	r := namedRig(t, p, patience, 64<<10)
	app := r.named("a", "").answered()
	p.give <- noise(500 << 10)
	app.some(t, 500<<10)
	for name, tt := range map[string]struct{ id, more, status string }{
		"in use":            {"a", "", "409"},
		"empty":             {"", "", "400"},
		"a blank in it":     {"a b", "", "400"},
		"too long":          {strings.Repeat("a", 129), "", "400"},
		"two names":         {"a\nWarmwire-Stream: b", "", "400"},
		"no number":         {"a", "Warmwire-Position: x\n", "400"},
		"negative":          {"a", "Warmwire-Position: -1\n", "400"},
		"two positions":     {"a", "Warmwire-Position: 1\nWarmwire-Position: 2\n", "400"},
		"never named":       {"b", "Warmwire-Position: 0\n", "404"},
		"no longer kept":    {"a", "Warmwire-Position: 1000\n", "416"},
		"ahead of the data": {"a", "Warmwire-Position: 512001\n", "416"},
	} {
		t.Run(name, func(t *testing.T) {
			if c := r.named(tt.id, tt.more).answered(); !strings.HasPrefix(c.head, "HTTP/1.1 "+tt.status+" ") {
				t.Errorf("%q, want %s", c.head, tt.status)
			}
		})
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the provider was asked %d times", n)
	}
}

// TestAHalfSentRequestDiesWithItsApp cancels what the provider cannot have whole.
func TestAHalfSentRequestDiesWithItsApp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r := newRig(t, ln.Addr().String(), func(_ *Table, u *Upstream) {
		u.Reattach = &Reattach{Wait: time.Hour, Spool: bufferctl.SpoolConfig{Memory: 64 << 10}}
	})
	app := r.dial()
	app.Send("POST /up/v1/chat HTTP/1.1\nHost: localhost\nContent-Length: 10\nWarmwire-Stream: a\n\nhalf")
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_ = app.Close()
	if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the provider's connection stays: %v", err)
	}
}

// TestASpoolLetsTheProviderFinish takes an answer that the app has not begun to read.
func TestASpoolLetsTheProviderFinish(t *testing.T) {
	data := noise(8 << 20)
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(done)
		_, _ = w.Write(data)
	}))
	defer srv.Close()
	dir := t.TempDir()
	r := newRig(t, srv.Listener.Addr().String(), func(_ *Table, u *Upstream) {
		u.Spool = &bufferctl.SpoolConfig{Memory: 64 << 10, File: 16 << 20, Dir: dir}
	})
	app := &caller{Raw: r.dialNarrow()}
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	app.answered()
	<-done // before a byte of the body is read
	if list := r.server.Streams(); len(list) != 1 || list[0].LagBytes < 1<<20 {
		t.Errorf("shown as %+v", list)
	}
	if got, err := app.body(); err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
	if rec := r.record(); rec.Outcome != OutcomeOK || rec.BytesOut != int64(len(data)) {
		t.Errorf("%+v", rec)
	}
}

// TestASpoolIsBoundedAndHonest fills a spool, cuts the provider, and lets the app read:
// all that came, then the cut. An app that leaves ends it at once.
func TestASpoolIsBoundedAndHonest(t *testing.T) {
	p := newProvider(t, -1)
	dir := t.TempDir()
	r := newRig(t, p.addr(), func(_ *Table, u *Upstream) {
		u.Spool = &bufferctl.SpoolConfig{Memory: 64 << 10, File: 256 << 10, Dir: dir}
	})
	open := func() *caller {
		app := &caller{Raw: r.dialNarrow()}
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
		return app.answered()
	}
	app := open()
	data := noise(500 << 10)
	for at := 0; at < len(data); at += 10 << 10 {
		p.give <- data[at : at+10<<10]
	}
	p.give <- nil
	got, err := app.body()
	if err == nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
	if rec := r.record(); rec.Outcome != OutcomeCutUpstream {
		t.Errorf("%s %s", rec.Outcome, rec.Cause)
	}
	app = open()
	p.give <- data[:1<<10]
	_ = app.Close()
	<-p.gone
	if rec := r.record(); rec.Outcome != OutcomeCutApp {
		t.Errorf("%s %s", rec.Outcome, rec.Cause)
	}
}

// TestNoStreamBeginsAfterTheEnd lets a request that waits for room be let in when all
// named streams have been ended: it is refused, and nothing is asked.
func TestNoStreamBeginsAfterTheEnd(t *testing.T) {
	p := newProvider(t, -1)
	var server atomic.Pointer[Server]
	var room atomic.Int32
	r := newRigWith(t, p.addr(), Config{Admit: func(context.Context, *Upstream, bool) (func(), error) {
		server.Load().sessions.endAll(errAborted)
		room.Add(1)
		return func() { room.Add(-1) }, nil
	}}, func(_ *Table, u *Upstream) {
		u.Reattach = &Reattach{Wait: patience, Spool: bufferctl.SpoolConfig{Memory: 64 << 10, File: 64 << 10, Dir: t.TempDir()}}
	})
	server.Store(r.server)
	app := r.named("late", "").answered()
	if !strings.HasPrefix(app.head, "HTTP/1.1 503 ") || !strings.Contains(app.head, "X-Should-Retry: true") {
		t.Errorf("head %q", app.head)
	}
	if rec := r.record(); rec.Cause != CauseDrain || rec.Outcome != OutcomeRefused {
		t.Errorf("recorded as %s, %s", rec.Outcome, rec.Cause)
	}
	if p.asked.Load() != 0 || room.Load() != 0 {
		t.Errorf("the provider was asked %d times, %d places are not given back", p.asked.Load(), room.Load())
	}
}
