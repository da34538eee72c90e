// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// head returns the bytes of the request's head, and sets its upload up.
func (x *exchange) head() ([]byte, error) {
	req := x.req
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(method) {
		return nil, errors.New("h1: the request's method is not a token")
	}
	if method == http.MethodConnect || req.URL == nil {
		return nil, errors.New("h1: the request has no target, or is a CONNECT")
	}
	target := req.RequestURI
	if target == "" {
		target = req.URL.RequestURI()
	}
	if strings.ContainsFunc(target, func(r rune) bool { return r <= ' ' || r == 0x7f }) || target == "" {
		return nil, errors.New("h1: the request target is empty or holds a space or a control character")
	}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	if host == "" || !httpguts.ValidHostHeader(host) {
		return nil, errors.New("h1: the request's Host is missing or not valid")
	}
	b := make([]byte, 0, 1024)
	b = append(append(append(b, method...), ' '), target...)
	b = append(append(append(b, " HTTP/1.1\r\nHost: "...), host...), "\r\n"...)
	for k, vs := range req.Header {
		if !httpguts.ValidHeaderFieldName(k) {
			return nil, fmt.Errorf("h1: request field name %q is not valid", k)
		}
		if framing(k) {
			continue
		}
		for _, v := range vs {
			if !httpguts.ValidHeaderFieldValue(v) { // never part of an error: it may be secret
				return nil, fmt.Errorf("h1: the value of request field %q is not valid", k)
			}
			b = append(append(append(append(b, k...), ": "...), v...), "\r\n"...)
		}
	}
	var err error
	if b, err = x.framing(b, method); err != nil {
		return nil, err
	}
	return append(b, "\r\n"...), nil
}

