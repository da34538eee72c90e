// SPDX-License-Identifier: Apache-2.0

package resume_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/warmwire/warmwire/transport/resume"
)

// quick waits not at all.
func quick(r *results) resume.Config {
	return resume.Config{Rand: func() float64 { return 0 }, OnResume: r.note}
}

// Cut at every byte, by an error and by a clean end, the stream reaches the app whole;
// only inside of the first event nothing is known of it yet, and the break shows.
func TestCutAtEveryByte(t *testing.T) {
	for _, eol := range []string{"\n", "\r\n", "\r"} {
		events := record(eol, true, true)
		all := strings.Join(events, "")
		for _, end := range []error{errCut, io.EOF} {
			for at := range len(all) {
				for _, chunk := range []int{0, 97} {
					u := &upstream{events: events, cuts: []int{at}, end: end, chunk: chunk}
					resp, err := newTransport(t, u, quick(&results{})).RoundTrip(post(t))
					if err != nil {
						t.Fatal(err)
					}
					got, err := readAll(resp.Body, 512)
					_ = resp.Body.Close()
					known := at >= len(events[0])
					if eol == "\r\n" && at == len(events[0])-1 {
						known = true // the LF of the last empty line says nothing new
					}
					switch {
					case known && (err != nil || oneEnd(got) != oneEnd([]byte(all))):
						t.Fatalf("%q cut at %d of %d by %v: got %v and %q", eol, at, len(all), end, err, got)
					case !known && (string(got) != all[:at] || err != errCut && end == errCut || len(u.after) > 0):
						t.Fatalf("%q cut in the first event, at %d by %v: got %v and %q", eol, at, end, err, got)
					}
					if u.open != 0 {
						t.Fatalf("%d bodies were left open", u.open)
					}
				}
			}
		}
	}
}

// However often and wherever it is cut, and however it is read, each number passes
// once and in order.
func TestManyCuts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		events := record(rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(rt, "line end"), true, true)
		if rapid.Bool().Draw(rt, "comments") {
			for i := range events {
				events[i] = ": PROCESSING\n\n" + events[i]
			}
		}
		all := strings.Join(events, "")
		u := &upstream{events: events, end: rapid.SampledFrom([]error{errCut, io.EOF}).Draw(rt, "end"), chunk: rapid.IntRange(0, 300).Draw(rt, "bytes a read")}
		u.cuts = append([]int{rapid.IntRange(len(events[0]), len(all)).Draw(rt, "first cut")},
			rapid.SliceOfN(rapid.IntRange(0, len(all)), 0, 12).Draw(rt, "cuts")...)
		if rapid.Bool().Draw(rt, "server repeats") {
			u.again = func(after int) (int, bool) { return max(0, after-1), true }
		}
		cfg := quick(&results{})
		cfg.MaxAttempts = 20
		resp, err := newTransport(t, u, cfg).RoundTrip(post(t))
		if err != nil {
			rt.Fatal(err)
		}
		got, err := readAll(resp.Body, rapid.IntRange(1, 5000).Draw(rt, "app's buffer"))
		if err != nil {
			rt.Fatal(err)
		}
		want := strings.ReplaceAll(oneEnd([]byte(all)), ": PROCESSING\n\n", "")
		if s := strings.ReplaceAll(oneEnd(got), ": PROCESSING\n\n", ""); s != want {
			rt.Fatalf("got %q\nwant %q", s, want)
		}
	})
}

