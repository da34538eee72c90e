// SPDX-License-Identifier: Apache-2.0

package logqueue

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// A tap takes writes while it is open.
type tap struct {
	open chan struct{} // closed: it is

	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (w *tap) Write(p []byte) (int, error) {
	<-w.open
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *tap) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func TestAllLinesAreThereInOrder(t *testing.T) {
	w := &tap{open: make(chan struct{})}
	close(w.open)
	q := New(w)
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&want, "line %d\n", i)
		if n, err := fmt.Fprintf(q, "line %d\n", i); n == 0 || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if w.String() != want.String() || q.Dropped() > 0 {
		t.Errorf("%d of %d bytes, %d lines dropped", len(w.String()), want.Len(), q.Dropped())
	}
	if _, err := q.Write([]byte("late\n")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
}

// TestAReaderThatHangsCostsLines: nobody waits, whole lines are lost, and where they are
// missing it says how many.
func TestAReaderThatHangsCostsLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &tap{open: make(chan struct{})}
		q := New(w)
		q.Note(slog.New(slog.NewTextHandler(q.Direct(), nil)))
		line := func(i int) string { return fmt.Sprintf("%04d %s\n", i, strings.Repeat("x", 1000)) }
		for i := range 1000 {
			_, _ = q.Write([]byte(line(i)))
		}
		lost := q.Dropped()
		if lost < 400 || lost > 800 {
			t.Fatalf("%d of 1000 lines dropped", lost)
		}
		close(w.open)
		synctest.Wait()
		_, _ = q.Write([]byte("after\n"))
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for i := range 1000 - int(lost) {
			want.WriteString(line(i))
		}
		got, ok := strings.CutPrefix(w.String(), want.String())
		if !ok || !strings.Contains(got, fmt.Sprintf("lines=%d\n", lost)) || !strings.HasSuffix(got, "\nafter\n") || strings.Count(got, "\n") != 2 {
			t.Errorf("after the lines that fit: %.300q", got)
		}
	})
}

func TestCloseDoesNotWaitForAReaderThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &tap{open: make(chan struct{})}
		q := New(w)
		_, _ = q.Write([]byte("line\n"))
		if err := q.Close(); !errors.Is(err, ErrStuck) {
			t.Errorf("Close = %v", err)
		}
		close(w.open) // the goroutine ends with the bubble
	})
}

// TestLinesThatCannotBeWrittenAreCounted: the disk below a file is full.
func TestLinesThatCannotBeWrittenAreCounted(t *testing.T) {
	q := New(broken{})
	_, _ = q.Write([]byte("one\ntwo\n"))
	if err := q.Close(); err != nil || q.Dropped() != 2 {
		t.Errorf("Close = %v, dropped %d", err, q.Dropped())
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left") }
