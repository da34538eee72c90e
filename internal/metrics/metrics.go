// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is plain data.
type Config struct{ Version string }

// A Request is what a finished request showed. A zero duration did not happen.
type Request struct {
	Upstream, Mode, Protocol, Outcome, Cause string
	Duration                                 time.Duration
	Queue, DNS, Connect, TLS, Send, Wait     time.Duration
	Retry, FirstToken                        time.Duration
	Provider, Held, Network, App             time.Duration // of the answer
	Fault                                    string        // "" = none
	TTFT, PerChunk                           time.Duration
	InputTokens, OutputTokens                int64 // -1 = unknown
	TrailersLost                             int
	TraceID                                  string // of a trace that is recorded, 32 hex digits; "" = there is none
}

// Metrics counts.
type Metrics struct {
	reg    *prometheus.Registry
	labels labels

	requests, appRequests, interruptions, handshakes, verdicts, tokens, lookups, untrusted, pauses, retries, resumes, probes, alarms, ending, spans, exports *prometheus.CounterVec
	malformed, refused, reloads, intercepted                                                                                                                 *prometheus.CounterVec
	acceptErrors, trailers                                                                                                                                   prometheus.Counter
	duration, phase, ttft, perChunk, shaking, rtt                                                                                                            *prometheus.HistogramVec
	streams, interval                                                                                                                                        *prometheus.GaugeVec
	appConns                                                                                                                                                 prometheus.Gauge
	conns                                                                                                                                                    *connections
	parts                                                                                                                                                    *parts
	limits                                                                                                                                                   *limits
	endpoints                                                                                                                                                *endpoints
	dropped, logDropped                                                                                                                                      atomic.Pointer[func() uint64]
	used, limit                                                                                                                                              atomic.Pointer[func() int64] // of the memory budget

	// mu guards known, and is held while series of upstreams are touched: a request
	// that ends while its upstream vanishes must not bring the series back.
	mu    sync.RWMutex
	known set // upstreams of the configuration

	tenants      tenants
	knownTenants set // guarded by mu
}

// Buckets are few, because classic ones are paid for in every series; the native
// histograms beside them are finer (Prometheus reads those in its own format).
var (
	phaseBuckets = []float64{.02, .1, .5, 2.5, 30}
	tokenBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 120}
	chunkBuckets = []float64{.01, .025, .05, .1, .25, 1}
	rttBuckets   = []float64{.1, .5}
	totalBuckets = []float64{1, 10, 60, 600}
)

