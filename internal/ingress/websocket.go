// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// closeWait is how long a WebSocket that we close with 1001 may take to answer
// with its own close frame. The RFC names no time; a guess.
const closeWait = time.Second

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
	bad := func(why string) {
		e.fail(ours(http.StatusBadGateway, "upstream_bad_handshake", "http_upgrade_failed",
			"the upstream's WebSocket handshake is wrong: "+why, true, OutcomeUpstreamError, "upstream_bad_handshake"))
	}
	up, ok := resp.Body.(io.ReadWriteCloser)
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
	case resp.Header.Get("Sec-Websocket-Accept") != websocketAccept(e.r.Header.Get("Sec-Websocket-Key")):
		bad("Sec-WebSocket-Accept does not belong to the key (RFC 6455 §4.1)")
		return
	case !e.protocolOffered(resp):
		bad("a subprotocol that the app did not offer (RFC 6455 §4.1)")
		return
	}
	h := e.w.Header()
	clear(h)
	copyResponseHeader(h, resp.Header)
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	e.rec.Status = http.StatusSwitchingProtocols
	e.live.status.Store(http.StatusSwitchingProtocols)
	e.w.WriteHeader(http.StatusSwitchingProtocols)
	conn, rw, err := e.rc.Hijack()
	if err != nil {
		e.rec.Outcome, e.rec.Cause = OutcomeCutWarmwire, CauseInternal
		panic(http.ErrAbortHandler)
	}
	ws := &socketRelay{app: conn, up: up, early: rw.Reader}
	e.rec.Outcome, e.rec.Cause = ws.run(e.ctx, e.s.goingAway)
	e.rec.BytesIn, e.rec.BytesOut = ws.toUp.bytes, ws.toApp.bytes
}

// protocolOffered says whether the chosen subprotocol is one of those asked for.
func (e *exchange) protocolOffered(resp *http.Response) bool {
	chosen := resp.Header["Sec-Websocket-Protocol"]
	return len(chosen) == 0 || len(chosen) == 1 && slices.ContainsFunc(e.r.Header["Sec-Websocket-Protocol"], func(offer string) bool {
		return hasExactToken(offer, chosen[0])
	})
}

// A socketRelay passes the bytes of a WebSocket both ways, as they are.
type socketRelay struct {
	app   net.Conn
	up    io.ReadWriteCloser
	early *bufio.Reader // bytes of the app that came with its handshake
	toApp lane
	toUp  lane
}

// A lane is one direction.
type lane struct {
	mu     sync.Mutex // held while writing; guards the fields below
	w      io.Writer
	frames frameReader
	bytes  int64
	inject []byte // a close frame that waits for the next frame edge
	done   bool   // our close frame went out: nothing may follow it (RFC 6455 §5.5.1)
}

var errClosedByUs = errors.New("we closed this direction with a close frame")

// Write passes p on, or up to the frame edge where our close frame goes.
func (l *lane) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return 0, errClosedByUs
	}
	edge := l.frames.scan(p)
	if l.inject != nil && edge >= 0 {
		p = append(slices.Clip(p[:edge]), l.inject...)
		l.done = true
	}
	n, err := l.w.Write(p)
	l.bytes += int64(n)
	if err == nil && l.done {
		err = errClosedByUs
	}
	return n, err
}

// close sends a close frame now, or at the next frame edge if a frame is half
// sent. If the ends have closed already it sends nothing.
func (l *lane) close(frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frames.closed || l.done {
		return
	}
	l.inject = frame
	if l.frames.edge() {
		l.done = true
		_, _ = l.w.Write(frame) // the connection is closed next, whatever happens
	}
}

// run relays until both ends have closed, one is lost, or goingAway ends; then
// the app and the upstream get 1001.
func (ws *socketRelay) run(ctx context.Context, goingAway <-chan struct{}) (Outcome, string) {
	ws.toApp.w, ws.toUp.w = ws.app, ws.up
	type end struct {
		fromApp bool
		err     error
	}
	ends := make(chan end, 2)
	var wg sync.WaitGroup
	wg.Go(func() { ends <- end{true, ws.pump(&ws.toUp, ws.early)} })
	wg.Go(func() { ends <- end{false, ws.pump(&ws.toApp, ws.up)} })
	defer wg.Wait()
	defer ws.up.Close()
	defer ws.app.Close()

	var first end
	leave := func() (Outcome, string) {
		return ws.goAway(func() { <-ends })
	}
	select {
	case first = <-ends:
	case <-goingAway:
		return leave()
	case <-ctx.Done():
		select {
		case <-goingAway: // a shutdown ends both; the close frames come first
			return leave()
		default:
			return cutCause(ctx, ctx.Err())
		}
	}
	return ws.verdict(first.fromApp, first.err, func() {
		timer := time.NewTimer(closeWait)
		defer timer.Stop()
		select {
		case <-ends: // the other side's answer to the close frame
		case <-timer.C:
		}
	})
}

// goAway closes both directions with 1001 and gives the ends closeWait to answer.
// An end that does not even take the close frame is cut after the same time.
func (ws *socketRelay) goAway(await func()) (Outcome, string) {
	cut := time.AfterFunc(closeWait, func() {
		_ = ws.app.Close()
		_ = ws.up.Close()
	})
	defer cut.Stop()
	ws.toApp.close(closeFrame(closeGoingAway, false))
	ws.toUp.close(closeFrame(closeGoingAway, true))
	await()
	await()
	return OutcomeCutWarmwire, CauseDrain
}

// pump copies one direction until it ends.
func (ws *socketRelay) pump(to *lane, from io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 8<<10))
	return err
}

// verdict says what the end of one direction means. After a close frame it is
// the regular end; the other direction may still carry the answer to it.
func (ws *socketRelay) verdict(fromApp bool, err error, settle func()) (Outcome, string) {
	ws.toApp.mu.Lock()
	closedByUp := ws.toApp.frames.closed
	ws.toApp.mu.Unlock()
	ws.toUp.mu.Lock()
	closedByApp := ws.toUp.frames.closed
	ws.toUp.mu.Unlock()
	if closedByApp || closedByUp {
		if closedByApp != closedByUp {
			settle()
		}
		return OutcomeOK, ""
	}
	if fromApp {
		return OutcomeCutApp, CauseAppLeft
	}
	if err != nil {
		return OutcomeCutUpstream, CauseReset
	}
	return OutcomeCutUpstream, CauseWebSocketDropped
}
