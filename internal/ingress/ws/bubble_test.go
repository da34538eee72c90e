// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A peer is one end in a bubble, whose frames the test writes and reads itself. It
// knows nothing of the package's own parser.
type peer struct {
	t    testing.TB
	c    net.Conn
	mask bool // it is the client
}

// A frame as a peer sees it.
type frame struct {
	first   byte
	payload string // without its mask
}

func (f frame) String() string {
	if len(f.payload) > 60 {
		return fmt.Sprintf("%02x+%d bytes", f.first, len(f.payload))
	}
	return fmt.Sprintf("%02x %q", f.first, f.payload)
}

// bytes is the frame on the wire, with a key of its own if masked.
func (f frame) bytes(masked bool) []byte {
	b := []byte{f.first, 0}
	switch n := len(f.payload); {
	case n < 126:
		b[1] = byte(n)
	case n < 1<<16:
		b[1] = 126
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	default:
		b[1] = 127
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	if !masked {
		return append(b, f.payload...)
	}
	b[1] |= 0x80
	key := [4]byte{0xa1, 0x07, 0x5c, byte(len(f.payload))}
	b = append(b, key[:]...)
	for i := range len(f.payload) {
		b = append(b, f.payload[i]^key[i%4])
	}
	return b
}

func (p *peer) send(first byte, payload string) {
	p.t.Helper()
	p.raw(frame{first, payload}.bytes(p.mask))
}

func (p *peer) raw(b []byte) {
	p.t.Helper()
	if _, err := p.c.Write(b); err != nil {
		p.t.Errorf("write of %d bytes: %v", len(b), err)
	}
}

// next reads a frame; at the end it returns the error.
func (p *peer) next() (frame, error) {
	f, masked, err := readFrame(p.c)
	if err == nil && masked == p.mask { // what comes to a client is not masked
		p.t.Errorf("frame %v: masked %v", f, masked)
	}
	return f, err
}

// readFrame returns what there is of a payload that is cut, with the error.
func readFrame(r io.Reader) (f frame, masked bool, err error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return f, false, err
	}
	f.first, masked = b[0], b[1]&0x80 != 0
	n := uint64(b[1] & 0x7f)
	switch n {
	case 126:
		_, err = io.ReadFull(r, b[:2])
		n = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		_, err = io.ReadFull(r, b[:8])
		n = binary.BigEndian.Uint64(b[:])
	}
	if err != nil {
		return f, masked, err
	}
	var key [4]byte
	if masked {
		if _, err := io.ReadFull(r, key[:]); err != nil {
			return f, masked, err
		}
	}
	payload, err := io.ReadAll(io.LimitReader(r, int64(n&^(1<<63))))
	if err == nil && uint64(len(payload)) < n {
		err = io.ErrUnexpectedEOF
	}
	if masked {
		for i := range payload {
			payload[i] ^= key[i%4]
		}
	}
	f.payload = string(payload)
	return f, masked, err
}

// want reads a frame and compares it.
func (p *peer) want(first byte, payload string) {
	p.t.Helper()
	f, err := p.next()
	if err != nil || f.first != first || f.payload != payload {
		p.t.Errorf("got %v, %v; want %v", f, err, frame{first, payload})
	}
}

// wantClose reads a close frame.
func (p *peer) wantClose(code int, reason string) {
	p.t.Helper()
	p.want(0x88, closing(code, reason))
}

// wantEnd reads the end of the connection.
func (p *peer) wantEnd() {
	p.t.Helper()
	if f, err := p.next(); err != io.EOF {
		p.t.Errorf("got %v, %v; want the end", f, err)
	}
}

// wantNothing checks that nothing comes for d.
func (p *peer) wantNothing(d time.Duration) {
	p.t.Helper()
	_ = p.c.SetReadDeadline(time.Now().Add(d))
	if n, err := p.c.Read(make([]byte, 1)); n != 0 || err == io.EOF {
		p.t.Errorf("something came: %d bytes, %v", n, err)
	}
	_ = p.c.SetReadDeadline(time.Time{})
}

func closing(code int, reason string) string {
	return string(binary.BigEndian.AppendUint16(nil, uint16(code))) + reason
}

// A scene is a relay between two peers on a fake clock.
type scene struct {
	app, up *peer
	relay   *Relay
	start   time.Time
	stop    context.CancelFunc
	cause   chan Cause
}

// play makes a test for a bubble of a scene. setup may change what the relay is
// made of.
func play(setup func(app, up *Leg, cfg *Config), test func(s *scene)) func(*testing.T) {
	return func(t *testing.T) {
		appSide, appLeg := net.Pipe()
		upSide, upLeg := net.Pipe()
		app, up, cfg := Leg{Conn: appLeg}, Leg{Conn: upLeg}, Config{}
		if setup != nil {
			setup(&app, &up, &cfg)
		}
		r, err := New(app, up, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		s := &scene{
			app: &peer{t, appSide, true}, up: &peer{t, upSide, false}, relay: r,
			start: time.Now(), stop: cancel, cause: make(chan Cause, 1),
		}
		go func() { s.cause <- r.Run(ctx) }()
		test(s)
		_, _ = appSide.Close(), upSide.Close()
		cancel()
		synctest.Wait()
	}
}

// ends waits for the relay's end and checks why and when, from the start.
func (s *scene) ends(want Cause, at time.Duration) {
	s.app.t.Helper()
	got := <-s.cause
	if took := time.Since(s.start); got != want || took != at {
		s.app.t.Errorf("ended because %v after %v, want %v after %v", got, took, want, at)
	}
}

// at checks the time since the start.
func (s *scene) at(want time.Duration) {
	s.app.t.Helper()
	if got := time.Since(s.start); got != want {
		s.app.t.Errorf("%v after the start, want %v", got, want)
	}
}
