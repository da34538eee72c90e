// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strings"

	"github.com/warmwire/warmwire/transport/pool"
	"github.com/warmwire/warmwire/transport/semantics"
)

// socketOverHTTP2 opens a WebSocket as a stream of a connection that is there and
// offers that (RFC 8441 §5), which costs no handshake of TCP and TLS. open is false
// if it has to go over HTTP/1.1: because there is no such connection, or because the
// connection failed, or answered in a way that may only mean that what is behind it
// knows no extended CONNECT. Nothing is lost by asking again: nobody has said a word in
// the session.
//
// The answer is that of HTTP/1.1, 101, with HTTP/2.0 as its Proto. It has no
// Sec-WebSocket-Accept: HTTP/2 needs none, so whoever must have one makes it.
func (x *roundTrip) socketOverHTTP2(o *origin, req *http.Request) (resp *http.Response, open bool) {
	if !x.t.cfg.WebSocketHTTP2 || !isHandshake(req) || o.plainSockets.Load() {
		return nil, false
	}
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(x.ctx)
	connect := req.WithContext(semantics.WithClass(httptrace.WithClientTrace(ctx, x.tunnelTrace()), x.class))
	connect.Method, connect.Body, connect.ContentLength = http.MethodConnect, out, -1
	connect.Header = maps.Clone(req.Header)
	delete(connect.Header, "Sec-Websocket-Key")
	connect.Header[":protocol"] = []string{"websocket"}
	x.ended.Store(false)
	resp, sent, err := o.pool.Extended(connect)
	x.stopWait()
	switch {
	case !sent:
		cancel()
		_ = out.Close()
		return nil, false
	case err != nil:
		cancel()
		return nil, false
	case resp.StatusCode/100 == 2:
		resp.Status, resp.StatusCode = "101 Switching Protocols", http.StatusSwitchingProtocols
		resp.Header["Connection"], resp.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
		delete(resp.Header, "Sec-Websocket-Accept")
		resp.Body = &streamSocket{ward: resp.Body.(*ward), in: in, cancel: cancel} // of guard
		return resp, true
	case mayMeanConnect(resp.StatusCode):
		_ = resp.Body.Close()
		cancel()
		x.overHTTP1 = func() { o.plainSockets.Store(true) }
		return nil, false
	}
	_ = in.Close()
	resp.Body = &refusedSocket{resp.Body, cancel}
	return resp, true
}

// isHandshake says whether req asks for a WebSocket (RFC 6455 §4.1).
func isHandshake(req *http.Request) bool {
	up := req.Header["Upgrade"]
	return req.Method == http.MethodGet && len(up) == 1 && strings.EqualFold(up[0], "websocket") && (req.Body == nil || req.Body == http.NoBody)
}

// mayMeanConnect says whether a status may be about CONNECT and not about the
// WebSocket: servers are known that offer RFC 8441 for all that is behind them.
func mayMeanConnect(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusMisdirectedRequest, http.StatusNotImplemented, http.StatusBadGateway:
		return true
	}
	return false
}

// tunnelTrace is the trace of an attempt whose request has no end while it lasts: its
// head is all that is sent before the answer.
func (x *roundTrip) tunnelTrace() *httptrace.ClientTrace {
	theirs := httptrace.ContextClientTrace(x.ctx)
	trace := x.trace()
	trace.WroteRequest = nil
	trace.WroteHeaders = func() {
		if theirs != nil && theirs.WroteRequest != nil {
			theirs.WroteRequest(httptrace.WroteRequestInfo{})
		}
		x.startWait()
	}
	return trace
}

// A streamSocket is a WebSocket that is a stream of HTTP/2.
type streamSocket struct {
	*ward
	in     *io.PipeWriter
	cancel context.CancelFunc
}

func (s *streamSocket) Write(p []byte) (int, error) { return s.in.Write(p) }

// CloseWrite ends the sending side alone.
func (s *streamSocket) CloseWrite() error { return s.in.Close() }

// Close ends both.
func (s *streamSocket) Close() error {
	err := s.ward.Close()
	s.cancel()
	_ = s.in.Close()
	return err
}

// A refusedSocket is the body of an answer that is no WebSocket.
type refusedSocket struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (r *refusedSocket) Close() error {
	err := r.ReadCloser.Close()
	r.cancel()
	return err
}

// ExtendedConnect says whether the peer offers RFC 8441.
func (f *flow) ExtendedConnect() bool {
	c, can := f.clientConn.(pool.Extender)
	return can && !f.quic && c.ExtendedConnect()
}
