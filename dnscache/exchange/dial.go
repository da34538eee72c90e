// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// stagger is how long one address is tried before the next one is tried too:
// the recommended connection attempt delay of RFC 8305 §5.
const stagger = 250 * time.Millisecond

// maxAddrs bounds what Bootstrap may return.
const maxAddrs = 16

// A dialer connects to the addresses of one resolver.
type dialer struct {
	spec Spec
	cfg  Config

	mu     sync.Mutex // guards the field below
	booted []netip.Addr
}

// addrs returns where to connect. Host is never looked up by any other way than
// the one given for it.
func (d *dialer) addrs(ctx context.Context) ([]netip.AddrPort, error) {
	addrs := d.spec.Addrs
	if len(addrs) == 0 {
		d.mu.Lock()
		addrs = d.booted
		d.mu.Unlock()
	}
	if len(addrs) == 0 {
		found, err := d.cfg.Bootstrap(ctx, d.spec.Host)
		if err == nil && len(found) == 0 {
			err = errors.New("no address")
		}
		if err != nil {
			return nil, fmt.Errorf("bootstrap %s: %w", d.spec.Host, err)
		}
		addrs = slices.Clone(found[:min(len(found), maxAddrs)])
		d.mu.Lock()
		d.booted = addrs
		d.mu.Unlock()
	}
	out := make([]netip.AddrPort, len(addrs))
	for i, addr := range addrs {
		out[i] = netip.AddrPortFrom(addr, d.spec.Port)
	}
	return out, nil
}

// forget makes the next dial ask Bootstrap again.
func (d *dialer) forget() {
	d.mu.Lock()
	d.booted = nil
	d.mu.Unlock()
}

type dialed struct {
	conn net.Conn
	err  error
}

// tcp connects to the first address that answers, starting one each stagger or
// as soon as the one before it has failed. It returns once all its attempts
// have ended.
func (d *dialer) tcp(ctx context.Context) (net.Conn, error) {
	addrs, err := d.addrs(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan dialed, len(addrs))
	var attempts sync.WaitGroup
	defer func() { // the losers
		cancel()
		attempts.Wait()
		close(results)
		for r := range results {
			if r.conn != nil {
				_ = r.conn.Close()
			}
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var first error
	for started, ended := 0, 0; ended < len(addrs); {
		select {
		case <-timer.C:
			if started < len(addrs) {
				addr := addrs[started].String()
				started++
				attempts.Go(func() {
					conn, err := d.cfg.Dial(ctx, "tcp", addr)
					results <- dialed{conn, err}
				})
				timer.Reset(stagger)
			}
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			if ended++; first == nil {
				first = r.err
			}
			timer.Reset(0)
		}
	}
	d.forget()
	return nil, first
}

// stream returns a connection that is ready for messages: TCP, or TLS with the
// resolver's certificate verified and one of protocols agreed on. wrap, if not
// nil, is given the TCP connection first.
func (d *dialer) stream(ctx context.Context, wrap func(net.Conn) net.Conn, protocols ...string) (net.Conn, error) {
	conn, err := d.tcp(ctx)
	if err != nil || !d.spec.Encrypted() {
		return conn, err
	}
	if wrap != nil {
		conn = wrap(conn)
	}
	secured := tls.Client(conn, d.tlsConfig(protocols))
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, &handshakeError{err}
	}
	return secured, nil
}

func (d *dialer) tlsConfig(protocols []string) *tls.Config {
	cfg := &tls.Config{
		ServerName:         d.spec.Host,
		MinVersion:         tls.VersionTLS12,
		ClientSessionCache: d.cfg.Sessions,
		NextProtos:         protocols,
	}
	if d.cfg.Roots != nil {
		cfg.RootCAs = d.cfg.Roots()
	}
	if len(d.spec.Pins) > 0 {
		// The pin takes the place of name and issuer (RFC 8310 §8.2); unlike
		// VerifyPeerCertificate, this is called for resumed sessions too.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return checkPin(d.spec.Pins, state.PeerCertificates) }
	}
	return cfg
}

func checkPin(pins [][]byte, certs []*x509.Certificate) error {
	if len(certs) == 0 {
		return errors.New("the server showed no certificate to compare with the pin")
	}
	// Only the leaf's key was proven to be the server's.
	sum := sha256.Sum256(certs[0].RawSubjectPublicKeyInfo)
	for _, pin := range pins {
		if string(pin) == string(sum[:]) {
			return nil
		}
	}
	return errors.New("the server's public key matches no pin")
}
