// SPDX-License-Identifier: Apache-2.0

package layer

import (
	"io"
	"net"
)

// A Watcher is told how an answer goes.
type Watcher interface {
	// Ended is told of the error of a Read, and of the end of WriteTo with its error, nil
	// for all that there was. Of a socket, whose reading side may end before the other, it
	// is told nothing.
	Ended(err error)
	// Closed is called after each Close.
	Closed()
}

// A Counter is a Watcher that wants to know when bytes come, and whose fault it is when
// they cannot be written.
type Counter interface {
	Watcher
	// Came is called for each piece of at least one byte. Of a socket it is not called.
	Came()
	// Refused is called instead of Ended if what WriteTo writes to has failed.
	Refused()
}

// A Place is a Watcher that knows where a socket is open to, as scheme://host.
type Place interface{ Endpoint() string }

// socket is the body of an answer that began a WebSocket.
type socket interface {
	io.ReadWriteCloser
	CloseWrite() error
	Watch() net.Conn
}

// Body wraps b.
func Body(b io.ReadCloser, w Watcher) io.ReadCloser {
	o := &body{ReadCloser: b, w: w}
	o.counter, _ = w.(Counter)
	switch b := b.(type) {
	case socket:
		return &watchedSocket{o, b}
	case io.WriterTo:
		return &watchedStream{o, b}
	case io.ReadWriteCloser:
		return &watchedPipe{o, b}
	}
	return o
}

// OnClose wraps b; done is called after each Close, and nothing else is watched.
func OnClose(b io.ReadCloser, done func()) io.ReadCloser { return Body(b, closing(done)) }

type closing func()

func (closing) Ended(error) {}
func (c closing) Closed()   { c() }

type body struct {
	io.ReadCloser
	w       Watcher
	counter Counter // nil: w is none
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && b.counter != nil {
		b.counter.Came()
	}
	if err != nil {
		b.w.Ended(err)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.w.Closed()
	return err
}

// Buffered is how many bytes have come and wait for a Read.
func (b *body) Buffered() int {
	if h, ok := b.ReadCloser.(interface{ Buffered() int }); ok {
		return h.Buffered()
	}
	return 0
}

type watchedStream struct {
	*body
	from io.WriterTo
}

func (s *watchedStream) WriteTo(w io.Writer) (int64, error) {
	if s.counter == nil {
		n, err := s.from.WriteTo(w)
		s.w.Ended(err)
		return n, err
	}
	sink := &noting{w: w, c: s.counter}
	n, err := s.from.WriteTo(sink)
	if sink.err != nil {
		s.counter.Refused()
	} else {
		s.w.Ended(err)
	}
	return n, err
}

// A noting writer knows the bytes that come, and whose error one is.
type noting struct {
	w   io.Writer
	c   Counter
	err error
}

func (n *noting) Write(p []byte) (int, error) {
	if len(p) > 0 {
		n.c.Came()
	}
	k, err := n.w.Write(p)
	n.err = err
	return k, err
}

type watchedSocket struct {
	*body
	socket
}

func (s *watchedSocket) Read(p []byte) (int, error) { return s.socket.Read(p) }
func (s *watchedSocket) Close() error               { return s.body.Close() }

// Endpoint is where it is open to, "" if nobody says.
func (s *watchedSocket) Endpoint() string {
	if at, ok := s.w.(Place); ok {
		return at.Endpoint()
	}
	if at, ok := s.socket.(Place); ok {
		return at.Endpoint()
	}
	return ""
}

// A watchedPipe is the socket of another way out.
type watchedPipe struct {
	*body
	rw io.ReadWriteCloser
}

func (p *watchedPipe) Read(b []byte) (int, error)  { return p.rw.Read(b) }
func (p *watchedPipe) Write(b []byte) (int, error) { return p.rw.Write(b) }
