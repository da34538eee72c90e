// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
)

const kib = 1 << 10

func newBudget(t testing.TB, cfg Config) *Budget {
	t.Helper()
	cfg.Strict = true
	b, err := NewBudget(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantUsed(t testing.TB, b *Budget, want int64) {
	t.Helper()
	if got := b.Used(); got != want {
		t.Errorf("%d bytes used, want %d", got, want)
	}
}

func TestConfigThatCannotWork(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no limit":               {},
		"limit below the floor":  {Limit: 16*kib - 1},
		"negative floor":         {Limit: 1 << 20, Floor: -1},
		"start below the floor":  {Limit: 1 << 20, Floor: 2, Start: 1},
		"negative queue timeout": {Limit: 1 << 20, QueueTimeout: -1},
	} {
		if _, err := NewBudget(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewBudget(Config{Limit: 128 * kib, Floor: 128 * kib}); err != nil {
		t.Errorf("a floor above the default start: %v", err)
	}
}

func TestTakeIsAllOrNothing(t *testing.T) {
	b := newBudget(t, Config{Limit: 100 * kib})
	if !b.Take(60*kib) || b.Take(40*kib+1) || !b.Take(40*kib) || b.Take(1) || !b.Take(0) {
		t.Error("took what does not fit, or not what fits")
	}
	wantUsed(t, b, 100*kib)
	b.Give(100 * kib)
	wantUsed(t, b, 0)
	b.SetLimit(50 * kib)
	if b.Take(50*kib+1) || !b.Take(50*kib) {
		t.Error("the new limit does not count")
	}
	if b.Take(math.MaxInt64) {
		t.Error("took more bytes than there are")
	}
}

func TestNilBudgetHasNoBound(t *testing.T) {
	var b *Budget
	if !b.Take(1<<60) || b.Admit(t.Context(), Batch, 1<<60) != nil || b.StreamCap() != math.MaxInt64 || b.Limit() != math.MaxInt64 || b.Used() != 0 {
		t.Error("a nil budget refuses or counts")
	}
	b.Give(1)
	b.SetLimit(1)
	if s := b.Stats(); s.Limit != math.MaxInt64 || s.Pressure != Slack {
		t.Errorf("stats %+v", s)
	}
	a := b.Open(10)
	if a.Cap() != math.MaxInt64 || a.Resize(1<<40) != 1<<40 || a.Resize(3) != 10 {
		t.Error("an account of a nil budget is bounded")
	}
	a.Close()
	if a.Held() != 0 {
		t.Error("closed and holds bytes")
	}
}

// What must never happen is a panic in tests and a number in production, and one
// mistake does not make the count wrong for ever.
func TestGivingTooMuchIsNoticed(t *testing.T) {
	b := newBudget(t, Config{Limit: 100 * kib})
	b.Take(10)
	func() {
		defer func() {
			if text, _ := recover().(string); !strings.Contains(text, "11 bytes given, 1 more than were taken") {
				t.Errorf("panic %q", text)
			}
		}()
		b.Give(11)
	}()
	lenient, err := NewBudget(Config{Limit: 100 * kib})
	if err != nil {
		t.Fatal(err)
	}
	lenient.Take(10)
	lenient.Give(11)
	wantUsed(t, lenient, 0)
	if s := lenient.Stats(); s.Overdrawn != 1 {
		t.Errorf("%d mistakes counted, want 1", s.Overdrawn)
	}
}

// The level follows the bytes used, and is left below where it was entered.
func TestStreamsShrinkUnderPressure(t *testing.T) {
	const limit = 1000 * kib
	b := newBudget(t, Config{Limit: limit})
	for _, step := range []struct {
		percent int64
		want    Pressure
		cap     int64
	}{
		{0, Slack, math.MaxInt64}, {74, Slack, math.MaxInt64}, {75, Tight, 64 * kib}, {71, Tight, 64 * kib}, {69, Slack, math.MaxInt64},
		{74, Slack, math.MaxInt64}, {89, Tight, 64 * kib}, {90, Full, 16 * kib}, {86, Full, 16 * kib}, {84, Tight, 64 * kib}, {89, Tight, 64 * kib},
		{100, Full, 16 * kib}, {0, Slack, math.MaxInt64},
	} {
		b.Give(b.Used())
		b.Take(limit / 100 * step.percent)
		if got := b.StreamCap(); got != step.cap || b.Pressure() != step.want {
			t.Fatalf("%d %% used: %v, a stream may hold %d, want %v and %d", step.percent, b.Pressure(), got, step.want, step.cap)
		}
	}
}

func TestAccountGrowsAsFarAsThereIsRoom(t *testing.T) {
	const limit = 1000 * kib
	tests := []struct {
		name             string
		others           int64 // percent of the limit
		opened, ask, got int64
	}{
		{"alone", 0, 16 * kib, 300 * kib, 300 * kib},
		{"up to the low watermark", 60, 16 * kib, 300 * kib, 150 * kib},
		{"up to the start while tight", 78, 16 * kib, 300 * kib, 64 * kib},
		{"up to the high watermark", 85, 16 * kib, 300 * kib, 50 * kib},
		{"the floor while full", 90, 16 * kib, 300 * kib, 16 * kib},
		{"its own floor while full", 90, 20 * kib, 300 * kib, 20 * kib},
		{"up to the floor from nothing", 95, 0, 300 * kib, 16 * kib},
		{"nothing left", 100, 0, 300 * kib, 0},
		{"less than the floor it was opened with", 0, 16 * kib, 1, 16 * kib},
		{"less than nothing", 0, 16 * kib, -5, 16 * kib},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBudget(t, Config{Limit: limit})
			b.Take(tt.others * limit / 100)
			b.Take(tt.opened)
			a := b.Open(tt.opened)
			if got := a.Resize(tt.ask); got != tt.got || a.Held() != got {
				t.Errorf("holds %d (Held: %d), want %d", got, a.Held(), tt.got)
			}
			wantUsed(t, b, tt.others*limit/100+tt.got)
			if got := a.Resize(tt.opened); got != max(tt.opened, 0) {
				t.Errorf("shrunk to %d, want %d", got, tt.opened)
			}
			a.Close()
			a.Close()
			if got := a.Resize(100); got != 0 {
				t.Errorf("a closed account holds %d", got)
			}
			wantUsed(t, b, tt.others*limit/100)
		})
	}
}

// Whoever runs can use what it was opened with for ever, at the limit as well.
func TestStreamsMoveOnAtTheLimit(t *testing.T) {
	b := newBudget(t, Config{Limit: 160 * kib})
	var streams []Account
	for b.Admit(t.Context(), Default, 16*kib) == nil {
		streams = append(streams, b.Open(16*kib))
		if len(streams) == 10 {
			break
		}
	}
	wantUsed(t, b, 160*kib)
	for range 3 {
		for i := range streams {
			if got := streams[i].Resize(0); got != 16*kib {
				t.Fatalf("stream %d lost its floor: %d", i, got)
			}
			if got := streams[i].Resize(1 << 20); got != 16*kib {
				t.Fatalf("stream %d holds %d, want 16 KiB", i, got)
			}
		}
	}
	for i := range streams {
		streams[i].Close()
	}
	wantUsed(t, b, 0)
}

func TestTwoNeverTakeTheSameRoom(t *testing.T) {
	b := newBudget(t, Config{Limit: 16 * kib})
	var all sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for taken := 0; taken < 200_000; {
				if !b.Take(9 * kib) {
					continue
				}
				if taken++; b.Used() > 9*kib {
					t.Error("9 KiB were taken twice from 16")
				}
				b.Give(9 * kib)
			}
		})
	}
	all.Wait()
	wantUsed(t, b, 0)
}

