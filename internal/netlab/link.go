// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A Direction is one way through the network.
type Direction uint8

// The two directions.
const (
	Up   Direction = iota // from the client to the server
	Down                  // from the server to the client
)

func (d Direction) String() string {
	if d == Up {
		return "up"
	}
	return "down"
}

// A Link says what one direction does to packets. The zero value passes
// everything at once. Times are one way; probabilities are from 0 to 1 and a
// packet.
//
// A packet meets its settings in this order: MTU, BlockUDP and UDPRate, Outages,
// Loss and Burst, Rate with its queue, Delay and Jitter, Reorder, Spikes,
// Duplicate.
type Link struct {
	Delay  time.Duration
	Jitter time.Duration // spread: the delay is even between Delay-Jitter and Delay+Jitter
	// JitterTime is how long the delay takes to wander. 0 draws each packet's
	// delay anew: then order kept makes packets wait for the slowest of those
	// before them, so that the delay rises near Delay+Jitter and stays there.
	JitterTime time.Duration
	Unordered  bool // jitter may let packets overtake; a delay below 0 is then cut to 0

	Loss  float64
	Burst Burst

	// Rate is in bit/s, 0 means without limit. It needs a queue, in time, bytes
	// or both (the smaller counts); what does not fit is dropped.
	Rate       int64
	Queue      time.Duration
	QueueBytes int

	Reorder      float64       // this many are late by ReorderDelay and overtaken
	ReorderDelay time.Duration // needed with Reorder
	Duplicate    float64

	Outages []Schedule // what enters meanwhile is lost
	Spikes  []Schedule // what would leave meanwhile leaves at the end

	// MTU makes larger packets vanish without a word; 0 means no limit of the
	// path. Below 1280, which every IPv6 path carries, it is for IPv4 alone.
	MTU      int
	BlockUDP bool  // all UDP vanishes
	UDPRate  int64 // bit/s; UDP above it vanishes (a policer with 50 ms of credit); 0 means no limit
}

// A Burst is loss in bursts (Gilbert-Elliott): a good state without loss of its
// own and a bad one, with a chance to change state before each packet.
type Burst struct {
	Enter float64 // from good to bad
	Leave float64 // from bad to good: bursts last 1/Leave packets on average
	Loss  float64 // in the bad state; 0 means 1
}

// A Schedule is a window that comes once or again and again, counted from the
// start of the lab or from the Set that brought it. The same schedule has its
// windows at the same times in both directions.
type Schedule struct {
	First     time.Duration // start of the first window
	Every     time.Duration // from start to start; 0 means once
	Length    time.Duration
	MaxLength time.Duration // if set, each length is drawn between Length and this
}

// minUDPCredit lets at least three full packets through a policer at once.
const minUDPCredit = 3 * deviceMTU

const (
	minMTU4 = 68   // RFC 791 §3.2
	minMTU6 = 1280 // RFC 8200 §5
)

// maxDelay bounds each time that holds packets, and so what is held.
const maxDelay = time.Minute

// maxRate keeps arithmetic on rates far from overflow.
const maxRate = 100e9 // bit/s

// Validate reports a setting that cannot be.
func (l Link) Validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"loss", l.Loss}, {"reorder", l.Reorder}, {"duplicate", l.Duplicate},
		{"burst enter", l.Burst.Enter}, {"burst leave", l.Burst.Leave}, {"burst loss", l.Burst.Loss},
	} {
		switch {
		case !(p.value >= 0): // NaN as well
			return fmt.Errorf("%s %v is not a probability: use 0 to 1", p.name, p.value)
		case p.value > 1:
			return fmt.Errorf("%s %v is over 100 %%: use 0 to 1", p.name, p.value)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"delay", l.Delay}, {"jitter", l.Jitter}, {"jitter time", l.JitterTime},
		{"queue", l.Queue}, {"reorder delay", l.ReorderDelay},
	} {
		if d.value < 0 || d.value > maxDelay {
			return fmt.Errorf("%s %v is not between 0 and %v", d.name, d.value, maxDelay)
		}
	}
	if err := l.validateShape(); err != nil {
		return err
	}
	for _, s := range l.Outages {
		if err := s.validate(); err != nil {
			return fmt.Errorf("outage: %w", err)
		}
	}
	for _, s := range l.Spikes {
		if err := s.validate(); err != nil {
			return fmt.Errorf("spike: %w", err)
		}
	}
	return nil
}

