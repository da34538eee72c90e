// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/tlspool"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/contract"
)

// toServer dials one server whatever is asked for; before each dial, tell is called
// with its number.
func toServer(addr string, tell func(n int)) transport.DialFunc {
	var n atomic.Int32
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		tell(int(n.Add(1)))
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// The connection after a bad ticket takes none, whatever others do meanwhile.
func TestTheConnectionAfterABadTicketTakesNone(t *testing.T) {
	srv := secureServer(t, &tls.Config{UnwrapSession: func([]byte, tls.ConnectionState) (*tls.SessionState, error) {
		return nil, errors.New("the key store is gone")
	}})
	store, trusted := tlspool.New(tlspool.Config{}), trusting(t, pemOf(srv))
	other := newTransport(t, transport.Config{Trust: trusted, Sessions: store})
	var seen handshakes
	tr, err := transport.New(toServer(srv.Listener.Addr().String(), func(n int) {
		if n == 3 { // somebody else connects first, and brings a ticket
			if _, err := anew(t, other, srv.URL); err != nil {
				t.Error(err)
			}
		}
	}), transport.Config{Trust: trusted, Sessions: store, OnHandshake: seen.add})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	for range 2 {
		if _, err := anew(t, tr, srv.URL); err != nil {
			t.Error(err)
		}
	}
	seen.is(t, "full", "failed", "full")
}

// A bad certificate is met once, although a ticket was offered and refused.
func TestABadCertificateIsNotTriedAgain(t *testing.T) {
	var pairs []tls.Certificate
	sites := []site{newSiteOf(t, "", "model", "model.test"), newSiteOf(t, "", "model", "model.test")}
	for _, s := range sites {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, pair)
	}
	var swapped atomic.Bool
	srv := secureServer(t, &tls.Config{Certificates: pairs[:1], GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if swapped.Load() {
			return &tls.Config{Certificates: pairs[1:], NextProtos: []string{"h2"}, SessionTicketsDisabled: true}, nil
		}
		return nil, nil
	}})
	var seen handshakes
	tr, err := transport.New(toServer(srv.Listener.Addr().String(), func(int) {}), transport.Config{Trust: trusting(t, sites[0].roots), OnHandshake: seen.add})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	if _, err := anew(t, tr, "https://model.test"); err != nil {
		t.Fatal(err)
	}
	swapped.Store(true)
	_, err = anew(t, tr, "https://model.test")
	if c, _ := code(t, err); c != "upstream_tls_untrusted" {
		t.Errorf("code %s (%v)", c, err)
	}
	seen.is(t, "full", "failed")
}

// An ECH offer that this TLS cannot use is no offer; one that the server cannot take
// is named.
func TestECHThatCannotBeUsed(t *testing.T) {
	s := newSiteOf(t, "", "model", "model.test")
	pair, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		t.Fatal(err)
	}
	config, _ := testenv.ECHConfig(t, 1, "model.test")
	unknown := append([]byte(nil), config...)
	unknown[5], unknown[6] = 0xff, 0xee // the KEM
	for name, tt := range map[string]struct {
		server  *tls.Config
		offer   []byte
		problem string
	}{
		"another KEM":        {&tls.Config{}, testenv.ECHList(unknown), ""},
		"no ECHConfigList":   {&tls.Config{}, []byte("none"), ""},
		"a TLS 1.2 server":   {&tls.Config{MaxVersion: tls.VersionTLS12}, testenv.ECHList(config), "tls.ech"},
		"nothing is offered": {&tls.Config{MaxVersion: tls.VersionTLS12}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.server.Certificates = []tls.Certificate{pair}
			srv := secureServer(t, tt.server)
			tr, err := transport.New(toServer(srv.Listener.Addr().String(), func(int) {}), transport.Config{
				Trust: trusting(t, s.roots), ECH: func(context.Context, string) []byte { return tt.offer },
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(tr.CloseIdleConnections)
			_, err = anew(t, tr, "https://model.test")
			if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A server that read the whole request and then ends TLS with an alert has read it:
// nobody may be told that it was not sent.
func TestAnAlertAfterTheRequestDoesNotUnsendIt(t *testing.T) {
	s := newSite(t, "")
	pair, err := tls.LoadX509KeyPair(s.cert, s.key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		garbled := &garbled{Conn: c}
		tc := tls.Server(garbled, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}})
		_, _ = tc.Read(make([]byte, 4096)) // the request
		garbled.on = true
		_, _ = io.Copy(io.Discard, tc)   // the rest of it, then what cannot be opened: an alert
		_, _ = c.Read(make([]byte, 100)) // until the client closes
	}()
	t.Cleanup(func() { _ = ln.Close(); <-ended })
	tr := newTransport(t, transport.Config{Trust: trusting(t, s.roots)})
	_, err = tr.RoundTrip(request(t, http.MethodPost, "https://"+ln.Addr().String(), "/", strings.NewReader("{}")))
	if _, sent := code(t, err); !sent {
		t.Errorf("not sent? %v", err)
	}
}

// A garbled connection reads a record that nobody sent.
type garbled struct {
	net.Conn
	on bool
}

func (g *garbled) Read(p []byte) (int, error) {
	if !g.on {
		return g.Conn.Read(p)
	}
	return copy(p, append([]byte{23, 3, 3, 0, 32}, make([]byte, 32)...)), nil
}

// A client certificate that is replaced is the one that is shown soon, and the tickets
// of the old one are not refreshed.
func TestAReplacedClientCertificateIsShown(t *testing.T) {
	srv := secureServer(t, &tls.Config{ClientAuth: tls.RequireAnyClientCert})
	dir := t.TempDir()
	put := func(name string) {
		s := newSiteOf(t, "", name)
		for from, to := range map[string]string{s.cert: "cert", s.key: "key"} {
			b, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, to), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("alice")
	shown, err := trust.LoadClientCert(filepath.Join(dir, "cert"), filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	var seen handshakes
	store := tlspool.New(tlspool.Config{})
	tr := newTransport(t, transport.Config{Trust: trusting(t, pemOf(srv)), Sessions: store, ClientCert: shown, OnHandshake: seen.add, Pool: transport.Pool{Warm: 1}})
	if err := tr.Keep(request(t, http.MethodGet, srv.URL, "/", nil).URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Retire)
	if got, err := anew(t, tr, srv.URL); got != "alice" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	old := shown.ID()
	put("bob")
	contract.Eventually(t, "the new certificate is read", func() bool { return shown.ID() != old })
	tr.Recheck()
	contract.Eventually(t, "bob is seen", func() bool {
		_, body := call(t, tr, request(t, http.MethodGet, srv.URL, "/", nil))
		return string(body) == "bob"
	})
	before := store.State()
	for _, k := range store.Expiring(time.Now().Add(20*time.Minute), 1) {
		if k.Client != old {
			continue
		}
		if err := tr.Refresh(t.Context(), k); err != nil {
			t.Error(err)
		}
	}
	for i, after := range store.State() {
		if after.Counts != before[i].Counts {
			t.Errorf("the old identity's tickets were refreshed: %+v, then %+v", before[i], after)
		}
	}
}
