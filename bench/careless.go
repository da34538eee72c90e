// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"
)

// faultHeader names what the careless upstream does with a call.
const faultHeader = "Bench-Fault"

// The faults, and those that only HTTP/2 has: of one stream alone, two of which prove that
// the call was not executed, and of a connection with all that runs on it.
var (
	faults     = []string{"head", "body", "status", "cut", "503", "429", "529", "500", "close"}
	ofStream   = []string{"503", "429", "529", "500", "stream", "half", "status", "refuse", "refuse"}
	ofConn     = []string{"head", "body", "cut", "close", "goaway", "goaway"}
	streamOver = 15 // times as often: a connection that breaks off takes up to 63 other calls with it
)

// A careless executes calls and breaks off, in every way there is. It counts by id what
// it has executed: a call whose head it took, unless it refused it in words that prove
// that it did not.
type careless struct {
	mu       sync.Mutex // guards the fields below
	executed map[string]int
	refused  map[string]int
	arrivals int
}

func newCareless() *careless {
	return &careless{executed: make(map[string]int), refused: make(map[string]int)}
}

func (c *careless) execute(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrivals++
	c.executed[id]++
}

// refuse counts a refusal.
func (c *careless) refuse(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrivals++
	c.refused[id]++
}

// again says whether a call was refused before: then it is executed.
func (c *careless) again(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[id] > 0
}

// serve serves connections of ln until ctx ends.
func (c *careless) serve(ctx context.Context, ln net.Listener, each func(net.Conn)) error {
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var conns errgroup.Group
	for {
		conn, err := ln.Accept()
		if err != nil {
			return errors.Join(conns.Wait(), ignore(err, net.ErrClosed))
		}
		conns.Go(func() error {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			defer conn.Close()
			each(conn)
			return nil
		})
	}
}

func ignore(err, known error) error {
	if errors.Is(err, known) {
		return nil
	}
	return err
}

// reset ends a connection with RST.
func reset(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

const (
	fine   = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	broken = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it"
)

// serveH1 speaks HTTP/1.1 as far as Warmwire does to an upstream.
func (c *careless) serveH1(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		if _, err := in.Peek(1); err != nil {
			return
		}
		if rand.IntN(50) == 0 { // before the head was looked at
			reset(conn)
			return
		}
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		c.execute(req.Header.Get(callHeader))
		fault := req.Header.Get(faultHeader)
		if fault == "head" {
			reset(conn)
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		text, end := fine, false
		switch fault {
		case "503", "429", "529", "500":
			text = "HTTP/1.1 " + fault + " No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"
		case "body":
			text, end = "", true
		case "status":
			text, end = "HTTP/1.1 2", true
		case "cut":
			text, end = broken, true
		case "close": // at once, and without having said so
			_, _ = io.WriteString(conn, text)
			return
		}
		_, err = io.WriteString(conn, text)
		if end {
			reset(conn)
		}
		if err != nil || end {
			return
		}
	}
}

// An h2conn is a connection of serveH2.
type h2conn struct {
	c     *careless
	conn  net.Conn
	f     *http2.Framer
	enc   *hpack.Encoder
	block bytes.Buffer
	open  map[uint32]h2call // whose bodies are not complete
	last  uint32            // GOAWAY was sent: no later stream is taken; 0 = none was
}

type h2call struct{ id, fault string }

// errOver ends a connection.
var errOver = errors.New("the connection is over")

// serveH2 speaks HTTP/2 with what Warmwire needs.
func (c *careless) serveH2(conn net.Conn) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	h := &h2conn{c: c, conn: conn, f: http2.NewFramer(conn, conn), open: make(map[uint32]h2call)}
	h.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.enc = hpack.NewEncoder(&h.block)
	if h.f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 100}) != nil {
		return
	}
	for {
		frame, err := h.f.ReadFrame()
		if err != nil || h.step(frame) != nil {
			return
		}
	}
}

func (h *h2conn) step(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return h.f.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return h.f.WritePing(true, f.Data)
		}
	case *http2.MetaHeadersFrame:
		return h.head(f)
	case *http2.RSTStreamFrame:
		delete(h.open, f.StreamID)
	case *http2.DataFrame:
		if n := uint32(len(f.Data())); n > 0 {
			if err := errors.Join(h.f.WriteWindowUpdate(0, n), h.f.WriteWindowUpdate(f.StreamID, n)); err != nil {
				return err
			}
		}
		if call, ok := h.open[f.StreamID]; ok && f.StreamEnded() {
			delete(h.open, f.StreamID)
			return h.answer(f.StreamID, call)
		}
	}
	return nil
}

// head takes a new call, or refuses it.
func (h *h2conn) head(f *http2.MetaHeadersFrame) error {
	if h.last != 0 && f.StreamID > h.last {
		return nil // not processed, as GOAWAY has said
	}
	var call h2call
	for _, field := range f.RegularFields() {
		switch http.CanonicalHeaderKey(field.Name) {
		case callHeader:
			call.id = field.Value
		case faultHeader:
			call.fault = field.Value
		}
	}
	if !h.c.again(call.id) {
		switch call.fault {
		case "refuse":
			h.c.refuse(call.id)
			return h.f.WriteRSTStream(f.StreamID, http2.ErrCodeRefusedStream)
		case "goaway":
			h.c.refuse(call.id)
			h.last = max(1, f.StreamID-2)
			if f.StreamID == 1 {
				h.last = 0
			}
			err := h.f.WriteGoAway(h.last, http2.ErrCodeNo, nil)
			if len(h.open) == 0 || h.last == 0 {
				return errors.Join(errOver, err)
			}
			return err
		}
	}
	h.c.execute(call.id)
	if call.fault == "head" {
		reset(h.conn)
		return errOver
	}
	if f.StreamEnded() {
		return h.answer(f.StreamID, call)
	}
	h.open[f.StreamID] = call
	return nil
}

func (h *h2conn) answer(id uint32, call h2call) error {
	var err error
	switch call.fault {
	case "body":
		reset(h.conn)
		return errOver
	case "stream":
		err = h.f.WriteRSTStream(id, http2.ErrCodeInternal)
	case "half", "status", "cut":
		if err = errors.Join(h.fields(id, "200", false), h.f.WriteData(id, false, []byte("half"))); err == nil {
			err = h.f.WriteRSTStream(id, http2.ErrCodeInternal)
		}
		if call.fault == "cut" {
			reset(h.conn)
			return errOver
		}
	case "503", "429", "529", "500":
		err = h.fields(id, call.fault, true)
	default:
		err = errors.Join(h.fields(id, "200", false), h.f.WriteData(id, true, []byte("ok")))
		if call.fault == "close" {
			return errOver
		}
	}
	if h.last != 0 && len(h.open) == 0 {
		return errOver
	}
	return err
}

func (h *h2conn) fields(id uint32, status string, end bool) error {
	h.block.Reset()
	err := h.enc.WriteField(hpack.HeaderField{Name: ":status", Value: status})
	if status != "200" {
		err = errors.Join(err, h.enc.WriteField(hpack.HeaderField{Name: "retry-after", Value: "0"}))
	}
	return errors.Join(err, h.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.block.Bytes(), EndStream: end, EndHeaders: true}))
}

// summary says how many calls were executed, how many of them more than once, how many
// were refused, and how many of those were never executed.
func (c *careless) summary() (calls, twice, refused, lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.executed {
		if n > 1 {
			twice++
		}
	}
	for id := range c.refused {
		if c.executed[id] == 0 {
			lost++
		}
	}
	return len(c.executed), twice, len(c.refused), lost
}
