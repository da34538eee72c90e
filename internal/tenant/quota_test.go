// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func limited(t testing.TB, l Limits, old *Book) *Book {
	return book(t, Config{Roles: []Role{all}, Tenants: []Settings{{Name: "a", Roles: []string{"all"}, Limits: l}, {Name: "b", Roles: []string{"all"}, Limits: l}}}, nil, old)
}

// begin begins a request and wants it to be let in.
func begin(t *testing.T, b *Book, upload int64) *Use {
	t.Helper()
	u, over := b.Tenant("a").Begin(time.Now(), upload)
	if over != nil {
		t.Fatalf("refused: %+v", *over)
	}
	return u
}

// refused wants a request to be refused exactly so.
func refused(t *testing.T, b *Book, upload int64, want Over) {
	t.Helper()
	u, over := b.Tenant("a").Begin(time.Now(), upload)
	if over == nil {
		u.End(0, time.Now())
		t.Fatalf("let in, want %+v", want)
	}
	if *over != want {
		t.Fatalf("got %+v, want %+v", *over, want)
	}
}

const s = time.Second

func TestRequestsAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, Limits{Requests: 2}, nil)
		begin(t, b, -1)
		time.Sleep(10*s + 300*time.Millisecond)
		begin(t, b, -1)
		refused(t, b, -1, Over{Quota: Requests, After: 61*s - 10*s - 300*time.Millisecond})
		time.Sleep(50*s + 700*time.Millisecond - 1)
		refused(t, b, -1, Over{Quota: Requests, After: 1})
		time.Sleep(time.Nanosecond) // what RetryAfter said is true to the nanosecond
		begin(t, b, -1)
		refused(t, b, -1, Over{Quota: Requests, After: 10 * s})
		if u, over := b.Tenant("b").Begin(time.Now(), -1); over != nil {
			t.Errorf("a neighbour is refused: %+v", over)
		} else {
			u.End(0, time.Now())
		}
		time.Sleep(time.Hour)
		begin(t, b, -1)
		begin(t, b, -1)
		refused(t, b, -1, Over{Quota: Requests, After: 61 * s})
	})
}

func TestOutputTokensAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, Limits{OutputTokens: 100}, nil)
		first, second := begin(t, b, -1), begin(t, b, -1)
		first.Chunks(60, time.Now())
		time.Sleep(5 * s)
		if n, estimate := first.End(90, time.Now()); n != 90 || estimate {
			t.Errorf("charged %d, %v", n, estimate)
		}
		begin(t, b, -1).End(0, time.Now()) // 90 of 100
		second.Chunks(30, time.Now())      // goes on, whatever it costs
		refused(t, b, -1, Over{Quota: OutputTokens, After: 56 * s})
		if n, estimate := second.End(-1, time.Now()); n != 30 || !estimate {
			t.Errorf("charged %d, %v", n, estimate)
		}
		if n, _ := second.End(1000, time.Now()); n != 0 {
			t.Errorf("charged twice: %d", n)
		}
		second.Chunks(500, time.Now())
		if got := b.Tenant("a").Usage(time.Now()).OutputTokens; got != (Level{120, 100}) {
			t.Errorf("usage %+v", got)
		}
		time.Sleep(56 * s)
		begin(t, b, -1)
	})
}

// TestFewerTokensThanChunks gives back what was counted too much, but nothing that
// is forgotten already.
func TestFewerTokensThanChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, Limits{OutputTokens: 100}, nil)
		u := begin(t, b, -1)
		u.Chunks(80, time.Now())
		time.Sleep(3 * s)
		u.End(10, time.Now())
		used := func() int64 { return b.Tenant("a").Usage(time.Now()).OutputTokens.Used }
		if got := used(); got != 10 {
			t.Errorf("%d are used, want 10", got)
		}
		u = begin(t, b, -1)
		u.Chunks(80, time.Now())
		time.Sleep(10 * time.Minute)
		u.End(10, time.Now())
		if got := used(); got != 0 {
			t.Errorf("%d are used, want 0", got)
		}
	})
}

func TestUploadAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, Limits{Upload: 1000}, nil)
		u := begin(t, b, 600)
		refused(t, b, 500, Over{Quota: Upload, After: 61 * s})
		refused(t, b, 1001, Over{Quota: Upload, After: 61 * s, Never: true})
		if over := u.Uploaded(600, time.Now()); over != nil {
			t.Errorf("what was announced is too much: %+v", over)
		}
		time.Sleep(5 * s)
		open := begin(t, b, -1) // of unknown length
		if over := open.Uploaded(400, time.Now()); over != nil {
			t.Errorf("refused: %+v", over)
		}
		if over := open.Uploaded(1, time.Now()); over == nil || *over != (Over{Quota: Upload, After: 56 * s}) {
			t.Errorf("got %+v", over)
		}
		u.End(0, time.Now())
		open.End(0, time.Now())
		time.Sleep(5 * time.Minute)
		u = begin(t, b, 1000) // announced, and never sent
		u.End(0, time.Now())
		begin(t, b, 1000)
	})
}

func TestStreamsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, Limits{Streams: 1, Requests: 5}, nil)
		u := begin(t, b, -1)
		for range 10 {
			refused(t, b, -1, Over{Quota: Streams, After: s})
		}
		u.End(0, time.Now())
		u.End(0, time.Now()) // once is enough
		begin(t, b, -1)
		refused(t, b, -1, Over{Quota: Streams, After: s})
		if got := b.Tenant("a").Usage(time.Now()); got.Requests.Used != 2 || got.Streams != (Level{1, 1}) {
			t.Errorf("usage %+v: the refused must not count", got)
		}
	})
}

func TestReloadKeepsWhatWasUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, Limits{Requests: 3, Streams: 2}, nil)
		u := begin(t, b, -1)
		begin(t, b, -1)
		b = limited(t, Limits{Requests: 3, Streams: 2}, b)
		refused(t, b, -1, Over{Quota: Streams, After: s})
		u.End(0, time.Now())
		begin(t, b, -1)
		b = limited(t, Limits{Requests: 2}, b) // less than is used
		refused(t, b, -1, Over{Quota: Requests, After: 61 * s})
		gone := book(t, Config{Roles: []Role{all}, Tenants: []Settings{{Name: "b", Roles: []string{"all"}}}}, nil, b)
		b = limited(t, Limits{Requests: 1}, gone) // it is another tenant that comes back
		begin(t, b, -1)
	})
}

func TestNoLimitsAndNoUse(t *testing.T) {
	b := limited(t, Limits{}, nil)
	for range 1000 {
		begin(t, b, 1<<40).Chunks(1<<30, time.Now())
	}
	var none *Use
	none.Chunks(1, time.Now())
	if over := none.Uploaded(1, time.Now()); over != nil {
		t.Error("a nil Use refuses")
	}
	if n, _ := none.End(5, time.Now()); n != 0 {
		t.Error("a nil Use charges")
	}
}

// TestNoMinuteHoldsMoreThanTheLimit compares the window with a list of all that was
// let in.
func TestNoMinuteHoldsMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.Int64Range(1, 5).Draw(rt, "limit")
		b := limited(t, Limits{Requests: limit}, nil)
		a := b.Tenant("a")
		now := a.account.epoch
		var in []time.Time
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(40*s)).Draw(rt, "pause")))
			_, over := a.Begin(now, -1)
			if over != nil {
				if over.After <= 0 || over.After > 61*s {
					rt.Fatalf("after %v", over.After)
				}
				if _, still := a.Begin(now.Add(over.After-1), -1); still == nil {
					rt.Fatalf("there was room before %v", over.After)
				}
				now = now.Add(over.After)
				if _, over = a.Begin(now, -1); over != nil {
					rt.Fatalf("there was no room after the time that was told, but in %v", over.After)
				}
			}
			in = append(in, now)
			recent := int64(0)
			for _, at := range in {
				if now.Sub(at) < time.Minute {
					recent++
				}
			}
			if recent > limit {
				rt.Fatalf("%d in a minute, limit %d", recent, limit)
			}
		}
	})
}
