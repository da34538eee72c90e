// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/warmwire/warmwire/tlspool/trust"
)

// A Certificate is one of those presented.
type Certificate struct {
	Subject   string    `json:"subject"`
	Issuer    string    `json:"issuer"`
	Names     []string  `json:"names,omitempty"` // the leaf's alternative names
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	Key       string    `json:"key"` // as in RSA or P-256
	KeyBits   int       `json:"key_bits,omitempty"`
	Signature string    `json:"signature"`
	SHA256    string    `json:"sha256"` // of the whole certificate
	Pin       string    `json:"pin"`    // of its public key, as in sha256/BASE64
	IssuerURL string    `json:"issuer_url,omitempty"`
}

// A Problem makes a client refuse the chain.
type Problem struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// The codes of problems.
const (
	WrongName           = "wrong_name"
	Expired             = "expired"
	NotYetValid         = "not_yet_valid"
	SelfSigned          = "self_signed"
	MissingIntermediate = "missing_intermediate" // the leaf says where its issuer's certificate is
	UnknownIssuer       = "unknown_issuer"       // the leaf does not
	UnknownRoot         = "unknown_root"
	Revoked             = "revoked"
	BadStaple           = "bad_staple"
	MissingStaple       = "missing_staple" // and the certificate promises one
	PinMismatch         = "pin_mismatch"
	BadChain            = "bad_chain" // what has no code of its own
)

// A Chain is what the server presents and what is thought of it.
type Chain struct {
	Certificates []Certificate `json:"certificates"`
	Bytes        int           `json:"bytes"` // of all of them: they cross the network in each full handshake
	Verified     bool          `json:"verified"`
	Root         string        `json:"root,omitempty"` // that it verifies to
	Problems     []Problem     `json:"problems,omitempty"`
	Notes        []string      `json:"notes,omitempty"`
	MustStaple   bool          `json:"must_staple"`
	SCTs         int           `json:"scts"` // in the handshake
	SCTsInCert   int           `json:"scts_in_certificate"`

	alone bool // it verifies without intermediates of our own
}

func (c *Chain) add(code, format string, args ...any) {
	c.Problems = append(c.Problems, Problem{code, fmt.Sprintf(format, args...)})
}

// judge describes and verifies what was presented. It returns the issuer of the
// leaf if that is known.
func judge(presented []*x509.Certificate, cfg Config, now time.Time) (c *Chain, issuer *x509.Certificate) {
	c = &Chain{}
	for i, cert := range presented {
		c.Certificates = append(c.Certificates, describe(cert, i == 0))
		c.Bytes += len(cert.Raw)
	}
	leaf, path := presented[0], pathOf(presented)
	if len(path) > 1 {
		issuer = path[1]
	}
	if err := leaf.VerifyHostname(strings.TrimSuffix(cfg.Host, ".")); err != nil {
		names := namesOf(leaf)
		if len(names) == 0 {
			names = []string{"no name at all (the subject's common name does not count)"}
		}
		c.add(WrongName, "the certificate is not for %s: it has %s", cfg.Host, list(names, 10))
	}
	chains, err := verify(presented, cfg.Roots, now)
	c.alone = err == nil
	if err != nil && len(cfg.Intermediates) > 0 {
		if chains, err = verify(slices.Concat(presented, cfg.Intermediates), cfg.Roots, now); err == nil {
			c.Notes = append(c.Notes, "verifies only with our own intermediate certificates: the server does not send all of its")
		}
	}
	if err != nil {
		at := c.dates(path, now)
		if !at.Equal(now) {
			chains, err = verify(slices.Concat(presented, cfg.Intermediates), cfg.Roots, at)
		}
		c.explain(path, cfg, err)
	} else {
		c.pinned(chains, cfg)
	}
	if len(chains) > 0 && len(chains[0]) > 1 {
		chain := chains[0]
		issuer = chain[1]
		c.Root = chain[len(chain)-1].Subject.String()
	}
	c.Verified = len(c.Problems) == 0
	c.remark(presented, path)
	return c, issuer
}

// pinned looks for one of the pins in a verified chain.
func (c *Chain) pinned(chains [][]*x509.Certificate, cfg Config) {
	for _, cert := range slices.Concat(chains...) {
		if slices.ContainsFunc(cfg.Pins, func(pin string) bool { return barePin(pin) == barePin(trust.PinOf(cert)) }) {
			return
		}
	}
	const text = "none of the public keys that are pinned is in the chain"
	switch {
	case len(cfg.Pins) == 0:
	case cfg.PinsReportOnly:
		c.Notes = append(c.Notes, text+", which is only reported")
	default:
		c.add(PinMismatch, text)
	}
}

// barePin is the Base64 of a pin without padding, also of one as curl writes it, with two
// slashes. The Base64 may begin with a slash itself, so the length tells the two apart.
func barePin(pin string) string {
	const length = 43 // of 32 bytes
	text := strings.TrimRight(strings.TrimPrefix(pin, "sha256/"), "=")
	if len(text) == length+1 {
		text = strings.TrimPrefix(text, "/")
	}
	return text
}

func verify(presented []*x509.Certificate, roots *x509.CertPool, at time.Time) ([][]*x509.Certificate, error) {
	between := x509.NewCertPool()
	for _, cert := range presented[1:] {
		between.AddCert(cert)
	}
	return presented[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at})
}

