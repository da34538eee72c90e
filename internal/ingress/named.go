// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/tenant"
)

// The fields by which an app names a stream, and comes back to one. Both stay here.
const (
	streamHeader   = "Warmwire-Stream"   // on the answer too, if the app can come back to it
	positionHeader = "Warmwire-Position" // bytes of the body that the app has
)

// maxNamed is how many named streams there may be, those included that are over and
// wait for an app that has not got all of them. A guess.
const maxNamed = 1000

// A Reattach says how long a stream that its app has named waits for the app to come
// back, and what it keeps meanwhile.
type Reattach struct {
	Wait  time.Duration
	Spool bufferctl.SpoolConfig
}

var (
	errAbsent   = errors.New("the app has not come back to its stream")
	errReplaced = errors.New("the app came back to its stream on another connection")
)

// naming is what a session has besides if the app can come back to it.
type naming struct {
	key     sessionKey
	info    StreamInfo // of the request that began it
	release func()     // gives the room back for which the request was admitted
	settle  func()     // charges what the answer has cost

	mu       sync.Mutex // guards the fields below
	attached int        // connections of the app that follow it
	absent   *time.Timer
	gone     bool
}

// A sessionKey stands for a name, the request line it was used with, and the
// credentials: nobody else can come back to the stream.
type sessionKey [sha256.Size]byte

// sessions are the named ones.
type sessions struct {
	secret [32]byte
	wg     sync.WaitGroup // those that have not ended

	mu    sync.Mutex // guards the following
	byKey map[sessionKey]*session
	over  bool // no more begin: endAll was called
}

func (n *sessions) init() error {
	n.byKey = make(map[sessionKey]*session)
	_, err := rand.Read(n.secret[:])
	return err
}

// credentialHeaders are the fields in which model APIs take keys.
var credentialHeaders = [...]string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie", tokenHeader}

func (n *sessions) key(e *exchange, id string) (k sessionKey) {
	mac := hmac.New(sha256.New, n.secret[:])
	part := func(s string) { _, _ = fmt.Fprintf(mac, "%d:%s", len(s), s) }
	part(e.rt.upstream.Name)
	part(e.rec.Tenant)
	part(e.rt.target)
	part(id)
	for _, name := range credentialHeaders {
		for _, v := range e.r.Header[name] {
			part(name)
			part(v)
		}
	}
	mac.Sum(k[:0])
	return k
}

// add registers ss; it returns a refusal if the name is in use or there is no room.
func (n *sessions) add(ss *session) *failure {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		f := ours(http.StatusServiceUnavailable, "shutting_down", "proxy_internal_error", errAborted.Error(), false, OutcomeRefused, CauseDrain)
		return &f
	}
	if _, used := n.byKey[ss.named.key]; used {
		return &failure{status: http.StatusConflict, code: "stream_exists", proxy: "http_request_denied", outcome: OutcomeRefused, cause: "stream_exists",
			message: "a stream of this name runs, or waits for its app: come back to it with " + positionHeader + ", or choose another name"}
	}
	if len(n.byKey) >= maxNamed {
		return &failure{status: http.StatusServiceUnavailable, code: CauseOverloaded, proxy: "http_request_denied", outcome: OutcomeRefused, cause: CauseOverloaded,
			message: fmt.Sprintf("there are %d named streams: those that are over go after reattach.wait", maxNamed)}
	}
	n.byKey[ss.named.key] = ss
	n.wg.Add(1)
	return nil
}

func (n *sessions) find(k sessionKey) *session {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byKey[k]
}

// remove forgets ss and what it holds.
func (n *sessions) remove(ss *session) {
	n.mu.Lock()
	delete(n.byKey, ss.named.key)
	n.mu.Unlock()
	_ = ss.spool.Close()
	<-ss.over
	ss.named.settle()
	ss.named.release()
	n.wg.Done()
}

// absent lists those whose app is away.
func (n *sessions) absent() []StreamInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []StreamInfo
	for _, ss := range n.byKey {
		nm := ss.named
		nm.mu.Lock()
		away := nm.attached == 0
		nm.mu.Unlock()
		if !away {
			continue
		}
		stats := ss.spool.Stats()
		i := nm.info
		i.Absent, i.BytesOut, i.LagBytes = true, stats.Read, int(stats.Lag())
		if !stats.Behind.IsZero() {
			i.LagTime = time.Since(stats.Behind)
		}
		list = append(list, i)
	}
	return list
}

// endAll ends all named streams and waits for them.
func (n *sessions) endAll(cause error) {
	n.mu.Lock()
	n.over = true
	var all []*session
	for _, ss := range n.byKey {
		all = append(all, ss)
	}
	n.mu.Unlock()
	for _, ss := range all {
		ss.leave(n, cause)
	}
	n.wg.Wait()
}

