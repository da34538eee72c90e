// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

const sse = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// ask is a streamed chat call in the way that the client speaks.
func ask(r *rig) (*http.Response, context.CancelFunc, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.addr+"/up/v1/chat/completions", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := h2c(r.t).Do(req)
	return resp, cancel, err
}

func TestAnyBytesPassAsTheyCame(t *testing.T) {
	streams := map[string]string{
		"LF, CRLF and CR line ends": "data: 1\n\ndata: 2\r\n\r\ndata: 3\r\r",
		"comments":                  ": PROCESSING\n\n:\n\ndata: x\n\n",
		"multi-byte text":           "data: 世界 🙂 naïve 한국어\n\n",
		"bytes that are no UTF-8":   "data: \xff\xfe\x00\n\n",
		"no event at the end":       "data: half",
	}
	for name, body := range streams {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
					c.Head()
					c.SendExact(sse)
					for i := range len(body) { // one byte a chunk
						c.SendExact(chunk(body[i : i+1]))
					}
					c.SendExact("0\r\n\r\n")
				}), "")
				var got []byte
				var err error
				if proto == "HTTP/2" {
					resp, cancel, rerr := ask(r)
					defer cancel()
					if rerr != nil {
						t.Fatal(rerr)
					}
					got, err = io.ReadAll(resp.Body)
				} else {
					resp, rerr := http.Post("http://"+r.addr+"/up/v1/chat/completions", "application/json", nil)
					if rerr != nil {
						t.Fatal(rerr)
					}
					got, err = io.ReadAll(resp.Body)
				}
				if err != nil || string(got) != body {
					t.Errorf("got %q, %v; want %q", got, err, body)
				}
			})
		}
	}
}

func TestCodedBodiesAndAcceptEncodingAreUntouched(t *testing.T) {
	coded := string([]byte{0x1f, 0x8b, 8, 0, 1, 2, 3}) // not even valid gzip
	addr, heads := answering(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", len(coded), coded))
	r := start(t, addr, "")
	app := r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	if head := app.Head(); !strings.Contains(head, "Content-Encoding: gzip\n") {
		t.Errorf("head %q", head)
	}
	app.Expect(coded)
	if head := <-heads; strings.Contains(head, "Accept-Encoding") {
		t.Errorf("Accept-Encoding was added: %q", head)
	}
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\nAccept-Encoding: br;q=1.0, gzip;q=0\n\n")
	if head := <-heads; !strings.Contains(head, "Accept-Encoding: br;q=1.0, gzip;q=0\n") {
		t.Errorf("Accept-Encoding was changed: %q", head)
	}
}

func TestBufferingFieldsOfTheUpstreamPass(t *testing.T) {
	addr, _ := answering(t, "HTTP/1.1 200 OK\r\nX-Accel-Buffering: no\r\nCache-Control: no-cache\r\nContent-Length: 0\r\n\r\n")
	app := start(t, addr, "").dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	if head := app.Head(); !strings.Contains(head, "X-Accel-Buffering: no\n") || !strings.Contains(head, "Cache-Control: no-cache\n") {
		t.Errorf("head %q", head)
	}
}

func TestACutStreamIsResetOverHTTP2(t *testing.T) {
	seen := make(chan struct{})
	r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.SendExact(sse + chunk("data: 1\n\n"))
		<-seen
	}), "")
	resp, cancel, err := ask(r)
	defer cancel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	close(seen)
	if b, err := io.ReadAll(resp.Body); err == nil || len(b) > 0 || !strings.Contains(err.Error(), "INTERNAL_ERROR") {
		t.Errorf("after the cut: %q, %v; want RST_STREAM INTERNAL_ERROR", b, err)
	}
	r.metric(`warmwire_interruptions_total{cause="upstream_truncated",upstream="up"} 1`)
}

func TestAStreamWithoutItsTerminalEventIsCounted(t *testing.T) {
	addr, _ := answering(t, sse+chunk("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")+"0\r\n\r\n")
	r := start(t, addr, "")
	resp, err := http.Post("http://"+r.addr+"/up/v1/chat/completions", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Errorf("a clean end became %v", err)
	}
	r.metric(`warmwire_interruptions_total{cause="missing_terminal",upstream="up"} 1`)
}

