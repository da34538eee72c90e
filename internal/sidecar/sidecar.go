// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmwire/warmwire/bufferctl"
	"github.com/warmwire/warmwire/dnscache"
	"github.com/warmwire/warmwire/internal/accesslog"
	"github.com/warmwire/warmwire/internal/activation"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/ingress"
	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/logqueue"
	"github.com/warmwire/warmwire/internal/metrics"
	"github.com/warmwire/warmwire/internal/telemetry"
	"github.com/warmwire/warmwire/internal/tenant"
	"github.com/warmwire/warmwire/tlspool"
	"github.com/warmwire/warmwire/tlspool/trust"
	"github.com/warmwire/warmwire/transport/dial"
	"github.com/warmwire/warmwire/transport/flight"
)

// Options are what the program adds to the configuration.
type Options struct {
	// Authority makes the certificates of intercepted hosts; nil = that of the installation,
	// in state_dir. Its hosts must be those of the configuration.
	Authority *ca.Authority
	Version   string
	LogTo     io.Writer // nil = discarded
	// LogQueue is where the log goes instead, and nothing waits for its reader; the access
	// log, which has a queue of its own, goes to the writer behind it. nil = LogTo.
	LogQueue *logqueue.Queue
	Quiet    bool // only warnings and errors, whatever log.level says
	// Load reads the configuration again, with what stands over the file (see
	// [config.LoadOver]); nil: it can be neither reloaded nor tuned nor patched.
	Load func(config.Over) (*config.Config, []string, error)
	// Over is what stands over the file from the start: what the process before handed over.
	// The configuration holds it already.
	Over config.Over
	// EditFile changes the text of the file to what change makes of it, whole or not at
	// all; nil from change leaves it as it is. nil = there is no file to write.
	EditFile func(change config.Editing) error
	File     string // its name, for people and for the command line; "" = there is none
	// Sockets are those that the process was started with; nil = none. Those that New
	// does not need are closed.
	Sockets *activation.Sockets
	// Upgrade starts a successor, see [Sidecar.HandOver]; nil: it cannot be.
	Upgrade func(context.Context) error
	// Draining is told when the drain begins, and how long it may take; not at a handover.
	// nil = nobody.
	Draining func(limit time.Duration)
}

// A Sidecar is one running Warmwire.
type Sidecar struct {
	opt     Options
	log     *slog.Logger
	level   *slog.LevelVar
	started time.Time

	ingress     *ingress.Server
	metrics     *metrics.Metrics
	access      *accesslog.Log
	telemetry   *telemetry.Exporter
	listeners   []net.Listener
	admin       *http.Server // nil: off
	adminLn     net.Listener
	targets     *targets
	names       *dnscache.Resolver
	roots       *trust.Store   // the system's
	sessions    *tlspool.Store // of TLS, with upstreams
	sessionFile tlspool.File   // "" = none
	memory      *bufferctl.Budget
	authority   *ca.Authority  // nil: nothing is intercepted
	intercepted []string       // hosts
	heapLimit   atomic.Int64   // of the Go runtime, as this process has set it
	stub        *dnscache.Stub // nil: none
	hosts       dial.Memory    // how their addresses did

	keys *tenant.Keys // of JWTs

	idleLimits *idleLimits
	requests   requestLists
	flights    *flight.Recorder
	beats      *beats
	spares     spares
	reaching   sync.WaitGroup // connections that show whether a path lives

	sessionsUnsaved, idleUnsaved atomic.Bool // the last attempt failed

	first *config.Config // that of the start: what takes effect at a start only is in force as here

	spoolTold atomic.Int64 // when a full disk was logged, in Unix nanoseconds

	rerouted chan struct{} // holds one token once endpoints may have changed

	draining atomic.Bool
	quit     chan struct{} // closed by the admin's quit
	quitOnce sync.Once
	tagKey   []byte // of the configuration's entity tag

	handing    sync.Mutex    // held by HandOver
	handedOver chan struct{} // closed once a successor serves

	reloading sync.Mutex // held by Reload; guards the fields below
	cfg       *config.Config
	upstreams map[string]*built // by name
	collector *collector        // nil = none
	callers   callers
	over      config.Over // what stands over the file; never changed in place
	frozen    bool        // a successor starts with it, or has

	shown atomic.Pointer[shown]     // what status shows
	quic  atomic.Pointer[quicState] // nil while no upstream may use HTTP/3
}

