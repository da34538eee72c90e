// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

const sseHead = "HTTP/1.1 200 OK\nContent-Type: text/event-stream\nTransfer-Encoding: chunked\n\n"

func TestStreamPassesEachReadBeforeTheNext(t *testing.T) {
	next := make(chan struct{})
	r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.Send(sseHead)
		for range 100 {
			<-next
			c.SendExact(chunk("data: x\n\n"))
		}
		c.SendExact("0\r\n\r\n")
	}), nil)
	app := r.dial()
	app.Send("GET /up/v1/x HTTP/1.1\nHost: localhost\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 OK\n") || !strings.Contains(head, "Transfer-Encoding: chunked\n") {
		t.Fatalf("head %q", head)
	}
	for range 100 { // each event arrives while the upstream waits to send the next
		next <- struct{}{}
		app.Expect(chunk("data: x\n\n"))
	}
	app.Expect("0\r\n\r\n")
	if rec := r.record(); rec.Outcome != OutcomeOK || rec.BytesOut != 900 || rec.Status != 200 {
		t.Errorf("record %+v", rec)
	}
}

func TestHTTP10AppGetsCloseDelimitedStream(t *testing.T) {
	r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.Send(sseHead)
		c.SendExact(chunk("data: x\n\n") + "0\r\n\r\n")
	}), nil)
	app := r.dial()
	app.Send("GET /up/v1/x HTTP/1.0\n\n")
	if head := app.Head(); strings.Contains(head, "chunked") || !strings.Contains(head, "Connection: close\n") {
		t.Errorf("head %q", head)
	}
	if body, err := app.Rest(); body != "data: x\n\n" || err != nil {
		t.Errorf("body %q, %v", body, err)
	}
}

func TestCutStreamLooksCut(t *testing.T) {
	tests := []struct {
		name  string
		cut   func(*testenv.Raw)
		proto string
		cause string
	}{
		{"FIN inside chunks", func(c *testenv.Raw) {}, "1.1", CauseTruncated},
		{"reset inside chunks", func(c *testenv.Raw) { _ = c.SetLinger(0) }, "1.1", CauseReset},
		{"FIN, app speaks HTTP/1.0", func(c *testenv.Raw) {}, "1.0", CauseTruncated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := make(chan struct{})
			r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
				c.Head()
				c.Send(sseHead)
				c.SendExact(chunk("data: 1\n\n"))
				<-seen
				tt.cut(c)
			}), nil)
			app := r.dial()
			app.Send("GET /up/v1/x HTTP/" + tt.proto + "\nHost: localhost\n\n")
			app.Head()
			if tt.proto == "1.1" {
				app.Expect(chunk("data: 1\n\n"))
			} else {
				app.Expect("data: 1\n\n")
			}
			close(seen)
			rest, err := app.Rest()
			if rest != "" || tt.proto == "1.0" && err == nil {
				t.Errorf("after the cut: %q, %v; want nothing, and for HTTP/1.0 a reset", rest, err)
			}
			if rec := r.record(); rec.Outcome != OutcomeCutUpstream || rec.Cause != tt.cause {
				t.Errorf("outcome %s cause %s, want %s %s", rec.Outcome, rec.Cause, OutcomeCutUpstream, tt.cause)
			}
		})
	}
}

func TestErrorEventPrecedesTheCut(t *testing.T) {
	seen := make(chan struct{})
	r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.Send(sseHead)
		c.SendExact(chunk("data: {\"choices\":[]}\n\n"))
		<-seen
	}), func(_ *Table, u *Upstream) { u.ErrorEvent = true })
	app := r.dial()
	app.Send("POST /up/v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
	app.Head()
	app.Expect(chunk("data: {\"choices\":[]}\n\n"))
	close(seen)
	rest, _ := app.Rest()
	if !strings.Contains(rest, `"error"`) || !strings.HasSuffix(rest, "\n\n\r\n") || strings.Contains(rest, "[DONE]") {
		t.Errorf("after the cut: %q; want one error event and no last chunk", rest)
	}
}

