// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"
)

// A world is a simulated network between clients and one server: packets are
// delayed, held, queued and lost, TCP sends them again with a time-out that doubles
// and delivers in order, a NAT forgets flows. Its time is exact, its chance seeded.
type world struct {
	now    time.Duration
	events events
	count  int
	rnd    *rand.Rand

	rtt, spread time.Duration
	loss        float64
	outages     [][2]time.Duration                   // all packets are lost
	holds       [][2]time.Duration                   // all packets wait for the end
	queue       func(at time.Duration) time.Duration // in one direction
	nat         func(at time.Duration) time.Duration // idle limit; 0 = none
	pong        func(at time.Duration) time.Duration // how long the server takes to answer a probe
	path        *Path
	wakes       map[time.Duration]bool // tenths of a second in which a probe left
}

func newWorld(seed uint64) *world {
	none := func(time.Duration) time.Duration { return 0 }
	return &world{rnd: rand.New(rand.NewPCG(seed, 7)), rtt: 80 * ms, spread: 35 * ms, queue: none, nat: none, pong: none,
		path: NewPath(), wakes: map[time.Duration]bool{}}
}

type event struct {
	at    time.Duration
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *world) at(t time.Duration, do func()) {
	w.count++
	heap.Push(&w.events, event{max(t, w.now), w.count, do})
}

func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = until
}

func within(spans [][2]time.Duration, t time.Duration) (end time.Duration, ok bool) {
	for _, s := range spans {
		if t >= s[0] && t < s[1] {
			return s[1], true
		}
	}
	return 0, false
}

// packet is when one that leaves then arrives, if it does.
func (w *world) packet(at time.Duration) (time.Duration, bool) {
	one := float64(w.rtt/2) + float64(w.spread)/math.Sqrt2*w.rnd.NormFloat64()
	arrives := at + max(time.Duration(one), 2*ms) + w.queue(at)
	if _, out := within(w.outages, at); out || w.rnd.Float64() < w.loss {
		return 0, false
	}
	if _, out := within(w.outages, arrives); out {
		return 0, false
	}
	if end, held := within(w.holds, at); held {
		arrives = max(arrives, end)
	}
	return arrives, true
}

// A flow is one connection of TCP.
type flow struct {
	w         *world
	last      time.Duration // when a packet last passed the NAT
	dead      bool
	arrived   [2]time.Duration // the last arrival, at the server and at the client
	sent, ack time.Duration    // of the last probe
}

const firstRTO = 280 * ms

// deliver is when a message arrives that leaves then; never if the flow dies.
func (f *flow) deliver(at time.Duration, to int) (time.Duration, bool) {
	try := at
	for rto := firstRTO; try < at+30*time.Minute; rto = min(2*rto, 2*time.Minute) {
		if limit := f.w.nat(try); limit > 0 && try-f.last > limit {
			f.dead = true
		}
		if f.dead {
			return 0, false
		}
		f.last = max(f.last, try)
		if arrives, ok := f.w.packet(try); ok {
			f.arrived[to] = max(f.arrived[to]+1, arrives)
			return f.arrived[to], true
		}
		try += rto
	}
	return 0, false
}

// rto is what TCP_INFO says.
func (f *flow) rto(now time.Duration) time.Duration {
	rto := firstRTO
	if now >= f.sent && (f.ack == 0 || now < f.ack) {
		for next := f.sent + rto; next <= now; next += rto {
			rto = min(2*rto, 2*time.Minute)
		}
	}
	return rto
}

// opens is when a fresh connection with TLS is open, or known not to open.
func (w *world) opens(at time.Duration) (time.Duration, bool) {
	limit := at + 10*s
	for try, wait := at, s; try < limit; try, wait = try+wait, 2*wait { // SYN
		there, ok := w.packet(try)
		if !ok {
			continue
		}
		back, ok := w.packet(there)
		if !ok {
			continue
		}
		f := &flow{w: w, last: back}
		hello, _ := f.deliver(back, 0)
		done, _ := f.deliver(hello, 1)
		if done <= limit {
			return done, true
		}
		break
	}
	return limit, false
}

// A client holds a connection open, with a beat or with a fixed timer.
type client struct {
	w    *world
	cfg  BeatConfig
	flow *flow
	beat *Beat
	ping [2]time.Duration // a fixed timer instead of a beat: interval and limit

	heard  time.Duration
	tokens time.Duration // between messages of the server; 0 = it is silent
	asks   time.Duration // between messages to the server that it does not answer; 0 = none
	asked  int           // events of its own, so that old ones are known

	cuts, probes, fresh, late, contested, alarms int
	natural                                      int // cuts of flows that were dead
	freshOK, left                                time.Duration
	cutAt                                        []time.Duration
	done                                         bool
}

