// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ResolvConf is what resolv.conf(5) says of the system's resolvers.
type ResolvConf struct {
	Nameservers []netip.Addr
	Search      []string // suffixes without the root's dot, in order
	Ndots       int
	Timeout     time.Duration
	Attempts    int
	Rotate      bool
}

// ParseResolvConf reads resolv.conf with the manual's defaults and caps. Lines
// it does not understand are skipped, as libc does. Of search and domain the
// last one wins. Without a nameserver the local one is meant.
func ParseResolvConf(b []byte) ResolvConf {
	c := ResolvConf{Ndots: 1, Timeout: 5 * time.Second, Attempts: 2}
	for line := range bytes.Lines(b) {
		if len(line) > 0 && (line[0] == '#' || line[0] == ';') {
			continue
		}
		f := strings.Fields(string(line))
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			// libc asks the first three only.
			if a, err := netip.ParseAddr(f[1]); err == nil && len(c.Nameservers) < 3 && !slices.Contains(c.Nameservers, a) {
				c.Nameservers = append(c.Nameservers, a)
			}
		case "domain":
			c.Search = suffixes(f[1:2])
		case "search":
			c.Search = suffixes(f[1:])
		case "options":
			c.options(f[1:])
		}
	}
	if len(c.Nameservers) == 0 {
		c.Nameservers = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return c
}

func (c *ResolvConf) options(opts []string) {
	for _, o := range opts {
		key, val, _ := strings.Cut(o, ":")
		n, err := strconv.Atoi(val)
		switch {
		case key == "rotate":
			c.Rotate = true
		case err != nil:
		case key == "ndots":
			c.Ndots = min(max(n, 0), 15)
		case key == "timeout":
			c.Timeout = time.Duration(min(max(n, 1), 30)) * time.Second
		case key == "attempts":
			c.Attempts = min(max(n, 1), 5)
		}
	}
}

func suffixes(names []string) []string {
	var out []string
	for _, n := range names {
		// A lone dot asks for no suffix at all.
		if n = hostKey(n); n != "" && len(out) < 32 {
			out = append(out, n)
		}
	}
	return out
}

// Candidates returns the absolute names to ask for name, in order. A name that
// ends in a dot is absolute. A name with any dot is asked as it stands first,
// whatever ndots says, so that a public host never waits for the search list;
// ndots then only decides whether the list is tried after it.
func (c ResolvConf) Candidates(name string) []string {
	key := hostKey(name)
	dots := strings.Count(key, ".")
	if strings.HasSuffix(name, ".") || (dots > 0 && dots >= c.Ndots) {
		return []string{key}
	}
	out := make([]string, 0, len(c.Search)+1)
	if dots > 0 {
		out = append(out, key)
	}
	for _, s := range c.Search {
		// 253 octets without the root's dot (RFC 1035 section 2.3.4).
		if full := key + "." + s; len(full) <= 253 {
			out = append(out, full)
		}
	}
	if dots == 0 {
		out = append(out, key)
	}
	return out
}
