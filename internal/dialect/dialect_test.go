// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

var t0 = time.Unix(1000, 0)

func watch(k Kind, path, coding string) *Watcher {
	return NewWatcher(k, "POST", path, 200, http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "Content-Encoding": {coding}})
}

type sample struct {
	name   string
	kind   Kind
	path   string
	events []string
	token  int // index of the first token-bearing event, -1 for none
	chunks int
	term   bool
	err    string
	in, ou int64
	seq    int64
}

func samples() []sample {
	s := []sample{
		{"chat", OpenAI, "/v1/chat/completions", []string{`data: {"choices":[{"delta":{"role":"assistant","content":""}}]}`, `data: {"choices":[{"delta":{"content":"say [DONE] \"type\":\"response.completed\""}}]}`, `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, `data: [DONE]`}, 1, 1, true, "", 3, 4, -1},
		{"chat cut", OpenAI, "/v1/chat/completions", []string{`data: {"choices":[{"delta":{"\u0063ontent":"a\\"}}]}`}, 0, 1, false, "", -1, -1, -1},
		{"chat error", OpenAI, "/v1/chat/completions", []string{`data: {"error":{"type":"x","code":"server_is_overloaded"}}`}, -1, 0, true, "server_is_overloaded", -1, -1, -1},
		{"chat tools", OpenAI, "/v1/chat/completions", []string{`data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}`, `data: {"error":null,"choices":[{"delta":{"reasoning_content":"r"}}]}`, `data: {"choices":[{"delta":{"refusal":"n"}}]}`, `data: {"choices":[{"delta":{"audio":{"data":"QQ"}}}]}`}, 0, 4, false, "", -1, -1, -1},
		{"completions", OpenAI, "/v1/completions", []string{`data: {"choices":[{"text":"x"}]}`, `data: [DONE]`}, 0, 1, true, "", -1, -1, -1},
		{"responses failed", OpenAI, "/v1/responses", []string{"event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":9,\"response\":{\"error\":{\"code\":\"server_error\"}}}"}, -1, 0, true, "server_error", -1, -1, 9},
		{"responses incomplete", OpenAI, "/v1/responses", []string{`data: {"type":"response.incomplete","sequence_number":2}`}, -1, 0, true, "", -1, -1, 2},
		{"responses error", OpenAI, "/v1/responses", []string{`data: {"type":"error","code":"odd","sequence_number":1}`}, -1, 0, true, "other", -1, -1, 1},
		{"responses", OpenAI, "/v1/responses", []string{`data: {"type":"response.created","sequence_number":0,"response":{"error":null,"usage":null}}`, `data: {"type":"response.output_text.delta","delta":"a","sequence_number":1}`, `data: {"type":"response.completed","sequence_number":2,"response":{"usage":{"input_tokens":5,"output_tokens":6}}}`}, 1, 1, true, "", 5, 6, 2},
		{"anthropic", Anthropic, "/v1/messages", []string{`data: {"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}`, `data: {"type":"ping"}`, `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"é"}}`, `data: {"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"t"}}`, `data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`, `data: {"type":"content_block_delta","delta":{"type":"signature_delta","signature":"s"}}`, `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":8}}`, "event: message_stop\ndata: {\"type\":\"message_stop\"}"}, 2, 3, true, "", 7, 8, -1},
		{"anthropic error", Anthropic, "/v1/messages", []string{"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}"}, -1, 0, true, "overloaded_error", -1, -1, -1},
		{"gemini", Gemini, "/v1beta/models/g:streamGenerateContent", []string{`data: {"candidates":[{"content":{"parts":[{"text":"a"}]}}]}`, `data: {"candidates":[{"content":{"parts":[{"functionCall":{"name":"f"}}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":2,"thoughtsTokenCount":3}}`}, 0, 2, true, "", 1, 5, -1},
	}
	for _, d := range []string{"refusal", "reasoning_text", "reasoning_summary_text", "function_call_arguments", "custom_tool_call_input", "audio", "audio.transcript", "code_interpreter_call_code", "mcp_call_arguments"} {
		s = append(s, sample{d, OpenAI, "/v1/responses", []string{`data: {"type":"response.` + d + `.delta","delta":"a"}`}, 0, 1, false, "", -1, -1, -1})
	}
	return s
}

func (s sample) check(t *testing.T, r Report, first bool) {
	t.Helper()
	want := Report{Stream: true, ExpectsTerminal: s.kind != Gemini, TerminalSeen: s.term, ErrorEvent: s.err != "", ErrorType: s.err, Chunks: s.chunks, Events: len(s.events), InputTokens: s.in, OutputTokens: s.ou, LastSequence: s.seq}
	if first && s.token >= 0 && !r.FirstToken.Equal(t0.Add(time.Duration(s.token)*time.Second)) {
		t.Errorf("first token at %v, want event %d", r.FirstToken, s.token)
	}
	r.FirstToken, r.LastToken, r.Gaps = time.Time{}, time.Time{}, Gaps{}
	if d := cmp.Diff(want, r); d != "" {
		t.Error(d)
	}
}

func TestStreams(t *testing.T) {
	for _, s := range samples() {
		for _, eol := range []string{"\n", "\r\n", "\r"} {
			t.Run(s.name, func(t *testing.T) {
				w := watch(s.kind, s.path, "")
				for i, e := range s.events {
					for _, b := range []byte(strings.ReplaceAll(": c\n\n"+e+"\n\n", "\n", eol)) {
						w.Observe([]byte{b}, t0.Add(time.Duration(i)*time.Second))
					}
					if !w.AtBoundary() {
						t.Error("not at a boundary after a whole event")
					}
				}
				w.End(t0)
				s.check(t, w.Report(), true)
			})
		}
	}
}

