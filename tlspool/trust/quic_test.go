// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/warmwire/warmwire/tlspool/trust"
)

// Over QUIC the same settings say the same, on full and on resumed connections.
func TestQUIC(t *testing.T) {
	at := newClock()
	p, other := newPKI(t), newPKI(t)
	systemOf(t, p.root)
	const alpn = "trust-test"
	socket := func() *quic.Transport {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		tr := &quic.Transport{Conn: conn}
		t.Cleanup(func() { tr.Close(); conn.Close() })
		return tr
	}
	server := socket()
	ln, err := server.Listen(&tls.Config{Certificates: []tls.Certificate{certificate(p.leaf, p.ca)}, NextProtos: []string{alpn}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			if _, err := ln.Accept(t.Context()); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { ln.Close(); <-served })
	client := socket()
	tickets := &ticketTold{ClientSessionCache: tls.NewLRUClientSessionCache(4), put: make(chan struct{}, 16)}
	connect := func(v *trust.Verifier) (resumed bool, err error) {
		cfg := &tls.Config{ServerName: host, NextProtos: []string{alpn}, ClientSessionCache: tickets}
		v.Apply(cfg, "", nil)
		conn, err := client.Dial(t.Context(), ln.Addr(), cfg, nil)
		if err != nil {
			return false, err
		}
		defer conn.CloseWithError(0, "")
		select {
		case <-tickets.put:
		case <-time.After(5 * time.Second):
			t.Error("no ticket came")
		}
		return conn.ConnectionState().TLS.DidResume, nil
	}
	v := newVerifier(t, trust.Config{Now: at.now})
	for _, want := range []bool{false, true} {
		if resumed, err := connect(v); err != nil || resumed != want {
			t.Fatalf("got resumed %t, %v, want %t", resumed, err, want)
		}
	}
	_, err = connect(newVerifier(t, trust.Config{Now: at.now, CA: pemOf(other.root), Only: true}))
	var e *trust.Error
	if !errors.As(err, &e) || e.Reason != trust.UnknownRoot || !e.Resumed {
		t.Errorf("got %v, want an unknown root on a resumed connection", err)
	}
}

// ticketTold tells when a ticket has come.
type ticketTold struct {
	tls.ClientSessionCache
	put chan struct{}
}

func (c *ticketTold) Put(key string, s *tls.ClientSessionState) {
	c.ClientSessionCache.Put(key, s)
	if s != nil {
		c.put <- struct{}{}
	}
}
