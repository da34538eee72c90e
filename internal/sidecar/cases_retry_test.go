// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/transport/flight"
)

// scripted serves the n-th request, counted over all connections, with its n-th
// entry, and all later ones with the last.
func scripted(t *testing.T, script ...func(c *testenv.Raw, head string)) (addr string, asked *atomic.Int32) {
	asked = new(atomic.Int32)
	return testenv.ServeRaw(t, func(c *testenv.Raw) {
		for head := c.Head(); head != ""; head = c.Head() {
			n := min(int(asked.Add(1)), len(script))
			script[n-1](c, head)
		}
	}), asked
}

func answer(s string) func(*testenv.Raw, string) {
	return func(c *testenv.Raw, head string) {
		if strings.Contains(head, "Content-Length: 2\n") {
			c.Expect("{}")
		}
		c.SendExact(strings.ReplaceAll(s, "\n", "\r\n"))
	}
}

func reset(read bool, before string) func(*testenv.Raw, string) {
	return func(c *testenv.Raw, _ string) {
		if read {
			c.Expect("{}")
		}
		c.SendExact(before)
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

const (
	ok200   = "HTTP/1.1 200 OK\nContent-Length: 2\n\nok"
	busy503 = "HTTP/1.1 503 Service Unavailable\nRetry-After: 0\nContent-Length: 4\n\nbusy"
)

// TestWhatIsSentAgain counts what arrives at the upstream: by default nothing twice
// that may have been processed, and what the operator names no more often than said.
func TestWhatIsSentAgain(t *testing.T) {
	tests := []struct {
		name, retry string
		first       func(*testenv.Raw, string)
		asked       int32
		status      string
		fields      string
		counted     string // reason and decision
	}{
		{"reset after the head", "", reset(false, ""), 1, "502", "X-Should-Retry: false\n", "cut_before disabled"},
		{"reset after the body", "", reset(true, ""), 1, "502", "X-Should-Retry: false\n", "cut_before disabled"},
		{"reset within the answer", "", reset(true, "HTTP/1.1 2"), 1, "502", "X-Should-Retry: false\n", "cut_after disabled"},
		{"500", "", answer("HTTP/1.1 500 No\nContent-Length: 1\n\nx"), 1, "500", "", "answered disabled"},
		{"503 with a hint", "", answer(busy503), 1, "503", "Retry-After: 0\n", "try_later disabled"},
		{"529", "", answer("HTTP/1.1 529 Overloaded\nRetry-After: 1\nContent-Length: 1\n\nx"), 1, "529", "", "try_later disabled"},
		{"429", "", answer("HTTP/1.1 429 Slow\nRetry-After-Ms: 1\nContent-Length: 1\n\nx"), 1, "429", "Retry-After-Ms: 1\n", "try_later disabled"},
		{"503 named", "statuses: [503]", answer(busy503), 2, "200", "", "try_later retried"},
		{"another named", "statuses: [429]", answer(busy503), 1, "503", "Retry-After: 0\n", "try_later disabled"},
		{"named, and forbidden by the upstream", "statuses: [503]", answer("HTTP/1.1 503 No\nX-Should-Retry: false\nContent-Length: 1\n\nx"), 1, "503", "X-Should-Retry: false\n", "answered forbidden"},
		{"named, and asked to wait for long", "statuses: [503]", answer("HTTP/1.1 503 No\nRetry-After: 600\nContent-Length: 1\n\nx"), 1, "503", "Retry-After: 600\n", "try_later too_long"},
		{"no attempt left", "statuses: [503], max_attempts: 1", answer(busy503), 1, "503", "Retry-After: 0\n", ""},
		{"resets named", "resets: true", reset(true, ""), 2, "200", "", "cut_before retried"},
		{"resets named, within the answer", "resets: true", reset(true, "HTTP/1.1 2"), 1, "502", "X-Should-Retry: false\n", "cut_after disabled"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr, asked := scripted(t, tt.first, answer(ok200))
			r := start(t, addr, "upstreams:\n  up: {url: 'http://UPSTREAM', retry: {"+tt.retry+"}}\n")
			app := r.dial()
			app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}")
			head := app.Head()
			if !strings.HasPrefix(head, "HTTP/1.1 "+tt.status+" ") || !strings.Contains(head, tt.fields) {
				t.Errorf("answer %q, want %s with %q", head, tt.status, tt.fields)
			}
			if n := asked.Load(); n != tt.asked {
				t.Errorf("the upstream was asked %d times, want %d", n, tt.asked)
			}
			if reason, decision, ok := strings.Cut(tt.counted, " "); ok {
				r.metric(fmt.Sprintf(`warmwire_retries_total{decision="%s",reason="%s",upstream="up"} 1`, decision, reason))
			}
		})
	}
}

