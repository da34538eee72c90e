// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/tlspool/inspect"
)

// handshakeConfig starts a model API and says how to reach it.
func handshakeConfig(t *testing.T) inspect.Config {
	t.Helper()
	api := loopback(t)
	address := strings.TrimPrefix(api.TLSURL(), "https://")
	return inspect.Config{Host: "localhost", Roots: api.CertPool(), Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}}
}

func TestCompareHandshakes(t *testing.T) {
	rounds := 0
	h, err := CompareHandshakes(t.Context(), handshakeConfig(t), 10, 1, func() { rounds++ })
	if err != nil || rounds != 10 || h.Connect.Len() != 30 || !h.Succeeded() {
		t.Fatalf("%v after %d rounds, %d connections", err, rounds, h.Connect.Len())
	}
	for w := range inspect.Ways {
		s := &h.Ways[w]
		if s.Tried != 10 || s.Took.Len() != 10 || len(s.Failed) > 0 || (s.Hello > 1400) == (w == inspect.Classic) {
			t.Errorf("%v: %d of %d, ClientHello %d bytes, failed %v", w, s.Took.Len(), s.Tried, s.Hello, s.Failed)
		}
	}
	var b bytes.Buffer
	if err := WriteHandshakes(&b, h); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"handshakes, ms", "full", "resumed", "X25519 only", "TCP connect", "TLS 1.3 X25519MLKEM768", "ratio p95"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	raw, err := json.Marshal(h)
	for _, want := range []string{`"full":{"tried":10,"n":10,"p50_ms":`, `"ratio_p50_interval":`, `"connect":`, `"x25519_only":`} {
		if err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%v, no %s in %s", err, want, raw)
		}
	}
}

func TestHandshakesThatFailAreCounted(t *testing.T) {
	cfg := handshakeConfig(t)
	cfg.Roots = nil
	h, err := CompareHandshakes(t.Context(), cfg, 2, 1, func() {})
	if err != nil || h.Succeeded() || h.Ways[inspect.Full].Tried != 2 || h.Ways[inspect.Full].Took.Len() != 0 {
		t.Fatalf("%v, %+v", err, h)
	}
	var b bytes.Buffer
	if err := WriteHandshakes(&b, h); err != nil || !strings.Contains(b.String(), "full: 2 of 2: ") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestRatiosAreOverAFullHandshake(t *testing.T) {
	h := newHandshakes(1)
	for range 3 {
		h.add(inspect.Full, inspect.Handshake{Took: 40 * time.Millisecond, Version: "TLS 1.3", Group: "X25519MLKEM768", Hello: 1500}, nil)
		h.add(inspect.Resumed, inspect.Handshake{Took: 10 * time.Millisecond, Resumed: true}, nil)
	}
	h.add(inspect.Resumed, inspect.Handshake{Took: 90 * time.Millisecond}, nil)
	p50, p95, _, ok := h.ratios(inspect.Resumed)
	if p50 != 0.25 || p95 != 0.25 || ok {
		t.Errorf("ratios %v and %v, interval %v; want 0.25 each and none of so few values", p50, p95, ok)
	}
	if s := h.Ways[inspect.Resumed]; s.Took.Len() != 3 || s.Tried != 4 || s.Failed[notResumed] != 1 {
		t.Errorf("a handshake that was not resumed: %+v", s)
	}
}
