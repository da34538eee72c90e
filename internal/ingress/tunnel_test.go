// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// connect opens a tunnel through the rig to addr.
func connect(r *rig, addr string) *testenv.Raw {
	app := r.dial()
	app.Send("CONNECT " + addr + " HTTP/1.1\nHost: " + addr + "\n\n")
	if head := app.Head(); head != "HTTP/1.1 200 Connection Established\n" {
		r.t.Fatalf("CONNECT answered %q", head)
	}
	return app
}

func TestTunnelPassesAHalfCloseInEachDirection(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		got, err := io.ReadAll(c.In) // the app's FIN ends this
		if err != nil || string(got) != "question" {
			t.Errorf("upstream read %q, %v", got, err)
		}
		_, _ = c.Write(big)
	})
	r := newRig(t, addr, nil)
	app := connect(r, addr)
	app.SendExact("question")
	if err := app.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := app.Rest()
	if err != nil || sha256.Sum256([]byte(got)) != sha256.Sum256(big) {
		t.Errorf("app read %d bytes, %v; want %d", len(got), err, len(big))
	}
	rec := r.record()
	if rec.Outcome != OutcomeOK || rec.BytesIn != 8 || rec.BytesOut != int64(len(big)) {
		t.Errorf("record %+v", rec)
	}
}

func TestTunnelDeliversTheTailToASlowReader(t *testing.T) {
	tail := bytes.Repeat([]byte("x"), 4<<20) // 4 MiB, then closed at once
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) { _, _ = c.Write(tail) })
	r := newRig(t, addr, nil)
	app := connect(r, addr)
	total := 0
	buf := make([]byte, 64<<10)
	for {
		n, err := app.In.Read(buf)
		total += n
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	if total != len(tail) {
		t.Errorf("read %d bytes, want %d", total, len(tail))
	}
}

func TestTunnelPassesBytesSentWithConnect(t *testing.T) {
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) { c.Expect("hello"); c.SendExact("world") })
	r := newRig(t, addr, nil)
	app := r.dial()
	app.SendExact("CONNECT " + addr + " HTTP/1.1\r\nHost: " + addr + "\r\n\r\nhello")
	app.Head()
	app.Expect("world")
}

func TestTunnelResetEndsBothSides(t *testing.T) {
	for _, who := range []string{"app", "upstream"} {
		t.Run(who, func(t *testing.T) {
			ready, ended := make(chan *testenv.Raw, 1), make(chan struct{})
			addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
				ready <- c
				_, _ = io.Copy(io.Discard, c.In)
				close(ended)
			})
			r := newRig(t, addr, nil)
			app := connect(r, addr)
			up := <-ready
			if who == "app" {
				_ = app.SetLinger(0)
				_ = app.Close()
				within(t, "the upstream's end", 50*time.Millisecond, ended)
			} else {
				_ = up.SetLinger(0)
				_ = up.Close()
				if _, err := app.Rest(); err == nil {
					t.Error("the app saw a clean end, want a reset")
				}
			}
			if rec := r.record(); rec.Outcome == OutcomeOK {
				t.Errorf("outcome %s", rec.Outcome)
			}
		})
	}
}

func TestTunnelAppThatLeavesEndsASilentUpstream(t *testing.T) {
	ended := make(chan struct{})
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		_, _ = io.Copy(io.Discard, c.In)
		_, err := c.In.ReadByte() // it ignores the half-close and waits on
		for err == nil {
			_, err = c.In.ReadByte()
		}
		_ = c.SetReadDeadline(time.Now().Add(patience))
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C { // only a write shows that nobody is there
			if _, err := c.Write([]byte("x")); err != nil {
				close(ended)
				return
			}
		}
	})
	r := newRig(t, addr, nil)
	app := connect(r, addr)
	app.SendExact("bye")
	_ = app.Close()
	within(t, "the tunnel's end", time.Second, ended)
	r.record()
}

func TestTunnelFailuresAreHTTPErrors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := ln.Addr().String()
	_ = ln.Close()
	tests := []struct {
		name   string
		dial   DialFunc
		status int
	}{
		{"refused", nil, 502},
		{"own listener", func(context.Context, string, string) (net.Conn, error) { return nil, fmt.Errorf("dial: %w", ErrLoop) }, 508},
		{"metadata", func(context.Context, string, string) (net.Conn, error) {
			return nil, fmt.Errorf("dial: %w", ErrForbidden)
		}, 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, refused, func(tab *Table, _ *Upstream) {
				if tt.dial != nil {
					tab.Forward.Dial = tt.dial
				}
			})
			app := r.dial()
			app.Send("CONNECT " + refused + " HTTP/1.1\nHost: " + refused + "\n\n")
			resp, err := http.ReadResponse(app.In, &http.Request{Method: http.MethodConnect})
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status || !strings.HasPrefix(resp.Header.Get("Proxy-Status"), "warmwire; error=") {
				t.Errorf("%d %v, want %d", resp.StatusCode, resp.Header, tt.status)
			}
		})
	}
}

func TestTunnelHead200IsOneWriteWithoutFraming(t *testing.T) {
	if !strings.HasSuffix(connectEstablished, "\r\n\r\n") || strings.Contains(connectEstablished, "Content-Length") ||
		strings.Contains(connectEstablished, "Transfer-Encoding") {
		t.Errorf("%q", connectEstablished)
	}
}

// tunnelCount is small where each change waits for it; 100000 are the aim.
var tunnelCount = flag.Int("tunnels", 400, "how many TestTunnelsLeaveNothingBehind ends")

