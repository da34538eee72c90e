// SPDX-License-Identifier: Apache-2.0

package flight_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/transport/flight"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type budget struct{ left, limit int64 }

func (b *budget) Limit() int64 { return b.limit }

func (b *budget) Take(n int64) bool {
	if b.left < n {
		return false
	}
	b.left -= n
	return true
}
func (b *budget) Give(n int64) { b.left += n }

// The ring keeps the newest, its memory is taken and given back, and what was kept stays
// as it was, sixteen of them.
func TestARingIsBounded(t *testing.T) {
	b := &budget{left: 2 * flight.RingBytes, limit: 1 << 20}
	r := flight.New(b)
	l, other := r.Open("h2"), r.Open("h2")
	if l == nil || other == nil || r.Open("h2") != nil || b.left != 0 {
		t.Fatal("the budget is not heeded")
	}
	for i := range uint32(300) {
		l.Add(time.Now().UnixNano(), flight.FrameIn, 0, 1, i, 0)
	}
	f, ok := r.Flight(l.ID())
	if n := len(f.Records); !ok || n != 128 || f.Lost != 172 || f.Records[n-1].Size != 299 || f.Records[0].Size != 172 {
		t.Errorf("%d records, %d lost", n, f.Lost)
	}
	l.Keep("dead_flow")
	l.Add(time.Now().UnixNano(), flight.Verdict, 1, 0, 0, 0)
	l.Keep("again")
	l.Close()
	if f, ok := r.Flight(l.ID()); !ok || f.Kept != "dead_flow" || f.Records[127].What != "frame_in" {
		t.Errorf("%v: kept %q", ok, f.Kept)
	}
	if _, ok := r.Flight(99); ok {
		t.Error("a connection that does not exist")
	}
	other.Close()
	if b.left != 2*flight.RingBytes {
		t.Errorf("%d bytes were not given back", 2*flight.RingBytes-b.left)
	}
	for range 17 {
		l := r.Open("h2")
		l.Keep("cut")
		l.Close()
	}
	if _, ok := r.Flight(1); ok {
		t.Error("seventeen newer ones, and the first is kept")
	}
	gone := r.Open("h2")
	gone.Add(time.Now().UnixNano(), flight.FrameIn, 0, 1, 7, 0)
	gone.Close()
	r.Keep(gone.ID(), "upstream_reset") // the request learns of it later
	for range 8 {
		r.Open("h2").Close()
	}
	if f, ok := r.Flight(gone.ID()); !ok || f.Kept != "upstream_reset" || len(f.Records) != 1 {
		t.Errorf("%v, %+v of one that was kept after its end", ok, f)
	}
	late := r.Open("h2")
	late.Close()
	for range 8 {
		r.Open("h2").Close()
	}
	r.Keep(late.ID(), "upstream_reset")
	if _, ok := r.Flight(late.ID()); ok {
		t.Error("eight newer ones have ended, and there is room for another")
	}
	few := flight.New(&budget{1 << 20, 64 * flight.RingBytes}) // two are a 32nd
	if first, second, third := few.Open("h2"), few.Open("h2"), few.Open("h2"); first == nil || second == nil || third != nil {
		t.Error("rings may have a 32nd of the budget, no less and no more")
	}
	var none *flight.Log
	none.Add(0, flight.Probe, 0, 0, 0, 0)
	none.Keep("x")
	none.Close()
}

func BenchmarkAdd(b *testing.B) {
	l := flight.New(&budget{1 << 20, 1 << 20}).Open("h2")
	b.ReportAllocs()
	for b.Loop() {
		l.Add(1, flight.FrameIn, 0, 1, 100, 0)
	}
}
