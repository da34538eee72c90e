// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"fmt"
	"net/http"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/qos"
	"github.com/warmwire/warmwire/transport/resume"
	"github.com/warmwire/warmwire/transport/retry"
	"github.com/warmwire/warmwire/transport/route"
)

// layers is what stands between the way in and a transport, and what it was built
// from.
type layers struct {
	made  string
	first http.RoundTripper
	inner http.RoundTripper // what made describes: all but the gate
	gate  *qos.Gate         // nil = no limits
	retry *retry.Transport
	route *route.Transport // nil: one endpoint
}

// stack puts the layers on the way to u: a request passes them from the last line up.
// Those of old are kept if they would come out the same, with what they have learned.
func (s *Sidecar) stack(u config.Upstream, way *transport.Transport, old *built) (layers, error) {
	made := fmt.Sprintf("%p %+v %v %v %v", way, u.Retry, u.Resume, u.Reconnect, len(u.Endpoints) > 0)
	if old != nil && old.layers.made == made {
		return s.limited(u, old.layers, old)
	}
	l := layers{made: made, first: way}
	var err error
	if l.route, err = s.routed(u, way, old); err != nil {
		return layers{}, err
	}
	if l.route != nil {
		l.first = l.route
	}
	if l.retry, err = retry.New(l.first, s.retryConfig(u)); err != nil {
		return layers{}, err
	}
	l.first = l.retry
	if u.Resume {
		l.first, err = resume.New(l.first, resume.Config{
			BaseDelay: time.Duration(u.Retry.BaseDelay), MaxDelay: time.Duration(u.Retry.MaxDelay),
			Take: s.memory.Take, Give: s.memory.Give,
			OnResume: func(r resume.Result) { s.metrics.Resume(u.Name, string(r)) },
		})
	}
	if err == nil && u.Reconnect {
		l.first, err = retry.NewHandshakes(l.first, retry.HandshakeConfig{
			OnAttempt: s.onAttempt(u.Name),
		})
	}
	if err != nil {
		return layers{}, err
	}
	if l.route != nil { // it keeps the attempts of one request together
		l.first = route.Calls(l.first)
	}
	l.inner = l.first
	return s.limited(u, l, old)
}

// retryConfig says to the layer in its own way that something is off.
func (s *Sidecar) retryConfig(u config.Upstream) retry.Config {
	c := retry.Config{
		MaxAttempts: u.Retry.MaxAttempts, Budget: u.Retry.Budget, Statuses: u.Retry.Statuses, Resets: u.Retry.Resets,
		BaseDelay: time.Duration(u.Retry.BaseDelay), MaxDelay: time.Duration(u.Retry.MaxDelay), ReplayBody: int64(u.Retry.ReplayBody),
		Hedge: u.Retry.Hedge, HedgeBudget: u.Retry.HedgeBudget, Take: s.memory.Take, Give: s.memory.Give,
		OnAttempt: s.onAttempt(u.Name),
	}
	if c.Budget == 0 {
		c.Budget = -1
	}
	if c.ReplayBody == 0 {
		c.ReplayBody = -1
	}
	return c
}

// close waits for what the layers have in flight; the transport below is closed.
func (l layers) close() {
	if l.retry != nil {
		_ = l.retry.Close()
	}
}
