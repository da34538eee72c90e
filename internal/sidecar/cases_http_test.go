// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

func TestAmbiguousRequestsAreRefusedAndNotForwarded(t *testing.T) {
	addr, heads := answering(t, okAnswer)
	r := start(t, addr, "")
	const evil = "GET /up/evil HTTP/1.1\nHost: localhost\n\n"
	tests := []struct{ name, fields, status string }{
		{"length beside chunked", "Content-Length: 5\nTransfer-Encoding: chunked\n", "400"},
		{"chunked beside length", "Transfer-Encoding: chunked\nContent-Length: 5\n", "400"},
		{"two lengths", "Content-Length: 5\nContent-Length: 6\n", "400"},
		{"a list of lengths", "Content-Length: 5, 5\n", "400"},
		{"a signed length", "Content-Length: +5\n", "400"},
		{"chunked not last", "Transfer-Encoding: chunked, gzip\n", "400"},
		{"another coding", "Transfer-Encoding: gzip, chunked\n", "501"},
		{"trailing comma", "Transfer-Encoding: chunked,\n", "400"},
		{"chunked twice", "Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n", "400"},
		{"unknown coding", "Transfer-Encoding: xchunked\n", "501"},
		{"space before the colon", "Content-Length : 5\n", "400"},
		{"folded field", "X: a\n b\n", "400"},
		{"no name", ": x\n", "400"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			app := r.dial()
			app.Send("POST /up/x HTTP/1.1\nHost: localhost\n" + tt.fields + "\n" + evil)
			head := app.Head()
			if code := strings.Fields(head + " -")[1]; code != tt.status && !(tt.status == "501" && code == "400") {
				t.Errorf("answer %q, want %s", head, tt.status)
			}
			if !strings.Contains(head, "Connection: close\n") {
				t.Errorf("the connection stays open: %q", head)
			}
		})
	}
	app := r.dial()
	app.Send("POST /up/x HTTP/1.0\nTransfer-Encoding: chunked\n\n0\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 400 ") {
		t.Errorf("chunked in HTTP/1.0: %q", head)
	}
	if n := len(heads); n != 0 {
		t.Errorf("%d requests reached the upstream: %q", n, <-heads)
	}
}

func TestOneFramingFieldGoesUpstream(t *testing.T) {
	addr, heads := answering(t, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	r := start(t, addr, "")
	for request, want := range map[string]string{
		"Transfer-Encoding: Chunked\n\n2\nok\n0\n\n": "Transfer-Encoding: chunked\n",
		"Content-Length: 2\n\nok":                    "Content-Length: 2\n",
		"Content-Length: 0\n\n":                      "Content-Length: 0\n",
	} {
		app := r.dial()
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\n" + request)
		head := <-heads
		if strings.Count(head, "Content-Length")+strings.Count(head, "Transfer-Encoding") != 1 || !strings.Contains(head, want) {
			t.Errorf("upstream got %q, want just %q", head, want)
		}
		app.Head()
	}
}

func TestFieldsOfOneConnectionStop(t *testing.T) {
	addr, heads := answering(t, "HTTP/1.1 200 OK\r\nConnection: x-back\r\nX-Back: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nX-Stay: 1\r\nContent-Length: 0\r\n\r\n")
	r := start(t, addr, "upstreams:\n  up: {url: 'http://UPSTREAM', headers: {set: {Authorization: Bearer ours}}}\n")
	app := r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\nConnection: x-hop, authorization\nX-Hop: secret\nProxy-Connection: keep-alive\nKeep-Alive: 5\n" +
		"TE: trailers, deflate\nUpgrade: h2c\nHTTP2-Settings: AA\nProxy-Authorization: Basic x\nAuthorization: Bearer theirs\nX-End: 1\n\n")
	up := <-heads
	for _, gone := range []string{"X-Hop", "Proxy-", "Keep-Alive", "deflate", "Upgrade", "Http2-Settings", "theirs"} {
		if strings.Contains(up, gone) {
			t.Errorf("%s was forwarded: %q", gone, up)
		}
	}
	for _, stays := range []string{"X-End: 1\n", "Te: trailers\n", "Authorization: Bearer ours\n"} {
		if !strings.Contains(up, stays) {
			t.Errorf("%s is missing: %q", stays, up)
		}
	}
	head := app.Head()
	for _, gone := range []string{"X-Back", "Keep-Alive", "Proxy-Authenticate"} {
		if strings.Contains(head, gone) {
			t.Errorf("%s came back: %q", gone, head)
		}
	}
	if !strings.Contains(head, "X-Stay: 1\n") {
		t.Errorf("X-Stay is missing: %q", head)
	}
}

