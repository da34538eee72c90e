// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/internal/tenant"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/dial"
	"github.com/warmwire/warmwire/transport/semantics"
)

// built is a transport and what it was built from: a reload keeps those that
// would come out the same, and their open connections with them.
type built struct {
	made      string
	transport *transport.Transport
	cert      *trust.ClientCert // nil = none
	layers    layers
}

// forwardName stands for the way to hosts that are no upstream.
const forwardName = "\x00forward"

// buildTable makes the routing table, taking transports over from old.
func (s *Sidecar) buildTable(cfg *config.Config, tenants *tenant.Book, old map[string]*built) (*ingress.Table, map[string]*built, error) {
	pick, err := parentPicker(cfg)
	if err != nil {
		return nil, nil, err
	}
	ups := make(map[string]*built)
	t := &ingress.Table{
		Via: cfg.Listen.Via, ServerTiming: cfg.Listen.ServerTiming, Token: cfg.Listen.Token, AllowHosts: cfg.Listen.AllowHosts, AllowOrigins: cfg.Listen.AllowOrigins,
		AllowUIDs: cfg.Listen.AllowUIDs, MaxBody: int64(cfg.Limits.Body), Tenants: tenants,
		ContinueTraces: cfg.Telemetry.OTLP.Endpoint != "" && cfg.Telemetry.OTLP.Traces,
	}
	if err := makeSpoolDir(cfg); err != nil {
		return nil, nil, err
	}
	for _, u := range cfg.Upstreams {
		b, err := s.buildUpstream(cfg, u, pick, old[u.Name])
		if err != nil {
			return nil, nil, fmt.Errorf("upstream %s: %w", u.Name, err)
		}
		if err := watchConfig(u.Heartbeat).Validate(); err != nil {
			return nil, nil, fmt.Errorf("upstream %s: %w", u.Name, err)
		}
		if b.layers, err = s.stack(u, b.transport, old[u.Name]); err != nil {
			return nil, nil, fmt.Errorf("upstream %s: %w", u.Name, err)
		}
		ups[u.Name] = b
		set := make(http.Header)
		for name, v := range u.Headers {
			set.Set(name, v)
		}
		t.Upstreams = append(t.Upstreams, &ingress.Upstream{
			Name: u.Name, URL: u.URL, Dialect: dialect.Kind(u.Dialect), Transport: b.layers.first, SetHeaders: set,
			FirstToken: time.Duration(u.Timeouts.FirstToken), Idle: time.Duration(u.Timeouts.Idle), Total: time.Duration(u.Timeouts.Total),
			Stall: time.Duration(u.Buffer.StallTimeout), Priority: u.Priority, Classes: pathClasses(u), ErrorEvent: u.ErrorEvent,
			Heartbeats: s.heartbeats(u, b.transport, pick), ReadAhead: int(u.Buffer.StreamLimit), Comments: time.Duration(u.Heartbeat.SSEComments), Spool: s.spool(cfg, u), Reattach: s.reattach(cfg, u),
		})
	}
	if err := s.buildForward(cfg, t, ups, pick, old[forwardName]); err != nil {
		return nil, nil, err
	}
	return t, ups, nil
}

