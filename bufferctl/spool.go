// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Errors of a Spool and its readers.
var (
	ErrSpoolClosed   = errors.New("spool is closed")
	ErrPositionGone  = errors.New("position is no longer kept")
	ErrPositionAhead = errors.New("position is ahead of what was written")
	ErrTakenOver     = errors.New("another reader took over")
	ErrReaderClosed  = errors.New("spool reader is closed")
)

// retryEvery is how often a paused writer asks again for what others hold: room
// in the budget, or on the disk. A guess.
const retryEvery = time.Second

// SpoolConfig describes a Spool.
type SpoolConfig struct {
	Memory int64 // bytes; 0 = 64 KiB; rounded down to chunks of 16 KiB, at least two
	File   int64 // bytes beyond that in a file; 0 = none
	Dir    string
	// Keep is how many bytes stay readable after they were read, for somebody who
	// comes back; at most Memory and File together. They are the first to go where
	// nothing else makes room for a reader that waits.
	Keep   int64
	Budget *Budget // charged for Memory; nil = no bound but Memory
	// OnFault is told why a write to the file failed, at most once a second. It must not
	// block and not use the Spool; nil = nobody is.
	OnFault func(error)
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c SpoolConfig) WithDefaults() SpoolConfig {
	if c.Memory = cmp.Or(c.Memory, DefaultStart); c.Memory > 0 {
		c.Memory = max(c.Memory, 2*chunkSize)
	}
	return c
}

// Validate reports a setting that cannot work.
func (c SpoolConfig) Validate() error {
	switch {
	case c.Memory < 0 || c.File < 0 || c.Keep < 0:
		return fmt.Errorf("bufferctl: negative size of a spool: memory %d, file %d, keep %d", c.Memory, c.File, c.Keep)
	case c.File > 0 && c.Dir == "":
		return errors.New("bufferctl: a spool with a file needs a folder")
	case c.Keep > c.Memory+c.File:
		return fmt.Errorf("bufferctl: a spool cannot keep %d bytes in %d of memory and %d of file", c.Keep, c.Memory, c.File)
	}
	return nil
}

// A Spool is a bounded log of bytes with one writer and one reader at a time. What
// was not read is in memory, and beyond that in the file, which is created when it
// is first needed; at the bounds the writer waits. A disk that is full or broken loses
// nothing: the Spool then has its memory only, and the writer waits sooner.
//
// A reader that waits is handed the writer's bytes directly. A Spool of which all was
// read and nothing is kept holds no memory.
type Spool struct {
	memory, keep int64
	budget       *Budget
	onFault      func(error)
	pool         *sync.Pool // of *chunk
	disk         *spoolFile // nil without a file

	writing sync.Mutex // held by the Write that runs, taken before mu

	mu    sync.Mutex // guards the fields below; not held over I/O
	moved sync.Cond  // something below has changed

	blocks  []*block // oldest first, without gaps; all but the last are full
	pos     int64    // the next byte to be read
	written int64
	behind  time.Time // when bytes came that nobody was waiting for, while any are unread
	reader  *SpoolReader
	end     error // set by Finish
	closed  bool

	held     int // chunks charged to the budget
	slots    slots
	dirty    bool   // the file may have a size
	stores   uint64 // times that the lock was let go of to write to the file
	diskErr  error  // why the last write to it failed
	diskWait time.Time
	pauses   uint64
	paused   time.Time // since when the writer waits; zero = it does not

	// The window is a chunk that blocks are read back into, and exists while the
	// file holds any. It is in one of these, or with the reader that is loading.
	hasWindow bool
	window    *chunk
	loaded    *block
}

// A block is a part of the log.
type block struct {
	start int64
	n     int // bytes in it
	came  time.Time
	buf   *chunk // nil: it is in the file only
	slot  int    // -1: it is not in the file
	busy  bool   // its buf is being written or read without the lock
	gone  bool   // dropped while busy: who made it busy releases it
}

func (b *block) end() int64 { return b.start + int64(b.n) }

// slots hands out the places in the file, those that were used before first.
type slots struct {
	most, next int
	free       []int
	used       int
}

func (s *slots) take() int {
	switch {
	case len(s.free) > 0:
		slot := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.used++
		return slot
	case s.next < s.most:
		s.next++
		s.used++
		return s.next - 1
	}
	return -1
}

func (s *slots) give(slot int) {
	s.used--
	if s.free = append(s.free, slot); s.used == 0 {
		s.next, s.free = 0, nil
	}
}

// NewSpool returns an empty Spool. It creates nothing on disk yet.
func NewSpool(cfg SpoolConfig) (*Spool, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Spool{memory: cfg.Memory, keep: cfg.Keep, budget: cfg.Budget, onFault: cfg.OnFault, slots: slots{most: int(cfg.File / chunkSize)}}
	s.moved.L = &s.mu
	if s.pool = new(sync.Pool); s.budget != nil {
		s.pool = &s.budget.chunks
	}
	if s.slots.most > 0 {
		disk, err := newSpoolFile(cfg.Dir)
		if err != nil {
			return nil, fmt.Errorf("bufferctl: %w", err)
		}
		s.disk = disk
	}
	return s, nil
}

// Write appends p. It waits while there is no room, and returns early with
// [ErrSpoolClosed] after Finish or Close.
func (s *Spool) Write(p []byte) (int, error) {
	return s.WriteContext(context.Background(), p)
}

