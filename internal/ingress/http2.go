// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/ingress/peer"
	"github.com/warmwire/warmwire/internal/ingress/xconnect"
)

func init() { xconnect.Restore() } // net/http has read it

// newHTTP2Server is net/http's HTTP/2 server with prior knowledge and nothing
// else (RFC 9113 §3.3). Its window per stream bounds what an upload may hold.
func newHTTP2Server(h http.Handler, cfg Config) *http.Server {
	srv := &http.Server{
		Handler:        h,
		MaxHeaderBytes: cfg.MaxHeaderBytes,
		Protocols:      new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          250,
			MaxReceiveBufferPerStream:     256 << 10, // 256 KiB
			MaxReceiveBufferPerConnection: 1 << 30,   // credit is bounded per stream, not shared
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if pc, ok := c.(*patientConn); ok {
				ctx = withInside(ctx, pc.inside)
			}
			return http1.WithConn(ctx, c)
		},
	}
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}

// serveHTTP2 hands a connection that began with the HTTP/2 preface over, and
// waits for its end.
func (s *Server) serveHTTP2(ctx context.Context, c net.Conn) {
	pc := &patientConn{Conn: c, inside: insideOf(ctx), closed: make(chan struct{})}
	if !s.h2conns.give(pc) {
		_ = c.Close()
		return
	}
	<-pc.closed
}

// A handoff is a listener whose connections are given to it.
type handoff struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandoff() *handoff {
	return &handoff{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handoff) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.done:
		return false
	}
}

func (h *handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handoff) Addr() net.Addr { return &net.UnixAddr{Name: "http2", Net: "unix"} }

// A patientConn does not report a FIN while the app's process still owns its
// socket: net/http's HTTP/2 server would end all streams, though an app that
// has only shut down its sending side still reads.
type patientConn struct {
	net.Conn
	inside *inside // nil: no tunnel that was ended here
	closed chan struct{}
	once   sync.Once
}

// NetConn gives access to the connection below.
func (c *patientConn) NetConn() net.Conn { return c.Conn }

func (c *patientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != io.EOF {
		return n, err
	}
	tick := time.NewTicker(leftPoll)
	defer tick.Stop()
	for {
		if left, known := peer.Left(c.Conn); left || !known {
			return n, io.EOF
		}
		select {
		case <-tick.C:
		case <-c.closed:
			return n, io.EOF
		}
	}
}

func (c *patientConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
