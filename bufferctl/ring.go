// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
)

const (
	defaultRingMin = 64   // the source study's adaptive buffer (chapter 3.3)
	defaultRingMax = 4096 // same; 0.8 s of 5000 records/s
)

// RingConfig is how far a ring grows. The zero value is the default.
type RingConfig struct {
	Min int // places at the start, and by which it grows; 0 = 64
	Max int // places at most; 0 = 4096
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c RingConfig) WithDefaults() RingConfig {
	c.Max = cmp.Or(c.Max, defaultRingMax)
	c.Min = cmp.Or(c.Min, min(defaultRingMin, c.Max))
	return c
}

// Validate reports a setting that cannot work.
func (c RingConfig) Validate() error {
	if c = c.WithDefaults(); c.Min < 1 || c.Max < c.Min {
		return fmt.Errorf("bufferctl: ring of %d to %d places", c.Min, c.Max)
	}
	return nil
}

// A Ring is a bounded queue from many producers to one consumer. A producer never
// waits for room: what finds the ring full is dropped, and counted. The ring is
// made of blocks of Min places, so that it grows without copying what it holds and
// without holding a lock while memory is found; [Ring.Shrink] gives blocks back.
//
// Put, Close, Len, Places and Dropped may be called by anybody at any time; Take
// and Shrink by the consumer alone.
type Ring[T any] struct {
	cfg     RingConfig
	ready   chan struct{} // holds one token when an empty ring has got something
	dropped atomic.Uint64

	mu          sync.Mutex // guards the fields below; held for the copy of one value at most
	head, tail  *ringBlock[T]
	read, write int // places done in head, and in tail
	queued      int
	spare       *ringBlock[T] // blocks that hold nothing
	used, idle  int           // blocks from head to tail, and spare ones
	peak        int           // most blocks used since the last Shrink
	closed      bool
}

type ringBlock[T any] struct {
	next   *ringBlock[T]
	places []T
}

// NewRing returns an empty ring.
func NewRing[T any](cfg RingConfig) (*Ring[T], error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Ring[T]{cfg: cfg, ready: make(chan struct{}, 1), used: 1, peak: 1}
	r.head = r.newBlock()
	r.tail = r.head
	return r, nil
}

func (r *Ring[T]) newBlock() *ringBlock[T] { return &ringBlock[T]{places: make([]T, r.cfg.Min)} }

// Put adds v, or drops it and returns false if the ring is full or closed.
func (r *Ring[T]) Put(v T) bool {
	r.mu.Lock()
	for r.queued < r.cfg.Max && !r.closed {
		if r.write == len(r.tail.places) && !r.advanceLocked() {
			r.growLocked()
			continue // another may have filled it meanwhile
		}
		r.tail.places[r.write] = v
		r.write++
		r.queued++
		first := r.queued == 1
		r.mu.Unlock()
		if first {
			r.signal()
		}
		return true
	}
	r.mu.Unlock()
	r.dropped.Add(1)
	return false
}

// advanceLocked makes a spare block the tail, if there is one.
func (r *Ring[T]) advanceLocked() bool {
	b := r.spare
	if b == nil {
		return false
	}
	r.spare, b.next = b.next, nil
	r.tail.next, r.tail, r.write = b, b, 0
	r.used++
	r.idle--
	r.peak = max(r.peak, r.used)
	return true
}

// growLocked adds a spare block. It finds the memory without the lock, so that
// others wait no longer than for a Put; if another was faster, the block is not
// kept. There is at most one block more than Max asks for: the first may be half
// read.
func (r *Ring[T]) growLocked() {
	r.mu.Unlock()
	b := r.newBlock()
	r.mu.Lock()
	if r.spare == nil && r.write == len(r.tail.places) {
		r.spare = b
		r.idle++
	}
}

func (r *Ring[T]) signal() {
	select {
	case r.ready <- struct{}{}:
	default: // a token is there; the consumer takes all
	}
}

// Ready returns a channel that gives a token when an empty ring has got something
// or is closed. Wait for it only after Take has returned less than it was asked
// for.
func (r *Ring[T]) Ready() <-chan struct{} { return r.ready }

// Take moves the oldest values into dst and returns how many. Their places count
// as free once it returns, and hold nothing that they held.
func (r *Ring[T]) Take(dst []T) int {
	taken := 0
	for taken < len(dst) {
		run := r.run(len(dst) - taken)
		if len(run) == 0 {
			break
		}
		taken += copy(dst[taken:], run) // without the lock: no producer touches these places before release
		clear(run)
		r.release(len(run))
	}
	return taken
}

// run returns the oldest values that lie together, limit at most.
func (r *Ring[T]) run(limit int) []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read == len(r.head.places) && r.head != r.tail {
		r.dropHeadLocked()
	}
	n := min(limit, r.queued, len(r.head.places)-r.read)
	return r.head.places[r.read : r.read+n]
}

// dropHeadLocked makes the block that is read to its end a spare one.
func (r *Ring[T]) dropHeadLocked() {
	b := r.head
	r.head, r.read = b.next, 0
	b.next, r.spare = r.spare, b
	r.used--
	r.idle++
}

func (r *Ring[T]) release(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read += n
	r.queued -= n
	if r.queued > 0 {
		return
	}
	for r.head != r.tail { // read to its end
		r.dropHeadLocked()
	}
	r.read, r.write = 0, 0 // the block in the cache serves again
}

// Shrink gives back the memory that was not needed since the last call, and
// returns whether the ring is still larger than at its start. A consumer calls it
// now and then while that is so.
func (r *Ring[T]) Shrink() (grown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.spare != nil && r.used+r.idle > r.peak {
		r.spare = r.spare.next
		r.idle--
	}
	r.peak = r.used
	return r.used+r.idle > 1
}

// Close makes every later Put drop its value. What is queued can still be taken.
func (r *Ring[T]) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.signal()
}

// Dropped is how many values Put has refused.
func (r *Ring[T]) Dropped() uint64 { return r.dropped.Load() }

// Len is how many values wait.
func (r *Ring[T]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queued
}

// Places is for how many values there is memory now.
func (r *Ring[T]) Places() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return (r.used + r.idle) * r.cfg.Min
}
