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
		Short: "Serve until SIGTERM; SIGHUP reloads the configuration, SIGUSR2 the program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Before anything listens: whoever finds the port open may signal.
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // gives the second signal its usual effect
			asked := make(chan os.Signal, 2)
			signal.Notify(asked, append(upgradeSignals, syscall.SIGHUP)...)
			defer signal.Stop(asked)
			// A reader of the log that leaves must not end what serves: the write fails instead.
			signal.Ignore(syscall.SIGPIPE)
			d, err := newDaemon()
			if err != nil {
				return err
			}
			defer d.close()
			load := func(over config.Over) (*config.Config, []string, error) {
				return config.LoadOver(configPath(*path), os.LookupEnv, over)
			}
			over, err := d.over()
			if err != nil {
				return err
			}
			cfg, warnings, err := load(over)
			if err != nil {
				return err
			}
			edit := func(change editing) error { return editFile(configPath(*path), change) }
			if configPath(*path) == "" {
				edit = nil
			}
			d.sidecar, err = sidecar.New(cfg, sidecar.Options{
				Version: buildVersion(), LogTo: os.Stderr, Load: load, Over: over, EditFile: edit, Sockets: d.sockets, Upgrade: d.upgrade, Draining: d.stopping,
			})
			if err != nil {
				return err
			}
			for _, w := range warnings {
				d.sidecar.Log().Warn("configuration", "warning", w)
			}
			return d.serve(ctx, asked)
		},
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
