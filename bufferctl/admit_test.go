// SPDX-License-Identifier: Apache-2.0

package bufferctl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// line lets streams wait and notes the order in which they were let in.
type line struct {
	b     *Budget
	all   sync.WaitGroup
	mu    sync.Mutex
	order []string
	errs  map[string]error
}

// wait queues one stream; when it returns, it waits or is decided.
func (l *line) wait(ctx context.Context, name string, class Class, n int64) {
	l.all.Go(func() {
		err := l.b.Admit(ctx, class, n)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.errs == nil {
			l.errs = map[string]error{}
		}
		if l.errs[name] = err; err == nil {
			l.order = append(l.order, name)
		}
	})
	synctest.Wait()
}

func (l *line) wantOrder(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.order, want) {
		t.Errorf("let in: %v, want %v", l.order, want)
	}
}

func wantReason(t *testing.T, err error, want Reason, waited time.Duration) *OverloadError {
	t.Helper()
	e, ok := errors.AsType[*OverloadError](err)
	if !ok {
		t.Fatalf("error %v, want an OverloadError", err)
	}
	if e.Reason != want || e.Waited != waited {
		t.Errorf("%s after %v, want %s after %v", e.Reason, e.Waited, want, waited)
	}
	return e
}

func TestNewStreamsWaitByClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 100 * kib})
		b.Take(100 * kib)
		l := &line{b: b}
		l.wait(t.Context(), "batch", Batch, 16*kib)
		l.wait(t.Context(), "default 1", Default, 16*kib)
		l.wait(t.Context(), "interactive 1", Interactive, 16*kib)
		l.wait(t.Context(), "interactive 2", Interactive, 16*kib)
		l.wait(t.Context(), "default 2", Default, 16*kib)
		if s := b.Stats(); s.Waiting != [Classes]int{2, 2, 1} || b.StreamCap() != 16*kib {
			t.Errorf("waiting: %v, a stream may hold %d", s.Waiting, b.StreamCap())
		}
		b.Give(16*kib - 1)
		synctest.Wait()
		l.wantOrder(t) // not yet
		for range 6 {
			b.Give(16 * kib)
			synctest.Wait()
		}
		l.wantOrder(t, "interactive 1", "interactive 2", "default 1", "default 2", "batch")
		wantUsed(t, b, 100*kib-7*16*kib+1+5*16*kib)
		if s := b.Stats(); s.Admitted != [Classes]uint64{2, 2, 1} || s.Waiting != [Classes]int{} {
			t.Errorf("stats %+v", s)
		}
	})
}

// A class that waits is passed over eight times, then it has its turn.
func TestNoClassStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 16 * kib})
		b.Take(16 * kib)
		l := &line{b: b}
		l.wait(t.Context(), "batch", Batch, 16*kib)
		l.wait(t.Context(), "default", Default, 16*kib)
		l.wait(t.Context(), "batch again", Batch, 16*kib)
		var want []string
		for i := range 20 {
			name := fmt.Sprint(i)
			l.wait(t.Context(), name, Interactive, 16*kib)
			if want = append(want, name); i == 7 {
				want = append(want, "batch", "default")
			}
			if i == 14 { // the turn of default counts for batch, too
				want = append(want, "batch again")
			}
		}
		for range 23 {
			b.Give(16 * kib)
			synctest.Wait()
		}
		l.wantOrder(t, want...)
	})
}

// A large stream is not overtaken by small ones, and nobody who comes later
// overtakes those who wait.
func TestLargeStreamsGetIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 100 * kib})
		b.Take(90 * kib)
		l := &line{b: b}
		l.wait(t.Context(), "large", Default, 50*kib)
		l.wait(t.Context(), "small", Default, 5*kib)
		l.wantOrder(t)
		b.Give(30 * kib) // slack by its level
		if a := b.Open(0); b.StreamCap() != 16*kib || a.Resize(40*kib) != 16*kib {
			t.Errorf("a stream that runs may hold %d while others wait, and holds %d", b.StreamCap(), a.Held())
		} else {
			a.Close()
		}
		b.Take(30 * kib)
		b.Give(30 * kib)
		synctest.Wait()
		l.wantOrder(t)
		b.Give(10 * kib)
		synctest.Wait()
		l.wantOrder(t, "large")
		b.Give(50 * kib)
		synctest.Wait()
		l.wantOrder(t, "large", "small")
	})
}

func TestWaitEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 100 * kib, QueueTimeout: 3 * time.Second})
		b.Take(100 * kib)
		start := time.Now()
		e := wantReason(t, b.Admit(t.Context(), Batch, 20*kib), ReasonTimeout, 3*time.Second)
		if got := time.Since(start); got != 3*time.Second {
			t.Errorf("waited %v", got)
		}
		if e.RetryAfter != time.Second || e.Class != Batch || e.Bytes != 20*kib || e.Used != 100*kib || e.Limit != 100*kib {
			t.Errorf("error %+v", *e)
		}
		const text = "no room for a stream of 20480 bytes in the memory budget (limits.memory): 102400 of 102400 bytes used, waited 3s (timeout)"
		if e.Error() != text {
			t.Errorf("error %q", e)
		}
		// Whoever waits behind one that leaves may fit.
		l := &line{b: b}
		l.wait(t.Context(), "large", Default, 80*kib)
		b.Give(50 * kib)
		time.Sleep(time.Second)
		l.wait(t.Context(), "small", Default, 50*kib)
		l.wantOrder(t)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		l.wantOrder(t, "small")
		wantReason(t, l.errs["large"], ReasonTimeout, 3*time.Second)
		wantUsed(t, b, 100*kib)
		if s := b.Stats(); s.Refused != [Classes]uint64{0, 1, 1} || s.Waiting != [Classes]int{} {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 16 * kib, QueueLimit: 3})
		b.Take(16 * kib)
		l := &line{b: b}
		for _, name := range []string{"1", "2", "3"} {
			l.wait(t.Context(), name, Batch, 16*kib)
		}
		e := wantReason(t, b.Admit(t.Context(), Batch, 16*kib), ReasonQueueFull, 0)
		if e.RetryAfter != 11*time.Second { // a full queue: a second and the time that one waits
			t.Errorf("retry after %v", e.RetryAfter)
		}
		time.Sleep(2 * time.Second)
		l.wait(t.Context(), "default", Default, 16*kib) // takes the place of the youngest
		wantReason(t, l.errs["3"], ReasonDisplaced, 2*time.Second)
		if s := b.Stats(); s.Waiting != [Classes]int{0, 1, 2} || s.Refused != [Classes]uint64{0, 0, 2} {
			t.Errorf("stats %+v", s)
		}
		for range 3 {
			b.Give(16 * kib)
			synctest.Wait()
		}
		l.wantOrder(t, "default", "1", "2")

		none := newBudget(t, Config{Limit: 16 * kib, QueueLimit: -1})
		none.Take(16 * kib)
		wantReason(t, none.Admit(t.Context(), Interactive, 16*kib), ReasonQueueFull, 0)
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 16 * kib})
		b.Take(16 * kib)
		gone := errors.New("the app left")
		ctx, cancel := context.WithCancelCause(t.Context())
		l := &line{b: b}
		l.wait(ctx, "left", Interactive, 16*kib)
		l.wait(t.Context(), "stayed", Batch, 16*kib)
		cancel(gone)
		synctest.Wait()
		if !errors.Is(l.errs["left"], gone) {
			t.Errorf("error %v", l.errs["left"])
		}
		b.Give(16 * kib)
		synctest.Wait()
		l.wantOrder(t, "stayed")
		wantUsed(t, b, 16*kib)
	})
}

// Room and the end of the context come in the same instant: either it has the bytes
// and no error, or an error and no bytes.
func TestRoomAndEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 16 * kib})
		for range 100 {
			b.Take(16 * kib)
			ctx, cancel := context.WithCancel(t.Context())
			l := &line{b: b}
			l.wait(ctx, "it", Default, 16*kib)
			b.mu.Lock()
			cancel()
			b.used.Add(-16 * kib)
			b.grantLocked()
			b.mu.Unlock()
			l.all.Wait()
			if l.errs["it"] == nil {
				b.Give(16 * kib)
			}
			wantUsed(t, b, 0)
		}
	})
}

// Bytes that are given between the first look at them and the place in the queue
// are not missed: nobody else would wake the one who waits.
func TestRoomBeforeThePlaceInTheQueue(t *testing.T) {
	b := newBudget(t, Config{Limit: 16 * kib})
	w := &waiter{bytes: 16 * kib, decided: make(chan struct{})}
	if !b.enqueue(w) || !w.granted {
		t.Error("waits while there is room")
	}
}

func TestNewLimitLetsThemIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, Config{Limit: 64 * kib})
		wantReason(t, b.Admit(t.Context(), Default, 64*kib+1), ReasonTooLarge, 0)
		b.Take(64 * kib)
		l := &line{b: b}
		l.wait(t.Context(), "large", Interactive, 64*kib)
		l.wait(t.Context(), "small", Default, 16*kib)
		b.SetLimit(32 * kib) // "large" can never get in now, and must not stand in the way
		synctest.Wait()
		wantReason(t, l.errs["large"], ReasonTooLarge, 0)
		l.wantOrder(t)
		b.SetLimit(80 * kib)
		synctest.Wait()
		l.wantOrder(t, "small")
		if b.SetLimit(1); b.Limit() != 16*kib {
			t.Errorf("the limit is %d, less than one stream's floor", b.Limit())
		}
	})
}

