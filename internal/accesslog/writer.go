// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	batchSize  = 64 // records, and rows of a summary, that go into one write
	bufferSize = 64 << 10

	// gather is how long the writer waits after a write: under load one write then
	// takes many records, and the requests' cores are left alone. At 5000
	// requests/s 25 of them; the first after a pause is written at once.
	gather = 5 * time.Millisecond

	retryEvery  = time.Second      // writes that fail
	shrinkEvery = time.Second      // a ring that has grown
	noteEvery   = 10 * time.Second // lines about dropped records, at most
)

// A writer is the state of the goroutine that writes. Its fields are its own.
type writer struct {
	log       *Log
	abandoned atomic.Bool // set by Run: nobody waits any more, the rest is dropped

	out   *output
	batch []Record
	enc   encoder // lines to write
	sent  int     // bytes of them that are written
	timer *time.Timer

	failing time.Time // since when writes fail; zero: they do not
	retryAt time.Time
	noted   uint64 // dropped records that notes know of
	notedAt time.Time

	tally     tally
	row       int       // next one of the summary that is being written; -1: none is
	since     time.Time // begin of the window of the next summary
	until     time.Time // end of the one that is being written
	shrinkAt  time.Time // zero: the ring is at its smallest
	wroteLast bool      // something was written since the last pause
}

func newWriter(l *Log) *writer {
	w := &writer{log: l, batch: make([]Record, batchSize), row: -1, since: time.Now(), timer: time.NewTimer(0)}
	w.enc.buf = make([]byte, 0, bufferSize)
	w.enc.lines = make([]line, 0, batchSize)
	return w
}

// run writes until the log is closed and all of it is written, or cannot be.
func (w *writer) run() {
	defer w.end()
	for {
		select {
		case <-w.log.poke: // what it stands for is looked at now
		default:
		}
		closed := w.log.closed.Load() // before the ring is emptied: nothing comes after
		w.takeOutput()
		more := w.write(closed)
		if w.abandoned.Load() || closed && !more {
			return
		}
		if !more {
			w.pause()
		}
	}
}

// write writes what there is, and returns whether there may be more.
func (w *writer) write(closed bool) (more bool) {
	if closed {
		w.retryAt = time.Time{} // the last attempt
	}
	if !w.flush() {
		return false
	}
	if w.records() {
		return !w.broken()
	}
	now := time.Now()
	period := time.Duration(w.log.summary.Load())
	if w.row < 0 && period > 0 && (closed || now.Sub(w.since) >= period) {
		w.row, w.until = 0, now
	}
	if w.row >= 0 && w.rows() {
		return !w.broken()
	}
	if !w.broken() {
		w.noteDropped(now, closed)
	}
	return false
}

func (w *writer) broken() bool { return !w.failing.IsZero() || w.abandoned.Load() }

// records writes one batch, and returns whether there may be more.
func (w *writer) records() bool {
	n := w.log.ring.Take(w.batch)
	for i := range w.batch[:n] {
		w.batch[i].encode(&w.enc)
	}
	clear(w.batch[:n]) // their strings are not ours to keep
	if n > 0 {
		w.wroteLast = true
		w.flush()
		if n == batchSize && w.shrinkAt.IsZero() {
			w.shrinkAt = time.Now().Add(shrinkEvery)
		}
	}
	return n == batchSize
}

// rows writes some rows of the summary, and returns whether there may be more.
func (w *writer) rows() bool {
	for range batchSize {
		key, ok := w.log.table.take(w.row, &w.tally)
		if !ok {
			w.row, w.since = -1, w.until
			w.flush()
			return false
		}
		if w.tally.requests > 0 && w.log.policy.Load().logs(slog.LevelInfo) {
			w.tally.encode(&w.enc, key, w.until, w.until.Sub(w.since))
		}
		w.row++
	}
	w.flush()
	return true
}

// flush writes the lines that are ready, and returns whether none is left.
func (w *writer) flush() bool {
	if len(w.enc.buf) == 0 {
		return true
	}
	if w.abandoned.Load() || !w.failing.IsZero() && time.Now().Before(w.retryAt) {
		return false
	}
	n, err := w.out.to.Write(w.enc.buf[w.sent:])
	w.sent += min(max(n, 0), len(w.enc.buf)-w.sent)
	if w.sent < len(w.enc.buf) {
		if err == nil {
			err = io.ErrShortWrite
		}
		w.failed(err)
		return false
	}
	w.enc.reset()
	w.sent = 0
	w.works()
	return true
}

