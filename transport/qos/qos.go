// SPDX-License-Identifier: Apache-2.0

package qos

import (
	"errors"
	"io"
	"net"
	"net/http"
)

// A Transport is a way through a gate.
type Transport struct {
	next http.RoundTripper
	gate *Gate
	tell func(*http.Request) Ticket
}

// New returns a layer around next. tell says whose a request is; nil = everybody's alike.
func New(next http.RoundTripper, gate *Gate, tell func(*http.Request) Ticket) (*Transport, error) {
	if next == nil || gate == nil {
		return nil, errors.New("qos: there is no way out, or no gate before it")
	}
	if tell == nil {
		tell = func(*http.Request) Ticket { return Ticket{Class: Default} }
	}
	return &Transport{next, gate, tell}, nil
}

// RoundTrip sends req when it is let in.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s, err := t.gate.enter(req.Context(), t.tell(req))
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	done := false
	defer func() {
		if !done { // it failed, or panics
			s.release()
		}
	}()
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	s.answered(resp)
	resp.Body = hold(resp.Body, s)
	done = true
	return resp, nil
}

// A body gives the slot back at its end.
type body struct {
	io.ReadCloser
	s *slot
}

// hold wraps what is read of an answer, with what the way out can do besides.
func hold(b io.ReadCloser, s *slot) io.ReadCloser {
	h := &body{b, s}
	switch b := b.(type) {
	case socket:
		return &heldSocket{h, b}
	case io.WriterTo:
		return &heldStream{h, b}
	case io.ReadWriteCloser:
		return &heldPipe{h, b}
	}
	return h
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.s.release()
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.s.release()
	return err
}

// Buffered is how many bytes have come and wait for a Read.
func (b *body) Buffered() int {
	if h, ok := b.ReadCloser.(interface{ Buffered() int }); ok {
		return h.Buffered()
	}
	return 0
}

type heldStream struct {
	*body
	from io.WriterTo
}

func (h *heldStream) WriteTo(w io.Writer) (int64, error) {
	n, err := h.from.WriteTo(w)
	h.s.release()
	return n, err
}

// A socket is the body of an answer that began a WebSocket. Its reading side may end
// before the other: only Close gives the slot back.
type socket interface {
	io.ReadWriteCloser
	CloseWrite() error
	Watch() net.Conn
}

type heldSocket struct {
	*body
	socket
}

func (h *heldSocket) Read(p []byte) (int, error) { return h.socket.Read(p) }
func (h *heldSocket) Close() error               { return h.body.Close() }

// Endpoint is where it is open to, "" if the way out does not say.
func (h *heldSocket) Endpoint() string {
	if at, ok := h.socket.(interface{ Endpoint() string }); ok {
		return at.Endpoint()
	}
	return ""
}

// A heldPipe is one of another way out.
type heldPipe struct {
	*body
	rw io.ReadWriteCloser
}

func (h *heldPipe) Read(p []byte) (int, error)  { return h.rw.Read(p) }
func (h *heldPipe) Write(p []byte) (int, error) { return h.rw.Write(p) }