// TestTunnelsLeaveNothingBehind ends many tunnels in every way and counts descriptors and
// goroutines.
func TestTunnelsLeaveNothingBehind(t *testing.T) {
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		switch how, _ := c.In.ReadByte(); how {
		case 'F': // a FIN of the upstream
		case 'R':
			_ = c.SetLinger(0)
		default: // the app ends it
			_, _ = io.Copy(io.Discard, c.In)
		}
	})
	r := newRig(t, addr, func(tab *Table, _ *Upstream) { tab.Forward.TunnelIdle = time.Second })
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("descriptors can be counted on Linux only")
		}
		return len(names)
	}
	descriptors, goroutines := open(), runtime.NumGoroutine()
	for i := range *tunnelCount {
		app := connect(r, addr)
		switch i % 5 {
		case 0:
			app.SendExact("F")
			_, _ = app.Rest()
		case 1:
			app.SendExact("R")
			_, _ = app.Rest()
		case 2:
			app.SendExact("x")
			_ = app.SetLinger(0)
		case 3: // half, and then the other half
			_ = app.CloseWrite()
			_, _ = app.Rest()
		}
		_ = app.Close()
		r.record()
	}
	idle := make([]*testenv.Raw, min(200, *tunnelCount/50))
	for i := range idle {
		idle[i] = connect(r, addr)
	}
	for _, app := range idle {
		_, _ = app.Rest()
		_ = app.Close()
		if rec := r.record(); rec.Cause != CauseIdle {
			t.Errorf("an idle tunnel ended %s, %s", rec.Outcome, rec.Cause)
		}
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for range tick.C {
		runtime.GC() // splice's pipes are kept for the next copy until then
		if fds, now := open(), runtime.NumGoroutine(); fds <= descriptors+5 && now <= goroutines+5 {
			t.Logf("%d tunnels; %d descriptors and %d goroutines before, %d and %d after", *tunnelCount, descriptors, goroutines, fds, now)
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%d descriptors and %d goroutines before, %d and %d after", descriptors, goroutines, fds, now)
		}
	}
}

// openStream opens a tunnel to addr in one HTTP/2 stream (RFC 9113 §8.5): what is
// written to the first goes to addr.
func openStream(r *rig, addr string) (io.WriteCloser, *http.Response) {
	r.t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", r.addr)
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	r.t.Cleanup(tr.CloseIdleConnections)
	pr, pw := io.Pipe()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodConnect, "http://"+addr, pr)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return pw, resp
}

func TestTunnelOverHTTP2(t *testing.T) {
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Expect("hello")
		c.SendExact("world")
	})
	r := newRig(t, addr, nil)
	app, resp := openStream(r, addr)
	if _, err := io.WriteString(app, "hello"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); string(b) != "world" || err != nil || resp.StatusCode != 200 {
		t.Errorf("%d %q %v", resp.StatusCode, b, err)
	}
	_ = app.Close()
	if rec := r.record(); rec.Outcome != OutcomeOK || rec.AppProto != "HTTP/2.0" {
		t.Errorf("record %+v", rec)
	}
}

// TestIdleTunnelIsReset: what moves in either direction keeps a tunnel; when nothing
// has moved for the limit, both sides see a reset, and never an end.
func TestIdleTunnelIsReset(t *testing.T) {
	const limit = time.Second
	const moves = 25 // and a tenth of the limit between them: longer than the limit
	pace := func(w io.Writer) (n int) {
		for range moves {
			if _, err := io.WriteString(w, "."); err != nil {
				break
			}
			n++
			<-time.NewTimer(limit / 10).C
		}
		return n
	}
	for name, one := range map[string]struct{ http2, appSpeaks, appEnds bool }{
		"app":              {appSpeaks: true},
		"upstream":         {},
		"half closed":      {appEnds: true},
		"app, HTTP/2":      {http2: true, appSpeaks: true},
		"upstream, HTTP/2": {http2: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			type end struct {
				n   int
				err error
			}
			upstream := make(chan end, 1)
			addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
				if !one.appSpeaks && pace(c) != moves {
					t.Error("the upstream's tunnel broke though it was used")
				}
				got, err := io.ReadAll(c.In)
				if one.appEnds { // it has the app's end: what it sees of ours is a failing write
					err = nil
				}
				upstream <- end{len(got), err}
				if one.appEnds {
					_, _ = io.Copy(io.Discard, c) // stay
					<-t.Context().Done()
				}
			})
			r := newRig(t, addr, func(tab *Table, _ *Upstream) { tab.Forward.TunnelIdle = limit })
			var app io.Writer
			var answer io.Reader
			if one.http2 {
				w, resp := openStream(r, addr)
				app, answer = w, resp.Body
			} else {
				c := connect(r, addr)
				app, answer = c, c.In
				if one.appEnds {
					_ = c.CloseWrite()
				}
			}
			want := moves
			if one.appSpeaks {
				want = 0
				if pace(app) != moves {
					t.Error("the app's tunnel broke though it was used")
				}
			}
			got, err := io.ReadAll(answer)
			if err == nil || len(got) != want {
				t.Errorf("the app read %d bytes, %v; want %d and a reset", len(got), err, want)
			}
			if u := <-upstream; u.n != moves-want || u.err == nil != one.appEnds {
				t.Errorf("the upstream read %d bytes, %v; want %d and a reset", u.n, u.err, moves-want)
			}
			if rec := r.record(); rec.Outcome != OutcomeCutWarmwire || rec.Cause != CauseIdle || rec.BytesIn != int64(moves-want) || rec.BytesOut != int64(want) {
				t.Errorf("record %+v", rec)
			}
		})
	}
}
