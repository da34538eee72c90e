// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/config"
)

// fewDescriptors is below what a Warmwire with some hundred streams needs. A guess.
const fewDescriptors = 1024

// descriptorFindings looks at the limit that a Warmwire started from here would have: Go
// raises the soft one to the hard one.
func descriptorFindings(cfg *config.Config) []clientenv.Finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return nil
	}
	limit, wanted := uint64(l.Max), 2*uint64(cfg.Limits.Connections)+64
	if limit >= wanted {
		return nil
	}
	f := clientenv.Finding{Code: "descriptors", Level: clientenv.Note, Mend: fmt.Sprintf("ulimit -n %d", wanted),
		Text: fmt.Sprintf("%d file descriptors are fewer than the %d that limits.connections (%d) may need (LimitNOFILE in a systemd unit): Warmwire lets fewer apps in", limit, wanted, cfg.Limits.Connections)}
	if limit < fewDescriptors {
		f.Level = clientenv.Warning
	}
	return []clientenv.Finding{f}
}
