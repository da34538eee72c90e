// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
	"github.com/warmwire/warmwire/transport/semantics"
	"golang.org/x/net/http2"
)

// read is the connection's reader. It never writes and never waits for an app.
func (c *Conn) read() {
	for first := true; ; first = false {
		if err := c.readFrame(first); err != nil {
			c.unreadable(err)
			c.mu.Lock()
			stopped := c.out.broken != nil
			c.mu.Unlock()
			if stopped {
				c.hangUp() // the writer has left that to us
			}
			return
		}
	}
}

// unreadable ends the connection because of err.
func (c *Conn) unreadable(err error) {
	code := http2.ErrCodeNo
	var wrong *connError
	var framing http2.ConnectionError
	switch {
	case errors.As(err, &wrong):
		code = wrong.code
	case errors.As(err, &framing):
		code = http2.ErrCode(framing)
		if detail := c.in.fr.ErrorDetail(); detail != nil {
			err = detail
		}
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ErrCodeFrameSize
	default:
		c.fail(broken(err), 0, false)
		return
	}
	c.fail(&fault.Error{In: "wait", Kind: kindProtocol,
		Err: fmt.Errorf("the upstream breaks HTTP/2: %w", err)}, code, true)
}

func (c *Conn) readFrame(first bool) error {
	fh, err := c.in.fr.ReadFrameHeader()
	if err != nil {
		return err
	}
	if c.cfg.OnFrame != nil {
		c.cfg.OnFrame(false, c.lastRead.Load(), uint8(fh.Type), fh.StreamID, fh.Length)
	}
	if first && (fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck)) {
		return violation(http2.ErrCodeProtocol, "the first frame is not SETTINGS") // RFC 9113 §3.4
	}
	switch fh.Type {
	case http2.FrameData:
		return c.readData(fh)
	case http2.FrameHeaders:
		return c.readHeaders(fh)
	}
	f, err := c.in.fr.ReadFrameForHeader(fh)
	if err != nil {
		var wrong http2.StreamError
		if errors.As(err, &wrong) {
			return c.wrongFrame(wrong)
		}
		return err
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.onSettings(f)
	case *http2.WindowUpdateFrame:
		return c.onWindowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.onReset(f)
	case *http2.GoAwayFrame:
		return c.onGoAway(f)
	case *http2.PingFrame:
		return c.onPing(f)
	case *http2.PushPromiseFrame:
		return violation(http2.ErrCodeProtocol, "it pushes although we said no") // RFC 9113 §8.4
	case *http2.PriorityUpdateFrame:
		return violation(http2.ErrCodeProtocol, "it sends PRIORITY_UPDATE to a client") // RFC 9218 §7.1
	}
	return c.useless(1) // unknown, or of no use to a client
}

// useless counts frames that bring nothing; too many end the connection.
func (c *Conn) useless(n int) error {
	in := &c.in
	in.abuse.earn(int(2 * c.sentData.Swap(0))) // each DATA of ours may cause two WINDOW_UPDATEs
	if !in.abuse.spend(n, time.Now()) {
		return violation(http2.ErrCodeEnhanceYourCalm, "it floods the connection with frames that carry nothing")
	}
	return nil
}

// wrongFrame is a frame that harms its stream alone.
func (c *Conn) wrongFrame(e http2.StreamError) error {
	s, err := c.find(e.StreamID)
	if s != nil {
		s.broke(kindProtocol, e.Code, "it sent a frame that is not valid (%v)", e.Code)
	}
	if err != nil {
		return err
	}
	return c.useless(1)
}

// find returns the open stream of an id, nil if it is closed. An id that was
// never used is a fault of the connection (RFC 9113 §5.1, idle).
func (c *Conn) find(id uint32) (*stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[id]; s != nil {
		return s, nil
	}
	if id%2 == 0 || id >= c.nextID {
		return nil, violation(http2.ErrCodeProtocol, "a frame for stream %d, which was never opened", id)
	}
	return nil, nil
}