// New returns Metrics with all series at zero that have no labels.
func New(cfg Config) *Metrics {
	m := &Metrics{reg: prometheus.NewRegistry(), labels: newLabels(), known: set{}, knownTenants: set{}}
	m.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "warmwire_" + name, Help: help}, labels)
		m.reg.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "warmwire_" + name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}, labels)
		m.reg.MustRegister(v)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "warmwire_" + name, Help: help}, labels)
		m.reg.MustRegister(v)
		return v
	}
	m.requests = counter("requests_total", "Finished requests, tunnels and WebSockets.", "upstream", "mode", "outcome")
	m.appRequests = counter("app_requests_total", "The same by the protocol of the app.", "mode", "protocol")
	m.interruptions = counter("interruptions_total", "Answers that did not end as they should.", "upstream", "cause")
	m.handshakes = counter("tls_handshakes_total", "TLS handshakes with upstreams.", "upstream", "kind")
	m.untrusted = counter("tls_verification_failures_total", "Certificates that were refused, or would have been.", "upstream", "reason", "action")
	m.verdicts = counter("heartbeat_verdicts_total", "What became of silent connections.", "upstream", "verdict")
	m.pauses = counter("buffer_pauses_total", "Times an app was so slow that its upstream had to wait.", "upstream")
	m.retries = counter("retries_total", "Decisions about sending a request again.", "upstream", "reason", "decision")
	m.resumes = counter("stream_resumes_total", "Streams that broke and could be continued at the upstream.", "upstream", "result")
	m.probes = counter("heartbeat_probes_total", "Pings of ours on WebSockets and spare connections.", "upstream", "side")
	m.alarms = counter("heartbeat_false_alarms_total", "Doubts about a peer that it refuted late.", "upstream")
	m.ending = counter("session_warnings_total", "Realtime sessions that ended by themselves or were about to.", "upstream", "api", "reason")
	m.interval = gauge("heartbeat_interval_seconds", "The longest silence before a ping on WebSockets to upstreams, as last decided.", "upstream")
	m.rtt = histogram("heartbeat_rtt_seconds", "Round trips of pings on WebSockets to upstreams.", rttBuckets, "upstream")
	m.lookups = counter("dns_lookups_total", "Lookups of names.", "result")
	m.tokens = counter("tokens_total", "Tokens, as reported.", "upstream", "direction")
	m.malformed = counter("malformed_requests_total", "Requests refused as malformed.", "code")
	m.refused = counter("refused_requests_total", "Requests refused by policy.", "reason")
	m.intercepted = counter("intercepts_total", "Tunnels to hosts of intercept.hosts.", "result")
	m.spans = counter("otlp_spans_total", "Spans by what became of them.", "result")
	m.exports = counter("otlp_exports_total", "Messages to the OpenTelemetry collector.", "signal", "result")
	m.tenants = newTenants(counter)
	m.reloads = counter("config_reloads_total", "Reloads of the configuration.", "result")
	m.duration = histogram("request_duration_seconds", "First byte of a request to the end of its answer.", totalBuckets, "upstream", "kind")
	m.phase = histogram("phase_seconds", "Stages before an answer begins.", phaseBuckets, "upstream", "phase")
	m.parts = newParts(counter, histogram)
	m.shaking = histogram("tls_handshake_seconds", "TLS handshakes that did not fail.", phaseBuckets, "kind")
	m.ttft = histogram("time_to_first_token_seconds", "First byte of a request to the first token-bearing event.", tokenBuckets, "upstream")
	m.perChunk = histogram("time_per_output_chunk_seconds", "(last - first) / (chunks - 1) of one stream.", chunkBuckets, "upstream")
	m.conns = newConnections(m)
	m.limits = newLimits(m, counter)
	m.endpoints = newEndpoints(m, counter)
	m.streams = gauge("streams_open", "Requests, tunnels and WebSockets that run.", "mode")
	m.appConns = prometheus.NewGauge(prometheus.GaugeOpts{Name: "warmwire_app_connections", Help: "Open connections of apps."})
	m.acceptErrors = prometheus.NewCounter(prometheus.CounterOpts{Name: "warmwire_accept_errors_total", Help: "Connections that could not be accepted."})
	m.trailers = prometheus.NewCounter(prometheus.CounterOpts{Name: "warmwire_trailers_dropped_total", Help: "Trailer fields that could not be passed on."})
	m.reg.MustRegister(m.conns, m.appConns, m.acceptErrors, m.trailers, buildInfo(cfg),
		droppedCounter("accesslog_dropped_total", "Access log records lost: the queue was full, or writing failed.", &m.dropped),
		droppedCounter("log_lines_dropped_total", "Lines of the log lost: its reader was too slow, or writing failed.", &m.logDropped))
	m.registerDescriptors()
	m.registerMemory()
	return m
}

func buildInfo(cfg Config) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "warmwire_build_info", Help: "1, with the version."}, []string{"version", "goversion"})
	g.WithLabelValues(cfg.Version, runtime.Version()).Set(1)
	return g
}

// droppedCounter shows what get, once it is there, returns.
func droppedCounter(name, help string, get *atomic.Pointer[func() uint64]) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "warmwire_" + name, Help: help}, func() float64 {
		if f := get.Load(); f != nil {
			return float64((*f)())
		}
		return 0
	})
}

// registerDescriptors shows how many descriptors are used and may be.
func (m *Metrics) registerDescriptors() {
	show := func(name, help string, get func() float64) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "warmwire_" + name, Help: help}, get))
	}
	show("fds_in_use", "Open file descriptors, -1 = unknown.", fdsInUse)
	show("fds_limit", "File descriptors it may have, -1 = unknown.", fdsLimit)
}

// registerMemory shows the byte budget of all streams.
func (m *Metrics) registerMemory() {
	show := func(name, help string, get *atomic.Pointer[func() int64]) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "warmwire_" + name, Help: help}, func() float64 {
			if f := get.Load(); f != nil {
				return float64((*f)())
			}
			return 0
		}))
	}
	show("buffer_bytes", "Bytes that streams hold, or may be sent without being asked again.", &m.used)
	show("buffer_limit_bytes", "Bytes that they may hold together: limits.memory.", &m.limit)
}

