// SPDX-License-Identifier: Apache-2.0

package telemetry

import "sync"

const (
	maxQueue = 2048 // OTEL_BSP_MAX_QUEUE_SIZE
	maxBatch = 512  // OTEL_BSP_MAX_EXPORT_BATCH_SIZE

	// spanBytes is what a span takes of the memory budget from its request's end until it
	// is sent: its record, and what it is encoded to.
	spanBytes = 2 << 10
)

// A Budget is where the memory of spans is charged; it is that of the streams.
type Budget interface {
	Take(n int64) bool
	Give(n int64)
}

// A queued request waits for its span to be sent.
type queued struct {
	Request
	state string // tracestate of a trace of ours
}

// A queue is bounded by its places and by the budget.
type queue struct {
	budget Budget        // nil = none
	ready  chan struct{} // holds one token when the first span has come
	full   chan struct{} // the same when there is a whole batch

	mu     sync.Mutex // guards the fields below
	waits  []queued
	closed bool
}

func newQueue(budget Budget) *queue {
	return &queue{budget: budget, ready: make(chan struct{}, 1), full: make(chan struct{}, 1)}
}

// put adds r, or returns false if there is no room. It never waits.
func (q *queue) put(r *queued) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waits) >= maxQueue || q.budget != nil && !q.budget.Take(spanBytes) {
		return false
	}
	q.waits = append(q.waits, *r)
	switch len(q.waits) {
	case 1:
		signal(q.ready)
	case maxBatch:
		signal(q.full)
	}
	return true
}

// take returns the oldest, up to a batch; what they took of the budget is to be given
// back by release.
func (q *queue) take() []queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waits), maxBatch)
	batch := make([]queued, n)
	copy(batch, q.waits)
	rest := copy(q.waits, q.waits[n:])
	clear(q.waits[rest:])
	q.waits = q.waits[:rest]
	if rest == 0 && cap(q.waits) > maxBatch {
		q.waits = nil // a burst is over
	}
	return batch
}

func (q *queue) release(n int) {
	if q.budget != nil {
		q.budget.Give(int64(n) * spanBytes)
	}
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waits)
}

// close lets nothing more in.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a token is there
	}
}
