// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/transport/fault"
	"github.com/warmwire/warmwire/transport/semantics"
	"github.com/warmwire/warmwire/transport/upload"
)

// A tunnel is what CONNECT makes of a stream.
type tunnel uint8

const (
	noTunnel        tunnel = iota
	plainConnect           // RFC 9114 §4.4
	extendedConnect        // RFC 9220
)

// A stream is one request and its answer. It is read by RoundTrip up to the final
// head, and by the body's reader from there: there is no goroutine of its own.
type stream struct {
	c            *Conn
	req          *http.Request
	trace        *httptrace.ClientTrace
	class        semantics.Class
	urgency      string // of the priority signals; "" = none are sent
	tunnel       tunnel // that was asked for
	target       semantics.Target
	fieldSection uint64       // size as RFC 9114 §4.2.2 counts it
	upload       *upload.Body // nil = no body
	str          *quic.Stream

	sent    atomic.Bool // a byte of the head may be on the wire
	wrote   atomic.Bool // WroteRequest was called
	started atomic.Bool // the final head is there

	read reading // owned by the reader

	mu       sync.Mutex // guards the fields below
	end      error      // how it ended for the app; nil = it has not
	tunnels  bool       // CONNECT was granted: the two ways end apart
	released bool       // not in flight any more
	unwatch  func() bool
	account  bufferctl.Account // what the budget is charged with, beyond firstWindow
}

// reading is what the reader knows about an answer.
type reading struct {
	frames   frames
	resp     *http.Response // the final head
	bodyless bool           // HEAD, 204, 304
	declared int64          // content-length; -1 = none
	got      int64          // bytes of body
	recharge int64          // how many of them make the budget be told again
	interim  int
	head     int    // bytes of heads so far
	trailers bool   // they came: nothing more may
	raw      []byte // what came with the head and is not read yet; in chunk
	chunk    *[]byte
}

// newStream checks req and prepares what of it needs no lock.
func (c *Conn) newStream(req *http.Request) (*stream, error) {
	s := &stream{c: c, req: req, trace: httptrace.ContextClientTrace(req.Context()), class: semantics.ClassOf(req, c.cfg.Class)}
	s.read.declared = -1
	var err error
	if s.target, err = semantics.TargetOf(req, "https"); err != nil {
		return nil, fmt.Errorf("h3: %w", err)
	}
	if req.Method == http.MethodConnect {
		s.tunnel = plainConnect
		if s.target.Protocol != "" {
			s.tunnel = extendedConnect
		}
	}
	if s.fieldSection, err = s.target.CheckFields(req); err != nil {
		return nil, fmt.Errorf("h3: %w", err)
	}
	s.upload = upload.New(s.req, s, s.trace)
	s.setPriority()
	return s, nil
}

// safe says whether the request may be replayed by anybody on the path, which is
// what 0-RTT allows (RFC 8470 §2).
func (s *stream) safe() bool {
	switch s.target.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return s.upload == nil
	}
	return false
}

// watch ends s when ctx does.
func (s *stream) watch(ctx context.Context) {
	if ctx.Done() == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { s.terminate(context.Cause(ctx), codeCancelled) })
	s.mu.Lock()
	s.unwatch = stop
	over := s.end != nil
	s.mu.Unlock()
	if over {
		stop()
	}
}

// start writes the head, and the end of a request without a body.
func (s *stream) start() error {
	s.account = s.c.cfg.Budget.Open(0) // nobody else knows s yet
	s.charge()
	buf := s.c.small.Get().(*[]byte)
	head := s.head((*buf)[:0])
	s.str.SetPriority(sending[s.class], true)
	s.sent.Store(true)
	n, err := s.str.Write(head)
	if cap(head) <= keepSpare {
		*buf = head[:cap(head)]
	}
	s.c.small.Put(buf)
	if err != nil {
		s.sent.Store(n > 0)
		return s.failed(err)
	}
	if s.upload == nil && s.tunnel == noTunnel {
		_ = s.str.Close()
	}
	if s.urgency != "" {
		s.c.control.tell(priorityUpdate(int64(s.str.StreamID()), s.urgency))
	}
	if s.trace != nil && s.trace.WroteHeaders != nil {
		s.trace.WroteHeaders()
	}
	if s.upload == nil {
		s.WroteRequest(nil)
	}
	return nil
}

// wroteRequest calls the hook, once.
func (s *stream) WroteRequest(err error) {
	if s.wrote.Swap(true) || s.trace == nil || s.trace.WroteRequest == nil {
		return
	}
	s.trace.WroteRequest(httptrace.WroteRequestInfo{Err: err})
}

