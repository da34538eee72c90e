// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

// What a stream that flows pays each time its owner asks.
func BenchmarkBeatFlowing(b *testing.B) {
	beat := NewBeat(BeatConfig{}, NewPath(), epoch, rand.Float64)
	b.ReportAllocs()
	for now := epoch; b.Loop(); now = now.Add(10 * ms) {
		beat.Next(now, Signs{Heard: now})
	}
	b.ReportMetric(float64(unsafe.Sizeof(Beat{})), "B/Beat")
}

// A probe and its answer.
func BenchmarkBeatProbe(b *testing.B) {
	beat := NewBeat(BeatConfig{}, NewPath(), epoch, rand.Float64)
	b.ReportAllocs()
	for now := epoch; b.Loop(); {
		step := beat.Next(now, Signs{})
		if step.Action == Probe {
			now = now.Add(80 * ms)
			beat.Answered(now, 80*ms)
			continue
		}
		now = step.Due
	}
}

func BenchmarkWatchFlowing(b *testing.B) {
	w := New(Config{})
	b.ReportAllocs()
	for now := epoch; b.Loop(); now = now.Add(10 * ms) {
		w.Next(now, now, 0)
	}
}

func BenchmarkRTT(b *testing.B) {
	var r RTT
	b.ReportAllocs()
	for now := epoch; b.Loop(); now = now.Add(s) {
		r.Add(now, 80*ms)
		r.Timeout()
	}
}

func BenchmarkSave1000Paths(b *testing.B) {
	l := NewLimits(1000)
	for i := range 1000 {
		l.Path("home", string(rune('a'+i%26))+time.Duration(i).String()).Survived(100 * s)
	}
	data := l.Save()
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if !NewLimits(1000).Load(l.Save()) {
			b.Fatal("not understood")
		}
	}
}

// The figures of the simulation: eight connections for two hours, with a beat and
// with the timers of the field beside it.
func BenchmarkRoads(b *testing.B) {
	arms := []struct {
		name string
		cfg  BeatConfig
		ping [2]time.Duration
	}{
		{name: "beat"},
		{name: "beat every 5 s", cfg: BeatConfig{MaxInterval: 5 * s}},
		{name: "app's leg every 5 s", cfg: BeatConfig{NoFresh: true, MaxInterval: 5 * s}},
		{name: "timer 3 s, 1.5 s", ping: [2]time.Duration{3 * s, 1500 * ms}},
		{name: "timer 20 s, 20 s", ping: [2]time.Duration{20 * s, 20 * s}},
	}
	for _, r := range roads {
		for _, arm := range arms {
			b.Run(r.name+"/"+arm.name, func(b *testing.B) {
				for b.Loop() {
					c, troubles, _ := drive(r, loads[0], arm.cfg, arm.ping, 2*time.Hour)
					per := float64(troubles)
					if troubles == 8 { // the whole way is one: count hours
						per = 16
					}
					b.ReportMetric(float64(c.cuts)/per, "cuts/trouble")
					b.ReportMetric(float64(c.alarms), "alarms")
					b.ReportMetric(float64(c.contested), "contested")
					b.ReportMetric(float64(c.late), "late")
					b.ReportMetric(float64(c.fresh), "fresh")
					b.ReportMetric(float64(c.probes)/16, "probes/h")
				}
			})
		}
	}
}
