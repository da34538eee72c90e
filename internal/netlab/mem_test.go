// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
)

const delay = 40 * time.Millisecond

func TestPipeDelaysEachDirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netlab.Pipe(delay)
		start := time.Now()
		go func() {
			buf := make([]byte, 16)
			n, _ := b.Read(buf)
			_, _ = b.Write(buf[:n])
		}()
		if _, err := a.Write([]byte("ping")); err != nil || time.Since(start) != 0 {
			t.Fatalf("Write = %v after %v, want at once", err, time.Since(start))
		}
		buf := make([]byte, 16)
		n, err := a.Read(buf)
		if string(buf[:n]) != "ping" || err != nil || time.Since(start) != 2*delay {
			t.Errorf("Read = %q, %v after %v, want the echo after %v", buf[:n], err, time.Since(start), 2*delay)
		}
	})
}

func TestPipeEnds(t *testing.T) {
	tests := []struct {
		name  string
		end   func(*netlab.MemConn)
		read  error // after the bytes sent before the end
		write error // of the peer, once the news has arrived; nil means it still works
	}{
		{"half-close", func(c *netlab.MemConn) { _ = c.CloseWrite() }, io.EOF, nil},
		{"close", func(c *netlab.MemConn) { _ = c.Close() }, io.EOF, syscall.EPIPE},
		{"reset", func(c *netlab.MemConn) { c.Reset() }, syscall.ECONNRESET, syscall.ECONNRESET},
		{"half-close then reset", func(c *netlab.MemConn) { _ = c.CloseWrite(); c.Reset() }, syscall.ECONNRESET, syscall.ECONNRESET},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := netlab.Pipe(delay)
				_, _ = a.Write([]byte("last words"))
				tt.end(a)
				if _, err := b.Write([]byte("x")); err != nil {
					t.Errorf("Write before the news = %v, want nil", err)
				}
				start := time.Now()
				got, err := io.ReadAll(b)
				if tt.read == io.EOF && err != nil || tt.read != io.EOF && !errors.Is(err, tt.read) {
					t.Errorf("read ends with %v, want %v", err, tt.read)
				}
				if string(got) != "last words" || time.Since(start) != delay {
					t.Errorf("read %q in %v, want the last words in %v", got, time.Since(start), delay)
				}
				if _, err := b.Write([]byte("x")); !errors.Is(err, tt.write) {
					t.Errorf("Write after the news = %v, want %v", err, tt.write)
				}
				if tt.write != nil {
					if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
						t.Errorf("Write on the closed end = %v, want net.ErrClosed", err)
					}
				}
			})
		})
	}
}

func TestPipeDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netlab.Pipe(delay)
		start := time.Now()
		_ = a.SetReadDeadline(start.Add(time.Second))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Read = %v after %v, want a timeout after 1s", err, time.Since(start))
		}
		// A deadline set while a read waits ends it, and a later one revives the conn.
		_ = a.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { _ = a.SetReadDeadline(time.Unix(1, 0)) })
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("Read = %v after %v, want a timeout after 2s", err, time.Since(start))
		}
		_ = a.SetReadDeadline(time.Time{})
		_, _ = b.Write([]byte("x"))
		if _, err := a.Read(make([]byte, 1)); err != nil {
			t.Errorf("Read after the deadline was lifted = %v", err)
		}
		// Nobody reads: the buffer fills, and a write waits for its deadline.
		_ = a.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := a.Write(make([]byte, 1<<20))
		if n != 256<<10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write = %d, %v, want 256 KiB and a timeout", n, err)
		}
	})
}

func TestPipeWriterWaitsForReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netlab.Pipe(delay)
		const size = 1 << 20
		go func() {
			_, _ = a.Write(make([]byte, size))
			_ = a.Close()
		}()
		if n, err := io.Copy(io.Discard, b); n != size || err != nil {
			t.Errorf("copied %d, %v, want %d", n, err, size)
		}
		a, b = netlab.Pipe(delay)
		time.AfterFunc(time.Second, func() { _ = b.Close() })
		start := time.Now()
		if _, err := a.Write(make([]byte, size)); !errors.Is(err, syscall.EPIPE) && err != nil {
			t.Errorf("Write = %v", err)
		}
		if time.Since(start) != time.Second {
			t.Errorf("the write ended after %v, want when the peer closes", time.Since(start))
		}
	})
}

func TestMemRefusesWhereNobodyListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := netlab.NewMem()
		m.SetDelay(delay)
		start := time.Now()
		_, err := m.Dial(t.Context(), "tcp", "api.test:443")
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(start) != 2*delay {
			t.Errorf("Dial = %v after %v, want refused after %v", err, time.Since(start), 2*delay)
		}
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		defer cancel()
		if _, err := m.Dial(ctx, "tcp", "api.test:443"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Dial = %v, want the context's end", err)
		}
		if _, err := m.Dial(t.Context(), "udp", "api.test:443"); err == nil {
			t.Error("Dial of UDP works, want an error")
		}
		l, err := m.Listen("api.test:443")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Listen("api.test:443"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("second Listen = %v, want address in use", err)
		}
		waiting, err := m.Dial(t.Context(), "tcp", "api.test:443")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read on a connection nobody accepted = %v, want a reset", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept = %v, want net.ErrClosed", err)
		}
		if l, err = m.Listen("api.test:443"); err != nil {
			t.Errorf("Listen after Close = %v", err)
		}
		_ = l.Close()
	})
}

// A stream of a minute over TLS and HTTP/2, which net.Pipe cannot carry, takes
// its minute and its round trips to the nanosecond.
func TestMemCarriesHTTP2OverTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := netlab.NewMem()
		m.SetDelay(delay)
		l, err := m.Listen("127.0.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 3 {
				time.Sleep(20 * time.Second)
				_, _ = fmt.Fprintf(w, "event %d over HTTP/%d\n", i, r.ProtoMajor)
				_ = http.NewResponseController(w).Flush()
			}
		}))
		_ = server.Listener.Close() // the real socket
		server.Listener = l
		server.EnableHTTP2 = true
		server.StartTLS()
		defer server.Close()
		transport := &http.Transport{
			DialContext:       m.Dial,
			TLSClientConfig:   &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs},
			ForceAttemptHTTP2: true,
		}
		defer transport.CloseIdleConnections()
		start := time.Now()
		resp, err := (&http.Client{Transport: transport}).Get("https://127.0.0.1:443/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := strings.Count(string(body), "over HTTP/2"); got != 3 || err != nil {
			t.Errorf("body %q, %v, want three events over HTTP/2", body, err)
		}
		// TCP, TLS 1.3 and the request are one round trip each.
		if got, want := time.Since(start), time.Minute+3*2*delay; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
	})
}
