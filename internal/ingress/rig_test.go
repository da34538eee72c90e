// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/testenv"
)

// patience bounds every wait of a test; nothing passes by waiting it out.
const patience = 10 * time.Second

// A rig is a Server on loopback with one upstream whose bytes the test writes.
type rig struct {
	t       testing.TB
	server  *Server
	table   *Table
	addr    string
	records chan *Record
}

// stdTransport is what the tests use for the way out: the standard library's,
// with the raw target passed on where it can be.
type stdTransport struct{ *http.Transport }

func (s stdTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	if u, err := url.ParseRequestURI(r.RequestURI); err == nil {
		out.URL.Path, out.URL.RawPath, out.URL.RawQuery = u.Path, u.RawPath, u.RawQuery
	}
	out.RequestURI = ""
	return s.Transport.RoundTrip(out)
}

func newTransport() stdTransport {
	return stdTransport{&http.Transport{DisableCompression: true, ExpectContinueTimeout: time.Second}}
}

// newRig starts a Server. change may alter the table and the upstream first.
func newRig(t testing.TB, upstream string, change func(*Table, *Upstream)) *rig {
	t.Helper()
	return newRigWith(t, upstream, Config{}, change)
}

// newRigWith is newRig with a configuration of which the hooks are the rig's.
func newRigWith(t testing.TB, upstream string, cfg Config, change func(*Table, *Upstream)) *rig {
	t.Helper()
	cfg.Hooks = Hooks{}
	return newRigFrom(t, &cfg, upstream, change)
}

// newRigFrom is newRig with a configuration that change may still alter; of its hooks
// the rig has RequestDone.
func newRigFrom(t testing.TB, cfg *Config, upstream string, change func(*Table, *Upstream)) *rig {
	t.Helper()
	tr := newTransport()
	t.Cleanup(tr.CloseIdleConnections)
	u := &Upstream{Name: "up", URL: &url.URL{Scheme: "http", Host: upstream}, Dialect: dialect.OpenAI, Transport: tr}
	var d net.Dialer
	tab := &Table{Upstreams: []*Upstream{u}, Forward: Forward{Transport: tr, Dial: d.DialContext}, Via: true}
	if change != nil {
		change(tab, u)
	}
	r := &rig{t: t, table: tab, records: make(chan *Record, 1000)}
	var err error
	cfg.Hooks.RequestDone = func(rec *Record) { r.records <- rec }
	r.server, err = New(tab, *cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.server.Serve(ctx, ln); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	running.Go(func() {
		if err := r.server.ServeHTTP2(); err != nil {
			t.Errorf("ServeHTTP2: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		r.server.Abort()
		running.Wait()
	})
	return r
}

// record waits for the next finished request.
func (r *rig) record() *Record {
	r.t.Helper()
	select {
	case rec := <-r.records:
		return rec
	case <-time.After(patience):
		r.t.Fatal("no request has finished")
		return nil
	}
}

// dial opens a raw connection to the rig.
func (r *rig) dial() *rawConn { return r.dialWith(&net.Dialer{}) }

// dialNarrow opens one whose kernel takes little that is not read. Made smaller later,
// the kernel would drop what it has no room for.
func (r *rig) dialNarrow() *rawConn {
	return r.dialWith(&net.Dialer{Control: testenv.SmallReceiveBuffer})
}

func (r *rig) dialWith(d *net.Dialer) *rawConn {
	r.t.Helper()
	c, err := d.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return &rawConn{t: r.t, TCPConn: c.(*net.TCPConn), in: bufio.NewReader(c)}
}

// A rawConn is one end whose bytes the test writes and reads itself.
type rawConn struct {
	*net.TCPConn
	t  testing.TB
	in *bufio.Reader
}

// send writes s; lines in it end with \n and are sent with \r\n.
func (c *rawConn) send(s string) {
	c.t.Helper()
	c.sendExact(strings.ReplaceAll(s, "\n", "\r\n"))
}

func (c *rawConn) sendExact(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.TCPConn, s); err != nil {
		c.t.Errorf("write: %v", err)
	}
}

// head reads up to the blank line and returns it with \n line ends.
func (c *rawConn) head() string {
	c.t.Helper()
	var b strings.Builder
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			c.t.Errorf("read head: %v after %q", err, b.String())
			return b.String()
		}
		if line == "\r\n" {
			return b.String()
		}
		b.WriteString(strings.TrimSuffix(line, "\r\n") + "\n")
	}
}

// expect reads exactly what want holds.
func (c *rawConn) expect(want string) {
	c.t.Helper()
	buf := make([]byte, len(want))
	n, err := io.ReadFull(c.in, buf)
	if err != nil || string(buf) != want {
		c.t.Errorf("read %q, %v; want %q", buf[:n], err, want)
	}
}

// rest reads until the connection ends.
func (c *rawConn) rest() (string, error) {
	b, err := io.ReadAll(c.in)
	return string(b), err
}

// rawUpstream listens on loopback and gives each connection to serve.
func rawUpstream(t testing.TB, serve func(*rawConn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				serve(&rawConn{t: t, TCPConn: c.(*net.TCPConn), in: bufio.NewReader(c)})
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		conns.Wait()
	})
	return ln.Addr().String()
}

// within fails if ch is not closed in the time that the product promises.
func within(t testing.TB, what string, limit time.Duration, ch <-chan struct{}) {
	t.Helper()
	start := time.Now()
	select {
	case <-ch:
		if d := time.Since(start); d > limit {
			t.Errorf("%s took %v, limit %v", what, d, limit)
		}
	case <-time.After(patience):
		t.Errorf("%s: not within %v", what, patience)
	}
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
