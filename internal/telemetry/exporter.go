// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/otlp"
)

const (
	defaultInterval = time.Minute     // OTEL_METRIC_EXPORT_INTERVAL
	batchDelay      = 5 * time.Second // OTEL_BSP_SCHEDULE_DELAY
	defaultFlush    = 2 * time.Second // as the access log has at the end
)

// Settings are what is exported and where to. The zero value exports nothing.
type Settings struct {
	Target    *otlp.Target // nil = nowhere
	Traces    bool
	Metrics   bool
	Sample    float64       // share of the requests without a trace that get one, from 0 to 1
	Interval  time.Duration // between exports of metrics; 0 means 1 min
	Resource  []otlp.Attr   // besides those of the service itself
	Upstreams map[string]Upstream
}

// Validate reports a setting that cannot work.
func (s Settings) Validate() error {
	if !(s.Sample >= 0 && s.Sample <= 1) || s.Interval < 0 { // written so that NaN is refused too
		return fmt.Errorf("telemetry: share %v or interval %v", s.Sample, s.Interval)
	}
	return nil
}

// A Report is something that was sent, or was to be.
type Report struct {
	Signal  otlp.Signal
	Outcome Outcome
	Spans   int   // that it was about; 0 for metrics
	Err     error // of a failure or another attempt
}

// An Outcome is what became of spans, or of an attempt to send.
type Outcome string

// The outcomes. They are also metric labels.
const (
	Exported Outcome = "exported"
	Rejected Outcome = "rejected" // the collector refused some of a message that it took
	Failed   Outcome = "failed"   // it was not taken in time, or not at all
	Dropped  Outcome = "dropped"  // there was no room for the span
	Retried  Outcome = "retried"  // an attempt failed that is made again; Spans is 0
)

// Config is what does not change while an Exporter runs.
type Config struct {
	Version string
	Budget  Budget        // nil = none
	Flush   time.Duration // for what waits at the end; 0 means 2 s
	// Report is told what becomes of spans and messages; it must not block. nil = nobody.
	Report func(Report)
	// Jitter returns a number from 0 up to 1, for pauses. Required.
	Jitter func() float64
}

// An Exporter takes requests and sends what they showed.
type Exporter struct {
	cfg   Config
	queue *queue
	meter *meter
	id    string // service.instance.id

	updating sync.Mutex // held by Update
	now      atomic.Pointer[current]
	poke     chan struct{} // holds one token when now has changed
}

// current are the settings in force.
type current struct {
	Settings
	sampler sampler
	source  otlp.Source
	valid   context.Context // ends once another target is in force
	replace context.CancelFunc
}

// New returns an Exporter that sends nothing until Update says where to and Run is called.
func New(cfg Config) (*Exporter, error) {
	cfg.Flush = cmp.Or(cfg.Flush, defaultFlush)
	if cfg.Jitter == nil || cfg.Flush < 0 {
		return nil, errors.New("telemetry: no jitter, or a negative flush timeout")
	}
	x := &Exporter{cfg: cfg, queue: newQueue(cfg.Budget), meter: newMeter(), id: instanceID(), poke: make(chan struct{}, 1)}
	return x, x.Update(Settings{})
}

// instanceID is a random UUID (RFC 9562 §5.4), as the conventions recommend.
func instanceID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Update changes what is exported and where to. What waits goes to the new place.
func (x *Exporter) Update(s Settings) error {
	s.Interval = cmp.Or(s.Interval, defaultInterval)
	if err := s.Validate(); err != nil {
		return err
	}
	next := &current{Settings: s, sampler: newSampler(s.Sample), source: otlp.Source{
		Scope: "github.com/warmwire/warmwire", Version: x.cfg.Version, SchemaURL: SchemaURL, Resource: x.resource(s.Resource),
	}}
	x.updating.Lock()
	defer x.updating.Unlock()
	x.meter.setUpstreams(s.Upstreams)
	old := x.now.Load()
	if old != nil && old.Target == s.Target {
		next.valid, next.replace = old.valid, old.replace
	} else {
		next.valid, next.replace = context.WithCancel(context.Background())
	}
	x.now.Store(next)
	if old != nil && old.Target != s.Target {
		old.replace()
	}
	signal(x.poke)
	return nil
}

// resource puts the operator's attributes over those of the service.
func (x *Exporter) resource(more []otlp.Attr) []otlp.Attr {
	all := []otlp.Attr{otlp.String("service.name", "warmwire"), otlp.String("service.version", x.cfg.Version), otlp.String("service.instance.id", x.id)}
	for _, a := range more {
		replaced := false
		for i := range all {
			if all[i].Key == a.Key {
				all[i], replaced = a, true
			}
		}
		if !replaced {
			all = append(all, a)
		}
	}
	return all
}

// Active says whether anything is exported.
func (x *Exporter) Active() bool { return x.now.Load().Target != nil }

// Done takes a finished request. It never blocks. It returns the id of the trace that the
// request's span is in, if it has one: that is for what else refers to the trace.
func (x *Exporter) Done(r *Request) (trace string) {
	now := x.now.Load()
	if now.Target == nil {
		return ""
	}
	if now.Metrics {
		x.meter.observe(r)
	}
	if !now.Traces {
		return ""
	}
	q := queued{Request: *r}
	if !q.join(now.sampler) {
		return ""
	}
	if !x.queue.put(&q) {
		x.report(Report{Signal: otlp.Traces, Outcome: Dropped, Spans: 1})
		return ""
	}
	return q.Trace.ID
}

// join settles which trace r is in, and returns false if it is in none.
func (r *queued) join(s sampler) bool {
	if r.Trace.ID != "" {
		if r.Trace.Span == "" {
			r.Trace.Span = randomID(8)
		}
		return r.Trace.sampled()
	}
	if s.none {
		return false
	}
	id := randomID(16)
	if !s.keeps(id) {
		return false
	}
	r.Trace = Trace{ID: id, Span: randomID(8), Flags: 0x03} // sampled, and its id is random
	r.state = s.state
	return true
}

// randomID returns n bytes in hex that are not all zero.
func randomID(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	b[0] |= 1           // not a byte that sampling looks at
	return hex.EncodeToString(b)
}

func (x *Exporter) report(r Report) {
	if x.cfg.Report != nil {
		x.cfg.Report(r)
	}
}
