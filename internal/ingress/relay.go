// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/tenant"
)

// headGrace is how long the head of an answer of known length waits for the body
// that is on its way with it, so that both go out in one write. The heads of
// streams never wait.
const headGrace = time.Millisecond

// An exchange is one request on its way: what came in, where it goes, and what
// became of it.
type exchange struct {
	s      *Server
	t      *Table
	w      http.ResponseWriter
	rc     *http.ResponseController
	r      *http.Request
	rt     route
	who    *tenant.Tenant // nil: there are no tenants
	use    *tenant.Use    // what the request takes of its quotas; nil-safe
	over   *tenant.Over   // why it may not have it
	inside *inside        // nil: the request came in no tunnel that was ended here
	ended  bool           // nothing is to be recorded of it
	rec    *Record
	ctx    context.Context // of the upstream request; its cause says who ended it
	stop   context.CancelCauseFunc
	dog    *watchdog
	sw     stopwatch
	heads  heads
	body   *uploadBody // nil: no body
	watch  *dialect.Watcher
	live   live

	account account

	lateHead    *time.Timer // sends the head if the body does not come with it
	undelivered bool        // a write to the app has failed
	protocol    string      // what an extended CONNECT asks for (RFC 8441); "" = it is none
}

// relay forwards the request of e and streams the answer back. It ends with the
// record filled; a cut response panics with http.ErrAbortHandler, which is how a
// handler tells its server to break the stream visibly.
func (e *exchange) relay() {
	if id, f := e.streamName(); f != nil {
		e.fail(*f)
		return
	} else if id != "" {
		e.name(id)
		return
	}
	ctx, cancel := context.WithCancelCause(e.called())
	e.ctx, e.stop = ctx, cancel
	defer cancel(nil)
	defer e.s.running.add(e)()
	limits := e.limits()
	e.dog = startWatchdog(limits, e.end)
	defer e.dog.stop()

	out, f := e.outgoing()
	if f != nil {
		e.fail(*f)
		return
	}
	release, waited, err := e.admit()
	if err != nil {
		e.heads.finish()
		e.rec.Phases.Queue = waited
		e.fail(classify(ctx, err))
		return
	}
	defer release()
	e.sw.start()
	resp, err := e.transport().RoundTrip(out)
	e.heads.finish() // before any write of the final head
	e.headCame(err)
	e.rec.Phases.Queue += waited
	e.rec.TrailersLost += e.lostTrailers()
	if err != nil {
		if e.rec.Attempts == 0 { // it waited for its turn in vain
			e.rec.Phases.Queue += time.Since(e.sw.begun)
		}
		e.fail(classify(ctx, err))
		return
	}
	defer resp.Body.Close()
	e.rec.UpstreamProto = resp.Proto
	if resp.StatusCode == http.StatusSwitchingProtocols {
		e.switchProtocols(resp)
		return
	}
	if e.protocol != "" && resp.StatusCode/100 == 2 { // to the app it would mean that its WebSocket is open
		e.badHandshake("no 101")
		return
	}
	e.respond(resp, limits)
}

// admit waits until there is room for the request's buffers.
func (e *exchange) admit() (release func(), waited time.Duration, err error) {
	if e.s.cfg.Admit == nil {
		return func() {}, 0, nil
	}
	begun := time.Now()
	if release, err = e.s.cfg.Admit(e.ctx, e.rt.upstream, e.rec.Mode == ModeWebSocket); err != nil {
		err = &overload{err}
	}
	return release, time.Since(begun), err
}

// limits returns the limits that apply: those of the upstream, or for other
// hosts just the idle one.
func (e *exchange) limits() *Upstream {
	if e.rt.upstream != nil {
		return e.rt.upstream
	}
	return &Upstream{Idle: e.t.Forward.Idle, Stall: e.t.Forward.Stall, Dialect: dialect.None}
}