// All that happens at once: the limit is never passed, and nothing is left.
func TestBudgetUnderLoad(t *testing.T) {
	const limit = 200 * kib // less than its eight streams ask for
	b := newBudget(t, Config{Limit: limit})
	done := make(chan struct{})
	var watch, work sync.WaitGroup
	watch.Go(func() {
		for {
			if used := b.Used(); used < 0 || used > limit {
				t.Errorf("%d bytes used of %d", used, limit)
			}
			b.Stats()
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for w := range 8 {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			for range 500 {
				n := 16*kib + r.Int64N(64*kib)
				if err := b.Admit(t.Context(), Class(r.IntN(Classes)), n); err != nil {
					t.Error(err)
					return
				}
				a := b.Open(n)
				for range 10 {
					if a.Resize(r.Int64N(256*kib)) < n {
						t.Error("below what it was opened with")
					}
					if m := r.Int64N(8 * kib); b.Take(m) {
						b.Give(m)
					}
				}
				a.Close()
			}
		})
	}
	work.Wait()
	close(done)
	watch.Wait()
	wantUsed(t, b, 0)
	if s := b.Stats(); s.Waiting != [Classes]int{} || s.Refused != [Classes]uint64{} {
		t.Errorf("left behind: %+v", s)
	}
}

func BenchmarkTakeGive(bm *testing.B) {
	b := newBudget(bm, Config{Limit: 1 << 30})
	bm.ReportAllocs()
	for bm.Loop() {
		b.Take(1000)
		b.Give(1000)
	}
}

func BenchmarkAdmitGive(bm *testing.B) {
	b := newBudget(bm, Config{Limit: 1 << 30})
	bm.ReportAllocs()
	for bm.Loop() {
		if err := b.Admit(bm.Context(), Default, 1000); err != nil {
			bm.Fatal(err)
		}
		b.Give(1000)
	}
}

func BenchmarkResize(bm *testing.B) {
	b := newBudget(bm, Config{Limit: 1 << 30})
	a := b.Open(0)
	defer a.Close()
	bm.ReportAllocs()
	for bm.Loop() {
		a.Resize(64 * kib)
		a.Resize(32 * kib)
	}
}

func BenchmarkStreamCap(bm *testing.B) {
	b := newBudget(bm, Config{Limit: 1 << 30})
	bm.ReportAllocs()
	for bm.Loop() {
		b.StreamCap()
	}
}

func BenchmarkTakeGiveParallel(bm *testing.B) {
	b := newBudget(bm, Config{Limit: 1 << 30})
	bm.ReportAllocs()
	bm.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			b.Take(1000)
			b.Give(1000)
		}
	})
}
