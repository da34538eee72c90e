// SPDX-License-Identifier: Apache-2.0

package ws

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxAnswers bounds the pongs that wait for a peer that does not read, in
	// bytes. Beyond it only the newest ping is answered (RFC 6455 §5.5.3).
	maxAnswers = 2 << 10
	// maxAsked is how many pings of ours may be unanswered and still be known.
	maxAsked = 4
)

// errSealed is what a writer gets once a close frame went out, or writing failed.
var errSealed = errors.New("nothing may be sent any more")

// A leg is one of the two connections. Its writing side is shared: data come from
// the other leg, control frames from the relay, and frames do not mix.
type leg struct {
	conn  io.ReadWriteCloser
	clock clock
	masks bool // frames to it are masked: it is the server

	heard  atomic.Int64 // when the last byte came, by clock
	in     atomic.Int64 // bytes read
	out    atomic.Int64 // bytes written
	frames atomic.Int64 // read

	mu      sync.Mutex // guards the following
	free    sync.Cond  // signalled when writing becomes false
	writing bool       // someone is in conn.Write, without mu
	since   time.Duration
	mid     bool          // the last byte written is inside a frame
	sealed  bool          // see errSealed
	bye     bool          // the close frame that sealed it was ours
	failed  error         // of a write
	answers []byte        // pongs that wait for the next edge
	ping    []byte        // the same for a ping of ours
	wanted  time.Duration // when that was asked for; 0 = none waits or is being written
	delay   time.Duration // how long such pings have waited that the policy was not told of
	closing []byte        // the same for our close frame
	asked   []asked

	pings   int64
	lastRTT time.Duration
	minRTT  time.Duration

	pulse struct {
		listener Listener     // policy, if it is one
		told     atomic.Int64 // when it was told last, by clock

		mu     sync.Mutex // guards the following, and calls of policy
		policy Policy     // nil = no pings
		timer  *time.Timer
		paused bool
	}
}

// asked is a ping of ours without an answer.
type asked struct {
	payload [pingPayloadSize]byte
	at      time.Duration // when it was written
}

// A clock is the time since the relay began, so that an instant fits an atomic.
type clock struct{ start time.Time }

func (c clock) now() time.Duration              { return time.Since(c.start) }
func (c clock) time(at time.Duration) time.Time { return c.start.Add(at) }

// send writes p, and what waits for the edge behind it. mid says that p ends
// inside a frame, last that it ends with the peer's close frame.
func (l *leg) send(p []byte, mid, last bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.writing {
		l.free.Wait()
	}
	if l.closing != nil && !l.mid {
		l.flushLocked()
	}
	if l.sealed {
		return errSealed
	}
	l.sealed = last
	l.mid = mid
	if err := l.writeLocked(p); err != nil {
		return err
	}
	l.flushLocked()
	return nil
}

// writeLocked writes with mu released.
func (l *leg) writeLocked(p []byte) error {
	l.writing, l.since = true, l.clock.now()
	l.mu.Unlock()
	n, err := l.conn.Write(p)
	l.out.Add(int64(n))
	l.mu.Lock()
	l.writing = false
	l.free.Signal()
	if err != nil {
		l.sealed = true
		if l.failed == nil {
			l.failed = err
		}
	}
	return err
}

// flush sends the control frames that wait, if nobody else does so.
func (l *leg) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushLocked()
}

// flushLocked sends what waits, if this is an edge. Whoever is writing now does
// it next.
func (l *leg) flushLocked() {
	for !l.writing && !l.mid && !l.sealed {
		out := l.answers
		l.answers = nil
		var sent [pingPayloadSize]byte
		pinged := l.ping != nil && l.closing == nil
		if pinged {
			sent = [pingPayloadSize]byte(l.ping)
			out = appendControl(out, opPing, l.masks, l.ping)
			l.ping = nil
		}
		if l.closing != nil {
			out = append(out, l.closing...)
			l.closing, l.sealed, l.bye = nil, true, true
		}
		if len(out) == 0 {
			return
		}
		if pinged {
			l.askedLocked(sent)
		}
		err := l.writeLocked(out)
		if pinged {
			l.delay += l.clock.now() - l.wanted
			l.wanted = 0
		}
		if err != nil {
			return
		}
	}
}

// askedLocked remembers a ping that is about to be written.
func (l *leg) askedLocked(payload [pingPayloadSize]byte) {
	if len(l.asked) == maxAsked {
		l.asked = append(l.asked[:0], l.asked[1:]...)
	}
	l.asked = append(l.asked, asked{payload, l.clock.now()})
	l.pings++
}

// answer queues the pong for a ping of the peer.
func (l *leg) answer(payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		return
	}
	if len(l.answers) > maxAnswers {
		l.answers = l.answers[:0]
	}
	l.answers = appendControl(l.answers, opPong, l.masks, payload)
}

// probe sends a ping of ours, or leaves it to whoever writes.
func (l *leg) probe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		return
	}
	l.ping = binary.BigEndian.AppendUint64(nil, rand.Uint64())
	l.wanted = l.clock.now()
	l.flushLocked()
}

// probing says whether a ping of ours has not gone out yet, and how long those
// that have gone out since the last call had to wait.
func (l *leg) probing() (waits bool, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delay, l.delay = l.delay, 0
	return l.wanted != 0 && !l.sealed, delay
}

// answered takes a pong. Only one that answers a ping of ours says anything; with
// it those before count as answered (RFC 6455 §5.5.3).
func (l *leg) answered(payload []byte) (rtt time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.asked {
		if string(l.asked[i].payload[:]) != string(payload) {
			continue
		}
		rtt = l.clock.now() - l.asked[i].at
		l.asked = append(l.asked[:0], l.asked[i+1:]...)
		l.lastRTT = rtt
		if l.minRTT == 0 || rtt < l.minRTT {
			l.minRTT = rtt
		}
		return rtt, true
	}
	return 0, false
}

// close has a close frame of ours sent at the next edge, by flush or whoever
// writes; nothing follows it. If the peer has been sent one already, or is about
// to be, this does nothing.
func (l *leg) close(code uint16, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sealed && l.closing == nil {
		l.closing = closeFrame(code, reason, l.masks)
	}
}

// said says whether the leg has been sent a close frame.
func (l *leg) said() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sealed && l.failed == nil
}

// stuck returns since when the present write waits.
func (l *leg) stuck() (since time.Duration, writing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.writing
}
