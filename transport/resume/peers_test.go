// SPDX-License-Identifier: Apache-2.0

package resume_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/mockapi"
	"github.com/warmwire/warmwire/transport/resume"
)

// numbers are the sequence numbers of a stream, in order.
func numbers(t *testing.T, stream []byte) (got []int) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(stream))
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e struct {
			Sequence int `json:"sequence_number"`
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Sequence)
	}
	return got
}

// A model API over real connections cuts the stream and each continuation after a few
// events, or resets it, or ends it as if it were whole.
func TestModelAPICutsTheStream(t *testing.T) {
	api, err := mockapi.New(mockapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	real := &http.Transport{DisableCompression: true}
	defer real.CloseIdleConnections()
	ask := func(t *testing.T, next http.RoundTripper, background bool, fields ...string) ([]byte, error) {
		content := fmt.Sprintf(`{"model":"mock","input":"hello","stream":true,"background":%v,"store":true}`, background)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL()+"/v1/responses", strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Mock-Tokens", "30")
		for i := 0; i < len(fields); i += 2 {
			req.Header.Set(fields[i], fields[i+1])
		}
		resp, err := next.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return io.ReadAll(resp.Body)
	}
	var want []int
	for i := range 39 { // thirty tokens and nine events around them
		want = append(want, i)
	}
	for _, fault := range [][]string{
		{"Mock-Cut", "4"}, {"Mock-Reset", "3"}, {"Mock-Clean", "5"}, {"Mock-Cut", "2", "Mock-Split", "true"}, {"Mock-Reset", "1"},
		{"Mock-Cut", "4", "Mock-Comments", "true", "Mock-Eol", "crlf"}, {"Mock-Clean", "1"}, {"Mock-Cut", "7", "Mock-Gap", "1ms"},
	} {
		t.Run(strings.Join(fault, " "), func(t *testing.T) {
			var breaks atomic.Int32
			tr := newTransport(t, real, resume.Config{BaseDelay: time.Millisecond, OnResume: func(r resume.Result) {
				if breaks.Add(1); r != resume.Resumed {
					t.Errorf("a break was %s", r)
				}
			}})
			got, err := ask(t, tr, true, fault...)
			if n := numbers(t, got); err != nil || !slices.Equal(n, want) {
				t.Errorf("got %v, %v; want each number up to %d once", n, err, len(want)-1)
			}
			if breaks.Load() < 3 {
				t.Errorf("%d breaks, want more", breaks.Load())
			}
			got, err = ask(t, tr, false, fault...)
			if n := numbers(t, got); len(n) >= len(want)-1 || err == nil && fault[0] != "Mock-Clean" {
				t.Errorf("a stream that is not kept: got %v, %v; want the break", n, err)
			}
		})
	}
}

// BenchmarkStream compares a stream of a thousand tokens through the layer, where it
// may be continued, with one that passes.
func BenchmarkStream(b *testing.B) {
	var content strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&content, "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":%d,\"item_id\":\"msg_68a1\",\"output_index\":0,\"content_index\":0,\"delta\":\" token\",\"logprobs\":[],\"obfuscation\":\"abcdefgh\"}\n\n", i+1)
	}
	for name, background := range map[string]bool{"passed": false, "held whole": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			first := record("\n", background, true)[0]
			end := "data: {\"type\":\"response.completed\",\"sequence_number\":1001}\n\n"
			all := first + content.String() + end
			b.SetBytes(int64(len(all)))
			u := &upstream{}
			tr := newTransport(b, way(func(*http.Request) (*http.Response, error) {
				return events(&body{u: u, r: strings.NewReader(all), end: io.EOF}), nil
			}), resume.Config{})
			u.chunk = 230 // about one event
			req := post(b)
			p := make([]byte, 4096)
			for b.Loop() {
				resp, err := tr.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				n := 0
				for err == nil {
					var m int
					m, err = resp.Body.Read(p)
					n += m
				}
				if n != len(all) {
					b.Fatalf("got %d of %d bytes, %v", n, len(all), err)
				}
			}
		})
	}
}
