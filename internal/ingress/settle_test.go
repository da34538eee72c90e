// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
)

// drained starts a Server with one request whose answer is written but for its last chunk,
// which the app has not read, and drains it. It returns the app's side, and the end.
func drained(t *testing.T) (app *bufio.Reader, over <-chan struct{}) {
	up := roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader("token"))}, nil
	})
	s, err := New(&Table{Upstreams: []*Upstream{{Name: "up", URL: &url.URL{Scheme: "http", Host: "up.test"}, Dialect: dialect.OpenAI, Transport: up}},
		Forward: Forward{Transport: up, Dial: (&net.Dialer{}).DialContext}}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe() // a write waits until it is read
	s.slots <- struct{}{}
	go s.serveConn(near)
	if _, err := io.WriteString(far, "GET /up/x HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	app = bufio.NewReader(far)
	for line := ""; line != "5\r\n"; { // the head, and the size of the one chunk
		if line, err = app.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.ReadFull(app, make([]byte, len("token\r\n"))); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if n := s.Running(); n != 0 || app.Buffered() != 0 {
		t.Fatalf("%d requests run, %d bytes are there: nothing is left to be shown", n, app.Buffered())
	}
	end := make(chan struct{})
	go func() {
		s.Drain(context.Background())
		s.Abort()
		close(end)
	}()
	synctest.Wait()
	return app, end
}

// TestDrainLetsTheEndOfAnAnswerOut: a request is over when its handler is, and its last
// chunk is written after that. Without it the answer looks cut.
func TestDrainLetsTheEndOfAnAnswerOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app, over := drained(t)
		rest, err := io.ReadAll(app)
		if string(rest) != "0\r\n\r\n" || err != nil {
			t.Errorf("the end is %q, %v", rest, err)
		}
		<-over
	})
}

// An app that does not read keeps nothing.
func TestDrainWaitsForNoAppThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, over := drained(t)
		<-over
		if took := time.Since(began); took < settleLimit || took > 3*settleLimit {
			t.Errorf("it took %v, want about %v", took, settleLimit)
		}
	})
}
