// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	collectortrace "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"

	"github.com/warmwire/warmwire/internal/otlp"
)

// TestBatches: a span waits five seconds for others, a whole batch does not wait.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true})
		time.Sleep(s)
		r.Done(traced())
		time.Sleep(2 * s)
		r.Done(traced())
		time.Sleep(10 * s) // both have gone at 6 s
		for range maxBatch + 1 {
			r.Done(traced())
		}
		time.Sleep(10 * s)
		r.stop()
		if want := []time.Duration{6 * s, 13 * s, 18 * s}; !slices.Equal(c.attempts, want) || !slices.Equal(c.batches, []int{2, maxBatch, 1}) {
			t.Errorf("messages at %v of %v spans, want them at %v", c.attempts, c.batches, want)
		}
		if r.ledger.spans[Exported] != maxBatch+3 {
			t.Errorf("reported %v", r.ledger.spans)
		}
	})
}

// TestRetries: when a message is sent again, and when it is given up.
func TestRetries(t *testing.T) {
	answers := func(list ...func() (*http.Response, error)) func(int, *http.Request) (*http.Response, error) {
		return func(n int, _ *http.Request) (*http.Response, error) { return list[min(n, len(list)-1)]() }
	}
	ok := func() (*http.Response, error) { return status(200) }
	is := func(code int, fields ...string) func() (*http.Response, error) {
		return func() (*http.Response, error) { return status(code, fields...) }
	}
	reset := func() (*http.Response, error) { return nil, errReset }
	for _, tt := range []struct {
		name   string
		answer func(int, *http.Request) (*http.Response, error)
		want   []time.Duration // of attempts; the first leaves at 5 s
		ends   Outcome
	}{
		{"once is enough", answers(ok), []time.Duration{5 * s}, Exported},
		{"it is told when", answers(is(429, "Retry-After", "7"), ok), []time.Duration{5 * s, 12 * s}, Exported},
		{"pauses grow", answers(is(503), reset, is(502), is(504), ok), []time.Duration{5 * s, 6 * s, 8 * s, 12 * s, 20 * s}, Exported},
		{"less than the pause", answers(is(503, "Retry-After", "0"), ok), []time.Duration{5 * s, 6 * s}, Exported},
		{"bad data", answers(is(400)), []time.Duration{5 * s}, Failed},
		{"no right", answers(is(401)), []time.Duration{5 * s}, Failed},
		{"for a minute", answers(is(503)), []time.Duration{5 * s, 6 * s, 8 * s, 12 * s, 20 * s, 36 * s}, Failed},
		{"not for ever, which is no short time", answers(func() (*http.Response, error) {
			<-time.NewTimer(s / 2).C // what has passed and what is asked for are more than a Duration can hold
			return status(429, "Retry-After", "99999999999999")
		}), []time.Duration{5 * s}, Failed},
		{"nor until the end of the calendar", answers(func() (*http.Response, error) {
			<-time.NewTimer(s / 2).C
			return status(503, "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")
		}), []time.Duration{5 * s}, Failed},
		{"not for an hour", answers(is(503, "Retry-After", "3600")), []time.Duration{5 * s}, Failed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCollector(t)
				c.answer = tt.answer
				r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true})
				r.Done(traced())
				time.Sleep(2 * time.Minute)
				r.stop()
				if !slices.Equal(c.attempts, tt.want) || r.ledger.spans[tt.ends] != 1 {
					t.Errorf("attempts at %v, %v; want %v, %s", c.attempts, r.ledger.spans, tt.want, tt.ends)
				}
				if n := r.ledger.sends[Retried]; n != len(tt.want)-1 {
					t.Errorf("%d further attempts are reported", n)
				}
			})
		})
	}
}

// TestJitter spreads the pauses over half of their length.
func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		c.answer = func(int, *http.Request) (*http.Response, error) { return status(503) }
		r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true})
		r.cfg.Jitter = func() float64 { return 0 }
		r.Done(traced())
		time.Sleep(7 * s)
		r.stop()
		if want := []time.Duration{5 * s, 5*s + s/2, 6*s + s/2, 7 * s}; !slices.Equal(c.attempts, want) { // the last one is that of the end
			t.Errorf("attempts at %v, want %v", c.attempts, want)
		}
	})
}

// TestPartialSuccess: what was rejected is counted and not sent again.
func TestPartialSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		c.answer = func(int, *http.Request) (*http.Response, error) {
			body, err := proto.Marshal(&collectortrace.ExportTraceServiceResponse{PartialSuccess: &collectortrace.ExportTracePartialSuccess{RejectedSpans: 2}})
			if err != nil {
				return nil, err
			}
			return answerOf(body), nil
		}
		r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true})
		for range 5 {
			r.Done(traced())
		}
		time.Sleep(time.Minute)
		r.stop()
		if len(c.attempts) != 1 || r.ledger.spans[Rejected] != 2 || r.ledger.spans[Exported] != 3 {
			t.Errorf("%d attempts, %v", len(c.attempts), r.ledger.spans)
		}
	})
}