func TestNothingIsAddedButVia(t *testing.T) {
	addr, heads := answering(t, okAnswer)
	for _, via := range []bool{true, false} {
		r := start(t, addr, fmt.Sprintf("listen: {address: 127.0.0.1:0, via: %v}\n", via)) // replaces the rig's own
		app := r.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\nx-API-key: k\nX-Twice: 1\nX-Twice: 2\n\n")
		app.Head()
		var names []string
		for line := range strings.SplitSeq(strings.TrimSpace(<-heads), "\n") {
			name, _, _ := strings.Cut(line, ":")
			names = append(names, name)
		}
		slices.Sort(names[1:])
		want := []string{"GET /x HTTP/1.1", "Host", "Via", "Warmwire-Loop", "X-Api-Key", "X-Twice", "X-Twice"} // the marker goes to loopback only
		if !via {
			want = slices.DeleteFunc(want, func(s string) bool { return s == "Via" })
		}
		if !slices.Equal(names, want) {
			t.Errorf("via %v: upstream got %q, want %q", via, names, want)
		}
	}
}

func TestTargetsPassOctetForOctet(t *testing.T) {
	addr, heads := answering(t, okAnswer)
	r := start(t, addr, "")
	for _, target := range []string{"/v1/files/a%2Fb", "/%252F", "//x", "/a/../b", "/a;v=1", "/%7E", "/?alt=sse&key=%2B", "/x?", "/%zz", "/x??a"} {
		for form, request := range map[string]string{
			"base URL": "GET /up" + target + " HTTP/1.1\nHost: localhost\n\n",
			"absolute": "GET http://" + addr + target + " HTTP/1.1\nHost: x\n\n",
		} {
			app := r.dial()
			app.Send(request)
			app.Head()
			if got := strings.Fields(<-heads)[1]; got != target {
				t.Errorf("%s: %q became %q", form, target, got)
			}
			_ = app.Close()
		}
	}
}

func TestAbsoluteFormDecidesTheHost(t *testing.T) {
	addr, heads := answering(t, okAnswer)
	r := start(t, addr, "")
	app := r.dial()
	app.Send("GET http://" + addr + "/x HTTP/1.1\nHost: other.test\n\n")
	app.Head()
	if head := <-heads; !strings.Contains(head, "Host: "+addr+"\n") {
		t.Errorf("upstream got %q", head)
	}
	for name, request := range map[string]string{
		"no Host":          "GET http://" + addr + "/x HTTP/1.1\n\n",
		"two Hosts":        "GET /up HTTP/1.1\nHost: localhost\nHost: localhost\n\n",
		"Host with user":   "GET /up HTTP/1.1\nHost: a@localhost\n\n",
		"Host with spaces": "GET /up HTTP/1.1\nHost: a b\n\n",
	} {
		app := r.dial()
		app.Send(request)
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 400 ") {
			t.Errorf("%s: %q", name, head)
		}
	}
}

func TestHeaderLimit(t *testing.T) {
	addr, heads := answering(t, okAnswer)
	r := start(t, addr, "")
	for name, fields := range map[string]string{
		"one of 60 kB": "Authorization: " + strings.Repeat("a", 60_000) + "\n",
		"2000 tiny":    strings.Repeat("X: 1\n", 2000),
		"60 of 1 kB":   strings.Repeat("X: "+strings.Repeat("a", 1000)+"\n", 60),
	} {
		app := r.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\n" + fields + "\n")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
			t.Errorf("%s: %q", name, head)
		}
		<-heads
	}
	app := r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\nX: " + strings.Repeat("a", 70_000) + "\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 431 ") || !strings.Contains(head, "application/json") || !strings.Contains(head, "close") {
		t.Errorf("over the limit: %q", head)
	}
}

