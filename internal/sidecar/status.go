// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"errors"
	"net"
	"runtime"
	"time"

	"github.com/warmwire/warmwire/internal/attribution"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/transport/pool"
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
	Memory    memoryStatus     `json:"memory"`

	Tuned   map[string]string `json:"tuned,omitempty"`   // values over those of the file
	Restart []string          `json:"restart,omitempty"` // settings that are not in force as GET /v1/config shows them, but will be at the next start

	DNS dnsStatus `json:"dns"`
	TLS tlsStatus `json:"tls"`

	Intercept *interceptStatus `json:"intercept,omitempty"`

	Tenants []tenantStatus `json:"tenants,omitempty"`
	JWT     *jwtStatus     `json:"jwt,omitempty"`
}

// A memoryStatus is limits.memory in use.
type memoryStatus struct {
	Used     int64  `json:"used"`
	Limit    int64  `json:"limit"`
	Pressure string `json:"pressure"` // slack, tight or full
	Waiting  int    `json:"waiting"`  // requests
}

func (s *Sidecar) memoryStatus() memoryStatus {
	st := s.memory.Stats()
	m := memoryStatus{Used: st.Used, Limit: st.Limit, Pressure: st.Pressure.String()}
	for _, n := range st.Waiting {
		m.Waiting += n
	}
	return m
}

type upstreamStatus struct {
	Name      string   `json:"name"`
	URL       string   `json:"url"`
	Dialect   string   `json:"dialect"`
	Protocols []string `json:"protocols"`
	Injects   bool     `json:"injects_headers"`

	ClientCert *certStatus `json:"client_cert,omitempty"`

	Limits *limitStatus `json:"limits,omitempty"` // if it has some

	Routing *routingStatus `json:"routing,omitempty"` // if it has several endpoints

	Origins map[string]originStatus `json:"origins,omitempty"` // by scheme://host:port, once used or kept ready
}

// A certStatus is our certificate for an upstream.
type certStatus struct {
	Expires time.Time `json:"expires"`
	Error   string    `json:"error,omitempty"` // why the files as they are now are not in use
}

func (s *Sidecar) certOf(name string) *certStatus {
	b := s.shown.Load().upstreams[name]
	if b == nil || b.cert == nil {
		return nil
	}
	st := &certStatus{Expires: b.cert.NotAfter().UTC()}
	if err := b.cert.Err(); err != nil {
		st.Error = err.Error()
	}
	return st
}

// An originStatus is the pool of connections to one origin.
type originStatus struct {
	Connections []connStatus `json:"connections"`
	Opening     int          `json:"opening"`
	Waiting     int          `json:"waiting"`              // requests that wait for a connection
	KeptReady   int          `json:"kept_ready"`           // how many are kept open
	IdleLimit   string       `json:"idle_limit,omitempty"` // of the server, as learned
}

type connStatus struct {
	Protocol string `json:"protocol"`
	Age      string `json:"age"`
	Idle     string `json:"idle,omitempty"`
	InFlight int    `json:"in_flight"`
	Suspect  bool   `json:"suspect,omitempty"` // it does not answer a probe
	Leaving  bool   `json:"leaving,omitempty"` // it takes no more requests

	ID          uint64  `json:"id,omitempty"`           // in /v1/flights
	Verdict     string  `json:"verdict,omitempty"`      // of its heartbeat: alive, thinking, doubtful, path_down or dead_flow
	RTTMS       float64 `json:"rtt_ms,omitempty"`       // by its kernel
	Packets     uint64  `json:"packets,omitempty"`      // that came, since it was opened
	LatePackets uint64  `json:"late_packets,omitempty"` // of them out of order, or of ours sent again
}

// connOf shows a connection.
func connOf(c pool.ConnState) connStatus {
	st := connStatus{Protocol: c.Protocol, Age: span(max(c.Age, 1)), Idle: span(c.Idle), InFlight: c.InFlight, Suspect: c.Suspect, Leaving: c.Leaving}
	if p, ok := c.Net.(interface {
		Evidence() (attribution.Evidence, bool)
		ConnectionID() uint64
		Verdict() string
	}); ok {
		st.ID, st.Verdict = p.ConnectionID(), p.Verdict()
		if e, known := p.Evidence(); known {
			st.RTTMS, st.Packets, st.LatePackets = millis(e.RTT), e.Segments, e.Disorder
		}
	}
	return st
}

