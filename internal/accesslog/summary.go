// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"log/slog"
	"math"
	"math/bits"
	"sync"
	"time"
)

// maxRows is far above the upstreams of a configuration times the outcomes; what
// comes beyond is counted together.
const maxRows = 512

// A table counts requests by upstream and outcome.
type table struct {
	mu   sync.Mutex // guards the fields below and what is in the rows; held for one record or one copy of a row
	rows map[rowKey]*row
	list []*row // in the order of their making; only ever appended to
}

type rowKey struct{ upstream, outcome string }

// A row is what is known of one upstream and outcome.
type row struct {
	rowKey
	failures bucket
	tally    tally // since the last summary
}

// A tally is what a summary says.
type tally struct {
	requests, full, leftOut, dropped uint64 // dropped are among full
	streams, tokens                  uint64 // tokens: requests with a first token
	classes                          [6]uint64
	bytesIn, bytesOut                int64
	inputTokens, outputTokens        int64
	appRetries, attempts, resumes    int64
	duration, ttft                   histogram
}

func newTable() *table { return &table{rows: make(map[rowKey]*row)} }

// rowLocked finds the row of a record.
func (t *table) rowLocked(r *Record) *row {
	key := rowKey{r.Upstream, r.Outcome}
	if have, ok := t.rows[key]; ok {
		return have
	}
	if len(t.list) >= maxRows-1 {
		key = rowKey{"other", "other"}
		if have, ok := t.rows[key]; ok {
			return have
		}
	}
	made := &row{rowKey: key}
	t.rows[key] = made
	t.list = append(t.list, made)
	return made
}

// count adds r, and returns whether it is to be written in full.
func (t *table) count(r *Record, p *policy) bool {
	v := p.judge(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	row := t.rowLocked(r)
	row.tally.add(r)
	if v == failure {
		if row.failures.take(r.end(), p) {
			v = full
		} else {
			row.tally.leftOut++
		}
	}
	if v != full {
		return false
	}
	row.tally.full++
	return true
}

// dropped counts a record that was to be written in full and found no room.
func (t *table) dropped(r *Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rowLocked(r).tally.dropped++
}

// take moves the tally of row i to into, and returns whether there was a row; it
// has counted nothing if its requests are 0.
func (t *table) take(i int, into *tally) (rowKey, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i >= len(t.list) {
		return rowKey{}, false
	}
	row := t.list[i]
	if into.requests = row.tally.requests; into.requests > 0 {
		*into = row.tally
		row.tally = tally{}
	}
	return row.rowKey, true
}

func (t *tally) add(r *Record) {
	t.requests++
	if class := r.Status / 100; class > 0 && class < len(t.classes) {
		t.classes[class]++
	}
	if r.Stream {
		t.streams++
	}
	t.bytesIn += r.BytesIn
	t.bytesOut += r.BytesOut
	t.inputTokens += max(r.InputTokens, 0)
	t.outputTokens += max(r.OutputTokens, 0)
	t.appRetries += int64(r.AppRetries)
	t.attempts += int64(r.Attempts)
	t.resumes += int64(r.Resumes)
	t.duration.add(r.Duration)
	if r.TTFT > 0 {
		t.tokens++
		t.ttft.add(r.TTFT)
	}
}

// encode writes one line.
func (t *tally) encode(e *encoder, key rowKey, at time.Time, window time.Duration) {
	e.begin(at, slog.LevelInfo, "summary")
	e.name("upstream", key.upstream)
	e.name("outcome", key.outcome)
	e.millis("window_ms", window)
	e.uint("requests", t.requests)
	e.uint("in_full", t.full)
	e.some("left_out", int64(t.leftOut))
	e.some("dropped", int64(t.dropped))
	for class, name := range [...]string{"", "status_1xx", "status_2xx", "status_3xx", "status_4xx", "status_5xx"} {
		e.some(name, int64(t.classes[class]))
	}
	e.some("streams", int64(t.streams))
	e.count("bytes_in", t.bytesIn)
	e.count("bytes_out", t.bytesOut)
	e.some("input_tokens", t.inputTokens)
	e.some("output_tokens", t.outputTokens)
	e.some("attempts", t.attempts)
	e.some("resumes", t.resumes)
	e.some("app_retries", t.appRetries)
	e.millis("duration_sum_ms", t.duration.sum)
	e.millis("duration_p50_ms", t.duration.quantile(t.requests, 0.5))
	e.millis("duration_p90_ms", t.duration.quantile(t.requests, 0.9))
	e.millis("duration_p99_ms", t.duration.quantile(t.requests, 0.99))
	e.millis("duration_max_ms", t.duration.most)
	if t.tokens > 0 {
		e.millis("ttft_p50_ms", t.ttft.quantile(t.tokens, 0.5))
		e.millis("ttft_p90_ms", t.ttft.quantile(t.tokens, 0.9))
		e.millis("ttft_p99_ms", t.ttft.quantile(t.tokens, 0.99))
		e.millis("ttft_max_ms", t.ttft.most)
	}
	e.end(false)
}

// A histogram has 16 buckets for each doubling, from a microsecond to 19 hours, so
// that a quantile is off by 1/32 at most.
type histogram struct {
	buckets   [(maxMicrosBits-bucketBits)*perDoubling + perDoubling]uint32
	sum, most time.Duration
}

const (
	bucketBits    = 4
	perDoubling   = 1 << bucketBits
	maxMicrosBits = 36
)

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.sum += d
	h.most = max(h.most, d)
	micros := min(uint64(d/time.Microsecond), 1<<maxMicrosBits-1)
	shift := max(bits.Len64(micros)-bucketBits-1, 0)
	h.buckets[shift*perDoubling+int(micros>>shift)]++
}

// quantile returns the middle of the bucket in which the share q of the n values
// ends, never more than the most.
func (h *histogram) quantile(n uint64, q float64) time.Duration {
	rank := uint64(math.Ceil(q * float64(n)))
	for i, in := range h.buckets {
		if rank <= uint64(in) {
			shift := max(i/perDoubling-1, 0)
			low := time.Duration(i-shift*perDoubling) << shift
			return min((2*low+1<<shift)*time.Microsecond/2, h.most)
		}
		rank -= uint64(in)
	}
	return h.most
}
