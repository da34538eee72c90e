// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"encoding/binary"
	"errors"
	"time"
)

// pings is the one PING that may be unanswered. Guarded by Conn.mu.
type pings struct {
	last uint64
	sent time.Time
	done chan struct{} // closed by its answer or the connection's end; nil = none is out
	took time.Duration // valid once done is closed by the answer
}

// Ping measures a round trip. At most one PING is out: a call while one is waits
// for the same answer, with the time since it was sent. Once the peer has asked
// for calm none is sent any more: [ErrPingRefused].
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	c.mu.Lock()
	switch {
	case c.dead:
		c.mu.Unlock()
		return 0, c.Err()
	case c.calm.Load():
		c.mu.Unlock()
		return 0, ErrPingRefused
	}
	p := &c.pings
	if p.done == nil {
		p.last++
		p.done, p.sent, p.took = make(chan struct{}), time.Now(), 0
		_ = c.fw.WritePing(false, pingData(p.last)) // into memory
		c.out.wake.Signal()
	}
	done := p.done
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-done:
	}
	c.mu.Lock()
	took := p.took
	c.mu.Unlock()
	if took > 0 {
		return took, nil
	}
	if err := c.Err(); err != nil {
		return 0, err
	}
	return 0, errors.New("h2: the connection ended before the PING was answered")
}

func pingData(n uint64) (d [8]byte) {
	copy(d[:], "ww")
	binary.BigEndian.PutUint32(d[4:], uint32(n))
	return d
}

// answeredLocked takes a PING's answer; it says whether it was to ours.
func (c *Conn) answeredLocked(d [8]byte) bool {
	p := &c.pings
	if p.done == nil || d != pingData(p.last) {
		return false
	}
	p.took = max(time.Since(p.sent), 1)
	c.sawRTT(p.took)
	close(p.done)
	p.done = nil
	return true
}

func (p *pings) endLocked() {
	if p.done != nil {
		close(p.done)
		p.done = nil
	}
}

// sawRTT keeps the smallest round trip: what the path needs without its queue.
func (c *Conn) sawRTT(d time.Duration) {
	if old := c.rtt.Load(); old == 0 || int64(d) < old {
		c.rtt.Store(int64(d))
	}
}

// RTT is the smallest round trip seen, 0 before the first.
func (c *Conn) RTT() time.Duration { return time.Duration(c.rtt.Load()) }
