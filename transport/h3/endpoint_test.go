// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"testing"
)

// One socket for each family serves all connections; old ones end with their last
// connection, and are never more than so many.
func TestEndpointSockets(t *testing.T) {
	server, client := testTLS()
	pc, addr := udp(t)
	serve(t, pc, echo{}, server, nil)
	var made []*net.UDPConn
	e := endpoint(t, func(network, at string) (net.PacketConn, error) {
		if network == "udp6" {
			return nil, errors.New("no such family")
		}
		c, err := net.ListenPacket(network, at)
		if err == nil {
			made = append(made, c.(*net.UDPConn))
		}
		return c, err
	})
	cfg := Config{TLS: client}
	first, second := dial(t, e, addr, cfg), dial(t, e, addr, cfg)
	if len(made) != 1 || first.qc.LocalAddr().String() != second.qc.LocalAddr().String() {
		t.Errorf("%d sockets for two connections", len(made))
	}
	if _, err := e.Dial(t.Context(), netip.MustParseAddrPort("[::1]:1"), cfg); faultOf(t, err).Kind != kindSilent {
		t.Errorf("to a family that is not there: %v", err)
	}
	for range maxOld + 3 { // the first is held by two connections, the others by none
		if err := e.Rebind(); err != nil {
			t.Fatal(err)
		}
	}
	e.mu.Lock()
	old := len(e.old)
	e.mu.Unlock()
	if old != 1 {
		t.Errorf("%d old sockets", old)
	}
	_ = readAll(t, do(t, first, request(t, "GET", "/", nil))) // on the old one still
	_ = first.Close()
	_ = second.Close()
	for i, c := range made[:len(made)-1] {
		if _, err := c.WriteTo([]byte{0}, net.UDPAddrFromAddrPort(addr)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("socket %d is open: %v", i, err)
		}
	}
	var conns []*Conn
	for range maxOld + 2 {
		conns = append(conns, dial(t, e, addr, cfg))
		if err := e.Rebind(); err != nil {
			t.Fatal(err)
		}
	}
	e.mu.Lock()
	old = len(e.old)
	e.mu.Unlock()
	if old != maxOld {
		t.Errorf("%d old sockets, want %d", old, maxOld)
	}
	for i, c := range conns {
		if i < 2 {
			eventually(t, "a connection on a socket too old has ended", func() bool { return c.Err() != nil })
		} else if c.Err() != nil {
			t.Errorf("connection %d: %v", i, c.Err())
		}
	}
	_ = e.Close()
	for _, c := range conns {
		if c.Err() == nil {
			t.Error("a connection outlives its endpoint")
		}
	}
	if err := e.Rebind(); err == nil {
		t.Error("a closed endpoint opens sockets")
	}
	if _, err := NewEndpoint(func(string, string) (net.PacketConn, error) { return nil, errors.New("none") }); err == nil {
		t.Error("an endpoint without a socket")
	}
}

// A moment without a route loses packets to a peer that there is a connection to;
// to others it is an error, and so is everything else.
func TestNoRouteIsLoss(t *testing.T) {
	peer, other := netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("192.0.2.1:444")
	w := &wire{peers: map[netip.AddrPort]int{}}
	fails := func(errno syscall.Errno) error {
		return &net.OpError{Op: "write", Err: os.NewSyscallError("sendmsg", errno)}
	}
	lost := func(errno syscall.Errno, to netip.AddrPort) bool {
		return w.lost(fails(errno), net.UDPAddrFromAddrPort(to))
	}
	if lost(syscall.ENETUNREACH, peer) {
		t.Error("a peer that nobody knows")
	}
	w.know(peer, 1)
	w.know(peer, 1)
	w.know(peer, -1)
	mapped := netip.AddrPortFrom(netip.AddrFrom16(peer.Addr().As16()), peer.Port())
	if !lost(syscall.ENETUNREACH, peer) || !lost(syscall.EADDRNOTAVAIL, mapped) {
		t.Error("a packet to a peer that is known")
	}
	if lost(syscall.ENETUNREACH, other) || lost(syscall.EMSGSIZE, peer) || lost(syscall.EIO, peer) {
		t.Error("what is no loss")
	}
	w.know(peer, -1)
	if lost(syscall.ENETUNREACH, peer) || len(w.peers) != 0 {
		t.Error("a peer that was known")
	}
}

// The end of a connection while many requests begin: each ends, with a proof that
// is true, and nothing is left.
func TestEndUnderLoad(t *testing.T) {
	for range 5 {
		c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), Config{})
		const n = 40
		ended := make(chan error, n)
		for range n {
			go func() {
				_, err := c.RoundTrip(request(t, "GET", "/", nil))
				ended <- err
			}()
		}
		eventually(t, "some are under way", func() bool { return c.InFlight() > n/4 })
		_ = c.Close()
		for range n {
			if f := faultOf(t, <-ended); f.Kind != kindClosed {
				t.Errorf("%+v", f)
			}
		}
		if n := c.InFlight(); n != 0 {
			t.Errorf("%d in flight", n)
		}
	}
}
