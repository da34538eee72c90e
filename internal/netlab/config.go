// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
)

// A Config is what a lab starts with. The zero value is a path without delay,
// loss, or NAT.
type Config struct {
	// Seed makes runs repeatable: with the same seed, the same packets at the
	// same times meet the same fate.
	Seed     uint64
	Up, Down Link
	NAT      NAT
}

// Validate reports a setting that cannot be.
func (c Config) Validate() error {
	return errors.Join(validateLinks(c.Up, c.Down), c.validateNAT())
}

func (c Config) validateNAT() error {
	if err := c.NAT.Validate(); err != nil {
		return fmt.Errorf("netlab: %w", err)
	}
	return nil
}

func validateLinks(up, down Link) error {
	for d, l := range []Link{up, down} {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("netlab: %v: %w", Direction(d), err)
		}
	}
	return nil
}

// places is how many addresses the client and the NAT have in turn.
const places = 200

// clientAddrs are the n-th addresses of the client: of the ranges for
// benchmarks (RFC 2544) and documentation (RFC 3849), which no real network has.
func clientAddrs(n int) (v4, v6 netip.Addr) {
	n = n%places + 1
	return netip.AddrFrom4([4]byte{198, 18, byte(n), 2}), docAddr(1, n, 2)
}

// FirstNetwork is the client's IPv4 network before it has moved.
func FirstNetwork() netip.Prefix {
	v4, _ := clientAddrs(0)
	return netip.PrefixFrom(v4, 24).Masked()
}

func natAddrs(n int) (v4, v6 netip.Addr) {
	n = n%places + 1
	return netip.AddrFrom4([4]byte{198, 19, byte(n), 1}), docAddr(2, n, 1)
}

func docAddr(site, network, host int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 5: byte(site), 7: byte(network), 15: byte(host)})
}