// What is not meant passes as it came, break and all, and nobody is asked for more.
func TestOtherStreamsPassUntouched(t *testing.T) {
	events := record("\n", true, true)
	bad := func(id string) []string {
		e := slices.Clone(events)
		e[0] = strings.ReplaceAll(e[0], "resp_68a1", id)
		return e
	}
	tests := []struct {
		name    string
		events  []string
		change  func(*http.Request, *http.Response)
		wrapped bool // a look at its first event is needed
	}{
		{"not in the background", record("\n", false, true), nil, true},
		{"not stored", record("\n", true, false), nil, true},
		{"chat", []string{"data: {\"object\":\"chat.completion.chunk\"}\n\n", "data: [DONE]\n\n"}, nil, true},
		{"no JSON", []string{"data: {\n\n", "data: x\n\n"}, nil, true},
		{"no number", []string{strings.Replace(events[0], `"sequence_number":0,`, "", 1), events[1]}, nil, true},
		{"id with a path", bad("../files/1"), nil, true},
		{"id with a query", bad("a?x=1"), nil, true},
		{"id of dots", bad(".."), nil, true},
		{"id with an escape", bad("%2e%2e"), nil, true},
		{"id with a line end", bad(`a\r\nb`), nil, true},
		{"no id", bad(""), nil, true},
		{"endless id", bad(strings.Repeat("a", 257)), nil, true},
		{"coded", events, func(_ *http.Request, r *http.Response) { r.Header.Set("Content-Encoding", "gzip") }, false},
		{"known length", events, func(_ *http.Request, r *http.Response) { r.ContentLength = 1000 }, false},
		{"another type", events, func(_ *http.Request, r *http.Response) { r.Header.Set("Content-Type", "application/json") }, false},
		{"another status", events, func(_ *http.Request, r *http.Response) { r.StatusCode = 201 }, false},
		{"another path", events, func(q *http.Request, _ *http.Response) { q.RequestURI = "/v1/chat/completions?x=/responses" }, false},
		{"no POST", events, func(q *http.Request, _ *http.Response) { q.Method = http.MethodPut }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := strings.Join(tt.events, "")
			at := len(tt.events[0]) + 5
			u := &upstream{events: tt.events, cuts: []int{at}, end: errCut}
			var inner io.ReadCloser
			req := post(t)
			if tt.change != nil {
				tt.change(req, status(200))
			}
			r := &results{}
			resp, err := newTransport(t, way(func(out *http.Request) (*http.Response, error) {
				resp, err := u.RoundTrip(out)
				if err == nil {
					inner = resp.Body
					if tt.change != nil {
						tt.change(req, resp)
					}
				}
				return resp, err
			}), quick(r)).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if (resp.Body != inner) != tt.wrapped {
				t.Errorf("the body was wrapped: %v, want %v", resp.Body != inner, tt.wrapped)
			}
			got, err := readAll(resp.Body, 100)
			if string(got) != all[:at] || err != errCut || len(u.after) > 0 || len(r.all) > 0 {
				t.Errorf("got %v and %q, asked for more %d times, told %v; want the break as it came", err, got, len(u.after), r.all)
			}
		})
	}
}

type way func(*http.Request) (*http.Response, error)

func (w way) RoundTrip(req *http.Request) (*http.Response, error) { return w(req) }

// After a terminal event a clean end is one, and nothing more is asked for. A break
// there is mended too, if the server ends it well: nothing is missing.
func TestATerminalEventIsTheEnd(t *testing.T) {
	for _, kind := range []string{"response.completed", "response.failed", "response.incomplete", "response.cancelled", "error"} {
		for _, end := range []error{io.EOF, errCut} {
			events := record("\n", true, true)
			last := len(events) - 1
			events[last] = strings.ReplaceAll(events[last], "response.completed", kind)
			events = append(events, ": goodbye\n\n", "half!")
			all := strings.Join(events, "")
			empty := func(*http.Request) *http.Response {
				return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: http.NoBody}
			}
			u := &upstream{events: events, cuts: []int{len(all) - 1}, end: end, get: empty}
			resp, err := newTransport(t, u, quick(&results{})).RoundTrip(post(t))
			if err != nil {
				t.Fatal(err)
			}
			got, err := readAll(resp.Body, 4096)
			want, wantErr, asked := all[:len(all)-1], error(nil), 0
			if end == errCut && kind == "error" { // it may be the end or not
				wantErr = errCut
			} else if end == errCut {
				want, asked = all[:len(all)-len("half!")], 1
			}
			if string(got) != want || err != wantErr || len(u.after) != asked {
				t.Errorf("%s, then %v: got %v and %q, asked for more %d times", kind, end, err, got, len(u.after))
			}
		}
	}
}

