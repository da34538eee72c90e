// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"sync"

	"github.com/warmwire/warmwire/internal/netwatch"
)

// watchNetwork replaces the connections to the upstreams when the machine's
// network has changed or it has slept: the new ones are there before the old ones
// go, and what is in flight goes on.
func (s *Sidecar) watchNetwork(ctx context.Context) {
	w, err := netwatch.New()
	if err != nil {
		s.log.Warn("changes of the network will not be noticed at once", "error", err.Error())
	}
	var moving sync.WaitGroup
	defer moving.Wait()
	w.Run(ctx, func(why string) {
		s.log.Info("renewing the connections to the upstreams", "reason", why)
		s.names.NetworkChanged()
		if q := s.quic.Load(); q != nil {
			q.offers.NetworkChanged()
			moving.Go(func() { s.moveQUIC(ctx, q) })
		}
		for _, b := range s.shown.Load().upstreams {
			b.transport.Renew()
		}
	})
}
