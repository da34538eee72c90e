// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const millisecond = time.Millisecond

// readAll feeds text in pieces of n bytes.
func readAll(t *testing.T, text string, n int) (got []string) {
	t.Helper()
	var s sseReader
	for piece := range slices.Chunk([]byte(text), n) {
		err := s.feed(piece, func(name, data []byte) error {
			got = append(got, string(name)+"|"+string(data))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func TestEventsAreReadHoweverTheyArrive(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"line ends", "data: a\n\ndata: b\r\n\r\ndata: c\r\rdata: d\n\n", []string{"|a", "|b", "|c", "|d"}},
		{"names and several lines", "event: x\ndata: a\ndata:b\ndata\n\ndata: c\n\n", []string{"x|a\nb\n", "|c"}},
		{"comments, ids and a name alone", ": hello\n\nid: 3\nretry: 5\nevent: y\n\ndata: a\n\n", []string{"|a"}},
		{"byte order mark", "\ufeffdata: a\n\n\ufeffdata: b\n\n", []string{"|a"}},
		{"one space only", "data:  a \n\n", []string{"| a "}},
		{"unfinished", "data: a\n\ndata: b\n", []string{"|a"}},
		{"empty data", "data:\n\n", []string{"|"}},
	}
	for _, tt := range tests {
		for _, n := range []int{1, 2, 3, 1000} {
			if diff := cmp.Diff(tt.want, readAll(t, tt.text, n)); diff != "" {
				t.Errorf("%s in pieces of %d (-want +got):\n%s", tt.name, n, diff)
			}
		}
	}
}

func TestEventsAreBounded(t *testing.T) {
	var s sseReader
	none := func(_, _ []byte) error { return nil }
	piece := []byte(strings.Repeat("x", 1<<20))
	var err error
	for n := 0; err == nil; n += len(piece) {
		if n > 2*maxEvent {
			t.Fatal("no bound")
		}
		err = s.feed(piece, none)
	}
	if !errors.Is(err, errEventTooLong) {
		t.Errorf("feed = %v", err)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("event: x\r\ndata: {\"a\":1}\r\n\r\n: c\n\ndata: [DONE]\n\n"), 3)
	f.Add([]byte("\ufeffdata: a\rdata: b\r\r"), 1)
	f.Add([]byte(`data: {"type":"response.output_text.delta","delta":"x"}`+"\n\n"), 7)
	f.Add([]byte(`data: {"choices":[{"delta":{"content":["x"]}}],"error":{"code":5}}`+"\n\n"), 7)
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		whole := readAll(t, string(text), max(len(text), 1))
		if diff := cmp.Diff(whole, readAll(t, string(text), 1+(n&0xff))); diff != "" {
			t.Errorf("the pieces matter (-whole +pieces):\n%s", diff)
		}
		for _, api := range []API{Chat, Responses, Anthropic, Gemini, Realtime} {
			r := Result{}
			d := reader{api: api, r: &r}
			at, err := readEvents(strings.NewReader(string(text)), func() time.Duration { return millisecond }, &d)
			d.finish(context.Background(), at, err)
			if r.Outcome == "" || (r.Chunks > 0) != (r.First == millisecond) || len(r.Gaps) != max(0, r.Chunks-1) {
				t.Errorf("%s: %+v", api, r)
			}
		}
	})
}

// message is an event and what it must mean.
type message struct {
	api  API
	data string
	want event
}

