// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// dns checks what can be checked without asking anybody. The resolver itself
// reads a resolver's URL in full, when Warmwire starts.
func (c *checker) dns() {
	d := c.cfg.DNS
	listed := 0
	for _, r := range d.Resolvers {
		if strings.EqualFold(r, "system") {
			if d.Mode != "auto" {
				c.addf(c.line("dns.resolvers"), "dns.resolvers", "system stands in the list and dns.mode is %s: leave one of them out", d.Mode)
			}
			continue
		}
		if validResolver(r) {
			listed++
		} else {
			c.addf(c.line("dns.resolvers"), "dns.resolvers", "%q is no resolver: write https://host/path, tls://host, udp://host, tcp://host, system, or one of %s",
				withoutUser(r), strings.Join(resolverPresets, ", "))
		}
	}
	if listed == 0 && (d.Mode == "resolvers_first" || d.Mode == "resolvers_only") {
		c.addf(c.line("dns.mode"), "dns.mode", "%s needs dns.resolvers: list at least one", d.Mode)
	}
	for _, a := range d.Bootstrap {
		if _, err := netip.ParseAddr(a); err != nil {
			c.addf(c.line("dns.bootstrap"), "dns.bootstrap", "%q is no address", a)
		}
	}
	for _, domain := range d.SystemDomains {
		if !validHost(strings.TrimPrefix(strings.TrimPrefix(domain, "*"), ".")) {
			c.addf(c.line("dns.system_domains"), "dns.system_domains", "%q is no domain: write it as in corp.example", domain)
		}
	}
	if time.Duration(d.MinTTL) > 24*time.Hour {
		c.addf(c.line("dns.min_ttl"), "dns.min_ttl", "%v is over 24h", d.MinTTL)
	}
	if d.Listen != "" {
		host, port, err := net.SplitHostPort(d.Listen)
		ip, aerr := netip.ParseAddr(host)
		if err != nil || aerr != nil || !ip.IsLoopback() || !validPort(port, "") {
			c.addf(c.line("dns.listen"), "dns.listen", "%q is no address of loopback with a port: write 127.0.0.1:5353", d.Listen)
		}
	}
}

var resolverPresets = []string{"cloudflare", "google", "quad9", "alidns", "dnspod"}

// validResolver accepts a preset or a URL of a known kind.
func validResolver(r string) bool {
	if slices.Contains(resolverPresets, strings.ToLower(r)) {
		return true
	}
	u, err := url.Parse(r)
	return err == nil && slices.Contains([]string{"https", "tls", "udp", "tcp"}, u.Scheme) && u.User == nil && u.Hostname() != ""
}
