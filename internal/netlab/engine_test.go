// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// addrsAt is where everybody is before anybody has moved.
func addrsAt(place int) hostAddrs {
	var a hostAddrs
	a.Client4, a.Client6 = clientAddrs(place)
	a.NAT4, a.NAT6 = natAddrs(place)
	return a
}

// wire makes a packet with right checksums and n bytes of data behind the
// transport's header. An echo takes its identifier from the source port; its
// type is 8 or 128 where flags is 0.
func wire(proto uint8, src, dst netip.AddrPort, flags uint8, n int) []byte {
	l4 := make([]byte, map[uint8]int{protoTCP: 20, protoUDP: 8, protoICMP: 8, protoICMPv6: 8}[proto]+n)
	for i := range l4 {
		l4[i] = byte(i * 7)
	}
	sumAt := 2
	switch proto {
	case protoTCP:
		l4[12], l4[13], sumAt = 5<<4, flags, 16
	case protoUDP:
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
		sumAt = 6
	case protoICMP:
		l4[0], l4[1] = 8, 0
	case protoICMPv6:
		l4[0], l4[1] = 128, 0
	}
	if proto == protoTCP || proto == protoUDP {
		binary.BigEndian.PutUint16(l4, src.Port())
		binary.BigEndian.PutUint16(l4[2:], dst.Port())
	} else {
		binary.BigEndian.PutUint16(l4[4:], src.Port())
	}
	l4[sumAt], l4[sumAt+1] = 0, 0
	from, to := addrBytes(src.Addr()), addrBytes(dst.Addr())
	acc := uint32(0)
	if proto != protoICMP {
		acc = sumBytes(sumBytes(uint32(proto)+uint32(len(l4)), from), to)
	}
	binary.BigEndian.PutUint16(l4[sumAt:], ^uint16(sumBytes(acc, l4)))
	if src.Addr().Is6() {
		ip := make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		copy(ip[8:], from)
		copy(ip[24:], to)
		return append(ip, l4...)
	}
	ip := make([]byte, 20)
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(l4)))
	copy(ip[12:], from)
	copy(ip[16:], to)
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sumBytes(0, ip)))
	return append(ip, l4...)
}

// sound reports a checksum that is not right.
func sound(b []byte) error {
	h, ok := parse(b)
	if !ok {
		return fmt.Errorf("not a packet: %x", b)
	}
	if !h.v6 && sumBytes(0, b[:h.ip]) != 0xffff {
		return fmt.Errorf("IP checksum wrong: %x", b[:h.ip])
	}
	acc := uint32(0)
	if h.proto != protoICMP {
		acc = sumBytes(sumBytes(uint32(h.proto)+uint32(h.l4), addrBytes(h.src.Addr())), addrBytes(h.dst.Addr()))
	}
	if sumBytes(acc, b[h.ip:]) != 0xffff {
		return fmt.Errorf("transport checksum wrong: %x", b)
	}
	return nil
}

// out is a packet that left an engine.
type out struct {
	dir Direction
	h   header
	b   []byte
}

// run releases all that is held, and gives the time it took.
func run(t *testing.T, e *engine, now time.Duration) []out {
	t.Helper()
	var all []out
	for {
		at, ok := e.next()
		if !ok {
			return all
		}
		now = max(now, at)
		e.release(now, func(d Direction, b []byte) bool {
			if err := sound(b); err != nil {
				t.Error(err)
			}
			h, _ := parse(b)
			all = append(all, out{d, h, bytes.Clone(b)})
			return true
		})
	}
}

var (
	client4 = netip.MustParseAddrPort("198.18.1.2:40000")
	server4 = netip.MustParseAddrPort("198.51.100.1:443")
	client6 = netip.MustParseAddrPort("[2001:db8:1:1::2]:40000")
	server6 = netip.MustParseAddrPort("[2001:db8:3::1]:443")
)

