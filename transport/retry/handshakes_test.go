// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/retry"
)

// handshake is the request that asks for a WebSocket.
func handshake(ctx context.Context) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://model.test/v1/realtime", nil)
	if err != nil {
		panic(err) // the arguments are constants
	}
	req.Header["Connection"], req.Header["Upgrade"], req.Body = []string{"Upgrade"}, []string{"websocket"}, http.NoBody
	return req
}

func newHandshakes(t *testing.T, next http.RoundTripper, cfg retry.HandshakeConfig) *retry.Handshakes {
	t.Helper()
	h, err := retry.NewHandshakes(next, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestWhichHandshakesAreMadeAgain(t *testing.T) {
	tests := []struct {
		name  string
		first func() (*http.Response, error)
		want  string
	}{
		{"connection refused", fails(errRefusedConn), "unsent retried"},
		{"connect timed out", fails(&fault{phase: "connect", code: "upstream_connect_timeout", expired: true}), "late retried"},
		{"no answer in time", fails(&fault{phase: "wait", code: "upstream_response_header_timeout", expired: true, sent: true}), "late retried"},
		{"reset after the request", fails(errCut), "cut_before retried"},
		{"dead flow", fails(&fault{phase: "wait", code: "upstream_dead_flow", expired: true, sent: true}), "late retried"},
		{"certificate refused", fails(&fault{phase: "tls", code: "upstream_tls_untrusted"}), "hopeless disabled"},
		{"malformed answer", fails(&fault{phase: "wait", code: "upstream_bad_response", sent: true}), "hopeless disabled"},
		{"an error that says nothing", fails(errors.New("no")), "unknown disabled"},
		{"429 with a date", answers(429, "", "Retry-After", "1"), "try_later retried"},
		{"429 that asks for too much", answers(429, "", "Retry-After", "61"), "try_later too_long"},
		{"503", answers(503, ""), "answered retried"},
		{"503 that should not be tried again", answers(503, "", "X-Should-Retry", "false"), "answered forbidden"},
		{"500", answers(500, ""), ""},
		{"401", answers(401, ""), ""},
		{"426", answers(426, ""), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &decisions{}
				s := &script{steps: []func() (*http.Response, error){tt.first, answers(101, "")}}
				resp, err := newHandshakes(t, s, retry.HandshakeConfig{OnAttempt: d.note}).RoundTrip(handshake(t.Context()))
				if got := strings.Join(d.verdicts(), ", "); got != tt.want {
					t.Errorf("decided %q, want %q", got, tt.want)
				}
				if again := strings.HasSuffix(tt.want, " retried"); again != (err == nil && resp.StatusCode == 101) || len(s.at) != map[bool]int{false: 1, true: 2}[again] {
					t.Errorf("%d attempts ended with %v, %v", len(s.at), resp, err)
				}
			})
		})
	}
}

// TestWhenHandshakesAreMadeAgain: widest waits, to the end of the limit; then the app
// gets the last failure itself.
func TestWhenHandshakesAreMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{steps: []func() (*http.Response, error){fails(errRefusedConn)}}
		start := time.Now()
		_, err := newHandshakes(t, s, retry.HandshakeConfig{Rand: func() float64 { return 1 }}).RoundTrip(handshake(t.Context()))
		if !errors.Is(err, errRefusedConn) {
			t.Errorf("it ended with %v", err)
		}
		const ms = time.Millisecond
		want := []time.Duration{0, 250 * ms, 750 * ms, 1750 * ms, 3750 * ms, 7750 * ms}
		for at := 15750 * ms; at < time.Minute; at += 8 * time.Second {
			want = append(want, at)
		}
		if got := s.gaps(start); !slices.Equal(got, want) {
			t.Errorf("attempts at %v, want %v", got, want)
		}
	})
}

// TestHandshakesOfAnAppThatLeaves: nothing is tried for nobody.
func TestHandshakesOfAnAppThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{steps: []func() (*http.Response, error){answers(503, "", "Retry-After", "5")}}
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		_, err := newHandshakes(t, s, retry.HandshakeConfig{}).RoundTrip(handshake(ctx))
		if !errors.Is(err, context.Canceled) || time.Since(start) != time.Second || len(s.at) != 1 {
			t.Errorf("%d attempts, %v after %v", len(s.at), err, time.Since(start))
		}
	})
}

// TestOtherRequestsPassHandshakes: a call is none, and is sent once.
func TestOtherRequestsPassHandshakes(t *testing.T) {
	s := &script{steps: []func() (*http.Response, error){fails(errRefusedConn)}}
	if _, err := newHandshakes(t, s, retry.HandshakeConfig{}).RoundTrip(post("question")); !errors.Is(err, errRefusedConn) || len(s.at) != 1 {
		t.Errorf("%d attempts, %v", len(s.at), err)
	}
}

func TestHandshakeConfigIsChecked(t *testing.T) {
	for _, cfg := range []retry.HandshakeConfig{{BaseDelay: -1}, {Limit: -1}, {BaseDelay: time.Minute}} {
		if _, err := retry.NewHandshakes(&script{}, cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	if _, err := retry.NewHandshakes(nil, retry.HandshakeConfig{}); err == nil {
		t.Error("no way out is taken")
	}
}
