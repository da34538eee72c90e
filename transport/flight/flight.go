// SPDX-License-Identifier: Apache-2.0

// Package flight records what happened on each connection lately: frames by kind and
// size, probes, what the kernel said, verdicts.
//
// A [Log] is the ring of one connection. What is in it is shown only if somebody asks
// ([Recorder.Flight]), or if it is kept because the connection stalled or broke
// ([Log.Keep]), or an answer on it was cut ([Recorder.Keep]). It has no place for a payload, a header field or a name of the peer's: a
// record is five numbers. It writes nothing anywhere.
//
// The memory of the rings is taken from a budget; without room there a connection has none,
// and a nil Log records nothing. The last 16 that were kept stay, and the last 8 of
// connections that were closed, for those who learn of a cut after that; they take 32 KiB
// beside the budget. All methods are safe for
// concurrent use.
package flight

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	ringSize = 128 // records of a connection
	maxKept  = 16  // logs that stay
	maxShut  = 8   // of connections that are closed, not kept
	// RingBytes is what a connection's ring takes.
	RingBytes = ringSize * 32
)

// A Kind says what a record is.
type Kind uint8

// The kinds, and what their numbers are.
const (
	FrameIn  Kind = iota // code is the frame's type, size its length
	FrameOut             // likewise
	Probe                // one left
	Answer               // one came
	Path                 // size: segments that were disordered or sent again so far; value: round trip in µs
	Verdict              // code is the heartbeat's
)

var kinds = [...]string{"frame_in", "frame_out", "probe", "answer", "path", "verdict"}

// A record is 32 bytes.
type record struct {
	at     int64 // Unix nanoseconds
	stream uint32
	size   uint32
	value  uint32
	kind   Kind
	code   uint8
}

// share is the part of the budget that rings may have together, so that requests do not
// wait for room because of them.
const share = 32

// A Budget is where the memory comes from.
type Budget interface {
	Take(n int64) bool
	Give(n int64)
	Limit() int64
}

// A Recorder knows all connections.
type Recorder struct {
	budget Budget

	mu   sync.Mutex // guards the fields below
	last uint64
	live map[uint64]*Log
	kept []Flight // the newest last
	shut []*Log   // likewise
}

// New returns one without connections.
func New(budget Budget) *Recorder { return &Recorder{budget: budget, live: make(map[uint64]*Log)} }

// A Log is of one connection.
type Log struct {
	r        *Recorder
	id       uint64
	protocol string
	opened   time.Time

	mu   sync.Mutex // guards the fields below
	more Tracer
	ring [ringSize]record
	n    uint64 // records so far
	kept bool
}

// Open begins the log of a connection; nil if there is no room. A nil Recorder has none.
func (r *Recorder) Open(protocol string) *Log {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if int64(len(r.live)+1)*RingBytes > r.budget.Limit()/share || !r.budget.Take(RingBytes) {
		return nil
	}
	l := &Log{r: r, protocol: protocol, opened: time.Now()}
	r.last++
	l.id = r.last
	r.live[l.id] = l
	return l
}

// A Tracer is a connection that traces itself, as qlog.
type Tracer interface {
	Trace() string // of late; "" = it does not
	KeepTrace()    // writes it where its owner wants it
}

// Trace adds a connection's own trace to its log. Call it before anything is kept.
func (l *Log) Trace(more Tracer) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more = more
}

// ID is the connection's number; 0 = it has no log.
func (l *Log) ID() uint64 {
	if l == nil {
		return 0
	}
	return l.id
}

// Add records something that happened at, in Unix nanoseconds.
func (l *Log) Add(at int64, kind Kind, code uint8, stream, size, value uint32) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.ring[l.n%ringSize] = record{at, stream, size, value, kind, code}
	l.n++
	l.mu.Unlock()
}

