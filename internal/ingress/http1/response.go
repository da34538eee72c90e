// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"
)

// delimiter says how the end of an answer's body is told.
type delimiter uint8

const (
	noBody delimiter = iota
	byLength
	byChunks
	byClose
)

// A response is the ResponseWriter of one exchange.
type response struct {
	c      *conn
	x      *exchange
	header http.Header

	mu       sync.Mutex // guards the fields below, and the order of writes
	status   int        // final; 0 until the handler has decided
	sent     bool       // the final head is on the wire
	put      delimiter
	left     int64    // of Content-Length
	trailers []string // announced, canonical names
	close    bool     // the connection ends with this answer
	told100  bool
	ended    bool // the handler has returned
	hijacked bool
	err      error // of the first write that failed

	deadlineSet bool
	bufs        net.Buffers // for writev, kept here so that it is not allocated
	vec         [3][]byte
}

func (w *response) init(c *conn, x *exchange) {
	w.c, w.x, w.header = c, x, make(http.Header)
}

// Header returns the fields of the answer, and of interim answers.
func (w *response) Header() http.Header { return w.header }

// WriteHeader sends an interim answer at once; a final status is kept and goes
// out with the first Write, Flush, or the end.
func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("http1: invalid status %d", status))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.status != 0, w.hijacked, w.ended:
	case status >= 200, status == http.StatusSwitchingProtocols:
		w.status = status
	default:
		w.interimLocked(status)
	}
}

// interimLocked sends a 1xx answer; HTTP/1.0 has none (RFC 9110 §15.2).
func (w *response) interimLocked(status int) {
	if w.x.req.ProtoMinor == 0 || status == http.StatusContinue && w.told100 {
		return
	}
	w.told100 = w.told100 || status == http.StatusContinue
	pooled := w.c.srv.getSmall()
	b := appendStatusLine(pooled[:0], status)
	for key, values := range w.header {
		if key != "Content-Length" && key != "Transfer-Encoding" && key != "Trailer" && !strings.HasPrefix(key, http.TrailerPrefix) {
			b = appendField(b, key, values)
		}
	}
	w.sendLocked(append(b, "\r\n"...), nil, nil)
	w.c.srv.put(pooled)
}

// Write sends p, with the head if that has not gone out, before it returns.
func (w *response) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usableLocked(); err != nil {
		return 0, err
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.bodilessStatus() {
		return 0, http.ErrBodyNotAllowed
	}
	if w.x.req.Method == http.MethodHead {
		return len(p), nil // RFC 9110 §9.3.2
	}
	pooled := w.c.srv.getSmall()
	defer w.c.srv.put(pooled)
	b := pooled[:0]
	if !w.sent {
		b = w.appendHeadLocked(b, false)
	}
	if w.put == byLength && int64(len(p)) > w.left {
		w.sendLocked(b, nil, nil)
		return 0, http.ErrContentLength
	}
	if len(p) == 0 { // an empty chunk would be the last one
		return 0, w.sendLocked(b, nil, nil)
	}
	var tail []byte
	if w.put == byChunks {
		b = strconv.AppendUint(b, uint64(len(p)), 16)
		b = append(b, "\r\n"...)
		tail = crlf
	}
	if len(b)+len(p)+len(tail) <= cap(b) { // a copy is cheaper than a longer vector
		b = append(append(b, p...), tail...)
		if err := w.sendLocked(b, nil, nil); err != nil {
			return 0, err
		}
	} else if err := w.sendLocked(b, p, tail); err != nil {
		return 0, err
	}
	w.left -= int64(len(p))
	return len(p), nil
}

var crlf = []byte("\r\n")

// WriteString is Write.
func (w *response) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Flush is FlushError without the error.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends the head if it has not gone out. Bodies are never held back.
func (w *response) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.usableLocked(); err != nil {
		return err
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.sendHeadLocked(false)
}

// EnableFullDuplex does nothing: it is always so.
func (w *response) EnableFullDuplex() error { return nil }

// SetReadDeadline bounds the waits of the request body's Read.
func (w *response) SetReadDeadline(t time.Time) error {
	w.x.body.setReadDeadline(t)
	return nil
}

