// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestFileIsForNobodyElse(t *testing.T) {
	dir := t.TempDir()
	f, err := createUnlinked(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		if _, ok := f.(*linkedFile); !ok {
			t.Errorf("the folder holds %v", left)
		}
	}
	info, err := f.(interface{ Stat() (os.FileInfo, error) }).Stat()
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}

	// Where an open file cannot be unlinked it goes when it is closed.
	linked, err := os.CreateTemp(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := (&linkedFile{linked}).Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestFileIsEmptiedOnlyWhileUnused(t *testing.T) {
	f, err := newSpoolFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var c chunk
	if err := f.write(0, 0, &c); err != nil {
		t.Fatal(err)
	}
	f.empty(func() bool { return false })
	if err := f.read(0, 0, &c); err != nil {
		t.Error(err)
	}
	f.empty(func() bool { return true })
	if err := f.read(0, 0, &c); err == nil {
		t.Error("an empty file holds a block")
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
	if err := f.write(0, 0, &c); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
}

// A real file, written, read, emptied.
func TestSpoolOnDisk(t *testing.T) {
	dir := t.TempDir()
	s := newSpool(t, SpoolConfig{Memory: 32 * kib, File: 1 << 20, Dir: dir})
	if mustWrite(t, s, 32*kib-2*tagSize); s.disk.f != nil {
		t.Error("there is a file before it is needed")
	}
	mustWrite(t, s, 900*kib)
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("the folder holds %v", left)
	}
	f := s.disk.f.(*os.File)
	r := mustReader(t, s, 0)
	mustRead(t, r, 932*kib-2*tagSize)
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("all is read, and the file holds %d bytes, %v", info.Size(), err)
	}
	mustWrite(t, s, 500*kib)
	mustRead(t, r, 500*kib)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is open after Close: %v", err)
	}
}

func TestDiskHoldsNothingReadable(t *testing.T) {
	s := newSpool(t, SpoolConfig{Memory: 32 * kib, File: 1 << 20})
	file := withFile(s)
	secret := []byte("what the model answered ")
	if _, err := s.Write(bytes.Repeat(secret, 500*kib/len(secret))); err != nil {
		t.Fatal(err)
	}
	if len(file.data) < 400*kib || bytes.Contains(file.data, secret[:8]) {
		t.Errorf("%d bytes in the file, among them the answer", len(file.data))
	}
	for i := range len(file.data)/chunkSize - 1 {
		if bytes.Equal(file.data[i*chunkSize:][:64], file.data[(i+1)*chunkSize:][:64]) {
			t.Error("the same bytes at two positions look the same")
		}
	}
}

// However long the stream, the file is as large as what is unread.
func TestFileIsUsedAgain(t *testing.T) {
	s := newSpool(t, SpoolConfig{Memory: 32 * kib, File: 1 << 20, Keep: 100 * kib})
	file := withFile(s)
	r := mustReader(t, s, 0)
	mustWrite(t, s, 500*kib)
	for range 50 {
		mustWrite(t, s, 100*kib)
		mustRead(t, r, 100*kib)
	}
	if file.most > 750*kib {
		t.Errorf("the file had %d bytes, for 600 KiB unread and 100 kept", file.most)
	}
}

// What comes back from the disk is what went there, or an error, never other bytes.
func TestDiskThatChangesBytes(t *testing.T) {
	for name, fault := range map[string]func(f *memoryFile){
		"one bit":        func(f *memoryFile) { f.data[chunkSize+100] ^= 1 },
		"another block":  func(f *memoryFile) { copy(f.data[chunkSize:2*chunkSize], f.data) },
		"shorter":        func(f *memoryFile) { f.data = f.data[:chunkSize+100] },
		"without blocks": func(f *memoryFile) { f.data = nil },
	} {
		s := newSpool(t, SpoolConfig{Memory: 32 * kib, File: 1 << 20})
		file := withFile(s)
		mustWrite(t, s, 320*kib) // one block after the other, the first of them in slot 1
		good := bytes.Clone(file.data)
		file.set(fault)
		r := mustReader(t, s, 0)
		p := make([]byte, 1000*kib)
		n := 0
		for {
			got, err := r.Read(p[n:])
			if n += got; err != nil {
				break
			}
			if n == 320*kib {
				t.Fatalf("%s: no error", name)
			}
		}
		wantPattern(t, p[:n], 0)
		if s.Stats().Read != int64(n) {
			t.Errorf("%s: read %d, %+v", name, n, s.Stats())
		}
		file.set(func(f *memoryFile) { f.data = good })
		mustRead(t, r, 320*kib-n) // a read that failed may be tried again
	}
}

