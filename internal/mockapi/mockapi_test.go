// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run serves until the test ends.
func run(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// client speaks one protocol.
func client(t *testing.T, s *Server, name string) (*http.Client, string) {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{RootCAs: s.CertPool()}, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	switch name {
	case "h1":
		tr.Protocols.SetHTTP1(true)
		return c, s.URL()
	case "h2c":
		tr.Protocols.SetUnencryptedHTTP2(true)
		return c, s.URL()
	case "h2":
		tr.Protocols.SetHTTP2(true)
		return c, s.TLSURL()
	}
	tr.Protocols.SetHTTP1(true)
	return c, s.TLSURL()
}

func protocols() []string { return []string{"h1", "h1 tls", "h2c", "h2"} }

// post asks for a chat stream and returns what came.
func post(t *testing.T, c *http.Client, url, model string, header ...string) (*http.Response, string, error) {
	t.Helper()
	body := string(mustJSON(obj{"model": model, "stream": true}))
	r, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

func TestStreamIsWholeOnEveryProtocol(t *testing.T) {
	s := run(t, Config{})
	for _, name := range protocols() {
		t.Run(name, func(t *testing.T) {
			c, url := client(t, s, name)
			resp, body, err := post(t, c, url, "mock?tokens=5")
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("status %v, error %v", resp, err)
			}
			if got, want := resp.ProtoMajor, 1; strings.HasPrefix(name, "h2") != (got == 2) {
				t.Errorf("protocol %d, want %d", got, want)
			}
			if got := strings.Count(body, "data: "); got != 8 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Errorf("%d events, want 8 ending in [DONE]:\n%s", got, body)
			}
			_, again, _ := post(t, c, url, "mock?tokens=5")
			if contentOf(body) == "" || contentOf(body) != contentOf(again) {
				t.Errorf("equal requests gave different text")
			}
		})
	}
}

// contentOf joins the deltas' text.
func contentOf(body string) string {
	var all strings.Builder
	for line := range strings.Lines(body) {
		var v struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &v) == nil && len(v.Choices) > 0 {
			all.WriteString(v.Choices[0].Delta.Content)
		}
	}
	return all.String()
}

func TestBrokenStreams(t *testing.T) {
	s := run(t, Config{})
	for _, name := range protocols() {
		for _, fault := range []string{"cut=3", "reset=3", "reset=3:conn"} {
			t.Run(name+" "+fault, func(t *testing.T) {
				c, url := client(t, s, name)
				_, body, err := post(t, c, url, "mock?gap=1ms&"+fault)
				if got := strings.Count(body, "data: "); err == nil || got > 3 || (fault == "cut=3" && got != 3) {
					t.Errorf("%d events and error %v, want 3 and an error", got, err)
				}
				if name == "h1" && strings.HasPrefix(fault, "reset") && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("error %v, want a reset connection", err)
				}
				if strings.HasPrefix(name, "h2") && fault != "reset=3:conn" && !strings.Contains(err.Error(), "INTERNAL_ERROR") {
					t.Errorf("error %v, want a reset stream", err)
				}
			})
		}
		t.Run(name+" cut=head", func(t *testing.T) {
			c, url := client(t, s, name)
			if resp, _, err := post(t, c, url, "mock?cut=head"); err == nil {
				t.Errorf("got status %d, want no answer", resp.StatusCode)
			}
		})
	}
}

