// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/binary"
	"net/http/httptrace"
	"runtime"
	"sync"
	"time"

	"github.com/warmwire/warmwire/transport/fault"
	"github.com/warmwire/warmwire/transport/semantics"
	"golang.org/x/net/http2"
)

// How much one write of upload DATA holds follows the path: as much as leaves in
// a few milliseconds, so that what is urgent never waits long behind it.
const (
	minRound   = 2 << 10
	firstRound = 16 << 10
	maxRound   = 64 << 10
	slowWrite  = 4 * time.Millisecond
	fastWrite  = time.Millisecond
	keepSpare  = 16 << 10 // bytes of write buffer that an idle connection keeps
)

// output is what waits to be written. Guarded by Conn.mu.
type output struct {
	onFrame func(out bool, at int64, kind uint8, stream, length uint32)
	buf     []byte
	marks   []mark
	spare   []byte // the writer's other buffer
	spareM  []mark
	replies int          // bytes in buf that the peer's own frames provoked
	data    int          // bytes of DATA in buf
	round   int          // how many there may be in one write
	turn    uint64       // counts the writes, from 1
	wake    sync.Cond    // on Conn.mu; the writer waits
	broken  *fault.Error // why nothing can be written any more; the reader closes the connection
	notify  bool         // a stream ended: the writer tells the owner
	drained int          // the most urgent class of which a body was taken whole and is read on now
}

// A mark is a place in the output that a request wants to know of.
type mark struct {
	s   *stream
	at  int  // where its head begins
	end bool // its last byte instead of its head
}

// Write queues what the framer made. It is called with Conn.mu held.
func (o *output) Write(p []byte) (int, error) {
	o.buf = append(o.buf, p...)
	if o.onFrame != nil && len(p) >= 9 {
		o.onFrame(true, 0, p[3], binary.BigEndian.Uint32(p[5:]), uint32(p[0])<<16|uint32(p[1])<<8|uint32(p[2]))
	}
	return len(p), nil
}

