// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
)

// ErrFlush is matched by the error of Run when the log could not be written out
// in time at the end.
var ErrFlush = errors.New("the access log was not taken in time")

// A Log takes records of requests and writes about them.
type Log struct {
	standard io.Writer
	notes    *slog.Logger
	flush    time.Duration

	ring   *bufferctl.Ring[Record]
	table  *table
	policy atomic.Pointer[policy]
	lost   atomic.Uint64 // taken from the ring and not written

	// For the writer, which looks at them when it is poked.
	poke    chan struct{}          // holds one token
	next    atomic.Pointer[output] // to go on with; nil: as before
	current atomic.Pointer[output] // the writer's, so that a write which hangs can be broken off
	summary atomic.Int64           // nanoseconds between summaries
	closed  atomic.Bool            // Run is ending: the ring takes nothing more
}

// New returns a Log that writes once Run is called: to the file that cfg names, or
// to standard, a line or several at a time. notes is told when records were lost
// and when the log cannot be written; nil: nobody is.
func New(standard io.Writer, notes *slog.Logger, cfg Config) (*Log, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if notes == nil {
		notes = slog.New(slog.DiscardHandler)
	}
	ring, err := bufferctl.NewRing[Record](bufferctl.RingConfig{Max: cfg.Capacity})
	if err != nil {
		return nil, err
	}
	l := &Log{standard: standard, notes: notes, flush: cfg.FlushTimeout, ring: ring, table: newTable(), poke: make(chan struct{}, 1)}
	return l, l.Update(cfg)
}

// Update changes what is logged and how, and opens the file again, also one with
// the same name: whoever rotates logs has moved it away. If that fails, everything
// stays as it is.
func (l *Log) Update(cfg Config) error {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	out, err := open(cfg, l.standard)
	if err != nil {
		return err
	}
	l.policy.Store(newPolicy(cfg))
	l.summary.Store(int64(cfg.Summary))
	l.next.Swap(out).close() // one that the writer has not come to
	if now := l.current.Load(); now != nil && !now.sameFile(out) {
		now.interrupt() // a pipe that is not read must not keep the log from going elsewhere
	}
	l.signal()
	return nil
}

// Dropped is how many records were to be written in full and were not.
func (l *Log) Dropped() uint64 { return l.ring.Dropped() + l.lost.Load() }

// Record takes note of a finished request. It never blocks.
func (l *Log) Record(r Record) {
	if l.table.count(&r, l.policy.Load()) && !l.ring.Put(r) {
		l.table.dropped(&r)
	}
}

func (l *Log) signal() {
	select {
	case l.poke <- struct{}{}:
	default: // a token is there
	}
}

// Run writes records until ctx ends, then what is left, and returns nil. If that
// is not taken within the flush timeout, Run returns an error that matches
// [ErrFlush]; an output that hangs in a write then keeps one goroutine until that
// write returns, unless it is a pipe of ours, which is broken off. Call it once.
func (l *Log) Run(ctx context.Context) error {
	w := newWriter(l)
	done := make(chan struct{})
	go func() { // its waiter is the select below
		defer close(done)
		w.run()
	}()
	<-ctx.Done()
	l.ring.Close()
	l.closed.Store(true)
	l.signal()
	limit := time.NewTimer(l.flush)
	defer limit.Stop()
	select {
	case <-done:
		return nil
	case <-limit.C:
		w.abandoned.Store(true)
		if now := l.current.Load(); now != nil {
			now.interrupt()
		}
		return fmt.Errorf("accesslog: %w within %v: is the reader of the log stuck?", ErrFlush, l.flush)
	}
}
