// SPDX-License-Identifier: Apache-2.0

package qos_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwire/warmwire/transport/qos"
)

func TestASlotIsAStreamUntilItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 2})
		r.send(call{name: "a", lasts: 3 * s}, call{name: "b", lasts: 1 * s}, call{name: "c", lasts: 1 * s}, call{name: "d", lasts: 1 * s})
		r.want(event{"a", 0, ""}, event{"b", 0, ""}, event{"c", 1 * s, ""}, event{"d", 2 * s, ""})
	})
}

func TestABodyThatIsClosedGivesItsSlotBack(t *testing.T) {
	for name, end := range map[string]func(io.ReadCloser){
		"closed":       func(b io.ReadCloser) { _ = b.Close() },
		"closed twice": func(b io.ReadCloser) { _ = b.Close(); _ = b.Close() },
		"read":         func(b io.ReadCloser) { _, _ = io.ReadAll(b) },
		"written": func(b io.ReadCloser) {
			if _, err := b.(io.WriterTo).WriteTo(io.Discard); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(*http.Request) (*http.Response, error) {
				return answer(200, whole{strings.NewReader("x")}), nil
			}, qos.Config{Limit: 1, QueueTimeout: time.Nanosecond})
			for i := range 3 {
				resp, err := r.way.RoundTrip(request(t))
				if err != nil {
					t.Fatalf("request %d: %v", i, err)
				}
				if n := r.gate.State().Running[qos.Interactive]; n != 1 {
					t.Errorf("%d run, want 1", n)
				}
				end(resp.Body)
				if n := r.gate.State().Running[qos.Interactive]; n != 0 {
					t.Errorf("%d run at the end, want 0", n)
				}
			}
		})
	}
}

// whole is a body that hands its bytes over itself, and tells how many there are.
type whole struct{ *strings.Reader }

func (whole) Close() error    { return nil }
func (w whole) Buffered() int { return w.Len() }

func request(t testing.TB) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://up.test/", nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestAFailureGivesItsSlotBack(t *testing.T) {
	broken := errors.New("broken")
	r := newRig(t, func(req *http.Request) (*http.Response, error) {
		if req.Header.Get("Panic") != "" {
			panic(broken)
		}
		return nil, broken
	}, qos.Config{Limit: 1, QueueTimeout: time.Nanosecond})
	for range 3 {
		if _, err := r.way.RoundTrip(request(t)); !errors.Is(err, broken) {
			t.Fatalf("RoundTrip = %v, want %v", err, broken)
		}
	}
	func() {
		defer func() { _ = recover() }()
		req := request(t)
		req.Header.Set("Panic", "1")
		_, _ = r.way.RoundTrip(req)
	}()
	if n := r.gate.State().Running[qos.Interactive]; n != 0 {
		t.Errorf("%d run after a panic, want 0", n)
	}
}

// A socketBody is what the way out gives with 101.
type socketBody struct {
	io.Reader
	out     bytes.Buffer
	watched bool
}

func (b *socketBody) Write(p []byte) (int, error) { return b.out.Write(p) }
func (*socketBody) CloseWrite() error             { return nil }
func (*socketBody) Close() error                  { return nil }
func (b *socketBody) Watch() net.Conn             { b.watched = true; return nil }

func TestAWebSocketIsARequestUntilItIsClosed(t *testing.T) {
	sock := &socketBody{Reader: strings.NewReader("")}
	r := newRig(t, func(*http.Request) (*http.Response, error) { return answer(101, sock), nil }, qos.Config{Limit: 1, QueueTimeout: time.Nanosecond})
	resp, err := r.way.RoundTrip(request(t))
	if err != nil {
		t.Fatal(err)
	}
	b, ok := resp.Body.(interface {
		io.ReadWriteCloser
		CloseWrite() error
		Watch() net.Conn
	})
	if !ok {
		t.Fatalf("the body is %T, and no socket", resp.Body)
	}
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read = %v, want the end of one side", err)
	}
	if _, err := b.Write([]byte("hello")); err != nil || sock.out.String() != "hello" || b.Watch() != nil || !sock.watched {
		t.Errorf("Write = %v; the socket got %q, watched %v", err, sock.out.String(), sock.watched)
	}
	if n := r.gate.State().Running[qos.Interactive]; n != 1 {
		t.Errorf("%d run while one side is open, want 1", n)
	}
	_ = b.Close()
	if n := r.gate.State().Running[qos.Interactive]; n != 0 {
		t.Errorf("%d run, want 0", n)
	}
}

func TestMoreUrgentClassesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1})
		r.send(call{name: "first", class: qos.Batch, lasts: s},
			call{name: "batch", class: qos.Batch, lasts: s}, call{name: "default", class: qos.Default, lasts: s}, call{name: "interactive", lasts: s})
		r.want(event{"first", 0, ""}, event{"interactive", s, ""}, event{"default", 2 * s, ""}, event{"batch", 3 * s, ""})
	})
}

// TestNoClassStarves: of one slot, batch gets each ninth start however many more urgent
// requests wait.
func TestNoClassStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, QueueTimeout: time.Hour})
		calls := append(burst(40, call{name: "i", lasts: s}), burst(4, call{name: "b", class: qos.Batch, lasts: s})...)
		r.send(calls...)
		var at []time.Duration
		for _, e := range r.begun {
			if e.name[0] == 'b' {
				at = append(at, e.at)
			}
		}
		if want := []time.Duration{9 * s, 18 * s, 27 * s, 36 * s}; !slices.Equal(at, want) {
			t.Errorf("batch starts at %v, want %v", at, want)
		}
	})
}

// TestTenantsTakeTurnsByWeight: gold has weight 2 beside 1, whoever came first.
func TestTenantsTakeTurnsByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, QueueTimeout: time.Hour})
		calls := append(burst(9, call{name: "s", tenant: "silver", lasts: s}), burst(6, call{name: "g", tenant: "gold", weight: 2, lasts: s})...)
		r.send(calls...)
		var order strings.Builder
		for _, e := range r.begun {
			order.WriteByte(e.name[0])
		}
		if got, want := order.String(), "sgsggsggsggssss"; got != want && strings.Count(got[:10], "g") != 6 {
			t.Errorf("order %s, want such as %s: six of gold among the first ten", got, want)
		}
	})
}

// TestATurnCostsWhatItLasts: streams of a tenant that last twice as long get half as many
// turns, so that both have the slot for as long.
func TestATurnCostsWhatItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, QueueTimeout: time.Hour})
		calls := append(burst(60, call{name: "l", tenant: "long", lasts: 2 * s}), burst(60, call{name: "s", tenant: "short", lasts: s})...)
		r.send(calls...)
		held := map[byte]time.Duration{}
		for _, e := range r.begun {
			if e.at > 90*s {
				break
			}
			held[e.name[0]] += map[byte]time.Duration{'l': 2 * s, 's': s}[e.name[0]]
		}
		if l, sh := held['l'], held['s']; l-sh > 4*s || sh-l > 4*s {
			t.Errorf("in 90 s long held the slot for %v, short for %v", l, sh)
		}
	})
}

func TestWhoLeavesIsOutOfTheQueueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, Queue: 1})
		go func() {
			time.Sleep(2*s - time.Nanosecond)
			if n := r.gate.State().Waiting[qos.Default]; n != 1 {
				t.Errorf("%d wait before it leaves, want 1", n)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if n := r.gate.State().Waiting[qos.Default]; n != 0 {
				t.Errorf("%d wait after it left, want 0", n)
			}
		}()
		r.send(call{name: "runs", lasts: 5 * s}, call{name: "leaves", class: qos.Default, leaves: 2 * s, lasts: s},
			call{name: "early", class: qos.Default, at: s, lasts: s}, call{name: "later", class: qos.Default, at: 3 * s, lasts: s})
		r.want(event{"runs", 0, ""}, event{"early", s, qos.QueueFull}, event{"later", 5 * s, ""})
	})
}

func TestAWaitHasItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, QueueTimeout: 3 * s})
		r.send(call{name: "runs", lasts: 20 * s}, call{name: "waits", at: s, lasts: s})
		r.want(event{"runs", 0, ""}, event{"waits", 4 * s, qos.QueueTimeout})
	})
}

// TestAFullQueue: the newest of the least urgent goes, and there of the tenant with most.
func TestAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, Queue: 3})
		r.send(call{name: "runs", class: qos.Batch, lasts: s},
			call{name: "b1", class: qos.Batch, tenant: "big", lasts: s}, call{name: "b2", class: qos.Batch, tenant: "big", lasts: s},
			call{name: "b3", class: qos.Batch, tenant: "big", lasts: s},
			call{name: "b4", class: qos.Batch, tenant: "big", lasts: s},      // its own are the most
			call{name: "small", class: qos.Batch, tenant: "small", lasts: s}, // takes the place of b3
			call{name: "urgent", lasts: s},                                   // takes that of b2
			call{name: "b5", class: qos.Batch, tenant: "big", lasts: s},
		)
		r.want(event{"runs", 0, ""}, event{"b4", 0, qos.QueueFull}, event{"b3", 0, qos.QueueFull}, event{"b2", 0, qos.OverShare},
			event{"b5", 0, qos.OverShare}, event{"urgent", s, ""}, event{"b1", 2 * s, ""}, event{"small", 3 * s, ""})
	})
}

// TestErrorsSayWhen: nothing was sent, and there may be room when those before are done.
func TestErrorsSayWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, Queue: 1})
		r.send(call{name: "a", lasts: 8 * s}, call{name: "b", at: 8 * s, lasts: 8 * s}, call{name: "c", at: 8 * s, lasts: 8 * s},
			call{name: "d", at: 9 * s, lasts: 8 * s})
		if len(r.refused) != 1 {
			t.Fatalf("refused: %v", r.refused)
		}
		if got := r.refused[0]; got.Status() != 503 || got.RetryAfter() != 16*s || got.Phase() != "queue" || got.RequestSent() || got.Code() != "upstream_limit_queue_full" {
			t.Errorf("%d after %v, %s %s, sent %v", got.Status(), got.RetryAfter(), got.Phase(), got.Code(), got.RequestSent())
		}
	})
}

// TestSlotsAreKeptForWhoNeededThemLately: a burst of batch does not take the two slots
// that an interactive tenant has had in use.
func TestSlotsAreKeptForWhoNeededThemLately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 8, QueueTimeout: time.Hour})
		calls := []call{{name: "i0", tenant: "gold", lasts: s}, {name: "i1", tenant: "gold", lasts: s}}
		calls = append(calls, burst(20, call{name: "b", class: qos.Batch, tenant: "bulk", at: 2 * s, lasts: 10 * s})...)
		calls = append(calls, call{name: "i2", tenant: "gold", at: 3 * s, lasts: s}, call{name: "i3", tenant: "gold", at: 3 * s, lasts: s})
		r.send(calls...)
		at := map[string]time.Duration{}
		for _, e := range r.begun {
			at[e.name] = e.at
		}
		if at["i2"] != 3*s || at["i3"] != 3*s {
			t.Errorf("interactive starts at %v and %v, want 3s both", at["i2"], at["i3"])
		}
		if at["b5"] != 2*s || at["b6"] != 10*s {
			t.Errorf("batch starts at %v and %v, want six at 2s and the next at 10s, two epochs after the last need", at["b5"], at["b6"])
		}
		if at["b7"] != 10*s || at["b13"] != 12*s {
			t.Errorf("%v and %v: nobody needs the slots any more, want eight batch at once", at["b7"], at["b13"])
		}
	})
}

// TestWhatIsKeptIsUsedWhenNobodyComes: the need is forgotten in time, without any event.
func TestWhatIsKeptIsUsedWhenNobodyComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 2, QueueTimeout: time.Hour})
		r.send(call{name: "i", lasts: s}, call{name: "b1", class: qos.Batch, at: s, lasts: time.Minute}, call{name: "b2", class: qos.Batch, at: s, lasts: s})
		r.want(event{"i", 0, ""}, event{"b1", s, ""}, event{"b2", 10 * s, ""})
	})
}