func TestLeavingCancelsTheUpstream(t *testing.T) {
	const limit = 50 * time.Millisecond
	tests := []struct {
		name  string
		head  string
		ready func(up, app *testenv.Raw) // brings both into the state in which the app leaves
	}{
		{"waiting for the head", "", func(up, app *testenv.Raw) {}},
		{"streaming", sseHead, func(up, app *testenv.Raw) { app.Head() }},
		{"long answer", "HTTP/1.1 200 OK\nContent-Length: 1000\n\n", func(up, app *testenv.Raw) { app.Head() }},
	}
	for _, tt := range tests {
		for _, how := range []string{"close", "reset"} {
			t.Run(tt.name+" "+how, func(t *testing.T) {
				ready, gone := make(chan *testenv.Raw, 1), make(chan struct{})
				r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
					c.Head()
					c.Send(tt.head)
					ready <- c
					_, _ = io.Copy(io.Discard, c.In)
					close(gone)
				}), nil)
				app := r.dial()
				app.Send("POST /up/v1/x HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n")
				app.SendExact("{}")
				tt.ready(<-ready, app)
				if how == "reset" {
					_ = app.SetLinger(0)
				}
				_ = app.Close()
				within(t, "cancelling the upstream", limit, gone)
				if rec := r.record(); rec.Outcome != OutcomeCutApp || rec.Cause != CauseAppLeft {
					t.Errorf("outcome %s cause %s", rec.Outcome, rec.Cause)
				}
			})
		}
	}
}

// An app that has counted the bytes of its answer may leave before the upstream says
// that there are no more: nothing was cut.
func TestAnAppThatHasAllMayLeave(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			body := &endless{first: strings.NewReader("whole")}
			r := newRig(t, "unused.test", func(_ *Table, u *Upstream) {
				u.Transport = roundTripper(func(req *http.Request) (*http.Response, error) {
					body.ctx = req.Context()
					return &http.Response{StatusCode: 200, ProtoMajor: 2, Header: http.Header{"Content-Length": {"5"}}, ContentLength: 5, Body: body, Request: req}, nil
				})
			})
			tr := newTransport()
			tr.Protocols = new(http.Protocols)
			tr.Protocols.SetHTTP1(proto == "HTTP/1.1")
			tr.Protocols.SetUnencryptedHTTP2(proto == "HTTP/2.0")
			resp, err := (&http.Client{Transport: tr}).Get("http://" + r.addr + "/up/v1/x")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close() // RST_STREAM
			tr.CloseIdleConnections()
			if rec := r.record(); rec.Outcome != OutcomeOK || rec.Cause != "" || rec.AppProto != proto {
				t.Errorf("%s: outcome %s cause %s", rec.AppProto, rec.Outcome, rec.Cause)
			}
		})
	}
}

// 425 goes to whoever sent Early-Data: only he may ask again (RFC 8470 §5.2).
func TestTooEarlyIsTheAppsToAskAgain(t *testing.T) {
	var asked atomic.Int32
	r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		if head := c.Head(); !strings.Contains(head, "Early-Data: 1\n") {
			t.Errorf("the upstream got %q", head)
		}
		asked.Add(1)
		c.Send("HTTP/1.1 425 Too Early\nContent-Length: 5\n\n")
		c.SendExact("early")
	}), nil)
	app := r.dial()
	app.Send("GET /up/v1/models HTTP/1.1\nHost: localhost\nEarly-Data: 1\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 425 Too Early\n") {
		t.Errorf("head %q", head)
	}
	app.Expect("early")
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// endless is a body whose end does not come.
type endless struct {
	first io.Reader
	ctx   context.Context
}

func (b *endless) Read(p []byte) (int, error) {
	if n, err := b.first.Read(p); err == nil {
		return n, nil
	}
	<-b.ctx.Done()
	return 0, context.Cause(b.ctx)
}

