// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"github.com/warmwire/warmwire/transport/fault"
)

// A script is a peer that sends and expects frame by frame, over real QUIC.
type script struct {
	t       *testing.T
	c       *Conn
	qc      *quic.Conn
	control *quic.SendStream
}

// play runs a script against a new connection. settings nil means that no control
// stream is opened.
func play(t *testing.T, cfg Config, sc *quic.Config, settings []uint64, run func(s *script)) {
	t.Helper()
	server, client := testTLS()
	server.NextProtos = []string{alpn}
	pc, addr := udp(t)
	tr := &quic.Transport{Conn: pc}
	l, err := tr.Listen(server, sc)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = l.Close()
		_ = tr.Close()
		_ = pc.Close()
	}()
	cfg.TLS = client
	e := endpoint(t, nil)
	defer e.Close()
	c := dial(t, e, addr, cfg)
	s := &script{t: t, c: c}
	if s.qc, err = l.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	if settings != nil {
		if s.control, err = s.qc.OpenUniStream(); err != nil {
			t.Fatal(err)
		}
		_, _ = s.control.Write([]byte{streamControl})
		var p []byte
		for _, v := range settings {
			p = quicvarint.Append(p, v)
		}
		s.tell(frameSettings, p)
		if err := c.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	run(s)
	_ = s.c.Close()
	eventually(t, "nothing is in flight after Close", func() bool { return c.InFlight() == 0 })
}

func common() []uint64 { return []uint64{} }

// tell sends a frame on the control stream.
func (s *script) tell(kind uint64, p []byte) { _, _ = s.control.Write(frame(kind, p)) }

func frame(kind uint64, p []byte) []byte {
	return append(appendFrame(nil, kind, uint64(len(p))), p...)
}

// fields is a HEADERS frame of "name: value" lines.
func fields(lines ...string) []byte {
	var b bytes.Buffer
	enc := qpack.NewEncoder(&b)
	for _, l := range lines {
		name, value, _ := strings.Cut(l[1:], ": ")
		_ = enc.WriteField(qpack.HeaderField{Name: l[:1] + name, Value: value})
	}
	return frame(frameHeaders, b.Bytes())
}

func data(p string) []byte { return frame(frameData, []byte(p)) }

// An asked is a request as the peer sees it.
type asked struct {
	*quic.Stream
	br     *bufio.Reader
	fields map[string]string
}

// next is the next request.
func (s *script) next() *asked {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	str, err := s.qc.AcceptStream(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	a := &asked{Stream: str, br: bufio.NewReader(str), fields: map[string]string{}}
	kind, p := a.frame()
	if kind != frameHeaders {
		s.t.Fatalf("frame %#x", kind)
	}
	next := qpack.NewDecoder().Decode(p)
	for f, err := next(); err == nil; f, err = next() {
		a.fields[f.Name] += f.Value
	}
	return a
}

func (a *asked) frame() (uint64, []byte) {
	kind, err := quicvarint.Read(a.br)
	if err != nil {
		return 1 << 60, nil
	}
	n, _ := quicvarint.Read(a.br)
	p := make([]byte, n)
	_, _ = io.ReadFull(a.br, p)
	return kind, p
}

// say writes frames, and ends the stream if end is set.
func (a *asked) say(end bool, frames ...[]byte) {
	_, _ = a.Write(bytes.Join(frames, nil))
	if end {
		_ = a.Close()
	}
}

// resetCode is why our end was left alone.
func (a *asked) resetCode(t *testing.T) errCode {
	t.Helper()
	_ = a.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err := io.Copy(io.Discard, a.br)
	if e, ok := errors.AsType[*quic.StreamError](err); ok {
		return errCode(e.ErrorCode)
	}
	t.Errorf("the stream ended with %v", err)
	return 0
}

// closeCode is how the client ended the connection.
func (s *script) closeCode() errCode {
	s.t.Helper()
	limit := time.NewTimer(5 * time.Second)
	defer limit.Stop()
	select {
	case <-s.qc.Context().Done():
	case <-limit.C:
		s.t.Error("the connection lives on")
		return 0
	}
	if e, ok := errors.AsType[*quic.ApplicationError](context.Cause(s.qc.Context())); ok {
		return errCode(e.ErrorCode)
	}
	s.t.Errorf("the connection ended with %v", context.Cause(s.qc.Context()))
	return 0
}

// A call is a request under way.
type call struct {
	resp *http.Response
	err  error
	done chan struct{}
}

func (c *call) wait(t *testing.T) (*http.Response, error) {
	t.Helper()
	limit := time.NewTimer(5 * time.Second)
	defer limit.Stop()
	select {
	case <-c.done:
	case <-limit.C:
		t.Fatal("the request does not end")
	}
	return c.resp, c.err
}

func (s *script) send(req *http.Request) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.resp, c.err = s.c.RoundTrip(req)
	}()
	return c
}

// open starts a GET and returns once its head has arrived.
func (s *script) open() (*call, *asked) {
	s.t.Helper()
	c := s.send(request(s.t, "GET", "/", nil))
	return c, s.next()
}

// stillWorks sees that the connection has not suffered.
func (s *script) stillWorks() {
	s.t.Helper()
	c, a := s.open()
	a.say(true, fields(":status: 200"), data("fine"))
	resp, err := c.wait(s.t)
	if err != nil {
		s.t.Errorf("the next request: %v", err)
		return
	}
	if got := readAll(s.t, resp); got != "fine" {
		s.t.Errorf("the next answer: %q", got)
	}
}

func faultOf(t *testing.T, err error) *fault.Error {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		t.Fatalf("%v is no fault", err)
	}
	return f
}
