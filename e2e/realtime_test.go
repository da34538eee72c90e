// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// seen is what an SDK's realtime client tells of its session.
type seen struct {
	Events map[string]int `json:"events"`
	Pieces int            `json:"pieces"`
	Errors []string       `json:"errors"`
	Close  *struct {
		Code   int    `json:"code"`
		Reason string `json:"reason"`
	} `json:"close"`
	TimeLeft  string `json:"time_left"`
	Handle    string `json:"handle"`
	ExpiresAt int64  `json:"expires_at"`
}

func (s *seen) closed() string {
	if s.Close == nil {
		return "not closed"
	}
	return strings.TrimSpace(fmt.Sprint(s.Close.Code, " ", s.Close.Reason))
}

// A stage is an upstream and a Warmwire in front of it.
type stage struct {
	*upstream
	sidecar
	caFile string
	node   string // for session
}

// newStage sets one up.
func newStage(t *testing.T, more settings) *stage {
	s := &stage{upstream: newUpstream(t), caFile: filepath.Join(t.TempDir(), "ca.pem")}
	if err := os.WriteFile(s.caFile, s.caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	s.sidecar = startWarmwire(t, s.upstream, s.caFile, more)
	return s
}

// sdks are the clients, by the API that each speaks.
var sdks = map[string]string{"openai": "openai", "gemini": "genai"}

// session runs one session of an SDK and returns what it saw. It may be called by
// several at once: most of a session is waiting.
func (s *stage) session(t *testing.T, name, mode, api, model string, more ...string) (got seen, err error) {
	trip := trip{mode: mode, caFile: s.caFile, key: strings.ReplaceAll(name, " ", "-")}
	trip.origin, trip.proxy = route(mode, api, s.upstream, s.origin)
	close(s.begin(trip.key).first) // nothing is held back here
	cmd := child(t, trip, s.node, "clients/node/realtime.mjs", sdks[api])
	cmd.Env = append(append(cmd.Env, more...), "E2E_MODEL="+model)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return got, fmt.Errorf("%w\n%s%s", err, out, stderr.String())
	}
	if err := json.Unmarshal(out, &got); err != nil {
		return got, fmt.Errorf("%w in %q", err, out)
	}
	return got, nil
}

