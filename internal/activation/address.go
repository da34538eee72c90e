// SPDX-License-Identifier: Apache-2.0

package activation

import (
	"net"
	"net/netip"
	"strings"
)

// matches says whether a socket bound to addr is the one that address, which is
// host:port or unix:/path, asks for. Port 0 asks for any port.
func matches(address string, addr net.Addr) bool {
	if path, unix := strings.CutPrefix(address, "unix:"); unix {
		return addr.Network() == "unix" && addr.String() == path
	}
	if addr.Network() == "unix" { // its path may look like an address
		return false
	}
	bound, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return false
	}
	wanted, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return false
	}
	if wanted.Port != 0 && wanted.Port != int(bound.Port()) {
		return false
	}
	if wanted.IP == nil { // all addresses, of either family
		return bound.Addr().IsUnspecified()
	}
	ip, _ := netip.AddrFromSlice(wanted.IP)
	return ip.Unmap() == bound.Addr().Unmap().WithZone("")
}
