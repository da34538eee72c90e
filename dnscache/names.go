// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"net/netip"
	"strings"
)

// A scope says whom a name may be asked of.
type scope int

const (
	scopePublic scope = iota
	// scopeLocal is for names that no public resolver knows, and that are none
	// of its business.
	scopeLocal
	// scopeSystem is for names that only the system's resolvers know.
	scopeSystem
	scopeNowhere
)

// localSuffixes are the domains that are not delegated to anyone: of RFC 6761,
// RFC 6762 with its appendix G, RFC 8375, RFC 9476, and ICANN's `internal`.
func localSuffixes() []string {
	return []string{"local", "internal", "intranet", "private", "corp", "home", "lan", "home.arpa", "test", "alt"}
}

// nowhereSuffixes are never asked for: RFC 6761 section 6.4, RFC 7686.
func nowhereSuffixes() []string { return []string{"invalid", "onion"} }

// isLocalhost reports names of this machine (RFC 6761 section 6.3).
func isLocalhost(name string) bool {
	rest, ok := strings.CutSuffix(name, "localhost")
	return ok && (rest == "" || rest[len(rest)-1] == '.')
}

// A scoper knows which names are the network's own.
type scoper struct {
	system  []string // of the configuration
	local   []string
	nowhere []string
}

// of returns the scope of a name without the root's dot. search is the system's
// search list: whoever names suffixes there means names of the own network.
func (s *scoper) of(name string, search []string) scope {
	switch {
	case under(name, s.system):
		return scopeSystem
	case under(name, s.nowhere):
		return scopeNowhere
	case !strings.Contains(name, "."), under(name, s.local):
		return scopeLocal
	}
	for _, suffix := range search {
		// One label may be a whole top-level domain, which says nothing.
		if strings.Contains(suffix, ".") && under(name, []string{suffix}) {
			return scopeLocal
		}
	}
	return scopePublic
}

// isPrivate reports addresses that a public name has no reason to have, unless a
// site maps it on purpose.
func isPrivate(addr netip.Addr) bool {
	return addr.IsPrivate() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || inSharedSpace(addr)
}

// inSharedSpace reports 100.64.0.0/10 (RFC 6598), where login pages live too.
func inSharedSpace(addr netip.Addr) bool {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, 0, 0}), 10).Contains(addr)
}

// zoneOf guesses who owns a name: its last two labels.
func zoneOf(name string) string {
	last := strings.LastIndexByte(name, '.')
	if last < 0 {
		return name
	}
	return name[strings.LastIndexByte(name[:last], '.')+1:]
}
