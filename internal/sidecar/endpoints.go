// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/metrics"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/route"
)

// routed returns the layer that chooses among the endpoints of u, nil if it has none. That
// of old stays if its way does, with what it has learned; what has changed it hears from
// setRoutes. One transport serves all endpoints: they are origins of it, each with its own
// connections, TLS name and sessions, so that those that stay keep them when others come
// or go.
func (s *Sidecar) routed(u config.Upstream, way *transport.Transport, old *built) (*route.Transport, error) {
	if len(u.Endpoints) == 0 {
		return nil, nil
	}
	if old != nil && old.layers.route != nil && old.transport == way {
		return old.layers.route, nil
	}
	return route.New(way, endpointsOf(u), s.routeConfig(u))
}

func endpointsOf(u config.Upstream) []route.Endpoint {
	out := make([]route.Endpoint, 0, len(u.Endpoints))
	for _, e := range u.Endpoints {
		out = append(out, route.Endpoint{Name: e.Name, URL: e.URL, Weight: e.Weight, Drain: u.Drained(e.Name)})
	}
	return out
}

// routeConfig says to the layer in its own way that something is off.
func (s *Sidecar) routeConfig(u config.Upstream) route.Config {
	r := u.Routing
	c := route.Config{
		Algorithm: route.Algorithm(r.Algorithm), Affinity: r.Affinity, Bound: r.AffinityBound, SlowStart: time.Duration(r.SlowStart),
		Eject:    route.Ejection{After: r.EjectAfter, Time: time.Duration(r.EjectTime), MaxTime: time.Duration(r.EjectMaxTime), Share: r.EjectShare, Slow: r.EjectSlow},
		LoadPath: r.LoadPath, LoadInterval: time.Duration(r.LoadInterval), ProbePath: r.ProbePath, ProbeEvery: time.Duration(r.ProbeInterval),
		OnDone: func(endpoint string, res route.Result) { s.metrics.EndpointDone(u.Name, endpoint, string(res)) },
		OnEject: func(endpoint string, why route.Reason, capped bool) {
			s.metrics.EndpointEjected(u.Name, endpoint, string(why), capped)
			if !capped {
				s.log.Warn("an endpoint is left out for a while", "upstream", u.Name, "endpoint", endpoint, "reason", string(why))
			}
		},
	}
	if c.Eject.After == 0 {
		c.Eject.After = -1
	}
	if c.Eject.Share == 0 {
		c.Eject.After = -1 // none may be out
	}
	return c
}

// setRoutes tells the layers what their endpoints are now, and the metrics.
func (s *Sidecar) setRoutes(cfg *config.Config, ups map[string]*built) {
	known := make(map[string][]string)
	for _, u := range cfg.Upstreams {
		if r := ups[u.Name].layers.route; r != nil {
			_ = r.Update(endpointsOf(u), s.routeConfig(u)) // was found good
			for _, e := range u.Endpoints {
				known[u.Name] = append(known[u.Name], e.Name)
			}
		}
	}
	s.metrics.SetEndpoints(known)
	select {
	case s.rerouted <- struct{}{}:
	default: // it will look anyway
	}
}

// runRoutes runs what the layers do in the background, of those that are in force.
func (s *Sidecar) runRoutes(ctx context.Context) {
	stops := make(map[*route.Transport]context.CancelFunc)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		now := make(map[*route.Transport]bool)
		for _, b := range s.shown.Load().upstreams {
			r := b.layers.route
			if r == nil {
				continue
			}
			now[r] = true
			if stops[r] == nil {
				own, stop := context.WithCancel(ctx)
				stops[r] = stop
				running.Go(func() { _ = r.Run(own) }) // it returns nil
			}
		}
		for r, stop := range stops {
			if !now[r] {
				stop()
				delete(stops, r)
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range stops {
				stop()
			}
			return
		case <-s.rerouted:
		}
	}
}

// reached are the origins that requests to u go to, those that are drained apart.
func reached(u config.Upstream) []*url.URL {
	if len(u.Endpoints) == 0 {
		return []*url.URL{u.URL}
	}
	var out []*url.URL
	for _, e := range u.Endpoints {
		if !u.Drained(e.Name) {
			out = append(out, e.URL)
		}
	}
	return out
}

// originOf is where a WebSocket is open to.
func originOf(u config.Upstream, socket io.ReadWriteCloser) *url.URL {
	if at, ok := socket.(interface{ Endpoint() string }); ok {
		if o, err := url.Parse(at.Endpoint()); err == nil && o.Host != "" {
			return o
		}
	}
	return &url.URL{Scheme: u.URL.Scheme, Host: u.URL.Host}
}

// A routingStatus is how an upstream's endpoints are.
type routingStatus struct {
	Algorithm string           `json:"algorithm"`
	Endpoints []endpointStatus `json:"endpoints"`
}

type endpointStatus struct {
	Name     string  `json:"name"`
	URL      string  `json:"url"`
	Weight   float64 `json:"weight"`
	Share    float64 `json:"share"` // of its weight that it has now: below 1 while it warms up
	State    string  `json:"state"` // serving, draining or ejected
	Reason   string  `json:"reason,omitempty"`
	OutFor   string  `json:"out_for,omitempty"`
	InFlight int     `json:"in_flight"`
	Latency  string  `json:"latency,omitempty"` // that a first byte is expected to take

	Waiting *float64 `json:"waiting,omitempty"`   // requests, by its own word
	Cache   *float64 `json:"cache_use,omitempty"` // by its own word

	Results map[string]int64 `json:"results"` // of attempts
}

// routingOf shows the endpoints of an upstream, nil if it has none.
func (s *Sidecar) routingOf(u config.Upstream) *routingStatus {
	b := s.shown.Load().upstreams[u.Name]
	if b == nil || b.layers.route == nil {
		return nil
	}
	st := &routingStatus{Algorithm: u.Routing.Algorithm}
	for _, e := range b.layers.route.States() {
		es := endpointStatus{Name: e.Name, URL: e.URL, Weight: e.Weight, Share: e.Share, State: "serving", InFlight: e.InFlight, Latency: span(e.Latency),
			Results: make(map[string]int64)}
		if e.Drain {
			es.State = "draining"
		} else if e.Out > 0 {
			es.State, es.Reason, es.OutFor = "ejected", string(e.Why), span(e.Out)
		}
		if e.Waiting >= 0 {
			es.Waiting, es.Cache = &e.Waiting, &e.Cache
		}
		for r, n := range e.Done {
			es.Results[string(r)] = n
		}
		st.Endpoints = append(st.Endpoints, es)
	}
	return st
}

// endpoints are those of all upstreams, for the metrics.
func (s *Sidecar) endpoints() (all []metrics.Endpoint) {
	shown := s.shown.Load()
	if shown == nil {
		return nil
	}
	for name, b := range shown.upstreams {
		if b.layers.route == nil {
			continue
		}
		for _, e := range b.layers.route.States() {
			all = append(all, metrics.Endpoint{Upstream: name, Name: e.Name, InFlight: e.InFlight, Available: !e.Drain && e.Out == 0, Latency: e.Latency})
		}
	}
	return all
}
