// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

const (
	// maxHandshakes of each kind; beyond it a report would look like an attack.
	maxHandshakes = 50
	// ticketWait is how long tickets are waited for beyond a round trip. Servers
	// send them with their last message or right behind it (guess).
	ticketWait = 300 * time.Millisecond
	// maxTickets bounds what is kept of a server that sends them without end.
	maxTickets = 16
	// maxListen bounds what is read while waiting for tickets: an HTTP/2
	// server's settings are far below.
	maxListen = 64 << 10 // 64 KiB
)

// Config says which server to examine and how.
type Config struct {
	Host string // the name, or address, that the certificate must be for
	Port int    // 0 means 443

	// Dial opens one TCP connection to the server; nil dials Host and Port. How
	// long it takes is reported as the time to connect.
	Dial func(ctx context.Context) (net.Conn, error)

	Roots      *x509.CertPool // nil means the system's
	RootsAsked string         // Roots in words; "" means "the system's roots"

	Intermediates  []*x509.Certificate // of our own, for a server that forgets to send its
	Pins           []string            // public keys as sha256/BASE64, of which the chain needs one; nil asks for none
	PinsReportOnly bool

	ALPN       []string         // what a client of this server offers; nil means h2 and http/1.1
	ClientCert *tls.Certificate // shown to a server that asks; may be nil
	MinVersion uint16           // of all handshakes but the probes of versions; 0 means TLS 1.2
	Handshakes int              // of each kind, timed; 0 means 5
	Timeout    time.Duration    // of one connection with its handshake; 0 means 5 s
}

// WithDefaults returns c with its zero fields set to their defaults.
func (c Config) WithDefaults() Config {
	c.Port = cmp.Or(c.Port, 443)
	c.RootsAsked = cmp.Or(c.RootsAsked, "the system's roots")
	c.MinVersion = cmp.Or(c.MinVersion, tls.VersionTLS12)
	c.Handshakes = cmp.Or(c.Handshakes, 5)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	if c.ALPN == nil {
		c.ALPN = []string{"h2", "http/1.1"}
	}
	if c.Dial == nil {
		address := net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
		c.Dial = func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) }
	}
	return c
}

// Validate reports a setting that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Host == "":
		return errors.New("inspect: no host")
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("inspect: port %d: want 1 to 65535", c.Port)
	case c.Handshakes < 0 || c.Handshakes > maxHandshakes:
		return fmt.Errorf("inspect: %d handshakes: want 1 to %d", c.Handshakes, maxHandshakes)
	case c.Timeout < 0:
		return fmt.Errorf("inspect: negative time-out %v", c.Timeout)
	}
	return nil
}
