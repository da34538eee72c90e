// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
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
func (r *rig) dial() *testenv.Raw {
	r.t.Helper()
	return testenv.DialRaw(r.t, r.addr)
}

// dialNarrow opens one whose kernel takes little that is not read.
func (r *rig) dialNarrow() *testenv.Raw {
	r.t.Helper()
	return testenv.DialRawNarrow(r.t, r.addr)
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
