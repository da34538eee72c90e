// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

const (
	deviceMTU = 1500 // of both hosts' devices
	// maxPorts bounds how many ports of the server are counted apart, those that
	// are used first.
	maxPorts = 64
	// maxHeldBytes bounds what is on its way, as buffers of deviceMTU bytes: 10 s
	// at 100 Mbit/s.
	maxHeldBytes = 128 << 20
)

// LinkStats counts the packets of one direction since the lab began.
type LinkStats struct {
	In, Out           uint64 // packets that entered and left; those made on the way (RST, copies) leave only
	InBytes, OutBytes uint64
	Held, HeldBytes   int // on their way now
	Dropped           [numCauses]uint64
}

// Drops is how many packets were dropped, for any cause.
func (s LinkStats) Drops() uint64 {
	var n uint64
	for _, d := range s.Dropped {
		n += d
	}
	return n
}

// Stats counts what the lab has done.
type Stats struct {
	Up, Down  LinkStats
	Flows     int    // that the NAT knows
	Forgotten uint64 // flows that it has forgotten, closed ones too
	// How late packets left, all together and at worst: the error of the lab
	// itself. It includes what was due while the machine stood still.
	LateSum, LateMax time.Duration
	Ports            []PortStats // of TCP, by number
}

// PortStats counts what went to and from one TCP port of the server.
type PortStats struct {
	Port           uint16
	Packets, Bytes uint64        // that entered, both ways
	Flows          uint64        // SYNs of the client, those sent again too
	Unknown        uint64        // packets of the client, of flows that the NAT had forgotten
	UnknownSince   time.Duration // how long ago the first of them came, since ForgetFlows; 0 = none did
}

// Late is how late packets left on average.
func (s Stats) Late() time.Duration {
	return s.LateSum / time.Duration(max(s.Up.Out+s.Down.Out, 1))
}

// hostAddrs are what the engine knows of the client's and the NAT's place.
type hostAddrs struct {
	Client4, Client6 netip.Addr
	NAT4, NAT6       netip.Addr
}

// A held packet waits for its time.
type held struct {
	at   time.Duration
	seq  uint64 // of equal times the first to enter leaves first
	dir  Direction
	made bool // by the NAT beside the client: has passed it already
	b    []byte
}

// An engine is the whole network without its devices: packets go in with the
// time, and come out when their time has come. It reads no clock and is not
// safe for concurrent use. Times must not go back.
type engine struct {
	judges [2]*judge
	nat    *natTable
	addrs  hostAddrs
	queue  heldQueue
	seq    uint64
	bytes  int // of the buffers in queue
	most   int // of bytes
	stats  [2]LinkStats
	ports  map[uint16]*portCount
	late   time.Duration // summed over all packets
	latest time.Duration
	free   [][]byte // buffers to use again
}

func newEngine(seed uint64, addrs hostAddrs) *engine {
	e := &engine{judges: [2]*judge{newJudge(seed, Up), newJudge(seed, Down)}, nat: newNATTable(), most: maxHeldBytes, ports: map[uint16]*portCount{}}
	e.setAddrs(addrs)
	return e
}

func (e *engine) setLinks(now time.Duration, up, down Link) {
	e.judges[Up].set(now, up)
	e.judges[Down].set(now, down)
}

func (e *engine) setNAT(n NAT) {
	if !n.On {
		e.nat.forget()
	}
	e.nat.cfg = n
}

// setAddrs moves the client or the NAT. What a NAT knows is of its old place.
func (e *engine) setAddrs(a hostAddrs) {
	e.addrs = a
	e.nat.addr4, e.nat.addr6 = a.NAT4, a.NAT6
	e.nat.forget()
}

// forget empties the NAT's table.
func (e *engine) forget() {
	e.nat.forget()
	for _, p := range e.ports {
		p.lost = false
	}
}

// A portCount is what is counted of a port of the server.
type portCount struct {
	PortStats
	lost bool          // a packet of an unknown flow came
	at   time.Duration // and the first when
}

