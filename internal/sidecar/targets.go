// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/warmwire/warmwire/internal/ingress"
)

// metadataServices are the addresses at which clouds hand credentials to
// whoever asks. Link-local ones are refused as a whole.
var metadataServices = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS over IPv6
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
}

// metadataNames are refused by name too, for targets that a parent proxy resolves.
var metadataNames = []string{"metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}

// targets refuses what must not be dialled, by the address and not by the name:
// a name can be made to point anywhere.
type targets struct {
	own []netip.AddrPort // our listeners
}

// deny is asked right before each address is dialled.
func (t *targets) deny(ap netip.AddrPort) error {
	addr := ap.Addr().Unmap()
	switch {
	case addr.Zone() != "" || addr.IsLinkLocalUnicast() || slices.Contains(metadataServices, addr):
		return fmt.Errorf("%w: %s is link-local or a metadata service", ingress.ErrForbidden, addr)
	case addr.IsMulticast():
		return fmt.Errorf("%w: %s is a multicast address", ingress.ErrForbidden, addr)
	case t.isOwn(addr, ap.Port()):
		return ingress.ErrLoop
	}
	return nil
}

// isOwn says whether an address reaches one of our listeners: the same address,
// or any of this host's where the listener is bound to all of them.
func (t *targets) isOwn(addr netip.Addr, port uint16) bool {
	for _, l := range t.own {
		if l.Port() != port {
			continue
		}
		la := l.Addr().Unmap()
		if la == addr || addr.IsUnspecified() && (la.IsLoopback() || la.IsUnspecified()) {
			return true
		}
		if la.IsUnspecified() && (addr.IsLoopback() || isLocalAddr(addr)) {
			return true
		}
	}
	return false
}

// isLocalAddr asks the system each time: addresses come and go.
func isLocalAddr(addr netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == addr
	})
}

// denyHost refuses a host that a parent proxy would resolve or dial for us.
func (t *targets) denyHost(hostport string) error {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return fmt.Errorf("target %q: %w", hostport, err)
	}
	if ap, err := netip.ParseAddrPort(net.JoinHostPort(host, port)); err == nil {
		return t.deny(ap)
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if slices.Contains(metadataNames, host) {
		return fmt.Errorf("%w: %s is a metadata service", ingress.ErrForbidden, host)
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		if ap, err := netip.ParseAddrPort(net.JoinHostPort("127.0.0.1", port)); err == nil {
			return t.deny(ap)
		}
	}
	return nil
}

// denyList builds the test for forward.deny: names, `.suffix`, `*.suffix`,
// addresses and prefixes.
func denyList(entries []string) func(host string) bool {
	var names, suffixes []string
	var prefixes []netip.Prefix
	for _, e := range entries {
		e = strings.TrimSuffix(strings.ToLower(e), ".")
		if p, err := netip.ParsePrefix(e); err == nil {
			prefixes = append(prefixes, p.Masked())
		} else if a, err := netip.ParseAddr(strings.Trim(e, "[]")); err == nil {
			prefixes = append(prefixes, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
		} else if s, ok := strings.CutPrefix(strings.TrimPrefix(e, "*"), "."); ok {
			suffixes = append(suffixes, "."+s)
		} else {
			names = append(names, e)
		}
	}
	return func(host string) bool {
		host = strings.TrimSuffix(strings.ToLower(host), ".")
		if a, err := netip.ParseAddr(host); err == nil {
			return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
		}
		return slices.Contains(names, host) ||
			slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(host, s) })
	}
}
