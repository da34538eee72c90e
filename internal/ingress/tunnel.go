// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/warmwire/warmwire/internal/ingress/peer"
)

// connectEstablished is the whole answer to CONNECT: one write, since a client
// is known that cannot bear it in two segments, and no framing fields
// (RFC 9110 §9.3.6).
const connectEstablished = "HTTP/1.1 200 Connection Established\r\n\r\n"

// A half-closed app is looked at every leftPoll at first, so that its leaving is
// known within 50 ms, and more rarely the longer it stays half closed.
const (
	leftPoll    = 20 * time.Millisecond
	leftPollMax = 500 * time.Millisecond
)

// discardWait bounds how long the rest of an upstream's bytes is thrown away for
// an app that has left, until the upstream has acknowledged what the app sent
// last: closing earlier would reset the connection and could destroy it.
const discardWait = 5 * time.Second

// idleLooks is how often within its limit an idle tunnel is looked at: it ends by an
// eighth of the limit too late at most.
const idleLooks = 8

// tunnel serves CONNECT: dial first, answer after, so that a target that cannot
// be reached is an HTTP error and not a connection that breaks.
func (e *exchange) tunnel(authority string) {
	ctx, cancel := context.WithCancelCause(e.r.Context())
	e.ctx, e.stop = ctx, cancel
	defer cancel(nil)
	defer e.s.running.add(e)()
	up, err := e.t.Forward.Dial(httptrace.WithClientTrace(ctx, e.sw.trace()), "tcp", authority)
	e.sw.stop(e.rec, time.Now())
	if err != nil {
		e.fail(classify(ctx, err))
		return
	}
	e.rec.Status, e.rec.Outcome = http.StatusOK, OutcomeOK
	e.live.status.Store(http.StatusOK)
	tun := &tunnel{up: up}
	if e.r.ProtoMajor == 2 {
		e.w.WriteHeader(http.StatusOK)
		if err := e.rc.Flush(); err != nil {
			_ = up.Close()
			return
		}
		tun.app = newStreamConn(e)
	} else {
		conn, rw, err := e.rc.Hijack()
		if err != nil {
			_ = up.Close()
			panic(http.ErrAbortHandler)
		}
		tun.app, tun.raw, tun.early = conn, conn, buffered(rw.Reader)
		if _, err := io.WriteString(conn, connectEstablished); err != nil {
			_ = up.Close()
			_ = conn.Close()
			e.rec.Outcome, e.rec.Cause = OutcomeCutApp, CauseAppLeft
			return
		}
	}
	e.relayTunnel(tun)
}

// relayTunnel runs tun and notes what became of it. Over HTTP/2 a cut is RST_STREAM
// (RFC 9113 §8.5): a mere return would be an end.
func (e *exchange) relayTunnel(tun *tunnel) {
	tun.idle, tun.stop = e.t.Forward.TunnelIdle, e.stop
	e.rec.Outcome, e.rec.Cause = tun.run(e.ctx)
	e.rec.BytesIn, e.rec.BytesOut = tun.in, tun.out
	if tun.raw == nil && e.rec.Outcome != OutcomeOK {
		panic(http.ErrAbortHandler)
	}
}

// buffered returns what r has read ahead.
func buffered(r *bufio.Reader) []byte {
	p, _ := r.Peek(r.Buffered()) // they are there
	return p
}

// A halfConn is a connection whose writing side can be ended alone.
type halfConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// A tunnel copies bytes both ways and knows nothing of them.
type tunnel struct {
	app   io.ReadWriteCloser
	raw   net.Conn // the app's connection; nil over HTTP/2
	early []byte   // what the app sent right behind CONNECT
	up    net.Conn
	in    int64 // to the upstream; read after run
	out   int64

	idle  time.Duration // nothing moves for so long: stop(errTunnelIdle); 0 = no limit
	stop  context.CancelCauseFunc
	moved atomic.Pointer[time.Time] // when bytes were last seen to move, either way
	left  atomic.Bool               // the app has closed its connection: up is read no more
}

// run relays until both directions have ended. A FIN is passed on alone
// (RFC 9110 §9.3.6: what is pending is sent before closing), so either side may
// go on after the other has ended; a reset ends both with a reset.
func (t *tunnel) run(ctx context.Context) (Outcome, string) {
	stop := context.AfterFunc(ctx, func() { t.reset() })
	defer stop()
	t.saw()
	var inErr, outErr error
	appGone := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t.in, inErr = t.copyIn()
		if inErr == nil {
			inErr = closeWrite(t.up)
			t.watchApp(appGone)
		}
		if inErr != nil {
			t.reset()
		}
	})
	t.out, outErr = t.copy(t.app, t.up)
	if outErr == nil {
		outErr = closeWrite(t.app)
	} else {
		t.drainUpstream()
	}
	close(appGone)
	if t.raw == nil { // an HTTP/2 stream ends whole, by our return
		_ = t.app.Close()
	}
	if outErr != nil {
		t.reset()
	}
	wg.Wait()
	_ = t.app.Close()
	_ = t.up.Close()
	if ctx.Err() != nil {
		return cutCause(ctx, ctx.Err())
	}
	if t.raw == nil && outErr == nil {
		inErr = nil
	}
	return tunnelOutcome(inErr, outErr)
}

