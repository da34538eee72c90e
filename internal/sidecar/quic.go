// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/dnscache"
	"github.com/warmwire/warmwire/transport"
	"github.com/warmwire/warmwire/transport/h3"
	"github.com/warmwire/warmwire/transport/h3/altsvc"
)

// quicState is what all upstreams share for HTTP/3.
type quicState struct {
	endpoint *h3.Endpoint
	offers   *altsvc.Memory
}

// http3 is the way of one configuration over QUIC. The sockets are opened with the
// first upstream that may use them.
func (s *Sidecar) http3(pick picker) (*transport.HTTP3, error) {
	q := s.quic.Load()
	if q == nil {
		endpoint, err := h3.NewEndpoint(nil)
		if err != nil {
			return nil, fmt.Errorf("protocols: h3: %w", err)
		}
		offers, err := altsvc.New(altsvc.Config{})
		if err != nil {
			return nil, err
		}
		q = &quicState{endpoint, offers}
		s.quic.Store(q)
	}
	return &transport.HTTP3{
		Endpoint: q.endpoint, Offers: q.offers, Lookup: s.lookupHTTP3, Allowed: s.targets.deny, Direct: pick.direct,
	}, nil
}

// lookupHTTP3 returns what DNS knows of a host, its HTTPS record included.
func (s *Sidecar) lookupHTTP3(ctx context.Context, host string) ([]netip.Addr, uint16, time.Duration, error) {
	a, err := s.names.Lookup(ctx, host)
	if err != nil {
		return nil, 0, 0, err
	}
	for _, service := range a.Services {
		if service.Priority == 0 || !ownService(service, host) || !slices.Contains(service.ALPN, "h3") {
			continue // an alias, or another host's: its addresses are not known
		}
		port := service.Port
		if port == 0 {
			port = 443
		}
		return a.Addrs, port, a.TTL, nil
	}
	return a.Addrs, 0, 0, nil
}

// ownService says whether an HTTPS record (RFC 9460) speaks of the host itself.
func ownService(service dnscache.Service, host string) bool {
	target := strings.TrimSuffix(service.Target, ".")
	return target == "" || strings.EqualFold(target, host)
}

// moveLimit bounds how long connections over QUIC try the new network.
const moveLimit = 5 * time.Second

// moveQUIC takes connections over QUIC, with what is in flight, to the network
// that is there now.
func (s *Sidecar) moveQUIC(ctx context.Context, q *quicState) {
	ctx, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	if err := q.endpoint.Move(ctx); err != nil {
		s.log.Info("connections over QUIC that did not move", "error", err.Error())
	}
}