// shown is the configuration in force and what was built of it.
type shown struct {
	*config.Config
	upstreams map[string]*built
	book      *tenant.Book // nil = there are no tenants
	over      config.Over
}

// New builds everything and binds the listeners; nothing runs yet.
func New(cfg *config.Config, opt Options) (*Sidecar, error) {
	s := &Sidecar{opt: opt, level: new(slog.LevelVar), first: cfg, started: time.Now(), quit: make(chan struct{}), tagKey: []byte(rand.Text()), rerouted: make(chan struct{}, 1), handedOver: make(chan struct{}), targets: new(targets)}
	access := s.openLog(cfg)
	s.setLogLevel(cfg)
	s.metrics = metrics.New(metrics.Config{Version: opt.Version})
	var err error
	if s.access, err = accesslog.New(access, s.log, s.accessConfig(cfg)); err != nil {
		return nil, fmt.Errorf("log.access.file: %w", err)
	}
	s.metrics.SetDropped(s.access.Dropped)
	if q := opt.LogQueue; q != nil {
		s.metrics.SetLogDropped(q.Dropped)
	}
	if s.memory, err = bufferctl.NewBudget(bufferctl.Config{Limit: memoryLimit(cfg)}); err != nil {
		return nil, err
	}
	s.flights = flight.New(s.memory)
	if err := s.newTelemetry(); err != nil {
		return nil, err
	}
	s.metrics.SetMemory(s.memory.Used, s.memory.Limit)
	s.metrics.SetConcurrency(s.concurrency)
	s.metrics.SetEndpointStates(s.endpoints)
	s.roots = trust.NewStore(nil)
	if s.names, err = Resolver(cfg, dnscache.Config{
		OnLookup: func(r dnscache.Result) { s.metrics.Lookup(string(r)) }, OnEvent: s.dnsEvent,
	}, s.roots); err != nil {
		return nil, err
	}
	if err := s.bind(cfg); err != nil {
		_ = s.names.Close()
		return nil, err
	}
	s.sessions = tlspool.New(tlspool.Config{})
	s.beats = newBeats(cfg.StateDir)
	if s.idleLimits, err = loadIdleLimits(cfg.StateDir); err != nil {
		s.log.Warn("starting without what was learned of idle connections", "error", err.Error())
	}
	if err := s.build(cfg); err != nil {
		s.undo()
		return nil, err
	}
	if address := cfg.DNS.Listen; address != "" {
		given := s.opt.Sockets
		if s.stub, err = s.names.StubOn(context.Background(), address, given.Listener(address), given.Packets(address)); err != nil {
			s.undo()
			return nil, fmt.Errorf("dns.listen: %w", err)
		}
	}
	if err := s.opt.Sockets.Finish(); err != nil {
		s.undo()
		return nil, fmt.Errorf("%w: %w", config.ErrInvalid, err)
	}
	// Last: loading takes the file away, and a start that fails must not lose it.
	if err := s.loadSessions(cfg); err != nil {
		s.undo()
		return nil, err
	}
	return s, nil
}