// WriteContext is Write that also gives up when ctx ends, with an error that wraps
// its cause. What it wrote until then stays written.
func (s *Spool) WriteContext(ctx context.Context, p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.paused = time.Time{} }()
	before := len(p)
	for len(p) > 0 {
		if s.closed || s.end != nil {
			return before - len(p), ErrSpoolClosed
		}
		n, stores := 0, s.stores
		if s.keep == 0 {
			n = s.handOverLocked(p)
		}
		if n == 0 {
			n = s.appendLocked(p)
		}
		if n == 0 {
			n = s.squeezeLocked(p)
		}
		if p = p[n:]; n > 0 {
			s.paused = time.Time{}
			continue
		}
		if s.stores != stores {
			continue // what happened meanwhile woke nobody
		}
		if err := s.waitLocked(ctx); err != nil {
			return before - len(p), err
		}
	}
	return before, nil
}

// handOverLocked copies to the reader that waits for the next byte.
func (s *Spool) handOverLocked(p []byte) int {
	r := s.reader
	if r == nil || r.into == nil || len(s.blocks) > 0 {
		return 0
	}
	n := copy(r.into, p)
	r.into, r.got = nil, n
	s.written += int64(n)
	s.pos = s.written
	s.moved.Broadcast()
	return n
}

// appendLocked stores what fits into the last block, or into a new one. It returns 0
// if nothing fits, or if something changed while it made room: then the caller must
// look again.
func (s *Spool) appendLocked(p []byte) int {
	tail := s.tailLocked()
	if tail == nil {
		c := s.chunkLocked()
		if c == nil {
			c = s.spillLocked()
		}
		if c == nil {
			return 0
		}
		if s.closed || s.end != nil {
			s.freeLocked(c)
			return 0
		}
		tail = &block{start: s.written, buf: c, slot: -1, came: time.Now()}
		s.blocks = append(s.blocks, tail)
	}
	if s.pos == s.written {
		s.behind = time.Now()
	}
	n := copy(tail.buf[tail.n:blockSize], p)
	tail.n += n
	s.written += int64(n)
	s.moved.Broadcast()
	return n
}

func (s *Spool) tailLocked() *block {
	if len(s.blocks) == 0 {
		return nil
	}
	if tail := s.blocks[len(s.blocks)-1]; tail.n < blockSize {
		return tail
	}
	return nil
}

// squeezeLocked serves a reader that has everything when there is no room for more:
// kept bytes make way, and without any the reader takes p from the writer directly.
func (s *Spool) squeezeLocked(p []byte) int {
	for s.reader != nil && s.pos == s.written && !s.closed && s.end == nil {
		if len(s.blocks) == 0 {
			return s.handOverLocked(p)
		}
		s.dropLocked()
		if n := s.appendLocked(p); n > 0 {
			return n
		}
	}
	return 0
}

// waitLocked waits until something changes. Of what others hold it is not told: if
// that is what it waits for, it looks again after a while.
func (s *Spool) waitLocked(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("write to spool: %w", context.Cause(ctx))
	}
	stop := context.AfterFunc(ctx, s.wake)
	defer stop()
	if s.diskErr != nil || int64(s.held+1)*chunkSize <= s.memory {
		wait := retryEvery
		if left := time.Until(s.diskWait); left > 0 {
			wait = left
		}
		again := time.AfterFunc(wait, s.wake)
		defer again.Stop()
	}
	if s.paused.IsZero() {
		s.paused = time.Now()
		s.pauses++
	}
	s.moved.Wait()
	return nil
}

func (s *Spool) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved.Broadcast()
}

// Finish ends the log: readers get what is left of it and then err, or io.EOF if
// that is nil. Only the first call counts.
func (s *Spool) Finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	if s.end == nil {
		s.end = err
	}
	s.moved.Broadcast()
}

// Close drops all that the Spool holds, read or not, and ends those who wait with
// [ErrSpoolClosed]. A chunk that a slow disk is working on is given back when the disk
// is done. It may be called more than once.
func (s *Spool) Close() error {
	s.mu.Lock()
	s.closed = true
	for len(s.blocks) > 0 {
		s.dropLocked()
	}
	s.moved.Broadcast()
	s.mu.Unlock()
	if s.disk == nil {
		return nil
	}
	return s.disk.close()
}

// SpoolStats is a Spool at one moment.
type SpoolStats struct {
	Written int64 // bytes, since its start
	Read    int64 // position of the reader, or where the last one left
	Oldest  int64 // the lowest position that a new reader can ask for
	Memory  int64 // bytes charged to the budget
	File    int64 // bytes in the file
	// Behind is when the oldest unread byte came, or a little earlier; zero if
	// nothing is unread.
	Behind   time.Time
	Attached bool      // there is a reader
	Paused   time.Time // since when the writer waits for room; zero if it does not
	Pauses   uint64
	FileErr  error // why the file does not take more now; nil if it does
}

// Lag is the number of bytes that were not read.
func (s SpoolStats) Lag() int64 { return s.Written - s.Read }

// Stats returns where the Spool is.
func (s *Spool) Stats() SpoolStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := SpoolStats{
		Written: s.written, Read: s.pos, Oldest: s.oldestLocked(),
		Memory: int64(s.held) * chunkSize, File: int64(s.slots.used) * chunkSize,
		Attached: s.reader != nil, Paused: s.paused, Pauses: s.pauses, FileErr: s.diskErr,
	}
	if s.pos < s.written && !s.closed {
		stats.Behind = s.blockLocked(s.pos).came
		if stats.Behind.Before(s.behind) {
			stats.Behind = s.behind
		}
	}
	return stats
}

func (s *Spool) oldestLocked() int64 {
	if len(s.blocks) > 0 {
		return s.blocks[0].start
	}
	return s.written
}

// blockLocked is the block that holds the byte at position, which must be there.
func (s *Spool) blockLocked(position int64) *block {
	return s.blocks[(position-s.blocks[0].start)/blockSize]
}
