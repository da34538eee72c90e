// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// mustWrite writes n bytes at the end of what was written.
func mustWrite(t testing.TB, s *Spool, n int) {
	t.Helper()
	p := make([]byte, n)
	pattern(p, s.Stats().Written)
	if got, err := s.Write(p); got != n || err != nil {
		t.Fatalf("wrote %d of %d: %v", got, n, err)
	}
}

func mustReader(t testing.TB, s *Spool, position int64) *SpoolReader {
	t.Helper()
	r, err := s.Reader(position)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// mustRead reads n bytes and looks at each.
func mustRead(t testing.TB, r *SpoolReader, n int) {
	t.Helper()
	p, position := make([]byte, n), r.s.Stats().Read
	if got, err := io.ReadFull(r, p); err != nil {
		t.Fatalf("read %d of %d: %v", got, n, err)
	}
	wantPattern(t, p, position)
}

func TestSpoolConfigThatCannotWork(t *testing.T) {
	for name, cfg := range map[string]SpoolConfig{
		"negative memory":    {Memory: -1},
		"negative file":      {File: -1, Dir: "x"},
		"negative keep":      {Keep: -1},
		"file without dir":   {File: 1 << 20},
		"keeps more than it": {Memory: 32 * kib, Keep: 32*kib + 1},
	} {
		if _, err := NewSpool(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for give, want := range map[int64]int64{0: 64 * kib, 1: 32 * kib, 50 * kib: 50 * kib} {
		if got := (SpoolConfig{Memory: give}).WithDefaults().Memory; got != want {
			t.Errorf("memory of %d becomes %d, want %d", give, got, want)
		}
	}
}

// A reader that keeps up is handed the writer's bytes: no memory, no file, no
// allocation, and the writer does not wait for it.
func TestReaderThatKeepsUpCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 1 << 20})
		s := newSpool(t, SpoolConfig{File: 1 << 20, Budget: b})
		file := withFile(s)
		r := mustReader(t, s, 0)
		var got bytes.Buffer
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := io.Copy(&got, struct{ io.Reader }{r}); err != nil {
				t.Error(err)
			}
		})
		for i := range 1000 {
			synctest.Wait() // the reader waits
			mustWrite(t, s, 1+i%500)
			if held := b.Used(); held != 0 {
				t.Fatalf("holds %d bytes", held)
			}
		}
		s.Finish(nil)
		all.Wait()
		wantPattern(t, got.Bytes(), 0)
		if stats := s.Stats(); int64(got.Len()) != stats.Written || stats.Pauses != 0 || file.writes != 0 {
			t.Errorf("%d bytes read, %d writes to the file, %+v", got.Len(), file.writes, stats)
		}
	})
}

func TestWriterWaitsAtTheBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 1 << 20})
		s := newSpool(t, SpoolConfig{Memory: 64 * kib, File: 128 * kib, Budget: b})
		withFile(s)
		var all sync.WaitGroup
		start := time.Now()
		time.Sleep(time.Second)
		all.Go(func() { mustWrite(t, s, 300*kib) })
		synctest.Wait()
		time.Sleep(time.Hour)
		stats := s.Stats()
		// Four chunks of memory, one of them to read back into, and eight in the file.
		if stats.Written != 11*blockSize || stats.Memory != 64*kib || stats.File != 128*kib || b.Used() != 64*kib {
			t.Errorf("stats %+v, %d bytes used", stats, b.Used())
		}
		if !stats.Paused.Equal(start.Add(time.Second)) || stats.Pauses != 1 || !stats.Behind.Equal(start.Add(time.Second)) || stats.Attached {
			t.Errorf("stats %+v", stats)
		}
		r := mustReader(t, s, 0)
		mustRead(t, r, 2*blockSize)
		synctest.Wait()
		if stats := s.Stats(); stats.Written < 12*blockSize || stats.Paused.IsZero() || !stats.Paused.After(start.Add(time.Second)) {
			t.Errorf("stats %+v", stats)
		}
		mustRead(t, r, 300*kib-2*blockSize)
		all.Wait()
		if stats := s.Stats(); stats.Memory != 0 || stats.File != 0 || !stats.Paused.IsZero() || !stats.Behind.IsZero() || stats.Lag() != 0 {
			t.Errorf("stats %+v", stats)
		}
		wantUsed(t, b, 0)
	})
}

