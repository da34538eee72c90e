// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// ErrInvalid is matched by errors about what cannot be the host of a certificate.
var ErrInvalid = errors.New("no name or address of a single host")

// Limits of RFC 1035 §2.3.4.
const (
	maxName  = 253
	maxLabel = 63
)

// unicodeNames maps as browsers do (UTS #46) what is not ASCII. What comes out is
// checked by checkName, which allows the underscores that real hosts have.
var unicodeNames = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false), idna.BidiRule())

// Name returns the one spelling of a host: lower case, A-labels (RFC 5890), no dot at
// the end; addresses without brackets, and those of IPv4 mapped into IPv6 as IPv4.
func Name(host string) (string, error) {
	bare := host
	if strings.HasPrefix(bare, "[") && strings.HasSuffix(bare, "]") {
		bare = bare[1 : len(bare)-1]
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		if addr.Zone() != "" {
			return "", fmt.Errorf("%w: %.300q has a zone", ErrInvalid, host)
		}
		return addr.Unmap().String(), nil
	}
	name := strings.TrimSuffix(host, ".")
	if !ascii(name) {
		mapped, err := unicodeNames.ToASCII(name)
		if err != nil {
			return "", fmt.Errorf("%w: %.300q: %w", ErrInvalid, host, err)
		}
		name = mapped
	}
	name = strings.ToLower(name)
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("%w: %.300q %w", ErrInvalid, host, err)
	}
	return name, nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// checkName says what is wrong with an ASCII name in lower case. A last label that
// looks like a number is refused: some clients read such a name as an IPv4 address.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("has %d characters, not 1 to %d", len(name), maxName)
	}
	last := name
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return fmt.Errorf("has a label of %d characters, not 1 to %d", len(label), maxLabel)
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return errors.New("has a label that begins or ends with a hyphen")
		}
		for i := range len(label) {
			switch c := label[i]; {
			case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
			case c == '*':
				return errors.New("is a pattern: list each host")
			default:
				return fmt.Errorf("has the character %q", c)
			}
		}
		last = label
	}
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return errors.New("ends in a number and is no address")
	}
	return nil
}