// Where a stream cannot be continued the break is passed on as it came, with the half
// event before it.
func TestTheBreakIsPassedOn(t *testing.T) {
	events := record("\n", true, true)
	all := strings.Join(events, "")
	at := len(events[0]) + len(events[1]) + 10
	always := func(resp func() *http.Response) func(*http.Request) *http.Response {
		return func(*http.Request) *http.Response { return resp() }
	}
	tests := []struct {
		name  string
		get   func(*http.Request) *http.Response
		again func(int) (int, bool)
		asked int
		want  []resume.Result
		half  bool // the half event is still there
	}{
		{"unknown response", always(func() *http.Response { return status(404) }), nil, 1, []resume.Result{resume.Refused}, true},
		{"not streamable", always(func() *http.Response { return status(400) }), nil, 1, []resume.Result{resume.Refused}, true},
		{"no stream", always(func() *http.Response { return status(200, "Content-Type", "application/json") }), nil, 1, []resume.Result{resume.Refused}, true},
		{"coded stream", always(func() *http.Response {
			return status(200, "Content-Type", "text/event-stream", "Content-Encoding", "br")
		}), nil, 1, []resume.Result{resume.Refused}, true},
		{"must not be tried again", always(func() *http.Response { return status(503, "X-Should-Retry", "false") }), nil, 1, []resume.Result{resume.Refused}, true},
		{"too long a wait", always(func() *http.Response { return status(503, "Retry-After", "60") }), nil, 1, []resume.Result{resume.Refused}, true},
		{"busy for ever", always(func() *http.Response { return status(503) }), nil, 5, []resume.Result{resume.Failed}, true},
		{"no connection", nil, func(int) (int, bool) { return 0, false }, 5, []resume.Result{resume.Failed}, true},
		{"events are missing", nil, func(after int) (int, bool) { return after + 2, true }, 5,
			[]resume.Result{resume.Resumed, resume.Resumed, resume.Resumed, resume.Resumed, resume.Resumed, resume.Failed}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, end := range []error{errCut, io.EOF} {
				u := &upstream{events: events, cuts: []int{at}, end: end, get: tt.get, again: tt.again}
				r := &results{}
				resp, err := newTransport(t, u, quick(r)).RoundTrip(post(t))
				if err != nil {
					t.Fatal(err)
				}
				got, err := readAll(resp.Body, 4096)
				want := all[:at]
				if !tt.half {
					want = all[:at-10]
				}
				if string(got) != want || err != errCut && end == errCut || err != nil && end == io.EOF {
					t.Errorf("ended by %v: got %v and %q, want %q", end, err, got, want)
				}
				if len(u.after) != tt.asked || !slices.Equal(r.all, tt.want) {
					t.Errorf("asked %d times and told %v, want %d and %v", len(u.after), r.all, tt.asked, tt.want)
				}
				_ = resp.Body.Close()
				if u.open != 0 {
					t.Errorf("%d bodies were left open", u.open)
				}
			}
		})
	}
}