// SetWriteDeadline bounds writes of this answer.
func (w *response) SetWriteDeadline(t time.Time) error {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cur != w.x || c.left || c.aborted {
		return nil // writes fail already
	}
	w.deadlineSet = true
	return c.nc.SetWriteDeadline(t)
}

var errEnded = errors.New("the handler has returned, its answer is complete")

func (w *response) usableLocked() error {
	switch {
	case w.hijacked:
		return http.ErrHijacked
	case w.ended:
		return errEnded
	case w.err != nil:
		return w.err
	}
	if ctx := w.x.req.Context(); ctx.Err() != nil {
		w.err = context.Cause(ctx)
	}
	return w.err
}

// sendLocked writes b, p and tail in one system call where the connection can.
func (w *response) sendLocked(b, p, tail []byte) error {
	if w.err != nil || len(b)+len(p) == 0 {
		return w.err
	}
	var err error
	if p == nil {
		_, err = w.c.nc.Write(b)
	} else {
		w.vec = [3][]byte{b, p, tail}
		w.bufs = w.vec[:]
		_, err = w.bufs.WriteTo(w.c.nc)
		w.bufs, w.vec = nil, [3][]byte{}
	}
	if err != nil {
		w.err = err
		if !isTimeout(err) { // nobody is there to write to
			w.x.cancel(ErrClientLeft)
		}
		if ctx := w.x.req.Context(); ctx.Err() != nil {
			w.err = context.Cause(ctx)
		}
	}
	return w.err
}

func (w *response) sendHeadLocked(complete bool) error {
	if w.sent {
		return w.err
	}
	pooled := w.c.srv.getSmall()
	defer w.c.srv.put(pooled)
	return w.sendLocked(w.appendHeadLocked(pooled[:0], complete), nil, nil)
}

// finish completes the answer and reports whether that worked.
func (w *response) finish() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hijacked {
		return true
	}
	if w.usableLocked() != nil {
		return false
	}
	if w.status == 0 {
		if refusal := w.refusal(); refusal != nil {
			w.refuseLocked(refusal)
			return w.err == nil
		}
		w.status = http.StatusOK
	}
	if w.sendHeadLocked(true) != nil {
		return false
	}
	if w.status == http.StatusSwitchingProtocols || w.isTunnel() {
		w.close = true // nobody took the connection
	}
	switch {
	case w.put == byLength && w.left > 0:
		return false
	case w.put == byChunks:
		pooled := w.c.srv.getSmall()
		defer w.c.srv.put(pooled)
		return w.sendLocked(w.appendTrailer(append(pooled[:0], "0\r\n"...)), nil, nil) == nil
	}
	return true
}

// refusal is what is wrong with the request's body, if anything.
func (w *response) refusal() *RequestError {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return w.c.body.refusal
}

func (w *response) refuseLocked(e *RequestError) {
	w.c.srv.cfg.Malformed(e.Status, e.Code)
	w.status, w.sent, w.close = e.Status, true, true
	w.sendLocked(appendRefusal(nil, w.c.srv.cfg, e, w.x.req.Method == http.MethodHead), nil, nil)
}

// end is called when the handler has returned or panicked. rst says that only a
// reset can show the client that the answer was cut.
func (w *response) end(clean bool) (closeAfter, rst bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if !clean && w.status == 0 && !w.hijacked && w.err == nil {
		if refusal := w.refusal(); refusal != nil && w.x.req.Context().Err() == nil {
			w.refuseLocked(refusal)
			return true, false
		}
	}
	return w.close, !clean && w.sent && w.put == byClose
}

func (w *response) isTunnel() bool {
	return w.x.req.Method == http.MethodConnect && w.status/100 == 2
}

// bodilessStatus reports answers that never have a body (RFC 9112 §6.3).
func (w *response) bodilessStatus() bool {
	return w.status == http.StatusNoContent || w.status == http.StatusNotModified ||
		w.status == http.StatusSwitchingProtocols || w.isTunnel()
}

