// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/transport/fault"
	"github.com/warmwire/warmwire/transport/semantics"
	"github.com/warmwire/warmwire/transport/upload"
	"golang.org/x/net/http2"
)

// A tunnel is what CONNECT makes of a stream.
type tunnel uint8

const (
	noTunnel        tunnel = iota
	plainConnect           // RFC 9113 §8.5
	extendedConnect        // RFC 8441 §4
)

// A stream is one request and its answer.
type stream struct {
	c          *Conn
	req        *http.Request
	trace      *httptrace.ClientTrace
	class      semantics.Class
	urgency    string // of the priority signals; "" = none are sent
	weight     uint8  // of RFC 7540, less one
	tunnel     tunnel
	target     semantics.Target
	headerList uint64        // size as RFC 9113 §6.5.2 counts it
	upload     *upload.Body  // nil = no body
	ready      chan struct{} // holds a token when RoundTrip shall look
	sent       atomic.Bool   // a byte of the head may be on the wire
	wrote      atomic.Bool   // WroteRequest was called
	read       reading       // owned by the connection's reader

	// Guarded by Conn.mu.
	id         uint32
	localEnd   bool // END_STREAM is queued
	remoteEnd  bool // END_STREAM came; written by the reader alone
	gone       bool // off the wire
	released   bool // not in flight any more
	queued     bool // in the scheduler
	offered    bool // body waits to be taken
	body       []byte
	bodyEnd    bool   // END_STREAM goes with the last of body
	enough     bool   // the answer makes the rest of the upload pointless
	turn       uint64 // the last write that it has a direct part in
	sendWindow int64
	uploaded   int64     // bytes of the body that were queued
	taken      sync.Cond // on Conn.mu; the upload waits

	mu       sync.Mutex // guards the fields below
	arrived  sync.Cond  // on mu; the body's reader waits
	interim  []interim
	resp     *http.Response // the final head
	first    *chunk         // what has arrived and is not consumed
	last     *chunk
	buffered int
	end      error // after what is buffered: io.EOF, or what went wrong
	trailer  http.Header
	over     bool // not in flight any more
	unwatch  func() bool
	window   window
}

// reading is what the reader knows about an answer.
type reading struct {
	final    bool
	bodyless bool  // HEAD, 204, 304
	declared int64 // content-length; -1 = none
	got      int64 // bytes of body
	interim  int
	head     int // bytes of heads so far
}

// An interim is a 1xx answer.
type interim struct {
	status int
	header http.Header
}

// newStream checks req and prepares what of it needs no lock.
func (c *Conn) newStream(req *http.Request) (*stream, error) {
	s := &stream{c: c, req: req, trace: httptrace.ContextClientTrace(req.Context()), class: semantics.ClassOf(req, c.cfg.Class),
		ready: make(chan struct{}, 1)}
	s.taken.L, s.arrived.L = &c.mu, &s.mu
	s.read.declared = -1
	var err error
	if s.target, err = semantics.TargetOf(req, c.scheme); err != nil {
		return nil, fmt.Errorf("h2: %w", err)
	}
	if req.Method == http.MethodConnect {
		s.tunnel = plainConnect
		if s.target.Protocol != "" {
			s.tunnel = extendedConnect
		}
	}
	if s.headerList, err = s.target.CheckFields(req); err != nil {
		return nil, fmt.Errorf("h2: %w", err)
	}
	s.upload = upload.New(s.req, s, s.trace)
	s.setPriority()
	return s, nil
}

// watch ends s when ctx does.
func (s *stream) watch(ctx context.Context) {
	if ctx.Done() == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() {
		s.terminate(context.Cause(ctx), http2.ErrCodeCancel, true)
	})
	s.mu.Lock()
	s.unwatch = stop
	over := s.over
	s.mu.Unlock()
	if over {
		stop()
	}
}

// await waits for the final head, and hands on what comes before it.
func (s *stream) await() (*http.Response, error) {
	first := true
	for {
		<-s.ready
		s.mu.Lock()
		pending, resp, end := s.interim, s.resp, s.end
		s.interim = nil
		s.mu.Unlock()
		if first && (len(pending) > 0 || resp != nil) {
			first = false
			if s.trace != nil && s.trace.GotFirstResponseByte != nil {
				s.trace.GotFirstResponseByte()
			}
		}
		for _, i := range pending {
			if err := s.hand(i); err != nil {
				s.terminate(err, http2.ErrCodeCancel, true)
				return nil, err
			}
		}
		if resp != nil {
			if resp.Body == http.NoBody {
				s.release()
			}
			return resp, nil
		}
		if end != nil {
			return nil, end
		}
	}
}

