// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"sync"
	"time"
)

// Limits are a tenant's quotas; 0 = none.
type Limits struct {
	Requests     int64 // a minute
	OutputTokens int64 // a minute
	Upload       int64 // bytes of request bodies a minute
	Streams      int64 // at once: requests, WebSockets and tunnels
}

// A Quota names one of them. It is also a metric label.
type Quota string

// The quotas.
const (
	Requests     Quota = "requests"
	OutputTokens Quota = "output_tokens"
	Upload       Quota = "upload"
	Streams      Quota = "streams"
)

// streamsAfter is when to ask again for a stream: nobody knows when one ends. A
// guess.
const streamsAfter = time.Second

// An Over says which quota a request would go beyond.
type Over struct {
	Quota Quota
	After time.Duration // until there is room again
	Never bool          // the request is larger than a whole minute's quota
}

// slots are one more than a minute has seconds, so that what was used in the
// course of a second counts for a whole minute.
const slots = 61

// A window counts what was used in the last minute.
type window struct {
	used [slots]int64 // by second, modulo slots
	sum  int64
	last int64 // the newest second that counts
}

// advance forgets what is older than a minute at second sec.
func (w *window) advance(sec int64) {
	for n := min(sec-w.last, slots); n > 0; n-- {
		i := (sec - n + 1) % slots
		w.sum -= w.used[i]
		w.used[i] = 0
	}
	w.last = max(w.last, sec)
}

func (w *window) add(n int64) {
	w.used[w.last%slots] += n
	w.sum += n
}

// takeBack gives back n of what was used since second sec, the oldest first.
func (w *window) takeBack(n, sec int64) {
	for sec = max(sec, w.last-slots+1, 0); sec <= w.last && n > 0; sec++ {
		part := min(n, w.used[sec%slots])
		w.used[sec%slots] -= part
		w.sum -= part
		n -= part
	}
}

// wait is the number of seconds, counted from the newest, after which n more are
// within limit. They are not now.
func (w *window) wait(n, limit int64) int64 {
	left := w.sum
	for age := int64(slots - 1); age >= 0; age-- {
		if sec := w.last - age; sec >= 0 {
			left -= w.used[sec%slots]
		}
		if left+n <= limit {
			return slots - age
		}
	}
	return slots
}

// An account is what a tenant has used. It outlives a reload.
type account struct {
	epoch time.Time // seconds are counted from here, by the monotonic clock

	mu                       sync.Mutex // guards the fields below
	requests, tokens, upload window
	streams                  int64
}

func newAccount() *account { return &account{epoch: time.Now()} }

func (a *account) advanceLocked(now time.Time) time.Duration {
	since := max(0, now.Sub(a.epoch))
	sec := int64(since / time.Second)
	a.requests.advance(sec)
	a.tokens.advance(sec)
	a.upload.advance(sec)
	return since
}

// Begin takes one request with a body of upload bytes (less than 0 = not known)
// and a stream, or says what there is too much of.
func (t *Tenant) Begin(now time.Time, upload int64) (*Use, *Over) {
	a := t.account
	upload = max(0, upload)
	a.mu.Lock()
	defer a.mu.Unlock()
	since := a.advanceLocked(now)
	if over := t.overLocked(since, upload); over != nil {
		return nil, over
	}
	a.requests.add(1)
	a.upload.add(upload)
	a.streams++
	return &Use{t: t, began: a.requests.last, paid: upload}, nil
}

// overLocked finds the quota for which a request must wait longest.
func (t *Tenant) overLocked(since time.Duration, upload int64) *Over {
	a, l := t.account, t.limits
	var worst *Over
	take := func(q Quota, w *window, n, limit int64) {
		if limit == 0 || w.sum+n <= limit {
			return
		}
		end := time.Duration(w.last+w.wait(n, limit)) * time.Second
		if o := (Over{Quota: q, After: max(time.Nanosecond, end-since), Never: n > limit}); worst == nil || o.Never || !worst.Never && o.After > worst.After {
			worst = &o
		}
	}
	take(Requests, &a.requests, 1, l.Requests)
	take(OutputTokens, &a.tokens, 1, l.OutputTokens)
	take(Upload, &a.upload, upload, l.Upload)
	if worst == nil && l.Streams > 0 && a.streams >= l.Streams {
		worst = &Over{Quota: Streams, After: streamsAfter}
	}
	return worst
}

// A Use is one request that runs. Its methods are nil-safe.
type Use struct {
	t     *Tenant
	began int64 // second

	// The following are guarded by the account's lock.
	paid   int64 // bytes of upload that are charged
	read   int64
	chunks int64 // that are charged as tokens
	ended  bool
}

// Chunks charges the answer's chunks up to now, n in all, as tokens.
func (u *Use) Chunks(n int, now time.Time) {
	if u == nil {
		return
	}
	a := u.t.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if more := int64(n) - u.chunks; more > 0 && !u.ended {
		a.advanceLocked(now)
		a.tokens.add(more)
		u.chunks += more
	}
}

// Uploaded charges n more bytes of the request's body, and says how many there are
// too many of, if so.
func (u *Use) Uploaded(n int64, now time.Time) *Over {
	if u == nil || n <= 0 {
		return nil
	}
	a := u.t.account
	a.mu.Lock()
	defer a.mu.Unlock()
	u.read += n
	more := u.read - u.paid
	if more <= 0 || u.ended {
		return nil
	}
	since := a.advanceLocked(now)
	limit := u.t.limits.Upload
	if limit > 0 && a.upload.sum+more > limit {
		end := time.Duration(a.upload.last+a.upload.wait(more, limit)) * time.Second
		return &Over{Quota: Upload, After: max(time.Nanosecond, end-since), Never: u.read > limit}
	}
	a.upload.add(more)
	u.paid += more
	return nil
}

// End gives the stream back, and charges what the answer says that it cost in
// output tokens; less than 0 = it said nothing, and its chunks stay. It returns
// the tokens that were charged, and whether they are an estimate.
func (u *Use) End(tokens int64, now time.Time) (charged int64, estimate bool) {
	if u == nil {
		return 0, false
	}
	a := u.t.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if u.ended {
		return 0, false
	}
	u.ended = true
	a.advanceLocked(now)
	a.streams--
	a.upload.takeBack(u.paid-u.read, u.began) // what was announced and never came
	if tokens < 0 {
		return u.chunks, u.chunks > 0
	}
	a.tokens.add(max(0, tokens-u.chunks))
	a.tokens.takeBack(u.chunks-tokens, u.began)
	return tokens, false
}

// A Level is how much of one quota is used.
type Level struct{ Used, Limit int64 }

// Usage is what a tenant uses now.
type Usage struct{ Requests, OutputTokens, Upload, Streams Level }

// Usage tells what the tenant used in the last minute, and what runs.
func (t *Tenant) Usage(now time.Time) Usage {
	a, l := t.account, t.limits
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advanceLocked(now)
	return Usage{
		Level{a.requests.sum, l.Requests}, Level{a.tokens.sum, l.OutputTokens},
		Level{a.upload.sum, l.Upload}, Level{a.streams, l.Streams},
	}
}
