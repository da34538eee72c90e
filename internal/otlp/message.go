// SPDX-License-Identifier: Apache-2.0

package otlp

import "time"

// An Attr is an attribute of a resource, a span, an event or a data point.
type Attr struct {
	Key  string
	kind kind
	text string
	num  int64
	real float64
}

type kind int

const (
	text kind = iota
	integer
	double
	boolean
)

// String is an attribute of text.
func String(key, v string) Attr { return Attr{Key: key, text: v} }

// Int is an attribute of a number.
func Int(key string, v int64) Attr { return Attr{Key: key, kind: integer, num: v} }

// Seconds is an attribute of a duration, in seconds as the conventions have it.
func Seconds(key string, d time.Duration) Attr {
	return Attr{Key: key, kind: double, real: d.Seconds()}
}

// Bool is an attribute that is true or false.
func Bool(key string, v bool) Attr {
	a := Attr{Key: key, kind: boolean}
	if v {
		a.num = 1
	}
	return a
}

// A Source is who exports: the resource and the scope of all that is sent.
type Source struct {
	Resource  []Attr
	Scope     string
	Version   string // of the scope
	SchemaURL string
}

// KindClient is the kind of a span that asks another process.
const KindClient = 3

// The status of a span.
const (
	StatusUnset = 0
	StatusError = 2
)

// Flags of a span beside those of its trace: whether it is known where the parent was,
// and that it was in another process.
const (
	FlagsHasIsRemote = 0x100
	FlagsIsRemote    = 0x200
)

// A Span is one operation of a trace.
type Span struct {
	TraceID    []byte // 16
	SpanID     []byte // 8
	Parent     []byte // 8, or none
	TraceState string
	Flags      uint32
	Name       string
	Kind       int
	Start, End time.Time
	Attrs      []Attr
	Events     []Event
	Status     int
}

// An Event is a moment of a span.
type Event struct {
	Time time.Time
	Name string
}

// A Metric is a cumulative histogram.
type Metric struct {
	Name, Description, Unit string
	Bounds                  []float64 // upper, the last one is not written
	Points                  []Point
}

// A Point is one series of a metric.
type Point struct {
	Attrs       []Attr
	Start, Time time.Time
	Sum         float64
	Counts      []uint64 // one more than there are bounds
}

// EncodeSpans returns an ExportTraceServiceRequest.
func EncodeSpans(encoding Encoding, src *Source, spans []Span) []byte {
	e := &encoder{encoding: encoding, first: true}
	e.root(func() {
		e.list(1, "resourceSpans", 1, func(int) {
			e.source(src, "scopeSpans", func() {
				e.list(2, "spans", len(spans), func(i int) { e.span(&spans[i]) })
			})
		})
	})
	return e.buf
}

// EncodeMetrics returns an ExportMetricsServiceRequest.
func EncodeMetrics(encoding Encoding, src *Source, metrics []Metric) []byte {
	e := &encoder{encoding: encoding, first: true}
	e.root(func() {
		e.list(1, "resourceMetrics", 1, func(int) {
			e.source(src, "scopeMetrics", func() {
				e.list(2, "metrics", len(metrics), func(i int) { e.metric(&metrics[i]) })
			})
		})
	})
	return e.buf
}

// root writes the outermost message, which has no length.
func (e *encoder) root(write func()) {
	if e.encoding == JSON {
		e.body(write)
		return
	}
	write()
}

// source writes the resource, and the scope with what it has.
func (e *encoder) source(src *Source, scoped string, content func()) {
	e.message(1, "resource", func() { e.attrs(1, src.Resource) })
	e.list(2, scoped, 1, func(int) {
		e.message(1, "scope", func() {
			e.str(1, "name", src.Scope)
			e.str(2, "version", src.Version)
		})
		content()
		e.str(3, "schemaUrl", src.SchemaURL)
	})
	e.str(3, "schemaUrl", src.SchemaURL)
}

func (e *encoder) attrs(n int, attrs []Attr) {
	e.list(n, "attributes", len(attrs), func(i int) {
		a := &attrs[i]
		e.str(1, "key", a.Key)
		e.message(2, "value", func() {
			switch a.kind {
			case text:
				e.strAlways(1, "stringValue", a.text)
			case boolean:
				e.boolAlways(2, "boolValue", a.num != 0)
			case integer:
				e.int64Always(3, "intValue", a.num)
			case double:
				e.doubleAlways(4, "doubleValue", a.real)
			}
		})
	})
}

func (e *encoder) span(s *Span) {
	e.id(1, "traceId", s.TraceID)
	e.id(2, "spanId", s.SpanID)
	e.str(3, "traceState", s.TraceState)
	e.id(4, "parentSpanId", s.Parent)
	e.str(5, "name", s.Name)
	e.enum(6, "kind", s.Kind)
	e.fixed64(7, "startTimeUnixNano", nanos(s.Start))
	e.fixed64(8, "endTimeUnixNano", nanos(s.End))
	e.attrs(9, s.Attrs)
	e.list(11, "events", len(s.Events), func(i int) {
		e.fixed64(1, "timeUnixNano", nanos(s.Events[i].Time))
		e.str(2, "name", s.Events[i].Name)
	})
	if s.Status != StatusUnset {
		e.message(15, "status", func() { e.enum(3, "code", s.Status) })
	}
	e.fixed32(16, "flags", s.Flags)
}

// cumulative is an AggregationTemporality: points hold all since their start.
const cumulative = 2

func (e *encoder) metric(m *Metric) {
	e.str(1, "name", m.Name)
	e.str(2, "description", m.Description)
	e.str(3, "unit", m.Unit)
	e.message(9, "histogram", func() {
		e.list(1, "dataPoints", len(m.Points), func(i int) { e.point(m, &m.Points[i]) })
		e.enum(2, "aggregationTemporality", cumulative)
	})
}

func (e *encoder) point(m *Metric, p *Point) {
	var count uint64
	for _, n := range p.Counts {
		count += n
	}
	e.fixed64(2, "startTimeUnixNano", nanos(p.Start))
	e.fixed64(3, "timeUnixNano", nanos(p.Time))
	e.fixed64(4, "count", count)
	e.doubleAlways(5, "sum", p.Sum)
	packed(e, 6, "bucketCounts", p.Counts, e.fixed64Value)
	packed(e, 7, "explicitBounds", m.Bounds, e.doubleValue)
	e.attrs(9, p.Attrs)
}

// nanos is 0 for times that OTLP cannot say.
func nanos(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }
