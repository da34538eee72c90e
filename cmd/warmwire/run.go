// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/logqueue"
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
			lines := logqueue.New(os.Stderr)
			defer lines.Close() // what its reader does not take now is lost
			d, err := newDaemon()
			if err != nil {
				return err
			}
			defer d.close()
			// A successor's file was read before.
			again := d.sockets.State() != nil
			source := &configFile{flag: *path, again: again, full: again}
			over, err := d.over()
			if err != nil {
				return err
			}
			cfg, warnings, err := source.load(over)
			if err != nil {
				return err
			}
			edit := func(change config.Editing) error { return editFile(configPath(*path), change) }
			file := configPath(*path)
			if file == "" {
				edit = nil
			} else if file, err = filepath.Abs(file); err != nil { // who asks may be in another folder
				return err
			}
			d.sidecar, err = sidecar.New(cfg, sidecar.Options{
				Version: buildVersion(), LogQueue: lines, Load: source.load, Over: over, EditFile: edit, File: file, Sockets: d.sockets, Upgrade: d.upgrade, Draining: d.stopping,
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

// A configFile is the file that a process is run with. It is for one goroutine at a time.
type configFile struct {
	flag  string
	again bool // it was read, as is what is no file: -c /dev/stdin, -c <(...)
	full  bool // it has held something
}

// load reads the file. One that was found in one of the usual places stays the one, also
// for a successor: were it moved away, a reload would else begin with nothing, without
// tenants and tokens. For the same reason a file that has become empty, as while it is
// being written, is refused.
func (f *configFile) load(over config.Over) (*config.Config, []string, error) {
	path := configPath(f.flag)
	if path == "" {
		return config.LoadOver("", os.LookupEnv, over)
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() && info.Size() == 0 && f.full {
		return nil, nil, fmt.Errorf("%s is empty now, as a file is that is being written: if nothing shall be set, write {} into it", path)
	}
	read := config.LoadOver
	if f.again {
		read = config.LoadAgain
	}
	cfg, warnings, err := read(path, os.LookupEnv, over)
	if err == nil {
		f.again, f.full = true, info != nil && info.Size() > 0
		err = os.Setenv(config.FileVariable, path)
	}
	return cfg, warnings, err
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
