// SPDX-License-Identifier: Apache-2.0

package route

import (
	"context"
	"errors"
	"io"
	"net"
)

// A body tells its attempt when the first byte comes and how it ends.
type body struct {
	io.ReadCloser
	a      *attempt
	failed bool // its status has said so
	seen   bool // a byte has come; owned by the reader
}

// wrap returns b with what it can do besides.
func wrap(b io.ReadCloser, a *attempt, failed bool) io.ReadCloser {
	w := &body{ReadCloser: b, a: a, failed: failed}
	switch b := b.(type) {
	case socket:
		return &heldSocket{w, b}
	case io.WriterTo:
		return &heldStream{w, b}
	case io.ReadWriteCloser:
		return &heldPipe{w, b}
	}
	return w
}

// came notes bytes.
func (b *body) came() {
	if !b.seen {
		b.seen = true
		b.a.arrived(b.a.good)
	}
}

// ended notes the end of what is read.
func (b *body) ended(err error) {
	switch {
	case b.failed:
		b.a.end(Error)
	case err == nil, errors.Is(err, io.EOF):
		if !b.seen { // an empty answer is an answer
			b.came()
		}
		b.a.end(OK)
	case b.a.ctx.Err() != nil && !expired(context.Cause(b.a.ctx)):
		b.a.end(Left)
	case expired(err), b.a.ctx.Err() != nil:
		b.a.end(Stall)
	default:
		b.a.end(Error)
	}
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.came()
	}
	if err != nil {
		b.ended(err)
	}
	return n, err
}

// Close without an end: nobody wants the rest.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	switch {
	case b.failed:
		b.a.end(Error)
	case b.a.socket:
		b.a.end(OK)
	case b.a.ctx.Err() != nil && expired(context.Cause(b.a.ctx)):
		b.a.end(Stall)
	default:
		b.a.end(Left)
	}
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
	sink := &noting{w: w, b: h.body}
	n, err := h.from.WriteTo(sink)
	if sink.err != nil { // it is the app that has left
		h.a.end(Left)
		return n, err
	}
	h.ended(err)
	return n, err
}

// A noting writer knows the first bytes, and whose error one is.
type noting struct {
	w   io.Writer
	b   *body
	err error
}

func (n *noting) Write(p []byte) (int, error) {
	if len(p) > 0 {
		n.b.came()
	}
	k, err := n.w.Write(p)
	n.err = err
	return k, err
}

// A socket is the body of an answer that began a WebSocket. Its reading side may end
// before the other: only Close is its end.
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

// Endpoint is the origin that the WebSocket is open to, as scheme://host.
func (h *heldSocket) Endpoint() string { return h.a.e.scheme + "://" + h.a.e.host }

// A heldPipe is one of another way out.
type heldPipe struct {
	*body
	rw io.ReadWriteCloser
}

func (h *heldPipe) Read(p []byte) (int, error)  { return h.rw.Read(p) }
func (h *heldPipe) Write(p []byte) (int, error) { return h.rw.Write(p) }
