// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/warmwire/warmwire/transport"
)

// A certificate for another name makes the pool ask for other addresses, once; and
// the address that proves to be right is told.
func TestWrongNameAsksElsewhere(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	right, roots := certificate(t, net.IPv4(192, 0, 2, 9))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{right}}
	s.StartTLS()
	t.Cleanup(s.Close)
	portal := httptest.NewUnstartedServer(nil)
	portal.Config.ErrorLog = s.Config.ErrorLog
	wrong, more := certificate(t, net.IPv4(192, 0, 2, 77))
	portal.TLS = &tls.Config{Certificates: []tls.Certificate{wrong}}
	portal.StartTLS()
	t.Cleanup(portal.Close)
	roots = append(roots, more...)

	for name, tt := range map[string]struct {
		elsewhere, heals bool
		distrusts        int32
		proved           int32
	}{
		"others know better": {true, true, 1, 1},
		"others say so too":  {true, false, 1, 0},
		"nobody else knows":  {false, false, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var distrusted, proved atomic.Int32
			dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
				to := portal.Listener.Addr()
				if distrusted.Load() > 0 && tt.heals {
					to = s.Listener.Addr()
				}
				return new(net.Dialer).DialContext(ctx, network, to.String())
			}
			tr, err := transport.New(dial, transport.Config{Trust: trusting(t, roots),
				Distrust: func(_ context.Context, addr string) bool {
					if addr != "192.0.2.9:443" {
						t.Errorf("distrusted: %s", addr)
					}
					distrusted.Add(1)
					return tt.elsewhere
				},
				OnPeer: func(addr string, at netip.AddrPort) {
					if addr != "192.0.2.9:443" || at.String() != s.Listener.Addr().String() {
						t.Errorf("proved: %s at %v", addr, at)
					}
					proved.Add(1)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(tr.Close)
			resp, err := tr.RoundTrip(request(t, "GET", "https://192.0.2.9", "/", nil))
			if err == nil {
				_ = resp.Body.Close()
			}
			var e *transport.Error
			if tt.heals != (err == nil) || err != nil && (!errors.As(err, &e) || e.Code() != "upstream_tls_wrong_name" || !strings.Contains(err.Error(), "login page")) {
				t.Errorf("err = %v", err)
			}
			if distrusted.Load() != tt.distrusts || proved.Load() != tt.proved {
				t.Errorf("distrusted %d times, proved %d times", distrusted.Load(), proved.Load())
			}
		})
	}
}

// certificate is one for an address, signed by itself.
func certificate(t testing.TB, ip net.IP) (tls.Certificate, []byte) {
	t.Helper()
	// httptest's own certificate is for other addresses; its key will do.
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	pair := s.TLS.Certificates[0]
	template := *s.Certificate()
	template.IPAddresses = []net.IP{ip}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, s.Certificate().PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: pair.PrivateKey}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
