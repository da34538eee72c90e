// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const (
	maxRecords  = 1024 // guess: far more than a host has addresses
	maxChain    = 16   // aliases in a row; public resolvers stop at 8 to 16
	maxExtended = 8
	maxText     = 256
)

// An Answer is what a resolver said. Names in it are in lower case without the
// last dot. It shares no memory with anything.
type Answer struct {
	RCode         int  // as in the RCode constants; with the upper bits of EDNS
	Authenticated bool // the AD bit: the resolver says that it checked signatures
	// Records begins with the aliases (TypeCNAME) from the question's name on,
	// in their order, followed by the records of the asked type at the end of
	// the chain. Whatever else the message had is left out.
	Records  []Record
	SOA      *SOA // of a negative answer; nil if there was none
	Extended []ExtendedError
}

// TTL returns how long the answer may be kept: the smallest TTL of its records,
// or for one without records of the asked type the smaller of the SOA's TTL and
// minimum too (RFC 2308 §5). It is false if the answer does not say.
func (a Answer) TTL(asked uint16) (time.Duration, bool) {
	var ttl time.Duration
	known, positive := false, false
	least := func(d time.Duration) {
		if !known || d < ttl {
			ttl, known = d, true
		}
	}
	for _, r := range a.Records {
		least(r.TTL)
		positive = positive || r.Type == asked
	}
	if positive {
		return ttl, true
	}
	if a.SOA == nil {
		return 0, false
	}
	least(a.SOA.TTL)
	least(a.SOA.Minimum)
	return ttl, true
}

// age takes off the time that an answer spent in caches (RFC 8484 §5.1).
func (a *Answer) age(d time.Duration) {
	for i := range a.Records {
		a.Records[i].TTL = max(a.Records[i].TTL-d, 0)
	}
	if a.SOA != nil && d > 0 {
		// The minimum is a constant of the zone, so the TTL has to show what
		// is left of the smaller of the two.
		a.SOA.TTL = max(min(a.SOA.TTL, a.SOA.Minimum)-d, 0)
	}
}

// A Record is one record of an answer. Which of the last fields is set depends
// on its type; records of other types than those four have none.
type Record struct {
	Name    string
	Type    uint16
	TTL     time.Duration
	Addr    netip.Addr // TypeA, TypeAAAA
	Target  string     // TypeCNAME
	Service *Service   // TypeHTTPS
}

// A Service is the data of an HTTPS record (RFC 9460). Records that make a
// parameter mandatory which is none of these are left out of an [Answer]
// (RFC 9460 §8).
type Service struct {
	Priority      uint16       // 0: Target is an alias and the other fields are empty
	Target        string       // where the service is; for an alias "" means that there is none
	ALPN          []string     // in the zone's order
	NoDefaultALPN bool         // only what ALPN lists
	Port          uint16       // 0: that of the URL
	IPv4Hints     []netip.Addr // to start with until Target's own addresses are known
	IPv6Hints     []netip.Addr
	ECH           []byte // an ECHConfigList
}

// A SOA is the record that times a negative answer.
type SOA struct {
	Name    string // of the zone
	TTL     time.Duration
	Minimum time.Duration
}

// An ExtendedError says why an answer is as it is (RFC 8914).
type ExtendedError struct {
	Code uint16
	Text string // printable ASCII, at most 256 octets; what the resolver wrote
}

// follow returns the chain from name to the records of qtype.
func follow(name string, qtype uint16, section []dns.RR) ([]Record, error) {
	var records []Record
	at := name
	for range maxChain + 1 {
		var next *Record
		found := false
		for _, rr := range section {
			h := rr.Header()
			if h.Class != dns.ClassINET || bareName(h.Name) != at {
				continue
			}
			switch {
			case h.Rrtype == qtype:
				if r, ok := record(rr); ok {
					records = append(records, r)
				}
				found = true
			case h.Rrtype == dns.TypeCNAME && next == nil:
				if r, ok := record(rr); ok {
					next = &r
				}
			}
		}
		if found || next == nil {
			return records, nil
		}
		if slices.ContainsFunc(records, func(r Record) bool { return r.Name == next.Target }) {
			return nil, fmt.Errorf("%w: the aliases of %s go in a circle", errBadAnswer, name)
		}
		records = append(records, *next)
		at = next.Target
	}
	return nil, fmt.Errorf("%w: more than %d aliases in a row", errBadAnswer, maxChain)
}

func record(rr dns.RR) (Record, bool) {
	h := rr.Header()
	r := Record{Name: bareName(h.Name), Type: h.Rrtype, TTL: ttl(h.Ttl)}
	ok := true
	switch rr := rr.(type) {
	case *dns.A:
		r.Addr, ok = netip.AddrFromSlice(rr.A.To4())
	case *dns.AAAA:
		r.Addr, ok = netip.AddrFromSlice(rr.AAAA.To16())
	case *dns.CNAME:
		r.Target = bareName(rr.Target)
		ok = r.Target != ""
	case *dns.HTTPS:
		r.Service, ok = service(rr)
	}
	return r, ok
}

func service(rr *dns.HTTPS) (*Service, bool) {
	s := &Service{Priority: rr.Priority, Target: bareName(rr.Target)}
	if s.Priority == 0 {
		return s, true // RFC 9460 §2.4.2: parameters of an alias are ignored
	}
	if s.Target == "" {
		s.Target = bareName(rr.Hdr.Name) // RFC 9460 §2.5.2
	}
	for _, value := range rr.Value {
		switch v := value.(type) {
		case *dns.SVCBMandatory:
			if slices.ContainsFunc(v.Code, func(k dns.SVCBKey) bool { return k == dns.SVCB_MANDATORY || k > dns.SVCB_IPV6HINT }) {
				return nil, false
			}
		case *dns.SVCBAlpn:
			s.ALPN = slices.Clone(v.Alpn)
		case *dns.SVCBNoDefaultAlpn:
			s.NoDefaultALPN = true
		case *dns.SVCBPort:
			s.Port = v.Port
		case *dns.SVCBIPv4Hint:
			s.IPv4Hints = addrs(v.Hint, net.IP.To4)
		case *dns.SVCBIPv6Hint:
			s.IPv6Hints = addrs(v.Hint, net.IP.To16)
		case *dns.SVCBECHConfig:
			s.ECH = slices.Clone(v.ECH)
		}
	}
	return s, true
}

func addrs(list []net.IP, form func(net.IP) net.IP) []netip.Addr {
	var out []netip.Addr
	for _, ip := range list {
		if addr, ok := netip.AddrFromSlice(form(ip)); ok {
			out = append(out, addr)
		}
	}
	return out
}

func findSOA(section []dns.RR) *SOA {
	for _, rr := range section {
		if soa, ok := rr.(*dns.SOA); ok && soa.Hdr.Class == dns.ClassINET {
			return &SOA{Name: bareName(soa.Hdr.Name), TTL: ttl(soa.Hdr.Ttl), Minimum: ttl(soa.Minttl)}
		}
	}
	return nil
}

// ttl reads a TTL; one with the highest bit set counts as zero (RFC 2181 §8).
func ttl(seconds uint32) time.Duration {
	if seconds > 1<<31-1 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

func bareName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
