// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/warmwire/warmwire/internal/activation"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/sdnotify"
	"github.com/warmwire/warmwire/internal/sidecar"
)

// upgradeLimit is how long a successor may take to serve. It takes tens of
// milliseconds; the rest is for a machine that is busy or slow to read it from disk.
const upgradeLimit = 30 * time.Second

// A daemon is a sidecar and what its process owes to others: the service manager, the
// process before it and the one after it.
type daemon struct {
	sidecar  *sidecar.Sidecar
	sockets  *activation.Sockets // that this process was started with
	manager  *sdnotify.Notifier  // nil: none
	beat     time.Duration       // of the manager's watchdog; 0 = none
	program  string              // what to start as a successor
	dir      string              // where this process was started
	replaced atomic.Bool         // a successor speaks to the manager
}

func newDaemon() (*daemon, error) {
	d := &daemon{}
	var err error
	if d.sockets, err = activation.Inherit(os.LookupEnv, os.Unsetenv); err != nil {
		return nil, err
	}
	if d.manager, err = sdnotify.New(os.Getenv("NOTIFY_SOCKET")); err != nil {
		return nil, err
	}
	if d.beat, err = sdnotify.Watchdog(os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID"), os.Getpid()); err != nil {
		return nil, err
	}
	if d.dir, err = os.Getwd(); err != nil {
		d.dir = "/"
	}
	// Not os.Executable, which has followed the links: an upgrade may move a link.
	if d.program, err = exec.LookPath(os.Args[0]); err == nil {
		d.program, err = filepath.Abs(d.program)
	}
	if err != nil {
		d.program = "" // upgrades are refused
	}
	return d, nil
}

// over is what stood over the file in the process before.
func (d *daemon) over() (config.Over, error) {
	state := d.sockets.State()
	if state == nil {
		return config.Over{}, nil
	}
	return config.UnmarshalOver(state)
}

func (d *daemon) close() { _ = d.sockets.Close() }

// serve runs the sidecar until ctx ends, which drains it, or a successor has taken over.
func (d *daemon) serve(ctx context.Context, asked <-chan os.Signal) error {
	s := d.sidecar
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	// The listeners are open since the sidecar was made.
	if err := d.sockets.Ready(); err != nil {
		s.Log().Warn("the process before this one does not listen", "error", err.Error())
	}
	d.tell("READY=1", sdnotify.Status("serving on "+s.Addr()))
	var beat <-chan time.Time
	if d.beat > 0 {
		tick := time.NewTicker(d.beat)
		defer tick.Stop()
		beat = tick.C
	}
	var upgrading sync.WaitGroup // beside the beat, which must go on
	defer upgrading.Wait()
	for {
		select {
		case err := <-done:
			return err
		case <-beat:
			if s.Alive() {
				d.tell("WATCHDOG=1")
			}
		case sig := <-asked:
			if sig == syscall.SIGHUP {
				d.reload()
			} else {
				upgrading.Go(func() { d.upgradeAsSignalled(ctx) })
			}
		}
	}
}

func (d *daemon) upgradeAsSignalled(ctx context.Context) {
	if err := d.upgrade(ctx); err != nil {
		d.sidecar.Log().Error("this process goes on", "error", err.Error())
	}
}

func (d *daemon) reload() {
	if !d.replaced.Load() {
		if err := d.manager.Reloading(); err != nil {
			d.sidecar.Log().Warn("systemd", "error", err.Error())
		}
	}
	if err := d.sidecar.Reload(); err != nil {
		d.sidecar.Log().Error("reload refused; the running configuration stays", "error", err.Error())
		d.tell("READY=1", sdnotify.Status("serving; the last reload was refused, see the log"))
		return
	}
	d.tell("READY=1", sdnotify.Status("serving on "+d.sidecar.Addr()))
}

// tell sends to the service manager while this process is the one it watches.
func (d *daemon) tell(assignments ...string) {
	if d.replaced.Load() {
		return
	}
	if err := d.manager.Send(assignments...); err != nil {
		d.sidecar.Log().Warn("systemd", "error", err.Error())
	}
}

// stopping is told by the sidecar that it drains.
func (d *daemon) stopping(limit time.Duration) {
	const end = 5 * time.Second // to close what is left, and exit
	if err := d.manager.Stopping(limit + end); err != nil {
		d.sidecar.Log().Warn("systemd", "error", err.Error())
	}
}

// upgrade starts the program anew, as it is on disk now, with the same arguments, and
// hands over to it.
func (d *daemon) upgrade(ctx context.Context) error {
	switch {
	case d.program == "":
		return fmt.Errorf("upgrade: the program %q is not found any more", os.Args[0])
	case os.Getpid() == 1:
		return errors.New("upgrade: a container ends with its first process: replace the container instead")
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeLimit)
	defer cancel()
	err := d.sidecar.HandOver(func(sockets []activation.Passed, over config.Over) error {
		state, err := over.Marshal()
		if err != nil {
			return err
		}
		next := &exec.Cmd{Path: d.program, Args: os.Args, Env: os.Environ(), Dir: d.dir, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
		if err := activation.Succeed(ctx, next, sockets, state); err != nil {
			return err
		}
		// Nobody here waits for it: this process ends first, or the one above it collects both.
		// Only the main process may say which one is. The successor's watchdog counts from here.
		d.tell(fmt.Sprintf("MAINPID=%d", next.Process.Pid), "READY=1")
		d.replaced.Store(true)
		d.sidecar.Log().Info("a successor serves", "pid", next.Process.Pid)
		return nil
	})
	if err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	return nil
}
