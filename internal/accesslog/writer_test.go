// SPDX-License-Identifier: Apache-2.0

package accesslog_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/internal/accesslog"
)

// A gate is an output whose writes wait until it is opened.
type gate struct {
	sink
	open    chan struct{}
	entered chan struct{} // one token for each write that waits
}

func newGate() *gate { return &gate{open: make(chan struct{}), entered: make(chan struct{}, 100)} }

func (g *gate) Write(p []byte) (int, error) {
	g.entered <- struct{}{}
	<-g.open
	return g.sink.Write(p)
}

// startGated runs a log over a gate.
func startGated(t *testing.T, g *gate, cfg accesslog.Config) *run {
	t.Helper()
	r := &run{t: t, out: &g.sink, notes: new(sink), ended: make(chan error, 1)}
	l, err := accesslog.New(g, slog.New(slog.NewTextHandler(r.notes, nil)), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.Log, r.stop = l, cancel
	go func() { r.ended <- l.Run(ctx) }()
	return r
}

// TestFullRingDropsAndSaysSo: a log whose reader hangs takes no more than its
// capacity, blocks nobody, and tells how much was lost.
func TestFullRingDropsAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		r := startGated(t, g, accesslog.Config{Sample: 1, Capacity: 10, Summary: time.Minute})
		r.Record(full)
		<-g.entered // it hangs in the first write
		begin := time.Now()
		for range 25 {
			r.Record(full)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("Record blocked for %v", took)
		}
		if got := r.Dropped(); got != 15 {
			t.Errorf("dropped %d, want 15", got)
		}
		close(g.open)
		time.Sleep(time.Second)
		if got := r.out.count("msg=request"); got != 11 {
			t.Errorf("%d lines, want 11", got)
		}
		if got := r.notes.count("dropped=15"); got != 1 {
			t.Errorf("told %d times of the loss:\n%s", got, r.notes)
		}
		if out := r.end(); !strings.Contains(out, " requests=26 in_full=26 dropped=15 ") {
			t.Errorf("the summary does not say so: %s", lastLines(out, 1))
		}
		if r.Record(full); r.Dropped() != 16 {
			t.Errorf("after the end: dropped %d, want 16", r.Dropped())
		}
	})
}

// TestLossIsToldSeldom: every ten seconds, and what is left at the end.
func TestLossIsToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Sample: 1, Capacity: 1})
		for range 250 { // 25 s
			for range 3 {
				r.Record(full)
			}
			time.Sleep(100 * time.Millisecond)
		}
		r.end()
		if told := r.notes.count("msg="); told != 4 {
			t.Errorf("told %d times, want at 0, 10 and 20 s and at the end:\n%s", told, r.notes)
		}
		sum, n := uint64(0), uint64(0)
		for line := range strings.Lines(r.notes.String()) {
			if _, err := fmt.Sscanf(line[strings.Index(line, "dropped="):], "dropped=%d", &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		if sum != r.Dropped() || sum+uint64(r.out.count("msg=request")) != 750 {
			t.Errorf("told of %d, dropped %d, written %d of 750", sum, r.Dropped(), r.out.count("msg=request"))
		}
	})
}

// TestLossIsToldWithoutFurtherRecords: a log that has become quiet tells too.
func TestLossIsToldWithoutFurtherRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Sample: 1, Capacity: 1})
		for range 2 { // told at once, and of the rest in ten seconds
			for range 5 {
				r.Record(full)
			}
			time.Sleep(time.Second)
		}
		told := r.notes.count("msg=")
		time.Sleep(9 * time.Second)
		if now := r.notes.count("msg="); told != 1 || now != 2 {
			t.Errorf("told %d times, and %d after ten seconds:\n%s", told, now, r.notes)
		}
		r.end()
	})
}

// TestSummariesAreNoRecords: one that cannot be written is not counted as dropped.
func TestSummariesAreNoRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Summary: time.Second})
		r.out.fail(syscall.ENOSPC, 0)
		r.Record(well(1))
		time.Sleep(1500 * time.Millisecond)
		if r.end(); r.notes.count("cannot be written") != 1 || r.Dropped() != 0 {
			t.Errorf("dropped %d:\n%s", r.Dropped(), r.notes)
		}
	})
}

// TestEndIsBounded: a reader of the log that hangs does not hold up the exit.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		r := startGated(t, g, accesslog.Config{Sample: 1, FlushTimeout: 3 * time.Second})
		r.Record(full)
		<-g.entered
		for range 70 {
			r.Record(full)
		}
		begin := time.Now()
		r.stop()
		if err := <-r.ended; !errors.Is(err, accesslog.ErrFlush) {
			t.Errorf("Run = %v, want ErrFlush", err)
		}
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("Run took %v to give up, want 3s", took)
		}
		close(g.open) // the write comes back: the goroutine ends without writing the rest
		synctest.Wait()
		if got := r.out.count("\n"); got != 1 {
			t.Errorf("%d lines, want the one that hung", got)
		}
		if got := r.Dropped(); got != 70 {
			t.Errorf("dropped %d, want 70", got)
		}
	})
}