// A disk that fails loses nothing: the writer waits, and goes on when there is room.
func TestFullDiskPausesTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 1 << 20})
		var faults atomic.Int32
		s := newSpool(t, SpoolConfig{Memory: 64 * kib, File: 1 << 20, Budget: b, OnFault: func(err error) {
			if faults.Add(1); !errors.Is(err, errDisk) {
				t.Errorf("told of %v", err)
			}
		}})
		file := withFile(s)
		mustWrite(t, s, 200*kib)
		file.set(func(f *memoryFile) { f.full = true })
		start := time.Now()
		var all sync.WaitGroup
		all.Go(func() { mustWrite(t, s, 300*kib) })
		time.Sleep(10*time.Second - 1)
		stats, tried := s.Stats(), file.writes
		if !errors.Is(stats.FileErr, errDisk) || !stats.Paused.Equal(start) || stats.Written >= 500*kib {
			t.Errorf("stats %+v", stats)
		}
		if n := faults.Load(); n != 10 { // one a second
			t.Errorf("told %d times", n)
		}
		r := mustReader(t, s, 0)
		mustRead(t, r, 230*kib) // half of it while the disk is full
		synctest.Wait()
		if file.writes != tried {
			t.Error("each byte read costs another try")
		}
		file.set(func(f *memoryFile) { f.full = false })
		all.Wait()
		if waited := time.Since(start); waited != 10*time.Second { // the next try, a second after the one before
			t.Errorf("went on after %v", waited)
		}
		if stats := s.Stats(); stats.FileErr != nil || !stats.Paused.IsZero() {
			t.Errorf("stats %+v", stats)
		}
		mustRead(t, r, 270*kib)
		wantUsed(t, b, 0)
	})
}

// A write fails after all that the file held was read: the chunk to read back into has
// nobody any more.
func TestFailedWriteIntoAnEmptiedFile(t *testing.T) {
	b := newBudget(t, Config{Limit: 1 << 20})
	s := newSpool(t, SpoolConfig{Memory: 100 * kib, File: 1 << 20, Budget: b})
	f := withFile(s)
	r := mustReader(t, s, 0)
	for s.Stats().File == 0 {
		mustWrite(t, s, blockSize)
	}
	written := int(s.Stats().Written) - blockSize // the last one is the next to go to the file
	f.before = func() {
		f.before = nil
		mustRead(t, r, written)
		if stats := s.Stats(); stats.File > chunkSize { // the one that is being written
			t.Errorf("stats %+v", stats)
		}
		f.set(func(f *memoryFile) { f.full = true })
	}
	mustWrite(t, s, blockSize)
	if f.before != nil {
		t.Fatal("nothing was written to the file")
	}
	mustRead(t, r, 2*blockSize)
	wantUsed(t, b, 0)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantUsed(t, b, 0)
}

// With a full disk and nobody to take it from the writer, the memory serves.
func TestFullDiskLeavesTheMemory(t *testing.T) {
	s := newSpool(t, SpoolConfig{Memory: 64 * kib, File: 1 << 20})
	s.disk.open = func() (storage, error) { return nil, errDisk }
	var all sync.WaitGroup
	all.Go(func() { mustWrite(t, s, 1<<20) })
	mustRead(t, mustReader(t, s, 0), 1<<20)
	all.Wait()
	if stats := s.Stats(); stats.File != 0 {
		t.Errorf("stats %+v", stats)
	}
}