// framing says whether a field is one that this package writes itself.
func framing(name string) bool {
	switch len(name) {
	case len("Host"):
		return strings.EqualFold(name, "Host")
	case len("Trailer"):
		return strings.EqualFold(name, "Trailer")
	case len("Content-Length"):
		return strings.EqualFold(name, "Content-Length")
	case len("Transfer-Encoding"):
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// framing appends how the body's end is told (RFC 9112 §6), never in two ways.
func (x *exchange) framing(b []byte, method string) ([]byte, error) {
	req := x.req
	if req.Body == nil || req.Body == http.NoBody {
		switch method {
		case http.MethodPost, http.MethodPut, http.MethodPatch: // RFC 9110 §8.6
			b = append(b, "Content-Length: 0\r\n"...)
		}
		return b, nil
	}
	x.upload = &upload{x: x, errs: make(chan error, 1), lastDone: make(chan struct{}), done: make(chan struct{}), quit: make(chan struct{}), goOn: make(chan struct{})}
	if !httpguts.HeaderValuesContainsToken(req.Header["Expect"], "100-continue") {
		x.upload.release()
	}
	if req.ContentLength > 0 { // 0 with a body is not known, as net/http has it
		x.upload.left = req.ContentLength
		b = append(b, "Content-Length: "...)
		return append(strconv.AppendInt(b, req.ContentLength, 10), "\r\n"...), nil
	}
	x.upload.chunked = true
	b = append(b, "Transfer-Encoding: chunked\r\n"...)
	names := make([]string, 0, len(req.Trailer))
	for k := range req.Trailer {
		if !httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(k)) || !httpguts.ValidHeaderFieldName(k) {
			return nil, fmt.Errorf("h1: request trailer name %q is not valid", k)
		}
		names = append(names, k)
	}
	if len(names) > 0 {
		b = append(append(append(b, "Trailer: "...), strings.Join(names, ", ")...), "\r\n"...)
	}
	return b, nil
}

// A bodyError is a request body that could not be read, or that is not as long as
// it said.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "the request's body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// An upload sends the body of one request.
type upload struct {
	x       *exchange
	chunked bool
	left    int64 // of a body of known length

	goOn     chan struct{} // closed when the body may be sent
	goOnOnce sync.Once
	quit     chan struct{} // closed when it need not be sent any more
	quitOnce sync.Once
	errs     chan error    // why it ended early; capacity 1
	done     chan struct{} // closed when nothing is sent any more
	whole    bool          // all of it was sent; read after done

	// The last piece is being written, and was, although run has not ended yet: of a body
	// of known length its reader has perhaps not said yet that it is the end.
	last     atomic.Bool
	lastDone chan struct{}
	complete atomic.Bool
}

// failed is where an early end is told.
func (u *upload) failed() <-chan error {
	if u == nil {
		return nil
	}
	return u.errs
}

// release lets a body that waits for 100 go.
func (u *upload) release() {
	if u != nil {
		u.goOnOnce.Do(func() { close(u.goOn) })
	}
}

// answered says that a final answer has come: a body that was held back stays.
func (u *upload) answered() {
	select {
	case <-u.goOn:
	default:
		u.cancel()
	}
}

// cancel stops the upload where it is.
func (u *upload) cancel() { u.quitOnce.Do(func() { close(u.quit) }) }

// finished says whether the whole body was sent.
func (u *upload) finished() bool {
	if u.last.Load() { // the answer may overtake the return of the write
		limit := time.NewTimer(lastWriteGrace)
		defer limit.Stop()
		select {
		case <-u.lastDone:
			return u.complete.Load()
		case <-limit.C:
			return false
		}
	}
	select {
	case <-u.done:
		return u.whole
	default:
		return false
	}
}

var copyBuffers = sync.Pool{New: func() any { return new([copyBufferBytes + 64]byte) }}

// run sends the body.
func (u *upload) run() {
	defer close(u.done)
	defer u.x.closeBody()
	err := u.hold()
	if err == nil {
		err = u.send()
	}
	u.whole = err == nil
	if errors.Is(err, errQuit) {
		return
	}
	if t := u.x.trace; t != nil && t.WroteRequest != nil {
		t.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
	if err != nil {
		u.errs <- err
	}
}

var errQuit = errors.New("the answer came first")

// hold waits for 100, if the request asked for it.
func (u *upload) hold() error {
	limit := time.NewTimer(continueTimeout)
	defer limit.Stop()
	select {
	case <-u.goOn:
	case <-limit.C:
		u.release()
	case <-u.quit:
		return errQuit
	}
	return nil
}

func (u *upload) send() error {
	buf := copyBuffers.Get().(*[copyBufferBytes + 64]byte)
	defer copyBuffers.Put(buf)
	const room = 16 // for the size of a chunk
	for {
		n, err := u.x.req.Body.Read(buf[room : room+copyBufferBytes])
		select {
		case <-u.quit:
			if !u.complete.Load() {
				return errQuit
			}
		default:
		}
		if n > 0 {
			if werr := u.piece(buf[:], room, n); werr != nil {
				return werr
			}
		}
		switch {
		case err == io.EOF:
			return u.end()
		case err != nil:
			u.x.release(false) // what was sent must not look whole
			return &bodyError{err}
		}
	}
}

// piece sends n bytes at from, as a chunk in one write where that is the framing.
func (u *upload) piece(buf []byte, from, n int) error {
	to := from + n
	if u.chunked {
		size := strconv.AppendUint(make([]byte, 0, 16), uint64(n), 16)
		start := from - len(size) - 2
		copy(buf[start:], size)
		copy(buf[from-2:], "\r\n")
		to += copy(buf[to:], "\r\n")
		return u.x.write(buf[start:to])
	}
	if u.left -= int64(n); u.left < 0 {
		u.x.release(false)
		return &bodyError{errors.New("is longer than its Content-Length")}
	}
	if u.left > 0 {
		return u.x.write(buf[from:to])
	}
	return u.finish(buf[from:to])
}

// finish writes the last piece.
func (u *upload) finish(b []byte) error {
	u.last.Store(true)
	err := u.x.write(b)
	u.complete.Store(err == nil)
	close(u.lastDone)
	return err
}

// end tells the end of the body.
func (u *upload) end() error {
	if !u.chunked {
		if u.left > 0 {
			u.x.release(false)
			return &bodyError{fmt.Errorf("is %d bytes shorter than its Content-Length", u.left)}
		}
		return nil
	}
	b := append(make([]byte, 0, 64), "0\r\n"...)
	for k, vs := range u.x.req.Trailer {
		for _, v := range vs {
			if !httpguts.ValidHeaderFieldValue(v) {
				u.x.release(false)
				return &bodyError{fmt.Errorf("the value of trailer %q is not valid", k)}
			}
			b = append(append(append(append(b, k...), ": "...), v...), "\r\n"...)
		}
	}
	return u.finish(append(b, "\r\n"...))
}

// closedByUs says whether an error comes from our own closing.
func closedByUs(err error) bool { return errors.Is(err, net.ErrClosed) }
