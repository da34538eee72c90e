// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

const livePath = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"

// dial opens a WebSocket to s.
func dial(t *testing.T, s *Server, path string, header http.Header) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.URL(), "http")+path, header)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	return conn
}

// keys reads messages up to the end and returns the first key, or the type, of each.
func keys(t *testing.T, conn *websocket.Conn) (got []string, end *websocket.CloseError) {
	t.Helper()
	for {
		var v map[string]any
		if err := conn.ReadJSON(&v); err != nil {
			if !errors.As(err, &end) {
				t.Error(err)
			}
			return got, end
		}
		if kind, ok := v["type"].(string); ok {
			got = append(got, kind)
			continue
		}
		for k := range v {
			got = append(got, k)
		}
	}
}

// TestSessionsExpire: OpenAI's say so with an error and close with 1001; Gemini's say
// goAway before. Each knows beforehand when, or whether it can go on.
func TestSessionsExpire(t *testing.T) {
	s := run(t, Config{})
	t.Run("openai", func(t *testing.T) {
		conn := dial(t, s, "/v1/realtime?model=mock", http.Header{"Mock-Session": {"1s"}})
		var created struct {
			Session struct {
				ExpiresAt int64 `json:"expires_at"`
			}
		}
		if err := conn.ReadJSON(&created); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(time.Unix(created.Session.ExpiresAt, 0)); left < -time.Second || left > 2*time.Second {
			t.Errorf("it expires in %v", left)
		}
		if err := conn.WriteJSON(obj{"type": "conversation.item.create", "item": obj{"type": "message", "role": "user"}}); err != nil {
			t.Fatal(err)
		}
		got, end := keys(t, conn)
		if text := strings.Join(got, " "); text != "conversation.item.added conversation.item.done error" {
			t.Errorf("events %s", text)
		}
		if end == nil || end.Code != 1001 || end.Text != openAIExpired {
			t.Errorf("closed with %v", end)
		}
	})
	t.Run("gemini", func(t *testing.T) {
		conn := dial(t, s, livePath+"?key=k", nil)
		for _, v := range []obj{
			{"setup": obj{"model": "models/mock?tokens=1&session=1s:900ms", "sessionResumption": obj{}}},
			{"clientContent": obj{"turnComplete": true}},
		} {
			if err := conn.WriteJSON(v); err != nil {
				t.Fatal(err)
			}
		}
		got, end := keys(t, conn)
		if text := strings.Join(got, " "); text != "setupComplete serverContent serverContent serverContent sessionResumptionUpdate goAway" {
			t.Errorf("messages %s", text)
		}
		if end == nil || end.Code != 1011 || end.Text != geminiExpired {
			t.Errorf("closed with %v", end)
		}
	})
}

// TestPongsAreLateOrNever measures when a ping is answered.
func TestPongsAreLateOrNever(t *testing.T) {
	s := run(t, Config{})
	for how, least := range map[string]time.Duration{"0s": 0, "300ms": 300 * time.Millisecond, "never": -1} {
		t.Run(how, func(t *testing.T) {
			conn := dial(t, s, "/v1/realtime?model=mock", http.Header{"Mock-Pong": {how}, "Mock-Session": {"600ms"}})
			begun := time.Now()
			took := time.Duration(-1)
			conn.SetPongHandler(func(payload string) error {
				if payload != "p" {
					t.Errorf("pong %q", payload)
				}
				took = time.Since(begun)
				return nil
			})
			if err := conn.WriteControl(websocket.PingMessage, []byte("p"), begun.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			keys(t, conn) // up to the session's end
			if took < least || least < 0 && took >= 0 {
				t.Errorf("answered after %v", took)
			}
		})
	}
}