// buildForward sets up the way to all other hosts, with the limits of defaults.
func (s *Sidecar) buildForward(cfg *config.Config, t *ingress.Table, ups map[string]*built, pick picker, old *built) error {
	limits := cfg.DefaultTimeouts
	b := old
	made := fmt.Sprintf("%+v %v %q %q", limits, cfg.DefaultBuffer.StreamLimit, cfg.ParentProxy, cfg.NoProxy)
	dialer := s.dialer(time.Duration(limits.Connect), "", pick)
	if b == nil || b.made != made {
		trusted, err := trust.New(trust.Config{Store: s.roots, OnFailure: s.onUntrusted("")})
		if err != nil {
			return err
		}
		tr, err := transport.New(dialer, transport.Config{
			Flights: s.flights,
			ClassOf: classOf, Trust: trusted, Sessions: s.sessions, StreamLimit: int(cfg.DefaultBuffer.StreamLimit), Budget: s.memory,
			OnHandshake:  func(h transport.Handshake) { s.metrics.Handshake("", h.How, h.Took) },
			TLSHandshake: time.Duration(limits.TLSHandshake), RequestWrite: time.Duration(limits.RequestWrite),
			ResponseHeader: time.Duration(limits.ResponseHeader),
		})
		if err != nil {
			return err
		}
		b = &built{made: made, transport: tr}
	}
	ups[forwardName] = b
	t.Forward = ingress.Forward{
		DenyAll: cfg.Forward.Default == "deny", Transport: b.transport, Dial: ingress.DialFunc(dialer), Idle: time.Duration(limits.Idle),
		Stall: time.Duration(cfg.DefaultBuffer.StallTimeout), TunnelIdle: time.Duration(cfg.Forward.IdleTimeout),
	}
	if len(cfg.Forward.Deny) > 0 {
		t.Forward.Deny = denyList(cfg.Forward.Deny)
	}
	return nil
}

func (s *Sidecar) buildUpstream(cfg *config.Config, u config.Upstream, pick picker, old *built) (*built, error) {
	files, err := readFiles(u.TLS.CAFile, u.TLS.IntermediatesFile)
	if err != nil {
		return nil, err
	}
	limits := u.Timeouts
	limits.FirstToken, limits.Idle, limits.Total = 0, 0, 0 // not the transport's
	where := u.URL.String()
	if len(u.Endpoints) > 0 { // it serves any of them
		where = "endpoints"
	}
	made := fmt.Sprintf("%s %v %v %+v %v %+v %+v %v %q %q %q", where, u.Builtin, u.Protocols, u.Pool, u.Buffer.StreamLimit, limits, u.TLS, u.WebSocketHTTP2, u.CongestionControl+" "+u.QlogDir, cfg.ParentProxy, cfg.NoProxy)
	for _, f := range files {
		made += fmt.Sprintf(" %x", sha256.Sum256(f))
	}
	if old != nil && old.made == made {
		return &built{made: made, transport: old.transport, cert: old.cert}, nil // its layers may be others
	}
	tc := transport.Config{
		Protocols: u.Protocols, TLSHandshake: time.Duration(limits.TLSHandshake), RequestWrite: time.Duration(limits.RequestWrite),
		ResponseHeader: time.Duration(limits.ResponseHeader),
		Class:          semantics.Default, ClassOf: classOf, StreamLimit: int(u.Buffer.StreamLimit), Budget: s.memory,
		Pool: transport.Pool{
			Warm: u.Pool.Warm, MaxConnections: u.Pool.MaxConnections, MaxH1Connections: u.Pool.MaxH1Connections,
			MaxStreams: u.Pool.MaxStreams, IdleTimeout: time.Duration(u.Pool.IdleTimeout), QueueTimeout: time.Duration(u.Pool.QueueTimeout),
			Learned: s.idleLimits.of,
		},
		OnConn:  func(delta int, protocol string) { s.metrics.UpstreamConn(u.Name, protocol, delta) },
		Flights: s.flights,
		QlogDir: u.QlogDir, WebSocketHTTP2: u.WebSocketHTTP2,
		Distrust: func(ctx context.Context, addr string) bool {
			host, ok := lookedUp(addr, pick)
			if !ok {
				return false
			}
			_, err := s.names.Distrust(ctx, host)
			return err == nil
		},
		OnPeer: func(addr string, at netip.AddrPort) {
			if host, ok := lookedUp(addr, pick); ok {
				s.names.Report(host, at.Addr(), true)
			}
		},
		Heartbeat:   watchConfig(u.Heartbeat),
		OnVerdict:   func(v string) { s.metrics.Verdict(u.Name, v) },
		OnHandshake: func(h transport.Handshake) { s.metrics.Handshake(u.Name, h.How, h.Took) },
	}
	if err := s.buildTLS(&tc, u, files[0], files[1], pick); err != nil {
		return nil, err
	}
	if slices.Contains(u.Protocols, "h3") {
		if tc.HTTP3, err = s.http3(pick); err != nil {
			return nil, err
		}
	}
	if u.Builtin { // nothing is dialled for an API that nobody uses
		tc.Pool.WarmFor = builtinWarm
	}
	tr, err := transport.New(s.dialer(time.Duration(limits.Connect), u.CongestionControl, pick), tc)
	if err != nil {
		return nil, err
	}
	return &built{made: made, transport: tr, cert: tc.ClientCert}, nil
}