// Behind is the age of what waits to be read, not of the stream.
func TestLagIsTheAgeOfTheOldestByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, SpoolConfig{Memory: 128 * kib, Keep: 64 * kib})
		r := mustReader(t, s, 0)
		mustWrite(t, s, 100)
		mustRead(t, r, 100)
		time.Sleep(time.Minute)
		mustWrite(t, s, 100) // into the block of a minute ago, which is kept
		late := time.Now()
		time.Sleep(time.Second)
		mustWrite(t, s, 100)
		if got := s.Stats(); !got.Behind.Equal(late) || got.Lag() != 200 {
			t.Errorf("behind since %v, want %v: %+v", got.Behind, late, got)
		}
		mustWrite(t, s, 2*blockSize)
		later := time.Now()
		mustRead(t, r, blockSize)
		if got := s.Stats(); !got.Behind.Equal(later) {
			t.Errorf("behind since %v, want %v", got.Behind, later)
		}
	})
}

func TestEndOfASpool(t *testing.T) {
	cut := errors.New("cut")
	for _, end := range []error{nil, cut} {
		s := newSpool(t, SpoolConfig{})
		mustWrite(t, s, 1000)
		s.Finish(end)
		s.Finish(errors.New("the second does not count"))
		if n, err := s.Write([]byte("x")); n != 0 || err != ErrSpoolClosed {
			t.Errorf("write after the end: %d, %v", n, err)
		}
		want := end
		if end == nil {
			want = io.EOF
		}
		for range 2 { // for somebody who comes later, too
			r := mustReader(t, s, s.Stats().Read)
			if n := s.Stats().Lag(); n > 0 {
				mustRead(t, r, int(n))
			}
			if n, err := r.Read(make([]byte, 10)); n != 0 || err != want {
				t.Errorf("at the end: %d, %v, want %v", n, err, want)
			}
		}
	}
}