var messages = []message{
	{Chat, `{"choices":[{"delta":{"role":"assistant","content":""}}]}`, event{}},
	{Chat, `{"choices":[{"delta":{"content":"a"}}],"usage":null}`, event{token: true}},
	{Chat, `{"choices":[{"delta":{"content":null,"reasoning_content":"r"}}]}`, event{token: true}},
	{Chat, `{"choices":[{"delta":{"refusal":"n"}}]}`, event{token: true}},
	{Chat, `{"choices":[{"delta":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":""}}]}}]}`, event{}},
	{Chat, `{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}`, event{token: true}},
	{Chat, `{"choices":[{"delta":{"audio":{"data":"QQ=="}}}]}`, event{token: true}},
	{Chat, `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, event{prompt: 3, output: 4}},
	{Chat, `{"choices":"odd","error":null}`, event{}},
	{Chat, `{"error":{"message":"secret","code":"server_is_overloaded"}}`, event{failed: true, reason: "server_is_overloaded"}},
	{Chat, `{"error":{"message":"secret","code":503,"type":"server_error"}}`, event{failed: true, reason: "server_error"}},
	{Chat, `{"error":{"code":"sk-12345 secret"}}`, event{failed: true, reason: "unnamed error"}},
	{Chat, `[DONE]`, event{end: true}},
	{Responses, `{"type":"response.created","response":{"error":null,"usage":null}}`, event{}},
	{Responses, `{"type":"response.output_text.delta","delta":"a"}`, event{token: true}},
	{Responses, `{"type":"response.reasoning_summary_text.delta","delta":"a"}`, event{token: true}},
	{Responses, `{"type":"response.output_text.delta","delta":""}`, event{}},
	{Responses, `{"type":"response.output_text.done","text":"a"}`, event{}},
	{Responses, `{"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":6}}}`, event{end: true, prompt: 5, output: 6}},
	{Responses, `{"type":"response.incomplete","response":{}}`, event{end: true}},
	{Responses, `{"type":"response.failed","response":{"error":{"code":"server_error"}}}`, event{failed: true, reason: "server_error"}},
	{Responses, `{"type":"error","code":"rate_limit_exceeded","message":"m"}`, event{failed: true, reason: "rate_limit_exceeded"}},
	{Responses, `{"error":{"type":"server_error"}}`, event{failed: true, reason: "server_error"}},
	{Anthropic, `{"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}`, event{prompt: 7}},
	{Anthropic, `{"type":"ping"}`, event{}},
	{Anthropic, `{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`, event{token: true}},
	{Anthropic, `{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"t"}}`, event{token: true}},
	{Anthropic, `{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`, event{token: true}},
	{Anthropic, `{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"s"}}`, event{}},
	{Anthropic, `{"type":"message_delta","usage":{"output_tokens":8}}`, event{output: 8}},
	{Anthropic, `{"type":"message_stop"}`, event{end: true}},
	{Anthropic, `{"type":"error","error":{"type":"overloaded_error"}}`, event{failed: true, reason: "overloaded_error"}},
	{Gemini, `{"candidates":[{"content":{"parts":[{"text":"a"}]}}],"usageMetadata":{"promptTokenCount":2,"candidatesTokenCount":3,"thoughtsTokenCount":4}}`, event{token: true, prompt: 2, output: 7}},
	{Gemini, `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f"}}]},"finishReason":"STOP"}]}`, event{token: true, end: true}},
	{Gemini, `{"error":{"code":503,"status":"UNAVAILABLE"}}`, event{failed: true, reason: "UNAVAILABLE"}},
	{Realtime, `{"type":"session.created"}`, event{}},
	{Realtime, `{"type":"response.output_audio.delta","delta":"QQ=="}`, event{token: true}},
	{Realtime, `{"type":"response.done","response":{"status":"completed","usage":{"input_tokens":1,"output_tokens":2}}}`, event{end: true, prompt: 1, output: 2}},
	{Realtime, `{"type":"response.done","response":{"status":"failed"}}`, event{failed: true, reason: "response failed"}},
}

func TestMessagesMeanWhatTheirProtocolSays(t *testing.T) {
	for _, m := range messages {
		got, err := m.api.read([]byte(m.data))
		if err != nil || got != m.want {
			t.Errorf("%s %s: %+v, %v; want %+v", m.api, m.data, got, err, m.want)
		}
		if _, err := m.api.read([]byte(m.data[:len(m.data)-1])); !errors.Is(err, errNoJSON) {
			t.Errorf("%s: half of it is %v", m.data, err)
		}
	}
}