func (s *stream) hand(i interim) error {
	if s.trace == nil {
		return nil
	}
	if i.status == http.StatusContinue && s.trace.Got100Continue != nil {
		s.trace.Got100Continue()
	}
	if s.trace.Got1xxResponse != nil {
		return s.trace.Got1xxResponse(i.status, textproto.MIMEHeader(i.header))
	}
	return nil
}

// tell wakes RoundTrip.
func (s *stream) tell() {
	select {
	case s.ready <- struct{}{}:
	default: // a token is waiting already
	}
}

// answering says whether the final head is there.
func (s *stream) answering() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resp != nil
}

// terminate ends s because of err: for the peer with RST_STREAM if it is open,
// and for the app, which still gets what is buffered unless discard is set.
func (s *stream) terminate(err error, code http2.ErrCode, discard bool) {
	s.c.mu.Lock()
	s.c.resetLocked(s, code)
	s.c.mu.Unlock()
	s.settle(err, discard)
}

// resetLocked takes s off the wire with RST_STREAM.
func (c *Conn) resetLocked(s *stream, code http2.ErrCode) {
	if s.gone || c.dead {
		return
	}
	_ = c.fw.WriteRSTStream(s.id, code)
	c.dropLocked(s)
	c.restLocked()
	c.out.wake.Signal()
}

// broke ends s because its answer is malformed (RFC 9113 §8.1.1) or breaks a rule.
func (s *stream) broke(kind string, code http2.ErrCode, format string, args ...any) {
	f := &fault.Error{In: "wait", Kind: kind, Sent: true, Err: fmt.Errorf("the upstream's answer is refused: "+format, args...)}
	if s.read.final {
		f = fault.Cut(f)
	}
	s.terminate(f, code, false)
}

// settle ends s for the app. The first end counts, but discard takes away what
// the app has not read.
func (s *stream) settle(err error, discard bool) {
	s.mu.Lock()
	if s.end == nil || discard {
		s.end = err
	}
	if discard {
		s.dropChunksLocked()
	}
	s.chargeRestLocked()
	s.mu.Unlock()
	s.release() // before anybody hears of the end
	s.mu.Lock()
	s.arrived.Broadcast()
	s.mu.Unlock()
	s.tell()
	if s.upload != nil {
		s.upload.Stop(err)
	}
}

// release notes that the answer has ended.
func (s *stream) release() {
	c := s.c
	c.mu.Lock()
	if s.released {
		c.mu.Unlock()
		return
	}
	s.released = true
	c.inFlight--
	c.restLocked()
	c.mu.Unlock()
	s.mu.Lock()
	stop := s.unwatch
	s.unwatch = nil
	s.over = true
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	c.changed()
}

// finish is the peer's END_STREAM.
func (s *stream) finish(trailer http.Header) {
	c := s.c
	c.mu.Lock()
	s.remoteEnd = true
	if !s.gone {
		switch {
		case s.localEnd:
			c.dropLocked(s)
			c.restLocked()
		case s.tunnel == noTunnel:
			// RFC 9113 §8.1: the answer is complete; the rest of the upload is not wanted.
			c.resetLocked(s, http2.ErrCodeNo)
		}
	}
	gone := s.gone
	c.mu.Unlock()
	if gone && s.upload != nil {
		s.upload.Stop(nil)
	}
	s.mu.Lock()
	if s.end == nil {
		s.end, s.trailer = errEOF, trailer
		s.chargeRestLocked()
	}
	s.arrived.Signal()
	s.mu.Unlock()
	c.changed()
}

// window is the receive window of a stream. Guarded by stream.mu.
type window struct {
	open   int // what the peer may still send
	target int // what may be open and buffered together, unless others need the path
	since  time.Time
	given  int // bytes returned since then

	account bufferctl.Account // what the budget is charged with, beyond firstWindow
}
