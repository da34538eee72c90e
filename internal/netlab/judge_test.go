// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// judged runs packets of 1250 bytes (10 kbit), one each gap, through a link.
func judged(seed uint64, l Link, n int, gap time.Duration) []verdict {
	j := newJudge(seed, Up)
	j.set(0, l)
	out := make([]verdict, n)
	for i := range out {
		out[i] = j.packet(time.Duration(i)*gap, shape{size: 1250})
	}
	return out
}

func times(vs []verdict) []time.Duration {
	var out []time.Duration
	for _, v := range vs {
		if v.dropped {
			out = append(out, -1)
			continue
		}
		out = append(out, v.at[:v.copies]...)
	}
	return out
}

func TestLinkTimes(t *testing.T) {
	const lost = -1
	tests := []struct {
		name string
		link Link
		gap  time.Duration
		want []time.Duration // of four packets
	}{
		{"nothing", Link{}, ms, []time.Duration{0, 1 * ms, 2 * ms, 3 * ms}},
		{"delay", Link{Delay: 40 * ms}, ms, []time.Duration{40 * ms, 41 * ms, 42 * ms, 43 * ms}},
		{"rate", Link{Rate: 1e6, Queue: time.Second, Delay: ms}, 0, []time.Duration{11 * ms, 21 * ms, 31 * ms, 41 * ms}},
		{"queue of time", Link{Rate: 1e6, Queue: 15 * ms}, 0, []time.Duration{10 * ms, 20 * ms, lost, lost}},
		{"queue of bytes", Link{Rate: 1e6, QueueBytes: 3750}, 0, []time.Duration{10 * ms, 20 * ms, 30 * ms, lost}},
		{"smaller queue counts", Link{Rate: 1e6, Queue: time.Second, QueueBytes: 2500}, 0, []time.Duration{10 * ms, 20 * ms, lost, lost}},
		{"queue drains", Link{Rate: 1e6, Queue: ms}, 10 * ms, []time.Duration{10 * ms, 20 * ms, 30 * ms, 40 * ms}},
		{"all lost", Link{Loss: 1}, 0, []time.Duration{lost, lost, lost, lost}},
		{"all in a burst", Link{Burst: Burst{Enter: 1, Leave: 1e-300}}, 0, []time.Duration{lost, lost, lost, lost}},
		{"bursts of one", Link{Burst: Burst{Enter: 1, Leave: 1}}, 0, []time.Duration{lost, 0, lost, 0}},
		{"all twice", Link{Duplicate: 1}, ms, []time.Duration{0, 0, 1 * ms, 1 * ms, 2 * ms, 2 * ms, 3 * ms, 3 * ms}},
		{"all late", Link{Delay: ms, Reorder: 1, ReorderDelay: 9 * ms}, ms, []time.Duration{10 * ms, 11 * ms, 12 * ms, 13 * ms}},
		{"outage", Link{Outages: []Schedule{{First: 1 * ms, Length: 2 * ms}}}, ms, []time.Duration{0, lost, lost, 3 * ms}},
		{"outages", Link{Outages: []Schedule{{Every: 2 * ms, Length: 1 * ms}}}, ms, []time.Duration{lost, 1 * ms, lost, 3 * ms}},
		{"spike", Link{Spikes: []Schedule{{First: 1 * ms, Length: 9 * ms}}}, ms, []time.Duration{0, 10 * ms, 10 * ms, 10 * ms}},
		{"spike at departure", Link{Delay: 5 * ms, Spikes: []Schedule{{First: 6 * ms, Length: 4 * ms}}}, ms, []time.Duration{5 * ms, 10 * ms, 10 * ms, 10 * ms}},
		{"spikes that touch", Link{Spikes: []Schedule{{First: 4 * ms, Length: 2 * ms}, {First: 1 * ms, Length: 3 * ms}}}, ms, []time.Duration{0, 6 * ms, 6 * ms, 6 * ms}},
		{"MTU", Link{MTU: 1249}, 0, []time.Duration{lost, lost, lost, lost}},
		{"MTU fits", Link{MTU: 1250}, 0, []time.Duration{0, 0, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.link.Validate(); err != nil {
				t.Fatal(err)
			}
			if got := times(judged(1, tt.link, 4, tt.gap)); !slices.Equal(got, tt.want) {
				t.Errorf("times %v, want %v", got, tt.want)
			}
		})
	}
}

