// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/ingress/peer"
)

// overTLS serves one TLS connection and returns both ends of the client's.
func overTLS(t *testing.T, h http.HandlerFunc) (client *tls.Conn, plain net.Conn) {
	t.Helper()
	ts := httptest.NewUnstartedServer(nil) // for its certificate only
	ts.StartTLS()
	cert := ts.TLS.Certificates[0]
	ts.Close()
	s, err := New(h, Config{Left: peer.Left})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	plain = dial(t, "tcp", l.Addr().String())
	sc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		s.ServeConn(ctx, tls.Server(sc, &tls.Config{Certificates: []tls.Certificate{cert}}))
		close(done)
	}()
	t.Cleanup(func() { plain.Close(); cancel(); <-done })
	return tls.Client(plain, &tls.Config{InsecureSkipVerify: true}), plain
}

func TestOverTLS(t *testing.T) {
	c, _ := overTLS(t, echo)
	br := bufio.NewReader(c)
	body := strings.Repeat("x", 200<<10)
	for range 2 {
		send(t, c, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		if _, got := readAnswer(t, br, "POST"); got != fmt.Sprintf("POST / host=a body=%q", body) {
			t.Fatalf("got %.100q", got)
		}
	}
}

func TestLeavingOverTLS(t *testing.T) {
	for _, full := range []bool{false, true} {
		for _, way := range exitWays("tcp") {
			t.Run(fmt.Sprintf("full %v/%s", full, way.name), func(t *testing.T) {
				began, left := make(chan error, 1), make(chan error, 1)
				c, plain := overTLS(t, func(w http.ResponseWriter, r *http.Request) {
					began <- nil
					<-r.Context().Done()
					left <- context.Cause(r.Context())
				})
				send(t, c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
				within(t, "handler", patience, began)
				if full {
					fillUp(c, false)
				}
				way.do(plain)
				if err := within(t, "leaving", noticed, left); !errors.Is(err, ErrClientLeft) {
					t.Errorf("cause = %v", err)
				}
			})
		}
	}
}

// A body that the handler has closed is discarded as it comes, so that a client
// that sends all before it reads gets on.
func TestClosedBodyIsDiscarded(t *testing.T) {
	closed, sent := make(chan error, 1), make(chan error, 1)
	_, addr := serveOn(t, "tcp", Config{}, func(w http.ResponseWriter, r *http.Request) {
		r.Body.Close()
		if _, err := r.Body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
			t.Errorf("read after close: %v", err)
		}
		closed <- nil
		<-sent
		io.WriteString(w, "done")
	})
	c := dial(t, "tcp", addr)
	send(t, c, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 20<<20))
	within(t, "handler", patience, closed)
	if _, err := c.Write(make([]byte, 20<<20)); err != nil {
		t.Fatal(err)
	}
	sent <- nil
	if _, got := readAnswer(t, bufio.NewReader(c), "POST"); got != "done" {
		t.Errorf("got %q", got)
	}
}