func TestCookiesStayLinesOfTheirOwn(t *testing.T) {
	addr, _ := answering(t, "HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT\r\nSet-Cookie: b=2\r\nSet-Cookie: c=3\r\nContent-Length: 0\r\n\r\n")
	r := start(t, addr, "")
	want := []string{"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "b=2", "c=3"}
	for name, client := range map[string]*http.Client{"HTTP/1.1": http.DefaultClient, "HTTP/2": h2c(t)} {
		resp, err := client.Get("http://" + r.addr + "/up/x")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header["Set-Cookie"]; !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestRedirectsAreRelayed(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		addr, heads := answering(t, fmt.Sprintf("HTTP/1.1 %d Moved\r\nLocation: http://elsewhere.test/a?b=%%2F\r\nContent-Length: 0\r\n\r\n", status))
		r := start(t, addr, "upstreams:\n  up: {url: 'http://UPSTREAM', headers: {set: {Authorization: Bearer ours}}}\n")
		app := r.dial()
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
		if head := app.Head(); !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", status)) || !strings.Contains(head, "Location: http://elsewhere.test/a?b=%2F\n") {
			t.Errorf("%d: %q", status, head)
		}
		if <-heads; len(heads) != 0 {
			t.Errorf("%d was followed", status)
		}
	}
}

func TestBodilessAnswersEndAtTheBlankLine(t *testing.T) {
	tests := []struct{ name, method, answer, want, not string }{
		{"HEAD with a length", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", "Content-Length: 1234\n", "Transfer-Encoding"},
		{"HEAD with chunked", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200", "Content-Length"},
		{"304 without a length", "GET", "HTTP/1.1 304 Not Modified\r\nEtag: x\r\n\r\n", "Etag: x\n", "Content-Length"},
		{"304 invents no coding", "GET", "HTTP/1.1 304 Not Modified\r\n\r\n", "HTTP/1.1 304", "Transfer-Encoding"},
		{"204", "POST", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204", "Content-Length"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr, _ := answering(t, tt.answer)
			app := start(t, addr, "").dial()
			for range 2 { // the connection can be used again
				app.Send(tt.method + " /up/x HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n")
				if head := app.Head(); !strings.Contains(head, tt.want) || strings.Contains(head, tt.not) {
					t.Errorf("%q: want %q and no %q", head, tt.want, tt.not)
				}
			}
		})
	}
}

func TestInterimAnswers(t *testing.T) {
	hints := "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
	final := make(chan struct{}, 10)
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		for c.Head() != "" {
			c.SendExact(hints + "HTTP/1.1 102 Processing\r\n\r\n")
			<-final
			c.SendExact("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	r := start(t, addr, "")
	chained := start(t, r.addr, "upstreams:\n  up: {url: 'http://UPSTREAM/up'}\n")
	for name, at := range map[string]*rig{"one": r, "two in a row": chained} {
		app := at.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
		if head := app.Head(); head != "HTTP/1.1 103 Early Hints\nLink: </a>\n" { // before the final answer exists
			t.Errorf("%s: first %q", name, head)
		}
		if head := app.Head(); head != "HTTP/1.1 102 Processing\n" {
			t.Errorf("%s: second %q", name, head)
		}
		final <- struct{}{}
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 OK\n") || strings.Contains(head, "Link") {
			t.Errorf("%s: final %q", name, head)
		}
	}
	app := r.dial()
	final <- struct{}{}
	app.Send("GET /up/x HTTP/1.0\n\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 OK\n") {
		t.Errorf("HTTP/1.0 got %q", head)
	}
	final <- struct{}{}
	var codes []int
	req, _ := http.NewRequest("GET", "http://"+r.addr+"/up/x", nil)
	req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(c int, _ textproto.MIMEHeader) error {
		codes = append(codes, c)
		return nil
	}}))
	resp, err := h2c(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if fmt.Sprint(codes) != "[103 102]" {
		t.Errorf("HTTP/2 got %v", codes)
	}
}

func TestAFloodOfInterimAnswersIs502(t *testing.T) {
	addr, _ := answering(t, strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 200))
	app := start(t, addr, "").dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\n\n")
	head := app.Head()
	for strings.HasPrefix(head, "HTTP/1.1 103 ") {
		head = app.Head()
	}
	if !strings.HasPrefix(head, "HTTP/1.1 502 ") {
		t.Errorf("final %q", head)
	}
}

func TestExpectIsTheUpstreamsToAnswer(t *testing.T) {
	t.Run("continue", func(t *testing.T) {
		ask := make(chan struct{})
		app := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
			if head := c.Head(); !strings.Contains(head, "Expect: 100-continue\n") {
				t.Errorf("upstream got %q", head)
			}
			<-ask
			c.SendExact("HTTP/1.1 100 Continue\r\n\r\n")
			c.Expect("ok")
			c.SendExact(okAnswer)
		}), "").dial()
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 2\nExpect: 100-continue\n\n")
		close(ask) // the head is upstream although the app has sent no body
		if head := app.Head(); head != "HTTP/1.1 100 Continue\n" {
			t.Fatalf("first %q", head)
		}
		app.SendExact("ok")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
			t.Errorf("final %q", head)
		}
	})
	t.Run("refused", func(t *testing.T) {
		app := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
			c.Head()
			c.SendExact("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
			_, _ = io.Copy(io.Discard, c.In)
		}), "").dial()
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 20000000\nExpect: 100-continue\n\n")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 401 ") {
			t.Errorf("final %q", head)
		}
		app.Expect("no")
	})
	t.Run("an upstream that never says continue", func(t *testing.T) {
		app := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
			c.Head()
			c.Expect("ok")
			c.SendExact(okAnswer)
		}), "").dial()
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\nContent-Length: 2\nExpect: 100-continue\n\n")
		if head := app.Head(); head != "HTTP/1.1 100 Continue\n" { // ours, after a second
			t.Fatalf("first %q", head)
		}
		app.SendExact("ok")
		if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
			t.Errorf("final %q", head)
		}
	})
}