// enter notes that the app follows ss; it returns false if ss is gone.
func (ss *session) enter() bool {
	nm := ss.named
	nm.mu.Lock()
	defer nm.mu.Unlock()
	if nm.gone {
		return false
	}
	nm.attached++
	if nm.absent != nil {
		nm.absent.Stop()
	}
	return true
}

// exit begins the wait for the app when its last connection has gone.
func (ss *session) exit(n *sessions, wait time.Duration) {
	nm := ss.named
	nm.mu.Lock()
	defer nm.mu.Unlock()
	if nm.attached--; nm.attached == 0 && !nm.gone {
		nm.absent = time.AfterFunc(wait, func() {
			nm.mu.Lock()
			back := nm.attached > 0
			nm.mu.Unlock()
			if !back {
				ss.leave(n, errAbsent)
			}
		})
	}
}

// leave ends ss for good.
func (ss *session) leave(n *sessions, cause error) {
	nm := ss.named
	nm.mu.Lock()
	first := !nm.gone
	nm.gone = true
	if nm.absent != nil {
		nm.absent.Stop()
	}
	nm.mu.Unlock()
	ss.stop(cause)
	if first {
		n.remove(ss)
	}
}

// streamName is the name that the app gave its stream; "" = none, or one that
// does not apply.
func (e *exchange) streamName() (string, *failure) {
	values := e.r.Header[streamHeader]
	if len(values) == 0 || e.rt.upstream == nil || e.rt.upstream.Reattach == nil || e.rec.Mode == ModeWebSocket {
		if _, back := e.r.Header[positionHeader]; back { // sent on, it would be asked twice
			return "", unknownStream()
		}
		return "", nil
	}
	id := values[0]
	if len(values) != 1 || id == "" || len(id) > 128 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
		return "", &failure{status: http.StatusBadRequest, code: "bad_stream_name", proxy: "http_request_error", outcome: OutcomeRefused, cause: "bad_stream_name",
			message: streamHeader + " needs 1 to 128 letters, digits, dots, dashes or underscores"}
	}
	return id, nil
}

// name runs a request whose answer the app can come back to, or comes back.
func (e *exchange) name(id string) {
	key := e.s.sessions.key(e, id)
	if values, back := e.r.Header[positionHeader]; back {
		e.comeBack(key, values)
		return
	}
	u := e.rt.upstream
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(e.called()))
	e.ctx, e.stop = ctx, cancel
	out, f := e.outgoing()
	if f != nil {
		cancel(nil)
		e.fail(*f)
		return
	}
	ss, err := newSession(ctx, cancel, u, &e.s.buffers, u.Reattach.Spool)
	if err != nil {
		cancel(nil)
		e.fail(ours(http.StatusInternalServerError, "internal_error", "proxy_internal_error", err.Error(), false, OutcomeRefused, CauseInternal))
		return
	}
	gone := context.AfterFunc(e.r.Context(), func() { cancel(context.Cause(e.r.Context())) }) // until the request has left
	release, waited, err := e.admit()
	gone()
	if err != nil {
		_ = ss.spool.Close()
		cancel(nil)
		e.rec.Phases.Queue = waited
		e.fail(classify(ctx, err))
		return
	}
	ss.named = &naming{key: key, info: e.info(), release: release, settle: ss.settle(e.s, e.use, e.rec.Tenant)}
	ss.use = e.use
	if f := e.s.sessions.add(ss); f != nil {
		release()
		_ = ss.spool.Close()
		cancel(nil)
		e.fail(*f)
		return
	}
	e.use = nil // it is the stream's from here on
	ss.enter()
	e.sw.start()
	go e.s.ask(ss, out, dialectRequest{e.r.Method, e.rt.path})
	e.attach(ss, 0)
}

// settle returns the function that charges use for the answer once it is over.
func (ss *session) settle(s *Server, use *tenant.Use, who string) func() {
	return func() {
		if use == nil {
			return
		}
		tokens := int64(-1)
		if ss.watch != nil {
			tokens = ss.watch.Report().OutputTokens
		}
		s.charge(use, who, tokens)
	}
}

// dialectRequest is what a watcher wants to know of a request.
type dialectRequest struct{ method, path string }

// ask sends the request of a named stream and takes its answer.
func (s *Server) ask(ss *session, out *http.Request, about dialectRequest) {
	dog := startWatchdog(ss.u, ss.stop)
	defer dog.stop()
	ss.resp, ss.err = ss.u.Transport.RoundTrip(out)
	if ss.err != nil {
		close(ss.head)
		close(ss.over)
		return
	}
	ss.watch = dialect.NewWatcher(ss.u.Dialect, about.method, about.path, ss.resp.StatusCode, ss.resp.Header)
	ss.onToken = dog.firstToken
	close(ss.head)
	ss.pump()
}