func TestUDPIsBlockedAndThrottledAlone(t *testing.T) {
	tests := []struct {
		name string
		link Link
		want int // of 1000 datagrams of 1250 B in one second
	}{
		{"free", Link{}, 1000},
		{"blocked", Link{BlockUDP: true}, 0},
		{"throttled", Link{UDPRate: 1e6}, 100 + 5}, // and the credit it starts with
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j := newJudge(1, Up)
			j.set(0, tt.link)
			passed := 0
			for i := range 1000 {
				now := time.Duration(i) * ms
				if v := j.packet(now, shape{size: 1250, udp: true}); !v.dropped {
					passed++
				} else if v.cause != CauseUDP {
					t.Fatalf("cause %v, want udp", v.cause)
				}
				if v := j.packet(now, shape{size: 1250}); v.dropped {
					t.Fatalf("TCP dropped for %v", v.cause)
				}
			}
			if math.Abs(float64(passed-tt.want)) > 3 {
				t.Errorf("%d datagrams passed, want %d", passed, tt.want)
			}
		})
	}
}

// Rates must be within five standard deviations of what was asked for.
func TestLossRates(t *testing.T) {
	const n = 200_000
	tests := []struct {
		name  string
		link  Link
		share float64
		burst float64 // mean length of a run of losses
	}{
		{"1 %", Link{Loss: 0.01}, 0.01, 1 / 0.99},
		{"20 %", Link{Loss: 0.2}, 0.2, 1 / 0.8},
		{"bursts of 5", Link{Burst: Burst{Enter: 0.01, Leave: 0.2}}, 0.01 / 0.21, 5},
		{"bursts with gaps", Link{Burst: Burst{Enter: 0.01, Leave: 0.2, Loss: 0.5}}, 0.005 / 0.21, 1 / (1 - 0.8*0.5)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lost, runs, before := 0, 0, false
			for _, v := range judged(7, tt.link, n, ms) {
				if v.dropped {
					lost++
					if !before {
						runs++
					}
				}
				before = v.dropped
			}
			share, length := float64(lost)/n, float64(lost)/float64(runs)
			// Losses of one burst are not independent: they count as one event.
			if limit := 5 * tt.burst * math.Sqrt(tt.share/n/tt.burst); math.Abs(share-tt.share) > limit {
				t.Errorf("lost %.4f, want %.4f ± %.4f", share, tt.share, limit)
			}
			if math.Abs(length-tt.burst) > 5*tt.burst/math.Sqrt(float64(runs)) {
				t.Errorf("bursts of %.2f, want %.2f", length, tt.burst)
			}
		})
	}
}

func TestJitter(t *testing.T) {
	const n = 50_000
	tests := []struct {
		name       string
		link       Link
		mean       time.Duration // of the delay
		tolerance  time.Duration
		correlated bool // neighbours 10 ms apart have much the same delay
		overtakes  bool
	}{
		{"unordered is even", Link{Delay: 40 * ms, Jitter: 30 * ms, Unordered: true}, 40 * ms, ms, false, true},
		// Packets wait for the slowest before them: the mean of the highest of
		// even draws from 10 to 70 ms, each 10 ms older than the next, is 47.5 ms.
		{"independent and in order inflates", Link{Delay: 40 * ms, Jitter: 30 * ms}, 47500 * time.Microsecond, ms, true, false},
		{"wandering stays around the delay", Link{Delay: 40 * ms, Jitter: 30 * ms, JitterTime: 2 * time.Second}, 41 * ms, 4 * ms, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var sum, steps time.Duration
			var before time.Duration
			overtakes := false
			for i, v := range judged(3, tt.link, n, 10*ms) {
				sent := time.Duration(i) * 10 * ms
				d := v.at[0] - sent
				if d < 10*ms || d > 70*ms {
					t.Fatalf("delay %v is out of 40ms ± 30ms", d)
				}
				sum += d
				if i > 0 {
					steps += (d - before).Abs()
					overtakes = overtakes || d+10*ms < before
				}
				before = d
			}
			if mean := sum / n; (mean - tt.mean).Abs() > tt.tolerance {
				t.Errorf("mean delay %v, want %v ± %v", mean, tt.mean, tt.tolerance)
			}
			// Two independent draws of an even spread of 60 ms are 20 ms apart.
			if step := steps / n; tt.correlated != (step < 12*ms) {
				t.Errorf("mean step %v; correlated %v", step, tt.correlated)
			}
			if overtakes != tt.overtakes {
				t.Errorf("overtakes %v, want %v", overtakes, tt.overtakes)
			}
		})
	}
}