func TestReadersComeBack(t *testing.T) {
	const keep = 40 * kib
	s := newSpool(t, SpoolConfig{Memory: 256 * kib, Keep: keep})
	r := mustReader(t, s, 0)
	for range 30 {
		mustWrite(t, s, 10_000)
		mustRead(t, r, 10_000)
	}
	oldest := s.Stats().Oldest
	if oldest > 300_000-keep || oldest < 300_000-keep-blockSize {
		t.Errorf("the oldest is %d", oldest)
	}
	for position, want := range map[int64]error{
		-1: ErrPositionGone, 0: ErrPositionGone, oldest - 1: ErrPositionGone, oldest: nil, 300_000 - keep: nil,
		300_000: nil, 300_001: ErrPositionAhead,
	} {
		if _, err := s.Reader(position); !errors.Is(err, want) {
			t.Errorf("at %d: %v, want %v", position, err, want)
		}
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != ErrTakenOver {
		t.Errorf("the one before: %d, %v", n, err)
	}
	again := mustReader(t, s, oldest)
	mustWrite(t, s, 10_000)
	mustRead(t, again, 310_000-int(oldest))
	if n, err := again.Read(nil); n != 0 || err != nil {
		t.Errorf("an empty read: %d, %v", n, err)
	}
}

// Whoever waits is told at once, whatever ended.
func TestWaitersAreWoken(t *testing.T) {
	gone := errors.New("gone")
	tests := []struct {
		name string
		do   func(t *testing.T, s *Spool, r *SpoolReader, cancel func())
		read error // nil = none waits
		wrote,
		next error // of another Write; nil = not tried
	}{
		{"reader is taken over", func(t *testing.T, s *Spool, _ *SpoolReader, _ func()) { mustReader(t, s, 0) }, ErrTakenOver, nil, nil},
		{"reader is closed", func(_ *testing.T, _ *Spool, r *SpoolReader, _ func()) { _ = r.Close() }, ErrReaderClosed, nil, nil},
		{"finished while it reads", func(_ *testing.T, s *Spool, _ *SpoolReader, _ func()) { s.Finish(gone) }, gone, nil, ErrSpoolClosed},
		{"closed while it reads", func(_ *testing.T, s *Spool, _ *SpoolReader, _ func()) { _ = s.Close() }, ErrSpoolClosed, nil, ErrSpoolClosed},
		{"finished while it writes", func(_ *testing.T, s *Spool, _ *SpoolReader, _ func()) { s.Finish(nil) }, nil, ErrSpoolClosed, ErrSpoolClosed},
		{"closed while it writes", func(_ *testing.T, s *Spool, _ *SpoolReader, _ func()) { _ = s.Close() }, nil, ErrSpoolClosed, ErrSpoolClosed},
		{"given up while it writes", func(_ *testing.T, _ *Spool, _ *SpoolReader, cancel func()) { cancel() }, nil, gone, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBudget(t, Config{Limit: 1 << 20})
				s := newSpool(t, SpoolConfig{Memory: 32 * kib, Budget: b})
				r := mustReader(t, s, 0)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var all sync.WaitGroup
				start := time.Now()
				all.Go(func() {
					if tt.read != nil {
						if n, err := r.Read(make([]byte, 10)); n != 0 || !errors.Is(err, tt.read) {
							t.Errorf("read %d, %v, want %v", n, err, tt.read)
						}
						return
					}
					if n, err := s.WriteContext(ctx, make([]byte, 100*kib)); n != 2*blockSize || !errors.Is(err, tt.wrote) {
						t.Errorf("wrote %d, %v, want %v", n, err, tt.wrote)
					}
				})
				synctest.Wait()
				tt.do(t, s, r, func() { cancel(gone) })
				all.Wait()
				if waited := time.Since(start); waited != 0 {
					t.Errorf("told after %v", waited)
				}
				if tt.next != nil {
					if n, err := s.Write([]byte("x")); n != 0 || err != tt.next {
						t.Errorf("the next: wrote %d, %v, want %v", n, err, tt.next)
					}
				}
				if err := errors.Join(s.Close(), s.Close()); err != nil {
					t.Error(err)
				}
				if _, err := s.Reader(0); err != ErrSpoolClosed {
					t.Errorf("reader of a closed spool: %v", err)
				}
				wantUsed(t, b, 0)
				s.Stats()
			})
		})
	}
}

// A budget without any room makes the Spool a pipe: the reader takes what the writer
// holds, also where bytes should be kept. When others give room back it is used.
func TestSpoolWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, keep := range []int64{0, 20 * kib} {
			b := newBudget(t, Config{Limit: 64 * kib})
			s := newSpool(t, SpoolConfig{Memory: 64 * kib, Keep: keep, Budget: b})
			r := mustReader(t, s, 0)
			b.Take(64 * kib)
			var all sync.WaitGroup
			all.Go(func() { mustWrite(t, s, 100*kib) })
			mustRead(t, r, 100*kib)
			all.Wait()
			if stats := s.Stats(); stats.Memory != 0 || stats.Written != 100*kib {
				t.Errorf("stats %+v", stats)
			}
			all.Go(func() { mustWrite(t, s, 10*kib) }) // nobody reads
			time.Sleep(1500 * time.Millisecond)
			if s.Stats().Paused.IsZero() {
				t.Error("wrote without room")
			}
			b.Give(64 * kib)
			all.Wait()
			mustRead(t, r, 10*kib)
			_ = s.Close()
		}
	})
}