// yieldLocked lets the bodies of a more urgent class, of which the last write took
// all there was, be read on before a less urgent one goes.
func (o *output) yieldLocked(c *Conn) {
	if pick := c.uploads.pick(); pick > o.drained {
		o.drained = int(semantics.Classes)
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
}

func (o *output) clear() {
	o.buf, o.marks, o.replies, o.data = o.buf[:0], o.marks[:0], 0, 0
}

// write is the connection's writer.
func (c *Conn) write() {
	c.mu.Lock()
	for {
		for len(c.out.buf) == 0 && !c.dead && (c.sendWindow <= 0 || c.uploads.empty()) {
			if cap(c.out.spare) > keepSpare {
				c.out.spare = nil
			}
			c.out.wake.Wait()
		}
		if c.dead {
			break
		}
		c.out.yieldLocked(c)
		data := c.out.data + c.takeDataLocked(c.out.round-c.out.data)
		buf, marks := c.out.swap()
		if len(buf) == 0 {
			continue // all uploads that waited are gone
		}
		for _, m := range marks {
			m.s.sent.Store(true)
		}
		notify := c.out.notify || len(buf) > maxPending
		c.out.notify = false
		c.mu.Unlock()
		if notify {
			c.changed()
		}
		err := c.flush(buf, marks, data)
		c.mu.Lock()
		c.out.give(buf, marks)
		if err != nil {
			dead := c.dead
			c.mu.Unlock()
			if dead {
				c.hangUp()
			}
			return // else the reader ends the rest
		}
	}
	last := c.out.buf // a GOAWAY, if the peer shall have one
	c.mu.Unlock()
	if len(last) > 0 {
		_, _ = c.nc.Write(last)
	}
	_ = c.nc.Close()
}

// swap hands the output to the writer.
func (o *output) swap() ([]byte, []mark) {
	buf, marks := o.buf, o.marks
	o.turn++
	o.buf, o.marks, o.replies, o.data = o.spare[:0], o.spareM[:0], 0, 0
	o.spare, o.spareM = nil, nil
	return buf, marks
}

// give takes the writer's buffers back.
func (o *output) give(buf []byte, marks []mark) {
	clear(marks)
	if cap(buf) <= maxRound*2 {
		o.spare = buf[:0]
	}
	o.spareM = marks[:0]
}

// flush writes buf, of which data bytes are DATA, and reports to those who want
// to know.
func (c *Conn) flush(buf []byte, marks []mark, data int) error {
	var start time.Time
	if data > 0 {
		start = time.Now()
	}
	n, err := c.nc.Write(buf)
	if err != nil {
		for _, m := range marks {
			if !m.end && m.at >= n {
				m.s.sent.Store(false) // not a byte of it left
			}
		}
		c.unwritable(broken(err))
		return err
	}
	for _, m := range marks {
		m.report()
	}
	if data > 0 {
		took := time.Since(start)
		c.mu.Lock()
		switch {
		case took > slowWrite:
			c.out.round = max(c.out.round/2, minRound)
		case took < fastWrite:
			c.out.round = min(c.out.round*2, maxRound)
		}
		c.mu.Unlock()
	}
	return nil
}

// answerGrace bounds how long a connection that cannot be written is still read.
// The reader of a broken one ends at once; this is for what nobody has thought of.
const answerGrace = time.Second

// unwritable ends the writing. A peer may answer, close, and refuse the rest of an
// upload: what it said before is still there to be read.
func (c *Conn) unwritable(why *fault.Error) {
	c.mu.Lock()
	c.out.broken = why
	if c.closing == nil {
		c.closing = why
	}
	c.mu.Unlock()
	_ = c.nc.SetReadDeadline(time.Now().Add(answerGrace))
	c.changed()
}

func (m mark) report() {
	t := m.s.trace
	if t == nil {
		return
	}
	if !m.end && t.WroteHeaders != nil {
		t.WroteHeaders()
	}
	if m.end {
		m.s.WroteRequest(nil)
	}
}

func (s *stream) WroteRequest(err error) {
	if s.trace != nil && s.trace.WroteRequest != nil && !s.wrote.Swap(true) {
		s.trace.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
}

// takeDataLocked moves up to budget bytes of uploads into the output, most
// urgent first, and returns how many. They are of one class: while they are
// written, the bodies of that class are read on, and are not overtaken by another
// for having been empty for a moment.
func (c *Conn) takeDataLocked(budget int) int {
	total := 0
	class := -1
	c.out.drained = int(semantics.Classes)
	for budget > 0 && c.sendWindow > 0 {
		pick := c.uploads.pick()
		if pick < 0 || (total > 0 && pick != class) {
			break
		}
		class = pick
		s := c.uploads.next(pick)
		if s.gone || !s.offered {
			continue
		}
		n := min(len(s.body), c.frameLimit(), budget)
		n = int(min(int64(n), s.sendWindow, c.sendWindow))
		if n <= 0 {
			continue // its own window is shut; WINDOW_UPDATE brings it back
		}
		end := s.bodyEnd && n == len(s.body)
		c.writeDataLocked(s, s.body[:n], end)
		s.body = s.body[n:]
		s.sendWindow -= int64(n)
		c.sendWindow -= int64(n)
		budget -= n
		total += n
		if len(s.body) == 0 {
			s.offered = false
			s.taken.Signal()
			if !s.bodyEnd {
				c.out.drained = min(c.out.drained, class)
			}
		} else if s.sendWindow > 0 {
			c.uploads.add(s)
		}
	}
	return total
}

func (c *Conn) frameLimit() int { return min(c.peer.maxFrame, 16<<10) }

// writeDataLocked queues one DATA frame.
func (c *Conn) writeDataLocked(s *stream, p []byte, end bool) {
	var head [9]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(p))<<8|uint32(http2.FrameData))
	if end {
		head[4] = byte(http2.FlagDataEndStream)
	}
	binary.BigEndian.PutUint32(head[5:], s.id)
	c.out.buf = append(c.out.buf, head[:]...)
	c.out.buf = append(c.out.buf, p...)
	c.sentData.Add(1)
	s.uploaded += int64(len(p))
	if end {
		c.endedLocked(s)
	}
}