// dates adds what is out of its time, and returns a time at which the rest can
// be looked at.
func (c *Chain) dates(path []*x509.Certificate, now time.Time) time.Time {
	at := now
	for i, cert := range path {
		who := "the certificate"
		if i > 0 {
			who = "the intermediate certificate " + cert.Subject.String()
		}
		switch {
		case now.After(cert.NotAfter):
			c.add(Expired, "%s expired on %s, %s ago", who, stamp(cert.NotAfter), days(now.Sub(cert.NotAfter)))
			if at.After(cert.NotAfter) {
				at = cert.NotAfter
			}
		case now.Before(cert.NotBefore):
			c.add(NotYetValid, "%s becomes valid on %s, in %s: is a clock wrong?", who, stamp(cert.NotBefore), days(cert.NotBefore.Sub(now)))
			if at.Before(cert.NotBefore) {
				at = cert.NotBefore
			}
		}
	}
	return at
}

// explain adds why the path leads to no root.
func (c *Chain) explain(path []*x509.Certificate, cfg Config, err error) {
	var unknown x509.UnknownAuthorityError
	leaf, top := path[0], path[len(path)-1]
	switch {
	case err == nil:
	case !errors.As(err, &unknown):
		if !c.has(Expired) && !c.has(NotYetValid) {
			c.add(BadChain, "%s", strings.TrimPrefix(err.Error(), "x509: "))
		}
	case len(path) == 1 && selfIssued(leaf):
		c.add(SelfSigned, "the certificate has signed itself, and is not among %s", cfg.RootsAsked)
	case len(path) == 1 && len(leaf.IssuingCertificateURL) > 0:
		c.add(MissingIntermediate, "the server does not send the intermediate certificate %s (it is at %s), and it is not among %s",
			leaf.Issuer, leaf.IssuingCertificateURL[0], cfg.RootsAsked)
	case len(path) == 1:
		c.add(UnknownIssuer, "%s has signed the certificate: the server does not send its certificate, and it is not among %s",
			leaf.Issuer, cfg.RootsAsked)
	case selfIssued(top):
		c.add(UnknownRoot, "the root %s is not among %s", top.Subject, cfg.RootsAsked)
	default:
		where := ""
		if len(top.IssuingCertificateURL) > 0 {
			where = " (it is at " + top.IssuingCertificateURL[0] + ")"
		}
		c.add(UnknownRoot, "the chain ends with %s, signed by %s%s, which is not among %s", top.Subject, top.Issuer, where, cfg.RootsAsked)
	}
}

func (c *Chain) has(code string) bool {
	return slices.ContainsFunc(c.Problems, func(p Problem) bool { return p.Code == code })
}

// remark notes what clients put up with.
func (c *Chain) remark(presented, path []*x509.Certificate) {
	for i, cert := range presented {
		switch {
		case !slices.ContainsFunc(path, cert.Equal):
			c.Notes = append(c.Notes, fmt.Sprintf("certificate %d (%s) leads nowhere: it need not be sent", i+1, cert.Subject))
		case i > 0 && selfIssued(cert):
			c.Notes = append(c.Notes, fmt.Sprintf("the root %s need not be sent: %d bytes in each full handshake", cert.Subject, len(cert.Raw)))
		case !path[min(i, len(path)-1)].Equal(cert):
			c.Notes = append(c.Notes, fmt.Sprintf("certificate %d is out of order (RFC 8446 section 4.4.2 allows it, TLS 1.2 does not)", i+1))
		}
	}
}

// pathOf follows the issuers from the leaf through what was presented.
func pathOf(presented []*x509.Certificate) []*x509.Certificate {
	path := presented[:1:1]
	for last := path[0]; !selfIssued(last); last = path[len(path)-1] {
		i := slices.IndexFunc(presented, func(c *x509.Certificate) bool {
			return bytes.Equal(c.RawSubject, last.RawIssuer) && !slices.ContainsFunc(path, c.Equal) && last.CheckSignatureFrom(c) == nil
		})
		if i < 0 {
			break
		}
		path = append(path, presented[i])
	}
	return path
}

func selfIssued(c *x509.Certificate) bool { return bytes.Equal(c.RawSubject, c.RawIssuer) }

func describe(c *x509.Certificate, leaf bool) Certificate {
	sum := sha256.Sum256(c.Raw)
	out := Certificate{
		Subject: c.Subject.String(), Issuer: c.Issuer.String(), NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(),
		Signature: c.SignatureAlgorithm.String(), SHA256: hex.EncodeToString(sum[:]),
		Pin: trust.PinOf(c),
	}
	if len(c.IssuingCertificateURL) > 0 {
		out.IssuerURL = c.IssuingCertificateURL[0]
	}
	if leaf {
		out.Names = namesOf(c)
	}
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		out.Key, out.KeyBits = "RSA", key.N.BitLen()
	case *ecdsa.PublicKey:
		out.Key, out.KeyBits = key.Curve.Params().Name, key.Curve.Params().BitSize
	case ed25519.PublicKey:
		out.Key, out.KeyBits = "Ed25519", 256
	default:
		out.Key = c.PublicKeyAlgorithm.String()
	}
	return out
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, net.IP(ip).String())
	}
	return names
}

// list joins the first few.
func list(all []string, most int) string {
	if more := len(all) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), more)
	}
	return strings.Join(all, ", ")
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// days writes a long time in days and a short one in hours.
func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Truncate(time.Minute).String()
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
