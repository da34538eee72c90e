// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/config"
)

func upgradeCommand(path *string) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Replace the running Warmwire by the program that is on disk now, losing nothing",
		Long: "The running process starts the program anew, from the path and with the arguments it was\n" +
			"started with, hands it the listeners and, once that one serves, finishes what it has begun.\n" +
			"If the new one does not come up, the running one goes on and this command fails.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			if !cfg.Admin.Enabled() {
				return fmt.Errorf("upgrade: admin.address is off, so there is nobody to tell: send SIGUSR2 instead")
			}
			return askUpgrade(cmd.Context(), cmd.OutOrStdout(), cfg)
		},
	}
}

func askUpgrade(ctx context.Context, out io.Writer, cfg *config.Config) error {
	_, refused, err := changeRunning(ctx, upgradeLimit+healthTimeout, cfg, "/v1/upgrade")
	if err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	if refused != "" {
		return fmt.Errorf("the running process goes on: %s", refused)
	}
	_, err = fmt.Fprintln(out, "upgraded")
	return err
}
