// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

func TestRefusedRequests(t *testing.T) {
	const host = "Host: a\r\n"
	tests := []struct {
		name, raw, status string
	}{
		{"bare LF", "GET / HTTP/1.1\nHost: a\n\n", "400"},
		{"bare LF in fields", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", "400"},
		{"bare CR in value", "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", "400"},
		{"bare CR in line", "GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"NUL in value", "GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", "400"},
		{"space before colon", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\nhello", "400"},
		{"folded field", "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", "400"},
		{"fold as first field", "GET / HTTP/1.1\r\n X: a\r\nHost: a\r\n\r\n", "400"},
		{"empty field name", "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", "400"},
		{"no colon", "GET / HTTP/1.1\r\nHost: a\r\nfoo\r\n\r\n", "400"},
		{"name not ASCII", "GET / HTTP/1.1\r\nHost: a\r\nX\xff: b\r\n\r\n", "400"},
		{"length and coding", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"coding and length", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "400"},
		{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "400"},
		{"two different lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "400"},
		{"list of lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello", "400"},
		{"signed length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello", "400"},
		{"negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello", "400"},
		{"hex length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello", "400"},
		{"empty length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nhello", "400"},
		{"overflowing length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\n", "400"},
		{"long overflowing length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551621\r\n\r\nhello", "400"},
		{"gzip then chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"},
		{"gzip line, chunked line", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "501"},
		{"chunked not last", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", "400"},
		{"chunked twice", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "400"},
		{"chunked on two lines", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"xchunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"},
		{"identity", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", "400"},
		{"empty coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", "400"},
		{"empty coding before chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n", "400"},
		{"chunked with VT", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", "400"},
		{"chunked with parameter", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", "400"},
		{"coding in HTTP/1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"no host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", "400"},
		{"no host in absolute form", "GET http://a/ HTTP/1.1\r\nX: y\r\n\r\n", "400"},
		{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"},
		{"host with userinfo", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "400"},
		{"host with space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400"},
		{"host with bad port", "GET / HTTP/1.1\r\nHost: a:x\r\n\r\n", "400"},
		{"host with large port", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", "400"},
		{"host with path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"},
		{"host with comma list", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400"},
		{"host open bracket", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", "400"},
		{"host two colons", "GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", "400"},
		{"userinfo in target", "GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"no authority in target", "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"target without form", "GET foo HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"fragment", "GET /#x HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"control in target", "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"tab in request line", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"space in target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"trailing space", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "400"},
		{"bad method", "G(T / HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"star for GET", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"CONNECT without port", "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"CONNECT with path", "CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"HTTP/0.9", "GET /\r\n\r\n", "400"},
		{"HTTP/0.9 said", "GET / HTTP/0.9\r\n\r\n", "505"},
		{"HTTP/2.0", "GET / HTTP/2.0\r\n" + host + "\r\n", "505"},
		{"HTTP/2 preface without HTTP2", preface, "505"},
		{"lower case version", "GET / http/1.1\r\n" + host + "\r\n", "400"},
		{"long version", "GET / HTTP/1.10\r\n" + host + "\r\n", "400"},
		{"many empty lines", "\r\n\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"unknown expectation", "GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", "417"},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"},
		{"binary", "\x00\x01\x02", "400"},
		{"long line", "GET /" + strings.Repeat("a", 70<<10), "414"},
		{"large fields", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 70<<10), "431"},
		{"large fields, complete", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 70<<10) + "\r\n\r\n", "431"},
	}
	for _, chunk := range []string{
		"5\r\nhelloX\r\n0\r\n\r\n", "5\nhello\r\n0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "+5\r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n",
		"-1\r\n", "\r\n", ";x\r\n", " 5\r\nhello\r\n", "5 \r\nhello\r\n", "5;a\rb\r\nhello\r\n", "5;a\nb\r\n", "10000000000000000\r\n", "FFFFFFFFFFFFFFFF\r\n",
		"00000000000000005\r\nhello\r\n", "5;" + strings.Repeat("a", 5000) + "\r\nhello\r\n0\r\n\r\n",
		strings.Repeat("1;"+strings.Repeat("x", 1000)+"\r\na\r\n", 30) + "0\r\n\r\n",
		"0\r\nX : y\r\n\r\n", "0\r\n folded\r\n\r\n", "0\r\nX: a\x00b\r\n\r\n", "0\r\nX: y\n\r\n", "0\r\n\n",
	} {
		tests = append(tests, struct{ name, raw, status string }{
			fmt.Sprintf("chunk %.20q", chunk), "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, "400"})
	}
	var refused atomic.Int64
	_, addr := serveOn(t, "tcp", Config{Malformed: func(int, string) { refused.Add(1) }}, echo)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// A second request must never be seen behind a refused one.
			got := talk(t, addr, tt.raw+"GET /second HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			if status(got) != tt.status || !strings.Contains(got, "Connection: close\r\n") || strings.Contains(got, "second") {
				t.Errorf("got %q, want status %s and the end", got, tt.status)
			}
		})
	}
	if n := refused.Load(); n != int64(len(tests)) {
		t.Errorf("Malformed was called %d times for %d requests", n, len(tests))
	}
}

func TestTLSHelloIsTold(t *testing.T) {
	_, addr := serveOn(t, "tcp", Config{}, echo)
	if got := talk(t, addr, "\x16\x03\x01"); !strings.Contains(got, "use http:// for the proxy URL") {
		t.Errorf("got %q", got)
	}
}

func TestAcceptedRequests(t *testing.T) {
	tests := []struct {
		name, raw, want string
	}{
		{"plain", "GET /x?y HTTP/1.1\r\nHost: a:80\r\n\r\n", `GET /x?y host=a:80 body=""`},
		{"empty lines first", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", `GET / host=a body=""`},
		{"odd escapes", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", `GET /%zz host=a body=""`},
		{"odd octets", "GET /\xff|{}\"<>^` HTTP/1.1\r\nHost: a\r\n\r\n", "GET /\xff|{}\"<>^` host=a body=\"\""},
		{"absolute form wins", "GET http://b:8080/x HTTP/1.1\r\nHost: a\r\n\r\n", `GET http://b:8080/x host=b:8080 body=""`},
		{"absolute form without path", "GET http://b HTTP/1.1\r\nHost: a\r\n\r\n", `GET http://b host=b body=""`},
		{"absolute odd escapes", "GET http://b/%zz HTTP/1.1\r\nHost: a\r\n\r\n", `GET http://b/%zz host=b body=""`},
		{"options", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", `OPTIONS * host=a body=""`},
		{"ipv6", "GET / HTTP/1.1\r\nHost: [::1]:8484\r\n\r\n", `GET / host=[::1]:8484 body=""`},
		{"empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", `GET / host= body=""`},
		{"length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", `POST / host=a body="hello"`},
		{"leading zeros", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 005\r\n\r\nhello", `POST / host=a body="hello"`},
		{"chunked", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", `POST / host=a body="hello world"`},
		{"chunked in capitals and space", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:  \tCHUNKED \r\n\r\n5\r\nhello\r\n0\r\n\r\n", `POST / host=a body="hello"`},
		{"extensions", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n005;a=b;c=\"d\"\r\nhello\r\n0 ;x\r\n\r\n", `POST / host=a body="hello"`},
		{"trailers", "POST / HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\nX-Late: 2\r\nHost: evil\r\nContent-Length: 3\r\nAuthorization: x\r\n\r\n",
			`POST / host=a body="a" trailer=map[X-Late:[2] X-Sum:[1]]`},
		{"many small fields", "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a: b\r\n", 2000) + "\r\n", `GET / host=a body=""`},
		{"expectation", "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 5\r\n\r\nhello", `POST / host=a body="hello"`},
		{"future minor version", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", `GET / host=a body=""`},
	}
	_, addr := serveOn(t, "tcp", Config{}, echo)
	for _, tt := range tests {
		for _, step := range []int{1 << 20, 1, 7} { // arriving whole and in pieces
			t.Run(fmt.Sprintf("%s/%d", tt.name, step), func(t *testing.T) {
				if step == 1 && len(tt.raw) > 1000 {
					t.Skip("one by one only for short ones")
				}
				c := dial(t, "tcp", addr)
				raw := tt.raw + tt.raw // and the connection is kept, nothing left over
				for len(raw) > 0 {
					n := min(step, len(raw))
					send(t, c, raw[:n])
					raw = raw[n:]
				}
				br := bufio.NewReader(c)
				for range 2 {
					if _, got := readAnswer(t, br, "GET"); got != tt.want {
						t.Fatalf("got %q, want %q", got, tt.want)
					}
				}
			})
		}
	}
}

func TestRequestFieldsAreFilled(t *testing.T) {
	seen := make(chan *http.Request, 1)
	_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if Conn(r.Context()) == nil || Conn(r.Context()).RemoteAddr().String() != r.RemoteAddr {
			t.Error("no connection in the context")
		}
		if a := r.Context().Value(http.LocalAddrContextKey); fmt.Sprint(a) == "<nil>" {
			t.Error("no local address in the context")
		}
		seen <- r
	})
	talk(t, addr, "POST /a%2Fb?c=d HTTP/1.1\r\nhost: h\r\nx-y: 1\r\nX-Y: 2\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\nConnection: close\r\n\r\n0\r\nT: u\r\n\r\n")
	r := <-seen
	if r.URL.Path != "/a/b" || r.URL.EscapedPath() != "/a%2Fb" || r.URL.RawQuery != "c=d" || r.Proto != "HTTP/1.1" || !r.Close || r.ContentLength != -1 {
		t.Errorf("got %+v, URL %+v", r, r.URL)
	}
	if fmt.Sprint(r.Header) != "map[Connection:[close] X-Y:[1 2]]" || fmt.Sprint(r.Trailer) != "map[T:[u]]" || fmt.Sprint(r.TransferEncoding) != "[chunked]" {
		t.Errorf("got header %v, trailer %v, coding %v", r.Header, r.Trailer, r.TransferEncoding)
	}
}