func TestNATTranslatesBothWays(t *testing.T) {
	for _, atServer := range []bool{false, true} {
		for _, proto := range []uint8{protoTCP, protoUDP, protoICMP, protoICMPv6} {
			client, server := client4, server4
			families := []bool{proto == protoICMPv6}
			if proto == protoTCP || proto == protoUDP {
				families = []bool{false, true}
			}
			for _, v6 := range families {
				if v6 {
					client, server = client6, server6
				}
				t.Run(fmt.Sprintf("protocol %d, IPv6 %v, at server %v", proto, v6, atServer), func(t *testing.T) {
					e := newEngine(1, addrsAt(0))
					e.setNAT(NAT{On: true, AtServer: atServer})
					e.setLinks(0, Link{Delay: ms}, Link{Delay: ms})
					sent := wire(proto, client, server, flagSYN, 33)
					e.input(0, Up, sent)
					up := run(t, e, 0)
					if len(up) != 1 || up[0].dir != Up {
						t.Fatalf("%d packets left, want 1 up", len(up))
					}
					from := up[0].h.src
					if from == client || from.Addr() != e.nat.addr4 && from.Addr() != e.nat.addr6 {
						t.Errorf("the server sees %v", from)
					}
					answer := wire(proto, server, from, flagSYN|flagACK, 33)
					if proto == protoICMP || proto == protoICMPv6 {
						answer = wire(proto, netip.AddrPortFrom(server.Addr(), from.Port()), from, 0, 33)
					}
					e.input(ms, Down, answer)
					down := run(t, e, ms)
					if len(down) != 1 || down[0].dir != Down || down[0].h.dst != client && proto != protoICMP && proto != protoICMPv6 {
						t.Fatalf("down: %+v, want 1 packet to %v", down, client)
					}
					if got := down[0].h.dst.Port(); got != client.Port() {
						t.Errorf("port or identifier %d, want %d", got, client.Port())
					}
				})
			}
		}
	}
}

func TestNATForgets(t *testing.T) {
	const idle = time.Second
	tests := []struct {
		name   string
		nat    NAT
		do     func(e *engine)
		quiet  time.Duration
		passes bool
		reset  Direction // to whom an RST goes, if any is expected
		resets int
	}{
		{"not yet", NAT{On: true, Idle: idle}, nil, idle, true, Up, 0},
		{"in silence", NAT{On: true, Idle: idle}, nil, idle + 1, false, Up, 0},
		{"with a reset", NAT{On: true, Idle: idle, Reset: true}, nil, idle + 1, false, Down, 1},
		{"with a reset at the server", NAT{On: true, Idle: idle, Reset: true, AtServer: true}, nil, idle + 1, false, Down, 1},
		{"never", NAT{On: true}, nil, 24 * time.Hour, true, Up, 0},
		{"now", NAT{On: true}, func(e *engine) { e.nat.forget() }, ms, false, Up, 0},
		{"by another address", NAT{On: true}, func(e *engine) { e.setAddrs(hostAddrs{client4.Addr(), client6.Addr(), server4.Addr(), server6.Addr()}) }, ms, false, Up, 0},
		{"turned off", NAT{On: true}, func(e *engine) { e.setNAT(NAT{}) }, ms, true, Up, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(1, addrsAt(0))
			e.setNAT(tt.nat)
			e.input(0, Up, wire(protoTCP, client4, server4, flagSYN, 0))
			run(t, e, 0)
			if tt.do != nil {
				tt.do(e)
			}
			e.input(tt.quiet, Up, wire(protoTCP, client4, server4, flagACK, 10))
			passed, resets := 0, 0
			for _, o := range run(t, e, tt.quiet) {
				if o.h.flags&flagRST == 0 {
					passed++
					continue
				}
				resets++
				// Sent as the answer of the server: its address, our acknowledgement.
				sent := wire(protoTCP, client4, server4, flagACK, 10)
				if o.dir != tt.reset || o.h.dst != client4 || o.h.src != server4 || !bytes.Equal(o.b[24:28], sent[28:32]) {
					t.Errorf("RST %+v is not acceptable to the client", o)
				}
			}
			if passed == 1 != tt.passes || resets != tt.resets {
				t.Errorf("%d passed, %d resets; want pass %v, %d resets", passed, resets, tt.passes, tt.resets)
			}
			if got := e.stats[Up].Dropped[CauseFlow]; got == 1 == tt.passes {
				t.Errorf("%d dropped as unknown", got)
			}
		})
	}
}

// A reset to the server when it speaks on a forgotten flow, RFC 9293 §3.5.2.
func TestNATResetsTheServerToo(t *testing.T) {
	for _, atServer := range []bool{false, true} {
		e := newEngine(1, addrsAt(0))
		e.setNAT(NAT{On: true, Reset: true, AtServer: atServer})
		e.input(0, Up, wire(protoTCP, client6, server6, flagSYN, 0))
		from := run(t, e, 0)[0].h.src
		e.nat.forget()
		e.input(ms, Down, wire(protoTCP, server6, from, flagSYN, 5)) // without ACK: the other form of RST
		got := run(t, e, ms)
		if len(got) != 1 || got[0].dir != Up || got[0].h.flags != flagRST|flagACK || got[0].h.dst != server6 {
			t.Fatalf("at server %v: %+v, want one RST to the server", atServer, got)
		}
		sent := wire(protoTCP, server6, from, flagSYN, 5)
		if ack, want := binary.BigEndian.Uint32(got[0].b[48:]), binary.BigEndian.Uint32(sent[44:])+6; ack != want {
			t.Errorf("acknowledges %d, want %d (SYN and 5 bytes)", ack, want)
		}
		e.input(2*ms, Down, wire(protoTCP, server6, from, flagRST, 0))
		if got := run(t, e, 2*ms); len(got) != 0 {
			t.Errorf("an RST was answered: %+v", got)
		}
	}
}

