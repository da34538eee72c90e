// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

func TestOperation(t *testing.T) {
	for _, tt := range []struct {
		kind         Kind
		method, path string
		want         string
	}{
		{OpenAI, "POST", "/v1/chat/completions", "chat"},
		{OpenAI, "POST", "/v1/responses?x=/embeddings", "chat"},
		{OpenAI, "POST", "/v1/responses/resp_1/cancel", ""},
		{OpenAI, "GET", "/v1/responses", ""},
		{OpenAI, "POST", "/v1/completions/", "text_completion"},
		{OpenAI, "POST", "/openai/deployments/d/embeddings?api-version=1", "embeddings"},
		{OpenAI, "POST", "/v1/files", ""},
		{Anthropic, "POST", "/v1/messages", "chat"},
		{Anthropic, "POST", "/v1/messages/count_tokens", ""},
		{Gemini, "POST", "/v1beta/models/g:streamGenerateContent?alt=sse", "generate_content"},
		{Gemini, "POST", "/v1beta/models/g:batchEmbedContents", "embeddings"},
		{None, "POST", "/v1/chat/completions", ""},
	} {
		if got := Operation(tt.kind, tt.method, tt.path); got != tt.want {
			t.Errorf("%s %s %s: %q, want %q", tt.kind, tt.method, tt.path, got, tt.want)
		}
	}
}

func TestGapsHaveTheBoundsOfTheConventions(t *testing.T) {
	want := []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	if got := GapBounds(); !slices.Equal(got, want) {
		t.Errorf("bounds %v, want %v", got, want)
	}
	for i, le := range want {
		bound := time.Duration(le * float64(time.Second)).Round(time.Millisecond)
		var at, above Gaps
		at.add(bound)
		above.add(bound + 1)
		if at[i] != 1 || above[i+1] != 1 {
			t.Errorf("%v: a gap of it is in %v, one longer in %v", bound, at, above)
		}
	}
	var odd Gaps
	odd.add(0)
	odd.add(-time.Second)
	odd.add(1000 * time.Hour)
	if odd[0] != 2 || odd[gapBounds] != 1 {
		t.Errorf("odd gaps are in %v", odd)
	}
}

func TestGapsOfAStream(t *testing.T) {
	w := NewWatcher(OpenAI, "POST", "/v1/chat/completions", 200, http.Header{"Content-Type": {"text/event-stream"}})
	now := time.Unix(0, 0)
	chunk := []byte(`data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n")
	for _, wait := range []time.Duration{time.Second, 5 * time.Millisecond, 15 * time.Millisecond, 2 * time.Second} {
		now = now.Add(wait)
		w.Observe(chunk, now)
	}
	w.End(now)
	want := Gaps{0: 1, 1: 1, 8: 1}
	if got := w.Report().Gaps; got != want {
		t.Errorf("gaps %v, want %v: the first chunk ends none", got, want)
	}
}
