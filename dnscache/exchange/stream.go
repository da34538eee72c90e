// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A stream asks over TCP or TLS, all questions over one connection at a time
// (RFC 7766 §6.2.2), which it opens when there is a question.
type stream struct {
	d       *dialer
	closing context.Context

	mu      sync.Mutex // guards the fields below; taken before streamConn.mu
	conn    *streamConn
	dialing *dialing
	closed  bool
	running sync.WaitGroup // dials, hedges and connections; none is added once closed is set
}

// A dialing is one connection on its way, with all who wait for it.
type dialing struct {
	done chan struct{} // closed once the fields below are set
	conn *streamConn
	err  error
}

func newStream(d *dialer, closing context.Context) *stream {
	return &stream{d: d, closing: closing}
}

func (s *stream) close() {
	s.mu.Lock()
	s.closed = true
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.fail(ErrClosed)
	}
	s.running.Wait()
}

// goLocked runs f, unless the stream is closed.
func (s *stream) goLocked(f func()) bool {
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// A lostError says that a connection ended before the answer came.
type lostError struct {
	conn     *streamConn
	answered bool // it had answered before: then it was alive and a new one will be
	err      error
}

func (e *lostError) Error() string { return "connection lost: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// ask sends q, and once more over a new connection if that one ended without
// any answer: questions may be repeated. A server that closes after each answer
// gets as many connections as it makes necessary.
func (s *stream) ask(ctx context.Context, q *query) (reply, error) {
	var last *streamConn
	for fruitless := 0; ; {
		conn, err := s.get(ctx, last)
		if err != nil {
			return reply{}, err
		}
		r, err := s.askOver(ctx, conn, q)
		lost, ok := errors.AsType[*lostError](err)
		if !ok || ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return r, err
		}
		if !lost.answered {
			if fruitless++; fruitless > 1 {
				return reply{}, err
			}
		}
		last = lost.conn
	}
}

// get returns the connection to ask over, which is not the given one.
func (s *stream) get(ctx context.Context, not *streamConn) (*streamConn, error) {
	s.mu.Lock()
	if not != nil && s.conn == not {
		s.conn = nil
		not.retire()
	}
	if s.conn != nil && s.conn.usable() {
		defer s.mu.Unlock()
		return s.conn, nil
	}
	d := s.dialing
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		if !s.goLocked(func() { s.dial(d) }) {
			s.mu.Unlock()
			return nil, ErrClosed
		}
		s.dialing = d
	}
	s.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// dial opens the connection that all questions wait for. It belongs to none of
// them, so it goes on when one of them is given up.
func (s *stream) dial(d *dialing) {
	ctx, cancel := context.WithTimeoutCause(s.closing, s.d.cfg.Timeout, errNoAnswer)
	defer cancel()
	conn, err := s.d.stream(ctx, nil)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(d.done)
	s.dialing = nil
	if err != nil {
		d.err = err
		return
	}
	c := newStreamConn(conn, s.d.cfg)
	if !s.goLocked(c.read) {
		_ = conn.Close()
		d.err = ErrClosed
		return
	}
	s.goLocked(c.write)
	s.conn, d.conn = c, c
}

// askOver asks over one connection, and beside it over a new one if that one
// has been used before and says nothing now: its other end may have gone
// without a word.
func (s *stream) askOver(ctx context.Context, conn *streamConn, q *query) (reply, error) {
	w, err := conn.send(q)
	if err != nil {
		return reply{}, err
	}
	defer conn.forget(w)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var hedge <-chan time.Time
	if w.used {
		timer := time.NewTimer(s.d.cfg.Hedge)
		defer timer.Stop()
		hedge = timer.C
	}
	var second chan result
	for {
		select {
		case message := <-w.answer:
			return conn.take(q, message)
		case <-conn.done:
			select {
			case message := <-w.answer: // came just before the end
				return conn.take(q, message)
			default:
			}
			if second == nil {
				return reply{}, conn.lost()
			}
			got := <-second
			return got.r, got.err
		case <-ctx.Done():
			return reply{}, context.Cause(ctx)
		case <-hedge:
			if hedge = nil; conn.heardSince(w) {
				continue // alive: the resolver is busy with this name
			}
			second = s.askBeside(ctx, conn, q)
		case got := <-second:
			if got.err == nil {
				conn.fail(errSilent)
				return got.r, nil
			}
			second = nil // the old connection may still answer
		}
	}
}

// askBeside asks over another connection than the given one.
func (s *stream) askBeside(ctx context.Context, not *streamConn, q *query) chan result {
	out := make(chan result, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	started := s.goLocked(func() {
		conn, err := s.get(ctx, not)
		if err != nil {
			out <- result{err: err}
			return
		}
		w, err := conn.send(q)
		if err != nil {
			out <- result{err: err}
			return
		}
		defer conn.forget(w)
		select {
		case message := <-w.answer:
			r, err := conn.take(q, message)
			out <- result{r: r, err: err}
		case <-conn.done:
			out <- result{err: conn.lost()}
		case <-ctx.Done():
			out <- result{err: context.Cause(ctx)}
		}
	})
	if !started {
		out <- result{err: ErrClosed}
	}
	return out
}

// take reads the answer to q and does what it says about the connection.
func (c *streamConn) take(q *query, message []byte) (reply, error) {
	if truncated(message) {
		return reply{}, fmt.Errorf("%w: cut short on a stream", errBadAnswer)
	}
	r, err := q.parse(message)
	if err == nil && r.hasKeepalive {
		c.keepFor(r.keepalive)
	}
	return r, err
}