// SetMemory tells where the memory budget is counted.
func (m *Metrics) SetMemory(used, limit func() int64) {
	m.used.Store(&used)
	m.limit.Store(&limit)
}

// Paused counts a time in which an app kept its upstream waiting.
func (m *Metrics) Paused(upstream string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.pauses.WithLabelValues(m.upstream(upstream, "")).Inc()
}

// Retry counts a decision about a further attempt.
func (m *Metrics) Retry(upstream, reason, decision string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.retries.WithLabelValues(m.upstream(upstream, ""), m.labels.attempt.of(reason), m.labels.decision.of(decision)).Inc()
}

// Resume counts a stream that broke and that the upstream keeps.
func (m *Metrics) Resume(upstream, result string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.resumes.WithLabelValues(m.upstream(upstream, ""), m.labels.resumed.of(result)).Inc()
}

// HeartbeatProbe counts a ping of ours; side is app, upstream or spare.
func (m *Metrics) HeartbeatProbe(upstream, side string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.probes.WithLabelValues(m.upstream(upstream, ""), m.labels.side.of(side)).Inc()
}

// HeartbeatRTT takes the round trip of a ping to an upstream.
func (m *Metrics) HeartbeatRTT(upstream string, rtt time.Duration) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.rtt.WithLabelValues(m.upstream(upstream, "")).Observe(rtt.Seconds())
}

// HeartbeatInterval takes the longest silence that is left before a ping to an upstream.
func (m *Metrics) HeartbeatInterval(upstream string, d time.Duration) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.interval.WithLabelValues(m.upstream(upstream, "")).Set(d.Seconds())
}

// FalseAlarms counts n doubts that were refuted.
func (m *Metrics) FalseAlarms(upstream string, n int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.alarms.WithLabelValues(m.upstream(upstream, "")).Add(float64(n))
}

// SessionWarning counts a realtime session whose end was foretold, or has come.
func (m *Metrics) SessionWarning(upstream, api, reason string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.ending.WithLabelValues(m.upstream(upstream, ""), m.labels.api.of(api), m.labels.warning.of(reason)).Inc()
}

// Handler serves the page: as text, as OpenMetrics to whoever asks for it, which has
// exemplars, or in protobuf, which has native histograms as well.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, EnableOpenMetrics: true})
}

// SetUpstreams names those that the configuration has; series of others vanish.
// What their requests still report counts as other.
func (m *Metrics) SetUpstreams(names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.known
	m.known = newSet(names...)
	for name := range gone {
		if m.known[name] {
			continue
		}
		l := prometheus.Labels{"upstream": name}
		for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
			m.requests, m.interruptions, m.handshakes, m.verdicts, m.tokens, m.duration, m.phase, m.ttft, m.perChunk, m.untrusted, m.pauses, m.retries, m.resumes, m.probes, m.alarms, m.rtt, m.interval, m.ending, m.limits.waits, m.limits.seconds, m.limits.refusals, m.parts.seconds, m.parts.faults, m.endpoints.done, m.endpoints.ejected,
		} {
			v.DeletePartialMatch(l)
		}
	}
}

// SetDropped tells where the access log counts what it drops.
func (m *Metrics) SetDropped(f func() uint64) { m.dropped.Store(&f) }

// SetLogDropped tells where lines of the log are counted that are dropped.
func (m *Metrics) SetLogDropped(f func() uint64) { m.logDropped.Store(&f) }

// upstream is the label of an upstream, or of a host that is none. The caller
// holds mu.
func (m *Metrics) upstream(name, mode string) string {
	switch {
	case name == "" && mode == "tunnel":
		return "tunnel"
	case name == "":
		return "forward"
	}
	return m.known.of(name)
}

// RequestDone counts a finished request.
func (m *Metrics) RequestDone(r Request) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	up, mode, outcome := m.upstream(r.Upstream, r.Mode), m.labels.mode.of(r.Mode), m.labels.outcome.of(r.Outcome)
	m.requests.WithLabelValues(up, mode, outcome).Inc()
	m.appRequests.WithLabelValues(mode, m.labels.protocol.of(r.Protocol)).Inc()
	trace := exemplar(r.TraceID)
	observeTraced(m.duration.WithLabelValues(up, durationKind(mode)), r.Duration, trace)
	if r.TrailersLost > 0 {
		m.trailers.Add(float64(r.TrailersLost))
	}
	if interrupted(outcome, r.Cause) {
		m.interruptions.WithLabelValues(up, m.labels.cause.of(r.Cause)).Inc()
	}
	m.observe(up, &r)
	if r.TTFT > 0 {
		observeTraced(m.ttft.WithLabelValues(up), r.TTFT, trace)
	}
	if r.InputTokens > 0 {
		m.tokens.WithLabelValues(up, "input").Add(float64(r.InputTokens))
	}
	if r.OutputTokens > 0 {
		m.tokens.WithLabelValues(up, "output").Add(float64(r.OutputTokens))
	}
}

