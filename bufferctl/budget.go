// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"cmp"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of a [Config].
const (
	// DefaultFloor is a read buffer: less would make a system call of every few tokens.
	DefaultFloor = 16 << 10 // 16 KiB
	// DefaultStart is what HTTP/2 gives a new stream (RFC 9113 §6.9.2), rounded up.
	DefaultStart        = 64 << 10 // 64 KiB
	DefaultQueueLimit   = 1000
	DefaultQueueTimeout = 10 * time.Second
)

// Config describes a Budget.
type Config struct {
	Limit int64 // bytes; there is no default, see [AutoLimit]
	Floor int64 // what a stream may always hold; 0 = 16 KiB
	Start int64 // what a stream may hold while the budget is tight; 0 = 64 KiB

	QueueLimit   int           // new streams that may wait for room; 0 = 1000, negative = none
	QueueTimeout time.Duration // how long one waits; 0 = 10 s

	// Strict makes giving more than was taken a panic. Without it the mistake is
	// counted in [Stats] and the count of used bytes stops at zero. Tests set it.
	Strict bool
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Floor = cmp.Or(c.Floor, DefaultFloor)
	c.Start = cmp.Or(c.Start, max(DefaultStart, c.Floor))
	c.QueueLimit = max(cmp.Or(c.QueueLimit, DefaultQueueLimit), 0)
	c.QueueTimeout = cmp.Or(c.QueueTimeout, DefaultQueueTimeout)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Floor <= 0 || c.Start < c.Floor:
		return fmt.Errorf("bufferctl: a stream's floor of %d bytes and start of %d: want 0 < floor <= start", c.Floor, c.Start)
	case c.Limit < c.Floor:
		return fmt.Errorf("bufferctl: a limit of %d bytes is less than one stream's %d", c.Limit, c.Floor)
	case c.QueueTimeout < 0:
		return fmt.Errorf("bufferctl: negative queue timeout %v", c.QueueTimeout)
	}
	return nil
}

// Pressure is how full a Budget is.
type Pressure uint8

// The levels. Each is left 5 % of the limit below where it was entered, so that
// streams which shrink do not grow again at once.
const (
	Slack Pressure = iota // streams hold what they want
	Tight                 // from 75 % on: a stream may hold Config.Start
	Full                  // from 90 % on: a stream may hold Config.Floor
)

// String is the level's name in metrics.
func (p Pressure) String() string {
	return [...]string{"slack", "tight", "full"}[min(p, Full)]
}

// Shares of the limit; guesses. What is above the high watermark is kept for
// new streams, so that those which run cannot shut them out by growing.
func lowWatermark(limit int64) int64  { return limit - limit/4 }
func highWatermark(limit int64) int64 { return limit - limit/10 }
func hysteresis(limit int64) int64    { return limit / 20 }

// A Budget counts the bytes that a process holds for its streams against a limit.
type Budget struct {
	floor, start int64
	queueTimeout time.Duration
	queueLimit   int
	strict       bool

	limit, used atomic.Int64
	level       atomic.Uint32 // the Pressure that was seen last, for its hysteresis
	waiting     atomic.Int64  // waiters in queue; written with mu held
	overdrawn   atomic.Uint64

	chunks sync.Pool // of *chunk, for the Spools that charge this Budget

	mu sync.Mutex // guards queue; taken only while somebody waits for room, or starts to
	queue
}

// NewBudget returns a Budget of which nothing is used.
func NewBudget(cfg Config) (*Budget, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Budget{
		floor: cfg.Floor, start: cfg.Start, strict: cfg.Strict,
		queueTimeout: cfg.QueueTimeout, queueLimit: cfg.QueueLimit,
	}
	b.limit.Store(cfg.Limit)
	return b, nil
}

// SetLimit changes the limit, as a reload does. Less than what is used takes
// nothing from anybody: streams shrink and nothing grows until it fits again.
func (b *Budget) SetLimit(limit int64) {
	if b == nil {
		return
	}
	b.limit.Store(max(limit, b.floor))
	b.wake()
}

