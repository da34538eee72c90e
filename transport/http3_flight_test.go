// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/flight"
)

// A connection over QUIC shows its path as one over TCP does, and its trace becomes a file
// when its log is kept, and not before.
func TestAQUICConnectionShowsItself(t *testing.T) {
	w := newTwoWays(t, true)
	budget, err := bufferctl.NewBudget(bufferctl.Config{Limit: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	rec, dir := flight.New(budget), t.TempDir()
	tr := newTransport(t, transport.Config{Protocols: []string{"h2", "h3"}, HTTP3: newHTTP3(t), Trust: trusting(t, w.roots), Flights: rec, QlogDir: dir})
	type path interface {
		Evidence() (attribution.Evidence, bool)
		ConnectionID() uint64
	}
	var got path
	ask := func(major int) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { got, _ = i.Conn.(path) }})
		resp, err := tr.RoundTrip(request(t, http.MethodGet, w.url, "/", nil).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.ProtoMajor != major {
			t.Fatalf("answered over %s", resp.Proto)
		}
	}
	ask(2) // which offers it
	tr.CloseIdleConnections()
	ask(3)
	if got == nil {
		t.Fatal("the connection shows nothing")
	}
	if e, known := got.Evidence(); !known || !e.Blind || e.RTT <= 0 {
		t.Errorf("%+v, %v", e, known)
	}
	f, ok := rec.Flight(got.ConnectionID())
	if !ok || f.Protocol != "h3" || !strings.Contains(f.Qlog, "packet_received") {
		t.Errorf("%v, %+v", ok, f)
	}
	files := func() []string {
		names, _ := filepath.Glob(filepath.Join(dir, "*.sqlog"))
		return names
	}
	if n := files(); len(n) != 0 {
		t.Errorf("%v, and nothing has happened", n)
	}
	rec.Keep(got.ConnectionID(), "upstream_reset")
	if n := files(); len(n) != 1 {
		t.Errorf("%v, want one file", n)
	}
}