// endedLocked notes that the end of s's request is queued.
func (c *Conn) endedLocked(s *stream) {
	s.localEnd = true
	if s.trace != nil {
		c.out.marks = append(c.out.marks, mark{s: s, end: true})
	}
	if s.remoteEnd {
		c.dropLocked(s)
		c.restLocked()
		c.out.notify = true
	}
}

// replyLocked queues what write makes in answer to a frame of the peer's. A peer
// that provokes answers and reads none of them is left.
func (c *Conn) replyLocked(write func(*http2.Framer) error) error {
	before := len(c.out.buf)
	if c.dead {
		return nil
	}
	_ = write(c.fw) // into memory
	c.out.replies += len(c.out.buf) - before
	c.out.wake.Signal()
	if c.out.replies > maxReplies {
		return violation(http2.ErrCodeEnhanceYourCalm, "the upstream provokes answers and reads none")
	}
	return nil
}

// updateWindow returns n bytes of window to the peer; id 0 is the connection.
func (c *Conn) updateWindow(s *stream, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s == nil {
		if !c.dead {
			_ = c.fw.WriteWindowUpdate(0, uint32(n))
			c.out.wake.Signal()
		}
		return
	}
	if !s.gone && !s.remoteEnd {
		_ = c.fw.WriteWindowUpdate(s.id, uint32(n))
		c.out.wake.Signal()
	}
}

// A scheduler picks whose upload goes next: interactive before default before
// batch, in turn within a class. Within it, bodies that have just begun go before
// those that have run for long, as new flows do in RFC 8290 §4.2: a prompt does not
// wait for a frame of each of 50 files. Who was passed over for long gets one frame,
// so that none starves.
type scheduler struct {
	queues  [semantics.Classes]lane
	skipped [semantics.Classes]int
}

// A lane is the uploads of one class.
type lane struct {
	fresh, running queue
	passed         int // fresh ones since a running one
}

const (
	patience   = 16       // frames that a waiting class, or a running upload, lets pass; a guess
	freshBytes = 16 << 10 // so much of a body is fresh: one frame
)

func (l *lane) empty() bool { return l.fresh.empty() && l.running.empty() }

func (l *lane) pop() *stream {
	if l.fresh.empty() || l.passed >= patience && !l.running.empty() {
		l.passed = 0
		return l.running.pop()
	}
	l.passed++
	return l.fresh.pop()
}

func (q *scheduler) empty() bool {
	for i := range q.queues {
		if !q.queues[i].empty() {
			return false
		}
	}
	return true
}

func (q *scheduler) add(s *stream) {
	if s.queued {
		return
	}
	s.queued = true
	l := &q.queues[s.class]
	if s.uploaded < freshBytes {
		l.fresh.push(s)
	} else {
		l.running.push(s)
	}
}

// pick is the class whose turn it is, -1 if nothing waits.
func (q *scheduler) pick() int {
	pick := -1
	for i := range q.queues {
		if q.queues[i].empty() {
			q.skipped[i] = 0
		} else if pick < 0 || q.skipped[i] >= patience {
			pick = i
		}
	}
	return pick
}

// next takes the stream whose turn it is in the class that pick named.
func (q *scheduler) next(pick int) *stream {
	for i := range q.queues {
		if i != pick && !q.queues[i].empty() {
			q.skipped[i]++
		}
	}
	q.skipped[pick] = 0
	s := q.queues[pick].pop()
	s.queued = false
	return s
}

// A queue is a ring of streams that grows to the most that ever waited.
type queue struct {
	ring  []*stream
	first int
	n     int
}

func (q *queue) empty() bool { return q.n == 0 }

func (q *queue) push(s *stream) {
	if q.n == len(q.ring) {
		grown := make([]*stream, max(8, 2*q.n))
		for i := range q.n {
			grown[i] = q.ring[(q.first+i)%len(q.ring)]
		}
		q.ring, q.first = grown, 0
	}
	q.ring[(q.first+q.n)%len(q.ring)] = s
	q.n++
}

func (q *queue) pop() *stream {
	s := q.ring[q.first]
	q.ring[q.first] = nil
	q.first = (q.first + 1) % len(q.ring)
	q.n--
	return s
}