func TestErrorEventsHaveTheDialectsShape(t *testing.T) {
	tests := []struct{ dialect, path, event, want string }{
		{"openai", "/v1/chat/completions", "data: {\"choices\":[]}\n\n", `data: {"error":`},
		{"openai", "/v1/responses", "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0}\n\n", "event: error\n"},
		{"anthropic", "/v1/messages", "event: ping\ndata: {\"type\":\"ping\"}\n\n", "event: error\n"},
		{"gemini", "/v1beta/models/m:streamGenerateContent?alt=sse", "data: {\"candidates\":[]}\n\n", `data: {"error":`},
	}
	for _, tt := range tests {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %s whole=%v", tt.dialect, tt.path, whole), func(t *testing.T) {
				event := tt.event
				if !whole {
					event = strings.TrimSuffix(event, "\n")
				}
				seen := make(chan struct{})
				r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
					c.Head()
					c.SendExact(sse + chunk(event))
					<-seen
				}), "upstreams:\n  up: {url: 'http://UPSTREAM', dialect: "+tt.dialect+", error_event: true}\n")
				app := r.dial()
				app.Send("POST /up" + tt.path + " HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
				app.Head()
				app.Expect(chunk(event))
				close(seen)
				rest, _ := app.Rest()
				if strings.Contains(rest, "[DONE]") || strings.HasSuffix(rest, "0\r\n\r\n") {
					t.Errorf("a clean end: %q", rest)
				}
				if whole && !strings.Contains(rest, tt.want) || !whole && rest != "" {
					t.Errorf("after the cut: %q; want an error event %q only after a whole event", rest, tt.want)
				}
			})
		}
	}
}

func TestLeavingOverHTTP2CancelsAtOnce(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		t.Run(fmt.Sprintf("streaming=%v", streaming), func(t *testing.T) {
			ready, gone := make(chan struct{}), make(chan time.Time, 1)
			r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
				c.Head()
				if streaming {
					c.SendExact(sse + chunk("data: 1\n\n"))
				}
				close(ready)
				_, _ = io.Copy(io.Discard, c.In)
				gone <- time.Now()
			}), "")
			ctx, cancel := context.WithCancel(context.Background())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.addr+"/up/v1/x", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			client := h2c(t)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				if resp, err := client.Do(req); err == nil {
					defer resp.Body.Close()
				}
			}()
			<-ready
			if streaming {
				<-answered
			}
			left := time.Now()
			cancel()
			select {
			case at := <-gone:
				if d := at.Sub(left); d > 200*time.Millisecond { // promised: 50 ms; the machine may be busy
					t.Errorf("the upstream learned it after %v", d)
				}
			case <-time.After(patience):
				t.Error("the upstream was never told")
			}
			<-answered
			r.metric(`warmwire_interruptions_total{cause="app_left",upstream="up"} 1`)
		})
	}
}

func TestUsageIsKeptOfAnAnswerThatTheAppDidNotWaitFor(t *testing.T) {
	usage := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n"
	r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.SendExact(sse + chunk(usage))
		_, _ = io.Copy(io.Discard, c.In)
	}), "")
	app := r.dial()
	app.Send("POST /up/v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
	app.Head()
	app.Expect(chunk(usage))
	_ = app.Close()
	r.metric(`warmwire_tokens_total{direction="output",upstream="up"} 4`)
	r.metric(`warmwire_interruptions_total{cause="app_left",upstream="up"} 1`)
}

func TestUploadsStream(t *testing.T) {
	first := make(chan struct{})
	sum := make(chan [32]byte, 1)
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		h := sha256.New()
		_, _ = io.CopyN(h, c.In, 1)
		close(first) // before the app has sent the rest
		_, _ = io.CopyN(h, c.In, int64(len(body)-1))
		sum <- [32]byte(h.Sum(nil))
		c.SendExact(okAnswer)
	}), "")
	app := r.dial()
	app.Send(fmt.Sprintf("POST /up/v1/files HTTP/1.1\nHost: localhost\nContent-Length: %d\n\n", len(body)))
	app.SendExact(string(body[:1]))
	<-first
	app.SendExact(string(body[1:]))
	app.Head()
	app.Expect("ok")
	if <-sum != sha256.Sum256(body) {
		t.Error("the upload was altered")
	}
}

func TestRequestBodyLimit(t *testing.T) {
	var arrived = make(chan string, 10)
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		arrived <- c.Head()
		_, _ = io.Copy(io.Discard, c.In)
	})
	r := start(t, addr, "limits: {body: 10}\n")
	app := r.dial()
	app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 11\nExpect: 100-continue\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 413 ") || !strings.Contains(head, "Connection: close\n") {
		t.Errorf("declared: %q, want 413 before any 100", head)
	}
	select {
	case h := <-arrived:
		t.Errorf("it reached the upstream: %q", h)
	default:
	}
	app = r.dial()
	app.Send("POST /up/x HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\n")
	app.SendExact(chunk("0123456") + chunk("789ab"))
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 413 ") {
		t.Errorf("in the middle: %q, want 413", head)
	}
}