func (b *endless) Close() error { return nil }

func TestHalfCloseOfACompleteRequestDoesNotCancel(t *testing.T) {
	fin := make(chan struct{})
	r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		<-fin
		c.Send("HTTP/1.1 200 OK\nContent-Length: 2\n\n")
		c.SendExact("ok")
	}), nil)
	app := r.dial()
	app.Send("GET /up/v1/x HTTP/1.1\nHost: localhost\n\n")
	if err := app.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(150*time.Millisecond, func() { close(fin) }) // several looks at the half-closed app
	app.Head()
	app.Expect("ok")
	if rec := r.record(); rec.Outcome != OutcomeOK {
		t.Errorf("outcome %s cause %s", rec.Outcome, rec.Cause)
	}
}

func TestRequestFieldsArriveAsSent(t *testing.T) {
	got := make(chan string, 1)
	r := newRig(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		got <- c.Head()
		c.Send("HTTP/1.1 204 No Content\n\n")
	}), func(tab *Table, _ *Upstream) { tab.Via = false })
	app := r.dial()
	app.Send("GET /up/v1/x?a=%2F HTTP/1.1\nHost: localhost\nX-Two: 1\nX-Two: 2\nConnection: x-hop\nX-Hop: 1\nProxy-Authorization: Basic eA==\n\n")
	if head := app.Head(); head != "HTTP/1.1 204 No Content\n" {
		t.Errorf("answer %q", head)
	}
	lines := strings.Split(strings.TrimSuffix(<-got, "\n"), "\n")
	want := map[string]bool{"GET /v1/x?a=%2F HTTP/1.1": true, "Host: " + r.table.Upstreams[0].URL.Host: true, "X-Two: 1": true, "X-Two: 2": true}
	for _, l := range lines {
		if !want[l] && !strings.HasPrefix(l, loopMarker) { // the marker goes to loopback targets only
			t.Errorf("added %q", l)
		}
		delete(want, l)
	}
	if len(want) > 0 {
		t.Errorf("missing %v", want)
	}
}

func TestOwnErrors(t *testing.T) {
	closed := testenv.ServeRaw(t, func(c *testenv.Raw) { c.Head() }) // closes without an answer
	r := newRig(t, closed, nil)
	tests := []struct {
		name, request string
		status        int
		code          string
	}{
		{"unknown upstream", "GET /nobody/x HTTP/1.1\nHost: localhost\n\n", 404, "unknown_upstream"},
		{"foreign host", "GET /up/x HTTP/1.1\nHost: evil.test\n\n", 421, "unknown_host"},
		{"upstream closes", "POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n", 502, "upstream_failed"},
		{"loop by Via", "GET /up/x HTTP/1.1\nHost: localhost\nVia: 1.1 " + r.server.pseudonym + "\n\n", 508, "loop_detected"},
		{"loop by our marker", "GET /up/x HTTP/1.1\nHost: localhost\nWarmwire-Loop: " + r.server.pseudonym + "\n\n", 508, "loop_detected"},
		{"CONNECT without port", "CONNECT host.test HTTP/1.1\nHost: host.test\n\n", 400, "bad_connect_target"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			app := r.dial()
			app.Send(tt.request)
			resp, err := http.ReadResponse(app.In, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != tt.status || !strings.Contains(string(body), tt.code) {
				t.Errorf("%d %s %v; want %d with code %s", resp.StatusCode, body, err, tt.status, tt.code)
			}
			if strings.HasPrefix(tt.request, "CONNECT") {
				return // refused by http1 as malformed, before there is a request
			}
			if resp.Header.Get("X-Should-Retry") != "false" || !strings.HasPrefix(resp.Header.Get("Proxy-Status"), "warmwire; error=") {
				t.Errorf("fields %v", resp.Header)
			}
		})
	}
}
