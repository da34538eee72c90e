// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	tapKeep     = 64 << 10 // bytes of an HTTP/1 connection kept to show the order of fields
	goawayGrace = time.Second
)

type connKey struct{}

// connOf returns the connection that serves a request, or nil if the handler
// is embedded in a server of somebody else.
func connOf(ctx context.Context) *tapConn {
	c, _ := ctx.Value(connKey{}).(*tapConn)
	return c
}

// tapListener wraps what it accepts. With a TLS configuration the handshake
// happens at the first read, in the connection's own goroutine.
type tapListener struct {
	net.Listener
	tls   *tls.Config // nil means plain
	stats *stats
}

func (l *tapListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &tapConn{Conn: raw, raw: raw}
	if l.tls != nil {
		c.tls = tls.Server(raw, l.tls)
		c.Conn = c.tls
	}
	l.stats.connection(l.tls != nil)
	return c, nil
}

// tapConn follows the frame edges of an HTTP/2 connection, so that frames of
// our own fit between those of the server, and keeps the last bytes of an
// HTTP/1 connection.
type tapConn struct {
	net.Conn
	raw net.Conn
	tls *tls.Conn // nil on a plain connection

	mu      sync.Mutex // guards the fields below
	seen    []byte     // HTTP/1: the last bytes read
	in, out frameEdge
	preface int    // bytes of the client preface still to skip
	sniffed bool   // the first bytes have told which protocol it is
	h2      bool   // it is HTTP/2
	last    uint32 // highest stream the client opened
	gone    bool   // a GOAWAY was sent
	timer   *time.Timer

	wmu     sync.Mutex // held while writing; guards pending
	pending []byte     // frames that wait for an edge
}

// frameEdge counts through frames.
type frameEdge struct {
	head [9]byte
	n    int // bytes of head that are filled
	left int // bytes of payload to come
}

func (f *frameEdge) atEdge() bool { return f.n == 0 && f.left == 0 }

// step consumes up to the end of a frame or of b, and returns how much; begun
// is called once a frame's head is complete.
func (f *frameEdge) step(b []byte, begun func(kind http2.FrameType, stream uint32)) int {
	used := 0
	if f.left == 0 {
		used = copy(f.head[f.n:], b)
		if f.n += used; f.n < len(f.head) {
			return used
		}
		f.n = 0
		f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		begun(http2.FrameType(f.head[3]), binary.BigEndian.Uint32(f.head[5:])&(1<<31-1))
	}
	payload := min(f.left, len(b)-used)
	f.left -= payload
	return used + payload
}

func (c *tapConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.mu.Lock()
		c.noteLocked(b[:n])
		c.mu.Unlock()
	}
	return n, err
}

func (c *tapConn) noteLocked(b []byte) {
	if !c.h2 {
		c.seen = append(c.seen, b...)
		if !c.sniffed && len(c.seen) >= 4 {
			c.sniffed = true
			c.h2 = bytes.HasPrefix(c.seen, []byte("PRI "))
			if c.h2 {
				b, c.seen = c.seen, nil
				c.preface = len(http2.ClientPreface)
			}
		}
		if !c.h2 {
			if len(c.seen) > 2*tapKeep {
				c.seen = append(c.seen[:0], c.seen[len(c.seen)-tapKeep:]...)
			}
			return
		}
	}
	skip := min(c.preface, len(b))
	c.preface -= skip
	for b = b[skip:]; len(b) > 0; {
		b = b[c.in.step(b, func(kind http2.FrameType, stream uint32) {
			if kind == http2.FrameHeaders && stream > c.last {
				c.last = stream
			}
		}):]
	}
}

func (c *tapConn) Write(b []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	h2 := c.h2
	c.mu.Unlock()
	if !h2 {
		return c.Conn.Write(b)
	}
	for at := 0; at < len(b); {
		if c.out.atEdge() && len(c.pending) > 0 {
			if n, err := c.Conn.Write(b[:at]); err != nil {
				return n, err
			}
			n, err := c.writeFrom(b, at)
			return n, err
		}
		at += c.out.step(b[at:], func(http2.FrameType, uint32) {})
	}
	n, err := c.Conn.Write(b)
	if err == nil && c.out.atEdge() && len(c.pending) > 0 {
		_, err = c.Conn.Write(c.pending)
		c.pending = nil
	}
	return n, err
}

// writeFrom writes the waiting frames and then b[at:]; wmu is held.
func (c *tapConn) writeFrom(b []byte, at int) (int, error) {
	if _, err := c.Conn.Write(c.pending); err != nil {
		return at, err
	}
	c.pending = nil
	rest := b[at:]
	for i := 0; i < len(rest); {
		i += c.out.step(rest[i:], func(http2.FrameType, uint32) {})
	}
	n, err := c.Conn.Write(rest)
	return at + n, err
}

// inject writes a frame at the next edge.
func (c *tapConn) inject(frame []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if !c.out.atEdge() {
		c.pending = append(c.pending, frame...)
		return nil
	}
	_, err := c.Conn.Write(frame)
	return err
}

func goawayFrame(last uint32) []byte {
	var b bytes.Buffer
	// NO_ERROR is what a server that is taken out of service says, RFC 9113 section 6.8.
	if err := http2.NewFramer(&b, nil).WriteGoAway(last, http2.ErrCodeNo, nil); err != nil {
		panic("mockapi: internal error: " + err.Error())
	}
	return b.Bytes()
}

// goaway says in one of three ways that the connection takes no more streams.
func (c *tapConn) goaway(how string) error {
	c.mu.Lock()
	last := c.last
	c.gone = true
	c.mu.Unlock()
	switch how {
	case "abrupt":
		err := c.inject(goawayFrame(last))
		return firstError(err, c.Close())
	case "refuse":
		return c.inject(goawayFrame(0))
	}
	// RFC 9113 section 6.8: first the highest possible number, then, when
	// requests under way have had the time to arrive, the true one.
	if err := c.inject(goawayFrame(1<<31 - 1)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(goawayGrace, c.secondGoaway)
	return nil
}

// secondGoaway needs no answer: a failed write means that the connection is
// gone, which its own goroutine notices.
func (c *tapConn) secondGoaway() {
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	_ = c.inject(goawayFrame(last))
}

func (c *tapConn) Close() error {
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// reset ends the connection with a TCP RST where there is TCP below.
func (c *tapConn) reset() {
	if tcp, ok := c.raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the close is a FIN, which is a fault too
	}
	_ = c.raw.Close()
	_ = c.Close()
}

func (c *tapConn) goneAway() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// fields returns the fields of the latest HTTP/1 request with this request
// line in order of arrival.
func (c *tapConn) fields(requestLine string) ([][2]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := bytes.LastIndex(c.seen, []byte(requestLine+"\r\n"))
	if at < 0 {
		return nil, false
	}
	head, _, whole := bytes.Cut(c.seen[at+len(requestLine)+2:], []byte("\r\n\r\n"))
	if !whole {
		return nil, false
	}
	var list [][2]string
	for line := range strings.SplitSeq(string(head), "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		list = append(list, [2]string{name, strings.Trim(value, " \t")})
	}
	return list, true
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