func TestShapesOfAStream(t *testing.T) {
	s := run(t, Config{})
	for _, tt := range []struct {
		options string
		want    func(resp *http.Response, body string) bool
	}{
		{"clean=3", func(_ *http.Response, b string) bool {
			return strings.Count(b, "data: ") == 3 && !strings.Contains(b, "DONE")
		}},
		{"error=2", func(_ *http.Response, b string) bool {
			return strings.Count(b, "data: ") == 3 && strings.Contains(b, "server_is_overloaded")
		}},
		{"eol=crlf", func(_ *http.Response, b string) bool { return strings.HasSuffix(b, "data: [DONE]\r\n\r\n") }},
		{"eol=cr", func(_ *http.Response, b string) bool { return strings.HasSuffix(b, "data: [DONE]\r\r") }},
		{"comments", func(_ *http.Response, b string) bool { return strings.HasPrefix(b, ": PROCESSING\n\ndata: ") }},
		{"split", func(_ *http.Response, b string) bool { return strings.HasSuffix(b, "data: [DONE]\n\n") }},
		{"trailer", func(r *http.Response, _ string) bool { return r.Trailer.Get("Mock-Trailer") == "events=7" }},
		{"stall=2:1ms", func(_ *http.Response, b string) bool { return strings.Count(b, "data: ") == 7 }},
		{"size=40", func(_ *http.Response, b string) bool { return len(contentOf(b)) == 160 }},
		{"gzip=force", func(r *http.Response, b string) bool {
			z, err := gzip.NewReader(strings.NewReader(b))
			if err != nil {
				return false
			}
			plain, err := io.ReadAll(z)
			return err == nil && r.Header.Get("Content-Encoding") == "gzip" && bytes.HasSuffix(plain, []byte("data: [DONE]\n\n"))
		}},
		{"gzip", func(r *http.Response, _ string) bool { return r.Header.Get("Content-Encoding") == "" }},
		{"status=429&retry-after=2&retry-after-ms=1500&should-retry=false", func(r *http.Response, b string) bool {
			h := r.Header
			return r.StatusCode == 429 && h.Get("Retry-After") == "2" && h.Get("Retry-After-Ms") == "1500" && h.Get("X-Should-Retry") == "false" && strings.Contains(b, "rate_limit_error")
		}},
		{"foo=1&tokens=2&bar", func(r *http.Response, b string) bool {
			return r.StatusCode == 400 && strings.Contains(b, "unknown mock options: bar, foo")
		}},
		{"gap=fast", func(r *http.Response, b string) bool { return r.StatusCode == 400 && strings.Contains(b, `gap`) }},
		{"read=1k", func(r *http.Response, b string) bool {
			return r.StatusCode == 400 && strings.Contains(b, "Mock-read")
		}},
	} {
		for _, name := range protocols() {
			t.Run(tt.options+" "+name, func(t *testing.T) {
				c, url := client(t, s, name)
				resp, body, err := post(t, c, url, "mock?tokens=4&"+tt.options)
				if err != nil {
					t.Fatal(err)
				}
				if !tt.want(resp, body) {
					t.Errorf("status %d, header %v, body:\n%q", resp.StatusCode, resp.Header, body)
				}
			})
		}
	}
}

func TestHeaderOptions(t *testing.T) {
	s := run(t, Config{})
	c, url := client(t, s, "h1")
	resp, body, err := post(t, c, url, "mock", "Mock-Tokens", "2", "Mock-Close", "")
	if err != nil || !resp.Close || strings.Count(body, "data: ") != 5 {
		t.Errorf("close %v, error %v, body %q; want close and 5 events", resp, err, body)
	}
	if resp, body, _ = post(t, c, url, "mock", "Mock-Wrong", "2"); resp.StatusCode != 400 || !strings.Contains(body, "Mock-Wrong") {
		t.Errorf("status %d, body %q; want 400 that names Mock-Wrong", resp.StatusCode, body)
	}
	if resp, _, _ = post(t, c, url, "mock", "Mock-Expect", "reject", "Expect", "100-continue"); resp.StatusCode != 417 {
		t.Errorf("status %d, want 417", resp.StatusCode)
	}
	for i, want := range []int{503, 503, 200} {
		if resp, _, _ = post(t, c, url, "mock?status=503", "Mock-Id", "a", "Mock-First", "2"); resp.StatusCode != want {
			t.Errorf("arrival %d: status %d, want %d", i+1, resp.StatusCode, want)
		}
	}
	if got := s.Stats().IDs["a"]; got != 3 {
		t.Errorf("counted %d arrivals, want 3", got)
	}
}

func TestInterimResponse(t *testing.T) {
	s := run(t, Config{})
	for _, name := range protocols() {
		c, url := client(t, s, name)
		var codes []int
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			codes = append(codes, code)
			return nil
		}})
		r, _ := http.NewRequestWithContext(ctx, "GET", url+"/v1/models", nil)
		r.Header.Set("Mock-Early", "103")
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if len(codes) != 1 || codes[0] != 103 {
			t.Errorf("%s: interim responses %v, want 103", name, codes)
		}
	}
}

