// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/ingress/peer"
	"github.com/warmwire/warmwire/internal/ingress/ws"
)

// Config is what stays for the life of a Server. The zero value is the default.
type Config struct {
	MaxHeaderBytes int // of a request head; 0 = 64 KiB
	MaxConnections int // app connections at once; 0 = 10,000
	Hooks          Hooks
	Intercept      Intercept
	// Admit makes room for one more request of u, nil for a host that is no upstream,
	// which a WebSocket needs more of, and may wait for it; release gives the room back. Its error, if it has a method
	// RetryAfter() time.Duration, says when to try again. nil = there is always room.
	Admit func(ctx context.Context, u *Upstream, webSocket bool) (release func(), err error)
	// Take asks for n bytes that a WebSocket is read ahead, and Give returns them.
	// nil = there is always room.
	Take func(n int64) bool
	Give func(n int64)
}

// A Server is the way in.
type Server struct {
	cfg       Config
	pseudonym string // in Via: our name and this instance's id
	table     atomic.Pointer[Table]
	h1        *http1.Server
	h2        *http.Server
	h2conns   *handoff
	intercept interceptor
	buffers   buffers
	sessions  sessions
	sockets   ws.Watcher
	ids       atomic.Uint64
	slots     chan struct{} // one per app connection
	running   runningSet
	goingAway chan struct{}   // closed by Abort: WebSockets close with 1001
	life      context.Context // of connections; ended last, by Abort
	endLife   context.CancelFunc
	abortOnce sync.Once
	drained   sync.Once
	goAway    sync.Once
	h2gone    chan struct{} // closed when no HTTP/2 connection is left after goAway
}

// New returns a Server that serves nothing until Serve is called.
func New(t *Table, cfg Config) (*Server, error) {
	if cfg.MaxHeaderBytes == 0 {
		cfg.MaxHeaderBytes = 64 << 10
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = 10_000
	}
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("ingress: choose an instance id: %w", err)
	}
	s := &Server{
		cfg:       cfg,
		pseudonym: "warmwire-" + hex.EncodeToString(id[:]),
		slots:     make(chan struct{}, cfg.MaxConnections),
		h2conns:   newHandoff(),
		h2gone:    make(chan struct{}),
		goingAway: make(chan struct{}),
	}
	s.buffers.init()
	s.intercept.init(cfg.Intercept)
	if err := s.sessions.init(); err != nil {
		return nil, fmt.Errorf("ingress: %w", err)
	}
	s.life, s.endLife = context.WithCancel(context.Background())
	var err error
	s.h1, err = http1.New(s, http1.Config{
		MaxHeaderBytes: cfg.MaxHeaderBytes,
		Left:           peer.Left,
		HTTP2:          s.serveHTTP2,
		ErrorBody: func(status int, code, message string) (string, []byte) {
			return "application/json", dialect.ErrorBody(dialect.None, status, code, "Warmwire: "+message)
		},
		Malformed: cfg.Hooks.Malformed,
		Panic:     cfg.Hooks.Panicked,
	})
	if err != nil {
		return nil, err
	}
	s.h2 = newHTTP2Server(s, cfg)
	return s, s.Update(t)
}

// Update swaps the table for new requests; those that run keep theirs.
func (s *Server) Update(t *Table) error {
	if err := t.prepare(); err != nil {
		return err
	}
	s.table.Store(t)
	return nil
}

// Serve accepts connections from ln until ctx ends, and then returns nil once
// each connection it accepted has ended. It closes ln. See Drain and Abort for
// how running requests end.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer ln.Close()
	var conns sync.WaitGroup
	defer conns.Wait()
	var pause time.Duration
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("ingress: listener %s: %w", ln.Addr(), err)
		default: // out of descriptors, or the connection is gone already
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			if s.cfg.Hooks.AcceptFailed != nil {
				s.cfg.Hooks.AcceptFailed(err, pause)
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case s.slots <- struct{}{}:
			conns.Go(func() { s.serveConn(c) })
		default:
			s.turnAway(c)
		}
	}
}

