// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"errors"
	"net"
	"runtime"
	"time"
)

// ready says why no new requests should come, nil if they may. It speaks of this
// process only: whether an upstream answers is another question.
func (s *Sidecar) ready() error {
	if s.draining.Load() {
		return errors.New("draining")
	}
	return nil
}

// A status is what GET /v1/status shows.
type status struct {
	Version   string           `json:"version"`
	Go        string           `json:"go"`
	Started   time.Time        `json:"started"`
	Uptime    string           `json:"uptime"`
	Ready     bool             `json:"ready"`
	Draining  bool             `json:"draining"`
	Listen    []string         `json:"listen"`
	Running   int              `json:"running"` // requests, tunnels and WebSockets
	Upstreams []upstreamStatus `json:"upstreams"`
}

type upstreamStatus struct {
	Name      string   `json:"name"`
	URL       string   `json:"url"`
	Dialect   string   `json:"dialect"`
	Protocols []string `json:"protocols"`
	Injects   bool     `json:"injects_headers"`
}

func (s *Sidecar) status() status {
	st := status{
		Version: s.opt.Version, Go: runtime.Version(), Started: s.started.UTC(), Uptime: time.Since(s.started).Round(time.Second).String(),
		Ready: !s.draining.Load(), Draining: s.draining.Load(), Running: s.ingress.Running(),
	}
	for _, ln := range s.listeners {
		st.Listen = append(st.Listen, ln.Addr().String())
	}
	for _, u := range s.shown.Load().Upstreams {
		st.Upstreams = append(st.Upstreams, upstreamStatus{u.Name, u.URL.String(), u.Dialect, u.Protocols, len(u.Headers) > 0})
	}
	return st
}

// isLoopbackListener says whether only this host can reach a listener.
func isLoopbackListener(a net.Addr) bool {
	ta, ok := a.(*net.TCPAddr)
	return !ok || ta.IP.IsLoopback()
}
