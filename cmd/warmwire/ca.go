// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/intercept/truststore"
	"github.com/warmwire/warmwire/tlspool/trust"
)

// errNothingIntercepted is for an installation that needs no authority: one that
// permitted more than is intercepted would be worth stealing for nothing.
var errNothingIntercepted = errors.New(`ca: intercept.hosts is empty, so no host is intercepted and nobody has to trust an authority: ` +
	`list hosts there, or upstreams for those of the configuration file`)

// interceptHosts are the hosts for which certificates may be made.
func interceptHosts(cfg *config.Config) ([]string, error) {
	hosts := cfg.Intercepted()
	if len(hosts) == 0 {
		return nil, errNothingIntercepted
	}
	return hosts, nil
}

// An authority is that of the installation, with its files.
type authority struct {
	*ca.Authority
	cmd   *cobra.Command
	cfg   *config.Config
	state string // the folder
}

func caDir(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "ca") }

// file holds what clients must trust; bundle the system's roots too.
func (a *authority) file() string   { return filepath.Join(a.state, "ca.pem") }
func (a *authority) bundle() string { return filepath.Join(a.state, "ca-bundle.pem") }

// withCA opens the authority, makes it if there is none, and hands it on.
func withCA(path *string, do func(*authority) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		cfg, _, err := loadConfig(*path)
		if err != nil {
			return err
		}
		hosts, err := interceptHosts(cfg)
		if err != nil {
			return err
		}
		machine, _ := os.Hostname() // without one it is localhost
		opened, err := ca.Open(caDir(cfg), ca.Config{Hosts: hosts, Machine: machine})
		if err != nil {
			return err
		}
		a := &authority{opened, cmd, cfg, cfg.StateDir}
		if err := a.Covers(hosts...); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", err, "(warmwire ca rotate)")
		}
		if states, err := a.States(); err == nil {
			for _, s := range states {
				if warning := caWarning(s, time.Now()); warning != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning: the authority that signs:", warning)
				}
			}
		}
		if err := ca.WritePublic(a.file(), ca.PEM(a.Certificates()...)); err != nil {
			return err
		}
		return do(a)
	}
}

func caCommand(path *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "The certificate authority for intercepted hosts: show, trust, rotate",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{Use: "path", Short: "Print the file with its certificates, made on first need", Args: usageArgs(cobra.NoArgs),
			RunE: withCA(path, func(a *authority) error { return printOut(a.cmd, []byte(a.file()+"\n")) })},
		caBundleCommand(path),
		caShowCommand(path),
		caInstallCommand(path), caUninstallCommand(path), caRotateCommand(path),
	)
	return cmd
}

func caBundleCommand(path *string) *cobra.Command {
	var out string
	cmd := &cobra.Command{Use: "bundle", Short: "Write the system's roots and ours to a file, and print its name",
		Long: `bundle writes what this system trusts, a company's own roots among it, and the
certificates of our authorities to a file, for variables that replace what a client
trusts (SSL_CERT_FILE, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE …), and prints its name.
Without --out it is state_dir/ca-bundle.pem, which rotations write anew.`,
		Example: `  SSL_CERT_FILE="$(warmwire ca bundle)" HTTPS_PROXY=http://127.0.0.1:8484 python3 app.py
  warmwire ca bundle --out - > /srv/app/roots.pem`,
		Args: usageArgs(cobra.NoArgs),
		RunE: withCA(path, func(a *authority) error {
			text, err := a.bundled(a.cmd.Context())
			switch {
			case err != nil:
				return err
			case out == "-":
				return printOut(a.cmd, text)
			case out == "":
				out = a.bundle()
			}
			if err := ca.WritePublic(out, text); err != nil {
				return err
			}
			return printOut(a.cmd, []byte(out+"\n"))
		})}
	cmd.Flags().StringVar(&out, "out", "", "write it to `file`; - = to standard output")
	return cmd
}

// bundled is the system's roots and ours.
func (a *authority) bundled(ctx context.Context) ([]byte, error) {
	roots, err := systemRoots(ctx)
	if err != nil {
		return nil, fmt.Errorf("ca bundle: %w", err)
	}
	return ca.Bundle(roots, a.Certificates()...)
}

