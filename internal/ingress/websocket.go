// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/sha1"
	"encoding/base64"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/warmwire/warmwire/internal/ingress/ws"
)

// closeWait is how long a WebSocket that we close with 1001 may take to answer
// with its own close frame. The RFC names no time; a guess.
const closeWait = time.Second

// causeUpstreamProtocol is the code that the way out has for the same fault.
const causeUpstreamProtocol = "upstream_protocol_error"

// websocketAccept is the value that answers a Sec-WebSocket-Key (RFC 6455 §4.2.2).
func websocketAccept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// checkHandshake refuses an upgrade request that no server could accept. The
// version is the upstream's to judge: it answers 426 with those it speaks.
func checkHandshake(r *http.Request) *refusal {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-Websocket-Key"))
	if err != nil || len(key) != 16 || len(r.Header["Sec-Websocket-Key"]) != 1 {
		return &refusal{http.StatusBadRequest, "bad_websocket_handshake",
			"Sec-WebSocket-Key must be 16 bytes in base64, once (RFC 6455 §4.2.1)", ModeWebSocket}
	}
	if r.ContentLength != 0 {
		return &refusal{http.StatusBadRequest, "bad_websocket_handshake",
			"a WebSocket handshake has no body", ModeWebSocket}
	}
	return nil
}

// switchProtocols checks the upstream's 101 and turns both connections into a
// WebSocket relay.
func (e *exchange) switchProtocols(resp *http.Response) {
	bad := e.badHandshake
	up, ok := resp.Body.(io.ReadWriteCloser)
	overHTTP2 := resp.ProtoMajor == 2 // where the key has no use (RFC 8441 §5)
	accept := websocketAccept(e.r.Header.Get("Sec-Websocket-Key"))
	switch {
	case e.rec.Mode != ModeWebSocket:
		bad("101 to a request without Upgrade")
		return
	case !ok || !hasToken(resp.Header["Upgrade"], "websocket"):
		bad("no Upgrade: websocket")
		return
	case !hasToken(resp.Header["Connection"], "upgrade"): // RFC 9110 §7.8
		bad("no Connection: Upgrade")
		return
	case !overHTTP2 && resp.Header.Get("Sec-Websocket-Accept") != accept:
		bad("Sec-WebSocket-Accept does not belong to the key (RFC 6455 §4.1)")
		return
	case !e.protocolOffered(resp):
		bad("a subprotocol that the app did not offer (RFC 6455 §4.1)")
		return
	}
	h := e.w.Header()
	clear(h)
	copyResponseHeader(h, resp.Header)
	e.live.status.Store(http.StatusSwitchingProtocols)
	if e.protocol != "" {
		delete(h, "Sec-Websocket-Accept")
		e.streamSocket(up, resp)
		return
	}
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	h["Sec-Websocket-Accept"] = []string{accept}
	e.rec.Status = http.StatusSwitchingProtocols
	e.w.WriteHeader(http.StatusSwitchingProtocols)
	conn, rw, err := e.rc.Hijack()
	if err != nil {
		e.rec.Outcome, e.rec.Cause = OutcomeCutWarmwire, CauseInternal
		panic(http.ErrAbortHandler)
	}
	sent, _ := rw.Reader.Peek(rw.Reader.Buffered())
	e.rec.Outcome, e.rec.Cause = e.relaySocket(conn, up, slices.Clone(sent), resp.Header["Sec-Websocket-Extensions"])
}

func (e *exchange) badHandshake(why string) {
	e.fail(ours(http.StatusBadGateway, "upstream_bad_handshake", "http_upgrade_failed",
		"the upstream's WebSocket handshake is wrong: "+why, true, OutcomeUpstreamError, "upstream_bad_handshake"))
}

// relaySocket joins the app's connection and the upstream's until both have ended.
func (e *exchange) relaySocket(app, up io.ReadWriteCloser, early []byte, extensions []string) (Outcome, string) {
	e.dog.firstToken() // no answer is awaited on a connection that talks
	hearts := e.heartbeats(up)
	if hearts.End != nil {
		defer hearts.End()
	}
	session := e.watchSession()
	defer session.end()
	relay, err := ws.New(ws.Leg{Conn: app, Early: early, Policy: hearts.App}, ws.Leg{Conn: up, Policy: hearts.Upstream}, ws.Config{
		Extensions: extensions,
		ReadAhead:  e.limits().ReadAhead,
		Take:       e.s.cfg.Take,
		Give:       e.s.cfg.Give,
		Stall:      e.limits().Stall,
		CloseWait:  closeWait,
		Watcher:    &e.s.sockets,
		Show:       session.show(),
		PassPings:  hearts.End == nil, // nothing of ours watches the two ways, so the ends must be able to
	})
	if err != nil {
		_ = app.Close()
		return OutcomeCutWarmwire, CauseInternal
	}
	e.live.relay.Store(relay)
	cause := relay.Run(e.ctx)
	stats := relay.Stats()
	e.rec.BytesIn, e.rec.BytesOut = stats.App.BytesIn, stats.App.BytesOut
	return e.socketEnd(cause)
}

// heartbeats are the upstream's for a new WebSocket, empty if there are none.
func (e *exchange) heartbeats(up io.ReadWriteCloser) *Heartbeats {
	if u := e.rt.upstream; u != nil && u.Heartbeats != nil {
		if h := u.Heartbeats(up); h != nil {
			e.live.pulse.Store(&h.Pulse)
			return h
		}
	}
	return &Heartbeats{}
}

// socketEnd says what the end of a WebSocket means.
func (e *exchange) socketEnd(c ws.Cause) (Outcome, string) {
	switch c {
	case ws.Closed:
		return OutcomeOK, ""
	case ws.AppLeft, ws.AppDead:
		return OutcomeCutApp, CauseAppLeft
	case ws.AppBroke:
		return OutcomeCutApp, CauseAppUploadBroken
	case ws.AppStalled, ws.UpstreamStalled:
		return OutcomeCutWarmwire, CauseStalled
	case ws.UpstreamDropped:
		return OutcomeCutUpstream, CauseWebSocketDropped
	case ws.UpstreamReset:
		return OutcomeCutUpstream, CauseReset
	case ws.UpstreamDead:
		return OutcomeCutUpstream, CauseDeadFlow
	case ws.UpstreamBroke:
		return OutcomeCutUpstream, causeUpstreamProtocol
	}
	return cutCause(e.ctx, e.ctx.Err()) // stopped
}

// protocolOffered says whether the chosen subprotocol is one of those asked for.
func (e *exchange) protocolOffered(resp *http.Response) bool {
	chosen := resp.Header["Sec-Websocket-Protocol"]
	return len(chosen) == 0 || len(chosen) == 1 && slices.ContainsFunc(e.r.Header["Sec-Websocket-Protocol"], func(offer string) bool {
		return hasExactToken(offer, chosen[0])
	})
}
