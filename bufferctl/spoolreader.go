// SPDX-License-Identifier: Apache-2.0

package bufferctl

import "fmt"

// A SpoolReader reads a Spool from a position on.
type SpoolReader struct {
	s *Spool

	// Guarded by s.mu.
	into   []byte // where the next bytes may be put while Read waits for them
	got    int    // how many were put there
	closed bool
}

// Reader returns a reader whose first byte is the one at position. It takes over from
// the one before, whose Read returns [ErrTakenOver] from now on. It fails with
// [ErrPositionGone] below [SpoolStats.Oldest] and with [ErrPositionAhead] above what
// was written.
func (s *Spool) Reader(position int64) (*SpoolReader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch oldest := s.oldestLocked(); {
	case s.closed:
		return nil, ErrSpoolClosed
	case position < oldest:
		return nil, fmt.Errorf("%w: %d, the oldest is %d", ErrPositionGone, position, oldest)
	case position > s.written:
		return nil, fmt.Errorf("%w: %d of %d", ErrPositionAhead, position, s.written)
	}
	s.reader = &SpoolReader{s: s}
	s.pos = position
	s.trimLocked()
	s.moved.Broadcast()
	return s.reader, nil
}

// Read waits for bytes and returns some. After the last one it returns the error
// that the Spool was finished with, io.EOF for a whole log.
func (r *SpoolReader) Read(p []byte) (int, error) {
	s := r.s
	s.mu.Lock()
	n, err := r.readLocked(p)
	emptied := s.dirty && s.slots.used == 0
	if emptied {
		s.dirty = false
	}
	s.mu.Unlock()
	if emptied {
		s.disk.empty(s.fileUnused)
	}
	return n, err
}

func (s *Spool) fileUnused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots.used == 0
}

func (r *SpoolReader) readLocked(p []byte) (int, error) {
	s := r.s
	for {
		if r.got > 0 { // handed over before whatever came after
			n := r.got
			r.got = 0
			return n, nil
		}
		switch {
		case r.closed:
			return 0, ErrReaderClosed
		case s.closed:
			return 0, ErrSpoolClosed
		case s.reader != r:
			return 0, ErrTakenOver
		case len(p) == 0:
			return 0, nil
		case s.pos < s.written:
			if n, err := s.readLocked(p); n > 0 || err != nil {
				return n, err
			}
		case s.end != nil:
			return 0, s.end
		default:
			r.into = p
			s.moved.Broadcast() // a writer without room may wait for this
			s.moved.Wait()
			r.into = nil
		}
	}
}

// readLocked copies what is in memory from the reader's position on. It returns 0 if
// the lock was let go of, so that the caller must look again.
func (s *Spool) readLocked(p []byte) (int, error) {
	n := 0
	for n < len(p) && s.pos < s.written {
		b := s.blockLocked(s.pos)
		switch {
		case (b.busy || b.buf == nil) && n > 0: // no wait while there is something to return
			return n, nil
		case b.busy:
			s.moved.Wait()
			return 0, nil
		case b.buf == nil:
			return 0, s.loadLocked(b)
		}
		m := copy(p[n:], b.buf[s.pos-b.start:b.n])
		n += m
		s.pos += int64(m)
		s.trimLocked()
	}
	return n, nil
}

// Close ends the reader, and its Read with [ErrReaderClosed]. The Spool goes on:
// another reader may continue where this one stopped, or earlier as far as the Spool
// keeps what was read.
func (r *SpoolReader) Close() error {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r.closed = true
	if s.reader == r {
		s.reader = nil
	}
	s.moved.Broadcast()
	return nil
}