// TestLoadIsGathered: the first record is written at once, others a few
// milliseconds later in one write.
func TestLoadIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Sample: 1})
		r.Record(full)
		synctest.Wait()
		if got := r.out.count("\n"); got != 1 {
			t.Errorf("%d lines at once, want 1", got)
		}
		for range 50 { // 10,000 a second
			r.Record(full)
			time.Sleep(100 * time.Microsecond)
		}
		synctest.Wait()
		if got := r.out.count("\n"); got != 51 || r.out.writes() > 2 {
			t.Errorf("%d lines in %d writes after 5 ms, want 51 in 2", got, r.out.writes())
		}
		r.end()
	})
}

// TestAFullDiskLosesNothingThatFits: what could not be written waits, a line that
// was begun is ended, and it is told once that it began and once that it is over.
func TestAFullDiskLosesNothingThatFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Sample: 1, Format: accesslog.JSON, Capacity: 100, Summary: 10 * time.Second})
		send := func(from, to uint64) {
			for id := from; id < to; id++ {
				r.Record(well(id))
			}
		}
		send(0, 3)
		time.Sleep(time.Second)
		r.out.fail(syscall.ENOSPC, 100) // in the middle of a line
		send(3, 4)                      // the writer has it in hand: with more it could leave some in the ring
		time.Sleep(500 * time.Millisecond)
		before := r.out.writes()
		send(4, 114) // ten more than the ring has places
		synctest.Wait()
		if got := r.out.writes() - before; got != 0 {
			t.Errorf("%d attempts because of new records", got)
		}
		time.Sleep(12 * time.Second)
		if got := r.out.writes() - before; got != 12 {
			t.Errorf("%d attempts in 12 s, want one a second", got)
		}
		if got := r.Dropped(); got != 10 {
			t.Errorf("dropped %d, want 10", got)
		}
		r.out.fail(nil, 0)
		time.Sleep(time.Second)
		checkJSON(t, r.out.String())
		for id := range uint64(104) {
			if got := r.out.count(fmt.Sprintf(`"id":%d,`, id)); got != 1 {
				t.Fatalf("record %d is there %d times", id, got)
			}
		}
		notes := r.notes.String()
		if strings.Count(notes, "msg=") != 2 || !strings.Contains(notes, `error="no space left on device"`) || !strings.Contains(notes, "dropped=10") {
			t.Errorf("notes:\n%s", notes)
		}
		out := r.end()
		if got := summaries(t, out); len(got) != 1 || got[0]["requests"] != 114.0 || got[0]["dropped"] != 10.0 {
			t.Errorf("summaries: %v", got)
		}
		if got := r.notes.count("msg="); got != 2 {
			t.Errorf("notes after the end:\n%s", r.notes)
		}
	})
}

// TestAFullDiskAtTheEnd: one more attempt, then it is said what is lost.
func TestAFullDiskAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Sample: 1})
		r.out.fail(syscall.EPIPE, 0)
		for id := range uint64(7) {
			r.Record(well(id))
		}
		time.Sleep(2500 * time.Millisecond)
		begin := time.Now()
		if out := r.end(); out != "" || time.Since(begin) != 0 {
			t.Errorf("wrote %q, took %v to end", out, time.Since(begin))
		}
		if r.Dropped() != 7 || r.notes.count("dropped=7") != 1 {
			t.Errorf("dropped %d:\n%s", r.Dropped(), r.notes)
		}
	})
}

// TestADiskThatWorksAgainAtTheEnd is not left for want of waiting.
func TestADiskThatWorksAgainAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, accesslog.Config{Sample: 1})
		r.out.fail(syscall.ENOSPC, 10)
		for id := range uint64(7) {
			r.Record(well(id))
		}
		time.Sleep(100 * time.Millisecond)
		r.out.fail(nil, 0)
		if out := r.end(); strings.Count(out, "\n") != 7 || strings.Count(out, "time=") != 7 || r.Dropped() != 0 {
			t.Errorf("wrote %q, dropped %d", out, r.Dropped())
		}
	})
}