// TestADeadCollectorCostsNobodyAnything: 100,000 requests end at one moment while the
// collector says nothing. None waits, what is kept is bounded, all are accounted for.
func TestADeadCollectorCostsNobodyAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		c.answer = func(_ int, r *http.Request) (*http.Response, error) { return hang(r) }
		r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true, Metrics: true, Upstreams: upstreams})
		begun := time.Now()
		for range 100_000 {
			r.Done(traced())
		}
		if d := time.Since(begun); d != 0 {
			t.Errorf("requests waited %v", d)
		}
		if most := int64(maxQueue+maxBatch) * spanBytes; r.purse.max > most || r.queue.len() > maxQueue {
			t.Errorf("%d bytes and %d spans were kept, want %d bytes at most", r.purse.max, r.queue.len(), most)
		}
		time.Sleep(10 * time.Minute)
		if took := r.stop(); took > 2*s {
			t.Errorf("the end took %v", took)
		}
		if n := r.ledger.spans[Dropped] + r.ledger.spans[Failed]; n != 100_000 || r.ledger.spans[Exported] != 0 {
			t.Errorf("reported %v", r.ledger.spans)
		}
	})
}

// TestNoRoomInTheBudget drops what the memory of the process has no room for.
func TestNoRoomInTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true})
		r.purse.room = 3 * spanBytes
		for range 5 {
			r.Done(traced())
		}
		time.Sleep(6 * s)
		r.Done(traced()) // there is room again
		r.stop()
		if r.ledger.spans[Dropped] != 2 || r.ledger.spans[Exported] != 4 {
			t.Errorf("reported %v", r.ledger.spans)
		}
	})
}

// TestTheEnd: what waits is sent at once; a collector that says nothing delays the end by
// the flush timeout and no more; one that asks for patience gets one more attempt.
func TestTheEnd(t *testing.T) {
	for _, tt := range []struct {
		name     string
		answer   func(int, *http.Request) (*http.Response, error)
		took     time.Duration
		attempts int
		ends     Outcome
	}{
		{"a collector that works", nil, 0, 2, Exported},
		{"one that hangs", func(_ int, r *http.Request) (*http.Response, error) { return hang(r) }, 2 * s, 2, Failed},
		{"one that asks for patience", func(int, *http.Request) (*http.Response, error) { return status(503, "Retry-After", "30") }, 0, 2, Failed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCollector(t)
				c.answer = tt.answer
				r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true, Metrics: true, Upstreams: upstreams})
				for range 3 {
					r.Done(traced())
				}
				time.Sleep(s)
				if took := r.stop(); took != tt.took {
					t.Errorf("the end took %v, want %v", took, tt.took)
				}
				if len(c.attempts) > tt.attempts || r.ledger.spans[tt.ends] != 3 {
					t.Errorf("%d attempts, %v", len(c.attempts), r.ledger.spans)
				}
				r.Done(traced()) // after the end
				if r.ledger.spans[Dropped] != 1 {
					t.Error("a span after the end is not counted")
				}
			})
		})
	}
}

// TestTheEndInAPause does not wait for it.
func TestTheEndInAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		c.answer = func(n int, _ *http.Request) (*http.Response, error) {
			if n == 0 {
				return status(503, "Retry-After", "50")
			}
			return status(200)
		}
		r := run(t, Settings{Target: c.target(otlp.Protobuf), Traces: true})
		r.Done(traced())
		time.Sleep(20 * s)
		if took := r.stop(); took != 0 || r.ledger.spans[Exported] != 1 {
			t.Errorf("the end took %v, %v", took, r.ledger.spans)
		}
	})
}

// TestAnotherTarget: a change of settings takes what waits to the new place at once, in
// its encoding, also from a collector that hangs; one that changes nothing of the target
// does not send anything twice.
func TestAnotherTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, next := newCollector(t), newCollector(t)
		old.answer = func(_ int, r *http.Request) (*http.Response, error) { return hang(r) }
		settings := Settings{Target: old.target(otlp.Protobuf), Traces: true}
		r := run(t, settings)
		r.Done(traced())
		time.Sleep(6 * s) // it hangs since 5 s
		settings.Sample = 1
		if err := r.Update(settings); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(old.attempts) != 1 {
			t.Errorf("a change of the share sent the message again")
		}
		settings.Target = next.target(otlp.JSON)
		if err := r.Update(settings); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(old.attempts) != 1 || len(next.attempts) != 1 || next.attempts[0] != 6*s || !strings.HasPrefix(next.raw[0], `{"resourceSpans":[`) {
			t.Errorf("attempts at %v and %v, message %.40s", old.attempts, next.attempts, next.raw)
		}
		r.Done(traced())
		synctest.Wait() // the first span of a batch is seen
		if err := r.Update(Settings{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if r.Done(traced()) != "" {
			t.Error("a span is taken though nothing is exported")
		}
		r.stop()
		if r.ledger.spans[Exported] != 1 || r.ledger.spans[Failed] != 1 || r.ledger.sends[Retried] != 0 {
			t.Errorf("reported %v", r.ledger.spans)
		}
	})
}

// TestMetricsAreSentOnTime: each interval, also while reloads come faster.
func TestMetricsAreSentOnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(t)
		settings := Settings{Target: c.target(otlp.Protobuf), Metrics: true, Interval: 30 * s, Upstreams: upstreams}
		r := run(t, settings)
		for range 7 {
			r.Done(traced())
			time.Sleep(10 * s)
			if err := r.Update(settings); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * s)
		r.stop()
		if want := []time.Duration{30 * s, 60 * s, 75 * s}; !slices.Equal(c.attempts, want) { // the last one at the end
			t.Errorf("messages at %v, want %v", c.attempts, want)
		}
		if len(c.spans) != 0 || r.ledger.sends[Exported] != 3 {
			t.Errorf("%d messages of spans, %v", len(c.spans), r.ledger.sends)
		}
	})
}