// appendHeadLocked decides the framing and appends the final head; complete says
// that no body follows.
func (w *response) appendHeadLocked(b []byte, complete bool) []byte {
	w.sent = true
	w.announceLocked()
	b = appendStatusLine(b, w.status)
	for key, values := range w.header {
		switch {
		case key == "Content-Length", key == "Transfer-Encoding", strings.HasPrefix(key, http.TrailerPrefix), w.isTrailer(key):
		default:
			b = appendField(b, key, values)
		}
	}
	b = w.appendFramingLocked(b, complete)
	said := hasToken(w.header["Connection"], "close")
	w.close = w.close || said || w.mustClose()
	if w.close && !said && !w.isTunnel() && w.status != http.StatusSwitchingProtocols {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

func (w *response) appendFramingLocked(b []byte, complete bool) []byte {
	length, known := contentLength(w.header)
	switch {
	case w.isTunnel(), w.status == http.StatusNoContent, w.status == http.StatusSwitchingProtocols:
		return b // RFC 9110 §8.6: no Content-Length here
	case w.x.req.Method == http.MethodHead, w.status == http.StatusNotModified:
		if !known && w.x.req.ProtoMinor > 0 && hasToken(w.header["Transfer-Encoding"], "chunked") {
			return append(b, "Transfer-Encoding: chunked\r\n"...)
		}
		if !known {
			return b
		}
	case known:
		w.put, w.left = byLength, length
	case complete && !w.hasTrailersLocked():
		w.put, length = byLength, 0
	case w.x.req.ProtoMinor > 0:
		w.put = byChunks
		return append(b, "Transfer-Encoding: chunked\r\n"...)
	default:
		w.put, w.close = byClose, true
		return b
	}
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, length, 10)
	return append(b, "\r\n"...)
}

// mustClose reports whether no further request can follow (RFC 9112 §9.3), also
// because the body has not arrived whole and perhaps never will (RFC 9110
// §10.1.1).
func (w *response) mustClose() bool {
	if w.x.req.Close || w.c.srv.retiring.Load() || w.c.srv.draining.Load() {
		return true
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return w.c.body.open || w.c.ending
}

func contentLength(h http.Header) (int64, bool) {
	v := h["Content-Length"]
	if len(v) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(v[0], 10, 63)
	return int64(n), err == nil
}

// announceLocked remembers the names in the handler's Trailer field.
func (w *response) announceLocked() {
	for _, v := range w.header["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			key := textproto.CanonicalMIMEHeaderKey(strings.Trim(name, " \t"))
			if isToken(key) && !forbiddenTrailer(key) {
				w.trailers = append(w.trailers, key)
			}
		}
	}
}

func (w *response) isTrailer(key string) bool {
	for _, t := range w.trailers {
		if t == key {
			return true
		}
	}
	return false
}

func (w *response) hasTrailersLocked() bool {
	if w.x.req.ProtoMinor == 0 {
		return false
	}
	for _, key := range w.trailers {
		if len(w.header[key]) > 0 {
			return true
		}
	}
	for key := range w.header {
		if strings.HasPrefix(key, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

func (w *response) appendTrailer(b []byte) []byte {
	for _, key := range w.trailers {
		b = appendField(b, key, w.header[key])
	}
	for key, values := range w.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok && !forbiddenTrailer(name) {
			b = appendField(b, name, values)
		}
	}
	return append(b, "\r\n"...)
}

func appendStatusLine(b []byte, status int) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(status)...)
	return append(b, "\r\n"...)
}

// appendField appends one line for each value. What would end the line early
// becomes a space (RFC 9110 §5.5); a name that is no token is left out.
func appendField(b []byte, key string, values []string) []byte {
	if !isToken(key) {
		return b
	}
	for _, v := range values {
		b = append(b, key...)
		b = append(b, ": "...)
		start := len(b)
		b = append(b, v...)
		for i := start; i < len(b); i++ {
			if b[i] == '\r' || b[i] == '\n' || b[i] == 0 {
				b[i] = ' '
			}
		}
		b = append(b, "\r\n"...)
	}
	return b
}