// build makes the parts that need the listeners' addresses.
func (s *Sidecar) build(cfg *config.Config) error {
	s.keys = tenant.NewKeys(s.fetchKeys)
	who, err := s.buildCallers(cfg)
	if err != nil {
		return err
	}
	table, ups, err := s.buildTable(cfg, who.book, nil)
	if err != nil {
		return err
	}
	where, err := s.buildCollector(cfg, nil)
	if err != nil {
		return err
	}
	interception, err := s.interception(cfg)
	if err != nil {
		return err
	}
	s.ingress, err = ingress.New(table, ingress.Config{
		Intercept:      interception,
		MaxHeaderBytes: int(cfg.Limits.Header),
		MaxConnections: s.appConnections(cfg),
		Hooks:          s.hooks(),
		Admit:          s.admit,
		Take:           s.memory.Take,
		Give:           s.memory.Give,
	})
	if err != nil {
		return err
	}
	s.cfg, s.upstreams, s.over = cfg, ups, s.opt.Over
	s.shown.Store(&shown{cfg, ups, who.book, s.over})
	s.useCallers(who, cfg)
	s.useCollector(where, cfg)
	s.setRoutes(cfg, ups)
	s.metrics.SetUpstreams(names(cfg))
	s.names.Keep(KeptNames(cfg))
	return s.buildAdmin(cfg)
}

// bind opens the listeners, all or none.
func (s *Sidecar) bind(cfg *config.Config) error {
	for _, address := range cfg.Listen.Addresses {
		ln, err := s.listen(address)
		if err != nil {
			s.closeListeners()
			return fmt.Errorf("listen.address: %w", err)
		}
		s.listeners = append(s.listeners, ln)
	}
	if cfg.Admin.Enabled() {
		ln, err := s.listen(cfg.Admin.Address)
		if err != nil {
			s.closeListeners()
			return fmt.Errorf("admin.address: %w", err)
		}
		s.adminLn = ln
	}
	for _, ln := range append(s.listeners[:len(s.listeners):len(s.listeners)], s.adminLn) {
		if ln == nil {
			continue
		}
		if ta, ok := ln.Addr().(*net.TCPAddr); ok {
			s.targets.own = append(s.targets.own, ta.AddrPort())
		}
	}
	return nil
}

// undo closes what New has opened before it failed.
func (s *Sidecar) undo() {
	s.closeListeners()
	if s.stub != nil {
		ln, packets := s.stub.Sockets()
		_ = ln.Close()
		_ = packets.Close()
	}
	_ = s.names.Close()
	if q := s.quic.Load(); q != nil {
		_ = q.endpoint.Close()
	}
}

func (s *Sidecar) closeListeners() {
	for _, ln := range s.listeners {
		_ = ln.Close()
	}
	if s.adminLn != nil {
		_ = s.adminLn.Close()
	}
}

// Log is the process's logger.
func (s *Sidecar) Log() *slog.Logger { return s.log }

// Addr is the address of the first TCP listener, or of the first one.
func (s *Sidecar) Addr() string {
	for _, ln := range s.listeners {
		if ln.Addr().Network() == "tcp" {
			return ln.Addr().String()
		}
	}
	return s.listeners[0].Addr().String()
}

// AdminAddr is where the admin listener is bound; "" when it is off.
func (s *Sidecar) AdminAddr() string {
	if s.adminLn == nil {
		return ""
	}
	return s.adminLn.Addr().String()
}

// Quit begins the same drain as the end of Run's context.
func (s *Sidecar) Quit() { s.quitOnce.Do(func() { close(s.quit) }) }

// begin sets going what a reload, which may come at any time, sets going as well.
func (s *Sidecar) begin() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.limitHeap(s.cfg)
	if err := keepWarm(s.cfg, s.upstreams); err != nil {
		s.log.Warn("configuration", "warning", err.Error())
	}
}

