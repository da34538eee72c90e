// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
)

// canned is a peer that says the same whatever it is asked, and then nothing more.
type cannedConn struct {
	net.Conn // nil: what is not here is not called
	asked    chan struct{}
	r        *bytes.Reader
	closed   chan struct{}
	once     sync.Once // as of a real connection, two may close it at once
}

func (c *cannedConn) Read(p []byte) (int, error) {
	select {
	case <-c.asked:
		return c.r.Read(p)
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *cannedConn) Write(p []byte) (int, error) {
	close(c.asked)
	return len(p), nil
}

func (c *cannedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (*cannedConn) SetDeadline(time.Time) error { return nil }

// FuzzAnswer: any bytes are an answer, or a typed error; and an answer that is
// taken for whole means what net/http takes it to mean.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2;a=b\r\nhi\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.0 200\r\n\r\nuntil the end",
		"HTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 204 N\r\n\r\n",
		"HTTP/1.1 200 OK\nX: a\n b\n\n",
	} {
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, head bool) {
		if len(raw) > 64<<10 {
			t.Skip()
		}
		method := "GET"
		if head {
			method = "HEAD"
		}
		nc := &cannedConn{asked: make(chan struct{}), closed: make(chan struct{}), r: bytes.NewReader(raw)}
		c := New(nc, Config{})
		defer func() { _ = c.Close() }()
		req, _ := http.NewRequestWithContext(t.Context(), method, "http://example.com/", nil)
		resp, err := c.RoundTrip(req)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err != nil {
			if _, ok := errors.AsType[*fault.Error](err); !ok {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		br := bufio.NewReader(bytes.NewReader(raw))
		want, err := http.ReadResponse(br, req)
		for err == nil && want.StatusCode < 200 && want.StatusCode != 101 {
			want, err = http.ReadResponse(br, req)
		}
		if err != nil {
			t.Skip() // it is stricter in matters of taste
		}
		body, err := io.ReadAll(want.Body)
		if err != nil {
			t.Fatalf("taken for whole: %q; net/http: %v", got, err)
		}
		if resp.StatusCode != want.StatusCode || !bytes.Equal(got, body) {
			t.Fatalf("%d %q; net/http: %d %q", resp.StatusCode, got, want.StatusCode, body)
		}
	})
}