type flusher interface {
	io.WriteCloser
	Flush() error
}

func TestCompressedFlushedPerEvent(t *testing.T) {
	for _, coding := range []string{"gzip", "deflate", "raw", "zstd", "br"} {
		for _, s := range samples() {
			var out bytes.Buffer
			var c flusher
			header := coding
			switch coding {
			case "gzip":
				c = gzip.NewWriter(&out)
			case "deflate":
				c = zlib.NewWriter(&out)
			case "raw":
				c, _ = flate.NewWriter(&out, 5)
				header = "deflate"
			case "zstd":
				c, _ = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
			case "br":
				c = brotli.NewWriter(&out)
			}
			w := watch(s.kind, s.path, header)
			for i, e := range s.events {
				if _, err := io.WriteString(c, e+"\n\n"); err != nil {
					t.Fatal(err)
				}
				if err := c.Flush(); err != nil {
					t.Fatal(err)
				}
				w.Observe(out.Bytes(), t0.Add(time.Duration(i)*time.Second))
				out.Reset()
				if got := w.Report().Events; got != i+1 {
					t.Fatalf("%s: %d events seen after %d", coding, got, i+1)
				}
			}
			w.End(t0)
			s.check(t, w.Report(), true)
		}
	}
}

func TestSplitsDoNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.SampledFrom(samples()).Draw(rt, "sample")
		rest := []byte("\ufeff" + strings.Join(s.events, "\r\n\r\n") + "\r\n\r\n")
		w := watch(s.kind, s.path, "")
		for len(rest) > 0 {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "n")
			w.Observe(rest[:n], t0)
			rest = rest[n:]
		}
		w.End(t0)
		s.check(t, w.Report(), false)
	})
}

func TestCorruptAndBomb(t *testing.T) {
	w := watch(OpenAI, "/v1/responses", "gzip")
	w.Observe([]byte("this is not gzip at all"), t0)
	w.End(t0)
	if !w.Report().Silent {
		t.Error("corrupt input must make it silent")
	}
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	_, _ = g.Write(make([]byte, 32<<20))
	_ = g.Close()
	w = watch(OpenAI, "/v1/responses", "gzip")
	w.Observe(b.Bytes(), t0)
	w.End(t0)
	if r := w.Report(); r.Reason != "decoded too much" {
		t.Errorf("bomb: %+v", r)
	}
}

func TestHugeEventStaysBounded(t *testing.T) {
	w := watch(OpenAI, "/v1/responses", "")
	w.Observe([]byte(`data: {"type":"response.completed","x":"`), t0)
	for range 64 {
		w.Observe(bytes.Repeat([]byte("a"), keep), t0)
	}
	w.Observe([]byte("\"}\n\n"), t0)
	if !w.Terminal() || cap(w.sse.line) > 2*keep {
		t.Errorf("terminal %v, %d bytes held", w.Terminal(), cap(w.sse.line))
	}
}

func TestPlainUsage(t *testing.T) {
	for _, pad := range []int{0, 3 * keep} {
		w := NewWatcher(OpenAI, "POST", "/v1/responses", 200, http.Header{"Content-Type": {"application/json"}})
		w.Observe([]byte(`{"x":"`+strings.Repeat("a", pad)+`","usage":{"input_tokens":2,"output_tokens":3}}`), t0)
		w.End(t0)
		if r := w.Report(); r.InputTokens != 2 || r.OutputTokens != 3 || !r.FirstToken.IsZero() {
			t.Errorf("%+v", r)
		}
	}
}

func TestErrorsAreSeenByTheWatcher(t *testing.T) {
	for k, path := range map[Kind]string{OpenAI: "/v1/responses", Anthropic: "/v1/messages", Gemini: "/m:streamGenerateContent"} {
		w := watch(k, path, "")
		w.Observe(ErrorEvent(k, path, "c", "a\n\"b"), t0)
		if !w.Report().ErrorEvent || !w.AtBoundary() {
			t.Errorf("%s: %+v", k, w.Report())
		}
		if !json.Valid(ErrorBody(k, 502, "c", "a\n\"b")) {
			t.Errorf("%s: not JSON", k)
		}
	}
	w := watch(None, "/", "")
	w.Observe([]byte("x"), t0)
	w.End(t0)
	if w != nil || w.Terminal() || w.AtBoundary() {
		t.Error("none is watched")
	}
}

func FuzzWatcher(f *testing.F) {
	for _, s := range samples() {
		f.Add([]byte(strings.Join(s.events, "\n\n")), uint8(0))
	}
	f.Add([]byte("\xef\xbb\xbfdata\r\r\n\x00\xff"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, c uint8) {
		w := watch([]Kind{OpenAI, Anthropic, Gemini}[int(c)%3], "/v1/responses", []string{"", "gzip", "deflate", "br", "zstd"}[int(c)%5])
		for i := range b {
			w.Observe(b[i:i+1], t0)
		}
		if int(c)%5 == 0 && len(b) > 0 {
			n := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(string(b), "\ufeff"))
			if want := n == "\n" || strings.HasSuffix(n, "\n\n"); n != "" && w.AtBoundary() != want {
				t.Errorf("boundary %v, want %v", w.AtBoundary(), want)
			}
		}
		w.End(t0)
		if cap(w.sse.line)+cap(w.sse.data) > 4*keep {
			t.Error("memory")
		}
	})
}

func BenchmarkToken(b *testing.B) {
	w := watch(OpenAI, "/v1/chat/completions", "")
	p := []byte(`data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"m","choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	b.ReportAllocs()
	for b.Loop() {
		w.Observe(p, t0)
	}
}