// lookedUp returns the host of addr if it is a name that this process looks up.
func lookedUp(addr string, pick picker) (host string, ok bool) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return "", false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", false
	}
	return host, pick.direct(addr)
}

// builtinWarm is how long connections to an upstream that no file names are kept
// ready after a request.
const builtinWarm = time.Hour

// keepWarm opens the connections that are kept ready.
func keepWarm(cfg *config.Config, ups map[string]*built) error {
	var err error
	for _, u := range cfg.Upstreams {
		if !u.Builtin {
			err = errors.Join(err, ups[u.Name].transport.KeepOnly(reached(u)...))
		}
	}
	return err
}

func readFiles(paths ...string) ([][]byte, error) {
	out := make([][]byte, len(paths))
	for i, path := range paths {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		out[i] = data
	}
	return out, nil
}

// A picker names the parent proxy for a target, nil for none.
type picker func(addr string) (*url.URL, error)

// direct says whether host:port is reached without a parent proxy.
func (p picker) direct(addr string) bool {
	proxy, err := p(addr)
	return err == nil && proxy == nil
}

// authority is host:port of a URL.
func authority(u *url.URL) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]))
}

// parentPicker follows parent_proxy and no_proxy, or the environment if the
// configuration says so and only then.
func parentPicker(cfg *config.Config) (picker, error) {
	none := func(string) (*url.URL, error) { return nil, nil }
	if cfg.ParentProxy == "" {
		return none, nil
	}
	pc := httpproxy.FromEnvironment()
	if cfg.ParentProxy != "env" {
		pc = &httpproxy.Config{HTTPProxy: cfg.ParentProxy, HTTPSProxy: cfg.ParentProxy}
	}
	if len(cfg.NoProxy) > 0 {
		pc.NoProxy = strings.Join(cfg.NoProxy, ",")
	}
	for _, p := range []string{pc.HTTPProxy, pc.HTTPSProxy} {
		if u, err := url.Parse(p); p != "" && (err != nil || u.Scheme != "http") {
			return nil, fmt.Errorf("parent_proxy: only http:// proxies are supported")
		}
	}
	forURL := pc.ProxyFunc()
	return func(addr string) (*url.URL, error) {
		scheme := "https"
		if _, port, err := net.SplitHostPort(addr); err == nil && port == "80" {
			scheme = "http"
		}
		return forURL(&url.URL{Scheme: scheme, Host: addr})
	}, nil
}

// dialer opens connections for one upstream, through the parent proxy where one
// applies.
func (s *Sidecar) dialer(limit time.Duration, congestion string, pick picker) transport.DialFunc {
	d := dial.New(dial.Config{Timeout: limit, Deny: s.targets.deny, Resolve: s.names.Addrs, Memory: &s.hosts, Congestion: congestion})
	return transport.ThroughParent(d.DialContext, pick, limit, s.targets.denyHost)
}

// names lists the upstreams for metric labels.
func names(cfg *config.Config) []string {
	out := make([]string, 0, len(cfg.Upstreams))
	for _, u := range cfg.Upstreams {
		out = append(out, u.Name)
	}
	return out
}

