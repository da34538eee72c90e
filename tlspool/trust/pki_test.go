// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/warmwire/warmwire/tlspool/trust"
)

// A holder is a certificate with its key and those above it.
type holder struct {
	cert   *x509.Certificate
	key    crypto.Signer
	issuer *holder // nil: itself
}

var serial atomic.Int64

// issue signs a certificate for a new key. edit changes the template.
func issue(t testing.TB, issuer *holder, name string, edit ...func(*x509.Certificate)) *holder {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return issueFor(t, issuer, key, key.Public(), name, edit...)
}

func issueFor(t testing.TB, issuer *holder, key crypto.Signer, public crypto.PublicKey, name string, edit ...func(*x509.Certificate)) *holder {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1000 + serial.Add(1)),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"Test of trust"}},
		NotBefore:    time.Now().Add(-24 * time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	for _, e := range edit {
		e(template)
	}
	h := &holder{key: key, issuer: issuer}
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.cert, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	if h.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return h
}

func isCA(c *x509.Certificate) {
	c.IsCA, c.BasicConstraintsValid = true, true
	c.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
}

func ofOrganisation(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject.Organization = []string{name} }
}

func forNames(names ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.DNSNames, c.ExtKeyUsage = names, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
}

func valid(from, to time.Time) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = from, to }
}

// mustStaple asks for status_request, RFC 7633.
func mustStaple(c *x509.Certificate) {
	c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{
		Id: []int{1, 3, 6, 1, 5, 5, 7, 1, 24}, Value: []byte{0x30, 3, 2, 1, 5},
	})
}

func published(at string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.IssuingCertificateURL = []string{at} }
}

// host is the name that the tests' servers are asked for.
const host = "api.example.com"

// A pki is a root, a CA below it and a server's certificate.
type pki struct{ root, ca, leaf *holder }

func newPKI(t testing.TB, edit ...func(*x509.Certificate)) pki {
	t.Helper()
	var p pki
	p.root = issue(t, nil, "Root One", isCA)
	p.ca = issue(t, p.root, "Issuing One", isCA, ofOrganisation("Issuers"))
	p.leaf = issue(t, p.ca, "server", append([]func(*x509.Certificate){forNames(host)}, edit...)...)
	return p
}

func pemOf(holders ...*holder) []byte {
	var out []byte
	for _, h := range holders {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.cert.Raw})...)
	}
	return out
}

func keyPEM(t testing.TB, h *holder) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(h.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func write(t testing.TB, path string, text []byte) string {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// replace puts a new file in place of an old one, as those who renew them do.
func replace(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.Rename(write(t, path+".new", text), path); err != nil {
		t.Fatal(err)
	}
}

// certificate is h with those of above, for a server of crypto/tls.
func certificate(h *holder, above ...*holder) tls.Certificate {
	c := tls.Certificate{PrivateKey: h.key, Leaf: h.cert, Certificate: [][]byte{h.cert.Raw}}
	for _, a := range above {
		c.Certificate = append(c.Certificate, a.cert.Raw)
	}
	return c
}

// shown is the state of a connection to a server that presented those.
func shown(staple []byte, holders ...*holder) tls.ConnectionState {
	cs := tls.ConnectionState{OCSPResponse: staple}
	for _, h := range holders {
		cs.PeerCertificates = append(cs.PeerCertificates, h.cert)
	}
	return cs
}

// respond makes an OCSP response about h, signed by its issuer.
func respond(t testing.TB, h *holder, edit ...func(*ocsp.Response)) []byte {
	t.Helper()
	return respondBy(t, h, h.issuer, edit...)
}

func respondBy(t testing.TB, h, signer *holder, edit ...func(*ocsp.Response)) []byte {
	t.Helper()
	template := ocsp.Response{Status: ocsp.Good, SerialNumber: h.cert.SerialNumber,
		ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, e := range edit {
		e(&template)
	}
	raw, err := ocsp.CreateResponse(h.issuer.cert, signer.cert, template, signer.key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func revoked(reason int) func(*ocsp.Response) {
	return func(r *ocsp.Response) {
		r.Status, r.RevocationReason, r.RevokedAt = ocsp.Revoked, reason, time.Now().Add(-2*time.Hour)
	}
}

func stale(r *ocsp.Response) {
	r.ThisUpdate, r.NextUpdate = time.Now().Add(-5*time.Hour), time.Now().Add(-4*time.Hour)
}

// A clock is set by its test.
type clock struct{ atomic.Pointer[time.Time] }

func newClock() *clock {
	c := &clock{}
	c.set(time.Now())
	return c
}

func (c *clock) set(t time.Time)         { c.Store(&t) }
func (c *clock) now() time.Time          { return *c.Load() }
func (c *clock) advance(d time.Duration) { c.set(c.now().Add(d)) }

// noSystem gives the process a system without roots.
func noSystem(t testing.TB) {
	t.Helper()
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	t.Setenv("SSL_CERT_FILE", nowhere)
	t.Setenv("SSL_CERT_DIR", nowhere)
}

// systemOf gives the process a system with the roots of a file.
func systemOf(t testing.TB, roots ...*holder) (file string) {
	t.Helper()
	noSystem(t)
	file = write(t, filepath.Join(t.TempDir(), "roots.pem"), pemOf(roots...))
	t.Setenv("SSL_CERT_FILE", file)
	return file
}

func newVerifier(t testing.TB, cfg trust.Config) *trust.Verifier {
	t.Helper()
	v, err := trust.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// reasonOf returns the reason of an error of Verify, "" for none.
func reasonOf(t testing.TB, err error) trust.Reason {
	t.Helper()
	if err == nil {
		return ""
	}
	e, ok := err.(*trust.Error)
	if !ok {
		t.Fatalf("got %T %v, want *trust.Error", err, err)
	}
	return e.Reason
}

// dial makes a handshake with cfg to addr.
func dial(t testing.TB, addr string, cfg *tls.Config) (*tls.Conn, error) {
	t.Helper()
	raw, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	if err := raw.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, cfg)
	return conn, conn.HandshakeContext(t.Context())
}