// copyIn passes the app's bytes on, those first that were read with CONNECT.
func (t *tunnel) copyIn() (int64, error) {
	var n int64
	if len(t.early) > 0 {
		m, err := t.up.Write(t.early)
		n = int64(m)
		if err != nil {
			return n, err
		}
	}
	m, err := t.copy(t.up, t.app)
	return n + m, err
}

// copy is io.Copy, which splices when both are TCP, and keeps watch over the limit.
func (t *tunnel) copy(dst io.Writer, src io.Reader) (int64, error) {
	if t.idle <= 0 {
		return io.Copy(dst, src)
	}
	conn, ok := src.(net.Conn)
	if !ok || conn != t.up && t.raw == nil { // an HTTP/2 stream: the other direction watches
		return io.Copy(dst, &seenReader{src, t.saw})
	}
	// Splicing tells nothing while it goes on. So it is made to return now and then.
	for n := int64(0); ; {
		due := time.Now().Add(max(t.idle/idleLooks, time.Millisecond))
		_ = conn.SetReadDeadline(due)
		if t.left.Load() {
			return n, os.ErrDeadlineExceeded
		}
		m, err := io.Copy(dst, src)
		n += m
		switch {
		case m > 0, time.Since(due) > frozen: // what was waited for may be there, unread
			t.saw()
		case time.Since(*t.moved.Load()) >= t.idle:
			t.stop(errTunnelIdle)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || t.left.Load() {
			return n, err
		}
	}
}

func (t *tunnel) saw() {
	now := time.Now()
	t.moved.Store(&now)
}

// A seenReader tells of each byte that is read.
type seenReader struct {
	io.Reader
	saw func()
}

func (r *seenReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.saw()
	}
	return n, err
}

// watchApp runs after the app's FIN, until the other direction has ended: an app
// that has closed its socket altogether will never read the answer.
func (t *tunnel) watchApp(ended <-chan struct{}) {
	if t.raw == nil {
		return
	}
	pause := leftPoll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		if left, known := peer.Left(t.raw); known && left {
			t.drainUpstream()
			t.left.Store(true)
			_ = t.up.SetReadDeadline(time.Unix(1, 0)) // ends the other copy
			return
		}
		select {
		case <-ended:
			return
		case <-timer.C:
			pause = min(pause+pause/4, leftPollMax)
			timer.Reset(pause)
		}
	}
}

// drainUpstream waits until the upstream has acknowledged all that the app sent.
func (t *tunnel) drainUpstream() {
	deadline := time.Now().Add(discardWait)
	_ = closeWrite(t.up)
	for unsent(t.up) > 0 && time.Now().Before(deadline) {
		time.Sleep(leftPoll / 4) // no event tells that an acknowledgement came
	}
}

// reset breaks both connections so that neither side mistakes it for an end.
func (t *tunnel) reset() {
	for _, c := range []io.Closer{t.app, t.up} {
		if l, ok := c.(interface{ SetLinger(int) error }); ok {
			_ = l.SetLinger(0)
		}
		_ = c.Close()
	}
}

// closeWrite passes an end on. A connection that cannot be half closed stays
// open until the other direction ends.
func closeWrite(c io.Closer) error {
	if h, ok := c.(halfConn); ok {
		err := h.CloseWrite()
		if errors.Is(err, syscall.ENOTCONN) || errors.Is(err, net.ErrClosed) {
			return nil // it is gone already; the copy that still runs tells how
		}
		return err
	}
	return nil
}

func tunnelOutcome(inErr, outErr error) (Outcome, string) {
	switch {
	case inErr == nil && outErr == nil:
		return OutcomeOK, ""
	case isRead(outErr), isWrite(inErr):
		return OutcomeCutUpstream, CauseReset
	default:
		return OutcomeCutApp, CauseAppLeft
	}
}

func isRead(err error) bool  { return isOp(err, "read") }
func isWrite(err error) bool { return isOp(err, "write") }

func isOp(err error, op string) bool {
	var oe *net.OpError
	return errors.As(err, &oe) && oe.Op == op && !errors.Is(err, net.ErrClosed)
}