// Reload reads the configuration again, checks it whole and swaps it in at once.
// A bad file changes nothing. Requests that run keep what they began with.
func (s *Sidecar) Reload() error {
	if s.opt.Load == nil {
		return fmt.Errorf("this Warmwire was started without a configuration file to read again")
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	err := s.reloadLocked(s.over)
	if err != nil {
		s.updateAccess(s.shown.Load().Config) // whoever rotates logs does not know of the file's fault
	}
	s.metrics.Reload(err == nil)
	return err
}

// Tune changes settings of the running process, by their full dotted paths and as they
// would be written in the file; "" takes the file's value back. All are changed or none.
// Open connections and streams follow where they can, the rest applies to what comes next.
func (s *Sidecar) Tune(changes map[string]string) error {
	if err := s.mayTune(changes); err != nil {
		return err
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	return s.reloadLocked(s.over.Tune(changes))
}

// reloadLocked builds everything anew from the file and what stands over it.
func (s *Sidecar) reloadLocked(over config.Over) error {
	if s.frozen {
		return errHandingOver
	}
	cfg, warnings, err := s.opt.Load(over)
	if err != nil {
		return err
	}
	who, err := s.buildCallers(cfg)
	if err != nil {
		return err
	}
	table, ups, err := s.buildTable(cfg, who.book, s.upstreams)
	if err != nil {
		return err
	}
	where, err := s.buildCollector(cfg, s.collector)
	if err != nil {
		return err
	}
	s.metrics.SetUpstreams(names(cfg)) // before requests of a new one can end
	if err := s.ingress.Update(table); err != nil {
		s.metrics.SetUpstreams(names(s.cfg))
		if where != nil && where != s.collector {
			where.transport.Close()
		}
		return err
	}
	for name, b := range s.upstreams {
		if ups[name] == nil || ups[name].transport != b.transport {
			b.transport.Retire() // those in use close when their streams end
		}
	}
	for _, name := range fixedUntilRestart(s.first, cfg) {
		warnings = append(warnings, name+" has changed: restart for it to take effect")
	}
	for _, w := range warnings {
		s.log.Warn("configuration", "warning", w)
	}
	s.setLimits(cfg, ups, s.upstreams)
	s.cfg, s.upstreams, s.over = cfg, ups, over
	s.names.Keep(KeptNames(cfg))
	if err := keepWarm(cfg, ups); err != nil {
		s.log.Warn("configuration", "warning", err.Error())
	}
	s.shown.Store(&shown{cfg, ups, who.book, over})
	s.useCallers(who, cfg)
	s.useCollector(where, cfg)
	s.setRoutes(cfg, ups)
	for _, u := range cfg.Upstreams {
		_ = ups[u.Name].transport.SetHeartbeat(watchConfig(u.Heartbeat)) // was found good
	}
	s.beats.set(cfg)
	s.setLogLevel(cfg)
	s.memory.SetLimit(memoryLimit(cfg))
	s.limitHeap(cfg)
	s.updateAccess(cfg)
	s.log.Info("configuration reloaded", "upstreams", len(cfg.Upstreams), "tuned", len(over.Tuned), "patched", len(over.Patch.Paths()))
	return nil
}

// fixedUntilRestart names settings that changed and that a running process
// cannot change: against [Sidecar.first], those that are not in force.
func fixedUntilRestart(old, now *config.Config) []string {
	var out []string
	for name, changed := range map[string]bool{
		"listen.address": !slices.Equal(old.Listen.Addresses, now.Listen.Addresses), "admin": old.Admin != now.Admin,
		"limits.connections": old.Limits.Connections != now.Limits.Connections, "limits.header": old.Limits.Header != now.Limits.Header,
		"dns": !reflect.DeepEqual(old.DNS, now.DNS), "tls.session_file": old.TLS != now.TLS, "limits.procs": old.Limits.Procs != now.Limits.Procs, "intercept": !reflect.DeepEqual(old.Intercepted(), now.Intercepted()), "log.format": old.Log.Format != now.Log.Format,
		"state_dir": old.StateDir != now.StateDir,
	} {
		if changed {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// closeUpstreams ends what is left of the way out.
func (s *Sidecar) closeUpstreams() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	for b := range maps.Values(s.upstreams) {
		b.transport.Close()
		b.layers.close()
	}
	if q := s.quic.Load(); q != nil {
		_ = q.endpoint.Close()
	}
}
