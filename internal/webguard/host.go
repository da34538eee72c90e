// SPDX-License-Identifier: Apache-2.0

package webguard

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// maxHost is the longest name that DNS knows (RFC 1035 §2.3.4).
const maxHost = 253

// ParseAuthority takes host[:port] apart. The host comes back in the form in
// which hosts are compared: a name in lower case without its final dot, an
// address in its shortest spelling without brackets, an IPv4 address that was
// written as IPv6 as IPv4. A missing port is "", and so is an empty one, which
// RFC 3986 §3.2.3 allows. User information, zones and anything that is not ASCII
// are refused, and so are the spellings of IPv4 addresses that only some parsers
// know (127.1, 0x7f.0.0.1): as names that end in a number they are not valid.
func ParseAuthority(s string) (host, port string, err error) {
	host, port, err = splitPort(s)
	if err != nil {
		return "", "", err
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !ok || err != nil || !addr.Is6() || addr.Zone() != "" {
			return "", "", fmt.Errorf("bad IPv6 address in the host")
		}
		return addr.Unmap().String(), port, nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Is6() {
			return "", "", fmt.Errorf("an IPv6 address in a host needs brackets")
		}
		return addr.String(), port, nil
	}
	host = strings.TrimSuffix(host, ".")
	if !isName(host) {
		return "", "", fmt.Errorf("the host is no name and no address")
	}
	return strings.ToLower(host), port, nil
}

// splitPort cuts at the last colon that is not inside brackets.
func splitPort(s string) (host, port string, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.HasSuffix(s, "]") {
		return s, "", nil
	}
	host, port = s[:i], s[i+1:]
	if port == "" {
		return host, "", nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", "", fmt.Errorf("the port is no number from 0 to 65535")
	}
	return host, strconv.FormatUint(n, 10), nil // without leading zeros
}

// isName accepts what can be looked up, underscores included because networks of
// containers use them. A last label of digits only would be an address to a
// browser (WHATWG URL §4.5.4, "ends in a number").
func isName(s string) bool {
	if s == "" || len(s) > maxHost {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for i := range len(label) {
			switch c := label[i]; {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
		}
		last = strings.ToLower(label)
	}
	return !isNumber(last)
}

func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// IsLoopback says whether host, as ParseAuthority gives it, can only be this
// machine: localhost, a name below it, or a loopback address. Nobody can register a
// name below localhost and point it elsewhere (RFC 6761 §6.3).
func IsLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// Hosts is a set of hosts that an operator allows. The zero value holds none.
type Hosts struct {
	set map[string]bool
}

// ParseHosts reads names and addresses without a port. IPv6 addresses may have
// brackets. Patterns are refused, because a set of names that can grow is one
// that a stranger can join.
func ParseHosts(list []string) (Hosts, error) {
	h := Hosts{set: make(map[string]bool, len(list))}
	for _, entry := range list {
		text := entry
		if addr, err := netip.ParseAddr(entry); err == nil && addr.Is6() {
			text = "[" + entry + "]"
		}
		host, port, err := ParseAuthority(text)
		if err != nil {
			return Hosts{}, fmt.Errorf("allowed host %q: %w", entry, err)
		}
		if port != "" {
			return Hosts{}, fmt.Errorf("allowed host %q: give it without a port", entry)
		}
		h.set[host] = true
	}
	return h, nil
}

// Has says whether host, as ParseAuthority gives it, is in the set.
func (h Hosts) Has(host string) bool { return h.set[host] }
