// SPDX-License-Identifier: Apache-2.0

package dnscache

import (
	"math"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/warmwire/warmwire/dnscache/exchange"
)

// Times are counted from the Resolver's base, on the monotonic clock.
const never = time.Duration(math.MaxInt64)

// The three questions of a lookup.
const (
	partA = iota
	partAAAA
	partHTTPS
	parts
)

func qtype(part int) uint16 {
	return [parts]uint16{exchange.TypeA, exchange.TypeAAAA, exchange.TypeHTTPS}[part]
}

// A partSet is a set of parts.
type partSet [parts]bool

func allParts() partSet { return partSet{true, true, true} }

// addresses reports whether an address family is in the set.
func (s partSet) addresses() bool { return s[partA] || s[partAAAA] }

type partState uint8

const (
	partUnknown  partState = iota
	partGood               // has addresses or services
	partNegative           // is known not to exist
	partFailed             // could not be learned
)

const (
	// maxTTL keeps a mistake in a zone from staying (RFC 8767 section 4 allows
	// seven days; an address that is asked for daily costs nothing).
	maxTTL = 24 * time.Hour
	// maxNegative: a name that is added to a zone shows within a minute.
	maxNegative = time.Minute
	// A part that failed, such as HTTPS behind a resolver that drops what it
	// does not know, is tried again after this long, and doubling
	// (RFC 9520 section 3.2: at most 5 min).
	partRetry, maxPartRetry = 30 * time.Second, 5 * time.Minute
	refreshAt               = 80 // percent of the TTL
)

// A part is the answer to one question. Its slices are never changed.
type part struct {
	addrs    []netip.Addr
	services []Service
	source   string // the resolver's name
	fetched  time.Duration
	ttl      time.Duration // less than 0: the answer did not say
	hold     time.Duration // good, but not learned anew beside a part that was: not asked for before
	rcode    uint16
	state    partState
	fails    uint8 // in a row, with partFailed or hold
	system   bool  // from a resolver of the system
	trusted  bool  // over an encrypted way
	tier     uint8
}

// A Service is the data of an HTTPS record (RFC 9460).
type Service = exchange.Service

// newPart reads an answer.
func newPart(which int, a exchange.Answer, minTTL time.Duration) part {
	p := part{state: partFailed, rcode: uint16(a.RCode), ttl: -1}
	if a.RCode != exchange.RCodeSuccess && a.RCode != exchange.RCodeNXDomain {
		return p
	}
	for _, r := range a.Records {
		switch {
		case r.Type != qtype(which):
		case which == partHTTPS:
			if r.Service != nil && len(p.services) < maxRecords {
				p.services = append(p.services, *r.Service)
			}
		// A filter answers 0.0.0.0, which would be this machine.
		case r.Addr.IsValid() && !r.Addr.IsUnspecified() && !r.Addr.IsMulticast() && len(p.addrs) < maxRecords:
			p.addrs = append(p.addrs, r.Addr.Unmap())
		}
	}
	p.addrs = slices.Clip(p.addrs)
	slices.SortStableFunc(p.services, func(a, b Service) int { return int(a.Priority) - int(b.Priority) })
	ttl, known := a.TTL(qtype(which))
	p.state = partNegative
	if len(p.addrs)+len(p.services) > 0 {
		p.state = partGood
		p.ttl = min(max(ttl, minTTL), maxTTL)
	} else if known {
		p.ttl = min(ttl, maxNegative)
	}
	return p
}

// maxRecords bounds the addresses kept of one name and family. Guess: nobody
// tries more.
const maxRecords = 64

// nxdomain reports whether the whole name is said not to exist.
func (p *part) nxdomain() bool { return p.state == partNegative && p.rcode == exchange.RCodeNXDomain }

// expires is when the part may be served no more as fresh; a part that has no
// say in that never expires.
func (p *part) expires() time.Duration {
	if p.hold > 0 {
		return never
	}
	if p.state == partGood || p.state == partNegative && p.ttl >= 0 {
		return p.fetched + p.ttl
	}
	return never
}

// due is when the part is to be asked for again in the background.
func (p *part) due() time.Duration {
	if p.hold > 0 {
		return p.hold
	}
	switch p.state {
	case partGood, partNegative:
		if p.ttl < 0 {
			return never
		}
		return p.fetched + p.ttl*refreshAt/100
	case partFailed:
		return p.fetched + min(partRetry<<min(p.fails, 8), maxPartRetry)
	}
	return never
}

// sameRecords reports whether two parts say the same.
func (p *part) sameRecords(q *part) bool {
	return p.state == q.state && slices.Equal(p.addrs, q.addrs) && reflect.DeepEqual(p.services, q.services)
}

// wanted reports whether a lookup that is made now should ask for the part.
func (p *part) wanted(now time.Duration) bool {
	return p.state == partUnknown || p.ttl < 0 && p.state == partNegative || now >= p.due()
}

// good reports whether the part can be served until its stale time has run out.
func (p *part) good(now, stale time.Duration) bool {
	return p.state == partGood && now < p.fetched+p.ttl+stale
}
