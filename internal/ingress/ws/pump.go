// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"sync"
	"sync/atomic"
	"time"
)

// chunkSize is what the queue grows by.
const chunkSize = midBlock

// A pump is one direction. One goroutine has the reader's role: it reads, parses,
// answers pings and writes what it read. While it is stuck in a write, another
// takes the role over and puts what it reads into the queue; the one that was
// stuck empties the queue when it can, and ends.
type pump struct {
	r        *Relay
	from, to *leg

	// The following belong to whoever has the reader's role.
	early    []byte // what was read with the handshake
	parser   parser
	answered atomic.Bool // a ping has come that is not answered
	need     int         // see parser.parse

	watch watched // guarded by the Watcher

	mu     sync.Mutex // guards the following
	room   sync.Cond  // signalled when the queue shrinks or drop is set
	turn   int        // of the reader's role; raised when it is taken over
	cur    *block     // what the role's owner reads into
	inside bool       // the role's owner is in a write
	stall  *time.Timer
	busy   bool // someone writes a block, or the queue
	queue  []chunk
	queued int      // bytes of memory in it
	tight  bool     // the budget had no room for the last of it
	drop   bool     // what comes is thrown away
	after  []func() // what is done once all that has come is written
}

// A chunk waits to be written. It ends as its last piece did.
type chunk struct {
	buf  []byte
	mid  bool
	last bool // with the peer's close frame
	paid bool // from the budget
}

func newPump(r *Relay, from, to *leg, early []byte) *pump {
	p := &pump{r: r, from: from, to: to, early: early, cur: getBlock(0)}
	p.room.L = &p.mu
	p.watch.pump = p
	p.parser = parser{ext: r.ext, masked: to.masks, control: p.control}
	return p
}

// read has the reader's role until the end, or until it is taken over.
func (p *pump) read(turn int) {
	defer p.r.leave()
	for {
		b := p.cur
		n, err := p.fill(b)
		if n > 0 && !p.pass(b, turn) {
			return
		}
		if err != nil {
			p.ended(err)
			putBlock(p.cur)
			return
		}
	}
}

// fill reads once.
func (p *pump) fill(b *block) (int, error) {
	var n int
	var err error
	if len(p.early) > 0 {
		n = copy(b.buf[b.e:], p.early)
		if p.early = p.early[n:]; len(p.early) == 0 {
			p.early = nil
		}
	} else {
		n, err = p.from.conn.Read(b.buf[b.e:])
	}
	if n > 0 {
		b.e += n
		p.from.in.Add(int64(n))
		p.from.heard.Store(int64(p.from.clock.now()))
	}
	return n, err
}

// control takes pings, and the pongs that answer ours, out of the stream.
func (p *pump) control(op byte, payload []byte) (taken bool) {
	if op == opPong {
		return p.from.pong(payload) || !p.r.cfg.PassPings
	}
	if p.r.cfg.PassPings {
		return false
	}
	p.from.answer(payload)
	p.answered.Store(true)
	return true
}

// pass parses what is in b and sends it on. It returns false if the role is lost
// by then.
func (p *pump) pass(b *block, turn int) bool {
	var broken error
	wasClosed := p.parser.closed
	p.need, broken = p.parser.parse(b)
	p.from.frames.Store(p.parser.frames)
	last := p.parser.closed && !wasClosed
	if broken != nil {
		p.parser.closed, b.r = true, b.e
	}
	if last {
		p.r.closeCame(p)
	}
	kept := p.deliver(b, turn, last)
	if broken != nil {
		p.r.broke(p, broken)
	}
	if kept {
		p.settle(b)
	} else {
		putBlock(b)
	}
	return kept
}

// deliver writes what parse has marked in b, or queues it.
func (p *pump) deliver(b *block, turn int, last bool) (kept bool) {
	p.mu.Lock()
	if len(b.out) > 0 && p.fullLocked(b) {
		p.mu.Unlock()
		p.answer()
		p.awaitRoom(b)
		p.mu.Lock()
	}
	send := len(b.out) > 0 && !p.drop
	mine := send && !p.busy
	switch {
	case mine:
		p.busy = true
	case send:
		p.enqueueLocked(b, last)
	}
	p.mu.Unlock()
	switch {
	case mine:
		return p.blocking(turn, func() {
			p.answer()
			p.write(b, last)
		})
	case p.answered.Load():
		return p.blocking(turn, p.answer)
	}
	return true
}

// answer writes the pongs that are due.
func (p *pump) answer() {
	if p.answered.Swap(false) {
		p.from.flush()
	}
}

// blocking runs f, which writes. If it takes long the reader's role goes to
// another goroutine, and blocking returns false.
func (p *pump) blocking(turn int, f func()) (kept bool) {
	p.mu.Lock()
	p.inside = true
	p.mu.Unlock()
	p.r.cfg.Watcher.begin(&p.watch, turn)
	f()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turn != turn {
		return false
	}
	p.r.cfg.Watcher.end(&p.watch)
	p.inside = false
	return true
}

// takeOver gives the role of turn's reader, which is stuck in a write, to a new
// goroutine, with the bytes that are not parsed yet.
func (p *pump) takeOver(turn int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turn != turn || !p.inside || !p.r.enter() {
		return
	}
	p.r.cfg.Watcher.end(&p.watch) // it may be in the next write already
	p.inside = false
	p.turn++
	old := p.cur
	p.cur = getBlock(p.want())
	p.cur.e += copy(p.cur.buf[p.cur.e:], old.buf[old.r:old.e])
	go p.read(p.turn)
	if limit := p.r.cfg.Stall; limit > 0 && p.stall == nil {
		p.stall = time.AfterFunc(limit-takeover, p.checkStall)
	}
}