func (w *world) client(cfg BeatConfig) *client {
	c := &client{w: w, cfg: cfg}
	w.at(w.now, c.open)
	return c
}

// open begins a connection.
func (c *client) open() {
	w := c.w
	c.flow = &flow{w: w, last: w.now}
	c.heard = w.now
	f := c.flow
	if c.ping[0] > 0 {
		c.fixed(f, w.now+c.ping[0])
	} else {
		c.beat = NewBeat(c.cfg, w.path, at(w.now), w.rnd.Float64)
		c.ask()
	}
	if c.tokens > 0 {
		c.stream(f)
	}
	if c.asks > 0 {
		c.speak(f)
	}
}

// stream sends the server's messages.
func (c *client) stream(f *flow) {
	if f != c.flow {
		return
	}
	if arrives, ok := f.deliver(c.w.now, 1); ok {
		c.w.at(arrives, func() { c.hear(f) })
	}
	c.w.at(c.w.now+c.tokens, func() { c.stream(f) })
}

// speak sends the client's.
func (c *client) speak(f *flow) {
	if f != c.flow {
		return
	}
	if c.beat != nil {
		c.beat.Sent(at(c.w.now))
		c.ask()
	}
	f.deliver(c.w.now, 0)
	c.w.at(c.w.now+c.asks, func() { c.speak(f) })
}

func (c *client) hear(f *flow) {
	if f != c.flow {
		return
	}
	if c.heard = c.w.now; c.beat != nil {
		c.ask()
	}
}

// probe sends one; answered is called at its answer.
func (c *client) probe(f *flow, answered func(rtt time.Duration)) {
	sent := c.w.now
	c.probes++
	c.w.wakes[sent/(250*ms)] = true
	f.sent, f.ack = sent, 0
	there, ok := f.deliver(sent, 0)
	if !ok {
		return
	}
	back, ok := f.deliver(there+c.w.pong(there), 1)
	if !ok {
		return
	}
	f.ack = back
	c.w.at(back, func() {
		if f == c.flow {
			answered(c.w.now - sent)
		}
	})
}

// ask follows the beat.
func (c *client) ask() {
	if c.done {
		return
	}
	c.asked++
	f, mine, w := c.flow, c.asked, c.w
	step := c.beat.Next(at(w.now), Signs{Heard: at(c.heard), RTO: f.rto(w.now), Trip: firstRTO + 2*w.queue(w.now)})
	again := func() {
		if f == c.flow && mine == c.asked {
			c.ask()
		}
	}
	switch step.Action {
	case Wait:
		if !step.Due.IsZero() {
			w.at(step.Due.Sub(epoch), again)
		}
	case Probe:
		c.probe(f, func(rtt time.Duration) {
			c.heard = w.now
			c.beat.Answered(at(w.now), rtt)
			c.ask()
		})
		w.at(w.now, again)
	case Fresh:
		c.fresh++
		done, ok := w.opens(w.now)
		beat := c.beat
		w.at(done, func() {
			if ok {
				c.freshOK = w.now
			}
			beat.FreshResult(at(w.now), ok)
			if f == c.flow {
				c.ask()
			}
		})
		w.at(w.now, again)
	case Leave:
		c.left = w.now
		if c.beat.Verdict() == Alive { // a spare one that is no longer needed
			c.done = true
			return
		}
		c.cut(f)
	}
}

// sum adds what the beat counted.
func (c *client) sum() {
	if c.beat != nil {
		st := c.beat.Stats()
		c.late += int(st.Late)
		c.alarms += int(st.FalseAlarms)
		c.contested += int(st.Contested)
	}
}

// cut ends a connection and opens the next one.
func (c *client) cut(f *flow) {
	c.cuts++
	c.cutAt = append(c.cutAt, c.w.now)
	if f.dead {
		c.natural++
	}
	c.sum()
	c.beat, c.flow = nil, nil
	var again func()
	again = func() {
		done, ok := c.w.opens(c.w.now)
		if ok {
			c.w.at(done, c.open)
		} else {
			c.w.at(done+s, again)
		}
	}
	c.w.at(c.w.now, again)
}

// fixed probes by a timer, and cuts when an answer is late.
func (c *client) fixed(f *flow, next time.Duration) {
	c.w.at(next, func() {
		if f != c.flow {
			return
		}
		answered := false
		c.probe(f, func(time.Duration) { answered = true; c.heard = c.w.now })
		c.w.at(c.w.now+c.ping[1], func() {
			if f == c.flow && !answered {
				c.cut(f)
			}
		})
		c.fixed(f, next+c.ping[0])
	})
}