// TestWhatWasNeededLongAgoIsNotKept: an hour without requests is no recent need.
func TestWhatWasNeededLongAgoIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 2, QueueTimeout: time.Hour})
		r.send(call{name: "i", lasts: s}, call{name: "b1", class: qos.Batch, at: time.Hour, lasts: time.Minute}, call{name: "b2", class: qos.Batch, at: time.Hour, lasts: s})
		r.want(event{"i", 0, ""}, event{"b1", time.Hour, ""}, event{"b2", time.Hour, ""})
	})
}

// TestASlotForWhoLeavesJustNowIsNotLost: the slot becomes free in the moment in which the
// one that waits for it leaves.
func TestASlotForWhoLeavesJustNowIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, QueueTimeout: time.Hour})
		for range 100 {
			at := time.Since(r.from)
			r.send(call{name: "runs", at: at, lasts: s}, call{name: "leaves", at: at, lasts: s, leaves: s})
			if n := r.gate.State().Running[qos.Interactive]; n != 0 {
				t.Fatalf("%d run when all have ended", n)
			}
		}
	})
}

func TestLimitsChangeWhileRequestsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, streams, qos.Config{Limit: 1, QueueTimeout: time.Hour})
		update := func(at time.Duration, cfg qos.Config) {
			time.AfterFunc(at, func() {
				if err := r.gate.Update(cfg); err != nil {
					t.Error(err)
				}
			})
		}
		update(s, qos.Config{Limit: 3})
		update(2*s, qos.Config{Limit: 1})
		update(25*s, qos.Config{})
		r.send(burst(7, call{name: "r", lasts: 10 * s})...)
		slices.SortFunc(r.begun, func(a, b event) int { return strings.Compare(a.name, b.name) }) // those of one moment begin in any order
		r.want(event{"r0", 0, ""}, event{"r1", s, ""}, event{"r2", s, ""}, event{"r3", 11 * s, ""}, event{"r4", 21 * s, ""}, event{"r5", 25 * s, ""}, event{"r6", 25 * s, ""})
	})
}

func TestConfigThatCannotWork(t *testing.T) {
	for _, cfg := range []qos.Config{{Limit: -1}, {Floor: -1}, {Queue: -1}, {QueueTimeout: -1}, {Adaptive: true, Limit: 3, Floor: 4}} {
		if _, err := qos.NewGate(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	gate, err := qos.NewGate(qos.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := qos.New(nil, gate, nil); err == nil {
		t.Error("a layer without a way out is taken")
	}
}

// TestManyTenantsAtOnce is for the race detector: everything that a gate does, at once.
func TestManyTenantsAtOnce(t *testing.T) {
	var told sync.Map
	r := newRig(t, func(*http.Request) (*http.Response, error) {
		return answer(200, whole{strings.NewReader("x")}, "X-Ratelimit-Remaining-Requests", "100", "X-Ratelimit-Limit-Requests", "1000", "X-Ratelimit-Reset-Requests", "1ms"), nil
	}, qos.Config{Limit: 3, Queue: 4, QueueTimeout: 5 * ms, Adaptive: true, Pace: true, OnRefuse: func(t qos.Ticket, r qos.Reason) { told.Store(t.Tenant, r) }})
	var work sync.WaitGroup
	for i := range 16 {
		work.Go(func() {
			for n := range 200 {
				req := request(t)
				req.Header.Set("Tenant", string(rune('a'+i%5)))
				req.Header.Set("Class", string(rune('0'+n%3)))
				req.Header.Set("Weight", string(rune('1'+n%4)))
				resp, err := r.way.RoundTrip(req)
				if err == nil {
					_, _ = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				if n%50 == 0 {
					_ = r.gate.State()
					r.gate.Refused(time.Microsecond)
				}
			}
		})
	}
	work.Wait()
	if st := r.gate.State(); st.Running != [qos.Classes]int{} || st.Waiting != [qos.Classes]int{} {
		t.Errorf("when all is over %v run and %v wait", st.Running, st.Waiting)
	}
}
