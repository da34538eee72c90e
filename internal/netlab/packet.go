// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"encoding/binary"
	"net/netip"
)

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// TCP flags, RFC 9293 §3.1.
const (
	flagFIN = 1 << 0
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagACK = 1 << 4
)

// A header is what the lab reads of a packet.
type header struct {
	v6       bool
	proto    uint8
	src, dst netip.AddrPort // port 0 where there is none; of an echo both are its identifier
	ports    bool           // TCP, UDP or echo, and whole: a NAT can carry it
	flags    uint8          // of TCP
	ip       int            // length of the IP header
	l4       int            // length of the packet behind it
}

// parse reads a packet from a device. It is false for what is not a well-formed
// IP packet. Extension headers of IPv6 are not followed: such a packet has no
// ports.
func parse(b []byte) (header, bool) {
	if len(b) < 20 {
		return header{}, false
	}
	switch b[0] >> 4 {
	case 4:
		return parse4(b)
	case 6:
		return parse6(b)
	}
	return header{}, false
}

func parse4(b []byte) (header, bool) {
	length := int(binary.BigEndian.Uint16(b[2:]))
	h := header{proto: b[9], ip: int(b[0]&15) * 4}
	if h.ip < 20 || length < h.ip || length != len(b) {
		return header{}, false
	}
	h.l4 = length - h.ip
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	// The don't-fragment bit may be set; an offset or more to come makes it a fragment.
	whole := binary.BigEndian.Uint16(b[6:])&0x3fff == 0
	h.transport(b[h.ip:], src, dst, whole)
	return h, true
}

func parse6(b []byte) (header, bool) {
	if len(b) < 40 || int(binary.BigEndian.Uint16(b[4:]))+40 != len(b) {
		return header{}, false
	}
	h := header{v6: true, proto: b[6], ip: 40, l4: len(b) - 40}
	h.transport(b[40:], netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), true)
	return h, true
}

func (h *header) transport(b []byte, src, dst netip.Addr, whole bool) {
	var from, to uint16
	switch {
	case !whole:
	case h.proto == protoTCP && len(b) >= 20:
		from, to = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		h.ports, h.flags = true, b[13]
	case h.proto == protoUDP && len(b) >= 8:
		from, to = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		h.ports = true
	case h.isEcho(b):
		from = binary.BigEndian.Uint16(b[4:])
		to, h.ports = from, true
	}
	h.src, h.dst = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)
}

func (h *header) isEcho(b []byte) bool {
	if len(b) < 8 {
		return false
	}
	if h.v6 {
		return h.proto == protoICMPv6 && (b[0] == 128 || b[0] == 129)
	}
	return h.proto == protoICMP && (b[0] == 8 || b[0] == 0)
}

// rewrite gives the packet another source or destination and keeps its checksums
// right as far as they were. h must be the packet's header and have ports.
func (h *header) rewrite(b []byte, source bool, to netip.AddrPort) {
	old, ipAt, portAt := h.dst, 16, 2
	if h.v6 {
		ipAt = 24
	}
	if source {
		old, portAt = h.src, 0
		ipAt -= old.Addr().BitLen() / 8
	}
	l4 := b[h.ip:]
	if h.proto == protoICMP || h.proto == protoICMPv6 {
		portAt = 4
	}
	oldIP, newIP := addrBytes(old.Addr()), addrBytes(to.Addr())
	copy(b[ipAt:], newIP)
	if !h.v6 {
		update(b[10:12], oldIP, newIP)
	}
	var oldPort, newPort [2]byte
	copy(oldPort[:], l4[portAt:])
	binary.BigEndian.PutUint16(newPort[:], to.Port())
	copy(l4[portAt:], newPort[:])
	if sum := h.checksum(l4); sum != nil {
		if h.proto != protoICMP { // which has no pseudo-header
			update(sum, oldIP, newIP)
		}
		update(sum, oldPort[:], newPort[:])
		if h.proto == protoUDP && sum[0] == 0 && sum[1] == 0 {
			sum[0], sum[1] = 0xff, 0xff // RFC 768: 0 says that there is none
		}
	}
}

// checksum is the transport's checksum field, or nil if it is not used.
func (h *header) checksum(l4 []byte) []byte {
	switch h.proto {
	case protoTCP:
		return l4[16:18]
	case protoUDP:
		if l4[6] == 0 && l4[7] == 0 {
			return nil // RFC 768: none was sent
		}
		return l4[6:8]
	}
	return l4[2:4]
}

func addrBytes(a netip.Addr) []byte {
	b := a.As16()
	if a.Is4() {
		return b[12:]
	}
	return b[:]
}

// update changes a checksum for a changed part of what it covers, RFC 1624 §3:
// HC' = ~(~HC + ~m + m').
func update(sum, from, to []byte) {
	acc := uint32(^binary.BigEndian.Uint16(sum))
	for i := 0; i+1 < len(from); i += 2 {
		acc += uint32(^binary.BigEndian.Uint16(from[i:])) + uint32(binary.BigEndian.Uint16(to[i:]))
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	binary.BigEndian.PutUint16(sum, ^uint16(acc))
}

// sumBytes adds b to a checksum in the making.
func sumBytes(acc uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		acc += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		acc += uint32(b[0]) << 8
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return acc
}

// appendReset appends the RST that answers a TCP packet of an unknown
// connection, RFC 9293 §3.5.2. The packet must be TCP without RST.
func appendReset(out, b []byte, h *header) []byte {
	in := b[h.ip:]
	size := 20 + 20
	if h.v6 {
		size = 40 + 20
	}
	start := len(out)
	out = append(out, make([]byte, size)...)
	r := out[start:]
	if h.v6 {
		r[0], r[6], r[7] = 0x60, protoTCP, 64
		binary.BigEndian.PutUint16(r[4:], 20)
		copy(r[8:], addrBytes(h.dst.Addr()))
		copy(r[24:], addrBytes(h.src.Addr()))
	} else {
		r[0], r[6], r[8], r[9] = 0x45, 0x40, 64, protoTCP
		binary.BigEndian.PutUint16(r[2:], uint16(size))
		copy(r[12:], addrBytes(h.dst.Addr()))
		copy(r[16:], addrBytes(h.src.Addr()))
		binary.BigEndian.PutUint16(r[10:], ^uint16(sumBytes(0, r[:20])))
	}
	tcp := r[len(r)-20:]
	binary.BigEndian.PutUint16(tcp, h.dst.Port())
	binary.BigEndian.PutUint16(tcp[2:], h.src.Port())
	tcp[12] = 5 << 4
	if h.flags&flagACK != 0 {
		copy(tcp[4:8], in[8:12]) // their acknowledgement is our sequence number
		tcp[13] = flagRST
	} else {
		length := uint32(max(h.l4-int(in[12]>>4)*4, 0))
		length += uint32(h.flags&flagSYN)>>1 + uint32(h.flags&flagFIN)
		binary.BigEndian.PutUint32(tcp[8:], binary.BigEndian.Uint32(in[4:])+length)
		tcp[13] = flagRST | flagACK
	}
	acc := sumBytes(protoTCP+20, addrBytes(h.dst.Addr()))
	acc = sumBytes(acc, addrBytes(h.src.Addr()))
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sumBytes(acc, tcp)))
	return out
}