// page reads one page of the admin listener.
func (s sidecar) page(t *testing.T, path string) string {
	t.Helper()
	resp, err := http.Get(s.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRealtimeSessionsEnd takes sessions of OpenAI's and Google's clients to the limit
// of the API: what the client sees is what it sees without Warmwire, and where Warmwire
// can look it says what comes.
func TestRealtimeSessionsEnd(t *testing.T) {
	t.Parallel()
	tests := []struct {
		api, mode, model, more string
		events                 map[string]int
		errors, closed, left   string
		handle                 bool
	}{
		{api: "openai", mode: direct}, {api: "openai", mode: base}, {api: "openai", mode: tunnel},
		{api: "gemini", mode: direct, more: "E2E_API_VERSION=v1beta"}, {api: "gemini", mode: base, more: "E2E_API_VERSION=v1alpha"},
	}
	for i := range tests {
		switch tt := &tests[i]; tt.api {
		case "openai":
			tt.model, tt.errors = "mock?tokens=5&gap=20ms&session=3s", "[session_expired]"
			tt.closed = "1001 Your session hit the maximum duration of 60 minutes."
			tt.events = map[string]int{"session.created": 1, "conversation.item.added": 1, "conversation.item.done": 1, "response.created": 1,
				"response.output_text.delta": 5, "response.done": 1, "error": 1}
		case "gemini":
			tt.model, tt.errors = "mock;tokens=5,gap=20ms,session=3s:2500ms", "[]"
			tt.closed, tt.left, tt.handle = "1011 Deadline expired before operation could complete.", "2.5s", true
			tt.events = map[string]int{"setupComplete": 1, "serverContent": 7, "goAway": 1, "sessionResumptionUpdate": 1}
		}
	}
	s := newStage(t, settings{})
	s.node = testenv.NeedNodeModules(t, "clients/node")
	handles := make([]string, len(tests))
	var running sync.WaitGroup
	for i, tt := range tests {
		running.Go(func() {
			name := tt.api + " " + tt.mode
			got, err := s.session(t, name, tt.mode, tt.api, tt.model, tt.more)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			for event, want := range tt.events {
				if got.Events[event] != want {
					t.Errorf("%s: %d times %s, want %d: %v", name, got.Events[event], event, want, got.Events)
				}
			}
			if got.Pieces != 5 || fmt.Sprint(got.Errors) != tt.errors || got.closed() != tt.closed || got.TimeLeft != tt.left || (got.Handle != "") != tt.handle {
				t.Errorf("%s: %d pieces, errors %q, closed with %s, goAway %q, handle %q", name, got.Pieces, got.Errors, got.closed(), got.TimeLeft, got.Handle)
			}
			handles[i] = got.Handle
		})
	}
	running.Wait()
	metrics, log := s.page(t, "/metrics"), s.log.String()
	for _, want := range []string{ // what passed through the tunnel is not known
		`warmwire_session_warnings_total{api="openai_realtime",reason="announced",upstream="openai"} 1`,
		`warmwire_session_warnings_total{api="openai_realtime",reason="expired",upstream="openai"} 1`,
		`warmwire_session_warnings_total{api="gemini_live",reason="go_away",upstream="gemini"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s in\n%s", want, lines(metrics, "session_warnings"))
		}
	}
	if n := strings.Count(log, "a realtime session"); n != 3 {
		t.Errorf("%d warnings in the log\n%s", n, log)
	}
	for _, h := range handles {
		if h != "" && strings.Contains(log+metrics, h) {
			t.Error("the handle of a session has leaked")
		}
	}
}

// lines returns those that contain part.
func lines(text, part string) (found string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			found += line
		}
	}
	return found
}

// TestRealtimeSessionsOutliveBadPongs has servers that answer no ping of Warmwire's, or
// answer them 8 s late: the session goes on, through silence too.
// E2E_SCALE makes the times shorter or longer; 1 is as named here.
func TestRealtimeSessionsOutliveBadPongs(t *testing.T) {
	t.Parallel()
	scale, err := strconv.ParseFloat(os.Getenv("E2E_SCALE"), 64)
	if err != nil {
		scale = 1
	}
	of := func(d time.Duration) string { return time.Duration(float64(d) * scale).String() }
	silence := "E2E_SILENCE=" + strconv.FormatFloat(15_000*scale, 'f', 0, 64)
	data, late, never := "mock;tokens=30,gap="+of(500*time.Millisecond)+",pong=never", "mock;tokens=5,pong="+of(8*time.Second), "mock;tokens=5,pong=never"
	tests := []struct {
		api, name, model, silence string
		pieces                    int
		closed                    string
	}{
		{"openai", "never, data", data, "", 30, "4001 had enough"},
		{"openai", "late, silence", late, silence, 5, "4001 had enough"},
		{"gemini", "never, data", data, "", 30, "1005"},
		{"gemini", "late, silence", late, silence, 5, "1005"},
		{"gemini", "never, silence", never, silence, 5, "1005"},
	}
	s := newStage(t, settings{upstream: "heartbeat: {min_interval: 1s, max_interval: 1s}"})
	s.node = testenv.NeedNodeModules(t, "clients/node")
	var running sync.WaitGroup
	for _, tt := range tests {
		running.Go(func() {
			name, begun := tt.api+" "+tt.name, time.Now()
			got, err := s.session(t, name, base, tt.api, tt.model, tt.silence, "E2E_LEAVE=1")
			if err != nil || got.Pieces != tt.pieces || len(got.Errors) > 0 || got.closed() != tt.closed {
				t.Errorf("%s: after %v: %v, %d pieces of %d, errors %q, closed with %q, want %q", name, time.Since(begun), err, got.Pieces, tt.pieces, got.Errors, got.closed(), tt.closed)
			}
		})
	}
	running.Wait()
	metrics := s.page(t, "/metrics")
	if !strings.Contains(metrics, `verdict="thinking"`) {
		t.Errorf("nothing was asked of the servers:\n%s", lines(metrics, "heartbeat_"))
	}
	if strings.Contains(metrics, `verdict="dead_flow"`) {
		t.Errorf("a living server was given up:\n%s", lines(metrics, "heartbeat_verdicts"))
	}
}