// await reads up to the final head, and hands on what comes before it.
func (s *stream) await() (*http.Response, error) {
	r := &s.read
	r.chunk = s.c.small.Get().(*[]byte)
	first := true
	for {
		n, rerr := s.str.Read(*r.chunk)
		if n > 0 && first {
			first = false
			if s.trace != nil && s.trace.GotFirstResponseByte != nil {
				s.trace.GotFirstResponseByte()
			}
		}
		if n > 0 {
			s.c.heard()
		}
		if err := s.takeHead((*r.chunk)[:n]); err != nil {
			return nil, err
		}
		if r.resp != nil {
			if rerr == io.EOF && len(r.raw) == 0 && !s.tunnelling() {
				if err := s.noBody(); err != nil {
					return nil, err
				}
			}
			s.mu.Lock()
			err := s.end
			s.mu.Unlock()
			if err != nil && err != io.EOF {
				return nil, err
			}
			return r.resp, nil
		}
		if rerr == io.EOF {
			if err := r.frames.end(); err != nil {
				return nil, s.broke(err)
			}
			return nil, s.broke(errors.New("it ends without a head"))
		}
		if rerr != nil {
			return nil, s.failed(rerr)
		}
	}
}

// takeHead takes bytes that come before the end of the final head.
func (s *stream) takeHead(p []byte) error {
	r := &s.read
	for r.resp == nil && len(p) > 0 {
		what, b, rest, err := r.frames.next(p)
		if err != nil {
			return s.broke(err)
		}
		switch what {
		case payload:
			return s.broke(violation(codeFrameUnexpected, "DATA before a head")) // RFC 9114 §4.1
		case block:
			if err := s.onHead(b); err != nil {
				return err
			}
		}
		p = rest
	}
	if r.resp != nil {
		if r.raw = p; len(p) == 0 {
			s.dropChunk()
		}
	}
	return nil
}

func (s *stream) dropChunk() {
	if s.read.chunk != nil {
		s.c.small.Put(s.read.chunk)
		s.read.chunk, s.read.raw = nil, nil
	}
}

// onHead takes a 1xx or the final head.
func (s *stream) onHead(p []byte) error {
	r := &s.read
	var fs section
	err := fs.decode(p, maxHeadBytes-r.head)
	r.head += fs.size
	if err != nil {
		return s.broke(err)
	}
	code, fields, err := fs.status()
	switch {
	case err != nil:
		return s.broke(err)
	case code == http.StatusSwitchingProtocols:
		return s.broke(errors.New("it has status 101, which HTTP/3 does not have")) // RFC 9114 §4.5
	case code >= 200:
		return s.onFinal(code, s.c.coder.header(fields))
	case r.interim == maxInterim:
		return s.broke(fmt.Errorf("it has more than %d 1xx", maxInterim))
	}
	r.interim++
	return s.onInterim(code, fields)
}

func (s *stream) onInterim(code int, fields []qpack.HeaderField) error {
	if code == http.StatusContinue && s.upload != nil {
		s.upload.GoOn()
	}
	if s.trace == nil {
		return nil
	}
	if code == http.StatusContinue && s.trace.Got100Continue != nil {
		s.trace.Got100Continue()
	}
	if s.trace.Got1xxResponse == nil {
		return nil
	}
	if err := s.trace.Got1xxResponse(code, textproto.MIMEHeader(s.c.coder.header(fields))); err != nil {
		s.terminate(err, codeCancelled)
		return err
	}
	return nil
}

// onFinal is the head of the answer proper.
func (s *stream) onFinal(code int, h http.Header) error {
	declared, err := semantics.LengthOf(h)
	tunnelled := s.tunnel != noTunnel && code < 300
	bodyless := s.target.Method == http.MethodHead || code == http.StatusNoContent || code == http.StatusNotModified
	if tunnelled {
		declared, err = -1, nil // RFC 9110 §9.3.6
		bodyless = false
		delete(h, "Content-Length")
	}
	if err != nil {
		return s.broke(err)
	}
	if tunnelled { // a refused CONNECT is an exchange like others
		s.mu.Lock()
		s.tunnels = true
		s.mu.Unlock()
	}
	s.read.resp = &http.Response{
		Status: statusLine(code), StatusCode: code, Proto: "HTTP/3.0", ProtoMajor: 3,
		Header: h, ContentLength: declared, Request: s.req, TLS: s.c.tlsState(), Body: (*body)(s), Trailer: semantics.AnnouncedTrailers(h),
	}
	if declared < 0 && bodyless && s.target.Method != http.MethodHead {
		s.read.resp.ContentLength = 0
	}
	s.read.bodyless, s.read.declared = bodyless, declared
	s.started.Store(true)
	if code >= 300 && s.upload != nil {
		s.stopUpload()
	} else if s.upload != nil {
		s.upload.GoOn()
	}
	return nil
}

// noBody is the end of an answer that came with its head.
func (s *stream) noBody() error {
	r := &s.read
	if err := s.atEnd(); err != nil {
		return err
	}
	if r.declared < 0 && s.target.Method != http.MethodHead {
		r.resp.ContentLength = 0
	}
	r.resp.Body = http.NoBody
	s.finish()
	return nil
}

