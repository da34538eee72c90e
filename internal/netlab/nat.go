// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"net/netip"
	"time"
)

const (
	// maxNATFlows bounds the table; a new flow above it is dropped.
	maxNATFlows = 16384
	// The ports that a NAT gives out are below Linux's own range (from 32768), so
	// that a test which sees one knows where it comes from.
	firstNATPort, lastNATPort = 10000, 32767
	// closingIdle is how long a flow is kept that both sides have ended, or one
	// has reset: TIME-WAIT of one of the peers may still have to answer.
	closingIdle = 10 * time.Second
)

// natKey is a flow as the client sees it.
type natKey struct {
	proto          uint8
	client, server netip.AddrPort
}

// natPort is where the answers to a flow arrive.
type natPort struct {
	proto uint8
	v6    bool
	port  uint16
}

type natFlow struct {
	key      natKey
	port     natPort
	last     time.Duration // the last packet in either direction
	finished uint8         // bit 0: FIN from the client, bit 1: from the server; 3: closing
}

// A natTable translates the client's addresses. It is not safe for concurrent
// use and reads no clock.
type natTable struct {
	cfg       NAT
	addr4     netip.Addr // what the server sees
	addr6     netip.Addr
	inside    map[natKey]*natFlow
	outside   map[natPort]*natFlow
	nextPort  uint16
	forgotten uint64
}

func newNATTable() *natTable {
	return &natTable{inside: map[natKey]*natFlow{}, outside: map[natPort]*natFlow{}, nextPort: firstNATPort}
}

// idle is how long a flow may be quiet; 0 means for ever.
func (n *natTable) idle(f *natFlow) time.Duration {
	limit := n.cfg.Idle
	if f.key.proto != protoTCP && n.cfg.UDPIdle > 0 {
		limit = n.cfg.UDPIdle
	}
	if f.finished == 3 && (limit == 0 || limit > closingIdle) {
		limit = closingIdle
	}
	return limit
}

func (n *natTable) expired(now time.Duration, f *natFlow) bool {
	limit := n.idle(f)
	return limit > 0 && now-f.last > limit
}

func (n *natTable) remove(f *natFlow) {
	delete(n.inside, f.key)
	delete(n.outside, f.port)
	n.forgotten++
}

// sweep forgets what is idle for too long; otherwise that happens when the next
// packet of the flow comes.
func (n *natTable) sweep(now time.Duration) {
	for _, f := range n.inside {
		if n.expired(now, f) {
			n.remove(f)
		}
	}
}

// forget drops the whole table, as a restart of the box does.
func (n *natTable) forget() {
	n.forgotten += uint64(len(n.inside))
	clear(n.inside)
	clear(n.outside)
}

// fromClient translates a packet to the server, and starts its flow if it may.
func (n *natTable) fromClient(now time.Duration, b []byte, h *header) (Cause, bool) {
	if !h.ports {
		return CauseUnsupported, false
	}
	key := natKey{h.proto, h.src, h.dst}
	f := n.inside[key]
	starts := h.proto != protoTCP || h.flags&(flagSYN|flagACK|flagRST) == flagSYN
	if f != nil && (n.expired(now, f) || starts && f.finished == 3) {
		n.remove(f)
		f = nil
	}
	if f == nil {
		if !starts {
			return CauseFlow, false
		}
		if f = n.add(now, key, h.v6); f == nil {
			return CauseOverflow, false
		}
	}
	f.touch(now, h, 1)
	addr := n.addr4
	if h.v6 {
		addr = n.addr6
	}
	h.rewrite(b, true, netip.AddrPortFrom(addr, f.port.port))
	return 0, true
}

// fromServer translates a packet to the client.
func (n *natTable) fromServer(now time.Duration, b []byte, h *header) (Cause, bool) {
	if !h.ports {
		return CauseUnsupported, false
	}
	if a := h.dst.Addr(); a != n.addr4 && a != n.addr6 {
		return CauseAddress, false
	}
	f := n.outside[natPort{h.proto, h.v6, h.dst.Port()}]
	if f != nil && n.expired(now, f) {
		n.remove(f)
		f = nil
	}
	from := h.src
	if f != nil && f.key.proto != protoTCP && f.key.proto != protoUDP {
		from = netip.AddrPortFrom(from.Addr(), f.key.server.Port()) // an echo's answer has our identifier
	}
	if f == nil || f.key.server != from {
		return CauseFlow, false
	}
	f.touch(now, h, 2)
	h.rewrite(b, false, f.key.client)
	return 0, true
}

func (f *natFlow) touch(now time.Duration, h *header, side uint8) {
	f.last = now
	if h.proto != protoTCP {
		return
	}
	if h.flags&flagFIN != 0 {
		f.finished |= side
	}
	if h.flags&flagRST != 0 {
		f.finished = 3
	}
}

func (n *natTable) add(now time.Duration, key natKey, v6 bool) *natFlow {
	if len(n.inside) >= maxNATFlows {
		n.sweep(now)
		if len(n.inside) >= maxNATFlows {
			return nil
		}
	}
	f := &natFlow{key: key, last: now, port: natPort{proto: key.proto, v6: v6}}
	// There are more ports than flows, so one is free. Each flow gets the next
	// one: a flow that is forgotten and comes back has another port than before.
	for {
		f.port.port = n.nextPort
		if n.nextPort++; n.nextPort > lastNATPort {
			n.nextPort = firstNATPort
		}
		if n.outside[f.port] == nil {
			break
		}
	}
	n.inside[key], n.outside[f.port] = f, f
	return f
}
