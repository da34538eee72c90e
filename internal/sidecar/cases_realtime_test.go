// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestARealtimeSessionsEndIsForetold has servers say when their sessions end: the log,
// the metrics and the list of streams tell, and nobody but the app learns the handle.
func TestARealtimeSessionsEndIsForetold(t *testing.T) {
	const handle = "HANDLE-THAT-IS-A-SECRET"
	soon := time.Now().Add(time.Minute).Unix()
	tests := []struct {
		name, dialect, path string
		kind                int
		says                []string
		list, log           []string
		metric              string
	}{
		{"OpenAI", "openai", "/v1/realtime?model=m", websocket.TextMessage,
			[]string{fmt.Sprintf(`{"type":"session.created","session":{"expires_at":%d}}`, soon), `{"type":"response.output_text.delta","delta":"a"}`},
			[]string{`"session_api": "openai_realtime"`, `"session_ends_at": "` + time.Unix(soon, 0).UTC().Format(time.RFC3339) + `"`},
			[]string{"a realtime session ends soon", "api=openai_realtime", "known_by=announced", "resumable=unknown"},
			`warmwire_session_warnings_total{api="openai_realtime",reason="announced",upstream="up"} 1`},
		{"OpenAI, its end", "openai", "/v1/realtime?model=m", websocket.TextMessage,
			[]string{`{"type":"error","event_id":"e","error":{"type":"invalid_request_error","code":"session_expired","message":"Your session hit the maximum duration of 60 minutes."}}`},
			[]string{`"session_ends_at"`}, []string{"a realtime session has reached its limit", "known_by=expired"},
			`warmwire_session_warnings_total{api="openai_realtime",reason="expired",upstream="up"} 1`},
		{"Gemini", "gemini", "/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent?key=k", websocket.BinaryMessage,
			[]string{`{"setupComplete":{}}`, `{"sessionResumptionUpdate":{"newHandle":"` + handle + `","resumable":true}}`, `{"goAway":{"timeLeft":"50s"}}`},
			[]string{`"session_api": "gemini_live"`, `"session_ends_at"`, `"resumable": "yes"`},
			[]string{"a realtime session ends soon", "api=gemini_live", "known_by=go_away", "left=50s", "resumable=yes"},
			`warmwire_session_warnings_total{api="gemini_live",reason="go_away",upstream="up"} 1`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
				if err != nil {
					return
				}
				defer c.Close()
				for _, message := range tt.says {
					if err := c.WriteMessage(tt.kind, []byte(message)); err != nil {
						t.Error(err)
					}
				}
				_, _, _ = c.ReadMessage() // until the app leaves
			}))
			defer srv.Close()
			r := start(t, srv.Listener.Addr().String(), "upstreams:\n  up: {url: 'http://UPSTREAM', dialect: "+tt.dialect+"}\n")
			c, _, err := websocket.DefaultDialer.Dial("ws://"+r.addr+"/up"+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetReadDeadline(time.Now().Add(patience))
			for _, want := range tt.says {
				if kind, got, err := c.ReadMessage(); err != nil || kind != tt.kind || string(got) != want {
					t.Fatalf("%d %q %v, want %q", kind, got, err, want)
				}
			}
			r.metric(tt.metric)
			list, log := r.get("/v1/streams"), r.log.String()
			for _, want := range tt.list {
				if !strings.Contains(list, want) {
					t.Errorf("the list has no %s: %s", want, list)
				}
			}
			for _, want := range tt.log {
				if !strings.Contains(log, want) {
					t.Errorf("the log has no %s: %s", want, log)
				}
			}
			if n := strings.Count(log, "a realtime session"); n != 1 {
				t.Errorf("%d lines in the log: %s", n, log)
			}
			if page := r.get("/metrics"); strings.Contains(list+log+page, handle) {
				t.Error("the handle has leaked")
			}
		})
	}
}