// Each new event makes the attempts count anew.
func TestProgressMakesAttemptsAnew(t *testing.T) {
	events := record("\n", true, true)
	u := &upstream{events: events, end: errCut, cuts: []int{len(events[0])}}
	fails := 0
	u.again = func(after int) (int, bool) {
		if fails++; fails%5 != 0 { // four failures before each event
			return 0, false
		}
		u.cuts = []int{len(events[after+1])}
		return after + 1, true
	}
	resp, err := newTransport(t, u, quick(&results{})).RoundTrip(post(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(resp.Body, 4096); err != nil || string(got) != strings.Join(events, "") {
		t.Errorf("got %v and %q", err, got)
	}
}

// The continuation asks the same place with the same rights, and for nothing else.
func TestTheContinuation(t *testing.T) {
	events := record("\n", true, true)
	for _, raw := range []bool{true, false} {
		u := &upstream{events: events, cuts: []int{len(events[0])}, end: errCut}
		req := post(t)
		if raw {
			req.RequestURI = "/openai/v1/respons%65s/responses?api-version=2026-01&stream=false&starting_after=9&x=%2f"
			req.URL.Path = ""
		} else {
			req.URL.Path, req.URL.RawPath = "/openai/v1/a/b/responses", "/openai/v1/a%2Fb/responses"
			req.URL.RawQuery = "api-version=2026-01"
		}
		req.Host = "front.test"
		for name, value := range map[string]string{"Authorization": "Bearer x", "Api-Key": "k", "Openai-Organization": "o", "Openai-Project": "p",
			"Content-Type": "application/json", "Content-Length": "2", "Expect": "100-continue", "Idempotency-Key": "i", "X-Stainless-Retry-Count": "1",
			"Accept": "application/json", "Accept-Encoding": "br", "X-Stainless-Lang": "go"} {
			req.Header.Set(name, value)
		}
		before := req.Header.Clone()
		hooks := &httptrace.ClientTrace{}
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), hooks))
		resp, err := newTransport(t, u, quick(&results{})).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readAll(resp.Body, 4096); err != nil || len(u.reqs) != 1 {
			t.Fatalf("%v after %d continuations", err, len(u.reqs))
		}
		got := u.reqs[0]
		want := http.Header{"Authorization": {"Bearer x"}, "Api-Key": {"k"}, "Openai-Organization": {"o"}, "Openai-Project": {"p"},
			"Accept": {"text/event-stream"}, "Accept-Encoding": {"identity"}, "X-Stainless-Lang": {"go"}}
		if !reflect.DeepEqual(got.Header, want) {
			t.Errorf("fields %v, want %v", got.Header, want)
		}
		target, wantTarget := got.RequestURI, "/openai/v1/respons%65s/responses/resp_68a1?api-version=2026-01&x=%2f&stream=true&starting_after=0"
		if !raw {
			target, wantTarget = got.URL.RequestURI(), "/openai/v1/a%2Fb/responses/resp_68a1?api-version=2026-01&stream=true&starting_after=0"
		}
		if target != wantTarget || got.Host != "front.test" || got.URL.Host != "model.test" || got.Method != http.MethodGet || got.Body != nil || got.ContentLength != 0 {
			t.Errorf("asked for %s %q of %s at %s, want %q", got.Method, target, got.Host, got.URL.Host, wantTarget)
		}
		if httptrace.ContextClientTrace(got.Context()) != nil {
			t.Error("the continuation has the hooks of the request")
		}
		if !reflect.DeepEqual(req.Header, before) {
			t.Error("the app's request was changed")
		}
	}
}

// Waits double, with full jitter, up to their limit; what a refusal asks for is kept.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := record("\n", true, true)
		start := time.Now()
		var at []time.Duration
		u := &upstream{events: events, cuts: []int{len(events[0])}, end: errCut, get: func(*http.Request) *http.Response {
			at = append(at, time.Since(start))
			if len(at) == 3 {
				return status(503, "Retry-After", "2")
			}
			return status(500)
		}}
		cfg := resume.Config{Rand: func() float64 { return 0.5 }, MaxAttempts: 6, MaxDelay: 2 * time.Second}
		resp, err := newTransport(t, u, cfg).RoundTrip(post(t))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = readAll(resp.Body, 4096)
		const ms = time.Millisecond
		if want := []time.Duration{50 * ms, 150 * ms, 350 * ms, 2350 * ms, 3150 * ms, 4150 * ms}; !slices.Equal(at, want) {
			t.Errorf("asked at %v, want %v", at, want)
		}
	})
}