// originsOf shows the pools of an upstream.
func (s *Sidecar) originsOf(name string) map[string]originStatus {
	b := s.shown.Load().upstreams[name]
	if b == nil {
		return nil
	}
	out := map[string]originStatus{}
	for origin, p := range b.transport.State() {
		o := originStatus{Connections: []connStatus{}, Opening: p.Opening, Waiting: p.Waiting, KeptReady: p.Keep, IdleLimit: span(p.Learned)}
		for _, c := range p.Conns {
			o.Connections = append(o.Connections, connOf(c))
		}
		out[origin] = o
	}
	return out
}

// span is a duration for people; "" if there is none.
func span(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.Round(time.Millisecond).String()
}

func (s *Sidecar) status() status {
	st := status{
		Version: s.opt.Version, Go: runtime.Version(), Started: s.started.UTC(), Uptime: time.Since(s.started).Round(time.Second).String(),
		Ready: !s.draining.Load(), Draining: s.draining.Load(), Running: s.ingress.Running(), Memory: s.memoryStatus(), Tuned: s.shown.Load().over.Tuned, Restart: fixedUntilRestart(s.first, s.shown.Load().Config), DNS: s.dnsStatus(), TLS: s.tlsStatus(), Intercept: s.interceptStatus(),
	}
	st.Tenants, st.JWT = s.tenantStatus()
	for _, ln := range s.listeners {
		st.Listen = append(st.Listen, ln.Addr().String())
	}
	for _, u := range s.shown.Load().Upstreams {
		st.Upstreams = append(st.Upstreams, upstreamStatus{u.Name, u.URL.String(), u.Dialect, u.Protocols, len(u.Headers) > 0, s.certOf(u.Name), s.limitsOf(u.Name), s.routingOf(u), s.originsOf(u.Name)})
	}
	return st
}

// A streamStatus is one line of GET /v1/streams.
type streamStatus struct {
	ID       uint64 `json:"id"` // as in the access log
	Upstream string `json:"upstream,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Mode     string `json:"mode"`
	Protocol string `json:"protocol"`
	Age      string `json:"age"`
	Status   int    `json:"status,omitempty"`
	BytesOut int64  `json:"bytes_out"`
	LagBytes int    `json:"lag_bytes"`
	LagTime  string `json:"lag_time,omitempty"`
	Absent   bool   `json:"absent,omitempty"` // it waits for its app to come back

	Now *findingStatus `json:"now,omitempty"` // where its time goes; of the first 200 and of those that suffer

	BytesIn     int64        `json:"bytes_in,omitempty"` // of a WebSocket
	AppBeat     *pulseStatus `json:"app_heartbeat,omitempty"`
	ServersBeat *pulseStatus `json:"upstream_heartbeat,omitempty"`

	SessionAPI  string `json:"session_api,omitempty"`     // of a realtime session
	SessionEnds string `json:"session_ends_at,omitempty"` // if that is known
	Resumable   string `json:"resumable,omitempty"`       // yes or no, as its server said last
}

// A pulseStatus is the heartbeat of one side of a WebSocket.
type pulseStatus struct {
	Verdict   string `json:"verdict"`
	RTT       string `json:"rtt,omitempty"`
	Interval  string `json:"interval,omitempty"`
	IdleLimit string `json:"idle_limit,omitempty"` // of the path, as learned
}

func pulseOf(p *ingress.Pulse) *pulseStatus {
	if p == nil {
		return nil
	}
	return &pulseStatus{p.Verdict, span(p.RTT), span(p.Interval), span(p.Limit)}
}

func (s *Sidecar) streams() any {
	out := []streamStatus{}
	for _, i := range s.ingress.Streams() {
		st := streamStatus{
			ID: i.ID, Upstream: i.Upstream, Tenant: i.Tenant, Mode: string(i.Mode), Protocol: i.AppProto, Age: span(max(time.Since(i.Start), time.Millisecond)),
			Status: i.Status, BytesOut: i.BytesOut, LagBytes: i.LagBytes, LagTime: span(i.LagTime), Absent: i.Absent,
			AppBeat: pulseOf(i.App), ServersBeat: pulseOf(i.Server),
		}
		if f := i.Finding; f != nil && (len(out) < maxTold || f.Fault != "") {
			st.Now = findingOf(f)
		}
		if i.Socket != nil {
			st.BytesIn = i.Socket.App.BytesIn
		}
		if w := i.Session; w != nil {
			st.SessionAPI, st.Resumable = string(w.API), w.Resumable
			if !w.Ends.IsZero() {
				st.SessionEnds = w.Ends.UTC().Format(time.RFC3339)
			}
		}
		out = append(out, st)
	}
	return out
}

// isLoopbackListener says whether only this host can reach a listener.
func isLoopbackListener(a net.Addr) bool {
	ta, ok := a.(*net.TCPAddr)
	return !ok || ta.IP.IsLoopback()
}