// slowDisk holds back writes, and reads if asked to.
type slowDisk struct {
	memoryFile
	reads   bool
	started chan struct{}
	finish  chan struct{}
}

func (d *slowDisk) WriteAt(p []byte, off int64) (int, error) {
	if !d.reads {
		d.started <- struct{}{}
		<-d.finish
	}
	return d.memoryFile.WriteAt(p, off)
}

func (d *slowDisk) ReadAt(p []byte, off int64) (int, error) {
	if d.reads {
		d.started <- struct{}{}
		<-d.finish
	}
	return d.memoryFile.ReadAt(p, off)
}

// A disk that hangs holds up nobody but the one who waits for it.
func TestDiskThatHangs(t *testing.T) {
	for _, end := range []string{"read meanwhile", "read meanwhile and it fails", "skipped meanwhile", "closed meanwhile", "finished meanwhile"} {
		t.Run("write, "+end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBudget(t, Config{Limit: 1 << 20})
				s := newSpool(t, SpoolConfig{Memory: 48 * kib, File: 1 << 20, Budget: b})
				disk := &slowDisk{started: make(chan struct{}), finish: make(chan struct{})}
				s.disk.open = func() (storage, error) { return disk, nil }
				r := mustReader(t, s, 0)
				var all sync.WaitGroup
				p := make([]byte, 3*blockSize+100)
				pattern(p, 0)
				start := time.Now()
				all.Go(func() {
					n, err := s.Write(p)
					if want := map[bool]error{true: ErrSpoolClosed}[end == "closed meanwhile" || end == "finished meanwhile"]; err != want {
						t.Errorf("wrote %d: %v, want %v", n, err, want)
					}
				})
				<-disk.started
				if s.Stats().Written != 3*blockSize {
					t.Errorf("stats %+v", s.Stats())
				}
				switch end {
				case "read meanwhile", "read meanwhile and it fails": // what is in memory, then the block that is being written
					mustRead(t, r, 2*blockSize)
					all.Go(func() { mustRead(t, r, blockSize+100) })
				case "skipped meanwhile":
					skips := mustReader(t, s, 3*blockSize)
					all.Go(func() { mustRead(t, skips, 100) })
				case "closed meanwhile":
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				case "finished meanwhile":
					s.Finish(nil)
				}
				synctest.Wait()
				disk.set(func(f *memoryFile) { f.full = end == "read meanwhile and it fails" })
				close(disk.finish)
				go func() {
					for range disk.started { // more blocks
					}
				}()
				all.Wait()
				close(disk.started)
				_ = s.Close()
				if waited := time.Since(start); waited != 0 {
					t.Errorf("told after %v", waited)
				}
				wantUsed(t, b, 0)
			})
		})
	}
	for _, end := range []string{"taken over", "dropped", "closed"} {
		t.Run("read, "+end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBudget(t, Config{Limit: 1 << 20})
				s := newSpool(t, SpoolConfig{Memory: 32 * kib, File: 1 << 20, Budget: b})
				disk := &slowDisk{started: make(chan struct{}), finish: make(chan struct{}), reads: true}
				s.disk.open = func() (storage, error) { return disk, nil }
				mustWrite(t, s, 10*blockSize)
				r := mustReader(t, s, 0)
				var all sync.WaitGroup
				all.Go(func() {
					if n, err := r.Read(make([]byte, 10)); n != 0 || err != map[bool]error{true: ErrSpoolClosed, false: ErrTakenOver}[end == "closed"] {
						t.Errorf("read %d: %v", n, err)
					}
				})
				<-disk.started
				switch end {
				case "taken over":
					next := mustReader(t, s, 5*blockSize-10) // drops what is being read, and needs the window
					all.Go(func() { mustRead(t, next, 5*blockSize+10) })
				case "dropped":
					mustReader(t, s, 10*blockSize)
				case "closed":
					_ = s.Close()
				}
				synctest.Wait()
				close(disk.finish)
				go func() {
					for range disk.started {
					}
				}()
				all.Wait()
				close(disk.started)
				wantUsed(t, b, 0)
			})
		})
	}
}