// checkStall ends the relay if one write has taken longer than the limit.
func (p *pump) checkStall() {
	if !p.r.enter() {
		return
	}
	defer p.r.leave()
	since, writing := p.to.stuck()
	p.mu.Lock()
	var left time.Duration
	over := false
	switch {
	case !p.busy || p.drop:
		p.stall = nil
	case !writing:
		left = p.r.cfg.Stall
	default:
		left = since + p.r.cfg.Stall - p.to.clock.now()
		over = left <= 0
	}
	if p.stall != nil && !over {
		p.stall.Reset(left)
	}
	p.mu.Unlock()
	if over {
		p.r.stalled(p)
	}
}

// write writes the pieces of b and then the queue, until that is empty.
func (p *pump) write(b *block, last bool) {
	for i, piece := range b.out {
		p.send(chunk{buf: b.buf[piece.start:piece.end], mid: piece.mid, last: last && i == len(b.out)-1})
	}
	for {
		p.mu.Lock()
		if len(p.queue) == 0 || p.drop {
			break
		}
		c := p.queue[0]
		p.queue[0] = chunk{}
		p.queue = p.queue[1:]
		p.mu.Unlock()
		p.send(c)
		p.mu.Lock()
		p.queued -= cap(c.buf)
		p.giveLocked(c)
		p.room.Signal()
		p.mu.Unlock()
	}
	p.busy, p.queue = false, nil
	p.room.Signal()
	after := p.after
	p.after = nil
	p.mu.Unlock()
	for _, f := range after {
		f()
	}
}

func (p *pump) send(c chunk) {
	switch err := p.to.send(c.buf, c.mid, c.last); {
	case err != nil:
		p.discard()
		p.r.notSent(p, err)
	case c.last:
		p.r.closePassed(p)
	default:
		p.to.spoke()
	}
}

// discard throws away what is queued and what will come.
func (p *pump) discard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.queue {
		p.giveLocked(c)
	}
	p.drop, p.queue, p.queued = true, nil, 0
	p.room.Broadcast()
}

// drained calls f once all that has come is written, or thrown away.
func (p *pump) drained(f func()) {
	p.mu.Lock()
	if p.busy {
		p.after = append(p.after, f)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	f()
}

// ended is called with the reader's role when there is nothing more to read.
func (p *pump) ended(err error) {
	if p == p.r.toUp && !p.parser.closed {
		p.r.appEnded() // does not wait for an upload that stands still
	}
	p.drained(func() { p.r.readDone(p, err) })
}

// fullLocked says whether the pieces of b must wait for room in the queue. An
// empty queue takes anything, so that nothing waits for ever.
func (p *pump) fullLocked(b *block) bool {
	if !p.busy || p.drop || p.queued == 0 {
		return false
	}
	if p.tight {
		return true
	}
	n := chunkSize
	for _, piece := range b.out {
		n += piece.end - piece.start
	}
	return p.queued+n > p.r.cfg.ReadAhead
}

// enqueueLocked copies the pieces of b into the queue.
func (p *pump) enqueueLocked(b *block, last bool) {
	for _, piece := range b.out {
		part := b.buf[piece.start:piece.end]
		n := len(p.queue)
		if n == 0 || cap(p.queue[n-1].buf)-len(p.queue[n-1].buf) < len(part) {
			buf := make([]byte, 0, max(chunkSize, len(part)))
			paid := p.r.cfg.Take(int64(cap(buf)))
			p.queue = append(p.queue, chunk{buf: buf, paid: paid})
			p.queued, p.tight = p.queued+cap(buf), !paid
			n++
		}
		c := &p.queue[n-1]
		c.buf, c.mid = append(c.buf, part...), piece.mid
	}
	p.queue[len(p.queue)-1].last = last
}

// giveLocked returns to the budget what c took from it.
func (p *pump) giveLocked(c chunk) {
	p.tight = false
	if c.paid {
		p.r.cfg.Give(int64(cap(c.buf)))
	}
}

// awaitRoom waits until the pieces of b have room. Meanwhile nothing is read, and
// the peer is not asked whether it lives.
func (p *pump) awaitRoom(b *block) {
	began := p.from.clock.now()
	p.from.pause()
	p.mu.Lock()
	for p.fullLocked(b) {
		p.room.Wait()
	}
	p.mu.Unlock()
	p.from.resume(p.from.clock.now() - began)
}

// want is the size of the block that the next read should have.
func (p *pump) want() int {
	if p.parser.left > 0 {
		return int(min(p.parser.left, wholeFrame))
	}
	return p.need
}

// settle moves what is not parsed to the start of a block of the right size. At
// rest that is the smallest, so that an idle direction holds little; one that has
// just filled more than that keeps a larger one, to read much at once.
func (p *pump) settle(b *block) {
	rest := b.buf[b.r:b.e]
	next := b
	want := p.want()
	if b.e-headroom >= idleBlock {
		want = max(want, smallBlock)
	}
	if sizeFor(want) != b.size() {
		next = getBlock(want)
	}
	next.r = headroom
	next.e = headroom + copy(next.buf[headroom:], rest)
	if next != b {
		p.cur = next
		putBlock(b)
	}
}
