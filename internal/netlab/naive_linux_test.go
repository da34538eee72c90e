// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/netlab"
)

// These tests show that the lab can make happen what clients suffer from: each
// has a naive client that fails, and the same thing done anew that works.

// naive is an HTTP client as SDKs have it: a pool, and a limit for a whole call.
func naive(t testing.TB, lab *netlab.Lab) *http.Client {
	transport := &http.Transport{DialContext: lab.Client.Dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Second}
}

// serveHTTP serves on the lab's server and returns the URL.
func serveHTTP(t testing.TB, lab *netlab.Lab, h http.Handler) string {
	t.Helper()
	l, err := lab.Server.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close() // the machine's own
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return "http://" + net.JoinHostPort(lab.Server.Addr4().String(), port)
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

func post(c *http.Client, url string) error {
	resp, err := c.Post(url, "text/plain", strings.NewReader("hello"))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", resp.Status)
	}
	return err
}

// forgotten waits until the NAT has forgotten all flows by itself.
func forgotten(t testing.TB, lab *netlab.Lab) {
	t.Helper()
	eventually(t, "flows forgotten", func() bool { return stats(t, lab).Flows == 0 })
}

func stats(t testing.TB, lab *netlab.Lab) netlab.Stats {
	t.Helper()
	s, err := lab.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestIdleKillMakesNaiveClientsFail(t *testing.T) {
	t.Parallel()
	const idle = 250 * time.Millisecond
	tests := []struct {
		name  string
		nat   netlab.NAT
		fails func(error) bool
	}{
		{"NAT forgets in silence", netlab.NAT{On: true, Idle: idle}, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded)
		}},
		{"NAT resets", netlab.NAT{On: true, Idle: idle, Reset: true}, isReset},
		{"load balancer resets on reuse", netlab.NAT{On: true, Idle: idle, Reset: true, AtServer: true}, isReset},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			link := netlab.Link{Delay: 10 * time.Millisecond}
			lab := newLab(t, netlab.Config{Up: link, Down: link, NAT: tt.nat})
			url := serveHTTP(t, lab, http.HandlerFunc(ok))
			client := naive(t, lab)
			if err := post(client, url); err != nil {
				t.Fatalf("first call: %v", err)
			}
			forgotten(t, lab)
			if err := post(client, url); !tt.fails(err) {
				t.Errorf("a call on the idle connection = %v", err)
			}
			if err := post(naive(t, lab), url); err != nil {
				t.Errorf("a call on a fresh connection = %v", err)
			}
			if drops := stats(t, lab).Up.Dropped[netlab.CauseFlow]; drops == 0 {
				t.Error("no packet was dropped for an unknown flow")
			}
		})
	}
}

func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }

// A model that thinks for two minutes behind a delivery network with a limit of
// 100 s, on a fake clock.
func TestIdleKillByCDN(t *testing.T) {
	tests := []struct {
		name   string
		origin func(w http.ResponseWriter, think func(time.Duration))
		status int
		cut    bool
		after  time.Duration
	}{
		{"answer after 99 s", func(_ http.ResponseWriter, think func(time.Duration)) { think(99 * time.Second) }, 200, false, 99 * time.Second},
		{"answer after 120 s", func(_ http.ResponseWriter, think func(time.Duration)) { think(120 * time.Second) }, 524, false, 100 * time.Second},
		{"stream with a byte every 60 s", func(w http.ResponseWriter, think func(time.Duration)) {
			for range 3 {
				_, _ = io.WriteString(w, ":\n\n")
				_ = http.NewResponseController(w).Flush()
				think(60 * time.Second)
			}
		}, 200, false, 180 * time.Second},
		{"stream that falls silent", func(w http.ResponseWriter, think func(time.Duration)) {
			_, _ = io.WriteString(w, ":\n\n")
			_ = http.NewResponseController(w).Flush()
			think(120 * time.Second)
		}, 200, true, 100 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := netlab.NewMem()
				serve := func(addr string, h http.Handler) {
					l, err := mem.Listen(addr)
					if err != nil {
						t.Fatal(err)
					}
					s := httptest.NewUnstartedServer(h)
					_ = s.Listener.Close()
					s.Listener = l
					s.Start()
					t.Cleanup(s.Close)
				}
				transport := &http.Transport{DialContext: mem.Dial}
				t.Cleanup(transport.CloseIdleConnections)
				serve("origin.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					tt.origin(w, func(d time.Duration) {
						select {
						case <-time.After(d):
						case <-r.Context().Done(): // nobody waits any more
						}
					})
				}))
				origin := &url.URL{Scheme: "http", Host: "origin.test:80"}
				serve("api.test:80", netlab.CDN(origin, transport, 100*time.Second))
				start := time.Now()
				resp, err := (&http.Client{Transport: transport}).Get("http://api.test/")
				if err != nil {
					t.Fatal(err)
				}
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != tt.status || (err != nil) != tt.cut || time.Since(start) != tt.after {
					t.Errorf("status %d, body's end %v, after %v; want %d, cut %v, after %v",
						resp.StatusCode, err, time.Since(start), tt.status, tt.cut, tt.after)
				}
				synctest.Wait()
			})
		})
	}
}

// A process that sleeps while its flow is forgotten wakes up with a dead socket.
func TestSleepLeavesSocketsStale(t *testing.T) {
	t.Parallel()
	lab := newLab(t, netlab.Config{NAT: netlab.NAT{On: true, Idle: 250 * time.Millisecond}})
	addr := net.JoinHostPort(lab.Server.Addr6().String(), serveEcho(t, lab.Server))
	sleeper := startChild(t, lab.Client, childSleeper, addr)
	sleeper.expect(t, "first: pong")
	thaw, err := netlab.Freeze(sleeper.cmd.Process)
	if err != nil {
		t.Fatal(err)
	}
	forgotten(t, lab)
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(sleeper.in, "go on\n")
	sleeper.expect(t, "old: i/o timeout")
	sleeper.expect(t, "fresh: pong")
}

// sleeper is a client process that keeps a connection over its sleep.
func sleeper(addr string) {
	const patience = 10 * time.Second // for what must work, however busy the machine
	conn, err := net.Dial("tcp", addr)
	fmt.Println("first:", ask(conn, err, patience))
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	fmt.Println("old:", ask(conn, nil, 500*time.Millisecond))
	conn, err = net.Dial("tcp", addr)
	fmt.Println("fresh:", ask(conn, err, patience))
}

// ask sends a word over an echo connection, and says what comes back.
func ask(c net.Conn, err error, limit time.Duration) string {
	if err == nil {
		err = c.SetDeadline(time.Now().Add(limit))
	}
	if err == nil {
		_, err = io.WriteString(c, "pong")
	}
	answer := make([]byte, 4)
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if ne, ok := errors.AsType[*net.OpError](err); ok {
		err = ne.Err
	}
	if err != nil {
		return err.Error()
	}
	return string(answer)
}
