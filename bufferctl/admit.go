// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A Class is how urgent a new stream is.
type Class uint8

// The classes, most urgent first.
const (
	Interactive Class = iota // somebody waits for every token
	Default
	Batch // nobody waits
)

// Classes is the number of classes.
const Classes = 3

// String is the class's name in the configuration and in metrics.
func (c Class) String() string {
	return [...]string{"interactive", "default", "batch"}[min(c, Batch)]
}

// fairShare is how many more urgent streams are let in before a class that waits
// gets its turn. A guess: a batch job gets at least a tenth of the room that becomes
// free, which leaves nine tenths to those whom somebody waits for.
const fairShare = 8

// A Reason says why a stream was not let in; it is a metric label.
type Reason string

// The reasons.
const (
	ReasonTimeout   Reason = "timeout"    // waited as long as the queue allows
	ReasonQueueFull Reason = "queue_full" // no place in the queue
	ReasonDisplaced Reason = "displaced"  // its place went to a more urgent one
	ReasonTooLarge  Reason = "too_large"  // would not fit into an empty budget
)

// An OverloadError says that the budget had no room for a new stream. The
// answer to the app is a 503 with RetryAfter.
type OverloadError struct {
	Reason      Reason
	Class       Class
	Bytes       int64 // asked for
	Used, Limit int64
	Waited      time.Duration
	RetryAfter  time.Duration // when another try makes sense; longer the more others wait
}

func (e *OverloadError) Error() string {
	if e.Reason == ReasonTooLarge {
		return fmt.Sprintf("a stream needs %d bytes and the memory budget (limits.memory) is %d", e.Bytes, e.Limit)
	}
	return fmt.Sprintf("no room for a stream of %d bytes in the memory budget (limits.memory): %d of %d bytes used, waited %v (%s)",
		e.Bytes, e.Used, e.Limit, e.Waited.Round(time.Millisecond), e.Reason)
}

// A waiter is a new stream in the queue.
type waiter struct {
	class   Class
	bytes   int64
	decided chan struct{} // closed once the fields below are set
	granted bool          // its bytes are taken
	reason  Reason        // why not
}

// A queue holds those who wait for room.
type queue struct {
	lines    [Classes][]*waiter // oldest first
	passed   [Classes]int       // how many more urgent ones were let in while the class waited
	admitted [Classes]uint64
	refused  [Classes]uint64
}

// Admit takes n bytes for a new stream: what it needs for its life and the floor
// of its buffers. Without room it waits, interactive before default before batch,
// first come first served inside a class, and no class waits for ever while others
// are let in. It returns an [*OverloadError] when the wait is over without success,
// or an error that wraps the cause of ctx's end.
func (b *Budget) Admit(ctx context.Context, class Class, n int64) error {
	if b == nil || b.waiting.Load() == 0 && b.Take(n) {
		return nil
	}
	w := &waiter{class: min(class, Batch), bytes: n, decided: make(chan struct{})}
	if !b.enqueue(w) {
		return b.overload(w, 0)
	}
	start := time.Now()
	timer := time.NewTimer(b.queueTimeout)
	defer timer.Stop()
	var ended bool
	select {
	case <-w.decided:
	case <-timer.C:
		b.leave(w)
	case <-ctx.Done():
		b.leave(w)
		ended = true
	}
	switch {
	case ended && w.granted: // both at once: nobody is left to use it
		b.Give(n)
		fallthrough
	case ended:
		return fmt.Errorf("wait for room in the memory budget: %w", context.Cause(ctx))
	case w.granted:
		return nil
	}
	return b.overload(w, time.Since(start))
}

func (b *Budget) overload(w *waiter, waited time.Duration) *OverloadError {
	e := &OverloadError{
		Reason: w.reason, Class: w.class, Bytes: w.bytes,
		Used: b.Used(), Limit: b.Limit(), Waited: waited,
	}
	if w.reason != ReasonTooLarge { // a later try is as large
		e.RetryAfter = time.Second + b.queueTimeout*time.Duration(b.waiting.Load())/time.Duration(max(b.queueLimit, 1))
	}
	return e
}

// enqueue puts w in its line, and reports false with w's reason set if it cannot.
func (b *Budget) enqueue(w *waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case w.bytes > b.limit.Load():
		w.reason = ReasonTooLarge
	case int(b.waiting.Load()) >= b.queueLimit && !b.displaceLocked(w.class):
		w.reason = ReasonQueueFull
	default:
		b.lines[w.class] = append(b.lines[w.class], w)
		// Give looks at this counter after it has given, and we at the used bytes
		// after it: one of the two sees the other.
		b.waiting.Add(1)
		b.grantLocked()
		return true
	}
	b.refused[w.class]++
	return false
}

// displaceLocked makes a place in the full queue at the cost of the youngest of the
// least urgent, if that one is less urgent than class.
func (b *Budget) displaceLocked(class Class) bool {
	for c := Batch; c > class; c-- {
		if n := len(b.lines[c]); n > 0 {
			w := b.lines[c][n-1]
			w.reason = ReasonDisplaced
			b.refused[c]++
			b.removeLocked(c, n-1)
			close(w.decided)
			return true
		}
	}
	return false
}

func (b *Budget) removeLocked(class Class, i int) {
	b.lines[class] = slices.Delete(b.lines[class], i, i+1)
	if len(b.lines[class]) == 0 {
		b.lines[class] = nil // a burst leaves no memory behind
		b.passed[class] = 0
	}
	b.waiting.Add(-1)
}

// leave takes w out of its line, unless it was decided meanwhile. Whoever waits
// behind it may fit where it did not.
func (b *Budget) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.lines[w.class], w); i >= 0 {
		w.reason = ReasonTimeout
		b.refused[w.class]++
		b.removeLocked(w.class, i)
		b.grantLocked()
	}
}

// wake lets in whom there is room for.
func (b *Budget) wake() {
	if b.waiting.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grantLocked()
}

// grantLocked lets in the next ones as long as they fit. A large one is not
// overtaken by smaller ones: it would never get in.
func (b *Budget) grantLocked() {
	for {
		class, ok := b.nextLocked()
		if !ok {
			return
		}
		w := b.lines[class][0]
		if w.bytes > b.limit.Load() { // the limit was lowered since it came
			w.reason = ReasonTooLarge
			b.refused[class]++
			b.removeLocked(class, 0)
			close(w.decided)
			continue
		}
		if !b.Take(w.bytes) {
			return
		}
		for c := class + 1; c < Classes; c++ {
			if len(b.lines[c]) > 0 {
				b.passed[c]++
			}
		}
		b.passed[class] = 0
		b.admitted[class]++
		b.removeLocked(class, 0)
		w.granted = true
		close(w.decided)
	}
}

// nextLocked is the class whose turn it is.
func (b *Budget) nextLocked() (Class, bool) {
	for c := Batch; c > Interactive; c-- {
		if b.passed[c] >= fairShare {
			return c, true
		}
	}
	for c := range Class(Classes) {
		if len(b.lines[c]) > 0 {
			return c, true
		}
	}
	return 0, false
}
