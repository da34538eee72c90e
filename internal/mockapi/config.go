// SPDX-License-Identifier: Apache-2.0

package mockapi

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
)

// Config says where to listen and what to allow. The zero value listens on two
// free ports of 127.0.0.1.
type Config struct {
	Addr    string // plain address; "" means 127.0.0.1:0, "off" means none
	TLSAddr string // TLS address; same

	Listener    net.Listener // used in place of Addr, for instance an in-memory one
	TLSListener net.Listener // used in place of TLSAddr; TLS is added on top

	Names      []string // further DNS names and addresses the certificate is valid for
	ALPN       []string // what TLS offers; nil means h2 and http/1.1
	MaxVersion uint16   // highest TLS version; 0 means 1.3
	MaxStreams int      // HTTP/2 streams of one connection; 0 means 250
	Capacity   int      // requests that are served at once; others wait, first come first served; 0 means all

	// OnRequest is told what happens to each request, at the moment it
	// happens, by the goroutine that notices it. It must not block. May be nil.
	OnRequest func(Event)
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Addr = cmp.Or(c.Addr, "127.0.0.1:0")
	c.TLSAddr = cmp.Or(c.TLSAddr, "127.0.0.1:0")
	c.MaxVersion = cmp.Or(c.MaxVersion, tls.VersionTLS13)
	c.MaxStreams = cmp.Or(c.MaxStreams, 250)
	if c.ALPN == nil {
		c.ALPN = []string{"h2", "http/1.1"}
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	for _, p := range c.ALPN {
		if p != "h2" && p != "http/1.1" {
			return fmt.Errorf("mockapi: ALPN %q: want h2 or http/1.1", p)
		}
	}
	if c.MaxVersion != 0 && c.MaxVersion != tls.VersionTLS12 && c.MaxVersion != tls.VersionTLS13 {
		return fmt.Errorf("mockapi: highest TLS version %#x: want 1.2 or 1.3", c.MaxVersion)
	}
	if c.Capacity < 0 {
		return fmt.Errorf("mockapi: capacity %d: want 1 or more", c.Capacity)
	}
	if c.MaxStreams < 0 {
		return fmt.Errorf("mockapi: %d streams: want 1 or more", c.MaxStreams)
	}
	return nil
}