// failed notes that writes fail, when it begins.
func (w *writer) failed(err error) {
	now := time.Now()
	w.retryAt = now.Add(retryEvery)
	if w.failing.IsZero() {
		w.failing = now
		w.log.notes.Error("access log cannot be written: what does not fit its buffer is dropped until it can", "error", err.Error())
	}
}

// works notes that writes succeed again.
func (w *writer) works() {
	if w.failing.IsZero() {
		return
	}
	now, dropped := time.Now(), w.log.Dropped()
	w.log.notes.Warn("access log is written again", "after", now.Sub(w.failing).Round(time.Millisecond).String(), "dropped", dropped-w.noted)
	w.failing, w.noted, w.notedAt = time.Time{}, dropped, now
}

// noteDropped tells of lost records, now and then and at the end.
func (w *writer) noteDropped(now time.Time, last bool) {
	dropped := w.log.Dropped()
	if dropped == w.noted || !last && now.Sub(w.notedAt) < noteEvery {
		return
	}
	w.log.notes.Warn("access log dropped records: the reader of the log is too slow", "dropped", dropped-w.noted)
	w.noted, w.notedAt = dropped, now
}

// takeOutput goes on with a new output, if there is one. A line that was begun in
// another file is written whole in the new one.
func (w *writer) takeOutput() {
	next := w.log.next.Swap(nil)
	if next == nil {
		return
	}
	if old := w.out; old != nil {
		switch {
		case old.format != next.format:
			w.lose()
		case !old.sameFile(next):
			w.forgetWritten()
		}
		old.close()
	}
	w.out, w.enc.format, w.retryAt = next, next.format, time.Time{}
	w.log.current.Store(next)
}

// forgetWritten goes back to the begin of the line that is written in part.
func (w *writer) forgetWritten() {
	begin, whole := 0, 0
	for whole < len(w.enc.lines) && w.enc.lines[whole].end <= w.sent {
		begin = w.enc.lines[whole].end
		whole++
	}
	w.sent = begin
}

// lose counts the lines that are not written as lost.
func (w *writer) lose() {
	for _, l := range w.enc.lines {
		if l.end > w.sent && l.record {
			w.log.lost.Add(1)
		}
	}
	w.enc.reset()
	w.sent = 0
}

// end counts what is left as lost.
func (w *writer) end() {
	w.timer.Stop()
	w.lose()
	for n := batchSize; n == batchSize; {
		n = w.log.ring.Take(w.batch)
		w.log.lost.Add(uint64(n))
	}
	if !w.abandoned.Load() {
		w.noteDropped(time.Now(), true)
	}
	w.out.close()
}

// pause waits until there is something to do.
func (w *writer) pause() {
	if w.wroteLast {
		w.wroteLast = false
		w.wait(gather, nil)
	}
	w.wait(w.idle(time.Now()), w.log.ring.Ready())
	if now := time.Now(); !w.shrinkAt.IsZero() && !now.Before(w.shrinkAt) {
		w.shrinkAt = time.Time{}
		if w.log.ring.Shrink() {
			w.shrinkAt = now.Add(shrinkEvery)
		}
	}
}

// idle is how long there is nothing to do but for new records; below 0: without
// end.
func (w *writer) idle(now time.Time) time.Duration {
	due := time.Time{}
	by := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	if !w.failing.IsZero() {
		by(w.retryAt)
	} else {
		if period := time.Duration(w.log.summary.Load()); period > 0 {
			by(w.since.Add(period))
		}
		if w.log.Dropped() != w.noted {
			by(w.notedAt.Add(noteEvery))
		}
	}
	if !w.shrinkAt.IsZero() {
		by(w.shrinkAt)
	}
	if due.IsZero() {
		return -1
	}
	return max(due.Sub(now), 0)
}

// wait waits for limit, or without end if it is below 0, but not after ready or a
// poke.
func (w *writer) wait(limit time.Duration, ready <-chan struct{}) {
	var over <-chan time.Time
	if limit >= 0 {
		w.timer.Reset(limit)
		over = w.timer.C
	}
	select {
	case <-ready:
	case <-w.log.poke:
	case <-over:
	}
}
