// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/tlspool"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/contract"
)

// handshakes collects what OnHandshake is told.
type handshakes struct {
	mu  sync.Mutex // guards how
	how []string
}

func (h *handshakes) add(one transport.Handshake) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.how = append(h.how, one.How)
}

func (h *handshakes) is(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.how, want) {
		t.Errorf("handshakes %v, want %v", h.how, want)
	}
	h.how = nil
}

// secureServer answers with the subject of the client's certificate.
func secureServer(t *testing.T, cfg *tls.Config) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, c := range r.TLS.PeerCertificates {
			_, _ = io.WriteString(w, c.Subject.CommonName)
		}
		if r.TLS.ECHAccepted {
			_, _ = io.WriteString(w, "ECH")
		}
	}))
	srv.EnableHTTP2, srv.TLS, srv.Config.ErrorLog = true, cfg, log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// anew makes one call over a new connection, whose ticket is waited for.
func anew(t *testing.T, tr *transport.Transport, base string) (string, error) {
	t.Helper()
	contract.Eventually(t, "no connection is in use", func() bool {
		for _, o := range tr.State() {
			for _, c := range o.Conns {
				if c.InFlight > 0 || c.Idle == 0 && !c.Leaving { // the pool must have heard of it
					return false
				}
			}
		}
		return true
	})
	tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(request(t, http.MethodGet, base, "/", nil))
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// A connection that is replaced is a connection resumed, over HTTP/2 and HTTP/1.1,
// with TLS 1.3 and 1.2.
func TestReplacedConnectionsResume(t *testing.T) {
	for name, cfg := range map[string]*tls.Config{"TLS 1.3": {}, "TLS 1.2": {MaxVersion: tls.VersionTLS12}} {
		for _, protocol := range []string{"h2", "http/1.1"} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				srv := secureServer(t, cfg.Clone())
				var seen handshakes
				tr := newTransport(t, transport.Config{Protocols: []string{protocol}, Trust: trusting(t, pemOf(srv)), OnHandshake: seen.add})
				for range 4 {
					if _, err := anew(t, tr, srv.URL); err != nil {
						t.Fatal(err)
					}
				}
				seen.is(t, "full", "resumed", "resumed", "resumed")
			})
		}
	}
}

// A ticket that makes the handshake fail costs a second connection, no error.
func TestABadTicketIsNoError(t *testing.T) {
	srv := secureServer(t, &tls.Config{UnwrapSession: func([]byte, tls.ConnectionState) (*tls.SessionState, error) {
		return nil, errors.New("the key store is gone")
	}})
	var seen handshakes
	tr := newTransport(t, transport.Config{Trust: trusting(t, pemOf(srv)), OnHandshake: seen.add})
	for range 2 {
		if _, err := anew(t, tr, srv.URL); err != nil {
			t.Fatal(err)
		}
	}
	seen.is(t, "full", "failed", "full")
}

// Whoever trusts other CAs resumes nothing of those that do not.
func TestSessionsStayWithTheirTrust(t *testing.T) {
	srv := secureServer(t, nil)
	store := tlspool.New(tlspool.Config{})
	if _, err := anew(t, newTransport(t, transport.Config{Trust: trusting(t, pemOf(srv)), Sessions: store}), srv.URL); err != nil {
		t.Fatal(err)
	}
	_, err := anew(t, newTransport(t, transport.Config{Trust: trusting(t, nil), Sessions: store}), srv.URL)
	if c, _ := code(t, err); c != "upstream_tls_untrusted" {
		t.Errorf("code %s (%v)", c, err)
	}
}

