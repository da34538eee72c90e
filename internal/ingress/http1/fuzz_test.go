// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httputil"
	"reflect"
	"strings"
	"testing"
)

// FuzzRequestHead: whatever is accepted means the same to net/http.
func FuzzRequestHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST /x?y HTTP/1.1\r\nHost: a:1\r\nContent-Length: 5\r\n\r\n",
		"POST http://b/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nX: a\r\nX: b\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	s, err := New(http.NotFoundHandler(), Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c := &conn{srv: s, in: raw, e: len(raw)}
		n, refusal := c.scanHeadLocked()
		if refusal != nil || n <= 0 {
			return
		}
		head := string(raw[c.r : c.r+n])
		got := (&http.Request{}).WithContext(context.Background())
		fr, refusal := parseHead(head, got)
		if refusal != nil {
			return
		}
		want, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
		if err != nil {
			compareRefused(t, head, got, err)
			return
		}
		if got.Method != want.Method || got.RequestURI != want.RequestURI || got.Host != want.Host && want.Host != "" {
			t.Errorf("%q: got %s %s %s, want %s %s %s", head, got.Method, got.RequestURI, got.Host, want.Method, want.RequestURI, want.Host)
		}
		if fr.chunked != (want.ContentLength == -1) || !fr.chunked && fr.length != want.ContentLength {
			t.Errorf("%q: framing %+v, want length %d", head, fr, want.ContentLength)
		}
		delete(want.Header, "Trailer")
		delete(got.Header, "Trailer")
		if got.Header.Get("Pragma") == "no-cache" { // net/http adds to it
			delete(want.Header, "Cache-Control")
			delete(got.Header, "Cache-Control")
		}
		if !reflect.DeepEqual(got.Header, want.Header) {
			t.Errorf("%q: header %v, want %v", head, got.Header, want.Header)
		}
		if got.URL.Path != want.URL.Path || got.URL.RawQuery != want.URL.RawQuery || got.URL.EscapedPath() != want.URL.EscapedPath() {
			t.Errorf("%q: URL %#v, want %#v", head, got.URL, want.URL)
		}
	})
}

// compareRefused allows what net/http refuses for reasons of its own: targets
// that are no URL, its own field name rules and its sanity checks.
func compareRefused(t *testing.T, head string, got *http.Request, err error) {
	switch msg := err.Error(); {
	case strings.Contains(msg, "parse "): // of the URL
	case strings.Contains(msg, "malformed HTTP version") && got.Proto == "HTTP/1.1": // 1.2 and the like
	case strings.Contains(msg, "bad trailer key"):
	default:
		t.Errorf("%q: accepted, but net/http says %v", head, err)
	}
}

// FuzzChunked: the body is the same whatever the pieces it arrives in, and the
// same as net/http's where that accepts it.
func FuzzChunked(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\nrest", "a ;q\r\n0123456789\r\n0\r\n\r\n"} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, raw []byte, step uint8) {
		whole, used, errWhole := decodeAll(raw, len(raw))
		parts, usedParts, errParts := decodeAll(raw, int(step)+1)
		if !bytes.Equal(whole, parts) || used != usedParts || (errWhole == nil) != (errParts == nil) {
			t.Fatalf("%q: whole %q %d %v, in parts %q %d %v", raw, whole, used, errWhole, parts, usedParts, errParts)
		}
		if errWhole != nil || used < 0 {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(raw)))
		if err == nil && !bytes.Equal(whole, want) {
			t.Errorf("%q: got %q, want %q", raw, whole, want)
		}
	})
}

// decodeAll returns the data and the number of bytes used, -1 if the end is missing.
func decodeAll(raw []byte, step int) (data []byte, used int, refusal *RequestError) {
	d := chunkDecoder{max: 1 << 10}
	for used < len(raw) && d.state != chunkDone {
		piece := append([]byte(nil), raw[used:min(len(raw), used+step)]...)
		n, k, refusal := d.decode(piece)
		data = append(data, piece[:n]...)
		used += k
		if refusal != nil {
			return data, used, refusal
		}
	}
	if d.state != chunkDone {
		return data, -1, nil
	}
	return data, used, nil
}
