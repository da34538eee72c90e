// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"log/slog"

	"github.com/warmwire/warmwire/internal/config"
)

// reservedDescriptors are kept for what is not a request's: listeners, resolvers, the
// admin listener's callers, files, and the runtime's own. A guess.
const reservedDescriptors = 64

// appConnections is how many connections of apps may be open. Each may need one to its
// upstream, so they get half of the descriptors that there are: one app too many gets a
// 503, where an accept that fails would leave all of them hanging.
func (s *Sidecar) appConnections(cfg *config.Config) int {
	limit, known := descriptorLimit()
	if !known {
		return cfg.Limits.Connections
	}
	room := max(1, int(min(limit, 1<<30)-reservedDescriptors)/2)
	if room < cfg.Limits.Connections {
		level := slog.LevelWarn
		if room > cfg.Limits.Connections/10*9 {
			level = slog.LevelInfo // as with the usual limit of 20,000: nothing to act on
		}
		s.log.Log(context.Background(), level, "limits.connections is more than the file descriptors allow: raise the limit (ulimit -n, LimitNOFILE) or lower it",
			"limits.connections", cfg.Limits.Connections, "descriptors", limit, "allowed", room)
		return room
	}
	return cfg.Limits.Connections
}
