// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"runtime"
	"testing"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/flight"
)

// The connection that a request gets shows what its network does, and its frames are in
// its log.
func TestAConnectionShowsItself(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("token")) }))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	budget, err := bufferctl.NewBudget(bufferctl.Config{Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	rec := flight.New(budget)
	tr := newTransport(t, transport.Config{Protocols: []string{"h2"}, Flights: rec})
	type path interface {
		Evidence() (attribution.Evidence, bool)
		ConnectionID() uint64
	}
	var got path
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { got, _ = i.Conn.(path) }})
	resp, err := tr.RoundTrip(request(t, http.MethodGet, server.URL, "/", nil).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "token" {
		t.Errorf("%q, %v", b, err)
	}
	_ = resp.Body.Close()
	if got == nil {
		t.Fatal("the connection shows nothing")
	}
	e, known := got.Evidence()
	if known != (runtime.GOOS == "linux") || !e.Ordered {
		t.Errorf("evidence %+v, %v", e, known)
	}
	f, ok := rec.Flight(got.ConnectionID())
	data := 0
	for _, r := range f.Records {
		if r.What == "frame_in" && r.Code == 0 && r.Stream == 1 {
			data += int(r.Size)
		}
	}
	if !ok || f.Protocol != "h2" || data != len("token") {
		t.Errorf("%v, %d bytes of DATA: %+v", ok, data, f)
	}
}
