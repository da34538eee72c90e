// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"errors"
	"os"
	"time"
)

// This file moves blocks between memory and the file, and lets go of them.

// chunkLocked is memory for one more block, or nil at a bound.
func (s *Spool) chunkLocked() *chunk {
	next := int64(s.held+1) * chunkSize
	// Under pressure it gets by with two, one to fill and one to read back into.
	if next > s.memory || next > max(s.budget.StreamCap(), 2*chunkSize) || !s.budget.Take(chunkSize) {
		return nil
	}
	s.held++
	if c, ok := s.pool.Get().(*chunk); ok {
		return c
	}
	return new(chunk)
}

func (s *Spool) freeLocked(c *chunk) {
	s.held--
	s.pool.Put(c)
	s.budget.Give(chunkSize)
}

// spillLocked moves full blocks to the file until the memory of one is left over,
// and returns that, or nil. It lets go of the lock while it writes. The first chunk
// that becomes free is the window, without which nothing could be read back.
func (s *Spool) spillLocked() *chunk {
	for s.disk != nil && s.held >= 2 && (s.diskErr == nil || !time.Now().Before(s.diskWait)) {
		v := s.victimLocked()
		if v == nil {
			return nil
		}
		slot := s.slots.take()
		if slot < 0 {
			return nil
		}
		c := s.storeLocked(v, slot)
		switch {
		case c == nil:
			return nil
		case s.closed:
			s.freeLocked(c)
			return nil
		case s.slots.used > 0 && !s.hasWindow:
			s.window, s.hasWindow = c, true
		default:
			return c
		}
	}
	return nil
}

// storeLocked writes v to a slot of the file and returns the memory it was in, or
// nil if it is still there.
func (s *Spool) storeLocked(v *block, slot int) *chunk {
	v.busy, s.dirty = true, true
	s.stores++
	s.mu.Unlock()
	err := s.disk.write(slot, v.start, v.buf)
	if err != nil && s.onFault != nil && !errors.Is(err, os.ErrClosed) { // closed meanwhile: no fault
		s.onFault(err)
	}
	s.mu.Lock()
	v.busy = false
	s.moved.Broadcast()
	if s.diskErr = err; err != nil {
		s.diskWait = time.Now().Add(retryEvery)
	}
	switch {
	case v.gone: // it was read, or all was closed, meanwhile
		s.slots.give(slot)
		s.settleLocked()
	case err != nil:
		s.slots.give(slot)
		s.settleLocked() // all others may have been read meanwhile
		return nil
	default:
		v.slot = slot
	}
	c := v.buf
	v.buf = nil
	return c
}

// victimLocked is the block that will be missed last: the oldest of those that are
// kept, else the youngest that is full.
func (s *Spool) victimLocked() *block {
	fits := func(b *block) bool { return b.n == blockSize && b.buf != nil && b.slot < 0 && !b.busy }
	for _, b := range s.blocks {
		if b.end() > s.pos {
			break
		}
		if fits(b) {
			return b
		}
	}
	for i := len(s.blocks) - 1; i >= 0 && s.blocks[i].end() > s.pos; i-- {
		if fits(s.blocks[i]) {
			return s.blocks[i]
		}
	}
	return nil
}

// loadLocked reads b back from the file. It lets go of the lock meanwhile.
func (s *Spool) loadLocked(b *block) error {
	if s.window == nil && s.loaded == nil { // another reader, taken over by now, is at it
		s.moved.Wait()
		return nil
	}
	s.unloadLocked()
	c := s.window
	s.window, b.busy = nil, true
	s.mu.Unlock()
	err := s.disk.read(b.slot, b.start, c)
	s.mu.Lock()
	b.busy = false
	s.moved.Broadcast()
	if err != nil || b.gone {
		s.window = c
		if b.gone {
			s.slots.give(b.slot)
			s.settleLocked()
			return nil
		}
		return err
	}
	b.buf, s.loaded = c, b
	return nil
}

// unloadLocked takes the window out of the block that was read back; the file
// still has it.
func (s *Spool) unloadLocked() {
	if s.loaded != nil {
		s.window, s.loaded.buf, s.loaded = s.loaded.buf, nil, nil
	}
}

// trimLocked drops what was read and is not kept.
func (s *Spool) trimLocked() {
	for len(s.blocks) > 0 && s.blocks[0].end() <= s.pos-s.keep {
		s.dropLocked()
	}
}

// dropLocked drops the oldest block.
func (s *Spool) dropLocked() {
	b := s.blocks[0]
	s.blocks[0] = nil
	if s.blocks = s.blocks[1:]; len(s.blocks) == 0 {
		s.blocks = nil
	}
	s.moved.Broadcast()
	if b.busy {
		b.gone = true
		return
	}
	if b == s.loaded {
		s.unloadLocked()
	}
	if b.buf != nil {
		s.freeLocked(b.buf)
	}
	if b.slot >= 0 {
		s.slots.give(b.slot)
		s.settleLocked()
	}
}

// settleLocked frees the window once the file holds nothing.
func (s *Spool) settleLocked() {
	if s.slots.used == 0 && s.window != nil {
		s.freeLocked(s.window)
		s.window, s.hasWindow = nil, false
	}
}