func TestQuantilesAreExact(t *testing.T) {
	var d Dist
	if d.Quantile(0.5) != 0 || d.Mean() != 0 || d.Len() != 0 {
		t.Error("an empty distribution is not zero")
	}
	for _, v := range []time.Duration{40, 10, 30, 20, -5} {
		d.Add(v * millisecond)
	}
	for q, want := range map[float64]time.Duration{0: 0, 0.25: 10, 0.5: 20, 0.75: 30, 1: 40} {
		if got := d.Quantile(q); got != want*millisecond {
			t.Errorf("quantile %v = %v, want %v ms", q, got, want)
		}
	}
	if got := d.Quantile(0.99); got != 39600*time.Microsecond { // between 30 and 40 ms at 3.96 of 4
		t.Errorf("p99 = %v", got)
	}
	if got := d.Mean(); got != 20*millisecond {
		t.Errorf("mean = %v", got)
	}
}

func TestManyValuesKeepThreeDigits(t *testing.T) {
	var d Dist
	for i := range maxExact + 1 {
		d.Add(time.Duration(i) * time.Microsecond)
	}
	if d.Exact() || d.Len() != maxExact+1 {
		t.Errorf("exact %v, %d values", d.Exact(), d.Len())
	}
	for _, q := range []float64{0.01, 0.5, 0.99, 1} {
		want := q * maxExact * float64(time.Microsecond)
		if got := float64(d.Quantile(q)); math.Abs(got/want-1) > 1e-3 {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
	d.Add(1000 * time.Hour) // beyond the range of the histogram
	if got := d.Quantile(1); got < maxValue*999/1000 {
		t.Errorf("largest = %v, want about %v", got, maxValue)
	}
}

func TestRatioIntervalHoldsTheRatio(t *testing.T) {
	var a, b Dist
	r := newRand(1, 1)
	for range 200 {
		b.Add(time.Duration((100 + 10*r.NormFloat64()) * float64(millisecond)))
		a.Add(time.Duration((50 + 5*r.NormFloat64()) * float64(millisecond)))
	}
	in, ok := ratioInterval(&a, &b, 0.5, 1)
	if !ok || in.Low > 0.5 || in.High < 0.5 || in.High-in.Low > 0.06 {
		t.Errorf("interval %v, %v; want one around 0.5", in, ok)
	}
	if again, _ := ratioInterval(&a, &b, 0.5, 1); again != in {
		t.Errorf("one seed gives %v and %v", in, again)
	}
	var few Dist
	few.Add(millisecond)
	if in, ok := ratioInterval(&few, &b, 0.5, 1); ok {
		t.Errorf("one value gives the interval %v", in)
	}
}

func TestArrivalsArePoisson(t *testing.T) {
	const n, rate = 20_000, 50.0
	var at []time.Duration
	for d := range Poisson(rate, 7) {
		if len(at) == n {
			break
		}
		at = append(at, d)
	}
	mean, squares, last := 0.0, 0.0, time.Duration(0)
	for _, d := range at {
		gap := (d - last).Seconds() * rate // of mean and deviation 1
		mean, squares, last = mean+gap/n, squares+gap*gap/n, d
	}
	// The standard error of the mean is 0.7 %, that of the variance 2 %.
	if variance := squares - mean*mean; math.Abs(mean-1) > 0.03 || math.Abs(variance-1) > 0.08 {
		t.Errorf("gaps have mean %v and variance %v, want 1 and 1", mean, variance)
	}
	i := 0
	for d := range Poisson(rate, 7) {
		if d != at[i] {
			t.Fatalf("the same seed gives %v and %v", d, at[i])
		}
		if i++; i == 100 {
			break
		}
	}
	for d := range Poisson(rate, 8) {
		if d == at[0] {
			t.Error("another seed gives the same arrivals")
		}
		break
	}
}

func TestPromptsHaveTheirLengthAndShareNothing(t *testing.T) {
	a, b := strings.Fields(Prompt(50, 1, 1)), strings.Fields(Prompt(50, 1, 2))
	if len(a) != 50 || len(b) != 50 || slices.Equal(a[:8], b[:8]) {
		t.Errorf("prompts %v and %v", a, b)
	}
	if Prompt(50, 1, 1) != strings.Join(a, " ") {
		t.Error("one seed gives two prompts")
	}
}

func TestMetricsFollowTheirFormulas(t *testing.T) {
	r := Result{Outcome: OK, Begun: true, Setup: 100 * millisecond, First: 200 * millisecond, Last: 600 * millisecond, End: 700 * millisecond, Chunks: 5, OutputTokens: 11}
	if d, ok := r.TPOT(); !ok || d != 50*millisecond { // (700 − 200)/(11 − 1)
		t.Errorf("TPOT = %v, %v", d, ok)
	}
	if d, ok := r.PerChunk(); !ok || d != 100*millisecond { // (600 − 200)/(5 − 1)
		t.Errorf("time per output chunk = %v, %v", d, ok)
	}
	for limits, want := range map[Limits]bool{
		{}:                          true,
		{TTFT: 200 * millisecond}:   true,
		{TTFT: 200*millisecond - 1}: false,
		{TPOT: 50*millisecond - 1}:  false,
		{E2E: 700*millisecond - 1}:  false,
		{200 * millisecond, 50 * millisecond, 700 * millisecond}: true,
	} {
		if got := limits.Met(&r); got != want {
			t.Errorf("%+v met: %v, want %v", limits, got, want)
		}
	}
	one := Result{Outcome: OK, First: 1, Last: 1, End: 2, Chunks: 1, OutputTokens: 1}
	if _, ok := one.TPOT(); ok || !(Limits{TPOT: 1}).Met(&one) {
		t.Error("one token has a time per output token, or misses its limit")
	}
	cut := r
	cut.Outcome = MissingEnd
	if (Limits{}).Met(&cut) || !cut.Interrupted() || cut.Streaming() != 600*millisecond {
		t.Errorf("a cut stream: met %v, interrupted %v, streaming %v", (Limits{}).Met(&cut), cut.Interrupted(), cut.Streaming())
	}
	s := NewSummary(1, Limits{}, 1)
	cut.End = cut.Setup + 30*time.Second
	s.Add(cut)
	cut.Begun = false // refused before its head: no stream
	s.Add(cut)
	if got := s.Legs[0].InterruptionsPerMinute(); got != 2 { // one in half a minute
		t.Errorf("interruptions a minute = %v", got)
	}
}

// sample is a summary of two legs, the second half as slow.
func sample() *Summary {
	s := NewSummary(2, Limits{TTFT: 150 * millisecond}, 1)
	s.Elapsed = 10 * time.Second
	for i := range 20 {
		for leg, f := range []time.Duration{2, 1} {
			at := f * time.Duration(100+i) * millisecond
			s.Add(Result{Leg: Leg(leg), Outcome: OK, Begun: true, Setup: at / 2, First: at, Last: at + 40*millisecond, End: at + 50*millisecond,
				Chunks: 3, OutputTokens: 3, Gaps: []time.Duration{f * 10 * millisecond, f * 30 * millisecond}, Phase: [phases]time.Duration{-1, -1, -1, 1, at / 2}})
		}
	}
	s.Add(Result{Leg: Through, Outcome: Status, Reason: "HTTP 429 rate_limit_exceeded", Phase: [phases]time.Duration{-1, -1, -1, -1, -1}})
	return s
}

func TestReportForMachines(t *testing.T) {
	text, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Legs   map[string]legJSON
		Ratios map[string]map[string]Ratio `json:"ratio_through_by_direct"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	through := got.Legs["through"]
	if through.Calls != 21 || through.Outcomes[Status] != 1 || through.Reasons["status: HTTP 429 rate_limit_exceeded"] != 1 {
		t.Errorf("through: %+v", through)
	}
	if through.Milliseconds["ttft"].P50 != 109.5 || *through.Goodput != 2 || *got.Legs["direct"].Goodput != 0 {
		t.Errorf("through: %+v", through)
	}
	if r := got.Ratios["ttft"]["p50"]; r.Value != 0.5 || r.Interval == nil || r.Interval.Low > 0.5 || r.Interval.High < 0.5 {
		t.Errorf("ratio %+v", r)
	}
	if _, there := through.Milliseconds["dns"]; there {
		t.Error("a phase that did not happen has a distribution")
	}
}

func TestTableForPeople(t *testing.T) {
	var b strings.Builder
	if err := WriteTable(&b, sample()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	find := func(start string) string {
		for _, l := range lines {
			if strings.HasPrefix(strings.TrimSpace(l), start) {
				return strings.Join(strings.Fields(l), " ")
			}
		}
		return ""
	}
	if got := find("TTFT"); !strings.HasPrefix(got, "TTFT 219 238 110 119 0.50 0.4") || !strings.HasSuffix(got, " 0.50") {
		t.Errorf("TTFT line %q", got)
	}
	if got := find("goodput/s"); got != "goodput/s 0 (0 %) 2.00 (95 %)" {
		t.Errorf("goodput line %q", got)
	}
	if got := find("through: 1"); got != "through: 1 × status: HTTP 429 rate_limit_exceeded" {
		t.Errorf("reason line %q", got)
	}
}

func TestPlotIsWellFormedAndComplete(t *testing.T) {
	wide := sample()
	wide.Add(Result{Leg: Direct, Outcome: OK, Begun: true, Setup: 1, First: 30 * time.Second, Last: 30 * time.Second, End: 31 * time.Second, Chunks: 1})
	for name, s := range map[string]*Summary{"linear": sample(), "logarithmic": wide} {
		var b strings.Builder
		if err := WriteSVG(&b, s); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		dec := xml.NewDecoder(strings.NewReader(text))
		for {
			if _, err := dec.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if n := strings.Count(text, "<path"); n != 4 { // two legs in two panels
			t.Errorf("%s: %d curves, want 4", name, n)
		}
		for _, want := range []string{"TTFT", "ICL", "milliseconds", "share of values", "direct (n =", "through (n =", "prefers-color-scheme:dark"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q", name, want)
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Contains(text, "logarithmic") != (name == "logarithmic") {
			t.Errorf("%s: wrong axis", name)
		}
	}
	if err := WriteSVG(io.Discard, NewSummary(2, Limits{}, 1)); err == nil {
		t.Error("nothing is plotted without an error")
	}
}

func TestPlotOfOneValueOrOfZeros(t *testing.T) {
	for _, first := range []time.Duration{1, 123 * millisecond} {
		s := NewSummary(1, Limits{}, 1)
		s.Add(Result{Outcome: OK, Begun: true, Setup: 1, First: first, Last: first, End: first, Chunks: 3, Gaps: []time.Duration{0, 0}})
		var b strings.Builder
		if err := WriteSVG(&b, s); err != nil || strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
			t.Errorf("%v: %v\n%s", first, err, b.String())
		}
	}
}

func TestReasonsAreBounded(t *testing.T) {
	s := NewSummary(1, Limits{}, 1)
	for i := range 100 {
		s.Add(Result{Outcome: Reset, Reason: strings.Repeat("x", i+1)})
	}
	l := s.Legs[0]
	if len(l.Reasons) != maxReasons+1 || l.Reasons[otherReasons] != 100-maxReasons {
		t.Errorf("%d reasons, %d others", len(l.Reasons), l.Reasons[otherReasons])
	}
}