func TestReorderLetsOthersPass(t *testing.T) {
	vs := judged(5, Link{Delay: 10 * ms, Reorder: 0.1, ReorderDelay: 5 * ms}, 10_000, ms)
	late := 0
	for i, v := range vs {
		switch d := v.at[0] - time.Duration(i)*ms; d {
		case 10 * ms:
		case 15 * ms:
			late++
		default:
			t.Fatalf("delay %v, want 10ms or 15ms", d)
		}
	}
	if late < 850 || late > 1150 {
		t.Errorf("%d of 10000 late, want about 1000", late)
	}
}

func TestSameSeedSameFate(t *testing.T) {
	link := Link{
		Delay: 40 * ms, Jitter: 30 * ms, JitterTime: time.Second, Loss: 0.1, Burst: Burst{Enter: 0.01, Leave: 0.1},
		Reorder: 0.1, ReorderDelay: 9 * ms, Duplicate: 0.1, Outages: []Schedule{{Every: time.Second, Length: ms, MaxLength: 99 * ms}},
	}
	a, b := judged(9, link, 5000, ms), judged(9, link, 5000, ms)
	if !slices.Equal(a, b) {
		t.Error("the same seed gave another fate")
	}
	if slices.Equal(a, judged(10, link, 5000, ms)) {
		t.Error("another seed gave the same fate")
	}
	// A setting that has nothing to do with loss leaves the losses where they were.
	plain := judged(9, Link{Loss: 0.1}, 5000, ms)
	with := judged(9, Link{Loss: 0.1, Delay: 40 * ms, Jitter: 9 * ms, Duplicate: 0.5}, 5000, 3*ms)
	for i := range plain {
		if plain[i].dropped != with[i].dropped {
			t.Fatalf("packet %d: dropped %v, with other settings %v", i, plain[i].dropped, with[i].dropped)
		}
	}
}

func TestScheduleLengthsAreDrawnOnceForBothDirections(t *testing.T) {
	s := Schedule{First: time.Second, Every: 10 * time.Second, Length: time.Second, MaxLength: 4 * time.Second}
	var lengths []time.Duration
	for n := range 20 {
		start := s.First + time.Duration(n)*s.Every
		end, in := s.window(1, start)
		if !in || end-start < s.Length || end-start > s.MaxLength {
			t.Fatalf("window %d: in %v, length %v", n, in, end-start)
		}
		if _, in := s.window(1, start-1); in {
			t.Errorf("window %d starts early", n)
		}
		if _, in := s.window(1, end-1); !in {
			t.Errorf("window %d ends early", n)
		}
		if _, in := s.window(1, end); in {
			t.Errorf("window %d ends late", n)
		}
		lengths = append(lengths, end-start)
	}
	slices.Sort(lengths)
	if len(slices.Compact(lengths)) < 15 {
		t.Errorf("lengths %v do not vary", lengths)
	}
}

func TestSetKeepsWhatIsOnItsWay(t *testing.T) {
	j := newJudge(1, Up)
	j.set(0, Link{Delay: time.Second})
	first := j.packet(0, shape{size: 100})
	j.set(ms, Link{Delay: ms})
	second := j.packet(ms, shape{size: 100})
	if first.at[0] != time.Second || second.at[0] != time.Second {
		t.Errorf("packets leave at %v and %v; want order kept, both at 1s", first.at[0], second.at[0])
	}
	if third := j.packet(time.Second, shape{size: 100}); third.at[0] != time.Second+ms {
		t.Errorf("the third leaves at %v, want 1.001s", third.at[0])
	}
}

