// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestPreviewIsTrue asks what changes would do: what is said to open connections anew
// does, what is not leaves them, and asking changes nothing.
func TestPreviewIsTrue(t *testing.T) {
	var peers []string
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { peers = append(peers, r.RemoteAddr) }))
	defer api.Close()
	r := start(t, api.Listener.Addr().String(), "")
	defer r.stop()
	call := func() {
		t.Helper()
		if status, body := r.call("/up/x"); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
	}
	call()
	for _, tt := range []struct {
		change  string
		from    string
		reopens bool
	}{
		{"upstreams.up.retry.budget=0.1", "0.2", false},
		{"upstreams.up.pool.max_streams=7", "100", true},
		{"upstreams.up.heartbeat.mode=fixed", "adaptive", false},
		{"upstreams.up.timeouts.idle=3m", "15m", false},
		{"upstreams.up.timeouts.connect=2s", "5s", true},
		{"upstreams.up.buffer.stream_limit=128KiB", "1MiB", true},
		{"upstreams.up.buffer.policy=spool", "pause", false},
		{"log.level=warn", "info", false},
	} {
		key, value, _ := strings.Cut(tt.change, "=")
		settings := r.get("/v1/settings")
		var p struct {
			Changes []struct{ Key, From, To string }
			Reopens []string
			Running int
		}
		status, body := r.post("/v1/tune/preview?" + tt.change)
		if err := json.Unmarshal([]byte(body), &p); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s %v", tt.change, status, body, err)
		}
		if len(p.Changes) != 1 || p.Changes[0].Key != key || p.Changes[0].To != value || p.Changes[0].From != tt.from || slices.Contains(p.Reopens, "up") != tt.reopens {
			t.Errorf("%s: %s", tt.change, body)
		}
		if r.get("/v1/settings") != settings {
			t.Errorf("%s: the preview has changed settings", tt.change)
		}
		if status, body := r.post("/v1/tune?" + tt.change); status != http.StatusOK {
			t.Fatalf("%s: %d %s", tt.change, status, body)
		}
		call()
		if n := len(peers); (peers[n-1] != peers[n-2]) != tt.reopens {
			t.Errorf("%s: the connection was opened anew: %v, want %v", tt.change, !tt.reopens, tt.reopens)
		}
		if _, body := r.post("/v1/tune/preview?" + tt.change); !strings.Contains(body, `"changes": []`) {
			t.Errorf("%s again: %s", tt.change, body)
		}
	}
	if status, body := r.post("/v1/tune/preview?upstreams.up.retry.budget=much"); status != http.StatusUnprocessableEntity || !strings.Contains(body, "is no number") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := r.post("/v1/tune/preview"); status != http.StatusBadRequest {
		t.Errorf("%d %s", status, body)
	}
}
