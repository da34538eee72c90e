// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/tenant"
)

// A session is an answer that its upstream gives at its own pace, into a spool from
// which an app takes it at the app's pace. One that the app has named outlives the
// app's connection.
type session struct {
	u     *Upstream
	ctx   context.Context // of the upstream request
	stop  context.CancelCauseFunc
	spool *bufferctl.Spool
	pool  *buffers

	head chan struct{} // closed when the two fields below are set
	resp *http.Response
	err  error
	over chan struct{} // closed when nothing comes any more

	mu    sync.Mutex // guards watch, which the pump feeds
	watch *dialect.Watcher

	onToken func() // called once, at the first token; nil = nobody wants to know

	use *tenant.Use // what the answer costs is charged to it; nil = there are no tenants

	named *naming // nil = it ends with the app's connection
}

// newSession returns one whose spool is empty.
func newSession(ctx context.Context, stop context.CancelCauseFunc, u *Upstream, pool *buffers, cfg bufferctl.SpoolConfig) (*session, error) {
	spool, err := bufferctl.NewSpool(cfg)
	if err != nil {
		return nil, err
	}
	return &session{u: u, ctx: ctx, stop: stop, spool: spool, pool: pool, head: make(chan struct{}), over: make(chan struct{})}, nil
}

// pump moves the answer into the spool until it ends or ctx does.
func (ss *session) pump() {
	defer close(ss.over)
	defer ss.resp.Body.Close()
	buf := ss.pool.reader()
	defer buf.release()
	now := time.Now()
	dog := startWatchdog(&Upstream{}, ss.stop)
	dog.body(ss.u.Idle, 0, now, nil)
	defer dog.stop()
	for {
		n, err := ss.resp.Body.Read(buf.b)
		if n > 0 {
			now = time.Now()
			dog.turn(now, dog.serve)
			ss.observe(buf.b[:n], now)
			if _, werr := ss.spool.WriteContext(ss.ctx, buf.b[:n]); werr != nil {
				err = werr
			}
			buf.filled(n)
			dog.turn(time.Now(), dog.wait)
		}
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			ss.spool.Finish(err)
			return
		}
	}
}

// observe shows a copy to the dialect's observer.
func (ss *session) observe(p []byte, now time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.watch.Observe(p, now)
	if ss.use != nil {
		ss.use.Chunks(ss.watch.Report().Chunks, now)
	}
	if ss.onToken != nil && !ss.watch.Report().FirstToken.IsZero() {
		ss.onToken()
		ss.onToken = nil
	}
}

// tokens is how many have come.
func (ss *session) tokens() int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.watch.Chunks()
}

// spooled is stream for an upstream that need not wait for its app.
func (e *exchange) spooled(resp *http.Response, u *Upstream) error {
	ss, err := newSession(e.ctx, e.stop, u, &e.s.buffers, *u.Spool)
	if err != nil {
		return err
	}
	defer ss.spool.Close()
	ss.resp, ss.watch, ss.onToken, ss.use = resp, e.watch, e.dog.firstToken, e.use
	e.live.session.Store(ss)
	go ss.pump() // its waiter is below
	reader, err := ss.spool.Reader(0)
	if err == nil {
		e.dog.body(0, u.Stall, time.Now(), e.unsent())
		e.answers(resp, e.account.head)
		err = e.follow(ss, reader)
	}
	if e.undelivered {
		e.stop(http1.ErrClientLeft)
	} else if err != nil {
		e.stop(err)
	}
	<-ss.over
	return err
}

// follow gives the app what the reader reads. An error that is not nil says that the
// answer did not reach its end; undelivered tells whether the app is the reason.
func (e *exchange) follow(ss *session, reader *bufferctl.SpoolReader) error {
	defer reader.Close()
	stop := context.AfterFunc(e.r.Context(), func() { _ = reader.Close() }) // the app has left
	defer stop()
	buf := e.s.buffers.reader()
	defer buf.release()
	flush := e.r.ProtoMajor == 2 // http1 sends each Write by itself
	for {
		n, err := reader.Read(buf.b)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			e.undelivered = e.r.Context().Err() != nil
			return err
		}
		now := time.Now()
		if e.lateHead != nil {
			e.lateHead.Stop()
			e.lateHead = nil
		}
		e.came(now, n, ss.tokens(), false) // of what the spool gives, an end inside an event says nothing
		m, err := e.w.Write(buf.b[:n])
		e.rec.BytesOut += int64(m)
		e.live.out.Store(e.rec.BytesOut)
		if err == nil && flush {
			err = e.rc.Flush()
		}
		written := time.Now()
		e.took(written, true)
		if err != nil {
			e.undelivered = true
			return err
		}
		buf.filled(n)
	}
}

// Buffered is what came and was not taken, for the list of streams.
func (ss *session) Buffered() int { return int(ss.spool.Stats().Lag()) }

// behind is since when the app has bytes to take, zero if it has them all.
func (ss *session) behind() time.Time { return ss.spool.Stats().Behind }