// atEnd checks that the answer may end here: between two frames, and with the
// length it declared (RFC 9114 §4.1.2). If not, the app gets what came and then
// the cut.
func (s *stream) atEnd() error {
	r := &s.read
	if err := r.frames.end(); err != nil {
		return s.broke(err)
	}
	if r.declared >= 0 && !r.bodyless && r.got < r.declared {
		return s.broke(fmt.Errorf("it ended after %d of the %d bytes it declared", r.got, r.declared))
	}
	return nil
}

// finish is the clean end of the answer, read by the app.
func (s *stream) finish() {
	s.settle(io.EOF)
	if s.tunnelling() {
		return // half closed: the tunnel's other way may still be in use
	}
	if s.upload != nil { // RFC 9114 §4.1: the answer is complete; the rest is not wanted
		s.upload.Stop(nil)
		s.str.CancelWrite(quic.StreamErrorCode(codeCancelled))
	}
}

// terminate ends s because of err, for the peer and for the app.
func (s *stream) terminate(err error, code errCode) {
	if s.settle(err) || s.leaveTunnel(err) {
		s.str.CancelRead(quic.StreamErrorCode(code))
		s.str.CancelWrite(quic.StreamErrorCode(code))
	}
}

// leaveTunnel ends the way out of a tunnel whose way in has ended.
func (s *stream) leaveTunnel(err error) bool {
	s.mu.Lock()
	half := s.tunnels && s.end == io.EOF && !s.released
	if half {
		s.end = err
	}
	stop := s.unwatch
	s.mu.Unlock()
	if !half {
		return false
	}
	if stop != nil {
		stop()
	}
	s.release()
	if s.upload != nil {
		s.upload.Stop(err)
	}
	return true
}

// broke ends s because its answer is malformed or breaks a rule (RFC 9114 §4.1.2),
// and the connection with it where the rule says so. It returns what the app gets.
func (s *stream) broke(err error) error {
	f := &fault.Error{In: "wait", Kind: kindBad, Sent: true, Err: fmt.Errorf("the upstream's answer is refused: %w", err)}
	code := codeMessage
	var wrong *connError
	switch {
	case errors.As(err, &wrong):
		f.Kind = kindProtocol
		f.Err = fmt.Errorf("the upstream breaks HTTP/3: %w", err)
	case errors.Is(err, errHeadTooLarge):
		f.Kind, code = kindTooLarge, codeExcessiveLoad
		f.Err = fmt.Errorf("the upstream's answer is refused: its head is larger than %d bytes", maxHeadBytes)
	case errors.Is(err, errUseless):
		code = codeExcessiveLoad
	}
	if s.started.Load() {
		f = fault.Cut(f)
	}
	s.terminate(f, code)
	if wrong != nil {
		s.c.fail(&fault.Error{In: "wait", Kind: kindProtocol, Err: f.Err}, wrong.code)
	}
	return s.ended()
}

// failed ends s because reading or writing failed with err, and returns what the
// app gets.
func (s *stream) failed(err error) error {
	s.mu.Lock()
	over := s.end != nil
	s.mu.Unlock()
	if over { // err is the echo of that
		return s.ended()
	}
	var reset *quic.StreamError
	started := s.started.Load()
	var f *fault.Error
	switch {
	case errors.As(err, &reset):
		f = resetBy(errCode(reset.ErrorCode), s.sent.Load(), started)
	case errors.Is(err, quic.Err0RTTRejected):
		// RFC 9001 §4.6.2: a server that refuses early data has processed none of it.
		s.c.refuseEarly()
		// Its stream is no more, and a reset now might reach the one that has its id next.
		s.settle(fault.Unsent(kindClosed, "the upstream refused early data: %w", err))
		return s.ended()
	default:
		f = fault.Of(s.c.death(err), s.sent.Load())
	}
	if started {
		f = fault.Cut(f)
	}
	s.terminate(f, codeCancelled)
	return s.ended()
}

func (s *stream) tunnelling() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tunnels
}

// ended is how s ended for the app.
func (s *stream) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// settle notes the end of s for the app; the first one counts. It says whether
// this was it.
func (s *stream) settle(err error) bool {
	s.mu.Lock()
	if s.end != nil {
		s.mu.Unlock()
		return false
	}
	s.end = err
	stop := s.unwatch
	half := s.tunnels && err == io.EOF
	if !half {
		s.unwatch = nil
	}
	s.mu.Unlock()
	if half {
		return true // one way has ended; the context still ends the other
	}
	if stop != nil {
		stop()
	}
	s.release()
	if s.upload != nil && err != io.EOF {
		s.upload.Stop(err)
	}
	return true
}

// release takes s out of what is in flight.
func (s *stream) release() {
	s.mu.Lock()
	first := !s.released
	s.released = true
	s.account.Close()
	s.mu.Unlock()
	if first {
		s.c.drop(s)
	}
}