// end ends the exchange at a limit of the relay loop, also a write that waits for the
// app. Before the head there is an answer of ours to be written, and a WebSocket's relay
// has a close frame for the app, and a limit of its own for that.
func (e *exchange) end(cause error) {
	e.stop(cause)
	if status := e.live.status.Load(); status != 0 && status != http.StatusSwitchingProtocols {
		_ = e.rc.SetWriteDeadline(time.Unix(1, 0)) // a connection that cannot is none of ours
	}
}

func (e *exchange) transport() http.RoundTripper {
	if e.rt.upstream != nil {
		return e.rt.upstream.Transport
	}
	return e.t.Forward.Transport
}

// outgoing builds the upstream request. RequestURI carries the raw target, for
// the way out to send octet for octet.
func (e *exchange) outgoing() (*http.Request, *failure) {
	r := e.r
	if e.t.MaxBody > 0 && r.ContentLength > e.t.MaxBody {
		f := bodyTooLarge(false) // before any 100: RFC 9110 §10.1.1
		return nil, &f
	}
	e.sw.first = e.heads.answered
	if r.ProtoAtLeast(1, 1) { // never to HTTP/1.0 (RFC 9110 §15.2)
		e.sw.interim = e.heads.interim
	}
	out := (&http.Request{
		Method:     r.Method,
		URL:        &url.URL{Scheme: e.rt.scheme, Host: e.rt.host},
		RequestURI: e.rt.target,
		Host:       e.rt.host,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        e.s.requestHeader(e.t, r, e.rt, e.who),
		Body:          http.NoBody,
		ContentLength: r.ContentLength,
	}).WithContext(httptrace.WithClientTrace(e.ctx, e.sw.trace()))
	e.continueTrace(out.Header)
	if e.rec.Mode == ModeWebSocket {
		out.Header["Connection"], out.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
		out.ContentLength = 0
		return out, nil
	}
	if r.ContentLength != 0 {
		out.Trailer = announcedTrailer(r, e.who != nil)
		e.body = &uploadBody{r: r, use: e.use, limit: e.t.MaxBody, continued: e.heads.askForBody, fail: e.stop, trailer: out.Trailer}
		out.Body = e.body
	}
	return out, nil
}

// respond streams the upstream's answer to the app: the head at once, then each
// read before the next one blocks, whatever the media type.
func (e *exchange) respond(resp *http.Response, u *Upstream) {
	kind := u.Dialect
	e.watch = dialect.NewWatcher(kind, e.r.Method, e.rt.path, resp.StatusCode, resp.Header)
	h := e.w.Header()
	clear(h)
	copyResponseHeader(h, resp.Header)
	if e.rec.Mode == ModeForward && e.t.Via {
		h["Via"] = append(h["Via"], strings.TrimPrefix(resp.Proto, "HTTP/")+" "+e.s.pseudonym)
	}
	e.timingHead(h)
	trailers := e.announceTrailers(resp)
	e.rec.Status = resp.StatusCode
	e.live.status.Store(int32(resp.StatusCode))
	lag := e.lag(resp.Body)
	e.live.lag.Store(&lag)
	e.w.WriteHeader(resp.StatusCode)
	e.flushHead(resp)
	var err error
	if u.Spool != nil && resp.ContentLength != 0 {
		err = e.spooled(resp, u)
	} else {
		err = e.stream(resp, u)
	}
	if e.lateHead != nil { // the body broke off before its first byte
		e.lateHead.Stop()
		_ = e.rc.Flush()
	}
	e.report()
	if err != nil && !e.leftWithAll(resp) {
		e.cut(err, resp, u)
		return
	}
	e.rec.Outcome = OutcomeOK
	rep := e.watch.Report()
	switch {
	case rep.ErrorEvent:
		e.rec.Cause = CauseErrorEvent
	case rep.ExpectsTerminal && !rep.TerminalSeen:
		e.rec.Cause = CauseMissingTerminal
	}
	if trailers {
		e.sendTrailers(resp)
	} else {
		e.rec.TrailersLost += len(resp.Trailer)
	}
}

