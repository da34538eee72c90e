// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A cutConn gives what its peer sent in pieces of random size, and then the end. It
// takes what is written after random pauses.
type cutConn struct {
	mu     sync.Mutex // guards the following
	rnd    *rand.Rand
	in     []byte
	maxCut int
	pauses bool
	out    bytes.Buffer
	closed chan struct{}
	once   sync.Once
}

func newCutConn(in []byte, seed uint64, maxCut int, pauses bool) *cutConn {
	return &cutConn{rnd: rand.New(rand.NewPCG(seed, 1)), in: in, maxCut: maxCut, pauses: pauses, closed: make(chan struct{})}
}

func (c *cutConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closed:
		return 0, io.ErrClosedPipe
	default:
	}
	if len(c.in) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(c.in), 1+c.rnd.IntN(c.maxCut))
	copy(p, c.in[:n])
	c.in = c.in[n:]
	return n, nil
}

func (c *cutConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	var pause time.Duration
	if c.pauses && c.rnd.IntN(4) == 0 {
		pause = time.Duration(c.rnd.IntN(100)) * time.Millisecond
	}
	c.mu.Unlock()
	select {
	case <-c.closed:
		return 0, io.ErrClosedPipe
	case <-later(pause):
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

// later is closed, or receives, after d.
func later(d time.Duration) <-chan time.Time {
	if d > 0 {
		return time.After(d)
	}
	now := make(chan time.Time)
	close(now)
	return now
}

func (c *cutConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// A talk is what one side has sent, or was sent, in the sense of RFC 6455.
type talk struct {
	messages []frame // joined: the first frame's bits with FIN set, all payload
	first    byte    // of the message that has not ended; 0 = none
	partial  []byte  // its payload so far
	pings    []string
	pongs    []string
	closes   []string
	frames   int
}

var errTalk = errors.New("no WebSocket framing")

// listen reads frames until the end of r, with a parser of its own.
func listen(r io.Reader, masked bool) (t talk, err error) {
	for {
		f, m, err := readFrame(r)
		switch {
		case err == io.ErrUnexpectedEOF && f.payload != "" && m == masked && f.first&0x08 == 0 && len(t.closes) == 0:
			return t, t.take(frame{f.first &^ 0x80, f.payload}) // what there is of it
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return t, nil
		case m != masked:
			return t, fmt.Errorf("%w: %v, masked %v", errTalk, f, m)
		case len(t.closes) > 0:
			return t, fmt.Errorf("%w: %v behind a close frame", errTalk, f)
		}
		t.frames++
		if err := t.take(f); err != nil {
			return t, err
		}
	}
}

func (t *talk) take(f frame) error {
	switch op := f.first & 0x0f; {
	case op == opClose:
		t.closes = append(t.closes, f.payload)
	case op == opPing:
		t.pings = append(t.pings, f.payload)
	case op == opPong:
		t.pongs = append(t.pongs, f.payload)
	case (op == opContinuation) != (t.first != 0):
		return fmt.Errorf("%w: %v out of order", errTalk, f)
	default:
		if t.first == 0 {
			t.first = f.first | 0x80
		}
		t.partial = append(t.partial, f.payload...)
		if f.first&0x80 != 0 {
			t.messages = append(t.messages, frame{t.first, string(t.partial)})
			t.first, t.partial = 0, nil
		}
	}
	return nil
}

// relayAll relays what both sides send and returns what they got.
func relayAll(t *testing.T, app, up *cutConn, cfg Config) Cause {
	r, err := New(Leg{Conn: app}, Leg{Conn: up}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r.Run(context.Background())
}

// A script is what one side sends: whole messages, with control frames between the
// fragments, and a close frame.
func script(t *rapid.T, masked bool, label string) []byte {
	size := rapid.OneOf(rapid.SampledFrom([]int{0, 1, 125, 126, 4082, 4096, 16384, 65535, 65536, 65537, 300_000}), rapid.IntRange(0, 300), rapid.IntRange(0, 5000))
	var wire []byte
	control := func() {
		for range rapid.IntRange(0, 2).Draw(t, "control frames") {
			first := rapid.SampledFrom([]byte{ping, pong}).Draw(t, "kind")
			wire = append(wire, frame{first, strings.Repeat("c", rapid.IntRange(0, 125).Draw(t, "bytes"))}.bytes(masked)...)
		}
	}
	for i := range rapid.IntRange(0, 4).Draw(t, label+" messages") {
		n := rapid.IntRange(1, 3).Draw(t, "fragments")
		for k := range n {
			f := frame{payload: strings.Repeat(string(rune('a'+i+k)), size.Draw(t, "size"))}
			if k == 0 {
				f.first = rapid.SampledFrom([]byte{0x01, 0x02, 0x41, 0x42}).Draw(t, "first")
			}
			if k == n-1 {
				f.first |= 0x80
			}
			control()
			wire = append(wire, f.bytes(masked)...)
		}
		control()
	}
	return append(wire, frame{0x88, closing(1000, label)}.bytes(masked)...)
}

func TestWhatIsSentIsWhatIsReceived(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		toUp, toApp := script(rt, true, "app"), script(rt, false, "up")
		seed := rapid.Uint64().Draw(rt, "seed")
		cut := rapid.SampledFrom([]int{1, 7, 1000, 100_000}).Draw(rt, "cut")
		pauses := rapid.Bool().Draw(rt, "pauses")
		ext := rapid.SampledFrom([]string{"permessage-deflate", "x-unknown"}).Draw(rt, "extension")
		if len(toUp)+len(toApp) > 100_000 {
			cut = max(cut, 1000) // or it takes too long
		}
		app, up := newCutConn(toUp, seed, cut, pauses), newCutConn(toApp, seed+1, cut, pauses)
		var cause Cause
		synctest.Test(t, func(t *testing.T) {
			app.closed, up.closed = make(chan struct{}), make(chan struct{}) // of this bubble
			cause = relayAll(t, app, up, Config{Extensions: []string{ext}, ReadAhead: 100_000, CloseWait: time.Hour, Closing: time.Hour})
		})
		if cause != Closed {
			rt.Fatalf("ended because %v", cause)
		}
		compare(rt, "upstream", toUp, up.out.Bytes(), toApp, true)
		compare(rt, "app", toApp, app.out.Bytes(), toUp, false)
		for _, side := range []struct {
			got    []byte
			server bool
		}{{up.out.Bytes(), true}, {app.out.Bytes(), false}} {
			if err := gorillaReads(side.got, side.server); err != nil {
				rt.Fatalf("gorilla (server %v): %v", side.server, err)
			}
		}
	})
}

// compare holds what a side got against what the other sent, and its pongs against
// its own pings.
func compare(t *rapid.T, side string, sent, got, own []byte, masked bool) {
	want, err := listen(bytes.NewReader(sent), masked)
	if err != nil {
		t.Fatal(err)
	}
	have, err := listen(bytes.NewReader(got), masked)
	if err != nil {
		t.Fatalf("%s: %v", side, err)
	}
	mine, err := listen(bytes.NewReader(own), !masked)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(have.messages, want.messages) || !slices.Equal(have.closes, want.closes) || have.first != 0 {
		t.Fatalf("%s got messages %v, close %q; want %v, %q", side, have.messages, have.closes, want.messages, want.closes)
	}
	if len(have.pings) > 0 {
		t.Fatalf("%s got pings %q", side, have.pings)
	}
	rest := mine.pings
	for _, p := range have.pongs { // some may be left out behind a slow reader
		i := slices.Index(rest, p)
		if i < 0 {
			t.Fatalf("%s got the pong %q for none of its pings", side, p)
		}
		rest = rest[i+1:]
	}
}

// FuzzRelay has both sides send anything. What goes on is what may go on of it, in
// frames that are whole.
func FuzzRelay(f *testing.F) {
	f.Add(frame{finText, "hello"}.bytes(true), frame{finText, "world"}.bytes(false), uint64(1), 3, "")
	f.Add(frame{finBinary, strings.Repeat("x", 70_000)}.bytes(true), append(frame{ping, "p"}.bytes(false), frame{0x88, ""}.bytes(false)...), uint64(2), 5000, "permessage-deflate")
	f.Add([]byte{0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, []byte{0x83, 0}, uint64(3), 1, "")
	f.Add([]byte{0x02, 0xff, 0, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4, 'x'}, []byte{0x01, 1, 'a', 0x89, 0, 0x80, 0}, uint64(4), 1, "")
	f.Add([]byte{0xf2, 0xff, 0, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4, 'x'}, []byte{0xf1, 1, 'a', 0x8f, 0, 0x80, 0}, uint64(5), 4, "x")
	f.Fuzz(func(t *testing.T, toUp, toApp []byte, seed uint64, cut int, ext string) {
		cut = 1 + int(uint(cut)%10_000)
		synctest.Test(t, func(t *testing.T) {
			app, up := newCutConn(toUp, seed, cut, seed%2 == 0), newCutConn(toApp, seed+1, cut, seed%3 == 0)
			relayAll(t, app, up, Config{Extensions: []string{ext}, ReadAhead: 1000})
			if parseExtensions([]string{ext}).opaque {
				return // what passes is theirs
			}
			for _, side := range []struct {
				sent, got []byte
				masked    bool
			}{{toUp, up.out.Bytes(), true}, {toApp, app.out.Bytes(), false}} {
				have, err := listen(bytes.NewReader(side.got), side.masked)
				if err != nil {
					t.Fatalf("masked %v: %v from %x", side.masked, err, side.sent)
				}
				want, _ := listen(bytes.NewReader(side.sent), side.masked)
				prefix(t, have, want)
			}
		})
	})
}

// prefix checks that have is what want begins with.
func prefix(t *testing.T, have, want talk) {
	if want.first != 0 {
		want.messages = append(want.messages, frame{want.first, string(want.partial)})
	}
	n := len(have.messages)
	if n > len(want.messages) || !slices.Equal(have.messages, want.messages[:n]) {
		t.Fatalf("got messages %v of %v", have.messages, want.messages)
	}
	if have.first == 0 {
		return
	}
	if n == len(want.messages) || want.messages[n].first != have.first || !strings.HasPrefix(want.messages[n].payload, string(have.partial)) {
		t.Fatalf("got the part %v of messages %v", frame{have.first, string(have.partial)}, want.messages[n:])
	}
}
