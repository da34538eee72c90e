// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// A Conn is one client connection.
type Conn interface {
	RoundTrip(*http.Request) (*http.Response, error)
	InFlight() int
	Err() error
}

// A Target is what is tested.
type Target struct {
	Name  string
	Major int // of its HTTP version
	// Open returns a connection to a server that has the handler. The test ends
	// both.
	Open func(t testing.TB, h http.Handler) Conn
}

// Run runs all cases against each target.
func Run(t *testing.T, targets ...Target) {
	for _, target := range targets {
		for _, tt := range cases {
			t.Run(target.Name+"/"+tt.name, func(t *testing.T) {
				c := &client{Target: target, conn: target.Open(t, tt.handler)}
				c.open = func() Conn { return target.Open(t, tt.handler) }
				tt.run(t, c)
				Eventually(t, "nothing is in flight any more", func() bool { return c.conn.InFlight() == 0 })
				if err := c.conn.Err(); err != nil && target.Major > 1 {
					t.Errorf("the connection died: %v", err)
				}
			})
		}
	}
}

// A client is a connection, and the next one where the protocol has no other way
// to end an exchange early than the connection's end.
type client struct {
	Target
	conn Conn
	open func() Conn
}

// RoundTrip sends a request.
func (c *client) RoundTrip(req *http.Request) (*http.Response, error) {
	if c.Major == 1 && (c.conn.Err() != nil || c.conn.InFlight() > 0) {
		c.conn = c.open()
	}
	return c.conn.RoundTrip(req)
}

func do(t testing.TB, c *client, req *http.Request) *http.Response {
	t.Helper()
	resp, err := c.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func readAll(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("body: %v", err)
	}
	_ = resp.Body.Close()
	return string(b)
}

func request(t testing.TB, method, target string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, "https://example.com"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// Eventually waits for what other goroutines bring about.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(5 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// A Body is a request's body that says when it is over, and counts how often it
// was closed.
type Body struct {
	R      io.Reader
	End    func() // nil: nobody is told
	Closed atomic.Int32
}

func (b *Body) Read(p []byte) (int, error) {
	n, err := b.R.Read(p)
	if err == io.EOF && b.End != nil {
		b.End()
	}
	return n, err
}

// Close counts.
func (b *Body) Close() error {
	b.Closed.Add(1)
	return nil
}