// What is kept goes to the file before what is unread does, and comes back from it.
func TestKeptBytesInTheFile(t *testing.T) {
	s := newSpool(t, SpoolConfig{Memory: 64 * kib, File: 512 * kib, Keep: 200 * kib})
	withFile(s)
	r := mustReader(t, s, 0)
	for range 50 {
		mustWrite(t, s, 10*kib)
		mustRead(t, r, 10*kib)
	}
	mustRead(t, mustReader(t, s, 300*kib), 200*kib)
	mustWrite(t, s, 10*kib)
	mustRead(t, mustReader(t, s, 310*kib), 200*kib)
}

// For an absent reader the writer waits; what is kept for it stays.
func TestKeptBytesOutlastAnAbsentReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, SpoolConfig{Memory: 32 * kib, Keep: 32 * kib})
		r := mustReader(t, s, 0)
		mustWrite(t, s, 2*blockSize)
		mustRead(t, r, 2*blockSize)
		_ = r.Close()
		var all sync.WaitGroup
		all.Go(func() { mustWrite(t, s, 10*kib) })
		time.Sleep(time.Minute)
		if stats := s.Stats(); stats.Oldest != 0 || stats.Paused.IsZero() {
			t.Errorf("stats %+v", stats)
		}
		mustRead(t, mustReader(t, s, 0), 2*blockSize+10*kib)
		all.Wait()
	})
}

// One chunk is too little to use a file with: each block would go there and back.
func TestOneChunkUsesNoFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 32 * kib})
		s := newSpool(t, SpoolConfig{Memory: 64 * kib, File: 1 << 20, Budget: b})
		file := withFile(s)
		b.Take(16 * kib)
		var all sync.WaitGroup
		all.Go(func() { mustWrite(t, s, 500*kib) })
		synctest.Wait()
		if stats := s.Stats(); file.writes > 0 || stats.Written != blockSize {
			t.Errorf("%d writes to the file, %+v", file.writes, stats)
		}
		mustRead(t, mustReader(t, s, 0), 500*kib)
		all.Wait()
	})
}

// Bytes that a reader was handed are its own, whatever comes right after.
func TestHandedOverBytesArrive(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Spool){
		"taken over": func(t *testing.T, s *Spool) { mustReader(t, s, 100) },
		"closed":     func(_ *testing.T, s *Spool) { _ = s.Close() },
		"finished":   func(_ *testing.T, s *Spool) { s.Finish(errors.New("cut")) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpool(t, SpoolConfig{})
			r := mustReader(t, s, 0)
			var all sync.WaitGroup
			all.Go(func() {
				p := make([]byte, 200)
				n, err := r.Read(p)
				if n != 100 || err != nil {
					t.Errorf("%s: read %d, %v", name, n, err)
				}
				wantPattern(t, p[:n], 0)
			})
			synctest.Wait()
			mustWrite(t, s, 100)
			end(t, s)
			all.Wait()
		})
	}
}

// Under pressure a Spool takes no more than two chunks and uses its file.
func TestSpoolUnderPressure(t *testing.T) {
	b := newBudget(t, Config{Limit: 1000 * kib})
	s := newSpool(t, SpoolConfig{Memory: 500 * kib, File: 1 << 20, Budget: b})
	withFile(s)
	b.Take(900 * kib)
	mustWrite(t, s, 300*kib)
	if stats := s.Stats(); stats.Memory != 32*kib || stats.File < 280*kib {
		t.Errorf("stats %+v", stats)
	}
	b.Give(900 * kib)
	mustWrite(t, s, 100*kib)
	if stats := s.Stats(); stats.Memory < 128*kib {
		t.Errorf("stats %+v", stats)
	}
	mustRead(t, mustReader(t, s, 0), 400*kib)
	wantUsed(t, b, 0)
}

