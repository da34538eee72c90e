// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmwire/warmwire/internal/netlab"
)

// Options say what a study does. Warmwire is needed, the rest has defaults.
type Options struct {
	Warmwire string // path of the program
	Length   Length // default: Short
	Only     []string
	Seed     uint64

	// Progress is told the name of each scenario as it begins, and how long
	// that will take. May be nil.
	Progress func(name string, takes time.Duration)
}

// Validate reports what cannot be.
func (o Options) Validate() error {
	_, err := choose(cmp.Or(o.Length, Short), o.Only)
	return err
}

// Study runs a study and returns its result. When it ends early, as with ctx, the
// scenarios that were finished come with the error, if there is any.
func Study(ctx context.Context, opt Options) (*Result, error) {
	opt.Length = cmp.Or(opt.Length, Short)
	chosen, err := choose(opt.Length, opt.Only)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	result := &Result{Machine: machine(), Seed: opt.Seed, Length: opt.Length, Started: time.Now().UTC().Truncate(time.Second), Streams: opt.Length.streams()}
	for _, a := range Arms() {
		result.Arms = append(result.Arms, ArmInfo{a.Name, a.About})
	}
	for _, a := range BeatArms() {
		result.BeatArms = append(result.BeatArms, ArmInfo{a.Name, a.About})
	}
	var beats, others []scenario
	for _, sc := range chosen {
		if sc.beats {
			beats = append(beats, sc)
		} else {
			others = append(others, sc)
		}
	}
	result.Scenarios, err = inTurn(ctx, cancel, opt, others)
	if err == nil {
		var more []*ScenarioResult
		more, err = apart(ctx, opt, beats)
		result.Scenarios = append(result.Scenarios, more...)
	}
	result.Took = time.Since(result.Started).Round(time.Second)
	if err != nil && len(result.Scenarios) == 0 {
		return nil, err
	}
	return result, err
}

// inTurn runs scenarios one after another in one network. Those that were finished
// come with the error, if there is any.
func inTurn(ctx context.Context, cancel context.CancelCauseFunc, opt Options, chosen []scenario) (done []*ScenarioResult, err error) {
	if len(chosen) == 0 {
		return nil, nil
	}
	site, err := newSite(ctx, cancel, opt, Arms(), false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	s := &study{Options: opt, site: site, random: rand.New(rand.NewPCG(opt.Seed, 7))}
	for _, sc := range chosen {
		if opt.Progress != nil {
			opt.Progress(sc.name, s.takes(sc))
		}
		out, err := s.run(ctx, sc)
		if err != nil {
			return done, fmt.Errorf("lab: %s: %w", sc.name, err)
		}
		done = append(done, out)
	}
	return done, nil
}

// machine says what the study ran on, without naming it.
func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Sprintf("%d CPUs", runtime.NumCPU())
	}
	return fmt.Sprintf("%d CPUs, Linux %s", runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]))
}

// A site is the network with all that runs in it.
type site struct {
	lab     *netlab.Lab
	env     *env
	arms    []Arm
	envs    []*env     // of each arm
	ports   []uint16   // of the server, for each arm
	known   []Upstream // to Warmwire
	apart   bool       // each arm has a port of its own
	stop    func()     // ends the server
	serving sync.WaitGroup
}