func TestNATGivesUDPAnotherPort(t *testing.T) {
	e := newEngine(1, addrsAt(0))
	e.setNAT(NAT{On: true, Idle: time.Hour, UDPIdle: time.Second})
	port := func(now time.Duration) uint16 {
		e.input(now, Up, wire(protoUDP, client4, server4, 0, 5))
		return run(t, e, now)[0].h.src.Port()
	}
	first := port(0)
	if again := port(time.Second); again != first {
		t.Errorf("port %d, then %d without reason", first, again)
	}
	if other := port(2*time.Second + 1); other == first {
		t.Errorf("port %d again after the flow was forgotten", other)
	}
	if got := e.snapshot(2*time.Second + 1); got.Flows != 1 || got.Forgotten != 1 {
		t.Errorf("flows %d, forgotten %d, want 1 and 1", got.Flows, got.Forgotten)
	}
	// What comes to the old port has nobody.
	e.input(2*time.Second+2, Down, wire(protoUDP, server4, netip.AddrPortFrom(e.nat.addr4, first), 0, 5))
	if got := run(t, e, 2*time.Second+2); len(got) != 0 {
		t.Errorf("an answer to the old port came through: %+v", got)
	}
}

func TestNATTableIsBounded(t *testing.T) {
	e := newEngine(1, addrsAt(0))
	e.setNAT(NAT{On: true})
	for i := range maxNATFlows + 1 {
		to := netip.AddrPortFrom(server4.Addr(), uint16(i+1))
		e.input(0, Up, wire(protoUDP, client4, to, 0, 0))
	}
	run(t, e, 0)
	if got := e.snapshot(0); got.Flows != maxNATFlows || got.Up.Dropped[CauseOverflow] != 1 {
		t.Errorf("flows %d, refused %d, want %d and 1", got.Flows, got.Up.Dropped[CauseOverflow], maxNATFlows)
	}
}

func TestOldAddressIsGone(t *testing.T) {
	e := newEngine(1, addrsAt(0))
	e.setLinks(0, Link{Delay: ms}, Link{Delay: ms})
	e.input(0, Down, wire(protoTCP, server4, client4, flagACK, 0)) // on its way during the move
	e.setAddrs(addrsAt(1))
	e.input(0, Up, wire(protoTCP, client4, server4, flagACK, 0))
	if got := run(t, e, 0); len(got) != 0 {
		t.Errorf("packets of the old address passed: %+v", got)
	}
	moved, _ := clientAddrs(1)
	e.input(0, Up, wire(protoTCP, netip.AddrPortFrom(moved, 1), server4, flagSYN, 0))
	if got := run(t, e, 0); len(got) != 1 {
		t.Errorf("%d packets of the new address passed, want 1", len(got))
	}
	if up, down := e.stats[Up].Dropped[CauseAddress], e.stats[Down].Dropped[CauseAddress]; up != 1 || down != 1 {
		t.Errorf("dropped %d up, %d down, want 1 and 1", up, down)
	}
}

func TestHoldKeepsOrderAndLosesNothing(t *testing.T) {
	e := newEngine(1, addrsAt(0))
	e.setLinks(0, Link{Delay: 10 * ms}, Link{})
	for i := range 30 {
		now := time.Duration(i) * ms
		if i == 15 { // some have left, some are on their way, some come later
			e.release(now, func(Direction, []byte) bool { return true })
			e.hold(now, time.Second)
		}
		e.input(now, Up, wire(protoUDP, client4, server4, 0, i))
	}
	if at, _ := e.next(); at != time.Second+15*ms {
		t.Errorf("the next leaves at %v, want at the end of the hold", at)
	}
	want := 6 // 0 to 5 ms have left after 10 ms
	for _, o := range run(t, e, 0) {
		if n := o.h.l4 - 8; n != want {
			t.Fatalf("packet %d left, want %d", n, want)
		}
		want++
	}
	if want != 30 {
		t.Errorf("%d packets left, want 30", want)
	}
}