// count counts a packet by the server's port; nil if it is not counted.
func (e *engine) count(dir Direction, size int, h *header) *portCount {
	if h.proto != protoTCP || !h.ports {
		return nil
	}
	port := h.dst.Port()
	if dir == Down {
		port = h.src.Port()
	}
	p := e.ports[port]
	if p == nil {
		if len(e.ports) == maxPorts {
			return nil
		}
		p = &portCount{PortStats: PortStats{Port: port}}
		e.ports[port] = p
	}
	p.Packets++
	p.Bytes += uint64(size)
	if dir == Up && h.flags&(flagSYN|flagACK) == flagSYN {
		p.Flows++
	}
	return p
}

// outage drops what enters from now on, for d.
func (e *engine) outage(now, d time.Duration) {
	for _, j := range e.judges {
		j.outageUntil = max(j.outageUntil, now+d)
	}
}

// hold keeps what is on its way and what enters, for d.
func (e *engine) hold(now, d time.Duration) {
	for _, j := range e.judges {
		j.spikeUntil = max(j.spikeUntil, now+d)
	}
	// Same times keep the order of their number, so number them by time first.
	sorted := make([]held, 0, len(e.queue))
	for len(e.queue) > 0 {
		sorted = append(sorted, e.queue.pop())
	}
	for _, p := range sorted {
		p.at = max(p.at, now+d)
		e.seq++
		p.seq = e.seq
		e.queue = append(e.queue, p) // ascending, which is a heap
	}
}

// input takes a packet from the device on one side. It copies b.
func (e *engine) input(now time.Duration, dir Direction, b []byte) {
	h, ok := parse(b)
	if !ok || !h.dst.Addr().IsGlobalUnicast() {
		return // neighbour discovery, multicast reports: no traffic of the hosts
	}
	s := &e.stats[dir]
	s.In++
	s.InBytes += uint64(len(b))
	if dir == Up && h.src.Addr() != e.addrs.Client4 && h.src.Addr() != e.addrs.Client6 {
		e.drop(dir, CauseAddress)
		return
	}
	port := e.count(dir, len(b), &h)
	b = append(e.buffer(), b...)
	// A NAT is met at ingress from its own side, and at release from the other.
	if n := e.nat.cfg; n.On && n.AtServer == (dir == Down) && !e.translate(now, dir, b, &h) {
		if port != nil && dir == Up {
			if port.Unknown++; !port.lost {
				port.lost, port.at = true, now
			}
		}
		e.recycle(b)
		return
	}
	e.send(now, dir, b, shape{size: len(b), udp: h.proto == protoUDP})
}

// send puts a packet on the link; it owns b.
func (e *engine) send(now time.Duration, dir Direction, b []byte, p shape) {
	v := e.judges[dir].packet(now, p)
	switch {
	case v.dropped:
		e.drop(dir, v.cause)
	case e.bytes+v.copies*cap(b) > e.most:
		e.drop(dir, CauseOverflow)
	default:
		for _, at := range v.at[1:v.copies] {
			e.push(held{at: at, dir: dir, b: append(e.buffer(), b...)})
		}
		e.push(held{at: v.at[0], dir: dir, b: b})
		return
	}
	e.recycle(b)
}

// translate takes a packet through the NAT; false means that it ended there.
func (e *engine) translate(now time.Duration, dir Direction, b []byte, h *header) bool {
	pass := e.nat.fromClient
	if dir == Down {
		pass = e.nat.fromServer
	}
	cause, ok := pass(now, b, h)
	if ok {
		return true
	}
	e.drop(dir, cause)
	if cause == CauseFlow && e.nat.cfg.Reset && h.proto == protoTCP && h.flags&flagRST == 0 {
		e.answerReset(now, dir, b, h)
	}
	return false
}

// answerReset sends the RST back to where the packet came from: at once if the
// NAT stands there, over the link if not.
func (e *engine) answerReset(now time.Duration, dir Direction, b []byte, h *header) {
	rst := appendReset(e.buffer(), b, h)
	if e.nat.cfg.AtServer == (dir == Down) {
		e.push(held{at: now, dir: 1 - dir, made: true, b: rst})
		return
	}
	e.send(now, 1-dir, rst, shape{size: len(rst)})
}