// Two client certificates for one host share no session: a server that resumes one
// sees that identity, whatever is shown to it afterwards.
func TestIdentitiesShareNoSession(t *testing.T) {
	srv := secureServer(t, &tls.Config{ClientAuth: tls.RequireAnyClientCert})
	store := tlspool.New(tlspool.Config{})
	var seen handshakes
	var ways []*transport.Transport
	for _, name := range []string{"alice", "bob"} {
		ways = append(ways, newTransport(t, transport.Config{
			Trust: trusting(t, pemOf(srv)), Sessions: store, OnHandshake: seen.add, ClientCert: clientCert(t, name),
		}))
	}
	for range 2 {
		for i, name := range []string{"alice", "bob"} {
			if got, err := anew(t, ways[i], srv.URL); got != name || err != nil {
				t.Errorf("%s is seen as %q, %v", name, got, err)
			}
		}
	}
	seen.is(t, "full", "full", "resumed", "resumed")
}

// clientCert makes a certificate of that name.
func clientCert(t *testing.T, name string) *trust.ClientCert {
	t.Helper()
	s := newSiteOf(t, "", name)
	c, err := trust.LoadClientCert(s.cert, s.key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// An origin that is kept ready gets a new ticket before the last one is too old, and
// one of another upstream's settings gets none.
func TestTicketsAreRefreshed(t *testing.T) {
	srv := secureServer(t, nil)
	store := tlspool.New(tlspool.Config{})
	trusted := trusting(t, pemOf(srv))
	var seen handshakes
	tr := newTransport(t, transport.Config{Trust: trusted, Sessions: store, OnHandshake: seen.add, Pool: transport.Pool{Warm: 1}})
	u := request(t, http.MethodGet, srv.URL, "/", nil).URL
	if err := tr.Keep(u); err != nil {
		t.Fatal(err)
	}
	if _, err := anew(t, tr, srv.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Retire)
	keys := store.Expiring(time.Now().Add(20*time.Minute), 1)
	if len(keys) != 1 {
		t.Fatalf("keys %v", keys)
	}
	before := store.State()[0].Counts.Stored
	if err := tr.Refresh(t.Context(), keys[0]); err != nil {
		t.Fatal(err)
	}
	if after := store.State()[0].Counts.Stored; after != before+1 {
		t.Errorf("%d tickets stored, then %d", before, after)
	}
	other := newTransport(t, transport.Config{Trust: trusting(t, nil), Sessions: store})
	if err := other.Refresh(t.Context(), keys[0]); err != nil {
		t.Errorf("an upstream with other settings: %v", err)
	}
}

// ECH is used where it is offered; a stale offer costs a second connection, and a
// server that wants none any more is reached without.
func TestECH(t *testing.T) {
	config, key := testenv.ECHConfig(t, 7, "public.test")
	stale, _ := testenv.ECHConfig(t, 6, "public.test")
	keys := []tls.EncryptedClientHelloKey{{Config: config, PrivateKey: key.Bytes(), SendAsRetry: true}}
	site := newSiteOf(t, "", "model", "model.test", "public.test")
	pair, err := tls.LoadX509KeyPair(site.cert, site.key)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		offered []byte
		keys    []tls.EncryptedClientHelloKey
		want    string
		seen    []string
	}{
		"current":   {config, keys, "ECH", []string{"full"}},
		"stale":     {stale, keys, "ECH", []string{"failed", "full"}},
		"given up":  {stale, nil, "", []string{"failed", "full"}},
		"not there": {nil, keys, "", []string{"full"}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := secureServer(t, &tls.Config{Certificates: []tls.Certificate{pair}, EncryptedClientHelloKeys: tt.keys})
			var seen handshakes
			dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
			}
			tr, err := transport.New(dial, transport.Config{Trust: trusting(t, site.roots), OnHandshake: seen.add, ECH: func(_ context.Context, addr string) []byte {
				if tt.offered == nil || addr != "model.test:443" {
					return nil
				}
				return testenv.ECHList(tt.offered)
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(tr.CloseIdleConnections)
			got, err := anew(t, tr, "https://model.test")
			if err != nil || got != tt.want {
				t.Errorf("%q, %v", got, err)
			}
			seen.is(t, tt.seen...)
		})
	}
}
