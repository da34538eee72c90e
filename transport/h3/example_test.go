// SPDX-License-Identifier: Apache-2.0

package h3_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/netip"
	"os"

	"github.com/quic-go/quic-go"
	"github.com/warmwire/warmwire/transport/h3"
)

// One endpoint serves all connections of a process; sessions and address tokens are
// one's own, and so is the choice of an address.
func Example() {
	endpoint, err := h3.NewEndpoint(nil)
	if err != nil {
		return
	}
	defer endpoint.Close()
	sessions, tokens := tls.NewLRUClientSessionCache(64), quic.NewLRUTokenStore(64, 4)
	conn, err := endpoint.Dial(context.Background(), netip.MustParseAddrPort("192.0.2.1:443"), h3.Config{
		TLS:       &tls.Config{ServerName: "api.example.com", ClientSessionCache: sessions},
		Tokens:    tokens,
		EarlyData: true, // for GET, HEAD and OPTIONS without a body
		Priority:  true,
		OnChange:  func() { /* Available, InFlight or Err may be others now */ },
	})
	if err != nil {
		return
	}
	req, _ := http.NewRequest(http.MethodGet, "https://api.example.com/v1/models", nil)
	resp, err := conn.RoundTrip(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(os.Stdout, resp.Body) // by WriteTo
}
