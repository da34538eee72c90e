// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"time"
)

const (
	organisation = "Warmwire"

	// Clients whose clock is behind must accept what is made now. A clock set to local
	// time is up to 14 hours off.
	rootBackdate = 48 * time.Hour
	leafBackdate = 24 * time.Hour

	maxMachine = 64 - len("Warmwire  2006-01-02 012345") // a common name has 64 characters (RFC 5280 appendix A.1)
)

// noDomain is permitted where no name is, so that no other one is either (RFC 6761 §6.4).
const noDomain = "none.invalid"

// A signer is one CA certificate and its key. It never changes.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	from time.Time // when it begins to sign; zero: when it is told to
}

// newSigner makes an authority that permits hosts, which have the spelling of Name.
func newSigner(hosts []string, machine string, validity time.Duration, now time.Time) (*signer, error) {
	if len(hosts) == 0 || len(hosts) > maxHosts {
		return nil, fmt.Errorf("an authority for %d hosts is not made: list 1 to %d", len(hosts), maxHosts)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key: %w", err)
	}
	id, err := keyID(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	begin := now.Add(-rootBackdate)
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		// The last part tells two of a day apart, for clients that choose the issuer by name.
		Subject: pkix.Name{Organization: []string{organisation},
			CommonName: fmt.Sprintf("%s %s %s %s", organisation, plain(machine), now.UTC().Format(time.DateOnly), hex.EncodeToString(id[:3]))},
		NotBefore: begin, NotAfter: begin.Add(validity),
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true, // critical, as Go writes it
		KeyUsage:     x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, // no e-mail, no code: clients that look take it for all below
		SubjectKeyId: id,
	}
	constrain(template, hosts)
	cert, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &signer{cert: cert, key: key}, nil
}

// constrain permits hosts, and no address of a family of which none is listed: a kind
// of name that is not spoken of would be free (RFC 5280 §4.2.1.10).
func constrain(template *x509.Certificate, hosts []string) {
	template.PermittedDNSDomainsCritical = true // the whole extension is
	var v4, v6 bool
	for _, host := range hosts {
		addr, err := netip.ParseAddr(host)
		if err != nil {
			template.PermittedDNSDomains = append(template.PermittedDNSDomains, host)
			continue
		}
		v4, v6 = v4 || addr.Is4(), v6 || addr.Is6()
		template.PermittedIPRanges = append(template.PermittedIPRanges, network(netip.PrefixFrom(addr, addr.BitLen())))
	}
	if template.PermittedDNSDomains == nil {
		template.PermittedDNSDomains = []string{noDomain}
	}
	if !v4 {
		template.ExcludedIPRanges = append(template.ExcludedIPRanges, network(netip.PrefixFrom(netip.IPv4Unspecified(), 0)))
	}
	if !v6 {
		template.ExcludedIPRanges = append(template.ExcludedIPRanges, network(netip.PrefixFrom(netip.IPv6Unspecified(), 0)))
	}
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hosts lists what the certificate permits.
func (s *signer) hosts() []string {
	var list []string
	for _, name := range s.cert.PermittedDNSDomains {
		if name != noDomain {
			list = append(list, name)
		}
	}
	for _, r := range s.cert.PermittedIPRanges {
		list = append(list, r.IP.String())
	}
	return list
}

// permits reads the certificate, as clients do: a name is permitted with all below it.
func (s *signer) permits(name string) bool {
	if addr, err := netip.ParseAddr(name); err == nil {
		for _, r := range s.cert.PermittedIPRanges {
			if r.Contains(addr.AsSlice()) {
				return true
			}
		}
		return false
	}
	for _, domain := range s.cert.PermittedDNSDomains {
		if above, ok := strings.CutSuffix(name, domain); ok && (above == "" || strings.HasSuffix(above, ".")) {
			return true
		}
	}
	return false
}

// covers says that a certificate made now would be valid.
func (s *signer) covers(now time.Time) bool {
	return !now.Before(s.cert.NotBefore) && now.Before(s.cert.NotAfter)
}

// leaf signs a certificate for a host. The subject is empty, so the name is critical
// (RFC 5280 §4.2.1.6).
func (s *signer) leaf(name string, key *ecdsa.PrivateKey, id []byte, life time.Duration, now time.Time) (*x509.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		NotBefore:    later(now.Add(-leafBackdate), s.cert.NotBefore),
		NotAfter:     earlier(now.Add(life-leafBackdate), s.cert.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		SubjectKeyId: id, AuthorityKeyId: s.cert.SubjectKeyId,
		BasicConstraintsValid: true, // no authority, and says so
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		template.IPAddresses = []net.IP{addr.AsSlice()}
	} else {
		template.DNSNames = []string{name}
	}
	return sign(template, s.cert, &key.PublicKey, s.key)
}

func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// keyID is method 1 of RFC 7093 §2.
func keyID(key *ecdsa.PublicKey) ([]byte, error) {
	point, err := key.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode the public key: %w", err)
	}
	sum := sha256.Sum256(point)
	return sum[:20], nil
}

// newSerial is positive and random, 126 bits of 127 (RFC 5280 §4.1.2.2: at most 20 bytes).
func newSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:])         // never fails
	b[0] = b[0]&0x7f | 0x40 // not negative, always of one length
	return new(big.Int).SetBytes(b[:])
}

// plain makes a machine's name fit into a subject.
func plain(machine string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		}
		return '-'
	}, machine)
	if clean == "" {
		return "localhost"
	}
	return clean[:min(len(clean), maxMachine)]
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