// Run serves until ctx ends or Quit is called, drains, and returns nil; an error
// says that a part broke. Call it once.
func (s *Sidecar) Run(ctx context.Context) error {
	if procs := s.first.Limits.Procs; procs > 0 {
		runtime.GOMAXPROCS(min(procs, runtime.GOMAXPROCS(0))) // never above a container's quota
	}
	s.begin()
	serveCtx, endServing := context.WithCancel(context.Background())
	// When it returns no listener takes a connection: what Drain then finds running is all.
	stopServing := func() {
		endServing()
		for _, ln := range s.listeners {
			_ = ln.Close() // Serve does it too, at its own time
		}
	}
	lastCtx, stopLast := context.WithCancel(context.Background()) // what outlives the serving: admin, logs
	frontCtx, stopFront := context.WithCancel(lastCtx)            // what a successor has as well
	defer stopLast()
	defer stopFront()
	defer stopServing()
	broke := make(chan error, len(s.listeners)+4)
	var serving, last sync.WaitGroup
	for _, ln := range s.listeners {
		s.log.Info("listening", "address", ln.Addr().String())
		serving.Go(func() { report(broke, s.ingress.Serve(serveCtx, ln)) })
	}
	serving.Go(func() { report(broke, s.ingress.ServeHTTP2()) })
	last.Go(func() { report(broke, s.access.Run(lastCtx)) })
	last.Go(func() { report(broke, s.telemetry.Run(lastCtx)) })
	if s.admin != nil {
		s.log.Info("admin listening", "address", s.AdminAddr())
		last.Go(func() { report(broke, s.serveAdmin(frontCtx, s.admin, s.adminLn)) })
	}
	last.Go(func() { s.watchNetwork(lastCtx) })
	last.Go(func() { report(broke, s.names.Run(lastCtx)) })
	last.Go(func() { s.keepSessions(lastCtx) })
	last.Go(func() { report(broke, s.keys.Run(lastCtx)) })
	serving.Go(func() { s.runRoutes(serveCtx) })
	if s.stub != nil {
		last.Go(func() { report(broke, s.stub.Run(frontCtx)) })
	}
	var err error
	select {
	case <-ctx.Done():
	case <-s.quit:
	case <-s.handedOver:
	case err = <-broke:
	}
	if s.succeeded() {
		stopFront()
		stopServing()
		s.retire(ctx)
	} else {
		s.drain(stopServing)
	}
	serving.Wait()
	s.closeUpstreams()
	s.reaching.Wait()
	stopLast()
	last.Wait()
	s.closeCollector()
	return errors.Join(err, s.names.Close())
}

// report passes on what a part returned, if it broke.
func report(broke chan<- error, err error) {
	if err != nil {
		broke <- err
	}
}

// drain is the way down: not ready, serve on for drain.wait, close the
// listeners, let streams finish until drain.timeout, cut the rest.
func (s *Sidecar) drain(stopServing func()) {
	limits := s.shown.Load().Drain
	s.draining.Store(true)
	if s.opt.Draining != nil {
		s.opt.Draining(time.Duration(limits.Wait + limits.Timeout))
	}
	s.log.Info("draining", "running", s.ingress.Running(), "wait", limits.Wait.String(), "timeout", limits.Timeout.String())
	s.serveOn(time.Duration(limits.Wait))
	stopServing()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(limits.Timeout))
	defer cancel()
	if left := s.ingress.Drain(ctx); left > 0 {
		s.log.Warn("drain.timeout passed: cutting what still runs", "running", left)
	}
	s.ingress.Abort()
}

// serveOn keeps serving for wait, or until nothing has run for a second: a
// sidecar must outlive its app, which is being stopped at the same time.
func (s *Sidecar) serveOn(wait time.Duration) {
	if wait <= 0 {
		return
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for quiet := 0; quiet < 10; {
		select {
		case <-end.C:
			return
		case <-tick.C:
			quiet++
			if s.ingress.Running() > 0 {
				quiet = 0
			}
		}
	}
}

// adminLinger is how long calls that run may take to end after a handover; the one that
// asked for it is among them.
const adminLinger = 2 * time.Second

// serveAdmin runs the admin listener until ctx ends.
func (s *Sidecar) serveAdmin(ctx context.Context, srv *http.Server, ln net.Listener) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if s.succeeded() {
			linger, cancel := context.WithTimeout(context.Background(), adminLinger)
			defer cancel()
			_ = srv.Shutdown(linger) // late: Close ends the rest
		}
		_ = srv.Close()
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin listener: %w", err)
	}
	return nil
}
