// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	oidNameConstraints  = asn1.ObjectIdentifier{2, 5, 29, 30}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
)

// critical lists the extensions that are.
func critical(cert *x509.Certificate) (ids []string) {
	for _, ext := range cert.Extensions {
		if ext.Critical {
			ids = append(ids, ext.Id.String())
		}
	}
	slices.Sort(ids)
	return ids
}

func TestAnAuthorityHasTheStrictProfile(t *testing.T) {
	clock := newClock()
	a := newCA(t, Config{Machine: "edge-1", Now: clock.now})
	cert := a.Certificates()[0]
	if want := []string{oidKeyUsage.String(), oidBasicConstraints.String(), oidNameConstraints.String()}; !slices.Equal(critical(cert), want) {
		t.Errorf("critical %v, want %v", critical(cert), want)
	}
	if !cert.IsCA || !cert.MaxPathLenZero || cert.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign {
		t.Errorf("CA %v, path length zero %v, key usage %b", cert.IsCA, cert.MaxPathLenZero, cert.KeyUsage)
	}
	if len(cert.SubjectKeyId) != 20 {
		t.Errorf("subject key identifier % x", cert.SubjectKeyId)
	}
	if cert.SerialNumber.Sign() <= 0 || cert.SerialNumber.BitLen() < 64 || cert.SerialNumber.BitLen() > 159 {
		t.Errorf("serial number %d", cert.SerialNumber)
	}
	if got := cert.Subject.CommonName; !strings.HasPrefix(got, "Warmwire edge-1 2026-06-01 ") || cert.Subject.Organization[0] != "Warmwire" {
		t.Errorf("subject %s", cert.Subject)
	}
	if got := clock.t.Sub(cert.NotBefore); got != 48*time.Hour {
		t.Errorf("valid %v before it was made, want 48 h", got)
	}
	if got := cert.NotAfter.Sub(cert.NotBefore); got != 729*24*time.Hour {
		t.Errorf("valid for %v, want 729 days", got)
	}
	if other := newCA(t, Config{Machine: "edge-1", Now: clock.now}).Certificates()[0]; bytes.Equal(other.RawSubject, cert.RawSubject) || other.SerialNumber.Cmp(cert.SerialNumber) == 0 {
		t.Errorf("two of a day have the subject %s or the serial number %d", cert.Subject, cert.SerialNumber)
	}
	long := newCA(t, Config{Machine: strings.Repeat("hörnchen\x00", 30), Now: clock.now}).Certificates()[0].Subject.CommonName
	if len(long) > 64 || strings.ContainsAny(long, "ö\x00") {
		t.Errorf("common name %q", long)
	}
}

func TestACertificateHasTheStrictProfile(t *testing.T) {
	clock := newClock()
	a := newCA(t, Config{Now: clock.now})
	authority := a.Certificates()[0]
	for host, wantDNS := range map[string]string{
		"API.example.": "api.example", "bücher.example": "xn--bcher-kva.example", "under_score.example": "under_score.example",
		"127.0.0.1": "", "[::1]": "",
	} {
		made, err := a.Certificate(host)
		if err != nil {
			t.Fatal(err)
		}
		cert := made.Leaf
		if len(cert.DNSNames)+len(cert.IPAddresses) != 1 || wantDNS != "" && cert.DNSNames[0] != wantDNS {
			t.Errorf("%s: names %v %v", host, cert.DNSNames, cert.IPAddresses)
		}
		if got := cert.Subject.String(); got != "" {
			t.Errorf("%s: subject %q", host, got)
		}
		if want := []string{oidKeyUsage.String(), oidSubjectAltName.String(), oidBasicConstraints.String()}; !slices.Equal(critical(cert), want) {
			t.Errorf("%s: critical %v, want %v", host, critical(cert), want)
		}
		if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) {
			t.Errorf("%s: CA %v, key usage %b, %v", host, cert.IsCA, cert.KeyUsage, cert.ExtKeyUsage)
		}
		if !bytes.Equal(cert.AuthorityKeyId, authority.SubjectKeyId) || len(cert.SubjectKeyId) != 20 || bytes.Equal(cert.SubjectKeyId, cert.AuthorityKeyId) {
			t.Errorf("%s: key identifiers % x of % x", host, cert.SubjectKeyId, cert.AuthorityKeyId)
		}
		if back, life := clock.t.Sub(cert.NotBefore), cert.NotAfter.Sub(cert.NotBefore); back != 24*time.Hour || life != 7*24*time.Hour {
			t.Errorf("%s: valid %v before it was made, for %v in all", host, back, life)
		}
	}
}