func TestImpossibleSettingsAreRefused(t *testing.T) {
	tests := []struct {
		link Link
		want string
	}{
		{Link{Loss: 1.01}, "loss 1.01 is over 100 %"},
		{Link{Loss: -0.1}, "loss -0.1 is not a probability"},
		{Link{Loss: math.NaN()}, "not a probability"},
		{Link{Duplicate: 2}, "duplicate 2 is over 100 %"},
		{Link{Burst: Burst{Enter: 1.5, Leave: 1}}, "burst enter 1.5 is over 100 %"},
		{Link{Burst: Burst{Enter: 0.5}}, "burst never ends"},
		{Link{Burst: Burst{Leave: 0.5}}, "burst never starts"},
		{Link{Delay: -1}, "delay -1ns is not between"},
		{Link{Delay: time.Hour}, "delay 1h0m0s is not between"},
		{Link{Jitter: -1, Unordered: true}, "jitter -1ns is not between"},
		{Link{Delay: ms, Jitter: 2 * ms}, "jitter 2ms is above the delay 1ms with order kept"},
		{Link{JitterTime: ms}, "jitter time 1ms without jitter"},
		{Link{Unordered: true}, "unordered without jitter"},
		{Link{Rate: 1e6}, "rate 1000000 bit/s without a queue"},
		{Link{Queue: ms}, "queue without a rate"},
		{Link{Rate: -1, Queue: ms}, "rate -1"},
		{Link{Rate: 1e6, QueueBytes: -1}, "queue of -1 bytes is negative"},
		{Link{Reorder: 0.1}, "need each other"},
		{Link{ReorderDelay: ms}, "need each other"},
		{Link{BlockUDP: true, UDPRate: 1}, "choose one"},
		{Link{MTU: 67}, "MTU 67 is below 68"},
		{Link{MTU: -1}, "MTU -1 is below 68"},
		{Link{Outages: []Schedule{{}}}, "outage: a window without length"},
		{Link{Outages: []Schedule{{Length: -1}}}, "outage: negative time"},
		{Link{Spikes: []Schedule{{Every: ms, Length: ms}}}, "spike: length 1ms leaves nothing of its period 1ms"},
		{Link{Spikes: []Schedule{{Length: 2 * ms, MaxLength: ms}}}, "longest length 1ms is below"},
		{Link{Spikes: []Schedule{{Length: time.Hour}}}, "length 1h0m0s is over"},
	}
	for _, tt := range tests {
		err := tt.link.Validate()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.link, err, tt.want)
		}
		if err := (Config{Down: tt.link}).Validate(); err == nil || !strings.HasPrefix(err.Error(), "netlab: down: ") {
			t.Errorf("as a lab's link: %v", err)
		}
	}
	for _, n := range []NAT{{Idle: ms}, {On: true, Idle: -1}, {On: true, UDPIdle: -1}} {
		if err := (Config{NAT: n}).Validate(); err == nil {
			t.Errorf("%+v passes", n)
		}
	}
}

// FuzzJudge gives a link settings and packets of all kinds: those it accepts
// must keep its promises.
func FuzzJudge(f *testing.F) {
	f.Add(uint64(1), int64(40*ms), int64(35*ms), int64(time.Second), 0.01, 0.02, 0.1, int64(4e6), int64(3*time.Second), 0.1, int64(5*ms), int64(time.Second), int64(4*time.Second), uint8(0))
	f.Add(uint64(2), int64(0), int64(0), int64(0), 0.0, 0.0, 0.0, int64(0), int64(0), 0.0, int64(0), int64(0), int64(0), uint8(7))
	f.Fuzz(func(t *testing.T, seed uint64, delay, jitter, jitterTime int64, loss, enter, duplicate float64, rate, queue int64, reorder float64, late, every, length int64, flags uint8) {
		window := Schedule{First: time.Duration(every / 2), Every: time.Duration(every), Length: time.Duration(length)}
		l := Link{
			Delay: time.Duration(delay), Jitter: time.Duration(jitter), JitterTime: time.Duration(jitterTime), Unordered: flags&1 != 0,
			Loss: loss, Burst: Burst{Enter: enter, Leave: enter}, Duplicate: duplicate,
			Rate: rate, Queue: time.Duration(queue), Reorder: reorder, ReorderDelay: time.Duration(late), BlockUDP: flags&2 != 0,
		}
		if flags&4 != 0 {
			l.Outages = []Schedule{window}
		}
		if flags&8 != 0 {
			l.Spikes = []Schedule{window, {Length: 1}}
		}
		if l.Validate() != nil {
			return
		}
		j := newJudge(seed, Down)
		j.set(0, l)
		var now, last time.Duration
		for i := range 200 {
			now += time.Duration(i%7) * ms
			v := j.packet(now, shape{size: 40 + i*7, udp: i%3 == 0})
			if v.dropped {
				if v.cause >= numCauses || v.cause.String() == "" {
					t.Fatalf("cause %d", v.cause)
				}
				continue
			}
			if v.copies < 1 || v.copies > 2 || v.at[0] < now {
				t.Fatalf("at %v: %+v", now, v)
			}
			if !l.Unordered && l.Reorder == 0 && v.at[0] < last {
				t.Fatalf("order lost: %v after %v", v.at[0], last)
			}
			last = v.at[0]
			if longest := l.Delay + l.Jitter + l.Queue + l.ReorderDelay; len(l.Spikes) == 0 && l.Reorder == 0 && v.at[0]-now > longest+time.Duration(float64(1500*8)/float64(max(rate, 1))*1e9) {
				t.Fatalf("held for %v, settings allow %v", v.at[0]-now, longest)
			}
		}
	})
}
