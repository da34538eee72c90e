// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/dnscache"
	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/tlspool/trust"
)

// Resolver makes the resolver that a configuration asks for; hooks holds what the
// configuration does not say. roots are the system's; nil = read for it alone.
func Resolver(cfg *config.Config, hooks dnscache.Config, roots *trust.Store) (*dnscache.Resolver, error) {
	var err error
	d := cfg.DNS
	c := hooks
	c.Mode, c.Resolvers, c.SystemDomains = dnscache.Mode(d.Mode), d.Resolvers, d.SystemDomains
	c.Stale, c.MinTTL = time.Duration(d.Stale), time.Duration(d.MinTTL)
	c.CacheFile, c.HostsFile = d.CacheFile, d.HostsFile
	if d.Stale == 0 {
		c.Stale = -1 // its zero is the default
	}
	for _, a := range d.Bootstrap {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return nil, fmt.Errorf("dns.bootstrap: %w", err)
		}
		c.Bootstrap = append(c.Bootstrap, addr)
	}
	if c.Roots, err = rootsOf(roots, "dns.ca_file", d.CAFile); err != nil {
		return nil, err
	}
	if c.CacheFile != "" {
		// A folder that cannot be made is told of when the file is written.
		_ = os.MkdirAll(filepath.Dir(c.CacheFile), 0o700)
	}
	return dnscache.New(c)
}

// KeptNames are the hosts of the upstreams that the file names: they are looked up
// before anybody asks. What goes through a parent proxy is resolved by it.
func KeptNames(cfg *config.Config) []string {
	var out []string
	pick, err := parentPicker(cfg)
	if err != nil {
		return nil
	}
	for _, u := range cfg.Upstreams {
		for _, at := range reached(u) {
			host := at.Hostname()
			if _, err := netip.ParseAddr(host); u.Builtin || err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost") {
				continue
			}
			if pick.direct(authority(at)) && !slices.Contains(out, host) {
				out = append(out, host)
			}
		}
	}
	return out
}

// dnsEvent writes what an operator may want to know.
func (s *Sidecar) dnsEvent(e dnscache.Event) {
	if e.Err != nil {
		s.log.Warn("dns", "event", string(e.Kind), "subject", e.Subject, "error", e.Err.Error())
		return
	}
	s.log.Info("dns", "event", string(e.Kind), "subject", e.Subject)
}

// A dnsStatus is what status shows of the names.
type dnsStatus struct {
	Mode      string           `json:"mode"`
	InFlight  int              `json:"in_flight"`
	Resolvers []resolverStatus `json:"resolvers"`
	Names     []nameStatus     `json:"names"` // a thousand at most
	More      int              `json:"more_names,omitempty"`
}

type resolverStatus struct {
	Name      string `json:"name"`
	Encrypted bool   `json:"encrypted"`
	Health    string `json:"health"`
	P50       string `json:"p50,omitempty"`
	P95       string `json:"p95,omitempty"`
	Asked     uint64 `json:"asked"`
	Failed    uint64 `json:"failed"`
	LastError string `json:"last_error,omitempty"`
}

type nameStatus struct {
	Name   string       `json:"name"`
	Addrs  []netip.Addr `json:"addresses"`
	Source string       `json:"source,omitempty"`
	Age    string       `json:"age,omitempty"`
	TTL    string       `json:"ttl,omitempty"`
	Stale  bool         `json:"stale,omitempty"`
	Kept   bool         `json:"kept,omitempty"`
	Doubt  bool         `json:"doubtful,omitempty"` // a network login page?
	Error  string       `json:"error,omitempty"`
}

const shownNames = 1000

func (s *Sidecar) dnsStatus() dnsStatus {
	st := s.names.State()
	out := dnsStatus{Mode: string(st.Mode), InFlight: st.InFlight, Resolvers: []resolverStatus{}, Names: []nameStatus{}}
	for _, r := range st.Servers {
		out.Resolvers = append(out.Resolvers, resolverStatus{r.Name, r.Encrypted, string(r.Health), span(r.P50), span(r.P95), r.Asked, r.Failed, r.LastError})
	}
	out.More = max(0, len(st.Names)-shownNames)
	for _, n := range st.Names[:min(len(st.Names), shownNames)] {
		out.Names = append(out.Names, nameStatus{n.Name, append([]netip.Addr{}, n.Addrs...), n.Source, span(n.Age), span(n.TTL), n.Stale, n.Kept, n.Suspect, n.Error})
	}
	return out
}
