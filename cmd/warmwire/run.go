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
			// Before anything listens: whoever finds the port open may signal.
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // gives the second signal its usual effect
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP)
			defer signal.Stop(hup)
			// A reader of the log that leaves must not end what serves: the write fails instead.
			signal.Ignore(syscall.SIGPIPE)
			load := func(tuned map[string]string) (*config.Config, []string, error) {
				return config.LoadTuned(configPath(*path), os.LookupEnv, tuned)
			}
			cfg, warnings, err := load(nil)
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
			return serve(ctx, s, hup)
		},
	}
}

// serve runs s until ctx ends, which drains it. hup reloads.
func serve(ctx context.Context, s *sidecar.Sidecar, hup <-chan os.Signal) error {
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
	return config.Load(configPath(flag), os.LookupEnv)
}

// configPath is the file that applies, "" for none.
func configPath(flag string) string {
	path, ok := config.Find(flag, os.LookupEnv, fileExists)
	if !ok {
		return ""
	}
	return path
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