// flushHead sends the head at once; only beside a body of known length it gives
// the first bytes of that body the chance to go with it.
func (e *exchange) flushHead(resp *http.Response) {
	flush := func() {
		if err := e.rc.Flush(); err != nil && e.ctx.Err() == nil {
			e.stop(http1.ErrClientLeft) // the app's connection broke under the head
		}
	}
	if e.r.ProtoMajor == 2 || resp.ContentLength <= 0 || resp.ContentLength > largeBufferBytes || e.r.Method == http.MethodHead {
		flush()
		return
	}
	e.lateHead = time.AfterFunc(headGrace, flush) // http1's writer may be used from another goroutine for this
}

// stream passes every token on. An error that is not nil says that the answer did not
// reach its end.
func (e *exchange) stream(resp *http.Response, u *Upstream) error {
	l := &relayLoop{e: e, flush: e.r.ProtoMajor == 2, token: u.FirstToken > 0}
	e.dog.body(u.Idle, u.Stall, time.Now(), e.unsent())
	e.answers(resp, e.account.head)
	l.comments = e.comments(resp, u)
	defer func() { e.rec.BytesOut += l.comments.stop() }()
	if from, ok := resp.Body.(io.WriterTo); ok { // it hands its own buffers over, and an idle stream has none
		_, err := from.WriteTo(l)
		return err
	}
	buf := e.s.buffers.reader()
	defer buf.release()
	for {
		n, err := resp.Body.Read(buf.b)
		if n > 0 {
			if _, werr := l.Write(buf.b[:n]); werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		buf.filled(n)
	}
}

// A relayLoop takes what the upstream gave, and returns when the app has it.
type relayLoop struct {
	e        *exchange
	comments *commenter
	flush    bool // http1 sends each Write by itself
	token    bool // the first one is waited for
}

// Write shows p to the observer and writes it to the app.
func (l *relayLoop) Write(p []byte) (int, error) {
	e := l.e
	l.comments.busy()
	now := time.Now()
	if e.lateHead != nil {
		e.lateHead.Stop()
		e.lateHead = nil
	}
	e.watch.Observe(p, now)
	e.came(now, len(p), e.watch.Chunks(), e.watch.Inside())
	e.use.Chunks(e.watch.Chunks(), now)
	if l.token && !e.watch.Report().FirstToken.IsZero() {
		e.dog.firstToken()
		l.token = false
	}
	n, err := e.w.Write(p)
	e.rec.BytesOut += int64(n)
	e.live.out.Store(e.rec.BytesOut)
	if err == nil && l.flush {
		err = e.rc.Flush()
	}
	written := time.Now()
	e.took(written, err == nil)
	if written.Sub(now) > pauseSpan {
		e.paused()
	}
	if err != nil {
		e.stop(http1.ErrClientLeft)
		e.undelivered = true
		return n, err
	}
	l.comments.idle()
	return n, nil
}

// pauseSpan is how long a write to the app must take to count as a pause: by then the
// kernel's buffers are full, and the upstream waits or will. A guess.
const pauseSpan = 100 * time.Millisecond

func (e *exchange) paused() {
	e.rec.Pauses++
	if hook := e.s.cfg.Hooks.Paused; hook != nil {
		hook(e.rec.Upstream)
	}
}

// unsent tells how many bytes wait in the kernel for the app. On an HTTP/2 connection
// they may be another stream's.
func (e *exchange) unsent() func() int {
	conn := e.ownConn()
	if conn == nil {
		return nil
	}
	return func() int { return unsent(conn) }
}

// ownConn is the connection to the app, if it serves nothing else; else nil.
func (e *exchange) ownConn() net.Conn {
	if e.r.ProtoMajor == 2 {
		return nil
	}
	return http1.Conn(e.r.Context())
}

// leftWithAll says whether the app closed its connection, or reset its stream, after
// the whole answer: it has counted the bytes, while the upstream has still to say that
// there are no more (HTTP/2 may send END_STREAM by itself).
func (e *exchange) leftWithAll(resp *http.Response) bool {
	return !e.undelivered && resp.ContentLength > 0 && e.rec.BytesOut == resp.ContentLength && appLeft(context.Cause(e.ctx))
}

// cut breaks the app's stream visibly after a broken answer: no last chunk, or
// RST_STREAM (RFC 9112 §8, RFC 9113 §8.1.1), never a clean end.
func (e *exchange) cut(err error, resp *http.Response, u *Upstream) {
	e.rec.Outcome, e.rec.Cause = cutCause(e.ctx, err)
	if u.ErrorEvent && e.rec.Outcome != OutcomeCutApp && resp.ContentLength < 0 &&
		resp.Header.Get("Content-Encoding") == "" && e.watch.AtBoundary() {
		event := dialect.ErrorEvent(u.Dialect, e.rt.path, e.rec.Cause, "Warmwire: the stream was cut ("+e.rec.Cause+")")
		if n, werr := e.w.Write(event); werr == nil {
			e.rec.BytesOut += int64(n)
			_ = e.rc.Flush() // the cut that follows is what counts
		}
	}
	panic(http.ErrAbortHandler)
}

// fail answers with an error of ours, unless the app has left: then there is
// nobody to answer, and the stream is just broken off.
func (e *exchange) fail(f failure) {
	e.leaveAlone(&f)
	e.rec.Outcome, e.rec.Cause, e.rec.Status = f.outcome, f.cause, f.status
	if f.cause == CauseAppLeft {
		e.rec.Status = 0
		panic(http.ErrAbortHandler)
	}
	kind := dialect.None
	if e.rt.upstream != nil {
		kind = e.rt.upstream.Dialect
	}
	e.s.fail(e.w, e.r, kind, f)
}

// report closes the observer and moves what it saw into the record.
func (e *exchange) report() {
	e.watch.End(time.Now())
	e.fillReport(e.watch.Report())
}

func (e *exchange) fillReport(rep dialect.Report) {
	e.rec.Stream, e.rec.Chunks = rep.Stream, rep.Chunks
	e.rec.InputTokens, e.rec.OutputTokens = rep.InputTokens, rep.OutputTokens
	e.rec.Gaps = rep.Gaps
	if !rep.FirstToken.IsZero() {
		e.rec.TTFT = rep.FirstToken.Sub(e.rec.Start)
		if rep.Chunks > 1 {
			e.rec.PerChunk = rep.LastToken.Sub(rep.FirstToken) / time.Duration(rep.Chunks-1)
		}
	}
}

// announceTrailers decides whether trailers can be carried, and announces those
// the upstream announced. With Content-Length framing HTTP/1.1 has no place for
// them: an app that said TE: trailers gets chunked coding instead (RFC 9110
// §6.5.1, RFC 9112 §7.1.2).
func (e *exchange) announceTrailers(resp *http.Response) bool {
	if !e.r.ProtoAtLeast(1, 1) || e.r.Method == http.MethodHead {
		return false
	}
	h := e.w.Header()
	if e.r.ProtoMajor == 1 && resp.ContentLength >= 0 {
		if len(resp.Trailer) == 0 || !hasToken(e.r.Header["Te"], "trailers") {
			return false
		}
		delete(h, "Content-Length")
	}
	for name := range resp.Trailer {
		if !trailerForbidden(name) {
			h["Trailer"] = append(h["Trailer"], name)
		}
	}
	return true
}

// sendTrailers passes the trailer section on, announced or not.
func (e *exchange) sendTrailers(resp *http.Response) {
	h := e.w.Header()
	for name, values := range resp.Trailer {
		if trailerForbidden(name) {
			e.rec.TrailersLost++
			continue
		}
		h[http.TrailerPrefix+name] = values
	}
	e.timingTrailer(h)
}

// lostTrailers counts request trailers that could not be sent.
func (e *exchange) lostTrailers() int {
	if e.body == nil {
		return 0
	}
	return int(e.body.lost.Load())
}

// appRetries reads how often the SDK says it has tried already.
func appRetries(h http.Header) int {
	n, err := strconv.Atoi(h.Get("X-Stainless-Retry-Count"))
	if err != nil || n < 0 || n > 1000 {
		return 0
	}
	return n
}
