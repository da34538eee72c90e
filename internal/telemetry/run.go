// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"time"

	"github.com/warmwire/warmwire/internal/otlp"
)

const (
	firstPause = time.Second      // before the second attempt, less some jitter
	maxPause   = 30 * time.Second // and before later ones
	keepTrying = time.Minute      // then a message is given up; as the SDK for Go does
)

// Run sends what there is to be sent until ctx ends, then what is left, for as long as
// the flush timeout, and returns nil. Call it once.
func (x *Exporter) Run(ctx context.Context) error {
	// Attempts are broken off only once the flush timeout has passed.
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	flush := time.AfterFunc(time.Hour, cancel)
	flush.Stop()
	defer flush.Stop()
	defer context.AfterFunc(ctx, func() { flush.Reset(x.cfg.Flush) })()

	r := runner{x: x, stopping: ctx, last: last, delay: time.NewTimer(0), metrics: time.NewTimer(0)}
	<-r.delay.C
	<-r.metrics.C
	defer r.delay.Stop()
	defer r.metrics.Stop()
	r.schedule()
	for ctx.Err() == nil {
		r.step()
	}
	x.queue.close()
	r.finish()
	return nil
}

// A runner is the state of Run.
type runner struct {
	x        *Exporter
	stopping context.Context // ends when there is nothing to wait for any more
	last     context.Context // ends when attempts are broken off
	delay    *time.Timer     // the first span of a batch has waited long enough
	metrics  *time.Timer     // the next export of metrics
	room     []otlp.Attr     // of spans that were sent, for those of the next batch
	interval time.Duration   // that it was set for; 0 = there is none
}

// step waits for something to do and does it.
func (r *runner) step() {
	select {
	case <-r.stopping.Done():
	case <-r.x.poke:
		r.schedule()
	case <-r.x.queue.ready:
		r.delay.Reset(batchDelay)
	case <-r.x.queue.full:
		r.spans()
	case <-r.delay.C:
		r.spans()
	case <-r.metrics.C:
		r.points()
		r.interval = 0
		r.schedule()
	}
}

// schedule sets the clock for the next export of metrics, if their interval is another
// than before: reloads must not put it off.
func (r *runner) schedule() {
	interval := time.Duration(0)
	if now := r.x.now.Load(); now.Target != nil && now.Metrics {
		interval = now.Interval
	}
	if interval == r.interval {
		return
	}
	r.interval = interval
	r.metrics.Stop()
	if interval > 0 {
		r.metrics.Reset(interval)
	}
}

// spans sends one batch, and all whole ones.
func (r *runner) spans() {
	for n := maxBatch; n >= maxBatch && r.stopping.Err() == nil; n = r.x.queue.len() {
		r.batch()
	}
	if r.x.queue.len() > 0 {
		r.delay.Reset(batchDelay)
	}
}

// batch sends the oldest spans.
func (r *runner) batch() {
	batch := r.x.queue.take()
	if len(batch) == 0 {
		return
	}
	defer r.x.queue.release(len(batch))
	res := r.deliver(otlp.Traces, func(now *current) []byte {
		if !now.Traces {
			return nil
		}
		spans, room := make([]otlp.Span, 0, len(batch)), r.room[:0]
		for i := range batch {
			var span otlp.Span
			span, room = batch[i].span(r.x.meter.upstream(batch[i].Upstream), room)
			spans = append(spans, span)
		}
		r.room = nil
		if len(batch) == maxBatch { // under load the next one needs as much
			r.room = room
		}
		return otlp.EncodeSpans(now.Target.Encoding(), &now.source, spans)
	})
	rejected := min(int(min(res.Rejected, maxBatch)), len(batch))
	switch {
	case res.Err != nil:
		r.x.report(Report{Signal: otlp.Traces, Outcome: Failed, Spans: len(batch), Err: res.Err})
	default:
		if rejected > 0 {
			r.x.report(Report{Signal: otlp.Traces, Outcome: Rejected, Spans: rejected})
		}
		if rejected < len(batch) {
			r.x.report(Report{Signal: otlp.Traces, Outcome: Exported, Spans: len(batch) - rejected})
		}
	}
}

// points sends the metrics as they are now.
func (r *runner) points() {
	all := r.x.meter.collect(time.Now())
	if len(all) == 0 {
		return
	}
	res := r.deliver(otlp.Metrics, func(now *current) []byte {
		if !now.Metrics {
			return nil
		}
		return otlp.EncodeMetrics(now.Target.Encoding(), &now.source, all)
	})
	outcome := Exported
	switch {
	case res.Err != nil:
		outcome = Failed
	case res.Rejected > 0:
		outcome = Rejected
	}
	r.x.report(Report{Signal: otlp.Metrics, Outcome: outcome, Err: res.Err})
}

// finish sends what is left.
func (r *runner) finish() {
	for r.x.queue.len() > 0 {
		r.batch()
	}
	if now := r.x.now.Load(); now.Target != nil && now.Metrics {
		r.points()
	}
}

// An offError is why spans that waited are not sent.
type offError struct{}

func (offError) Error() string { return "telemetry: the export was switched off" }

// deliver sends what encode returns until it is taken, cannot be, or is too old. After a
// change of settings it goes to the new place at once, written as that wants it. At the
// end of the process each message gets one more attempt.
func (r *runner) deliver(signal otlp.Signal, encode func(*current) []byte) otlp.Result {
	begun := time.Now()
	pause := firstPause
	var now *current
	var message []byte
	for {
		if next := r.x.now.Load(); now == nil || next.Target != now.Target {
			if now = next; now.Target == nil {
				return otlp.Result{Err: offError{}}
			}
			if message = encode(now); message == nil {
				return otlp.Result{Err: offError{}}
			}
		}
		final := r.stopping.Err() != nil
		res := r.attempt(now, signal, message)
		switch {
		case res.Err == nil:
			return res
		case now.valid.Err() != nil && r.last.Err() == nil:
			continue
		case !res.Retry || final:
			return res
		}
		wait := max(time.Duration(float64(pause)*(0.5+r.x.cfg.Jitter()/2)), res.After)
		pause = min(2*pause, maxPause)
		if wait > keepTrying-time.Since(begun) { // the sum may be more than a Duration holds
			return res
		}
		r.x.report(Report{Signal: signal, Outcome: Retried, Err: res.Err})
		r.pause(wait, now)
	}
}

// attempt sends a message once. It is broken off when another target is in force.
func (r *runner) attempt(now *current, signal otlp.Signal, message []byte) otlp.Result {
	ctx, cancel := context.WithCancel(r.last)
	defer cancel()
	defer context.AfterFunc(now.valid, cancel)()
	return now.Target.Send(ctx, signal, message)
}

// pause waits, but not after a change or at the end.
func (r *runner) pause(wait time.Duration, now *current) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-now.valid.Done():
	case <-r.stopping.Done():
	}
}