// comeBack gives the app the rest of a stream that it has named before.
func (e *exchange) comeBack(key sessionKey, values []string) {
	pos, err := strconv.ParseInt(values[0], 10, 64)
	if len(values) != 1 || err != nil || pos < 0 {
		e.fail(ours(http.StatusBadRequest, "bad_stream_position", "http_request_error", positionHeader+" needs the number of body bytes that the app has",
			false, OutcomeRefused, "bad_stream_position"))
		return
	}
	ss := e.s.sessions.find(key)
	if ss == nil || !ss.enter() {
		e.fail(*unknownStream())
		return
	}
	e.ctx, e.stop = ss.ctx, ss.stop
	e.rec.Resumes = 1
	e.attach(ss, pos)
}

// unknownStream is for an app that comes back to nothing.
func unknownStream() *failure {
	f := ours(http.StatusNotFound, "stream_unknown", "http_request_denied", "no stream of this name waits here for this app: it is over, or was never named, "+
		"or the request line or the credentials are others, or reattach.wait is not set", false, OutcomeRefused, "stream_unknown")
	return &f
}

// attach gives the app a named stream from a position on, until it is over or the app
// leaves. The stream goes on without the app.
func (e *exchange) attach(ss *session, pos int64) {
	defer ss.exit(&e.s.sessions, ss.u.Reattach.Wait)
	left, leave := context.WithCancelCause(e.r.Context()) // of this connection alone
	defer leave(nil)
	e.dog = startWatchdog(&Upstream{}, func(cause error) {
		leave(cause)
		_ = e.rc.SetWriteDeadline(time.Unix(1, 0)) // a connection that cannot is none of ours
	})
	defer e.dog.stop()
	defer e.s.running.add(e)()
	select {
	case <-ss.head:
	case <-left.Done():
	}
	e.heads.finish()
	if left.Err() != nil {
		e.headCame(left.Err())
		e.away(left)
	}
	e.headCame(ss.err)
	if ss.err != nil {
		e.fail(classify(ss.ctx, ss.err))
		return
	}
	reader, err := ss.spool.Reader(pos)
	if err != nil {
		e.fail(ours(http.StatusRequestedRangeNotSatisfiable, "stream_position_gone", "http_request_error",
			"the stream cannot be continued there: "+err.Error(), false, OutcomeRefused, "stream_position_gone"))
		return
	}
	e.namedHead(ss, pos)
	e.dog.body(0, ss.u.Stall, time.Now(), e.unsent())
	e.answers(ss.resp, e.account.head)
	err = e.follow(ss, reader)
	e.reportNamed(ss)
	switch {
	case err == nil:
		e.rec.Outcome = OutcomeOK
		e.sendTrailers(ss.resp)
	case errors.Is(err, bufferctl.ErrTakenOver):
		leave(errReplaced)
		e.away(left)
	case e.undelivered, errors.Is(err, bufferctl.ErrReaderClosed):
		leave(http1.ErrClientLeft)
		e.away(left)
	default:
		e.rec.Outcome, e.rec.Cause = cutCause(ss.ctx, err)
		panic(http.ErrAbortHandler)
	}
}

// away records that this connection of the app has ended before the stream, and breaks it.
func (e *exchange) away(left context.Context) {
	e.rec.Outcome, e.rec.Cause = OutcomeCutApp, CauseAppLeft
	if errors.Is(context.Cause(left), errStalled) {
		e.rec.Outcome, e.rec.Cause = OutcomeCutWarmwire, CauseStalled
	}
	panic(http.ErrAbortHandler)
}

// namedHead sends the head of a named stream, with the length that is left.
func (e *exchange) namedHead(ss *session, pos int64) {
	h := e.w.Header()
	clear(h)
	copyResponseHeader(h, ss.resp.Header)
	h[streamHeader] = []string{e.r.Header[streamHeader][0]}
	if pos > 0 || e.rec.Resumes > 0 {
		h[positionHeader] = []string{strconv.FormatInt(pos, 10)}
		if n := ss.resp.ContentLength; n >= 0 {
			h["Content-Length"] = []string{strconv.FormatInt(n-pos, 10)}
		}
	}
	e.rec.UpstreamProto, e.rec.Status = ss.resp.Proto, ss.resp.StatusCode
	e.live.status.Store(int32(ss.resp.StatusCode))
	e.live.session.Store(ss)
	lag := e.lag(nil)
	e.live.lag.Store(&lag)
	e.w.WriteHeader(ss.resp.StatusCode)
	_ = e.rc.Flush() // a connection that broke shows at the next write
}

// reportNamed puts what the observer saw into the record; the first token's time
// belongs to the request that asked for it.
func (e *exchange) reportNamed(ss *session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	rep := ss.watch.Report()
	e.rec.Stream = rep.Stream
	if e.rec.Resumes == 0 {
		e.watch = ss.watch
		e.fillReport(rep)
	}
}
