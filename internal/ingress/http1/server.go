// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClientLeft is the cause of a request's context when the app went away.
var ErrClientLeft = errors.New("the client has left")

// Config is plain data; its zero value is the default.
type Config struct {
	MaxHeaderBytes int           // request line and fields; 0 = 64 KiB; more is answered 431 (414 for the line alone)
	HeaderTimeout  time.Duration // first byte of a head to its end; 0 = 30 s; then 408
	IdleTimeout    time.Duration // wait for a request; 0 = 5 min; a request that has arrived by then is served
	LingerTimeout  time.Duration // silence allowed while the rest of an upload is discarded after an early answer; 0 = 2 s, 10 × that in all

	Left      func(net.Conn) (left, known bool)                                        // asked after a FIN; nil: a FIN is leaving
	HTTP2     func(ctx context.Context, c net.Conn)                                    // takes connections that begin with the HTTP/2 preface; nil: 505
	ErrorBody func(status int, code, message string) (contentType string, body []byte) // of refusals; nil: plain text
	Malformed func(status int, code string)                                            // sees each refused request; may be nil
	Panic     func(v any, stack []byte)                                                // sees a handler's panic other than http.ErrAbortHandler; may be nil
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.MaxHeaderBytes = cmp.Or(c.MaxHeaderBytes, 64<<10)
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 30*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 5*time.Minute)
	c.LingerTimeout = cmp.Or(c.LingerTimeout, 2*time.Second)
	if c.Left == nil {
		c.Left = func(net.Conn) (left, known bool) { return false, false }
	}
	if c.ErrorBody == nil {
		c.ErrorBody = func(_ int, _, message string) (string, []byte) {
			return "text/plain; charset=utf-8", []byte(message + "\n")
		}
	}
	if c.Malformed == nil {
		c.Malformed = func(int, string) {}
	}
	if c.Panic == nil {
		c.Panic = func(any, []byte) {}
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.MaxHeaderBytes < 0 || c.HeaderTimeout < 0 || c.IdleTimeout < 0 || c.LingerTimeout < 0 {
		return fmt.Errorf("http1: negative limit: header %d bytes, %v; idle %v; linger %v",
			c.MaxHeaderBytes, c.HeaderTimeout, c.IdleTimeout, c.LingerTimeout)
	}
	return nil
}

// A RequestError says why a request was refused. Body.Read returns one when the
// body's framing is broken; a handler that has not answered by then leaves the
// answer to the server.
type RequestError struct {
	Status  int
	Code    string // stable, for programs
	Message string // for people; holds nothing of the request
}

func (e *RequestError) Error() string { return "refused request: " + e.Message }

func bad(code, message string) *RequestError {
	return &RequestError{http.StatusBadRequest, code, message}
}

const (
	smallSize = 4 << 10  // head of a common request; one relayed token
	largeSize = 32 << 10 // body buffer
)

// A Server serves connections that others accepted.
type Server struct {
	handler  http.Handler
	cfg      Config
	retiring atomic.Bool
	draining atomic.Bool
	busy     atomic.Int64
	small    sync.Pool // *[smallSize]byte
	large    sync.Pool // *[largeSize]byte

	mu    sync.Mutex
	conns map[*conn]struct{} // guarded by mu; those in ServeConn
}

// New returns a Server that does nothing until ServeConn is called.
func New(h http.Handler, cfg Config) (*Server, error) {
	if h == nil {
		return nil, errors.New("http1: no handler")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Server{
		handler: h,
		cfg:     cfg.WithDefaults(),
		small:   sync.Pool{New: func() any { return new([smallSize]byte) }},
		large:   sync.Pool{New: func() any { return new([largeSize]byte) }},
		conns:   map[*conn]struct{}{},
	}, nil
}

// ServeConn serves c until the connection has ended, or was hijacked or handed
// to HTTP2 and that returned. It closes c unless it was hijacked. When ctx ends,
// running requests are cancelled and the connection is cut.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn) {
	c := newConn(ctx, s, nc)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, c.abort)
	c.serve()
	stop()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// Retire makes connections leave without haste, for a server that another one stands
// in for: each answer from now on says "Connection: close", but an idle connection,
// on which a request may be under way, is still served. [Server.Drain] ends it.
func (s *Server) Retire() { s.retiring.Store(true) }

// Drain makes this server finish: idle connections close at once, every answer
// from now on says "Connection: close", and no further request is taken on a
// connection that is kept. It does not wait.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.mu.Lock()
		if c.cur == nil {
			c.kickLocked()
		}
		c.mu.Unlock()
	}
}

// Busy is how many exchanges are not over: their handlers run, or the end of what those
// wrote is on its way.
func (s *Server) Busy() int { return int(s.busy.Load()) }

func (s *Server) getSmall() []byte { return s.small.Get().(*[smallSize]byte)[:] }
func (s *Server) getLarge() []byte { return s.large.Get().(*[largeSize]byte)[:] }

// put gives a buffer back; one of another size is left to the collector.
func (s *Server) put(b []byte) {
	switch cap(b) {
	case smallSize:
		s.small.Put((*[smallSize]byte)(b[:smallSize]))
	case largeSize:
		s.large.Put((*[largeSize]byte)(b[:largeSize]))
	}
}

type connKey struct{}

// Conn returns the connection a request arrived on, nil if ctx is not of a request.
func Conn(ctx context.Context) net.Conn {
	c, _ := ctx.Value(connKey{}).(net.Conn)
	return c
}

// WithConn returns a context from which [Conn] returns c.
func WithConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connContext answers the two connection values without a chain of lookups.
type connContext struct {
	context.Context
	nc    net.Conn
	local net.Addr
}

func (c *connContext) Value(key any) any {
	switch key {
	case connKey{}:
		return c.nc
	case http.LocalAddrContextKey:
		return c.local
	}
	return c.Context.Value(key)
}
