// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestABackgroundAnswerIsContinued cuts a stream of the Responses API after each of its
// events in turn, again and again: the app gets them all, once each, and does not notice.
// A stream of the same form that the server does not keep ends as a cut.
func TestABackgroundAnswerIsContinued(t *testing.T) {
	const events = 12
	event := func(n int, kept bool) string {
		switch n {
		case 0:
			return fmt.Sprintf("event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\",\"background\":%v,\"store\":%v}}\n\n", kept, kept)
		case events - 1:
			return fmt.Sprintf("event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":%d,\"response\":{\"id\":\"resp_1\"}}\n\n", n)
		}
		return fmt.Sprintf("event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":%d,\"delta\":\"t%d\"}\n\n", n, n)
	}
	whole := ""
	for n := range events {
		whole += event(n, true)
	}
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("kept %v", kept), func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				first := 0
				if r.Method == http.MethodGet {
					after, err := strconv.Atoi(r.URL.Query().Get("starting_after"))
					if err != nil || r.URL.Path != "/v1/responses/resp_1" || r.Header.Get("Authorization") != "Bearer k" {
						t.Errorf("%s %s", r.Method, r.URL)
					}
					first = after + 1
				}
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, event(first, kept))
				if first < events-1 {
					_, _ = io.WriteString(w, event(first+1, kept)[:20]) // and half of the next
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
			}))
			defer srv.Close()
			r := start(t, srv.Listener.Addr().String(), "upstreams:\n  up: {url: 'http://UPSTREAM', resume: true, retry: {base_delay: 1ms, max_delay: 5ms}}\n")
			req, err := http.NewRequest(http.MethodPost, "http://"+r.addr+"/up/v1/responses", strings.NewReader(`{"background":true,"store":true,"stream":true}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer k")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if !kept {
				if err == nil {
					t.Errorf("a clean end of %q", got)
				}
				return
			}
			if err != nil || string(got) != whole {
				t.Errorf("%v, %q", err, got)
			}
			r.metric(fmt.Sprintf(`warmwire_stream_resumes_total{result="resumed",upstream="up"} %d`, events-1))
		})
	}
}