func TestEchoKeepsTheOrderOfFields(t *testing.T) {
	s := run(t, Config{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /echo//a/../b?x=%2f HTTP/1.1\r\nzeta: 1\r\nHost: h\r\nAlpha: 2\r\nzeta: 3\r\nContent-Length: 5\r\n\r\nhello")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Target string      `json:"target"`
		Fields [][2]string `json:"fields"`
		Sum    string      `json:"body_sha256"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("hello"))
	want := [][2]string{{"zeta", "1"}, {"Host", "h"}, {"Alpha", "2"}, {"zeta", "3"}, {"Content-Length", "5"}}
	if string(mustJSON(got.Fields)) != string(mustJSON(want)) || got.Target != "/echo//a/../b?x=%2f" || got.Sum != hex.EncodeToString(sum[:]) {
		t.Errorf("got %+v, want fields %v", got, want)
	}
}

func TestCancellationIsNoticed(t *testing.T) {
	events := make(chan Event, 16)
	s := run(t, Config{OnRequest: func(e Event) { events <- e }})
	for _, name := range protocols() {
		c, url := client(t, s, name)
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/messages", strings.NewReader(`{"model":"mock?hold"}`))
		failed := make(chan error, 1)
		go func() { _, err := c.Do(r); failed <- err }()
		for _, want := range []Kind{Started, Cancelled, Finished} {
			select {
			case e := <-events:
				if e.Kind != want || e.Path != "/v1/messages" || e.At.IsZero() {
					t.Errorf("%s: event %+v, want %s", name, e, want)
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: no event, want %s", name, want)
			}
			if want == Started {
				cancel()
			}
		}
		cancel()
		if err := <-failed; err == nil {
			t.Errorf("%s: a held request was answered", name)
		}
	}
	if n := s.Stats(); n.Cancelled != 4 || n.InFlight != 0 || n.Finished != 4 {
		t.Errorf("stats %+v, want 4 cancelled and finished, none in flight", n)
	}
}

func TestEmbeddedHandlerRefusesGoaway(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	resp, body, err := post(t, srv.Client(), srv.URL, "mock?goaway=1")
	if err != nil || resp.StatusCode != 400 || !strings.Contains(body, "goaway") {
		t.Errorf("status %v, error %v, want 400", resp, err)
	}
}

// frames opens a stream by hand and returns the frames until the stream or the
// connection ends.
func frames(t *testing.T, s *Server, model string) (goaways []uint32, ended bool) {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.TLSURL(), "https://"), &tls.Config{RootCAs: s.CertPool(), NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(conn, http2.ClientPreface)
	f := http2.NewFramer(conn, conn)
	body := mustJSON(obj{"model": model, "stream": true})
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/v1/chat/completions"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	if err := firstError(f.WriteSettings(), f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}), f.WriteData(1, true, body)); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return goaways, false
		}
		if g, ok := frame.(*http2.GoAwayFrame); ok {
			goaways = append(goaways, g.LastStreamID)
		}
		if frame.Header().StreamID == 1 && frame.Header().Flags.Has(http2.FlagDataEndStream) && frame.Header().Type == http2.FrameData {
			return goaways, true
		}
	}
}

func TestGoaway(t *testing.T) {
	s := run(t, Config{})
	for _, tt := range []struct {
		how   string
		want  string
		ended bool
	}{
		{"goaway=2&stall=5:1100ms", "[2147483647,1]", true},
		{"goaway=2:abrupt", "[1]", false},
		{"goaway=0:refuse", "[0]", true},
	} {
		t.Run(tt.how, func(t *testing.T) {
			t.Parallel()
			got, ended := frames(t, s, "mock?gap=1ms&"+tt.how)
			if string(mustJSON(got)) != tt.want || ended != tt.ended {
				t.Errorf("GOAWAY %v and end %v, want %s and %v", got, ended, tt.want, tt.ended)
			}
		})
	}
}

func TestRealtimeSocket(t *testing.T) {
	s := run(t, Config{})
	d := websocket.Dialer{Subprotocols: []string{"openai-insecure-api-key.k", "realtime"}}
	conn, resp, err := d.Dial("ws"+strings.TrimPrefix(s.URL(), "http")+"/v1/realtime?model=mock%3Ftokens=3", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp.Body.Close()
	if got := conn.Subprotocol(); got != "realtime" {
		t.Errorf("subprotocol %q, want realtime", got)
	}
	next := func() string {
		var v struct{ Type string }
		if err := conn.ReadJSON(&v); err != nil {
			t.Fatal(err)
		}
		return v.Type
	}
	if got := next(); got != "session.created" {
		t.Errorf("first event %q", got)
	}
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte{0, 255}); err != nil {
		t.Fatal(err)
	}
	if kind, b, err := conn.ReadMessage(); err != nil || kind != websocket.BinaryMessage || !bytes.Equal(b, []byte{0, 255}) {
		t.Errorf("echo: kind %d, %x, %v", kind, b, err)
	}
	if err := conn.WriteJSON(obj{"type": "response.create"}); err != nil {
		t.Fatal(err)
	}
	const delta = "response.output_text.delta"
	for _, want := range []string{"response.created", "response.output_item.added", "response.content_part.added", delta, delta, delta,
		"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.done"} {
		if got := next(); got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
}