func (c *Conn) readData(fh http2.FrameHeader) error {
	if fh.StreamID == 0 {
		return violation(http2.ErrCodeProtocol, "DATA on stream 0")
	}
	if err := c.takeWindow(int64(fh.Length)); err != nil {
		return err
	}
	left, pad := int(fh.Length), 0
	if fh.Flags.Has(http2.FlagDataPadded) {
		if left == 0 {
			return violation(http2.ErrCodeFrameSize, "padded DATA without padding")
		}
		b, err := c.in.br.ReadByte()
		if err != nil {
			return err
		}
		left, pad = left-1, int(b)
		if pad > left {
			return violation(http2.ErrCodeProtocol, "more padding than DATA") // RFC 9113 §6.1
		}
	}
	s, err := c.find(fh.StreamID)
	if err != nil {
		return err
	}
	n := left - pad
	end := fh.Flags.Has(http2.FlagDataEndStream)
	if n == 0 && !end {
		if err := c.useless(1); err != nil {
			return err
		}
	}
	if s == nil || !s.accepts(int(fh.Length), n) {
		_, err := c.in.br.Discard(left)
		return err
	}
	if err := s.take(n, int(fh.Length)-n); err != nil {
		return err
	}
	if _, err := c.in.br.Discard(pad); err != nil {
		return err
	}
	c.in.meter.add(c, n)
	if end {
		s.complete(nil)
	}
	return nil
}

// takeWindow counts n bytes against the connection's window and gives them back
// at once: what limits a stream is its own window, so nothing that is not read,
// or that comes for a stream that is gone, ever slows another.
func (c *Conn) takeWindow(n int64) error {
	in := &c.in
	if n > in.window {
		return violation(http2.ErrCodeFlowControl, "more DATA than the connection's window") // RFC 9113 §6.9.1
	}
	in.window -= n
	in.owed += n
	if in.owed >= connWindow/4 {
		c.updateWindow(nil, int(in.owed))
		in.window += in.owed
		in.owed = 0
	}
	return nil
}

// accepts says whether DATA of n bytes, length with its padding, fits s. If not,
// s is ended.
func (s *stream) accepts(length, n int) bool {
	r := &s.read
	s.mu.Lock()
	over := length > s.window.open
	if !over {
		s.window.open -= length
	}
	s.mu.Unlock()
	switch {
	case s.ended():
		s.afterEnd()
	case over:
		s.broke(kindProtocol, http2.ErrCodeFlowControl, "it is longer than the stream's window")
	case !r.final:
		s.broke(kindBad, http2.ErrCodeProtocol, "DATA comes before its head")
	case r.bodyless && n > 0:
		s.broke(kindBad, http2.ErrCodeProtocol, "it has a body where none may be")
	case r.declared >= 0 && r.got+int64(n) > r.declared:
		s.broke(kindBad, http2.ErrCodeProtocol, "it is longer than the length it declared")
	default:
		return true
	}
	return false
}

// afterEnd refuses a frame that comes after END_STREAM (RFC 9113 §5.1, half-closed
// remote). The answer is whole; only the upload can suffer.
func (s *stream) afterEnd() {
	s.c.mu.Lock()
	s.c.resetLocked(s, http2.ErrCodeStreamClosed)
	s.c.mu.Unlock()
	if s.upload != nil {
		s.upload.Stop(nil)
	}
}

// complete is the end of the answer, if it has the length it declared (RFC 9113
// §8.1.1). If not, the app gets what came and then the cut.
func (s *stream) complete(trailer http.Header) {
	r := &s.read
	if r.declared >= 0 && !r.bodyless && r.got < r.declared {
		s.broke(kindBad, http2.ErrCodeProtocol, "it ended after %d of the %d bytes it declared", r.got, r.declared)
		return
	}
	s.finish(trailer)
}

// ended says whether the peer's END_STREAM came. The reader is the only one to
// write remoteEnd, so it needs no lock to read it.
func (s *stream) ended() bool { return s.remoteEnd }

