// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// pipes is a listener whose connections are net.Pipe ends.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, errors.New("closed")
	}
}

// bubble runs f with a client and a server that have exact time.
func bubble(t *testing.T, f func(t *testing.T, s *Server, c *http.Client)) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s, err := New(Config{Listener: l, TLSAddr: "off"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		tr := &http.Transport{DialContext: l.dial, DisableCompression: true}
		f(t, s, &http.Client{Transport: tr})
		tr.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestPaceIsExact(t *testing.T) {
	bubble(t, func(t *testing.T, _ *Server, c *http.Client) {
		start := time.Now()
		resp, err := c.Post("http://mock/v1/messages", "application/json", strings.NewReader(`{"model":"mock?tokens=4&head=1s&ttft=200ms&gap=10ms&stall=5:1h","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := time.Since(start); got != time.Second {
			t.Errorf("head after %v, want 1s", got)
		}
		var at []time.Duration
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if lines.Text() == "event: content_block_delta" {
				at = append(at, time.Since(start)-time.Second)
			}
		}
		want := []time.Duration{200 * time.Millisecond, 210 * time.Millisecond, time.Hour + 220*time.Millisecond, time.Hour + 230*time.Millisecond}
		if string(mustJSON(at)) != string(mustJSON(want)) {
			t.Errorf("tokens at %v, want %v", at, want)
		}
	})
}

func TestSlowUpload(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, c *http.Client) {
		r, _ := http.NewRequest("POST", "http://mock/v1/files", strings.NewReader(strings.Repeat("x", 10<<10)))
		r.Header.Set("Mock-Read", "1k")
		start := time.Now()
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		// Each piece's wait is rounded down to a nanosecond.
		if took := time.Since(start).Round(time.Millisecond); took != 10*time.Second || !strings.Contains(string(b), `"size":10240`) {
			t.Errorf("took %v, want 10s: %s", took, b)
		}
		synctest.Wait() // the bytes are counted when the handler has returned
		if got := s.Stats().BytesIn; got != 10<<10 {
			t.Errorf("counted %d bytes, want %d", got, 10<<10)
		}
	})
}

// TestBackgroundResponse loses its stream and resumes it.
func TestBackgroundResponse(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, c *http.Client) {
		create := func(model string) {
			resp, err := c.Post("http://mock/v1/responses", "application/json", strings.NewReader(`{"model":"`+model+`","stream":true,"background":true,"store":true}`))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil || strings.Count(string(b), "event: ") != 6 {
				t.Errorf("%v, want a broken stream of 6 events: %s", err, b)
			}
		}
		create("mock?tokens=10&gap=1s&cut=6")
		id := s.store.order[0]
		read := func(method, path string) string {
			r, _ := http.NewRequest(method, "http://mock/v1/responses/"+id+path, nil)
			resp, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			return string(b)
		}
		if got := read("GET", ""); !strings.Contains(got, `"status":"in_progress"`) {
			t.Errorf("while it runs: %s", got)
		}
		start := time.Now()
		rest := read("GET", "?stream=true&starting_after=5")
		if took := time.Since(start); took != 9*time.Second {
			t.Errorf("the rest took %v, want 9s", took)
		}
		if n := strings.Count(rest, "event: "); n != 13 || strings.Contains(rest, `"sequence_number":5,`) || !strings.Contains(rest, "response.completed") {
			t.Errorf("%d events, want 13 from 6 on: %s", n, rest)
		}
		if got := read("POST", "/cancel"); !strings.Contains(got, `"status":"completed"`) {
			t.Errorf("cancel after the end: %s", got)
		}
		create("mock?tokens=11&gap=1s&cut=6")
		id = s.store.order[1]
		if got := read("POST", "/cancel"); !strings.Contains(got, `"status":"cancelled"`) {
			t.Errorf("cancel: %s", got)
		}
	})
}

func TestRunEndsWithOpenStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s, err := New(Config{Listener: l, TLSAddr: "off"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		tr := &http.Transport{DialContext: l.dial}
		resp, err := (&http.Client{Transport: tr}).Post("http://mock/v1/chat/completions", "", strings.NewReader(`{"model":"mock?stall=1","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if n := s.Stats(); n.InFlight != 0 || n.Cancelled != 0 {
			t.Errorf("stats %+v, want none in flight and none cancelled by a client", n)
		}
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("the stream ended well")
		}
	})
}

func FuzzOptions(f *testing.F) {
	f.Add("mock?tokens=50&gap=10ms&ttft=200ms&cut=3")
	f.Add("mock;stall=1:2s,reset=head:conn")
	f.Add("mock?goaway=1:abrupt&eol=cr&gzip=force&%zz=1")
	f.Fuzz(func(t *testing.T, model string) {
		o := defaultOptions()
		if o.fromModel(model) != nil {
			return
		}
		if o.Tokens < 0 || o.Tokens > maxTokens || o.Size > maxTokenSize || o.Gap < 0 || o.EOL == "" || o.Read != 0 || o.NoRead || o.Reject {
			t.Errorf("%q gave %+v", model, o)
		}
	})
}

// FuzzFrameEdge says that edges do not depend on how bytes are cut.
func FuzzFrameEdge(f *testing.F) {
	f.Add([]byte("\x00\x00\x02\x01\x00\x00\x00\x00\x01ab\x00\x00\x00\x04\x00\x00\x00\x00\x00"), 3)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		count := func(step int) (n int) {
			var e frameEdge
			for rest := b; len(rest) > 0; {
				piece := rest[:min(step, len(rest))]
				used := e.step(piece, func(http2.FrameType, uint32) { n++ })
				if used <= 0 {
					t.Fatalf("no progress in %x", piece)
				}
				rest = rest[used:]
			}
			return n
		}
		if cut < 1 {
			return
		}
		if whole, pieces := count(len(b)+1), count(cut); whole != pieces {
			t.Errorf("%d frames whole and %d in pieces of %d", whole, pieces, cut)
		}
	})
}
