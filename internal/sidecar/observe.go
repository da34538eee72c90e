// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"cmp"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/internal/accesslog"
	"github.com/warmwire/warmwire/internal/admin"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/internal/ingress/http1"
	"github.com/warmwire/warmwire/internal/ingress/peer"
	"github.com/warmwire/warmwire/internal/logqueue"
	"github.com/warmwire/warmwire/internal/metrics"
)

// openLog makes the process's log, and returns where the access log goes unless it has a
// file: to the same place, and no line is mixed with one of the other's.
func (s *Sidecar) openLog(cfg *config.Config) (access io.Writer) {
	if q := s.opt.LogQueue; q != nil {
		s.log = slog.New(newLogHandler(q, cfg, s.level))
		q.Note(slog.New(newLogHandler(q.Direct(), cfg, s.level)))
		return q.Direct()
	}
	w := io.Discard
	if s.opt.LogTo != nil {
		w = logqueue.OneAtATime(s.opt.LogTo)
	}
	s.log = slog.New(newLogHandler(w, cfg, s.level))
	return w
}

// newLogHandler writes the process's log.
func newLogHandler(w io.Writer, cfg *config.Config, level *slog.LevelVar) slog.Handler {
	ho := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.NewJSONHandler(w, ho)
	}
	return slog.NewTextHandler(w, ho)
}

// accessConfig is what the configuration says about the access log.
func (s *Sidecar) accessConfig(cfg *config.Config) accesslog.Config {
	a := cfg.Log.Access
	ac := accesslog.Config{
		Format: map[string]accesslog.Format{"text": accesslog.Text, "json": accesslog.JSON, "msgpack": accesslog.MessagePack}[a.Format],
		File:   a.File, Sample: a.Sample, Summary: time.Duration(a.Summary), Statuses: make(map[int]float64, len(a.Statuses)),
	}
	for class, share := range a.Statuses {
		ac.Statuses[int(class[0]-'0')] = share // 4xx and its like, checked by config
	}
	if a.File == "" {
		ac.Level = s.level
	}
	return ac
}

// updateAccess applies the access log's settings and opens its file again.
func (s *Sidecar) updateAccess(cfg *config.Config) {
	if err := s.access.Update(s.accessConfig(cfg)); err != nil {
		s.log.Warn("the access log goes on as before", "log.access.file", err.Error())
	}
}

func (s *Sidecar) setLogLevel(cfg *config.Config) {
	level := slog.LevelInfo
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // one of four names, checked by config
	if s.opt.Quiet {
		level = max(level, slog.LevelWarn)
	}
	s.level.Set(level)
}

// acceptLogEvery limits how often a full descriptor table is logged.
const acceptLogEvery = 10 * time.Second

// hooks connects the way in with metrics and logs.
func (s *Sidecar) hooks() ingress.Hooks {
	var lastAccept atomic.Int64 // Unix nanoseconds
	return ingress.Hooks{
		RequestDone: s.requestDone,
		StreamOpen:  func(delta int, m ingress.Mode) { s.metrics.StreamOpen(string(m), delta) },
		ConnOpen:    s.metrics.AppConn,
		Malformed:   func(_ int, code string) { s.metrics.Malformed(code) },
		Refused:     s.metrics.Refused,
		Denied:      s.denied(),
		Charged:     s.metrics.TenantTokens,
		Paused:      s.metrics.Paused,
		AcceptFailed: func(err error, pause time.Duration) {
			s.metrics.AcceptFailed()
			now := time.Now().UnixNano()
			if last := lastAccept.Load(); now-last > int64(acceptLogEvery) && lastAccept.CompareAndSwap(last, now) {
				s.log.Error("cannot accept connections: out of file descriptors? raise the limit or lower limits.connections",
					"error", err.Error(), "pause", pause.String())
			}
		},
		Intercepted:      func(r ingress.InterceptResult) { s.metrics.Intercepted(string(r)) },
		InterceptTrouble: s.interceptTrouble(),

		ClientCertificate: s.wantsClientCertificate,
		Distrusted:        s.distrusted,
		SessionEnds:       s.sessionEnds,
		Panicked:          func(v any, stack []byte) { s.log.Error("internal error", "panic", v, "stack", string(stack)) },
	}
}

// sessionEnds warns of a realtime session's end.
func (s *Sidecar) sessionEnds(w ingress.SessionWarning) {
	s.metrics.SessionWarning(w.Upstream, string(w.Session.API), string(w.Reason))
	message, left := "a realtime session ends soon: the app should open another", "unknown"
	if w.Left >= 0 {
		left = w.Left.Round(time.Millisecond).String()
	}
	if w.Reason == ingress.WarnExpired {
		message = "a realtime session has reached its limit"
	}
	s.log.Warn(message, "id", w.ID, "upstream", w.Upstream, "api", string(w.Session.API), "known_by", string(w.Reason),
		"left", left, "resumable", cmp.Or(w.Session.Resumable, "unknown"))
}