// writeBundle writes them to our file.
func (a *authority) writeBundle(ctx context.Context) error {
	text, err := a.bundled(ctx)
	if err != nil {
		return err
	}
	return ca.WritePublic(a.bundle(), text)
}

func systemRoots(ctx context.Context) ([]byte, error) {
	if runtime.GOOS == "linux" {
		return trust.NewStore(nil).PEM()
	}
	return truststore.Machine{OS: runtime.GOOS}.Roots(ctx)
}

func thisMachine() truststore.Machine {
	home, _ := os.UserHomeDir() // without one there are no browsers
	return truststore.Machine{OS: runtime.GOOS, Home: home}
}

func caInstallCommand(path *string) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{Use: "install", Short: "Make this system and the user's browsers trust it", Args: usageArgs(cobra.NoArgs),
		RunE: withCA(path, func(a *authority) error {
			certs := a.Certificates()
			for _, cert := range certs {
				if err := ca.WritePublic(filepath.Join(caDir(a.cfg), truststore.Name(cert)+".crt"), ca.PEM(cert)); err != nil {
					return err
				}
			}
			plan, err := thisMachine().Install(a.cmd.Context(), caDir(a.cfg), certs...)
			return errors.Join(err, carryOut(a.cmd, plan, dry))
		})}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show the commands only")
	return cmd
}

func caUninstallCommand(path *string) *cobra.Command {
	var dry, old bool
	cmd := &cobra.Command{Use: "uninstall", Short: "Remove Warmwire's certificates from where this system and the user's browsers trust them", Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !old {
				plan, err := thisMachine().Uninstall(cmd.Context())
				return errors.Join(err, carryOut(cmd, plan, dry))
			}
			return withCA(path, func(a *authority) error {
				plan, err := thisMachine().Uninstall(cmd.Context(), a.Certificates()...)
				return errors.Join(err, carryOut(cmd, plan, dry))
			})(cmd, nil)
		}}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show the commands only")
	cmd.Flags().BoolVar(&old, "old", false, "keep those in force, remove all others")
	return cmd
}

// carryOut shows each command and runs it, if this process may.
func carryOut(cmd *cobra.Command, plan truststore.Plan, dry bool) error {
	for _, note := range plan.Notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "note:", note)
	}
	left := 0
	for _, step := range plan.Steps {
		line := step.String()
		mayNot := step.Root && os.Geteuid() != 0
		if mayNot {
			line = "sudo " + line
			left++
		}
		if err := printOut(cmd, []byte(line+"\n")); err != nil {
			return err
		}
		if dry || mayNot {
			continue
		}
		if err := thisMachine().Do(cmd.Context(), step); err != nil {
			return fmt.Errorf("ca: %w", err)
		}
	}
	if left > 0 && !dry {
		return errors.New("ca: only root can run the commands that begin with sudo: run them in this order")
	}
	return nil
}

func caRotateCommand(path *string) *cobra.Command {
	var in time.Duration
	var now, retire bool
	cmd := &cobra.Command{Use: "rotate", Short: "Make the next authority; later let it sign (--switch) and forget the old one (--retire)", Args: usageArgs(cobra.NoArgs),
		RunE: withCA(path, func(a *authority) error {
			var err error
			switch {
			case now:
				err = a.Switch()
			case retire:
				err = a.Retire()
			case in > 0:
				err = a.Rotate(time.Now().Add(in))
			default:
				err = a.Rotate(time.Time{})
			}
			if err == nil {
				err = ca.WritePublic(a.file(), ca.PEM(a.Certificates()...))
			}
			if _, missing := os.Stat(a.bundle()); err == nil && missing == nil {
				err = a.writeBundle(a.cmd.Context())
			}
			if err != nil {
				return err
			}
			return showCA(a.cmd, *path, false)
		})}
	cmd.Flags().DurationVar(&in, "in", 0, "let the next one sign after this `time`; 0 = when --switch says so")
	cmd.Flags().BoolVar(&now, "switch", false, "let the next one sign from now on")
	cmd.Flags().BoolVar(&retire, "retire", false, "forget the old one and its key")
	cmd.MarkFlagsMutuallyExclusive("in", "switch", "retire")
	return cmd
}