func TestAnEarlyAnswerToAnUploadArrives(t *testing.T) {
	r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.SendExact("HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c.In)
	}), "")
	app := r.dial()
	app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 52428800\n\n")
	go func() {
		buf := make([]byte, 64<<10)
		for range 800 {
			if _, err := app.TCPConn.Write(buf); err != nil {
				return
			}
		}
	}()
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 401 ") {
		t.Fatalf("head %q", head)
	}
	app.Expect("no")
}

func TestTimeouts(t *testing.T) {
	tests := []struct {
		name, limits, answer string
		status               string // "" = a head has come, then a cut
		cause                string
	}{
		{"first token before the head", "first_token: 60ms", "", "504", "first_token_timeout"},
		{"first token after the head", "first_token: 60ms", sse + chunk(": wait\n\n"), "", "first_token_timeout"},
		{"idle", "idle: 60ms", sse + chunk("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"), "", "idle_timeout"},
		{"response header", "response_header: 60ms", "", "504", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			gone := make(chan struct{})
			r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
				c.Head()
				c.SendExact(tt.answer)
				_, _ = io.Copy(io.Discard, c.In) // until it is cancelled
				close(gone)
			}), "upstreams:\n  up: {url: 'http://UPSTREAM', timeouts: {"+tt.limits+"}}\n")
			app := r.dial()
			app.Send("POST /up/v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
			head := app.Head()
			want := "HTTP/1.1 200 "
			if tt.status != "" {
				want = "HTTP/1.1 " + tt.status
			}
			if !strings.HasPrefix(head, want) {
				t.Errorf("head %q, want %s", head, want)
			}
			if tt.status != "" && !strings.Contains(head, "X-Should-Retry: false\n") {
				t.Errorf("the SDK may pay twice: %q", head)
			}
			rest := ""
			if tt.status == "" {
				rest, _ = app.Rest()
			}
			if strings.HasSuffix(rest, "0\r\n\r\n") {
				t.Errorf("a clean end: %q", rest)
			}
			<-gone
			if tt.cause != "" {
				r.metric(`warmwire_interruptions_total{cause="` + tt.cause + `",upstream="up"} 1`)
			}
		})
	}
}

func TestAReaderThatRestsIsNotTheUpstreamsSilence(t *testing.T) {
	big := strings.Repeat("x", 8<<20) // more than all buffers on the way hold
	r := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
		c.Head()
		c.SendExact(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(big), big))
	}), "upstreams:\n  up: {url: 'http://UPSTREAM', timeouts: {idle: 500ms}}\n")
	app := r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	app.Head()
	rest := time.NewTimer(1500 * time.Millisecond) // the reader rests for three times the limit
	<-rest.C
	if n, err := io.CopyN(io.Discard, app.In, int64(len(big))); err != nil {
		t.Errorf("cut after %d bytes: %v", n, err)
	}
}

func TestNoFurtherAttemptAfterTheAppLeft(t *testing.T) {
	addr, heads := answering(t, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\nno")
	r := start(t, addr, "")
	app := r.dial()
	app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 503 ") || !strings.Contains(head, "Retry-After: 1\n") {
		t.Errorf("the provider's answer was not passed on: %q", head)
	}
	app.Expect("no")
	r.stop()
	if n := len(heads); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

// TestNothingSecretIsShown plants a secret wherever an app can put one.
func TestNothingSecretIsShown(t *testing.T) {
	const secret = "sk-s3cr3tsecret"
	addr, _ := answering(t, "HTTP/1.1 200 OK\r\nX-"+secret+": "+secret+"\r\nContent-Length: 15\r\n\r\n"+secret)
	r := start(t, addr, "log: {level: debug, access: {sample: 1}}\n")
	for _, request := range []string{
		"POST /up/v1/" + secret + "?key=" + secret + " HTTP/1.1\nHost: localhost\nAuthorization: Bearer " + secret + "\nContent-Length: 15\n\n" + secret,
		secret + " /up/" + secret + " HTTP/1.1\nHost: localhost\n\n",
		"GET /" + secret + " HTTP/1.1\nHost: localhost\n\n",
		"GET /up HTTP/1.1\nHost: " + secret + "\n\n",
		"CONNECT " + secret + ".invalid:1 HTTP/1.1\nHost: x\n\n",
		"GET /up HTTP/1.1\nHost: localhost\nX-" + secret + "\n\n",
	} {
		app := r.dial()
		app.Send(request)
		app.Head()
		_ = app.Close()
	}
	pages := r.get("/metrics") + r.get("/v1/status")
	r.stop()
	for name, text := range map[string]string{"log": r.log.String(), "admin": pages} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("the secret is in the %s: …%s", name, text[max(0, i-100):min(len(text), i+50)])
		}
	}
}
