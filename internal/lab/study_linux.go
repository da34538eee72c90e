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
	site, err := newSite(ctx, cancel, opt)
	if err != nil {
		return nil, err
	}
	s := &study{Options: opt, site: site, random: rand.New(rand.NewPCG(opt.Seed, 7))}
	result := &Result{Machine: machine(), Seed: opt.Seed, Length: opt.Length, Started: time.Now().UTC().Truncate(time.Second), Streams: opt.Length.streams()}
	for _, a := range Arms() {
		result.Arms = append(result.Arms, ArmInfo{a.Name, a.About})
	}
	for _, sc := range chosen {
		if opt.Progress != nil {
			opt.Progress(sc.name, s.takes(sc))
		}
		out, err := s.run(ctx, sc)
		if err != nil {
			if err = errors.Join(fmt.Errorf("lab: %s: %w", sc.name, err), site.close()); len(result.Scenarios) == 0 {
				return nil, err
			}
			result.Took = time.Since(result.Started).Round(time.Second)
			return result, err
		}
		result.Scenarios = append(result.Scenarios, out)
	}
	result.Took = time.Since(result.Started).Round(time.Second)
	return result, site.close()
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
	ca      []byte
	cancel  context.CancelCauseFunc
	serving sync.WaitGroup
}

// newSite builds one; cancel is called when a part of it dies.
func newSite(ctx context.Context, cancel context.CancelCauseFunc, opt Options) (_ *site, err error) {
	s := &site{cancel: cancel}
	if s.lab, err = netlab.New(ctx, netlab.Config{Seed: opt.Seed, Up: far(), Down: far()}); err != nil {
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
	plain, err := s.lab.Server.Listen("tcp", ":0")
	if err != nil {
		return nil, err
	}
	secure, err := s.lab.Server.Listen("tcp", ":0")
	if err != nil {
		return nil, errors.Join(err, plain.Close())
	}
	s.serving.Go(func() {
		if serr := server.serve(ctx, plain, secure); serr != nil {
			cancel(serr)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.ca)
	s.env = &env{
		dial: s.lab.Client.Dial, plain: reach(v4, plain), secure: reach(v4, secure),
		roots: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		now:   func() time.Duration { return time.Since(epoch) },
	}
	s.env.warmwire, s.ca = warmwireAddr, server.ca
	return s, nil
}

// warm starts a Warmwire and makes its first calls, as an app that is running
// has made them. It is a new one for each scenario: what one did to its
// connections must not be seen in the next.
func (s *site) warm(ctx context.Context, program string) (*process, error) {
	p, err := startWarmwire(ctx, s.lab.Client, program, []Upstream{
		{Name: "plain", URL: "http://" + s.env.plain},
		{Name: "secure", URL: "https://" + s.env.secure, CA: s.ca},
	})
	if err != nil {
		return nil, err
	}
	for _, upstream := range []string{"plain", "secure"} {
		c := throughHTTP(upstream)(s.env)
		err = errors.Join(err, askOnce(ctx, c))
		c.close()
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
	s.cancel(nil) // ends the server
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
	if sc.nat.Idle > 0 {
		sc.nat.Idle = s.Length.natIdle()
	}
	// Before the first flow: a NAT knows nothing of those that are older.
	if err := s.site.lab.SetNAT(sc.nat); err != nil {
		return nil, err
	}
	warmwire, err := s.site.warm(ctx, s.Warmwire)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, warmwire.stop()) }()
	if err := s.site.lab.Set(sc.up, sc.down); err != nil {
		return nil, err
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
	out = analyse(sc, log, s.random)
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
	for _, a := range Arms() {
		var arm []client
		for range s.Length.streams() {
			arm = append(arm, a.make(s.site.env))
		}
		all = append(all, arm)
	}
	return all
}
