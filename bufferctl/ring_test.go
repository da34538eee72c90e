// SPDX-License-Identifier: Apache-2.0

package bufferctl_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
)

func newRing[T any](t testing.TB, cfg bufferctl.RingConfig) *bufferctl.Ring[T] {
	t.Helper()
	r, err := bufferctl.NewRing[T](cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRingGrowsFrom64To4096AndCountsTheRest(t *testing.T) {
	r := newRing[int](t, bufferctl.RingConfig{})
	if got := r.Places(); got != 64 {
		t.Errorf("%d places at the start, want 64", got)
	}
	for i := range 5000 {
		if got, want := r.Put(i), i < 4096; got != want {
			t.Fatalf("Put of value %d = %v, want %v", i, got, want)
		}
		if got, want := r.Places(), min(i/64*64+64, 4096); got != want {
			t.Fatalf("%d places after %d values, want %d", got, i+1, want)
		}
	}
	if r.Len() != 4096 || r.Dropped() != 5000-4096 {
		t.Errorf("holds %d, dropped %d; want 4096, %d", r.Len(), r.Dropped(), 5000-4096)
	}
	got := make([]int, 5000)
	n := r.Take(got)
	if n != 4096 {
		t.Fatalf("took %d, want 4096", n)
	}
	for i, v := range got[:n] {
		if v != i {
			t.Fatalf("value %d is %d", i, v)
		}
	}
	if n := r.Take(got); n != 0 || r.Len() != 0 {
		t.Errorf("an empty ring gave %d, holds %d", n, r.Len())
	}
}

func TestRingShrinksToWhatWasNeeded(t *testing.T) {
	r := newRing[int](t, bufferctl.RingConfig{Min: 4, Max: 40})
	fill := func(n int) {
		for i := range n {
			r.Put(i)
		}
		if got := r.Take(make([]int, 40)); got != n {
			t.Fatalf("took %d, want %d", got, n)
		}
	}
	fill(40)
	steps := []struct {
		load, places int
		grown        bool
	}{{0, 40, true}, {10, 12, true}, {0, 4, false}, {0, 4, false}, {5, 8, true}}
	for i, s := range steps {
		fill(s.load)
		grown := r.Shrink()
		if got := r.Places(); got != s.places || grown != s.grown {
			t.Errorf("step %d, after a load of %d: %d places, grown %v; want %d, %v", i, s.load, got, grown, s.places, s.grown)
		}
	}
	for i := range 40 { // in use: nothing to give back
		r.Put(i)
	}
	r.Shrink()
	if r.Shrink(); r.Places() != 40 || r.Len() != 40 {
		t.Errorf("a full ring shrank to %d places, holds %d", r.Places(), r.Len())
	}
}

// TestRingIsAQueue compares random calls with a plain slice.
func TestRingIsAQueue(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		lo := 1 + rnd.IntN(9)
		cfg := bufferctl.RingConfig{Min: lo, Max: lo + rnd.IntN(30)}
		r := newRing[int](t, cfg)
		var model []int
		dropped := uint64(0)
		for step := range 500 {
			switch rnd.IntN(5) {
			case 0, 1, 2:
				for range rnd.IntN(8) {
					if ok := r.Put(step); ok != (len(model) < cfg.Max) {
						t.Fatalf("seed %d, step %d: Put = %v with %d of %d", seed, step, ok, len(model), cfg.Max)
					} else if ok {
						model = append(model, step)
					} else {
						dropped++
					}
				}
			case 3:
				dst := make([]int, rnd.IntN(20))
				n := r.Take(dst)
				want := min(len(dst), len(model))
				if n != want || !slices.Equal(dst[:n], model[:n]) {
					t.Fatalf("seed %d, step %d: took %v, want %v", seed, step, dst[:n], model[:want])
				}
				model = model[n:]
			case 4:
				r.Shrink()
			}
			if r.Len() != len(model) || r.Dropped() != dropped || r.Places() < len(model) || r.Places() > cfg.Max+2*cfg.Min {
				t.Fatalf("seed %d, step %d: holds %d of %d, dropped %d of %d, places %d of %d to %d",
					seed, step, r.Len(), len(model), r.Dropped(), dropped, r.Places(), cfg.Min, cfg.Max)
			}
		}
	}
}

// TestRingCrowd: with many producers and a consumer at once, every value is taken
// once and in its producer's order, or counted as dropped.
func TestRingCrowd(t *testing.T) {
	const producers, each = 8, 5000
	type value struct{ producer, n int }
	r := newRing[value](t, bufferctl.RingConfig{Min: 4, Max: 50})
	var kept, got [producers][]int
	var crowd sync.WaitGroup
	for p := range producers {
		crowd.Go(func() {
			for n := range each {
				if r.Put(value{p, n}) {
					kept[p] = append(kept[p], n)
				}
				if n%32 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { crowd.Wait(); close(done) }()
	taken, dst := 0, make([]value, 13)
	for running := true; running; {
		select {
		case <-r.Ready():
		case <-done:
			running = false
		}
		for n := len(dst); n == len(dst); {
			n = r.Take(dst)
			for _, v := range dst[:n] {
				got[v.producer] = append(got[v.producer], v.n)
			}
			taken += n
			r.Shrink()
		}
	}
	for p := range producers {
		if !slices.Equal(got[p], kept[p]) {
			t.Errorf("producer %d: %d values put, %d taken, or in another order", p, len(kept[p]), len(got[p]))
		}
	}
	if sum := uint64(taken) + r.Dropped(); sum != producers*each || taken == 0 {
		t.Errorf("taken %d + dropped %d = %d, put %d", taken, r.Dropped(), sum, producers*each)
	}
}

func TestRingClosed(t *testing.T) {
	r := newRing[int](t, bufferctl.RingConfig{})
	r.Put(1)
	<-r.Ready()
	r.Close()
	select {
	case <-r.Ready():
	default:
		t.Error("Close woke nobody")
	}
	if r.Put(2) || r.Dropped() != 1 {
		t.Errorf("a closed ring took a value; dropped %d, want 1", r.Dropped())
	}
	if dst := make([]int, 2); r.Take(dst) != 1 || dst[0] != 1 {
		t.Errorf("took %v, want what was queued before", dst)
	}
}

// TestRingKeepsNothing: what was taken is not kept alive by its old place.
func TestRingKeepsNothing(t *testing.T) {
	r := newRing[*[64]byte](t, bufferctl.RingConfig{Min: 4})
	var freed atomic.Int32
	for range 10 {
		v := new([64]byte)
		runtime.AddCleanup(v, func(int) { freed.Add(1) }, 0)
		r.Put(v)
	}
	r.Take(make([]*[64]byte, 10))
	for deadline := time.Now().Add(10 * time.Second); freed.Load() < 10 && time.Now().Before(deadline); {
		runtime.GC()
	}
	if got := freed.Load(); got != 10 {
		t.Errorf("%d of 10 values were freed", got)
	}
	runtime.KeepAlive(r)
}

func TestRingDoesNotAllocate(t *testing.T) {
	r := newRing[[40]int64](t, bufferctl.RingConfig{})
	dst := make([][40]int64, 256)
	round := func() {
		for range 256 {
			r.Put([40]int64{})
		}
		r.Take(dst)
	}
	round() // grows
	if got := testing.AllocsPerRun(100, round); got != 0 {
		t.Errorf("%v allocations for 256 values, want 0", got)
	}
}

func TestRingConfig(t *testing.T) {
	for _, cfg := range []bufferctl.RingConfig{{Min: -1}, {Max: -1}, {Min: 65, Max: 64}} {
		if _, err := bufferctl.NewRing[int](cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	small := newRing[int](t, bufferctl.RingConfig{Max: 10})
	if got := small.Places(); got != 10 {
		t.Errorf("a ring of at most 10 has %d places", got)
	}
}

// BenchmarkRing is one value of a log record's size on its way from a producer to
// the consumer, beside a channel of 4096 places: in batches on one core, and from
// two producers that go on when there is room.
func BenchmarkRing(b *testing.B) {
	type value [40]int64
	const batch = 64
	b.Run("batches/ring", func(b *testing.B) {
		b.ReportAllocs()
		r, dst := newRing[value](b, bufferctl.RingConfig{}), make([]value, batch)
		for n := 0; b.Loop(); n++ {
			r.Put(value{})
			if n%batch == batch-1 {
				r.Take(dst)
			}
		}
	})
	b.Run("batches/channel", func(b *testing.B) {
		b.ReportAllocs()
		c, dst := make(chan value, 4096), make([]value, batch)
		for n := 0; b.Loop(); n++ {
			c <- value{}
			if n%batch == batch-1 {
				for i := range dst {
					dst[i] = <-c
				}
			}
		}
	})
	b.Run("crowd/ring", func(b *testing.B) {
		b.ReportAllocs()
		r := newRing[value](b, bufferctl.RingConfig{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			dst := make([]value, batch)
			for total := 0; total < b.N; {
				<-r.Ready()
				for n := batch; n == batch; {
					n = r.Take(dst)
					total += n
				}
			}
		}()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				for !r.Put(value{}) {
					runtime.Gosched()
				}
			}
		})
		<-ended
	})
	b.Run("crowd/channel", func(b *testing.B) {
		b.ReportAllocs()
		c := make(chan value, 4096)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range b.N {
				<-c
			}
		}()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c <- value{}
			}
		})
		<-ended
	})
}