// requestDone hands a record on; it holds nothing secret.
func (s *Sidecar) requestDone(r *ingress.Record) {
	if r.Outcome == ingress.OutcomeCutUpstream {
		s.flights.Keep(r.Conn, r.Cause) // a closed word; before a list leads to it
	}
	s.requests.add(r)
	trace := cmp.Or(s.telemetryDone(r), recorded(r.Trace))
	s.metrics.RequestDone(metrics.Request{
		Upstream: r.Upstream, Mode: string(r.Mode), Protocol: r.AppProto, Outcome: string(r.Outcome), Cause: r.Cause, Duration: r.Duration,
		Queue: r.Phases.Queue, DNS: r.Phases.DNS, Connect: r.Phases.Connect, TLS: r.Phases.TLS, Send: r.Phases.Send, Wait: r.Phases.Wait,
		Retry: r.Phases.Retry, FirstToken: r.Phases.FirstToken, Provider: r.Parts.Provider, Held: r.Parts.Held, Network: r.Parts.Network, App: r.Parts.App,
		Fault: string(r.Fault), TTFT: r.TTFT, PerChunk: r.PerChunk, InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, TrailersLost: r.TrailersLost,
		TraceID: trace,
	})
	if r.Tenant != "" {
		s.metrics.TenantDone(r.Tenant)
	}
	s.access.Record(accesslog.Record{
		ID: r.ID, Time: r.Start, Duration: r.Duration, Upstream: r.Upstream, Tenant: r.Tenant, Mode: string(r.Mode), ClientProtocol: r.AppProto,
		UpstreamProtocol: r.UpstreamProto, Method: r.Method, Status: r.Status, Outcome: string(r.Outcome), Cause: r.Cause, Stream: r.Stream,
		BytesIn: r.BytesIn, BytesOut: r.BytesOut, Phases: phases(r.Phases), Reused: r.Reused, TTFT: r.TTFT, PerChunk: r.PerChunk,
		Chunks: r.Chunks, InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, AppRetries: r.AppRetries, Attempts: attempts(r), Resumes: r.Resumes, TraceID: r.Trace.ID,
		Parts: accesslog.Parts(r.Parts), Fault: string(r.Fault), Conn: r.Conn,
	})
}

// recorded is the id of a trace that somebody keeps, so that a link to it leads somewhere.
func recorded(t ingress.Trace) string {
	if t.Sampled() {
		return t.ID
	}
	return ""
}

// attempts is how often the request was sent, 0 if just once.
func attempts(r *ingress.Record) int {
	if r.Attempts == 1 {
		return 0
	}
	return r.Attempts
}

// buildAdmin sets the admin listener's server up.
func (s *Sidecar) buildAdmin(cfg *config.Config) error {
	if s.adminLn == nil {
		return nil
	}
	ac := admin.Config{
		Ready: s.ready, Metrics: s.metrics.Handler(), Status: func() any { return s.status() }, Streams: s.streams, Quit: s.Quit, FlushDNS: s.names.Flush, FlushTLS: s.flushSessions, ClearIntercept: s.ingress.ClearExceptions,
		AllowHosts: cfg.Listen.AllowHosts, Remote: s.adminRemote(),
		TrustPeer: func(r *http.Request) bool {
			info, err := peer.Look(http1.Conn(r.Context()))
			return err == nil && info.Seen && s.adminLn.Addr().Network() == "unix" && int(info.UID) == os.Getuid()
		},
	}
	ac.Flight = s.flight
	ac.SlowRequests, ac.InterruptedRequests = s.slowRequests, s.interruptedRequests
	ac.Upgrade = s.opt.Upgrade
	ac.Configuration = s.configuration
	if s.opt.Load != nil {
		ac.Reload, ac.Tune, ac.TuneAndSave, ac.Patch = s.Reload, s.Tune, s.TuneAndSave, s.Patch
		ac.Settings, ac.Preview = func() any { return s.settings() }, func(changes map[string]string) (any, error) { return s.preview(changes) }
	}
	if cfg.Admin.TokenFile != "none" {
		token, err := admin.LoadOrCreateToken(cfg.Admin.TokenFile)
		if err != nil {
			// Health and metrics work without it; only state-changing calls do not.
			s.log.Warn("admin.token_file cannot be used: state-changing admin calls are refused", "error", err.Error())
		}
		ac.Token = token
	}
	if ac.Remote {
		ac.Token = cfg.Listen.Token // one that the operator has handed out
	}
	handler, err := admin.New(ac)
	if err != nil {
		return err
	}
	s.admin = &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), ConnContext: http1.WithConn,
	}
	return nil
}

func phases(p ingress.Phases) accesslog.Phases {
	return accesslog.Phases{Queue: p.Queue, DNS: p.DNS, Connect: p.Connect, TLS: p.TLS, Send: p.Send, Wait: p.Wait, Retry: p.Retry, FirstToken: p.FirstToken}
}