// take reads n bytes of body into s's buffer. extra bytes of padding count as
// consumed.
func (s *stream) take(n, extra int) error {
	s.read.got += int64(n)
	br := s.c.in.br
	var ch *chunk
	if n > br.Buffered() && n > smallChunk {
		ch = s.c.newChunk(largeChunk)
		if _, err := io.ReadFull(br, ch.b[:n]); err != nil {
			s.c.freeChunk(ch)
			return err
		}
		ch.w = n
	} else if n > 0 {
		if _, err := br.Peek(n); err != nil {
			return err
		}
	}
	s.mu.Lock()
	switch {
	case s.end != nil: // ended meanwhile by the app
		if ch == nil {
			_, _ = br.Discard(n)
		} else {
			s.c.freeChunk(ch)
		}
	case ch != nil && s.last != nil && len(s.last.b)-s.last.w >= n:
		// Frames that fill no chunk share one, or a slow app would cost many
		// times its window.
		s.putLocked(ch.b[:n])
		s.c.freeChunk(ch)
	case ch != nil:
		s.buffered += n
		s.linkLocked(ch)
	case n > 0:
		p, _ := br.Peek(n)
		s.putLocked(p)
		_, _ = br.Discard(n)
	}
	grant := 0
	if extra > 0 {
		grant = s.grantLocked()
	}
	s.arrived.Signal()
	s.mu.Unlock()
	if grant > 0 {
		s.c.updateWindow(s, grant)
	}
	return nil
}

func (c *Conn) readHeaders(fh http2.FrameHeader) error {
	least := uint32(0)
	if fh.Flags.Has(http2.FlagHeadersPadded) {
		least++
	}
	if fh.Flags.Has(http2.FlagHeadersPriority) {
		least += 5
	}
	if fh.Length < least {
		return violation(http2.ErrCodeFrameSize, "HEADERS is too short")
	}
	f, err := c.in.fr.ReadFrameForHeader(fh)
	if err != nil {
		var wrong http2.StreamError
		if errors.As(err, &wrong) { // its block is lost, and HPACK with it
			return violation(http2.ErrCodeProtocol, "more padding than HEADERS")
		}
		return err
	}
	head, ok := f.(*http2.HeadersFrame)
	if !ok {
		return violation(http2.ErrCodeInternal, "HEADERS cannot be read")
	}
	s, err := c.find(fh.StreamID)
	if err != nil {
		return err
	}
	if err := c.readBlock(head); err != nil {
		var wrong *connError
		if s != nil && errors.As(err, &wrong) && c.in.fields.tooBig {
			s.broke(kindTooLarge, http2.ErrCodeCancel, "its head is larger than %d bytes", maxHeadBytes)
		}
		return err
	}
	if s == nil {
		return c.useless(1)
	}
	return s.onFields(head.StreamEnded())
}

// readBlock decodes a field block: HEADERS and its CONTINUATIONs.
func (c *Conn) readBlock(head *http2.HeadersFrame) error {
	r := &c.in.fields
	r.begin()
	fragment, ended := head.HeaderBlockFragment(), head.HeadersEnded()
	bytes, frames := 0, 0
	for {
		bytes += len(fragment)
		frames++
		if bytes > maxBlockBytes || frames > maxBlockFrames {
			r.tooBig = true
			return violation(http2.ErrCodeEnhanceYourCalm, "a field block has no end")
		}
		if _, err := r.dec.Write(fragment); err != nil {
			r.tooBig = r.tooBig || errors.Is(err, errStringLength)
			return violation(http2.ErrCodeCompression, "a field block cannot be decoded")
		}
		if ended {
			break
		}
		if len(fragment) == 0 {
			if err := c.useless(16); err != nil {
				return err
			}
		}
		f, err := c.in.fr.ReadFrame()
		if err != nil {
			return err
		}
		more, ok := f.(*http2.ContinuationFrame) // the framer sees to it
		if !ok {
			return violation(http2.ErrCodeProtocol, "a field block is interrupted")
		}
		fragment, ended = more.HeaderBlockFragment(), more.HeadersEnded()
	}
	if err := r.dec.Close(); err != nil {
		return violation(http2.ErrCodeCompression, "a field block is not whole")
	}
	return nil
}

