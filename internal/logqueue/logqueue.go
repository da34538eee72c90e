// SPDX-License-Identifier: Apache-2.0

// Package logqueue keeps whoever logs from waiting for whoever reads the log: a
// terminal that is stopped, or a pipe whose reader hangs, costs lines and no
// requests.
package logqueue

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	size     = 256 << 10 // bytes that wait: some 1000 lines; as much again may be on its way out
	keep     = 16 << 10  // bytes that an empty queue holds on to
	patience = time.Second
)

// ErrStuck is what Close returns when not all lines were taken in time.
var ErrStuck = errors.New("the log was not taken in time: is its reader stuck?")

// A Queue takes lines without waiting, and one goroutine writes them in their
// order. When it is full, lines are dropped whole, and a line says how many as
// soon as the reader goes on. All methods are safe for concurrent use.
type Queue struct {
	direct  io.Writer                   // takes one write at a time
	notes   atomic.Pointer[slog.Logger] // writes to direct; nil: nobody is told of lost lines
	dropped atomic.Uint64
	ready   chan struct{} // holds one token
	done    chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex // guards the fields below; never held over a write
	lines  []byte
	lost   uint64 // lines after those in lines
	closed bool
}

// OneAtATime keeps the writes of several to w from mixing.
func OneAtATime(w io.Writer) io.Writer { return &lockedWriter{w: w} }

type lockedWriter struct {
	mu sync.Mutex // held for one write
	w  io.Writer
}

// Write implements [io.Writer].
func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// New returns a Queue before w. Close ends it.
func New(w io.Writer) *Queue {
	q := &Queue{direct: OneAtATime(w), ready: make(chan struct{}, 1), done: make(chan struct{})}
	go q.run() // ended by Close, at the latest when the write that hangs returns
	return q
}

// Write takes one or more whole lines, or drops them. It never waits and fails only
// after Close.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, os.ErrClosed
	}
	// Once one is lost all are, until there is room: so the lost ones are in one place.
	if q.lost > 0 || len(q.lines)+len(p) > size {
		n := uint64(bytes.Count(p, []byte("\n")))
		q.lost += n
		q.dropped.Add(n)
		return len(p), nil
	}
	q.lines = append(q.lines, p...)
	q.wake()
	return len(p), nil
}

// Direct is the writer behind the queue, which is waited for: for whoever has a queue
// of his own. What it writes does not mix with the lines of the queue.
func (q *Queue) Direct() io.Writer { return q.direct }

// Note makes lost lines known by a logger that writes to [Queue.Direct].
func (q *Queue) Note(to *slog.Logger) { q.notes.Store(to) }

// Dropped is how many lines were lost.
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }

// Close writes what waits, and returns an error that matches [ErrStuck] if that takes
// longer than a second: the rest is lost, and one goroutine stays until its write returns.
// Lines that come later are refused. Call it once.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closed = true
	q.wake()
	q.mu.Unlock()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-q.done:
		return nil
	case <-limit.C:
		return ErrStuck
	}
}

func (q *Queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default: // a token is there
	}
}

// run writes until the queue is closed and empty.
func (q *Queue) run() {
	defer close(q.done)
	var spare []byte
	for range q.ready {
		q.mu.Lock()
		lines, lost, closed := q.lines, q.lost, q.closed
		q.lines, q.lost = spare[:0], 0
		q.mu.Unlock()
		q.writeOut(lines)
		if notes := q.notes.Load(); lost > 0 && notes != nil {
			notes.Warn("log lines were lost here: the reader of the log was too slow", "lines", lost)
		}
		if closed { // nothing came after
			return
		}
		if spare = lines; cap(spare) > keep {
			spare = nil
		}
	}
}

// writeOut writes each line by a call of its own: a pipe keeps those of up to 4 KiB apart
// from what other processes write. Lines that cannot be written are lost.
func (q *Queue) writeOut(lines []byte) {
	for line := range bytes.Lines(lines) {
		if _, err := q.direct.Write(line); err != nil {
			q.dropped.Add(1)
		}
	}
}
