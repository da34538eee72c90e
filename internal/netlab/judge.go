// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"math"
	"math/rand/v2"
	"time"
)

// A Cause is why a packet was dropped.
type Cause uint8

// The causes.
const (
	CauseMTU         Cause = iota // above the path's MTU
	CauseUDP                      // UDP blocked or above its rate
	CauseOutage                   // the path was out
	CauseLoss                     // lost at random or in a burst
	CauseQueue                    // the queue was full
	CauseFlow                     // of a flow that the NAT does not know
	CauseAddress                  // from or to an address that is no longer there
	CauseUnsupported              // neither TCP, UDP nor echo, or a fragment, and a NAT on the path
	CauseOverflow                 // the lab's own bound on held packets or flows, or a full device
	numCauses
)

func (c Cause) String() string {
	return [numCauses]string{"mtu", "udp", "outage", "loss", "queue", "flow", "address", "unsupported", "overflow"}[c]
}

// A verdict is what a link does with one packet.
type verdict struct {
	dropped bool
	cause   Cause            // if dropped
	at      [2]time.Duration // when its copies leave
	copies  int
}

// A judge applies one Link. It holds no packet and reads no clock: time is
// counted from the start of the lab and must not go back. Every packet takes the
// same draws from its generators whatever the settings, so that a changed
// setting leaves the other decisions as they were.
type judge struct {
	link  Link
	since time.Duration // schedules count from here
	seed  uint64        // of the schedules, the same in both directions

	chances *rand.Rand // five draws a packet
	noise   *rand.Rand // one normal draw a packet

	bad         bool          // state of the burst loss
	wander      float64       // the jitter's process, standard normal
	wanderAt    time.Duration // its time
	busyUntil   time.Duration // the last bit in the queue has left
	lastAt      time.Duration // the last packet that keeps order leaves
	credit      float64       // bytes that the policer lets pass at once
	creditAt    time.Duration // its time
	outageUntil time.Duration
	spikeUntil  time.Duration
}

func newJudge(seed uint64, d Direction) *judge {
	return &judge{
		seed:    seed,
		chances: rand.New(rand.NewPCG(seed, 2*uint64(d))),
		noise:   rand.New(rand.NewPCG(seed, 2*uint64(d)+1)),
	}
}

// set replaces the settings. What is on its way keeps its time.
func (j *judge) set(now time.Duration, l Link) {
	j.link, j.since = l, now
	j.credit, j.creditAt = j.maxCredit(), now
	j.bad = j.bad && l.Burst.Enter > 0
}

// A shape is what a judge sees of a packet.
type shape struct {
	size int // of the IP packet
	udp  bool
}

func (j *judge) packet(now time.Duration, p shape) verdict {
	lossDraw, stateDraw, burstDraw := j.chances.Float64(), j.chances.Float64(), j.chances.Float64()
	reorderDraw, duplicateDraw := j.chances.Float64(), j.chances.Float64()
	jitter := j.jitter(now)
	burst := j.burst(stateDraw, burstDraw)
	l := &j.link
	switch {
	case l.MTU > 0 && p.size > l.MTU:
		return drop(CauseMTU)
	case p.udp && (l.BlockUDP || !j.police(now, p.size)):
		return drop(CauseUDP)
	case j.out(now):
		return drop(CauseOutage)
	case lossDraw < l.Loss || burst:
		return drop(CauseLoss)
	}
	at, ok := j.queue(now, p.size)
	if !ok {
		return drop(CauseQueue)
	}
	at = max(at+l.Delay+jitter, now)
	switch {
	case reorderDraw < l.Reorder:
		at = max(at, j.lastAt) + l.ReorderDelay // and the next ones overtake it
	case !l.Unordered:
		at = max(at, j.lastAt)
		j.lastAt = at
	}
	at = j.spike(at)
	v := verdict{at: [2]time.Duration{at, at}, copies: 1}
	if duplicateDraw < l.Duplicate {
		v.copies = 2
	}
	return v
}

func drop(c Cause) verdict { return verdict{dropped: true, cause: c} }

// jitter advances the process that the delay follows: an Ornstein-Uhlenbeck
// process in time, sampled at the packets, mapped to an even spread.
func (j *judge) jitter(now time.Duration) time.Duration {
	keep := 0.0
	if j.link.JitterTime > 0 {
		keep = math.Exp(-float64(now-j.wanderAt) / float64(j.link.JitterTime))
	}
	j.wander = j.wander*keep + math.Sqrt(1-keep*keep)*j.noise.NormFloat64()
	j.wanderAt = now
	return time.Duration(float64(j.link.Jitter) * math.Erf(j.wander/math.Sqrt2))
}

// burst advances the Gilbert-Elliott process by one packet.
func (j *judge) burst(state, loss float64) bool {
	b := j.link.Burst
	if j.bad {
		j.bad = state >= b.Leave
	} else {
		j.bad = state < b.Enter
	}
	return j.bad && (b.Loss == 0 || loss < b.Loss)
}

func (j *judge) maxCredit() float64 {
	return max(float64(j.link.UDPRate)/8*0.05, minUDPCredit)
}

// police is a token bucket: what is above the rate does not wait, it goes.
func (j *judge) police(now time.Duration, size int) bool {
	if j.link.UDPRate == 0 {
		return true
	}
	j.credit = min(j.credit+float64(j.link.UDPRate)/8*(now-j.creditAt).Seconds(), j.maxCredit())
	j.creditAt = now
	if j.credit < float64(size) {
		return false
	}
	j.credit -= float64(size)
	return true
}

func (j *judge) out(now time.Duration) bool {
	if now < j.outageUntil {
		return true
	}
	for _, s := range j.link.Outages {
		if _, in := s.window(j.seed, now-j.since); in {
			return true
		}
	}
	return false
}

// queue returns when the packet's last bit has left the sender.
func (j *judge) queue(now time.Duration, size int) (time.Duration, bool) {
	l := &j.link
	if l.Rate == 0 {
		return now, true
	}
	start := max(now, j.busyUntil)
	waiting := start - now
	if l.Queue > 0 && waiting > l.Queue {
		return 0, false
	}
	if bytes := waiting.Seconds() * float64(l.Rate) / 8; l.QueueBytes > 0 && waiting > 0 && bytes+float64(size) > float64(l.QueueBytes) {
		return 0, false
	}
	j.busyUntil = start + time.Duration(float64(size)*8/float64(l.Rate)*float64(time.Second))
	return j.busyUntil, true
}

// spike moves a departure out of the windows in which nothing leaves. Windows
// may touch or overlap, so it looks again after a move; the passes are bounded
// for schedules that together leave no gap.
func (j *judge) spike(at time.Duration) time.Duration {
	for range 2 * (len(j.link.Spikes) + 1) {
		before := at
		at = max(at, j.spikeUntil)
		for _, s := range j.link.Spikes {
			if end, in := s.window(j.seed, at-j.since); in {
				at = j.since + end
			}
		}
		if at == before {
			break
		}
	}
	return at
}