// A certificate ends with its authority, and does not begin before it.
func TestACertificateStaysWithinItsAuthority(t *testing.T) {
	clock := newClock()
	made := clock.t
	a := newCA(t, Config{Now: clock.now, Validity: 10 * 24 * time.Hour})
	authority := a.Certificates()[0]
	for _, tt := range []struct {
		after       time.Duration
		begin, ends time.Time
	}{
		{0, made.Add(-24 * time.Hour), made.Add(6 * 24 * time.Hour)},
		{-30 * time.Hour, authority.NotBefore, made.Add((6*24 - 30) * time.Hour)}, // the clock was put back
		{7 * 24 * time.Hour, made.Add(6 * 24 * time.Hour), authority.NotAfter},
	} {
		clock.t = made.Add(tt.after)
		cert, err := a.Certificate("api.example")
		if err != nil {
			t.Fatal(err)
		}
		if !cert.Leaf.NotBefore.Equal(tt.begin) || !cert.Leaf.NotAfter.Equal(tt.ends) {
			t.Errorf("after %v: valid from %v to %v, want %v to %v", tt.after, cert.Leaf.NotBefore, cert.Leaf.NotAfter, tt.begin, tt.ends)
		}
	}
	for _, after := range []time.Duration{-48*time.Hour - time.Second, 8 * 24 * time.Hour} {
		clock.t = made.Add(after)
		if _, err := a.Certificate("api.example"); !errors.Is(err, ErrExpired) {
			t.Errorf("after %v: %v, want ErrExpired", after, err)
		}
	}
}

// A thief of the key cannot be a host that is not permitted: what clients are to
// refuse is made here on purpose.
func TestConstraintsBindTheKey(t *testing.T) {
	for _, tt := range []struct {
		name, hosts, forged string
		ok                  bool
	}{
		{"the host", "api.example", "api.example", true},
		{"below it", "api.example", "eu.api.example", true},
		{"another", "api.example", "evil.example", false},
		{"above it", "api.example", "example", false},
		{"one that ends like it", "api.example", "evilapi.example", false},
		{"an address", "api.example", "127.0.0.1", false},
		{"an IPv6 address", "api.example", "::1", false},
		{"the address", "127.0.0.1", "127.0.0.1", true},
		{"the next address", "127.0.0.1", "127.0.0.2", false},
		{"the other family", "127.0.0.1", "::1", false},
		{"a name with addresses only", "127.0.0.1", "api.example", false},
		{"the IPv6 address", "::1", "::1", true},
		{"the other family of that", "::1", "127.0.0.1", false},
		{"with an underscore", "under_score.example", "under_score.example", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newCA(t, Config{Hosts: []string{tt.hosts}})
			_, err := forge(t, a, tt.forged).Verify(x509.VerifyOptions{Roots: poolOf(a), DNSName: tt.forged})
			if (err == nil) != tt.ok {
				t.Errorf("a certificate for %s of an authority for %s: %v", tt.forged, tt.hosts, err)
			}
			if got := a.current.Load().list[0].permits(tt.forged); got != tt.ok {
				t.Errorf("permits(%s) = %v", tt.forged, got)
			}
		})
	}
}

func poolOf(a *Authority) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range a.Certificates() {
		pool.AddCert(cert)
	}
	return pool
}

// forge signs whatever the host is.
func forge(t testing.TB, a *Authority, host string) *x509.Certificate {
	t.Helper()
	cert, err := a.current.Load().list[0].leaf(host, a.key, a.keyID, a.cfg.LeafValidity, a.now())
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestHostsReadsTheCertificate(t *testing.T) {
	for _, hosts := range [][]string{{"127.0.0.1", "::1", "api.example"}, {"127.0.0.1"}, {"a.example", "b.example"}} {
		a := newCA(t, Config{Hosts: hosts})
		states, err := a.States()
		if err != nil {
			t.Fatal(err)
		}
		got := slices.Clone(states[0].Hosts)
		if slices.Sort(got); !slices.Equal(got, hosts) {
			t.Errorf("hosts %v, want %v", got, hosts)
		}
		for _, host := range got {
			if _, err := netip.ParseAddr(host); err != nil && host == noDomain {
				t.Errorf("%s is shown as a host", host)
			}
		}
	}
}