func (e *engine) push(p held) {
	e.seq++
	p.seq = e.seq
	e.queue.push(p)
	e.bytes += cap(p.b)
	e.stats[p.dir].Held++
	e.stats[p.dir].HeldBytes += len(p.b)
}

// next is when the next packet leaves.
func (e *engine) next() (time.Duration, bool) {
	if len(e.queue) == 0 {
		return 0, false
	}
	return e.queue[0].at, true
}

// release hands over the packets whose time has come. emit may not keep the
// bytes; it is false if the device did not take them.
func (e *engine) release(now time.Duration, emit func(Direction, []byte) bool) {
	for len(e.queue) > 0 && e.queue[0].at <= now {
		p := e.queue.pop()
		s := &e.stats[p.dir]
		e.bytes -= cap(p.b)
		s.Held--
		s.HeldBytes -= len(p.b)
		if e.arrives(now, p) {
			if emit(p.dir, p.b) {
				s.Out++
				s.OutBytes += uint64(len(p.b))
				e.late += now - p.at
				e.latest = max(e.latest, now-p.at)
			} else {
				e.drop(p.dir, CauseOverflow)
			}
		}
		e.recycle(p.b)
	}
}

// arrives says whether somebody is there at the end of the link.
func (e *engine) arrives(now time.Duration, p held) bool {
	if p.made {
		return true
	}
	h, ok := parse(p.b)
	if !ok {
		panic("netlab: internal error: a packet was broken on its way")
	}
	n := e.nat.cfg
	if n.On && n.AtServer == (p.dir == Up) && !e.translate(now, p.dir, p.b, &h) {
		return false
	}
	if p.dir == Down && (!n.On || n.AtServer) && h.dst.Addr() != e.addrs.Client4 && h.dst.Addr() != e.addrs.Client6 {
		e.drop(Down, CauseAddress)
		return false
	}
	return true
}

func (e *engine) drop(dir Direction, c Cause) { e.stats[dir].Dropped[c]++ }

func (e *engine) snapshot(now time.Duration) Stats {
	e.nat.sweep(now)
	return Stats{
		Up: e.stats[Up], Down: e.stats[Down],
		Flows: len(e.nat.inside), Forgotten: e.nat.forgotten,
		LateSum: e.late, LateMax: e.latest, Ports: e.portStats(now),
	}
}

func (e *engine) portStats(now time.Duration) []PortStats {
	var all []PortStats
	for _, p := range e.ports {
		st := p.PortStats
		if p.lost {
			st.UnknownSince = max(now-p.at, 1)
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b PortStats) int { return cmp.Compare(a.Port, b.Port) })
	return all
}

// buffer returns an empty buffer with room for a packet.
func (e *engine) buffer() []byte {
	if n := len(e.free); n > 0 {
		b := e.free[n-1]
		e.free = e.free[:n-1]
		return b
	}
	return make([]byte, 0, deviceMTU)
}

// maxFree is how many idle buffers are kept: 6 MiB of them.
const maxFree = 4096

func (e *engine) recycle(b []byte) {
	if len(e.free) < maxFree && cap(b) >= deviceMTU {
		e.free = append(e.free, b[:0])
	}
}

// A heldQueue is a heap by time. container/heap would make garbage of each
// packet twice, in a process that must not stop to collect it.
type heldQueue []held

func (q heldQueue) less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q *heldQueue) push(p held) {
	s := append(*q, p)
	*q = s
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.less(i, up) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

func (q *heldQueue) pop() held {
	s := *q
	first, last := s[0], len(s)-1
	s[0], s[last] = s[last], held{}
	s = s[:last]
	*q = s
	for i := 0; ; {
		down := 2*i + 1
		if down+1 < last && s.less(down+1, down) {
			down++
		}
		if down >= last || !s.less(down, i) {
			return first
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
}