// durationKind merges the ways in whose requests last alike: a label for each would be
// as many histograms.
func durationKind(mode string) string {
	switch mode {
	case "websocket", "tunnel":
		return mode
	}
	return "request"
}

// interrupted says whether an answer did not end as it should.
func interrupted(outcome, cause string) bool {
	switch outcome {
	case "cut_upstream", "cut_app", "cut_warmwire":
		return true
	}
	return cause == "missing_terminal" || cause == "error_event"
}

// observe fills the histograms with the stages that happened.
func (m *Metrics) observe(up string, r *Request) {
	for _, p := range [...]struct {
		name string
		d    time.Duration
	}{{"queue", r.Queue}, {"dns", r.DNS}, {"connect", r.Connect}, {"tls", r.TLS}, {"send", r.Send}, {"wait", r.Wait}} {
		if p.d > 0 {
			m.phase.WithLabelValues(up, p.name).Observe(p.d.Seconds())
		}
	}
	m.parts.observe(up, m.labels.fault, r)
	if r.PerChunk > 0 {
		m.perChunk.WithLabelValues(up).Observe(r.PerChunk.Seconds())
	}
}

// StreamOpen follows requests, tunnels and WebSockets that run.
func (m *Metrics) StreamOpen(mode string, delta int) {
	m.streams.WithLabelValues(m.labels.mode.of(mode)).Add(float64(delta))
}

// AppConn follows the connections of apps.
func (m *Metrics) AppConn(delta int) { m.appConns.Add(float64(delta)) }

// UpstreamConn follows the connections to one upstream; protocol may be written
// as in ALPN.
func (m *Metrics) UpstreamConn(upstream, protocol string, delta int) {
	m.conns.add(upstream, m.labels.protocol.of(httpVersion(protocol)), delta)
}

// Lookup counts a lookup of a name.
func (m *Metrics) Lookup(result string) { m.lookups.WithLabelValues(m.labels.result.of(result)).Inc() }

// Verdict counts a new judgement on a connection.
func (m *Metrics) Verdict(upstream, verdict string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.verdicts.WithLabelValues(m.upstream(upstream, ""), m.labels.verdict.of(verdict)).Inc()
}

// Handshake counts a TLS handshake: full, resumed, 0-rtt or failed.
func (m *Metrics) Handshake(upstream, kind string, took time.Duration) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	up := m.upstream(upstream, "")
	m.handshakes.WithLabelValues(up, m.labels.kind.of(kind)).Inc()
	if kind != "failed" {
		m.shaking.WithLabelValues(m.labels.kind.of(kind)).Observe(took.Seconds())
	}
}

// Untrusted counts a certificate that was refused, or would have been if reportOnly.
func (m *Metrics) Untrusted(upstream, reason string, reportOnly bool) {
	action := "refused"
	if reportOnly {
		action = "reported"
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.untrusted.WithLabelValues(m.upstream(upstream, ""), m.labels.distrust.of(reason), action).Inc()
}

// Malformed counts a request that could not be understood.
func (m *Metrics) Malformed(code string) {
	m.malformed.WithLabelValues(m.labels.malformed.of(code)).Inc()
}

// Refused counts a request that policy refused.
func (m *Metrics) Refused(reason string) {
	m.refused.WithLabelValues(m.labels.reason.of(reason)).Inc()
}

// Intercepted counts a tunnel to a listed host.
func (m *Metrics) Intercepted(result string) {
	m.intercepted.WithLabelValues(m.labels.intercept.of(result)).Inc()
}

// AcceptFailed counts a connection that could not be accepted.
func (m *Metrics) AcceptFailed() { m.acceptErrors.Inc() }

// Reload counts a reload.
func (m *Metrics) Reload(ok bool) {
	result := "failed"
	if ok {
		result = "ok"
	}
	m.reloads.WithLabelValues(result).Inc()
}
