// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// allUpstreams in intercept.hosts stands for the hosts of the file's https upstreams.
const allUpstreams = "upstreams"

// maxIntercepted is how many hosts one certificate authority permits.
const maxIntercepted = 1000

// Intercepted are the hosts that are intercepted: intercept.hosts, written out, less
// intercept.blind. Each stands once.
func (c *Config) Intercepted() []string {
	var hosts []string
	for _, host := range c.Intercept.Hosts {
		if host != allUpstreams {
			hosts = append(hosts, host)
			continue
		}
		for _, u := range c.Upstreams {
			if !u.Builtin && u.URL.Scheme == "https" {
				hosts = append(hosts, strings.TrimSuffix(strings.ToLower(u.URL.Hostname()), "."))
			}
		}
	}
	slices.Sort(hosts)
	return slices.DeleteFunc(slices.Compact(hosts), func(host string) bool { return slices.Contains(c.Intercept.Blind, host) })
}

// intercept wants hosts for which a certificate can be made.
func (c *checker) intercept() {
	const hosts, blind = "intercept.hosts", "intercept.blind"
	for _, l := range []struct {
		key  string
		list []string
	}{{hosts, c.cfg.Intercept.Hosts}, {blind, c.cfg.Intercept.Blind}} {
		for i, host := range l.list {
			switch {
			case !validHost(host):
				c.addf(c.line(l.key), l.key, "%q is no host: one name or address without a port, no pattern, an international name in its xn-- form", withoutUser(host))
			case slices.Contains(l.list[:i], host):
				c.addf(c.line(l.key), l.key, "%q stands twice", host)
			case host == allUpstreams && l.key == blind:
				c.addf(c.line(l.key), l.key, "%s has a meaning in intercept.hosts only: list each host", allUpstreams)
			}
		}
	}
	intercepted := c.cfg.Intercepted()
	switch {
	case len(intercepted) > maxIntercepted:
		c.addf(c.line(hosts), hosts, "%d hosts are more than %d", len(intercepted), maxIntercepted)
	case len(intercepted) == 0 && len(c.cfg.Intercept.Hosts) > 0:
		c.addf(c.line(hosts), hosts, "leaves no host: intercept.blind takes all, or upstreams stands for none because this file names no https upstream")
	case len(c.cfg.Intercept.Blind) > 0 && len(c.cfg.Intercept.Hosts) == 0:
		c.warnf(c.line(blind), blind, "does nothing: intercept.hosts is empty, so no host is intercepted")
	}
	for _, host := range c.cfg.Intercept.Hosts {
		if host != allUpstreams && slices.Contains(c.cfg.Intercept.Blind, host) {
			c.warnf(c.line(blind), blind, "%s stands in intercept.hosts too: it is tunnelled untouched", host)
		}
	}
}
