// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
)

func configCommand(path *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, show or write a configuration",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{Use: "check [FILE]", Short: "Report all problems of the configuration", Args: usageArgs(cobra.MaximumNArgs(1)),
			RunE: func(cmd *cobra.Command, args []string) error { return checkConfig(cmd, pathOf(*path, args)) }},
		&cobra.Command{Use: "show [FILE]", Short: "Print the configuration that applies, secrets masked", Args: usageArgs(cobra.MaximumNArgs(1)),
			RunE: func(cmd *cobra.Command, args []string) error {
				cfg, _, err := loadConfig(pathOf(*path, args))
				if err != nil {
					return err
				}
				return printOut(cmd, cfg.Show())
			}},
		&cobra.Command{Use: "default", Short: "Print a file with every key and its default", Args: usageArgs(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error { return printOut(cmd, config.Default()) }},
		&cobra.Command{Use: "schema", Short: "Print a JSON Schema of the file, for editors", Args: usageArgs(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error { return printOut(cmd, config.Schema()) }},
	)
	return cmd
}

// pathOf prefers a file named as the argument to the flag.
func pathOf(flag string, args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return flag
}

// checkConfig prints warnings, and an error that holds every problem.
func checkConfig(cmd *cobra.Command, path string) error {
	cfg, warnings, err := loadConfig(path)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	return printOut(cmd, fmt.Appendf(nil, "configuration ok: %d upstreams\n", len(cfg.Upstreams)))
}

func printOut(cmd *cobra.Command, text []byte) error {
	_, err := cmd.OutOrStdout().Write(text)
	return err
}
