// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwire/warmwire/internal/dialect"
)

const (
	openAIPath = "/v1/realtime"
	livePath   = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
)

// TestWarningsOfSessionsThatEnd lets servers say things to a session, minute by minute,
// and looks at what is warned of, and when.
func TestWarningsOfSessionsThatEnd(t *testing.T) {
	const last = 120 // minute
	created := func(minute int) string {
		return `{"type":"session.created","session":{"expires_at":` + fmt.Sprint(time.Date(2000, 1, 1, 0, minute, 0, 0, time.UTC).Unix()) + `}}`
	}
	const (
		expired   = `{"type":"error","error":{"code":"session_expired"}}`
		goAway    = `{"goAway":{"timeLeft":"50s"}}`
		resumable = `{"sessionResumptionUpdate":{"newHandle":"SECRET","resumable":true}}`
		notNow    = `{"sessionResumptionUpdate":{}}`
	)
	tests := []struct {
		name string
		kind dialect.Kind
		path string
		says map[int]string // by minute
		ends int            // the minute in which the WebSocket ends
		want []string
	}{
		{"the clock", dialect.OpenAI, openAIPath, nil, last, []string{"55m0s clock, left 5m0s, resumable "}},
		{"ended in time", dialect.OpenAI, openAIPath, nil, 54, nil},
		{"the Responses API", dialect.OpenAI, "/v1/responses", nil, last, []string{"55m0s clock, left 5m0s, resumable "}},
		{"the server names another end", dialect.OpenAI, openAIPath, map[int]string{1: created(30)}, last, []string{"25m0s announced, left 5m0s, resumable "}},
		{"the server's end is near", dialect.OpenAI, openAIPath, map[int]string{1: created(3)}, last, []string{"1m0s announced, left 2m0s, resumable "}},
		{"its end has passed", dialect.OpenAI, openAIPath, map[int]string{2: created(1)}, last, []string{"55m0s clock, left 5m0s, resumable "}},
		{"its end is in days", dialect.OpenAI, openAIPath, map[int]string{2: created(3000)}, last, []string{"55m0s clock, left 5m0s, resumable "}},
		{"named again behind the warning", dialect.OpenAI, openAIPath, map[int]string{57: created(70)}, last, []string{"55m0s clock, left 5m0s, resumable "}},
		{"expired", dialect.OpenAI, openAIPath, map[int]string{60: expired, 61: expired}, last, []string{"55m0s clock, left 5m0s, resumable ", "1h0m0s expired, left 0s, resumable "}},
		{"Gemini says nothing", dialect.Gemini, livePath, nil, last, nil},
		{"Gemini goes", dialect.Gemini, livePath, map[int]string{2: resumable, 9: goAway, 10: goAway}, last, []string{"9m0s go_away, left 50s, resumable yes"}},
		{"Gemini goes and forgets", dialect.Gemini, livePath, map[int]string{2: resumable, 3: notNow, 9: goAway}, last, []string{"9m0s go_away, left 50s, resumable no"}},
		{"Gemini goes without a time", dialect.Gemini, livePath, map[int]string{9: `{"goAway":{}}`}, last, []string{"9m0s go_away, left -1ns, resumable "}},
		{"Gemini goes at once", dialect.Gemini, livePath, map[int]string{9: `{"goAway":{"timeLeft":"0s"}}`}, last, []string{"9m0s go_away, left 0s, resumable "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var mu sync.Mutex // guards got
				var got []string
				s := &Server{cfg: Config{Hooks: Hooks{SessionEnds: func(w SessionWarning) {
					if w.ID != 7 || w.Upstream != "up" {
						t.Errorf("of %d to %s", w.ID, w.Upstream)
					}
					mu.Lock()
					defer mu.Unlock()
					got = append(got, fmt.Sprintf("%v %s, left %v, resumable %s", time.Since(start), w.Reason, w.Left, w.Session.Resumable))
				}}}}
				e := &exchange{s: s, rt: route{upstream: &Upstream{Name: "up", Dialect: tt.kind}, path: tt.path}, rec: &Record{ID: 7}}
				w := e.watchSession()
				show := w.show()
				for minute := range tt.ends {
					if message := tt.says[minute]; message != "" {
						show([]byte(message))
					}
					time.Sleep(time.Minute)
				}
				w.end()
				show([]byte(expired)) // too late to be of use
				show([]byte(goAway))
				time.Sleep(last * time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// TestWhatIsKnownOfASession is what the list of streams shows.
func TestWhatIsKnownOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		watch := func(kind dialect.Kind, path string) *exchange {
			e := &exchange{s: &Server{}, rt: route{upstream: &Upstream{Dialect: kind}, path: path}, rec: &Record{}}
			t.Cleanup(e.watchSession().end)
			return e
		}
		for _, e := range []*exchange{watch(dialect.None, openAIPath), watch(dialect.OpenAI, "/v1/chat/completions")} {
			if s := e.info().Session; s != nil {
				t.Errorf("%+v of what is none", s)
			}
		}
		if (&exchange{rt: route{path: openAIPath}}).watchSession().show() != nil {
			t.Error("a host that is no upstream is looked at")
		}
		if got, want := *watch(dialect.OpenAI, openAIPath).info().Session, (SessionInfo{dialect.OpenAIRealtime, now.Add(time.Hour), ""}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		live := watch(dialect.Gemini, livePath)
		if got, want := *live.info().Session, (SessionInfo{API: dialect.GeminiLive}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		show := live.live.realtime.Load().show()
		show([]byte(`{"sessionResumptionUpdate":{"newHandle":"SECRET","resumable":true}}`))
		show([]byte(`{"goAway":{"timeLeft":"30s"}}`))
		if got, want := *live.info().Session, (SessionInfo{dialect.GeminiLive, now.Add(30 * time.Second), "yes"}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}
