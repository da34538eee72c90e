// SPDX-License-Identifier: Apache-2.0

// Command warmwire is a localhost sidecar for programs that call model APIs.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // a scratch image has no roots: these serve measure and doctor there

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/logqueue"
	"github.com/warmwire/warmwire/internal/netlab"
)

// version is stamped by the build: -ldflags "-X main.version=…".
var version = "devel"

// errUsage marks errors of the command line; they end with exit code 2.
var errUsage = errors.New("usage")

func main() {
	if netlab.Main() { // this process is the forwarder of a lab, or became a program in it
		return
	}
	os.Exit(run())
}

// run returns the exit code: 0 fine, 1 failed, 2 usage or configuration. A
// command run by exec passes its own code on.
func run() int {
	err := rootCommand().Execute()
	var child *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &child):
		return childExitCode(child)
	}
	last := logqueue.New(os.Stderr) // a reader that hangs must not hold the end up
	fmt.Fprintln(last, "warmwire:", err)
	_ = last.Close()
	if errors.Is(err, errUsage) || errors.Is(err, config.ErrInvalid) {
		return 2
	}
	return 1
}

func rootCommand() *cobra.Command {
	var path string
	root := &cobra.Command{
		Use:           "warmwire",
		Short:         "A localhost sidecar for programs that call model APIs",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVarP(&path, "config", "c", "",
		"configuration `file` (default: $WARMWIRE_CONFIG, the user's, then /etc/warmwire/warmwire.yaml)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	root.AddCommand(runCommand(&path), demoCommand(), execCommand(&path), envCommand(&path), healthCommand(&path), tuneCommand(&path), topCommand(&path), upgradeCommand(&path), configCommand(&path), measureCommand(), doctorCommand(&path), caCommand(&path), labCommand(), versionCommand())
	for _, c := range root.Commands() {
		c.Args = usageArgs(c.Args)
	}
	root.Args = usageArgs(root.Args)
	return root
}

// usageArgs makes wrong arguments end with exit code 2.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if check == nil {
			return nil
		}
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		return nil
	}
}
