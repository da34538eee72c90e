// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

// A Mode says who is asked first.
type Mode string

// The modes.
const (
	// ModeAuto asks the listed resolvers first and the system last. With none
	// listed it asks the system, and for the names that are kept the built-in
	// encrypted resolvers when the system fails or is late. Where "system" is in
	// the list, its place there counts.
	ModeAuto           Mode = "auto"
	ModeSystemFirst    Mode = "system_first"
	ModeResolversFirst Mode = "resolvers_first"
	ModeResolversOnly  Mode = "resolvers_only"
)

// systemResolver is how the system's resolvers are written in a list.
const systemResolver = "system"

// Config is what a Resolver needs to know. The zero value is the default.
type Config struct {
	Mode      Mode     // "" means ModeAuto
	Resolvers []string // presets, URLs as exchange.ParseSpec reads them, or "system"
	// Bootstrap are resolvers that are asked, without encryption, for the names
	// of Resolvers that have no address. None means the system's.
	Bootstrap []netip.Addr

	Roots    func() *x509.CertPool  // for encrypted resolvers, asked for each connection; nil means the system's
	Sessions tls.ClientSessionCache // TLS sessions with them to resume; nil means none
	// Dial connects to a resolver; nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Stale is how long after its time an answer still serves when no resolver
	// can be reached; 0 means 24 h, less than 0 not at all.
	Stale     time.Duration
	MinTTL    time.Duration // answers are kept at least so long; 0 means as they say
	CacheFile string        // keeps answers across restarts; "" means none

	// SystemDomains are suffixes of names that only the system's resolvers are
	// asked for, whatever the mode.
	SystemDomains []string
	HostsFile     string // "" means /etc/hosts
	ResolvConf    string // "" means /etc/resolv.conf
	MaxEntries    int    // names in the cache; 0 means 10,000. Kept names are never pushed out

	// The hooks are called without locks held, from any goroutine, and must not
	// block. Nil means none.
	OnLookup func(Result)
	OnEvent  func(Event)
}

// A Result says how a lookup was answered; fit for a metric label.
type Result string

// The results.
const (
	ResultHit      Result = "hit"
	ResultStale    Result = "stale"
	ResultMiss     Result = "miss"     // a resolver was waited for
	ResultHosts    Result = "hosts"    // the hosts file, localhost, or the name was an address
	ResultNegative Result = "negative" // known, without asking, to have no address
	ResultError    Result = "error"
)

// An EventKind is fit for a metric label.
type EventKind string

// The events.
const (
	EventCacheFile       EventKind = "cache_file"       // the file could not be used or written
	EventHostsFile       EventKind = "hosts_file"       // it cannot be read; the last good reading counts
	EventSystemResolvers EventKind = "system_resolvers" // resolv.conf changed, or cannot be used
	EventResolverDead    EventKind = "resolver_dead"
	EventResolverAlive   EventKind = "resolver_alive"
	EventNetworkChanged  EventKind = "network_changed"
	EventSuspect         EventKind = "suspect_answer" // a network login page?
)

// An Event is something that an operator may want to know.
type Event struct {
	Kind    EventKind
	Subject string // the resolver, name or file
	Err     error  // nil for good news
}

const (
	defaultStale      = 24 * time.Hour
	defaultMaxEntries = 10_000
	maxMinTTL         = 24 * time.Hour
)

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Mode = cmp.Or(c.Mode, ModeAuto)
	c.Stale = max(cmp.Or(c.Stale, defaultStale), 0)
	c.HostsFile = cmp.Or(c.HostsFile, "/etc/hosts")
	c.ResolvConf = cmp.Or(c.ResolvConf, "/etc/resolv.conf")
	c.MaxEntries = cmp.Or(c.MaxEntries, defaultMaxEntries)
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	listed := 0
	for _, text := range c.Resolvers {
		if strings.EqualFold(text, systemResolver) {
			if mode := cmp.Or(c.Mode, ModeAuto); mode != ModeAuto {
				return fmt.Errorf("dns.resolvers has %q and dns.mode is %s: leave one of them out", systemResolver, mode)
			}
			continue
		}
		listed++
		if _, err := exchange.ParseSpec(text); err != nil {
			return fmt.Errorf("dns.resolvers: %w", err)
		}
	}
	switch c.Mode {
	case "", ModeAuto, ModeSystemFirst:
	case ModeResolversFirst, ModeResolversOnly:
		if listed == 0 {
			return fmt.Errorf("dns.mode %s needs dns.resolvers: list at least one, for example %s", c.Mode, exchange.Presets()[0])
		}
	default:
		return fmt.Errorf("dns.mode %q is not known: write %s, %s, %s or %s", c.Mode, ModeAuto, ModeSystemFirst, ModeResolversFirst, ModeResolversOnly)
	}
	for _, addr := range c.Bootstrap {
		if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() {
			return fmt.Errorf("dns.bootstrap: %s is no resolver's address", addr)
		}
	}
	for _, domain := range c.SystemDomains {
		if !isName(suffixKey(domain)) {
			return fmt.Errorf("dns.system_domains: %q is no domain: write it as in corp.example", domain)
		}
	}
	if c.MinTTL < 0 || c.MinTTL > maxMinTTL {
		return fmt.Errorf("dns.min_ttl %v: write a time from 0s to %v", c.MinTTL, maxMinTTL)
	}
	if c.MaxEntries < 0 {
		return errors.New("dnscache: MaxEntries is negative: write 0 for the default")
	}
	return nil
}

// suffixKey reads a domain as people write it: .corp.example and *.corp.example
// mean corp.example.
func suffixKey(domain string) string {
	return strings.TrimPrefix(strings.TrimPrefix(hostKey(domain), "*"), ".")
}

// under reports whether name is one of the domains or below one.
func under(name string, domains []string) bool {
	return slices.ContainsFunc(domains, func(d string) bool {
		rest, ok := strings.CutSuffix(name, d)
		return ok && (rest == "" || rest[len(rest)-1] == '.')
	})
}

// isName reports whether key can be asked for (RFC 1123 section 2.1, and _).
func isName(key string) bool {
	if key == "" || len(key) > 253 {
		return false
	}
	for label := range strings.SplitSeq(key, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
	}
	return !strings.ContainsFunc(key, func(c rune) bool {
		return !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	})
}