// TestASecondAttemptHasTheWholeBody sends bodies of known and unknown length that an
// upstream refuses after it has read them, and one that is longer than what is kept.
func TestASecondAttemptHasTheWholeBody(t *testing.T) {
	const kept = 256 << 10
	for _, tt := range []struct {
		name    string
		size    int
		chunked bool
		asked   int32
		status  int
	}{
		{"length", kept, false, 2, 200}, {"chunked", kept, true, 2, 200}, {"too long", kept + 1, false, 1, 503}, {"too long, chunked", kept + 1, true, 1, 503},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body := strings.Repeat("0123456789abcdef", tt.size/16+1)[:tt.size]
			var asked atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := asked.Add(1)
				got, err := io.ReadAll(r.Body)
				if err != nil || sha256.Sum256(got) != sha256.Sum256([]byte(body)) {
					t.Errorf("attempt %d: %d bytes of %d, %v", n, len(got), tt.size, err)
				}
				if n == 1 {
					w.Header().Set("Retry-After", "0")
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			defer srv.Close()
			r := start(t, srv.Listener.Addr().String(), "upstreams:\n  up: {url: 'http://UPSTREAM', retry: {statuses: [503], replay_body: 256KiB}}\n")
			var send io.Reader = strings.NewReader(body)
			if tt.chunked {
				send = io.MultiReader(send)
			}
			resp, err := http.Post("http://"+r.addr+"/up/x", "text/plain", send)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != tt.status || asked.Load() != tt.asked {
				t.Errorf("%d after %d attempts, want %d after %d", resp.StatusCode, asked.Load(), tt.status, tt.asked)
			}
			r.metric(fmt.Sprintf("warmwire_buffer_bytes %d", flight.RingBytes)) // the record of the connection that stays open
		})
	}
}

// TestARestartedUpstreamCostsNoError posts to an upstream that has closed all its
// connections: that is seen before one is used again.
func TestARestartedUpstreamCostsNoError(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked.Add(1)
	}))
	defer srv.Close()
	r := start(t, srv.Listener.Addr().String(), "")
	for range 20 {
		resp, err := http.Post("http://"+r.addr+"/up/x", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s after a restart", resp.Status)
		}
		r.metric(`warmwire_upstream_connections{protocol="HTTP/1.1",upstream="up"} 1`)
		srv.CloseClientConnections()
		r.metric(`warmwire_upstream_connections{protocol="HTTP/1.1",upstream="up"} 0`)
	}
	if n := asked.Load(); n != 20 {
		t.Errorf("the upstream got %d requests, 20 were made", n)
	}
}

// TestAStormIsBounded fails every call: what is added by trying again stays within the
// budget.
func TestAStormIsBounded(t *testing.T) {
	addr, asked := scripted(t, answer(busy503))
	r := start(t, addr, "upstreams:\n  up: {url: 'http://UPSTREAM', retry: {statuses: [503], budget: 0.2, base_delay: 1ms, max_delay: 2ms}}\n")
	const calls = 200
	for range calls {
		if status, body := r.call("/up/x"); status != http.StatusServiceUnavailable || body != "busy" {
			t.Fatalf("%d %q", status, body)
		}
	}
	if n := asked.Load(); n > calls*6/5+5 || n < calls*11/10 {
		t.Errorf("%d calls made %d attempts", calls, n)
	}
}

// TestARefusedTargetIsNotTriedAgain asks for an upstream whose address Warmwire refuses
// by itself: it would refuse it again.
func TestARefusedTargetIsNotTriedAgain(t *testing.T) {
	for _, more := range []string{"", "parent_proxy: 'http://127.0.0.1:1'\n"} {
		r := start(t, "169.254.169.254", more)
		app := r.dial()
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 403 ") || !strings.Contains(head, "X-Should-Retry: false\n") {
			t.Errorf("answer %q, want 403", head)
		}
		r.metric(`warmwire_retries_total{decision="disabled",reason="hopeless",upstream="up"} 1`)
	}
}
