// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/warmwire/warmwire/transport/dial"
)

// A Socket is the body of an answer with status 101.
type Socket interface {
	io.ReadWriteCloser
	// CloseWrite ends the sending side alone.
	CloseWrite() error
	// Watch tells that the caller keeps the connection alive and judges it by itself
	// from now on: it is not probed beside that. It returns the connection, to ask its
	// kernel, if it serves nothing else; else nil.
	Watch() net.Conn
}

// A ward is what carries a socket, as its flow counts it.
type ward struct {
	io.ReadCloser
	f    *flow
	once sync.Once // of Watch
	end  sync.Once
	on   bool // Watch was called; written before Close
}

// guard wraps the body of an answer that begins a socket.
func (f *flow) guard(req *http.Request, resp *http.Response) {
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		if rw, ok := resp.Body.(io.ReadWriteCloser); ok {
			resp.Body = &ownWard{&ward{ReadCloser: resp.Body, f: f}, rw}
		}
	case req.Method == http.MethodConnect && resp.StatusCode/100 == 2:
		resp.Body = &ward{ReadCloser: resp.Body, f: f}
	}
}

// Watch implements Socket for a stream among others.
func (w *ward) Watch() net.Conn {
	w.once.Do(func() {
		w.on = true
		w.f.watched.Add(1)
		w.f.changed()
	})
	return nil
}

func (w *ward) Close() error {
	err := w.ReadCloser.Close()
	w.end.Do(func() {
		w.once.Do(func() {}) // no Watch after this
		if w.on {
			w.f.watched.Add(-1)
			w.f.changed()
		}
	})
	return err
}

// An ownWard has the connection for itself.
type ownWard struct {
	*ward
	rw io.ReadWriteCloser
}

func (w *ownWard) Write(p []byte) (int, error) { return w.rw.Write(p) }

// CloseWrite ends the sending side alone.
func (w *ownWard) CloseWrite() error {
	if c, ok := w.rw.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// Watch implements Socket.
func (w *ownWard) Watch() net.Conn {
	w.f.released.Store(true)
	_ = w.ward.Watch()
	if w.f.raw == nil {
		return nil
	}
	dial.Quiet(w.f.raw)
	return w.f.raw
}
