// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"testing"

	"github.com/warmwire/warmwire/tlspool/trust"
)

// BenchmarkVerify compares a verdict that is remembered with x509's each time, which
// is what crypto/tls does on each full handshake.
func BenchmarkVerify(b *testing.B) {
	ecdsa := newPKI(b)
	var two pki
	two.root = rsaHolder(b, nil, "RSA root", isCA)
	two.ca = rsaHolder(b, two.root, "RSA CA", isCA)
	two.leaf = rsaHolder(b, two.ca, "server", forNames(host))
	for _, chain := range []struct {
		name string
		pki
	}{{"P-256", ecdsa}, {"RSA-2048", two}} {
		systemOf(b, ecdsa.root, two.root)
		cs := shown(respond(b, chain.leaf), chain.leaf, chain.ca)
		v := newVerifier(b, trust.Config{})
		b.Run("remembered/"+chain.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(host, cs); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("x509/"+chain.name, func(b *testing.B) {
			b.ReportAllocs()
			roots := trust.NewStore(nil).Pool()
			for b.Loop() {
				if _, err := chain.leaf.cert.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: poolOf(chain.ca)}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("with-staple/"+chain.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Examine(host, cs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func rsaHolder(b *testing.B, issuer *holder, name string, edit ...func(*x509.Certificate)) *holder {
	b.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	return issueFor(b, issuer, key, key.Public(), name, edit...)
}

// BenchmarkStore is what the files of this system cost: a look every five seconds,
// all of them read at the start and after a change.
func BenchmarkStore(b *testing.B) {
	b.Setenv("SSL_CERT_FILE", "")
	b.Setenv("SSL_CERT_DIR", "")
	s := trust.NewStore(nil)
	b.Run("look", func(b *testing.B) { // 11 shallow ones, a deep one
		for b.Loop() {
			s.Look()
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = trust.NewStore(nil)
		}
	})
	b.Run("between-looks", func(b *testing.B) {
		for b.Loop() {
			_ = s.Pool()
		}
	})
}