// Keep keeps what there is, once, because of a closed word such as a verdict.
func (l *Log) Keep(why string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	again, more := l.kept, l.more
	l.kept = true
	l.mu.Unlock()
	if again {
		return
	}
	if more != nil {
		more.KeepTrace()
	}
	f := l.flight(why)
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if len(l.r.kept) == maxKept {
		l.r.kept = slices.Delete(l.r.kept, 0, 1)
	}
	l.r.kept = append(l.r.kept, f)
}

// Keep keeps the log of a connection that is open or was lately. A nil Recorder has none.
func (r *Recorder) Keep(id uint64, why string) {
	if r == nil || id == 0 {
		return
	}
	r.mu.Lock()
	l := r.findLocked(id)
	r.mu.Unlock()
	l.Keep(why)
}

func (r *Recorder) findLocked(id uint64) *Log {
	if l := r.live[id]; l != nil {
		return l
	}
	for _, l := range r.shut {
		if l.id == id {
			return l
		}
	}
	return nil
}

// Close ends the log. It is forgotten soon, unless it was kept.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.r.mu.Lock()
	delete(l.r.live, l.id)
	if len(l.r.shut) == maxShut {
		l.r.shut = slices.Delete(l.r.shut, 0, 1)
	}
	l.r.shut = append(l.r.shut, l)
	l.r.mu.Unlock()
	l.r.budget.Give(RingBytes)
}

// A Flight is a log as it is shown.
type Flight struct {
	ID       uint64    `json:"id"`
	Protocol string    `json:"protocol"`
	Opened   time.Time `json:"opened"`
	Kept     string    `json:"kept,omitempty"`    // why; "" = it is of a connection that is open
	Records  []Record  `json:"records,omitempty"` // the oldest first
	Lost     uint64    `json:"lost"`              // older ones that had no room
	Qlog     string    `json:"qlog,omitempty"`    // of a connection over QUIC with qlog_dir: JSON text sequence (RFC 7464), the newest 32 to 64 KiB
}

// A Record is one line of it.
type Record struct {
	AtMS   float64 `json:"at_ms"` // since it was opened
	What   string  `json:"what"`  // frame_in, frame_out, probe, answer, path, verdict
	Code   uint8   `json:"code"`  // of a frame its type (RFC 9113 §6), of a verdict which
	Stream uint32  `json:"stream"`
	Size   uint32  `json:"size"`
	Value  uint32  `json:"value"`
}

func (l *Log) flight(why string) Flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := Flight{ID: l.id, Protocol: l.protocol, Opened: l.opened.UTC(), Kept: why, Records: []Record{}}
	first := uint64(0)
	if l.n > ringSize {
		first = l.n - ringSize
	}
	f.Lost = first
	for i := first; i < l.n; i++ {
		e := &l.ring[i%ringSize]
		f.Records = append(f.Records, Record{float64((e.at-l.opened.UnixNano())/1000) / 1000, kinds[e.kind], e.code, e.stream, e.size, e.value})
	}
	if l.more != nil {
		f.Qlog = l.more.Trace()
	}
	return f
}

// Flight returns the log of a connection, as it was kept or, if it was not, as it is now;
// false = there is none.
func (r *Recorder) Flight(id uint64) (Flight, bool) {
	r.mu.Lock()
	for _, f := range r.kept {
		if f.ID == id {
			r.mu.Unlock()
			return f, true
		}
	}
	l := r.findLocked(id)
	r.mu.Unlock()
	if l == nil {
		return Flight{}, false
	}
	return l.flight(""), true
}

// List is what there is, without records: the kept ones, then those of connections that
// are open, each by its number.
func (r *Recorder) List() []Flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Flight{}
	for _, f := range r.kept {
		f.Records, f.Qlog = nil, ""
		out = append(out, f)
	}
	n := len(out)
	for _, l := range r.live {
		out = append(out, Flight{ID: l.id, Protocol: l.protocol, Opened: l.opened.UTC()})
	}
	slices.SortFunc(out[n:], func(a, b Flight) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
