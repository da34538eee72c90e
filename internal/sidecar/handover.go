// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/warmwire/warmwire/internal/activation"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/tlspool"
)

// retireLimit is how long connections on which nothing runs are served after a
// handover: longer than the pools of undici (4 s) and httpx (5 s) keep them. Those who
// use one later find it closed, as after any keep-alive limit.
const retireLimit = 10 * time.Second

// errHandingOver refuses what the successor would not learn of.
var errHandingOver = errors.New("an upgrade is under way: try again when it has ended")

// HandOver passes the listeners to a successor, and what stands over the file. start
// starts it with them and waits until it serves; its error leaves everything as it was.
// Meanwhile the configuration cannot be changed. Afterwards Run takes no more
// connections, lets what runs finish for drain.upgrade_timeout at most, and returns.
func (s *Sidecar) HandOver(start func([]activation.Passed, config.Over) error) error {
	if !s.handing.TryLock() {
		return errors.New("another upgrade is under way")
	}
	defer s.handing.Unlock()
	if s.succeeded() {
		return errors.New("a successor has taken over already")
	}
	if s.draining.Load() {
		return errors.New("this process is being stopped")
	}
	passed, err := s.sockets()
	if err != nil {
		return err
	}
	over := s.freeze()
	defer s.thaw()
	// So that it starts warm. Each ticket is used once: by this process or by that one.
	s.saveSessions((*tlspool.Store).SaveSpare)
	s.saveIdleLimits()
	// Before it serves: whoever stops this process then must not take its socket files away.
	unlinkOnClose(passed, false)
	if err := start(passed, over); err != nil {
		if !s.draining.Load() { // else a file may stay, which the next start replaces
			unlinkOnClose(passed, true)
		}
		return err
	}
	close(s.handedOver)
	return nil
}

// unlinkOnClose says whether the files of Unix sockets go with this process. Those of
// systemd stay.
func unlinkOnClose(passed []activation.Passed, unlink bool) {
	for _, p := range passed {
		if u, ok := p.Socket.(*net.UnixListener); ok && !p.Foreign {
			u.SetUnlinkOnClose(unlink)
		}
	}
}

// freeze refuses every change of the configuration until [Sidecar.thaw], and returns
// what stands over the file.
func (s *Sidecar) freeze() config.Over {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.frozen = true
	return s.over
}

// thaw has no effect once a successor serves.
func (s *Sidecar) thaw() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	s.frozen = s.succeeded()
}

// succeeded says whether another process has taken over.
func (s *Sidecar) succeeded() bool {
	select {
	case <-s.handedOver:
		return true
	default:
		return false
	}
}

// sockets are all that apps and operators reach this process by.
func (s *Sidecar) sockets() ([]activation.Passed, error) {
	all := make([]any, 0, len(s.listeners)+3)
	for _, ln := range s.listeners {
		all = append(all, ln)
	}
	if s.adminLn != nil {
		all = append(all, s.adminLn)
	}
	if s.stub != nil {
		ln, packets := s.stub.Sockets()
		all = append(all, ln, packets)
	}
	passed := make([]activation.Passed, 0, len(all))
	for _, sock := range all {
		c, ok := sock.(syscall.Conn)
		if !ok {
			return nil, errors.New("sidecar: internal error: a listener without a descriptor")
		}
		p := activation.Passed{Socket: c, Foreign: s.opt.Sockets.Foreign(sock)}
		if f, ok := sock.(*socketFile); ok {
			// What is at its path by now may be another's, which the successor could not tell.
			p.Socket, p.Foreign = f.UnixListener, !f.there()
		}
		passed = append(passed, p)
	}
	return passed, nil
}

// retire is the way down after a handover: nobody waits for this process, so what
// runs has long to finish. The end of ctx leaves it drain.timeout.
func (s *Sidecar) retire(ctx context.Context) {
	limits := s.shown.Load().Drain
	s.draining.Store(true)
	s.log.Info("handed over: finishing what runs", "running", s.ingress.Running(), "upgrade_timeout", limits.UpgradeTimeout.String())
	stopped, stop := context.WithCancel(ctx)
	defer stop()
	long := stopped
	if limits.UpgradeTimeout > 0 {
		limited, cancel := context.WithTimeout(stopped, time.Duration(limits.UpgradeTimeout))
		defer cancel()
		long = limited
	}
	idle, cancel := context.WithTimeout(long, retireLimit)
	s.ingress.Retire(idle)
	cancel()
	left := s.ingress.Drain(long)
	if left > 0 && ctx.Err() != nil { // stopped: as any other process
		short, cancel := context.WithTimeout(context.Background(), time.Duration(limits.Timeout))
		left = s.ingress.Drain(short)
		cancel()
	}
	if left > 0 {
		s.log.Warn("drain.upgrade_timeout or drain.timeout passed: cutting what still runs", "running", left)
	}
	s.ingress.Abort()
	s.log.Info("handed over: all has ended")
}

// Alive proves that the locks which every request takes are free, for a watchdog: it
// hangs if they are not. It opens nothing, so that a process which is out of
// descriptors or memory, and serves on, is not ended for it.
func (s *Sidecar) Alive() bool {
	return s.ingress.Running() >= 0 && s.shown.Load() != nil
}
