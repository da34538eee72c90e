// SPDX-License-Identifier: Apache-2.0

package route

import "time"

// A State is what is known of one endpoint.
type State struct {
	Name     string
	URL      string
	Weight   float64
	Share    float64 // of its weight that it has now: less than 1 while it warms up
	Drain    bool
	Out      time.Duration // for how long it is still left out
	Why      Reason        // "" if it is not
	InFlight int
	Latency  time.Duration // that a first byte is expected to take; 0 = not known
	Waiting  float64       // requests, by its own word; -1 = it says nothing
	Cache    float64       // share of its cache in use, by its own word; -1 = it says nothing
	Done     map[Result]int64
}

// States returns all endpoints in their order.
func (t *Transport) States() []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	out := make([]State, 0, len(t.endpoints))
	for _, e := range t.endpoints {
		s := State{Name: e.name, URL: e.scheme + "://" + e.host, Weight: e.weight, Share: e.starting(t.cfg.SlowStart, now), Drain: e.drain,
			InFlight: e.inFlight, Waiting: -1, Cache: -1, Done: make(map[Result]int64, numResults)}
		if e.out(now) {
			s.Out, s.Why = e.until.Sub(now), e.reason
		}
		s.Latency, _, _ = e.expects(t.streams, now)
		if e.report.fresh(now) {
			s.Waiting, s.Cache = e.report.waiting, e.report.cache
		}
		for i, r := range results {
			s.Done[r] = e.done[i]
		}
		out = append(out, s)
	}
	return out
}