// Close, and the end of the app's context, end a wait and a continuation at once.
func TestLeavingEndsAll(t *testing.T) {
	errLeft := errors.New("the app left")
	events := record("\n", true, true)
	for _, how := range []string{"close", "context"} {
		for _, where := range []string{"wait", "ask", "read"} {
			t.Run(how+" "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					left := false
					u := &upstream{events: events, cuts: []int{len(events[0])}, end: io.EOF}
					next := way(func(req *http.Request) (*http.Response, error) {
						if req.Method == http.MethodPost || where == "wait" {
							return u.RoundTrip(req)
						}
						if where == "read" {
							pr, pw := io.Pipe()
							context.AfterFunc(req.Context(), func() { left = true; _ = pw.CloseWithError(req.Context().Err()) })
							return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: pr, ContentLength: -1}, nil
						}
						<-req.Context().Done()
						left = true
						return nil, req.Context().Err()
					})
					delay := time.Nanosecond
					if where == "wait" {
						delay, left = time.Hour, true
					}
					r := &results{}
					cfg := resume.Config{Rand: func() float64 { return 0.9 }, BaseDelay: delay, MaxDelay: delay, OnResume: r.note}
					resp, err := newTransport(t, next, cfg).RoundTrip(post(t).WithContext(ctx))
					if err != nil {
						t.Fatal(err)
					}
					start := time.Now()
					time.AfterFunc(time.Minute, func() {
						if how == "close" {
							_ = resp.Body.Close()
						} else {
							cancel(errLeft)
						}
					})
					_, err = readAll(resp.Body, 4096)
					if time.Since(start) != time.Minute {
						t.Errorf("ended after %v, want a minute", time.Since(start))
					}
					if how == "context" && !errors.Is(err, errLeft) {
						t.Errorf("Read ended with %v, want the cause", err)
					}
					synctest.Wait()
					if !left {
						t.Error("the continuation goes on")
					}
					if r.all[len(r.all)-1] != resume.AppGone {
						t.Errorf("told %v", r.all)
					}
					_ = resp.Body.Close()
				})
			})
		}
	}
}

