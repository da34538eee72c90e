// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// A disk of 128 KiB, really.
func TestSpoolOnAFullDisk(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		testenv.SkipOrFail(t, "needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	b := newBudget(t, Config{Limit: 1 << 20})
	s := newSpool(t, SpoolConfig{Memory: 64 * kib, File: 1 << 20, Dir: dir, Budget: b})
	var all sync.WaitGroup
	all.Go(func() { mustWrite(t, s, 2<<20) })
	for s.Stats().FileErr == nil {
		runtime.Gosched()
	}
	if stats := s.Stats(); !errors.Is(stats.FileErr, syscall.ENOSPC) || stats.File > 128*kib {
		t.Errorf("stats %+v", stats)
	}
	mustRead(t, mustReader(t, s, 0), 2<<20)
	all.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantUsed(t, b, 0)
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil || disk.Bfree != disk.Blocks {
		t.Errorf("%d of %d blocks of the disk are free, %v", disk.Bfree, disk.Blocks, err)
	}
}

// resident is the memory of this process that is in RAM.
func resident(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory() // twice: a sync.Pool lets go at the second collection
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(string(bytes.Fields(text)[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// raced says whether the race detector is in: it doubles some memory and keeps it.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// What the budget counts is what the process has: many filled spools and stream
// buffers, half of them in files, and nothing after the last is closed.
func TestUsedIsWhatTheProcessHas(t *testing.T) {
	if raced() {
		t.Skip("with the race detector the process is not the one to measure; make test runs it without")
	}
	const streams = 200
	b := newBudget(t, Config{Limit: 256 << 20})
	before := resident(t)
	var (
		spools   [streams]*Spool
		accounts [streams]Account
		buffers  [streams][]byte
	)
	for i := range streams {
		spools[i] = newSpool(t, SpoolConfig{Memory: 256 * kib, File: int64(i%2) << 20, Dir: t.TempDir(), Budget: b})
		mustWrite(t, spools[i], 250*kib+i%2*(256*kib))
		accounts[i] = b.Open(0)
		buffers[i] = bytes.Repeat([]byte{1}, int(accounts[i].Resize(128*kib)))
	}
	used, grew := b.Used(), resident(t)-before
	runtime.KeepAlive(&buffers)
	if used < streams*380*kib || grew < used*9/10 || grew > used*11/10+4<<20 {
		t.Errorf("%d KiB used, the process grew by %d KiB", used/kib, grew/kib)
	}
	for i := range streams {
		accounts[i].Close()
		buffers[i] = nil
		if err := spools[i].Close(); err != nil {
			t.Error(err)
		}
	}
	wantUsed(t, b, 0)
	if left := resident(t) - before; left > 8<<20 {
		t.Errorf("%d KiB stay after all was closed", left/kib)
	}
}
