// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"context"
	"errors"
	"time"
)

// Bounds of the pauses between looks for a PING's answer.
const (
	minLook = time.Millisecond
	maxLook = 20 * time.Millisecond
)

// errPingFull is what Ping returns while the control stream takes nothing more,
// which is as it is after a thousand unanswered ones.
var errPingFull = errors.New("h3: no PING can be sent: the peer has read none for long")

// Ping asks the peer for a sign of life and returns the round trip. QUIC's own
// PING is not to be had, so this sends a frame that means nothing (RFC 9114
// §7.2.8) on the control stream: the peer's QUIC must acknowledge it, whatever its
// HTTP thinks. Any packet that comes after it is the answer.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	before := c.qc.ConnectionStats().PacketsReceived
	if err := c.ended(); err != nil {
		return 0, err
	}
	if !c.control.tell(appendFrame(nil, frameReserved, 0)) {
		if err := c.ended(); err != nil {
			return 0, err
		}
		return 0, errPingFull
	}
	look := min(max(c.qc.ConnectionStats().SmoothedRTT/8, minLook), maxLook)
	timer := time.NewTimer(look)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-c.ctx.Done():
			return 0, c.Err()
		case <-timer.C:
		}
		if stats := c.qc.ConnectionStats(); stats.PacketsReceived != before {
			c.LastReceived()
			return stats.LatestRTT, nil
		}
		timer.Reset(look)
	}
}

// ended is why the QUIC connection is no more, nil while it is.
func (c *Conn) ended() error {
	if c.ctx.Err() == nil {
		return nil
	}
	return c.Err()
}

// LastReceived is when the peer last sent anything. The library only counts: a
// packet that is not of an answer is dated by the first look at the count.
func (c *Conn) LastReceived() time.Time {
	if n := c.qc.ConnectionStats().PacketsReceived; c.packets.Swap(n) != n {
		c.heard()
	}
	return time.Unix(0, c.lastHeard.Load())
}

// RTT is the smallest round trip seen, 0 before the first.
func (c *Conn) RTT() time.Duration { return c.qc.ConnectionStats().MinRTT }

// RTO is how long a packet stays unanswered before it is sent again: QUIC's probe
// time-out (RFC 9002 §6.2.1), without its growth while nothing is answered.
func (c *Conn) RTO() time.Duration {
	s := c.qc.ConnectionStats()
	if s.SmoothedRTT == 0 {
		return time.Second // RFC 9002 §6.2.2: three times 333 ms
	}
	return s.SmoothedRTT + max(4*s.MeanDeviation, time.Millisecond) + maxAckDelay
}

// Stats is how a connection's path does.
type Stats struct {
	MinRTT, RTT, RTTVar          time.Duration
	PacketsSent, PacketsLost     uint64
	PacketsReceived              uint64
	BytesSent, BytesReceived     uint64
	CongestionWindow             uint64 // in bytes
	EarlyData, Resumed, Complete bool   // early data was taken; the session was resumed; the handshake is done
}

// Stats returns what has been so far.
func (c *Conn) Stats() Stats {
	s := c.qc.ConnectionStats()
	out := Stats{
		MinRTT: s.MinRTT, RTT: s.SmoothedRTT, RTTVar: s.MeanDeviation,
		PacketsSent: s.PacketsSent, PacketsLost: s.PacketsLost, PacketsReceived: s.PacketsReceived,
		BytesSent: s.BytesSent, BytesReceived: s.BytesReceived, CongestionWindow: s.CongestionWindow,
	}
	if state := c.state.Load(); state != nil {
		out.Complete, out.Resumed = true, state.DidResume
		out.EarlyData = c.qc.ConnectionState().Used0RTT
	}
	return out
}
