// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/quic-go/quic-go"
)

// A socket is one UDP socket and the connections over it.
type socket struct {
	tr   *quic.Transport
	wire *wire // nil if the socket is of another kind
	refs int   // connections that have used it; guarded by Endpoint.mu
}

func newSocket(pc net.PacketConn) *socket {
	s := &socket{}
	if udp, ok := pc.(*net.UDPConn); ok {
		s.wire = &wire{UDPConn: udp, peers: map[netip.AddrPort]int{}}
		pc = s.wire
	}
	s.tr = &quic.Transport{Conn: pc}
	return s
}

func (s *socket) close() {
	_ = s.tr.Close()
	_ = s.tr.Conn.Close()
}

// A wire is a UDP socket that takes a moment without a route for what it is to a
// connection that there is: packets are lost. The library would end the connection
// at the first one, and a machine that goes from one network to another has such a
// moment. For a peer that there is no connection to, no route is an error, so that
// opening one fails at once.
type wire struct {
	*net.UDPConn

	mu    sync.Mutex // guards the field below
	peers map[netip.AddrPort]int
}

// know counts a connection to a peer, or one less.
func (w *wire) know(peer netip.AddrPort, n int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peers[peer] += n; w.peers[peer] <= 0 {
		delete(w.peers, peer)
	}
}

// lost says whether err is the loss of a packet.
func (w *wire) lost(err error, to net.Addr) bool {
	addr, ok := to.(*net.UDPAddr)
	if !ok || !noRoute(err) {
		return false
	}
	peer := addr.AddrPort()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())] > 0
}

func noRoute(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EADDRNOTAVAIL, syscall.EPERM, syscall.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// WriteMsgUDP sends a packet.
func (w *wire) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (int, int, error) {
	n, m, err := w.UDPConn.WriteMsgUDP(b, oob, addr)
	if err != nil && w.lost(err, addr) {
		return len(b), len(oob), nil
	}
	return n, m, err
}

// WriteTo sends a packet.
func (w *wire) WriteTo(b []byte, addr net.Addr) (int, error) {
	n, err := w.UDPConn.WriteTo(b, addr)
	if err != nil && w.lost(err, addr) {
		return len(b), nil
	}
	return n, err
}
