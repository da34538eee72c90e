// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// pattern fills p with what every test writes at a position, so that a byte in
// the wrong place is seen.
func pattern(p []byte, position int64) {
	for i := range p {
		at := position + int64(i)
		p[i] = byte(at ^ at>>8 ^ at>>16*7)
	}
}

func wantPattern(t testing.TB, got []byte, position int64) {
	t.Helper()
	want := make([]byte, len(got))
	if pattern(want, position); !bytes.Equal(got, want) {
		t.Fatalf("%d bytes read at %d are not those that were written there", len(got), position)
	}
}

var errDisk = errors.New("the disk is full")

// memoryFile is a storage in memory whose disk can be full. A failing write stores
// the first half.
type memoryFile struct {
	mu     sync.Mutex
	data   []byte
	most   int // largest size it ever had
	writes int
	full   bool
	short  bool // the next write stores half, and no error says so
	closed bool
	before func() // called before each write, without the lock
}

func (f *memoryFile) WriteAt(p []byte, off int64) (int, error) {
	if f.before != nil {
		f.before()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	var err error
	switch {
	case f.full:
		p, err = p[:len(p)/2], errDisk
	case f.short:
		p, f.short = p[:len(p)/2], false
	}
	if need := int(off) + len(p); need > len(f.data) {
		f.data = append(f.data, make([]byte, need-len(f.data))...)
		f.most = max(f.most, need)
	}
	return copy(f.data[off:], p), err
}

func (f *memoryFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if int(off) >= len(f.data) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = f.data[:size]
	return nil
}

func (f *memoryFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *memoryFile) set(change func(f *memoryFile)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func newSpool(t testing.TB, cfg SpoolConfig) *Spool {
	t.Helper()
	if cfg.File > 0 && cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	s, err := NewSpool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// withFile gives a Spool a file in memory.
func withFile(s *Spool) *memoryFile {
	f := &memoryFile{}
	s.disk.open = func() (storage, error) { return f, nil }
	return f
}

type spoolStep struct {
	kind, n int
}

// A spoolModel drives one Spool, at most one Write and one Read at a time.
type spoolModel struct {
	t    *testing.T
	s    *Spool
	cfg  SpoolConfig
	file *memoryFile
	all  sync.WaitGroup

	writing, reading atomic.Bool
	taken            int64 // from the budget by others
	troubled         bool  // room was taken away, so that kept bytes may be gone
	most             int64 // the highest position that was ever read
	sent             int64 // handed to Write, whether it has returned or not
	reader           *SpoolReader
	at               int64 // position of reader
}

func (m *spoolModel) write(n int) {
	if n == 0 || m.writing.Swap(true) {
		return
	}
	p := make([]byte, n)
	pattern(p, m.sent)
	m.sent += int64(n)
	m.all.Go(func() {
		defer m.writing.Store(false)
		if got, err := m.s.Write(p); (got != n || err != nil) && !m.t.Failed() { // after a failure the spool is closed under it
			m.t.Errorf("wrote %d of %d: %v", got, n, err)
		}
	})
}

func (m *spoolModel) read(n int) {
	if n == 0 || m.reader == nil || m.reading.Swap(true) {
		return
	}
	r := m.reader
	m.all.Go(func() {
		defer m.reading.Store(false)
		p := make([]byte, n)
		got, err := r.Read(p)
		switch {
		case err == nil && got > 0:
			wantPattern(m.t, p[:got], m.at)
			m.at += int64(got)
		case got != 0 || !errors.Is(err, ErrTakenOver) && !errors.Is(err, ErrReaderClosed) && err != io.EOF:
			m.t.Errorf("read %d: %v", got, err)
		}
	})
}

// attach asks for a position around what is kept.
func (m *spoolModel) attach(n int) {
	stats := m.s.Stats()
	position := stats.Oldest - 1 + int64(n)%(stats.Written-stats.Oldest+3)
	r, err := m.s.Reader(position)
	synctest.Wait() // the one before is done
	switch {
	case position < stats.Oldest && !errors.Is(err, ErrPositionGone),
		position > stats.Written && !errors.Is(err, ErrPositionAhead),
		position >= stats.Oldest && position <= stats.Written && err != nil:
		m.t.Errorf("reader at %d of %d to %d: %v", position, stats.Oldest, stats.Written, err)
	case err == nil:
		m.reader, m.at = r, position
	}
}

func (m *spoolModel) do(step spoolStep) {
	switch step.kind {
	case 0, 1, 2, 3, 4:
		m.write(step.n)
	case 5, 6, 7:
		m.read(step.n)
	case 8:
		m.attach(step.n)
	case 9:
		if m.reader != nil {
			_ = m.reader.Close()
			m.reader = nil
		}
	case 10:
		if n := int64(step.n) * 8; m.cfg.Budget.Take(n) {
			m.taken += n
			m.troubled = true
		}
	case 11:
		m.cfg.Budget.Give(m.taken)
		m.taken = 0
	case 12:
		m.file.set(func(f *memoryFile) { f.full = step.n%3 == 0; f.short = step.n%3 == 1 })
		m.troubled = true
	}
	synctest.Wait()
	m.check()
}

func (m *spoolModel) check() {
	stats := m.s.Stats()
	if used := m.cfg.Budget.Used(); used != m.taken+stats.Memory {
		m.t.Fatalf("%d bytes used, others took %d and the spool says %d", used, m.taken, stats.Memory)
	}
	if stats.Memory > m.s.memory || stats.File > m.cfg.File || m.file.most > int(m.cfg.File) {
		m.t.Fatalf("beyond the bounds: %+v, file was %d", stats, m.file.most)
	}
	if m.writing.Load() && m.reading.Load() {
		m.t.Fatalf("the writer and the reader wait for each other: %+v", stats)
	}
	if m.writing.Load() != !stats.Paused.IsZero() {
		m.t.Fatalf("a write waits: %v, but paused since %v", m.writing.Load(), stats.Paused)
	}
	if !m.writing.Load() && stats.Written != m.sent {
		m.t.Fatalf("%d written of %d", stats.Written, m.sent)
	}
	if (stats.Lag() > 0) == stats.Behind.IsZero() {
		m.t.Fatalf("behind since %v with %d unread", stats.Behind, stats.Lag())
	}
	if stats.Lag() == 0 && m.cfg.Keep == 0 && stats.Memory+stats.File > 0 {
		m.t.Fatalf("all is read and nothing to keep, but it holds %+v", stats)
	}
	m.most = max(m.most, stats.Read)
	roomy := m.cfg.Keep+4*chunkSize <= m.s.memory+m.cfg.File/chunkSize*chunkSize
	if oldest := max(0, m.most-m.cfg.Keep); !m.troubled && roomy && stats.Oldest > oldest {
		m.t.Fatalf("the oldest is %d, want %d: %+v", stats.Oldest, oldest, stats)
	}
}

// drain ends the log and reads what is left of it.
func (m *spoolModel) drain() {
	m.file.set(func(f *memoryFile) { f.full, f.short = false, false })
	stats := m.s.Stats()
	if m.reader == nil {
		var err error
		if m.reader, err = m.s.Reader(stats.Read); err != nil {
			m.t.Fatal(err)
		}
		m.at = stats.Read
	}
	for m.writing.Load() || m.s.Stats().Lag() > 0 {
		if m.reading.Load() {
			m.t.Fatal("a reader waits while bytes are there")
		}
		m.read(100 * kib)
		synctest.Wait()
		m.check()
	}
	m.s.Finish(nil)
	m.read(1)
	m.all.Wait()
	if n, err := m.reader.Read(make([]byte, 1)); n != 0 || err != io.EOF || m.at != m.sent {
		m.t.Errorf("at the end: %d, %v, at %d of %d", n, err, m.at, m.sent)
	}
}

// Whatever happens in whatever order, with others taking the budget's room and the
// disk's: every byte comes once and in its place, the bounds hold, nobody waits for ever,
// and everything is given back.
func TestSpoolInAnyOrder(t *testing.T) {
	// Sampled, because rapid's ranges favour small numbers, with which nothing is full.
	size := rapid.SampledFrom([]int{1, 100, 5000, blockSize - 1, blockSize, chunkSize, 2 * blockSize, 50_000, 90_000})
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) spoolStep {
		return spoolStep{rapid.SampledFrom([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}).Draw(t, "kind"), size.Draw(t, "n")}
	}), 50, 150)
	chunks := func(counts ...int64) *rapid.Generator[int64] {
		return rapid.Map(rapid.SampledFrom(counts), func(n int64) int64 { return n * chunkSize })
	}
	rapid.Check(t, func(rt *rapid.T) {
		todo := steps.Draw(rt, "steps")
		cfg := SpoolConfig{Memory: chunks(2, 3, 5).Draw(rt, "memory"), File: chunks(0, 1, 2, 4, 10).Draw(rt, "file"), Dir: "unused"}
		cfg.Keep = min(rapid.SampledFrom([]int64{0, 0, 1, 1000, chunkSize, 5 * chunkSize}).Draw(rt, "keep"), cfg.Memory+cfg.File)
		limit := chunks(1, 2, 5, 30).Draw(rt, "limit")
		trouble := rapid.Bool().Draw(rt, "trouble")
		synctest.Test(t, func(t *testing.T) {
			cfg.Budget = newBudget(t, Config{Limit: limit})
			m := &spoolModel{t: t, s: newSpool(t, cfg), cfg: cfg, file: &memoryFile{}, troubled: limit < 20*chunkSize}
			if m.s.disk != nil {
				m.s.disk.open = func() (storage, error) { return m.file, nil }
			}
			for _, step := range todo {
				if step.kind < 10 || trouble {
					m.do(step)
				}
			}
			m.drain()
			cfg.Budget.Give(m.taken)
			if err := m.s.Close(); err != nil {
				t.Error(err)
			}
			wantUsed(t, cfg.Budget, 0)
			if m.file.writes > 0 && !m.file.closed {
				t.Error("the file is open")
			}
		})
	})
}