func TestTrailers(t *testing.T) {
	t.Run("of an answer, announced or not", func(t *testing.T) {
		addr, _ := answering(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\nAuthorization: no\r\n\r\n")
		r := start(t, addr, "")
		app := r.dial()
		app.Send("GET /up/x HTTP/1.1\nHost: localhost\nTE: trailers\n\n")
		app.Head()
		app.Expect("2\r\nok\r\n0\r\n")
		trailer := app.Head()
		if !strings.Contains(trailer, "X-Sum: 1\n") || !strings.Contains(trailer, "X-More: 2\n") || strings.Contains(trailer, "Authorization") {
			t.Errorf("trailer %q", trailer)
		}
		resp, err := h2c(t).Get("http://" + r.addr + "/up/x")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(resp.Body)
		if resp.Trailer.Get("X-Sum") != "1" {
			t.Errorf("HTTP/2 trailer %v", resp.Trailer)
		}
	})
	t.Run("of a request", func(t *testing.T) {
		got := make(chan string, 2)
		app := start(t, testenv.ServeRaw(t, func(c *testenv.Raw) {
			got <- c.Head()
			c.Expect("2\r\nok\r\n0\r\n")
			got <- c.Head()
			c.SendExact(okAnswer)
		}), "").dial()
		app.Send("POST /up/x HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\nTrailer: X-Sum, Authorization\n\n2\nok\n0\nX-Sum: 1\nAuthorization: stolen\n\n")
		app.Head()
		head, trailer := <-got, <-got
		if !strings.Contains(head, "Trailer: X-Sum\n") || strings.Contains(head, "Authorization") {
			t.Errorf("head %q", head)
		}
		if trailer != "X-Sum: 1\n" {
			t.Errorf("trailer %q", trailer)
		}
	})
}

func TestPipelinedRequestsRunInOrder(t *testing.T) {
	release := make(chan struct{})
	var order = make(chan string, 4)
	gone := make(chan struct{})
	addr := testenv.ServeRaw(t, func(c *testenv.Raw) {
		for head := c.Head(); head != ""; head = c.Head() {
			path := strings.Fields(head)[1]
			order <- path
			if path == "/slow" {
				<-release
			}
			if path == "/hold" {
				_, _ = io.Copy(io.Discard, c.In)
				close(gone)
				return
			}
			c.SendExact(okAnswer)
		}
	})
	r := start(t, addr, "")
	app := r.dial()
	app.Send("GET /up/slow HTTP/1.1\nHost: localhost\n\nGET /up/next HTTP/1.1\nHost: localhost\n\n")
	if p := <-order; p != "/slow" || len(order) != 0 {
		t.Errorf("began with %s, and %d more", p, len(order))
	}
	close(release)
	for range 2 {
		app.Head()
		app.Expect("ok")
	}
	app.Send("GET /up/hold HTTP/1.1\nHost: localhost\n\nGET /up/never HTTP/1.1\nHost: localhost\n\n")
	<-order // /next
	<-order // /hold
	_ = app.Close()
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("leaving with a pipelined request behind did not cancel")
	}
	if len(order) != 0 {
		t.Errorf("%s was begun for an app that has left", <-order)
	}
}

func TestHTTP10AndKeepAlive(t *testing.T) {
	addr, _ := answering(t, okAnswer)
	r := start(t, addr, "")
	app := r.dial()
	app.Send("GET /up/x HTTP/1.0\n\n")
	app.Head()
	if rest, _ := app.Rest(); rest != "ok" {
		t.Errorf("body %q", rest)
	}
	app = r.dial()
	app.Send("GET /up/x HTTP/1.1\nHost: localhost\nConnection: close\n\n")
	if head := app.Head(); !strings.Contains(head, "Connection: close\n") {
		t.Errorf("head %q", head)
	}
	if rest, _ := app.Rest(); rest != "ok" {
		t.Errorf("body %q", rest)
	}
}
