// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/sidecar"
)

func runCommand(path *string) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Serve until SIGTERM; SIGHUP reloads the configuration",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			load := func() (*config.Config, []string, error) { return loadConfig(*path) }
			cfg, warnings, err := load()
			if err != nil {
				return err
			}
			s, err := sidecar.New(cfg, sidecar.Options{Version: buildVersion(), LogTo: os.Stderr, Load: load})
			if err != nil {
				return err
			}
			for _, w := range warnings {
				s.Log().Warn("configuration", "warning", w)
			}
			return serve(cmd.Context(), s)
		},
	}
}

// serve runs s until SIGTERM or an interrupt, which drain it; a second signal
// kills at once. SIGHUP reloads.
func serve(ctx context.Context, s *sidecar.Sidecar) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // gives the second signal its usual effect
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case <-hup:
			if err := s.Reload(); err != nil {
				s.Log().Error("reload refused; the running configuration stays", "error", err.Error())
			}
		}
	}
}

// loadConfig reads the configuration that applies: -c, the environment, the
// usual places, or the built-in default.
func loadConfig(flag string) (*config.Config, []string, error) {
	path, ok := config.Find(flag, os.LookupEnv, fileExists)
	if !ok {
		path = ""
	}
	return config.Load(path, os.LookupEnv)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
