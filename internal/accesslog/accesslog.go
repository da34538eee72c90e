// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultCapacity = 4096 // under a second of 5000 requests/s, all of them logged
	defaultFlush    = 2 * time.Second
	keptCapacity    = 256         // queue memory that a quiet log holds on to, in records
	dropReportEvery = time.Second // lines about dropped records, at most
)

// ErrFlush is matched by the error of Run when the log could not be written out
// in time at the end.
var ErrFlush = errors.New("the access log was not taken in time")

// Config is how much is logged.
type Config struct {
	Sample       float64       // share of the requests that went well, from 0 to 1; 0 = none of them
	Capacity     int           // records in the queue; 0 = 4096
	FlushTimeout time.Duration // for writing out the queue at the end; 0 = 2 s
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Capacity = cmp.Or(c.Capacity, defaultCapacity)
	c.FlushTimeout = cmp.Or(c.FlushTimeout, defaultFlush)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	if c.Capacity < 0 || c.FlushTimeout < 0 {
		return fmt.Errorf("accesslog: negative capacity %d or flush timeout %v", c.Capacity, c.FlushTimeout)
	}
	return checkSample(c.Sample)
}

func checkSample(s float64) error {
	if !(s >= 0 && s <= 1) { // written so that NaN is refused too
		return fmt.Errorf("accesslog: sample %v: want a share from 0 to 1", s)
	}
	return nil
}

// A Log is the queue and its writer.
type Log struct {
	handler slog.Handler
	cfg     Config
	sample  atomic.Uint64 // bits of a float64
	dropped atomic.Uint64
	wake    chan struct{} // holds one token while there is something to do

	mu     sync.Mutex // guards the fields below; never held while writing
	queue  []Record
	closed bool // Run is ending: nothing more is taken
}

// New returns a Log that writes to h once Run is called.
func New(h slog.Handler, cfg Config) (*Log, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Log{handler: h, cfg: cfg, wake: make(chan struct{}, 1)}
	l.sample.Store(math.Float64bits(cfg.Sample))
	return l, nil
}

// SetSample changes the share of the requests that are logged though nothing
// went wrong.
func (l *Log) SetSample(s float64) error {
	if err := checkSample(s); err != nil {
		return err
	}
	l.sample.Store(math.Float64bits(s))
	return nil
}

// Dropped is how many records were chosen for the log and did not get there.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Record takes note of a finished request. It never blocks.
func (l *Log) Record(r Record) {
	if !r.notable() && !l.sampled(r.ID) || !l.handler.Enabled(context.Background(), r.level()) {
		return
	}
	l.mu.Lock()
	full := l.closed || len(l.queue) >= l.cfg.Capacity
	if !full {
		l.queue = append(l.queue, r)
	}
	l.mu.Unlock()
	if full {
		l.dropped.Add(1)
	}
	l.signal()
}

func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // a token is there; the writer takes all that is queued
	}
}

// sampled decides by the id alone.
func (l *Log) sampled(id uint64) bool {
	share := math.Float64frombits(l.sample.Load())
	return float64(mix(id)>>11)/(1<<53) < share
}

// mix spreads counting ids over all 64 bits (the finaliser of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Run writes records until ctx ends, then what is left, and returns nil. If the
// handler does not take the rest within the flush timeout, Run returns an error
// that matches [ErrFlush]; a handler that hangs in a write then keeps one
// goroutine until that write returns, since a write cannot be broken off. Call it
// once.
func (l *Log) Run(ctx context.Context) error {
	w := &writer{log: l}
	done := make(chan struct{})
	go func() { // its waiter is the select below
		defer close(done)
		w.run(context.WithoutCancel(ctx))
	}()
	<-ctx.Done()
	l.close()
	limit := time.NewTimer(l.cfg.FlushTimeout)
	defer limit.Stop()
	select {
	case <-done:
		return nil
	case <-limit.C:
		w.abandoned.Store(true)
		return fmt.Errorf("accesslog: %w within %v: is the reader of the log stuck?", ErrFlush, l.cfg.FlushTimeout)
	}
}

func (l *Log) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.signal()
}

// take hands over the queue and gives it an empty one to go on with.
func (l *Log) take(empty []Record) (batch []Record, last bool) {
	if cap(empty) > keptCapacity {
		empty = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	batch, l.queue = l.queue, empty[:0]
	return batch, l.closed
}

// A writer is the state of the goroutine that writes.
type writer struct {
	log       *Log
	abandoned atomic.Bool // nobody waits any more: the rest is dropped
	told      uint64      // dropped records that the log has been told of
	toldAt    time.Time
}

// run writes batches until the queue is closed and empty.
func (w *writer) run(ctx context.Context) {
	var batch []Record
	for last := false; !last; {
		<-w.log.wake
		batch, last = w.log.take(batch)
		for i := range batch {
			w.write(ctx, &batch[i])
		}
		w.tellDropped(ctx, last)
	}
}

func (w *writer) write(ctx context.Context, r *Record) {
	if w.abandoned.Load() || w.log.handler.Handle(ctx, r.line()) != nil {
		w.log.dropped.Add(1)
	}
}

// tellDropped writes a line about lost records, once a second at most and at the
// end.
func (w *writer) tellDropped(ctx context.Context, last bool) {
	total, now := w.log.dropped.Load(), time.Now()
	if total == w.told || w.abandoned.Load() || !last && now.Sub(w.toldAt) < dropReportEvery {
		return
	}
	line := slog.NewRecord(now, slog.LevelWarn, "access log dropped records: the reader of the log is too slow", 0)
	line.AddAttrs(slog.Uint64("dropped", total-w.told))
	w.told, w.toldAt = total, now
	_ = w.log.handler.Handle(ctx, line) // a handler that fails here fails for the records too, and those are counted
}
