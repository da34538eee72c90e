// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/contract"
	"github.com/warmwire/warmwire/transport/h3"
	"github.com/warmwire/warmwire/transport/h3/altsvc"
)

// newHTTP3 is what a process shares, for loopback.
func newHTTP3(t testing.TB) *transport.HTTP3 {
	t.Helper()
	return newHTTP3Over(t, nil)
}

// newHTTP3Over has its sockets made by listen, nil = the machine's.
func newHTTP3Over(t testing.TB, listen h3.ListenFunc) *transport.HTTP3 {
	t.Helper()
	endpoint, err := h3.NewEndpoint(listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	offers, err := altsvc.New(altsvc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &transport.HTTP3{Endpoint: endpoint, Offers: offers,
		Lookup: func(context.Context, string) ([]netip.Addr, uint16, time.Duration, error) {
			return nil, 0, 0, errors.New("no names here")
		}}
}

// twoWays is a server over TCP that offers HTTP/3 on the UDP port, which serves it
// if there is a server on it.
type twoWays struct {
	url   string
	roots []byte
	udp   net.PacketConn
}

func newTwoWays(t *testing.T, serveUDP bool) *twoWays {
	t.Helper()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := udp.LocalAddr().(*net.UDPAddr).Port
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Alt-Svc", fmt.Sprintf(`h3=":%d"; ma=60`, port))
		_, _ = io.Copy(w, r.Body)
		_, _ = io.WriteString(w, r.Proto)
	})
	pair, roots := certificate(t, net.IPv4(127, 0, 0, 1))
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2, s.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	w := &twoWays{url: s.URL, roots: roots, udp: udp}
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	if serveUDP {
		quic := &http3.Server{Handler: handler, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}})}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = quic.Serve(udp)
		}()
		t.Cleanup(func() {
			_ = quic.Close()
			_ = udp.Close()
			<-served
		})
	} else {
		t.Cleanup(func() { _ = udp.Close() })
	}
	return w
}

func ask(t *testing.T, tr *transport.Transport, base string) string {
	t.Helper()
	_, body := call(t, tr, request(t, "GET", base, "/", nil))
	return string(body)
}

// HTTP/3 is used once an answer has offered it, for connections that are opened
// from then on.
func TestHTTP3IsLearned(t *testing.T) {
	w := newTwoWays(t, true)
	shared := newHTTP3(t)
	tr := newTransport(t, transport.Config{Protocols: []string{"h2", "h3"}, Trust: trusting(t, w.roots), HTTP3: shared})
	t.Cleanup(tr.Close)
	if got := ask(t, tr, w.url); got != "HTTP/2.0" {
		t.Fatalf("before the offer: %s", got)
	}
	tr.CloseIdleConnections()
	for range 3 {
		if got := ask(t, tr, w.url); got != "HTTP/3.0" {
			t.Errorf("after the offer: %s", got)
		}
	}
	plain := newTransport(t, transport.Config{Protocols: []string{"h2"}, Trust: trusting(t, w.roots), HTTP3: shared})
	t.Cleanup(plain.Close)
	if got := ask(t, plain, w.url); got != "HTTP/2.0" {
		t.Errorf("where h3 is not allowed: %s", got)
	}
}

// Where UDP does not pass nobody waits for it, and it is soon left alone.
func TestHTTP3ThatDoesNotPass(t *testing.T) {
	w := newTwoWays(t, false)
	shared := newHTTP3(t)
	tr := newTransport(t, transport.Config{Protocols: []string{"h2", "h3"}, Trust: trusting(t, w.roots), HTTP3: shared, TLSHandshake: 2 * time.Second})
	t.Cleanup(tr.Close)
	_ = ask(t, tr, w.url)
	tr.CloseIdleConnections()
	began := time.Now()
	if got := ask(t, tr, w.url); got != "HTTP/2.0" {
		t.Errorf("served over %s", got)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("waited %v for a way that does not pass", took)
	}
	contract.Eventually(t, "it is known as broken", func() bool { return shared.Offers.State(time.Now(), w.url).Broken })
}

// Closing in the middle of a race ends both ways of it.
func TestCloseDuringARace(t *testing.T) {
	w := newTwoWays(t, true)
	shared := newHTTP3(t)
	learned := newTransport(t, transport.Config{Protocols: []string{"h2", "h3"}, Trust: trusting(t, w.roots), HTTP3: shared})
	_ = ask(t, learned, w.url)
	learned.Close()
	var open atomic.Int64
	for i := range 60 {
		tr := newTransport(t, transport.Config{Protocols: []string{"h2", "h3"}, Trust: trusting(t, w.roots), HTTP3: shared,
			OnConn: func(delta int, _ string) { open.Add(int64(delta)) }})
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			if resp, err := tr.RoundTrip(request(t, "GET", w.url, "/", nil)); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		pause := time.NewTimer(time.Duration(i) * 200 * time.Microsecond)
		<-pause.C
		tr.Close()
		<-asked
	}
	contract.Eventually(t, "all connections are closed", func() bool { return open.Load() == 0 })
}

// An alternative behind the parent proxy is not dialled, and TCP that fails is not
// held up by QUIC.
func TestHTTP3KeepsToTheWay(t *testing.T) {
	w := newTwoWays(t, true)
	shared := newHTTP3(t)
	_, port, _ := net.SplitHostPort(w.udp.LocalAddr().String())
	shared.Direct = func(addr string) bool { return addr != "127.0.0.1:"+port }
	tr := newTransport(t, transport.Config{Protocols: []string{"h2", "h3"}, Trust: trusting(t, w.roots), HTTP3: shared})
	t.Cleanup(tr.Close)
	for range 3 {
		if got := ask(t, tr, w.url); got != "HTTP/2.0" {
			t.Errorf("over %s although the alternative is behind the proxy", got)
		}
		tr.CloseIdleConnections()
	}
}
