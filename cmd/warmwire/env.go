// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/intercept/ca"
)

func envCommand(path *string) *cobra.Command {
	var f execFlags
	var shell string
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print the variables that lead a shell's programs through the Warmwire that runs",
		Long: `env prints, as commands for a shell, the variables that exec sets for one program: for
the Warmwire of this configuration, which need not run yet, and for the authority of this
installation if intercept.hosts lists hosts. The files that they name are in
state_dir/env.

What the shell has set already is joined, so env must be run in the shell that it is for,
and may be run again at any time, as from a login script. Where listen.token is set the
output holds it.`,
		Example: `  eval "$(warmwire env)"                      # sh, bash, zsh, dash, ksh
  warmwire env --shell fish | source
  warmwire env --shell powershell | Out-String | Invoke-Expression
  eval "$(warmwire env --base-urls)"          # for clients that heed no proxy too`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			way, err := f.way(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			set, err := way.Variables(os.LookupEnv)
			if err != nil {
				return fmt.Errorf("env: %w", err)
			}
			var text bytes.Buffer
			if err := clientenv.Write(&text, shell, set); err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			return printOut(cmd, text.Bytes())
		},
	}
	cmd.Flags().StringVar(&shell, "shell", usualShell(), "`name` of the shell: "+strings.Join(clientenv.Shells, ", "))
	cmd.Flags().BoolVar(&f.baseURLs, "base-urls", false, "set the base URLs of intercepted upstreams too")
	return cmd
}

// usualShell is that of this user.
func usualShell() string {
	switch {
	case runtime.GOOS == "windows":
		return "powershell"
	case filepath.Base(os.Getenv("SHELL")) == "fish":
		return "fish"
	}
	return "sh"
}

// way leads to the Warmwire of cfg.
func (f execFlags) way(ctx context.Context, cfg *config.Config) (w clientenv.Way, err error) {
	w = clientenv.Way{Token: cfg.Listen.Token, Upstreams: f.toldOf(cfg), Dir: filepath.Join(cfg.StateDir, "env"),
		Roots: func() ([]byte, error) { return systemRoots(ctx) }}
	if w.Base = baseOf(cfg); w.Base == "" {
		return w, fmt.Errorf("env: listen.address has no TCP address, and proxy variables take no other")
	}
	if w.Authorities, err = installedAuthorities(cfg); err != nil {
		return w, err
	}
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		return w, fmt.Errorf("env: %w", err)
	}
	return w, nil
}

// baseOf is where apps of this host reach the Warmwire of cfg; "" = by no TCP address.
func baseOf(cfg *config.Config) string {
	for _, address := range cfg.Listen.Addresses {
		if !strings.HasPrefix(address, "unix:") {
			return "http://" + dialable(address)
		}
	}
	return ""
}

// installedAuthorities are those of the installation, made on first need; nil if nothing is
// intercepted.
func installedAuthorities(cfg *config.Config) ([]*x509.Certificate, error) {
	hosts := cfg.Intercepted()
	if len(hosts) == 0 {
		return nil, nil
	}
	machine, _ := os.Hostname() // without one it is localhost
	opened, err := ca.Open(caDir(cfg), ca.Config{Hosts: hosts, Machine: machine})
	if err != nil {
		return nil, err
	}
	return opened.Certificates(), nil
}