// TestAnotherFileInsteadOfAFullDisk is written at once, whole lines only; what was
// encoded for another format is lost and counted.
func TestAnotherFileInsteadOfAFullDisk(t *testing.T) {
	for _, format := range []accesslog.Format{accesslog.JSON, accesslog.Text} {
		path := filepath.Join(t.TempDir(), "log")
		synctest.Test(t, func(t *testing.T) {
			r := start(t, accesslog.Config{Sample: 1, Format: accesslog.JSON})
			first := len(`{"time":"2026-01-02T03:04:05Z","level":"INFO","msg":"request","id":0,"upstream":"openai","method":"GET","status":200,"outcome":"ok",` +
				`"stream":false,"reused":false,"bytes_in":0,"bytes_out":0,"duration_ms":0}` + "\n")
			r.out.fail(syscall.ENOSPC, first+20) // one line, and a piece of the next
			for id := range uint64(70) {
				r.Record(well(id))
			}
			time.Sleep(100 * time.Millisecond) // the second write has failed
			if err := r.Update(accesslog.Config{Sample: 1, Format: format, File: path}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got, dropped := strings.Count(string(b), "\n"), int(r.Dropped())
			if got+dropped != 69 || (dropped > 0) != (format != accesslog.JSON) {
				t.Errorf("format %v: %d lines and dropped %d, want 69 in all", format, got, dropped)
			}
			if format == accesslog.JSON {
				checkJSON(t, string(b))
			}
			r.end()
		})
	}
}

// TestShortWritesAreErrors: a writer that breaks its contract loses nothing either.
func TestShortWritesAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got strings.Builder
		half := writerFunc(func(p []byte) (int, error) {
			n := (len(p) + 1) / 2
			got.Write(p[:n])
			return n, nil
		})
		l, err := accesslog.New(half, nil, accesslog.Config{Sample: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		l.Record(well(1))
		time.Sleep(20 * time.Second)
		cancel()
		if err := <-ended; err != nil || !strings.HasSuffix(got.String(), "duration_ms=0\n") || strings.Count(got.String(), "time=") != 1 {
			t.Errorf("Run = %v, wrote %q", err, got.String())
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestCrowd: what is not dropped is written, once each.
func TestCrowd(t *testing.T) {
	const writers, each = 8, 2000
	r := start(t, accesslog.Config{Sample: 1, Capacity: 2000, Summary: time.Hour})
	var crowd sync.WaitGroup
	for w := range uint64(writers) {
		crowd.Go(func() {
			for i := range uint64(each) {
				r.Record(well(w*each + i))
			}
		})
	}
	crowd.Wait()
	seen := map[string]bool{}
	for _, m := range anID.FindAllString(r.end(), -1) {
		if seen[m] {
			t.Fatalf("%q twice", m)
		}
		seen[m] = true
	}
	if len(seen)+int(r.Dropped()) != writers*each {
		t.Errorf("%d lines and dropped %d of %d", len(seen), r.Dropped(), writers*each)
	}
	if want := fmt.Sprintf(" requests=%d in_full=%d ", writers*each, writers*each); r.out.count(want) != 1 {
		t.Errorf("the summary has no %q: %s", want, lastLines(r.out.String(), 1))
	}
}

// TestAGrownRingShrinks once it is quiet.
func TestAGrownRingShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		r := startGated(t, g, accesslog.Config{Sample: 1})
		r.Record(full)
		<-g.entered
		for range 4000 {
			r.Record(full)
		}
		if got := r.Places(); got < 4000 {
			t.Errorf("%d places with 4000 records", got)
		}
		close(g.open)
		time.Sleep(3 * time.Second)
		if got := r.out.count("\n"); got != 4001 || r.Places() != 64 {
			t.Errorf("%d lines of 4001, then %d places, want 64", got, r.Places())
		}
		r.end()
	})
}

// TestNothingIsAllocated by whoever records, nor by the writer.
func TestNothingIsAllocated(t *testing.T) {
	for _, format := range formats {
		for name, cfg := range map[string]accesslog.Config{"in full": {Sample: 1}, "counted only": {}, "failures": {FailureRate: 1e9, FailureBurst: 1e9}} {
			rec := well(1)
			rec.TraceID, rec.TTFT = full.TraceID, full.TTFT
			if name == "failures" {
				rec.Outcome = "cut_upstream"
			}
			cfg.Format = format
			wrote := make(chan int, 1000)
			out := writerFunc(func(p []byte) (int, error) { wrote <- len(p); return len(p), nil })
			l, err := accesslog.New(out, nil, cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- l.Run(ctx) }()
			round := func() {
				for range 10 {
					rec.ID++
					l.Record(rec)
				}
				if name != "counted only" {
					<-wrote // one batch at least
				}
			}
			round()
			if got := testing.AllocsPerRun(50, round); got > 0 {
				t.Errorf("format %v, %s: %v allocations for 10 records", format, name, got)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
}
