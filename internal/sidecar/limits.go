// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"net/http"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/internal/metrics"
	"github.com/warmwire/warmwire/transport/qos"
	"github.com/warmwire/warmwire/transport/retry"
)

// limited puts the gate of u before its layers, if it has limits. The gate of old stays,
// with what runs and waits there; what it is to keep to now, it hears from setLimits.
func (s *Sidecar) limited(u config.Upstream, l layers, old *built) (layers, error) {
	l.gate, l.first = nil, l.inner
	if !u.Limits.Any() {
		return l, nil
	}
	var err error
	if old != nil && old.layers.gate != nil {
		l.gate = old.layers.gate
	} else if l.gate, err = qos.NewGate(s.limitConfig(u)); err != nil {
		return layers{}, err
	}
	l.first, err = qos.New(l.inner, l.gate, ticketOf)
	return l, err
}

// setLimits tells the gates what they are to keep to; those that are left behind let
// everything pass that waits there.
func (s *Sidecar) setLimits(cfg *config.Config, ups, before map[string]*built) {
	used := make(map[*qos.Gate]bool)
	for _, u := range cfg.Upstreams {
		if gate := ups[u.Name].layers.gate; gate != nil {
			used[gate] = true
			_ = gate.Update(s.limitConfig(u)) // was found good
		}
	}
	for _, b := range before {
		if gate := b.layers.gate; gate != nil && !used[gate] {
			_ = gate.Update(qos.Config{})
		}
	}
}

func (s *Sidecar) limitConfig(u config.Upstream) qos.Config {
	l := u.Limits
	return qos.Config{
		Limit: l.Concurrency, Adaptive: l.Adaptive, Floor: l.Floor, Pace: l.Pace, Queue: l.Queue, QueueTimeout: time.Duration(l.QueueTimeout),
		OnStart: func(t qos.Ticket, waited time.Duration) {
			if waited > 0 {
				s.metrics.LimitWait(u.Name, t.Class.String(), waited)
			}
		},
		OnRefuse: func(t qos.Ticket, r qos.Reason) { s.metrics.LimitRefused(u.Name, t.Tenant, string(r)) },
	}
}

// ticketOf says whose a request is.
func ticketOf(req *http.Request) qos.Ticket {
	c := ingress.CallerOf(req.Context())
	return qos.Ticket{Class: qos.Class(classes[c.Class].way), Tenant: c.Tenant, Weight: c.Weight}
}

// onAttempt counts what retry decided, and tells the upstream's gate of refusals that the
// app does not see.
func (s *Sidecar) onAttempt(upstream string) func(retry.Decision) {
	return func(d retry.Decision) {
		s.metrics.Retry(upstream, string(d.Reason), string(d.Verdict))
		if d.Verdict != retry.Retried {
			return
		}
		switch d.Status {
		case http.StatusTooManyRequests, http.StatusServiceUnavailable, 529:
			if b := s.shown.Load().upstreams[upstream]; b != nil && b.layers.gate != nil {
				b.layers.gate.Refused(d.Wait)
			}
		}
	}
}

// A limitStatus is what the limits of an upstream do now.
type limitStatus struct {
	Concurrency int                       `json:"concurrency,omitempty"` // as is in force
	Running     map[string]int            `json:"running"`               // by class
	Waiting     map[string]int            `json:"waiting"`
	Tenants     map[string]tenantRequests `json:"tenants,omitempty"`
	PausedFor   string                    `json:"paused_for,omitempty"` // because the upstream says so
	Provider    map[string]providerLimit  `json:"provider,omitempty"`   // its own limits, as limits.pace takes them to be
}

// A tenantRequests is what a tenant has of an upstream.
type tenantRequests struct {
	Running int `json:"running"`
	Waiting int `json:"waiting"`
}

// A providerLimit is one of them.
type providerLimit struct {
	Limit     int64 `json:"limit,omitempty"` // 0 = not known
	Remaining int64 `json:"remaining"`
}

func byClass(n [qos.Classes]int) map[string]int {
	out := make(map[string]int, len(n))
	for c, v := range n {
		out[qos.Class(c).String()] = v
	}
	return out
}

// limitsOf shows the limits of an upstream, nil if it has none.
func (s *Sidecar) limitsOf(name string) *limitStatus {
	b := s.shown.Load().upstreams[name]
	if b == nil || b.layers.gate == nil {
		return nil
	}
	st := b.layers.gate.State()
	l := &limitStatus{Concurrency: st.Limit, Running: byClass(st.Running), Waiting: byClass(st.Waiting), PausedFor: span(st.Hold),
		Tenants: map[string]tenantRequests{}, Provider: map[string]providerLimit{}}
	for name, t := range st.Tenants {
		if name != "" {
			l.Tenants[name] = tenantRequests(t)
		}
	}
	for _, p := range st.Limits {
		l.Provider[p.Of] = providerLimit{p.Most, p.Remaining}
	}
	return l
}

// concurrency is for metrics.
func (s *Sidecar) concurrency() []metrics.Concurrency {
	var out []metrics.Concurrency
	for name, b := range s.shown.Load().upstreams {
		if b.layers.gate != nil {
			st := b.layers.gate.State()
			out = append(out, metrics.Concurrency{Upstream: name, Limit: st.Limit, Running: byClass(st.Running), Waiting: byClass(st.Waiting)})
		}
	}
	return out
}