// validateShape checks what only makes sense together.
func (l Link) validateShape() error {
	switch {
	case l.Jitter > l.Delay && !l.Unordered:
		return fmt.Errorf("jitter %v is above the delay %v with order kept: raise the delay or set Unordered", l.Jitter, l.Delay)
	case l.JitterTime > 0 && l.Jitter == 0:
		return fmt.Errorf("jitter time %v without jitter", l.JitterTime)
	case l.Unordered && l.Jitter == 0:
		return fmt.Errorf("unordered without jitter: packets cannot overtake; for single late ones use Reorder")
	case l.Burst.Enter > 0 && l.Burst.Leave == 0:
		return fmt.Errorf("burst never ends: set Leave")
	case l.Burst.Enter == 0 && l.Burst != Burst{}:
		return fmt.Errorf("burst never starts: set Enter")
	case l.Rate < 0 || l.Rate > maxRate || l.UDPRate < 0 || l.UDPRate > maxRate:
		return fmt.Errorf("rate %d or UDP rate %d bit/s is not between 0 and %d", l.Rate, l.UDPRate, int64(maxRate))
	case l.QueueBytes < 0:
		return fmt.Errorf("queue of %d bytes is negative", l.QueueBytes)
	case l.Rate > 0 && l.Queue == 0 && l.QueueBytes == 0:
		return fmt.Errorf("rate %d bit/s without a queue: set Queue or QueueBytes", l.Rate)
	case l.Rate == 0 && (l.Queue > 0 || l.QueueBytes > 0):
		return fmt.Errorf("queue without a rate: nothing would ever wait in it")
	case (l.Reorder > 0) != (l.ReorderDelay > 0):
		return fmt.Errorf("reorder %v and its delay %v need each other", l.Reorder, l.ReorderDelay)
	case l.BlockUDP && l.UDPRate > 0:
		return fmt.Errorf("UDP is blocked and throttled: choose one")
	case l.MTU != 0 && l.MTU < minMTU4:
		return fmt.Errorf("MTU %d is below %d, the least of IPv4 (IPv6 needs %d)", l.MTU, minMTU4, minMTU6)
	}
	return nil
}

func (s Schedule) validate() error {
	longest := max(s.Length, s.MaxLength)
	switch {
	case s.First < 0 || s.Every < 0 || s.Length < 0 || s.MaxLength < 0:
		return fmt.Errorf("negative time in %+v", s)
	case s.Length == 0:
		return fmt.Errorf("a window without length")
	case s.MaxLength != 0 && s.MaxLength < s.Length:
		return fmt.Errorf("longest length %v is below the shortest %v", s.MaxLength, s.Length)
	case longest > maxDelay:
		return fmt.Errorf("length %v is over %v", longest, maxDelay)
	case s.Every > 0 && longest >= s.Every:
		return fmt.Errorf("length %v leaves nothing of its period %v", longest, s.Every)
	}
	return nil
}

// window says whether t, counted as the schedule counts, is in a window, and
// when that ends. The length of the n-th window depends on the seed and n only.
func (s Schedule) window(seed uint64, t time.Duration) (end time.Duration, in bool) {
	t -= s.First
	if t < 0 {
		return 0, false
	}
	var n int64
	if s.Every > 0 {
		n = int64(t / s.Every)
	}
	length := s.Length
	if spread := s.MaxLength - s.Length; spread > 0 {
		length += time.Duration(rand.New(rand.NewPCG(seed, uint64(n))).Int64N(int64(spread) + 1))
	}
	start := time.Duration(n) * s.Every
	return s.First + start + length, t < start+length
}

// A NAT keeps flows from the client, as a home router, a carrier or a load
// balancer does: it gives each a source address and port of its own, and forgets
// those that are idle. Packets of a flow it does not know are dropped, except
// what may start one (TCP SYN, UDP from the client).
type NAT struct {
	On      bool
	Idle    time.Duration // a TCP flow without packets for this long is forgotten; 0 means never
	UDPIdle time.Duration // the same of UDP, which goes on from another port; 0 means Idle
	Reset   bool          // answer TCP of an unknown flow with RST; otherwise it vanishes
	// AtServer puts it before the server, as a load balancer: what it answers to
	// the client comes a round trip later. Otherwise it stands beside the client.
	AtServer bool
}

// Validate reports a setting that cannot be.
func (n NAT) Validate() error {
	switch {
	case n.Idle < 0 || n.UDPIdle < 0:
		return fmt.Errorf("negative idle limit %v or %v", n.Idle, n.UDPIdle)
	case !n.On && n != NAT{}:
		return fmt.Errorf("NAT is set up and not on")
	}
	return nil
}
