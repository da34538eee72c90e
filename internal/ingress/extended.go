// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/rand"
	"encoding/base64"
	"io"
	"net/http"
)

// protocolField is where net/http puts the pseudo-header :protocol. No field of HTTP/1.1
// can have this name, nor a regular one of HTTP/2.
const protocolField = ":protocol"

// extendedConnect returns the protocol that an extended CONNECT asks for (RFC 8441 §4),
// "" if r is none.
func extendedConnect(r *http.Request) string {
	if r.ProtoMajor != 2 || r.Method != http.MethodConnect || len(r.Header[protocolField]) != 1 {
		return ""
	}
	return r.Header[protocolField][0]
}

// upgrade makes of an extended CONNECT the request that it stands for (RFC 8441 §5),
// which is routed and refused like any other. It has no key, since its stream needs none;
// the upstream's handshake may.
func (e *exchange) upgrade(protocol string) {
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails
	r := e.r.WithContext(e.r.Context())
	r.Method, r.ContentLength = http.MethodGet, 0
	r.Header = e.r.Header.Clone()
	delete(r.Header, protocolField)
	r.Header["Sec-Websocket-Key"] = []string{base64.StdEncoding.EncodeToString(key[:])}
	e.r, e.protocol = r, protocol
}

// streamSocket turns the app's stream and the upstream's connection into a WebSocket
// relay. The fields of the answer are set.
func (e *exchange) streamSocket(up io.ReadWriteCloser, resp *http.Response) {
	e.rec.Status = http.StatusOK
	e.w.WriteHeader(http.StatusOK)
	app := newStreamConn(e)
	if err := e.rc.Flush(); err != nil {
		_ = up.Close()
		e.rec.Outcome, e.rec.Cause = OutcomeCutApp, CauseAppLeft
		return
	}
	e.rec.Outcome, e.rec.Cause = e.relaySocket(app, up, nil, resp.Header["Sec-Websocket-Extensions"])
}
