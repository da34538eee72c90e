// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/logqueue"
	"github.com/warmwire/warmwire/internal/sidecar"
)

// execFlags is what the command line says.
type execFlags struct {
	all, none, private, baseURLs bool
}

func execCommand(path *string) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec -- CMD [ARG…]",
		Short: "Run CMD with its model calls going through Warmwire",
		Long: `exec runs CMD with the variables that lead its model calls through Warmwire, passes
signals on, and ends with CMD's exit code.

The hosts of intercept.hosts are intercepted, and where it is empty those of all https
upstreams, built-in ones too, less intercept.blind. They are intercepted with an authority
of this run alone, whose key is in memory and permits these hosts only. CMD is told to
trust it by the variables that clients know; what these named before is still trusted.
Other hosts are tunnelled untouched. With --no-intercept all are, and the base URLs that
SDKs read are set in its place; one that is set already stays.

A Warmwire of this configuration that runs already, as this user or root, serves CMD if it
intercepts what intercept.hosts lists. Otherwise, and with --private, one is started on a
free port for CMD alone. A proxy that the environment names is its parent proxy, unless
parent_proxy says otherwise. NO_PROXY is kept.

Clients that heed none of these variables are not served: docs/interception.md lists them.`,
		Example: `  warmwire exec -- node app.js
  warmwire exec -- python3 app.py
  warmwire exec --no-intercept -- sh -c 'curl -s $OPENAI_BASE_URL/models'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), cfg, args)
		},
	}
	cmd.Flags().BoolVar(&f.all, "intercept", false, "intercept the hosts of all https upstreams, whatever intercept.hosts says")
	cmd.Flags().BoolVar(&f.none, "no-intercept", false, "intercept no host, whatever intercept.hosts says")
	cmd.Flags().BoolVar(&f.private, "private", false, "start a Warmwire of its own, also if one runs")
	cmd.Flags().BoolVar(&f.baseURLs, "base-urls", false, "set the base URLs of intercepted upstreams too, for clients that heed no proxy")
	cmd.MarkFlagsMutuallyExclusive("intercept", "no-intercept")
	cmd.Flags().SetInterspersed(false) // CMD's own flags are CMD's
	return cmd
}

// run finds or starts a Warmwire, and runs args with it.
func (f execFlags) run(ctx context.Context, cfg *config.Config, args []string) (err error) {
	switch {
	case f.none:
		cfg.Intercept.Hosts = nil
	case f.all, len(cfg.Intercept.Hosts) == 0:
		interceptUpstreams(cfg)
		f.private = f.private || len(cfg.Intercepted()) > 0 // one that runs intercepts what its file lists
	}
	dir, err := os.MkdirTemp("", "warmwire-exec-")
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	way := clientenv.Way{Dir: dir, Upstreams: f.toldOf(cfg), Roots: func() ([]byte, error) { return systemRoots(ctx) }}
	if !f.private {
		if r, found := findRunning(ctx, cfg); found && r.serves(cfg) {
			way.Base, way.Authorities = r.base, r.authorities
			return runChild(way, args)
		}
	}
	authority, err := ownAuthority(cfg)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if authority != nil {
		way.Authorities = authority.Certificates()
	}
	return runBeside(ctx, cfg, authority, way, args)
}

// runBeside runs a sidecar for the life of one child process.
func runBeside(ctx context.Context, cfg *config.Config, authority *ca.Authority, way clientenv.Way, args []string) error {
	cfg.Listen.Addresses = []string{"127.0.0.1:0"}
	cfg.Listen.Token = "" // the port is this run's
	cfg.Admin.Address = ""
	cfg.Drain.Wait = 0 // the child is the only app, and it is gone then
	if cfg.ParentProxy == "" && parentInEnv(os.LookupEnv) {
		cfg.ParentProxy = "env" // the child's way out until now
	}
	lines := logqueue.New(os.Stderr)
	defer lines.Close() // what its reader does not take now is lost
	s, err := sidecar.New(cfg, sidecar.Options{Version: buildVersion(), LogQueue: lines, Quiet: true, Authority: authority})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	way.Base = "http://" + s.Addr()
	err = runChild(way, args)
	cancel()
	return errors.Join(err, <-done)
}

// runChild runs a process and passes signals on.
func runChild(way clientenv.Way, args []string) error {
	set, err := way.Variables(os.LookupEnv)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	child := exec.Command(args[0], args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = clientenv.Apply(os.Environ(), set)
	if err := child.Start(); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	ended := make(chan struct{})
	go passSignals(child.Process, signals, ended)
	err = child.Wait()
	close(ended)
	return err
}

// passSignals hands each signal to the child, unless it has got it already.
func passSignals(p *os.Process, signals <-chan os.Signal, ended <-chan struct{}) {
	for {
		select {
		case sig := <-signals:
			if !sentByTerminal(sig) {
				_ = p.Signal(sig) // a child that has just ended needs none
			}
		case <-ended:
			return
		}
	}
}

// childExitCode is the child's own code, or 128 + n for signal n as shells do.
func childExitCode(err *exec.ExitError) int {
	if st, ok := err.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return 128 + int(st.Signal())
	}
	return err.ExitCode()
}