func TestHeldBytesAreBounded(t *testing.T) {
	e := newEngine(1, addrsAt(0))
	e.setLinks(0, Link{Delay: maxDelay}, Link{})
	p := wire(protoUDP, client4, server4, 0, 1000)
	e.most = 100 * deviceMTU
	for range 150 {
		e.input(0, Up, p)
	}
	if e.bytes != e.most || e.stats[Up].Dropped[CauseOverflow] != 50 {
		t.Errorf("holds %d bytes, dropped %d", e.bytes, e.stats[Up].Dropped[CauseOverflow])
	}
	run(t, e, 0)
	if e.bytes != 0 || e.stats[Up].Held != 0 || e.stats[Up].HeldBytes != 0 {
		t.Errorf("holds %d bytes after all have left: %+v", e.bytes, e.stats[Up])
	}
}

// FuzzEngine sends arbitrary packets through a network with a NAT: it must not
// fall over, must account for each packet, and must send out only sound packets
// where sound ones went in.
func FuzzEngine(f *testing.F) {
	f.Add(wire(protoTCP, client4, server4, flagSYN, 9), true, uint8(3))
	f.Add(wire(protoTCP, client6, server6, flagACK, 9), true, uint8(7))
	f.Add(wire(protoUDP, server4, client4, 0, 0), false, uint8(1))
	f.Add(wire(protoICMPv6, client6, server6, 0, 0), true, uint8(1))
	f.Add([]byte{0x45}, true, uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, up bool, flags uint8) {
		e := newEngine(1, addrsAt(0))
		e.setLinks(0, Link{Delay: ms}, Link{Delay: ms, Duplicate: 0.5})
		e.setNAT(NAT{On: flags&1 != 0})
		if flags&1 != 0 {
			e.setNAT(NAT{On: true, Reset: flags&2 != 0, AtServer: flags&4 != 0})
		}
		dir := Down
		if up {
			dir = Up
		}
		whole := bytes.Clone(b)
		_, ok := parse(b)
		sane := ok && sound(b) == nil
		e.input(0, dir, b)
		e.input(0, dir, b)
		if !bytes.Equal(b, whole) {
			t.Fatal("the caller's bytes changed")
		}
		for at, more := e.next(); more; at, more = e.next() {
			e.release(at, func(_ Direction, b []byte) bool {
				if _, ok := parse(b); !ok {
					t.Fatalf("left as no packet: %x", b)
				}
				if sane && sound(b) != nil {
					t.Fatal(sound(b))
				}
				return true
			})
		}
		s := e.snapshot(ms)
		if s.Up.Held+s.Down.Held+s.Up.HeldBytes+s.Down.HeldBytes != 0 || e.bytes != 0 {
			t.Fatalf("something is still held: %+v", s)
		}
	})
}

// What goes to a port of the server is counted apart, and from when on a forgotten
// flow was not answered.
func TestPortsAreCountedApart(t *testing.T) {
	e := newEngine(1, addrsAt(0))
	e.setNAT(NAT{On: true})
	other := netip.AddrPortFrom(server4.Addr(), server4.Port()+1)
	up := func(at time.Duration, to netip.AddrPort, flags uint8, n int) {
		e.input(at, Up, wire(protoTCP, client4, to, flags, n))
		e.release(at, func(Direction, []byte) bool { return true })
	}
	up(0, server4, flagSYN, 0)
	up(0, other, flagSYN, 0)
	up(ms, server4, flagACK, 60)
	e.forget()
	up(3*ms, server4, flagACK, 10)
	up(5*ms, server4, flagACK, 10)
	want := []PortStats{
		{Port: server4.Port(), Packets: 4, Bytes: 4*40 + 80, Flows: 1, Unknown: 2, UnknownSince: 4 * ms},
		{Port: other.Port(), Packets: 1, Bytes: 40, Flows: 1},
	}
	if got := e.snapshot(7 * ms).Ports; !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if e.forget(); e.snapshot(8 * ms).Ports[0].UnknownSince != 0 {
		t.Error("the flow of before is counted in what is forgotten now")
	}
	for port := range uint16(2 * maxPorts) {
		up(9*ms, netip.AddrPortFrom(server4.Addr(), 20000+port), flagSYN, 0)
	}
	if n := len(e.snapshot(9 * ms).Ports); n != maxPorts {
		t.Errorf("%d ports are counted, want %d", n, maxPorts)
	}
}