// onFields takes the field block that was read for s.
func (s *stream) onFields(end bool) error {
	r := &s.c.in.fields
	s.read.head += r.size
	switch {
	case s.ended():
		s.afterEnd()
	case r.tooBig || s.read.head > maxHeadBytes:
		s.broke(kindTooLarge, http2.ErrCodeCancel, "its head is larger than %d bytes", maxHeadBytes)
	case r.bad != "":
		s.broke(kindBad, http2.ErrCodeProtocol, "%s", r.bad)
	case s.read.final:
		s.onTrailers(end)
	default:
		s.onHead(end)
	}
	return nil
}

func (s *stream) onTrailers(end bool) {
	r := &s.c.in.fields
	switch {
	case !end:
		s.broke(kindBad, http2.ErrCodeProtocol, "it has a second head") // RFC 9113 §8.1
	case pseudoAfter(r.fields):
		s.broke(kindBad, http2.ErrCodeProtocol, "its trailers have a pseudo-header field")
	default:
		s.complete(r.header(r.fields))
	}
}

func (s *stream) onHead(end bool) {
	r := &s.c.in.fields
	code, fields, err := r.status()
	switch {
	case err != nil:
		s.broke(kindBad, http2.ErrCodeProtocol, "%v", err)
	case code == http.StatusSwitchingProtocols:
		s.broke(kindBad, http2.ErrCodeProtocol, "it has status 101, which HTTP/2 does not have") // RFC 9113 §8.6
	case code >= 200:
		s.onFinal(code, r.header(fields), end)
	case end:
		s.broke(kindBad, http2.ErrCodeProtocol, "it ends with a 1xx")
	case s.read.interim == maxInterim:
		s.broke(kindBad, http2.ErrCodeEnhanceYourCalm, "it has more than %d 1xx", maxInterim)
	default:
		s.read.interim++
		s.mu.Lock()
		s.interim = append(s.interim, interim{status: code, header: r.header(fields)})
		s.mu.Unlock()
		if code == http.StatusContinue && s.upload != nil {
			s.upload.GoOn()
		}
		s.tell()
	}
}

// onFinal is the head of the answer proper.
func (s *stream) onFinal(code int, h http.Header, end bool) {
	c := s.c
	declared, err := semantics.LengthOf(h)
	tunnelled := s.tunnel != noTunnel && code < 300
	bodyless := s.target.Method == http.MethodHead || code == http.StatusNoContent || code == http.StatusNotModified
	if tunnelled {
		declared, err = -1, nil // RFC 9110 §9.3.6
		delete(h, "Content-Length")
	} else {
		s.plainAnswer()
	}
	if err != nil || (end && declared > 0 && !bodyless) {
		s.broke(kindBad, http2.ErrCodeProtocol, "its content-length is wrong")
		return
	}
	resp := &http.Response{
		Status: statusLine(code), StatusCode: code, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: h, ContentLength: declared, Request: s.req, TLS: c.tls, Body: (*body)(s), Trailer: semantics.AnnouncedTrailers(h),
	}
	if end {
		resp.Body = http.NoBody
		if declared < 0 && s.target.Method != http.MethodHead {
			resp.ContentLength = 0
		}
	}
	s.read.final, s.read.bodyless, s.read.declared = true, bodyless, declared
	s.mu.Lock()
	if s.end == nil {
		s.resp = resp
	}
	s.mu.Unlock()
	if code >= 300 {
		s.stopUpload()
	} else if s.upload != nil {
		s.upload.GoOn()
	}
	if end {
		s.finish(nil)
	}
	c.in.abuse.earn(8)
	s.tell()
}

// plainAnswer makes a refused CONNECT an exchange like others.
func (s *stream) plainAnswer() {
	if s.tunnel == noTunnel {
		return
	}
	s.c.mu.Lock()
	s.tunnel = noTunnel
	s.c.mu.Unlock()
}

func statusLine(code int) string {
	if code == http.StatusOK {
		return "200 OK"
	}
	text := http.StatusText(code)
	if text == "" {
		return strconv.Itoa(code) + " status code " + strconv.Itoa(code)
	}
	return strconv.Itoa(code) + " " + text
}
