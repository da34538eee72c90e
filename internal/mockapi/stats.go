// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"maps"
	"sync"
	"time"
)

const maxIDs = 1 << 16 // ids counted; further ones are counted together

// Kind says what happened to a request.
type Kind string

// The kinds of an Event. Cancelled comes between the other two.
const (
	Started   Kind = "started"
	Cancelled Kind = "cancelled" // the client left before the answer was complete
	Finished  Kind = "finished"  // the handler returned, or broke off as it was asked to
)

// An Event is one step in the life of a request.
type Event struct {
	Kind   Kind
	Seq    int64  // number of the request, from 1
	ID     string // its Mock-Id
	Method string
	Path   string
	At     time.Time
}

// Stats are the counters, also at GET /mock/stats.
type Stats struct {
	Started     int64            `json:"started"`
	Finished    int64            `json:"finished"`
	Cancelled   int64            `json:"cancelled"`
	InFlight    int64            `json:"in_flight"`
	BytesIn     int64            `json:"bytes_in"`
	BytesOut    int64            `json:"bytes_out"`
	Connections int64            `json:"connections"`
	TLSConns    int64            `json:"tls_connections"`
	AfterGoaway int64            `json:"after_goaway"` // requests on a connection that had said GOAWAY
	IDs         map[string]int64 `json:"ids"`          // arrivals by Mock-Id
	OtherIDs    int64            `json:"other_ids"`    // arrivals whose id did not fit the table
}

type stats struct {
	onRequest func(Event)

	mu sync.Mutex // guards n
	n  Stats
}

func newStats(onRequest func(Event)) *stats {
	return &stats{onRequest: onRequest, n: Stats{IDs: map[string]int64{}}}
}

func (s *stats) tell(e Event) {
	e.At = time.Now()
	if s.onRequest != nil {
		s.onRequest(e)
	}
}

// start counts a request and returns its number and how often its id has come.
func (s *stats) start(id string) (seq, arrivals int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n.Started++
	s.n.InFlight++
	if id == "" {
		return s.n.Started, 1
	}
	if _, ok := s.n.IDs[id]; !ok && len(s.n.IDs) >= maxIDs {
		s.n.OtherIDs++
		return s.n.Started, 1
	}
	s.n.IDs[id]++
	return s.n.Started, s.n.IDs[id]
}

func (s *stats) update(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.n)
}

func (s *stats) connection(secure bool) {
	s.update(func(n *Stats) {
		n.Connections++
		if secure {
			n.TLSConns++
		}
	})
}

func (s *stats) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.n
	n.IDs = maps.Clone(n.IDs)
	return n
}