// A writer, readers that take over from one another, others who use the budget and a
// disk that fails now and then, all at once.
func TestSpoolUnderLoad(t *testing.T) {
	const total = 8 << 20
	for _, keep := range []int64{0, 100 * kib} {
		b := newBudget(t, Config{Limit: 200 * kib})
		s := newSpool(t, SpoolConfig{Memory: 100 * kib, File: 300 * kib, Keep: keep, Budget: b})
		file := withFile(s)
		stop := make(chan struct{})
		var others, work sync.WaitGroup
		others.Go(func() {
			r := rand.New(rand.NewPCG(1, 2))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n := r.Int64N(150 * kib); b.Take(n) {
					s.Stats()
					b.Give(n)
				}
				file.set(func(f *memoryFile) { f.short = r.IntN(50) == 0 })
			}
		})
		work.Go(func() {
			r := rand.New(rand.NewPCG(3, 4))
			for sent := 0; sent < total; {
				n := min(total-sent, 1+r.IntN(60*kib))
				mustWrite(t, s, n)
				sent += n
			}
			s.Finish(nil)
		})
		work.Go(func() {
			r := rand.New(rand.NewPCG(5, 6))
			p := make([]byte, 64*kib)
			reader, at := mustReader(t, s, 0), int64(0)
			for {
				if r.IntN(10) == 0 {
					back := at
					if keep > 0 {
						back -= r.Int64N(keep)
					}
					if next, err := s.Reader(max(back, 0)); err == nil {
						reader, at = next, max(back, 0)
					} else if !errors.Is(err, ErrPositionGone) {
						t.Error(err)
						return
					}
				}
				n, err := reader.Read(p[:1+r.IntN(len(p)-1)])
				if err != nil {
					if err != io.EOF || at != total {
						t.Errorf("after %d bytes: %v", at, err)
					}
					return
				}
				wantPattern(t, p[:n], at)
				at += int64(n)
			}
		})
		work.Wait()
		close(stop)
		others.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wantUsed(t, b, 0)
	}
}

// pipeThrough sends b.N pieces from one goroutine to another.
func pipeThrough(b *testing.B, size int, w io.WriteCloser, r io.Reader) {
	b.SetBytes(int64(size))
	b.ReportAllocs()
	var all sync.WaitGroup
	all.Go(func() {
		p := make([]byte, 32*kib)
		for {
			if _, err := r.Read(p); err != nil {
				return
			}
		}
	})
	p := make([]byte, size)
	for b.Loop() {
		if _, err := w.Write(p); err != nil {
			b.Fatal(err)
		}
	}
	_ = w.Close()
	all.Wait()
}

type finisher struct{ *Spool }

func (f finisher) Close() error {
	f.Finish(nil)
	return nil
}

// A reader that keeps up, beside the standard library's pipe.
func BenchmarkSpool(b *testing.B) {
	for _, size := range []int{100, 4 * kib, 32 * kib} {
		b.Run(fmt.Sprintf("pipe/%d", size), func(b *testing.B) {
			r, w := io.Pipe()
			pipeThrough(b, size, w, r)
		})
		for _, keep := range []int64{0, 64 * kib} {
			b.Run(fmt.Sprintf("spool/%d/keep=%d", size, keep), func(b *testing.B) {
				s := newSpool(b, SpoolConfig{Memory: 256 * kib, Keep: keep, Budget: newBudget(b, Config{Limit: 1 << 30})})
				r := mustReader(b, s, 0)
				pipeThrough(b, size, finisher{s}, r)
			})
		}
	}
}

// A reader that is far behind: all goes through the file.
func BenchmarkSpoolFile(b *testing.B) {
	s := newSpool(b, SpoolConfig{Memory: 64 * kib, File: 16 << 20, Dir: b.TempDir()})
	r := mustReader(b, s, 0)
	p := make([]byte, 32*kib)
	for range 128 {
		_, _ = s.Write(p)
	}
	b.SetBytes(32 * kib)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.Write(p)
		_, _ = io.ReadFull(r, p)
	}
}
