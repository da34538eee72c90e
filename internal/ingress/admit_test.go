// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

type later struct{ error }

func (later) RetryAfter() time.Duration { return 2500 * time.Millisecond }

// TestOverloadIsToldAsSuch answers a request for which there is no room with 503, when
// to come back, and that it may be sent again; and gives room back once.
func TestOverloadIsToldAsSuch(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var taken, refuse atomic.Int32
	var sockets atomic.Int32
	admit := func(_ context.Context, u *Upstream, webSocket bool) (func(), error) {
		if u == nil || u.Name != "up" {
			t.Errorf("admitted for %v", u)
		}
		if webSocket {
			sockets.Add(1)
		}
		if refuse.Load() == 1 {
			return nil, later{errors.New("no room")}
		}
		taken.Add(1)
		return func() { taken.Add(-1) }, nil
	}
	r := newRigWith(t, ln.Addr().String(), Config{Admit: admit}, nil)
	refuse.Store(1)
	app := r.dial()
	app.Send("POST /up/v1/x HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
	head := app.Head()
	for _, want := range []string{"HTTP/1.1 503 ", "Retry-After: 3\n", "X-Should-Retry: true\n", "Proxy-Status: warmwire; error=http_request_denied; details=\"overloaded\"\n"} {
		if !strings.Contains(head, want) {
			t.Errorf("no %q in %q", want, head)
		}
	}
	if rec := r.record(); rec.Cause != CauseOverloaded || rec.Outcome != OutcomeRefused {
		t.Errorf("recorded as %s, %s", rec.Outcome, rec.Cause)
	}
	refuse.Store(0)
	app = r.dial()
	app.Send("POST /up/v1/x HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if n := taken.Load(); n != 1 {
		t.Errorf("%d places taken for one request", n)
	}
	_ = c.Close() // without an answer
	app.Head()
	r.record()
	if n := taken.Load(); n != 0 {
		t.Errorf("%d places are not given back", n)
	}
	if n := sockets.Load(); n != 0 {
		t.Errorf("%d of two POSTs are said to be WebSockets", n)
	}
	refuse.Store(1)
	app = r.dial()
	app.Send("GET /up/v1/x HTTP/1.1\nHost: localhost\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 503 ") || sockets.Load() != 1 {
		t.Errorf("%q for a WebSocket without room, of which %d were told", head, sockets.Load())
	}
	r.record()
}