// A budgetModel is a Budget beside the plain sums of what was taken.
type budgetModel struct {
	b       *Budget
	streams []*modelStream
	taken   []int64

	mu   sync.Mutex
	came []*modelStream // let in since the last step
}

type modelStream struct {
	account Account
	floor   int64
}

type budgetStep struct {
	kind, which int
	n           int64
}

func (m *budgetModel) do(t *testing.T, all *sync.WaitGroup, s budgetStep) {
	switch {
	case s.kind < 3:
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+s.which%6)*time.Second)
		all.Go(func() {
			defer cancel()
			if m.b.Admit(ctx, Class(s.which%Classes), s.n) == nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.came = append(m.came, &modelStream{m.b.Open(s.n), s.n})
			}
		})
	case s.kind < 6 && len(m.streams) > 0:
		stream := m.streams[s.which%len(m.streams)]
		if got := stream.account.Resize(s.n * 4); got < stream.floor {
			t.Fatalf("a stream opened with %d holds %d", stream.floor, got)
		}
	case s.kind == 6 && len(m.streams) > 0:
		i := s.which % len(m.streams)
		m.streams[i].account.Close()
		m.streams = slices.Delete(m.streams, i, i+1)
	case s.kind == 7 && m.b.Take(s.n):
		m.taken = append(m.taken, s.n)
	case s.kind == 8 && len(m.taken) > 0:
		i := s.which % len(m.taken)
		m.b.Give(m.taken[i])
		m.taken = slices.Delete(m.taken, i, i+1)
	case s.kind == 9 && s.which%4 == 0:
		m.b.SetLimit(16*kib + s.n*4)
	}
	synctest.Wait()
	m.collect()
}

func (m *budgetModel) collect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams, m.came = append(m.streams, m.came...), nil
}

func (m *budgetModel) sum() int64 {
	var sum int64
	for _, s := range m.streams {
		sum += s.account.Held()
	}
	for _, n := range m.taken {
		sum += n
	}
	return sum
}

// nextWaits is how many bytes the next in the queue waits for, or -1.
func (m *budgetModel) nextWaits() int64 {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if class, ok := m.b.nextLocked(); ok {
		return m.b.lines[class][0].bytes
	}
	return -1
}

// Whatever happens in whatever order: the sum is exact, the limit is never passed
// by taking, the next in the queue waits only while it does not fit, no stream loses
// its floor, and everything comes back.
func TestBudgetInAnyOrder(t *testing.T) {
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) budgetStep {
		return budgetStep{rapid.IntRange(0, 9).Draw(t, "kind"), rapid.IntRange(0, 1000).Draw(t, "which"), rapid.Int64Range(0, 80*kib).Draw(t, "n")}
	}), 1, 80)
	rapid.Check(t, func(rt *rapid.T) {
		todo, limit := steps.Draw(rt, "steps"), rapid.Int64Range(16*kib, 400*kib).Draw(rt, "limit")
		synctest.Test(t, func(t *testing.T) {
			b := newBudget(t, Config{Limit: limit, QueueLimit: 5, QueueTimeout: 4 * time.Second})
			m := &budgetModel{b: b}
			var all sync.WaitGroup
			for _, step := range todo {
				before := b.Used()
				if m.do(t, &all, step); step.kind == 9 {
					time.Sleep(time.Duration(step.which) * time.Millisecond)
					synctest.Wait()
					m.collect()
				}
				sum := m.sum()
				if b.Used() != sum {
					t.Fatalf("%d bytes used, the model says %d", b.Used(), sum)
				}
				if sum > b.Limit() && sum > before {
					t.Fatalf("grew from %d to %d at a limit of %d", before, sum, b.Limit())
				}
				if n := m.nextWaits(); n >= 0 && n <= b.Limit()-sum {
					t.Fatalf("%d bytes wait while %d are free", n, b.Limit()-sum)
				}
			}
			time.Sleep(10 * time.Second)
			all.Wait()
			m.collect()
			for _, s := range m.streams {
				s.account.Close()
			}
			for _, n := range m.taken {
				b.Give(n)
			}
			wantUsed(t, b, 0)
			if s := b.Stats(); s.Waiting != [Classes]int{} || b.StreamCap() != math.MaxInt64 {
				t.Errorf("left behind: %+v", s)
			}
		})
	})
}