// Limit is the number of bytes that may be used.
func (b *Budget) Limit() int64 {
	if b == nil {
		return math.MaxInt64
	}
	return b.limit.Load()
}

// Used is the number of bytes that are taken. A nil Budget does not count.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Take takes n bytes if there is room for all of them. It is for what must be
// whole and belongs to a stream that runs: it overtakes those who wait in [Budget.Admit].
// A buffer that can be smaller belongs in an [Account].
func (b *Budget) Take(n int64) bool {
	return b == nil || b.takeBelow(n, n, b.limit.Load()) == n
}

// takeBelow takes up to most bytes, but none if it cannot take least, and leaves
// no more than ceiling used.
func (b *Budget) takeBelow(least, most, ceiling int64) int64 {
	if least < 0 {
		panic(fmt.Sprintf("bufferctl: internal error: %d bytes taken", least))
	}
	for {
		used := b.used.Load()
		n := min(most, ceiling-used)
		if n < least || n <= 0 {
			return 0
		}
		if b.used.CompareAndSwap(used, used+n) {
			return n
		}
	}
}

// Give returns n bytes that were taken, and lets in those who wait for them.
func (b *Budget) Give(n int64) {
	if b == nil {
		return
	}
	if n < 0 {
		panic(fmt.Sprintf("bufferctl: internal error: %d bytes given", n))
	}
	if left := b.used.Add(-n); left < 0 {
		b.misused(n, left)
	}
	b.wake()
}

func (b *Budget) misused(n, left int64) {
	if b.strict {
		panic(fmt.Sprintf("bufferctl: internal error: %d bytes given, %d more than were taken", n, -left))
	}
	b.overdrawn.Add(1)
	b.used.Add(min(-left, n)) // never more than this call was wrong by
}

// Pressure is how full the budget is now.
func (b *Budget) Pressure() Pressure {
	if b == nil {
		return Slack
	}
	was := Pressure(b.level.Load())
	now := pressureAt(b.used.Load(), b.limit.Load(), was)
	if now != was {
		b.level.CompareAndSwap(uint32(was), uint32(now))
	}
	return now
}

func pressureAt(used, limit int64, was Pressure) Pressure {
	tight, full := lowWatermark(limit), highWatermark(limit)
	if was >= Tight {
		tight -= hysteresis(limit)
	}
	if was == Full {
		full -= hysteresis(limit)
	}
	switch {
	case used >= full:
		return Full
	case used >= tight:
		return Tight
	}
	return Slack
}

// StreamCap is what one stream may hold now. It is the floor as long as a new
// stream waits for room, whatever the level: those who run make way by shrinking.
func (b *Budget) StreamCap() int64 {
	if b == nil {
		return math.MaxInt64
	}
	level := b.Pressure()
	switch {
	case level == Full || b.waiting.Load() > 0:
		return b.floor
	case level == Tight:
		return b.start
	}
	return math.MaxInt64
}

// Stats is a Budget at one moment.
type Stats struct {
	Used, Limit int64
	Pressure    Pressure
	Waiting     [Classes]int    // new streams in the queue
	Admitted    [Classes]uint64 // let in after waiting
	Refused     [Classes]uint64
	Overdrawn   uint64 // times that more was given than taken: a mistake of ours
}

// Stats returns the counters. They are taken one after the other, so that they may
// differ by what happened in between.
func (b *Budget) Stats() Stats {
	if b == nil {
		return Stats{Limit: math.MaxInt64}
	}
	s := Stats{Used: b.used.Load(), Limit: b.limit.Load(), Pressure: b.Pressure(), Overdrawn: b.overdrawn.Load()}
	b.mu.Lock()
	defer b.mu.Unlock()
	for class, line := range b.lines {
		s.Waiting[class] = len(line)
	}
	s.Admitted, s.Refused = b.admitted, b.refused
	return s
}