// An event beyond the bound passes as it comes, and the stream is not continued any
// more.
func TestEndlessEvents(t *testing.T) {
	events := record("\n", true, true)
	events[3] = "data: {\"type\":\"x\",\"sequence_number\":3,\"b\":\"" + strings.Repeat("b", resume.MaxEvent+8192) + "\"}\n\n"
	all := strings.Join(events, "")
	r := &results{}
	u := &upstream{events: events, cuts: []int{len(all) - 10}, end: errCut}
	resp, err := newTransport(t, u, quick(r)).RoundTrip(post(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := readAll(resp.Body, 4096)
	if string(got) != all[:len(all)-10] || err != errCut || len(u.after) != 0 || !slices.Equal(r.all, []resume.Result{resume.TooLarge}) {
		t.Errorf("got %d of %d bytes and %v, asked %d times, told %v", len(got), len(all)-10, err, len(u.after), r.all)
	}
	events = record("\n", true, true) // and now the first one
	events[0] = strings.Replace(events[0], "{", "{"+strings.Repeat(" ", resume.MaxEvent+8192), 1)
	all = strings.Join(events, "")
	u = &upstream{events: events, cuts: []int{len(all) - 10}, end: errCut}
	if resp, err = newTransport(t, u, quick(r)).RoundTrip(post(t)); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(resp.Body, 4096); string(got) != all[:len(all)-10] || err != errCut || len(u.after) != 0 {
		t.Errorf("got %d of %d bytes and %v, asked %d times", len(got), len(all)-10, err, len(u.after))
	}
}

func TestValidate(t *testing.T) {
	for want, cfg := range map[string]resume.Config{"max_attempts": {MaxAttempts: -1}, "base_delay": {BaseDelay: time.Minute}, "negative": {MaxDelay: -1}} {
		if _, err := resume.New(http.DefaultTransport, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, want an error that says %s", cfg, err, want)
		}
	}
	if _, err := resume.New(nil, resume.Config{}); err == nil {
		t.Error("New(nil) gave no error")
	}
}

// Whatever comes, all of it passes on as it came where nobody continues it.
func FuzzBody(f *testing.F) {
	for _, eol := range []string{"\n", "\r\n", "\r"} {
		f.Add(strings.Join(record(eol, true, true), ""), 7, 100)
	}
	f.Add(": c\n\n"+strings.Join(record("\n", true, true)[:2], "")+"\xef\xbb\xbfdata\ndata:\ndata: {\n\n\r\n\r\n", 1, 3)
	f.Fuzz(func(t *testing.T, content string, chunk, read int) {
		u := &upstream{events: []string{content, "!"}, cuts: []int{len(content)}, end: errCut, chunk: max(1, chunk&0xffff),
			get: func(*http.Request) *http.Response { return status(404) }}
		resp, err := newTransport(t, u, quick(&results{})).RoundTrip(post(t))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readAll(resp.Body, max(1, read&0xffff)); string(got) != content || err != errCut {
			t.Errorf("got %q and %v, want %q", got, err, content)
		}
	})
}

// What is read of an event is what encoding/json reads of it.
func FuzzMembers(f *testing.F) {
	for _, e := range record("\n", true, true) {
		_, data, _ := strings.Cut(strings.TrimSpace(e), "data: ")
		f.Add([]byte(data))
	}
	f.Add([]byte(` { "a" : [1,{"type":"x"},"]\\""] , "sequence_number" : 12 , "type" : "error" } `))
	f.Fuzz(func(t *testing.T, data []byte) {
		ended, sequence, numbered := resume.Members(data)
		var all map[string]json.RawMessage
		if json.Unmarshal(data, &all) != nil || all == nil || bytes.Count(data, []byte("type")) > 1 || bytes.Count(data, []byte("sequence_number")) > 1 || bytes.Contains(data, []byte(`\u`)) {
			return // not well-formed, or the first of two counts
		}
		var kind string
		_ = json.Unmarshal(all["type"], &kind)
		n, err := strconv.ParseInt(string(all["sequence_number"]), 10, 64)
		if wantEnd := slices.Contains([]string{"response.completed", "response.failed", "response.incomplete", "response.cancelled"}, kind); ended != wantEnd || numbered != (err == nil) || numbered && sequence != n {
			t.Errorf("%s: ended %v, number %d %v; want %v, %d %v", data, ended, sequence, numbered, wantEnd, n, err == nil)
		}
	})
}

// TestHeldEventsAreCharged has what is held of an event taken from the budget and given
// back, and where there is no room the bytes pass as they come.
func TestHeldEventsAreCharged(t *testing.T) {
	events := record("\n", true, true)
	events[3] = "data: {\"type\":\"x\",\"sequence_number\":3,\"b\":\"" + strings.Repeat("b", 200<<10) + "\"}\n\n"
	all := strings.Join(events, "")
	for _, room := range []int64{1 << 20, 100 << 10} {
		var taken, most int64
		r := &results{}
		cfg := quick(r)
		cfg.Take = func(n int64) bool {
			if taken+n > room {
				return false
			}
			taken += n
			most = max(most, taken)
			return true
		}
		cfg.Give = func(n int64) { taken -= n }
		u := &upstream{events: events, cuts: []int{len(all) - 10}, end: errCut}
		resp, err := newTransport(t, u, cfg).RoundTrip(post(t))
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(resp.Body, 4096)
		if room < 200<<10 {
			if string(got) != all[:len(all)-10] || err != errCut || !slices.Equal(r.all, []resume.Result{resume.NoMemory}) {
				t.Errorf("without room: got %d of %d bytes and %v, told %v", len(got), len(all)-10, err, r.all)
			}
		} else if string(got) != all || err != nil || most < 200<<10 {
			t.Errorf("with room: got %d of %d bytes and %v, %d bytes charged, told %v", len(got), len(all), err, most, r.all)
		}
		_ = resp.Body.Close()
		if taken != 0 {
			t.Errorf("%d bytes are not given back", taken)
		}
	}
}
