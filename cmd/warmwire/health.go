// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthTimeout is below the usual period of an exec probe, 10 s.
const healthTimeout = 3 * time.Second

func healthCommand(path *string) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the running Warmwire whether it is ready (for exec probes)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := loadConfig(*path)
			if err != nil {
				return err
			}
			if cfg.Admin.Address == "" || cfg.Admin.Address == "none" {
				return fmt.Errorf("health: admin.address is off, so there is nothing to ask")
			}
			endpoint := "/readyz"
			if live {
				endpoint = "/healthz"
			}
			return askHealth(cmd.Context(), cfg.Admin.Address, endpoint)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether it is alive, not whether it takes requests")
	return cmd
}

// askHealth asks the admin listener at address, which may be unix:/path.
func askHealth(ctx context.Context, address, endpoint string) error {
	status, text, err := askAdmin(ctx, address, http.MethodGet, endpoint, "")
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("health: %d %s: %s", status, http.StatusText(status), strings.TrimSpace(string(text)))
	}
	return nil
}