// ServeHTTP2 runs the HTTP/2 side until Abort; call it once, beside Serve.
func (s *Server) ServeHTTP2() error {
	err := s.h2.Serve(s.h2conns)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// serveConn serves one connection to its end. The listener's context is not its
// parent: a listener that closes lets connections go on.
func (s *Server) serveConn(c net.Conn) {
	defer func() { <-s.slots }()
	if open := s.cfg.Hooks.ConnOpen; open != nil {
		open(1)
		defer open(-1)
	}
	s.h1.ServeConn(http1.WithConn(s.life, c), c)
}

// fullAnswer is what a connection over limits.connections gets.
const fullAnswer = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n" +
	"X-Should-Retry: true\r\nConnection: close\r\nContent-Length: 109\r\n\r\n" +
	`{"error":{"message":"Warmwire: limits.connections is reached","type":"warmwire_error","code":"too_many_apps"}}`

// turnAway answers a connection for which there is no slot, without waiting.
func (s *Server) turnAway(c net.Conn) {
	if s.cfg.Hooks.Refused != nil {
		s.cfg.Hooks.Refused("connections")
	}
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_, _ = c.Write([]byte(fullAnswer)) // best effort: the app sees a closed connection otherwise
	if h, ok := c.(halfConn); ok {
		_ = h.CloseWrite()
	}
	_ = c.Close()
}

// retireLook is how often Retire looks whether all have left.
const retireLook = 20 * time.Millisecond

// Retire lets connections leave by themselves, because another process takes new ones
// by now: the next answer on each is its last, and HTTP/2 connections are told to go.
// It returns when none is open or ctx ends. Drain and Abort end what is left.
func (s *Server) Retire(ctx context.Context) {
	s.h1.Retire()
	s.shutHTTP2()
	tick := time.NewTicker(retireLook)
	defer tick.Stop()
	for len(s.slots) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// shutHTTP2 sends GOAWAY to HTTP/2 connections; their streams finish.
func (s *Server) shutHTTP2() {
	s.goAway.Do(func() {
		go func() {
			defer close(s.h2gone)
			_ = s.h2.Shutdown(context.Background()) // returns with the last stream, or by Abort's Close
		}()
	})
}

// settleLimit is how long the ends of answers may take that are written already: an app
// that does not read must not keep a process.
const settleLimit = time.Second

// settle waits until the ends of answers have left: a request is over for [Server.Running]
// when its handler is, and the last chunk of its answer is written after that.
func (s *Server) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.h1.Busy() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	select {
	case <-s.h2gone:
	case <-ctx.Done():
	}
}

// Drain stops keeping connections: idle ones close, answers say so. It returns
// when nothing runs any more or ctx ends, and tells how much still runs.
func (s *Server) Drain(ctx context.Context) int {
	s.drained.Do(func() {
		s.h1.Drain()
		s.shutHTTP2()
	})
	for {
		idle := s.running.idle()
		select {
		case <-idle:
			s.settle(ctx)
			return 0
		case <-ctx.Done():
			return s.running.len()
		}
	}
}

// Abort ends what still runs: WebSockets with 1001, streams by a visible cut.
func (s *Server) Abort() {
	s.abortOnce.Do(func() {
		close(s.goingAway)
		s.running.cancel(errAborted)
		s.sessions.endAll(errAborted)
		ctx, cancel := context.WithTimeout(context.Background(), closeWait+time.Second)
		defer cancel()
		s.Drain(ctx)
		_ = s.h2.Close()
		_ = s.h2conns.Close()
		s.endLife() // also ends apps that do not read, and heads that never get whole
	})
}

// Running returns how many requests, tunnels and WebSockets run.
func (s *Server) Running() int { return s.running.len() }