// newSite builds one for the arms, which have ports of their own if apart; fail is called when a part of it dies.
func newSite(ctx context.Context, fail context.CancelCauseFunc, opt Options, arms []Arm, apart bool) (_ *site, err error) {
	ctx, stop := context.WithCancel(ctx)
	s := &site{arms: arms, apart: apart, stop: stop}
	if s.lab, err = netlab.New(ctx, netlab.Config{Seed: opt.Seed, Up: far(), Down: far()}); err != nil {
		stop()
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	epoch := time.Now()
	v4, v6 := s.lab.Server.Addr4(), s.lab.Server.Addr6()
	server, err := newServer(epoch, v4.AsSlice(), v6.AsSlice())
	if err != nil {
		return nil, err
	}
	plain, secure, err := s.listen()
	if err != nil {
		return nil, err
	}
	s.serving.Go(func() {
		if serr := server.serve(ctx, plain, secure); serr != nil {
			fail(serr)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.ca)
	s.env = &env{
		dial: s.lab.Client.Dial, plain: reach(v4, plain[0]), secure: reach(v4, secure[0]),
		roots: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		now:   func() time.Duration { return time.Since(epoch) },
	}
	s.env.warmwire, s.env.admin = warmwireAddr, adminAddr
	if s.apart {
		s.env.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := s.lab.Client.Dial(ctx, network, addr)
			if err == nil {
				still(c)
			}
			return c, err
		}
	}
	s.assign(plain[1:], secure[1:], server.ca)
	return s, nil
}

// listen opens the server's ports: one without TLS and one with it, and one more for
// each arm about heartbeats.
func (s *site) listen() (plain, secure []net.Listener, err error) {
	open := func(tls bool) {
		l, lerr := s.lab.Server.Listen("tcp", ":0")
		if lerr != nil {
			err = errors.Join(err, lerr)
			return
		}
		if s.apart {
			l = stillListener{l}
		}
		if tls {
			secure = append(secure, l)
		} else {
			plain = append(plain, l)
		}
	}
	open(false)
	open(true)
	if s.apart {
		for _, arm := range s.arms {
			open(arm.tls)
		}
	}
	if err != nil {
		for _, l := range append(plain, secure...) {
			err = errors.Join(err, l.Close())
		}
	}
	return plain, secure, err
}

// assign gives each arm its place: the ports of its own, or those of all.
func (s *site) assign(plain, secure []net.Listener, ca []byte) {
	if len(plain) == 0 {
		s.known = []Upstream{{Name: "plain", URL: "http://" + s.env.plain}, {Name: "secure", URL: "https://" + s.env.secure, CA: ca}}
		for range s.arms {
			s.envs = append(s.envs, s.env)
		}
		return
	}
	v4 := s.lab.Server.Addr4()
	for _, arm := range s.arms {
		own, scheme, list := *s.env, "http://", &plain
		if arm.tls {
			scheme, list = "https://", &secure
		}
		at := reach(v4, (*list)[0])
		*list = (*list)[1:]
		own.plain, own.secure = at, at
		s.envs, s.ports = append(s.envs, &own), append(s.ports, portNumber(at))
		if arm.upstream == "" {
			continue
		}
		u := Upstream{Name: arm.upstream, URL: scheme + at, Heartbeat: arm.heartbeat}
		if arm.tls {
			u.CA = ca
		}
		s.known = append(s.known, u)
	}
}

// warm starts a Warmwire and makes its first calls, as an app that is running
// has made them. It is a new one for each scenario: what one did to its
// connections must not be seen in the next.
func (s *site) warm(ctx context.Context, program string, sc scenario) (*process, error) {
	p, err := startWarmwire(ctx, s.lab.Client, program, s.env.admin, sc.learned(s.known))
	if err != nil {
		return nil, err
	}
	if !sc.beats { // there every packet is counted
		for _, u := range s.known {
			c := throughHTTP(u.Name)(s.env)
			err = errors.Join(err, askOnce(ctx, c))
			c.close()
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("first calls through warmwire: %w", err), p.stop())
	}
	return p, nil
}

// reach is where a listener on all addresses of a host is reached.
func reach(host netip.Addr, l net.Listener) string {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return net.JoinHostPort(host.String(), port)
}

func (s *site) close() error {
	s.stop()
	s.serving.Wait()
	return s.lab.Close()
}

// A study goes through scenarios.
type study struct {
	Options
	site   *site
	random *rand.Rand // of events
}

// settleTime is for streams to open before anything happens.
const settleTime = 2 * time.Second

// beatSettleTime is the same where scenarios run side by side and begin together.
const beatSettleTime = 6 * time.Second

// takes is about how long a scenario takes.
func (s *study) takes(sc scenario) time.Duration {
	n := time.Duration(s.Length.amount(sc))
	switch {
	case sc.event != noEvent:
		return settleTime + n*(eventMin+eventMax+eventGapMin+eventGapMax)/2
	case sc.kind == firstFrame:
		return n * 600 * time.Millisecond
	case sc.kind == idling:
		return n * (s.idleTime() + time.Second)
	}
	return settleTime + n*time.Second
}

// idleTime is surely longer than the NAT remembers.
func (s *study) idleTime() time.Duration { return s.Length.natIdle() * 4 / 3 }

// run sets the network up for one scenario and runs it with a Warmwire of its own.
func (s *study) run(ctx context.Context, sc scenario) (out *ScenarioResult, err error) {
	if err := errors.Join(s.site.lab.Set(far(), far()), s.site.lab.SetNAT(netlab.NAT{})); err != nil {
		return nil, err
	}
	if sc.nat.Idle == theLength {
		sc.nat.Idle = s.Length.natIdle()
	}
	// Before the first flow: a NAT knows nothing of those that are older.
	if err := s.site.lab.SetNAT(sc.nat); err != nil {
		return nil, err
	}
	warmwire, err := s.site.warm(ctx, s.Warmwire, sc)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, warmwire.stop()) }()
	if err := s.site.lab.Set(sc.up, sc.down); err != nil {
		return nil, err
	}
	var was map[string]BeatCounts
	if sc.beats {
		if was, err = s.site.env.counts(ctx); err != nil {
			return nil, err
		}
	}
	before, err := s.site.lab.Stats()
	if err != nil {
		return nil, err
	}
	log, path, err := s.watched(ctx, sc)
	if err != nil {
		return nil, err
	}
	after, err := s.site.lab.Stats()
	if err != nil {
		return nil, err
	}
	if sc.beats {
		if err := s.tally(ctx, log, before, after, was); err != nil {
			return nil, err
		}
	}
	out = analyse(s.Length, sc, s.site.arms, log, s.random)
	out.Path = path
	packets := after.Up.Out + after.Down.Out - before.Up.Out - before.Down.Out
	out.Late = time.Duration(float64(after.LateSum-before.LateSum) / float64(max(1, packets)))
	return out, context.Cause(ctx)
}

// watched lets the clients do what the scenario wants while the path is probed.
func (s *study) watched(ctx context.Context, sc scenario) (*runLog, PathInfo, error) {
	probe, err := newProber(s.site.lab, s.site.env.now)
	if err != nil {
		return nil, PathInfo{}, err
	}
	probing, stop := context.WithCancel(ctx)
	defer stop()
	path := make(chan PathInfo, 1)
	go func() { path <- probe.run(probing) }()
	clients := s.clients()
	var log *runLog
	switch sc.kind {
	case streaming:
		log, err = s.stream(ctx, sc, clients)
	case firstFrame:
		log, err = s.firsts(ctx, sc, clients)
	case dying:
		log, err = s.die(ctx, sc, clients)
	case idling:
		log, err = s.idle(ctx, sc, clients)
	}
	stop()
	for _, arm := range clients {
		for _, c := range arm {
			c.close()
		}
	}
	return log, <-path, err
}

// clients makes the clients of every arm anew: no scenario inherits connections.
func (s *study) clients() [][]client {
	var all [][]client
	for i, a := range s.site.arms {
		var arm []client
		for range s.Length.streams() {
			arm = append(arm, a.make(s.site.envs[i]))
		}
		all = append(all, arm)
	}
	return all
}
