// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/warmwire/warmwire/internal/netlab"
)

// labCommand says why there is none here.
func labCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "lab",
		Short:              "A bad network on this machine (Linux only)",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return netlab.Available() },
	}
}
