// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/crypto/ocsp"
)

// A Staple says what the OCSP response that came with a certificate is worth.
type Staple string

// What a staple is worth.
const (
	StapleAbsent  Staple = "absent"
	StapleGood    Staple = "good"
	StapleRevoked Staple = "revoked"
	StapleStale   Staple = "stale"
	StapleInvalid Staple = "invalid"
)

const (
	maxStaple = 64 << 10 // 64 KiB; a response with its signer's certificate has 2
	// clockSkew is how far ahead of us a responder's clock may be: guess.
	clockSkew = 5 * time.Minute
	// openEnded is how long a response without an end is current: the longest that
	// the CA/Browser Forum's Baseline Requirements §4.9.10 allow one.
	openEnded = 10 * 24 * time.Hour
)

// staple judges the OCSP response that came with the verified chain.
func (c *check) staple(raw []byte, verdict *Verdict) *Error {
	leaf, issuer := verdict.Chain[0], verdict.Chain[min(1, len(verdict.Chain)-1)]
	must := MustStaple(leaf)
	if len(raw) == 0 {
		verdict.Staple = StapleAbsent
		if must {
			return c.fail(MissingStaple, leaf, "the certificate demands a stapled OCSP response (must-staple) and the server sent none: "+
				"stapling must be switched on there (nginx: ssl_stapling)", errors.New("ocsp: no staple"))
		}
		return nil
	}
	resp, err := parseStaple(raw, leaf, issuer, c.now)
	switch {
	case err != nil:
		verdict.Staple = StapleInvalid
		return c.unproven(must, StapleInvalid, leaf, fmt.Sprintf("the stapled OCSP response is not usable (%s)", clip(err.Error(), 200)), err, verdict)
	case resp.Status == ocsp.Revoked && (resp.RevocationReason != ocsp.CertificateHold || c.now.Before(endOf(resp))):
		// Only a hold can be lifted: any other revocation stays true when stale.
		verdict.Staple = StapleRevoked
		return c.fail(Revoked, leaf, fmt.Sprintf("%s was revoked by its issuer at %s (%s), says the OCSP response that the server stapled: it must get a new one",
			describe(leaf), stamp(resp.RevokedAt), revocationReason(resp.RevocationReason)), errors.New("ocsp: certificate is revoked"))
	case !c.now.Before(endOf(resp)):
		verdict.Staple = StapleStale
		return c.unproven(must, StapleStale, leaf, fmt.Sprintf("the stapled OCSP response ended at %s, %s ago (now is %s): the server must fetch a new one, or this machine's clock is wrong",
			stamp(endOf(resp)), span(c.now.Sub(endOf(resp))), stamp(c.now)), errors.New("ocsp: response is stale"), verdict)
	case resp.Status != ocsp.Good:
		verdict.Staple = StapleInvalid
		return c.unproven(must, StapleInvalid, leaf, "the stapled OCSP response says that the responder does not know the certificate",
			errors.New("ocsp: status unknown"), verdict)
	}
	verdict.Staple = StapleGood
	if end := endOf(resp); end.Before(verdict.Until) {
		verdict.Until = end
	}
	return nil
}

// unproven is a staple that counts as absent.
func (c *check) unproven(must bool, worth Staple, leaf *x509.Certificate, detail string, err error, verdict *Verdict) *Error {
	reason := InvalidStaple
	if worth == StapleStale {
		reason = StaleStaple
	}
	if must {
		return c.fail(reason, leaf, detail+"; the certificate demands a valid one (must-staple)", err)
	}
	verdict.Reports = append(verdict.Reports, reason)
	return nil
}

// parseStaple returns the response about leaf if its issuer, or somebody whom the
// issuer made a responder, signed it (RFC 6960 §3.2 and §4.2.2.2), whatever it says.
//
// The serial number stands for the certificate: a CA signs only for numbers of its
// own.
func parseStaple(raw []byte, leaf, issuer *x509.Certificate, now time.Time) (*ocsp.Response, error) {
	if len(raw) > maxStaple {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(raw), maxStaple)
	}
	// Without the issuer: the package takes any certificate that came along for a
	// delegated responder's, also the issuer's own, which the issuer did not sign.
	resp, err := ocsp.ParseResponseForCert(raw, leaf, nil)
	if err != nil {
		return nil, err
	}
	switch resp.SignatureAlgorithm {
	case x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.DSAWithSHA1, x509.MD5WithRSA, x509.MD2WithRSA:
		return nil, fmt.Errorf("it is signed with %s, which can be forged", resp.SignatureAlgorithm)
	}
	if err := checkSigner(resp, issuer, now); err != nil {
		return nil, err
	}
	if resp.ThisUpdate.After(now.Add(clockSkew)) {
		return nil, fmt.Errorf("it begins at %s, now is %s", stamp(resp.ThisUpdate), stamp(now))
	}
	return resp, nil
}

func checkSigner(resp *ocsp.Response, issuer *x509.Certificate, now time.Time) error {
	signer := resp.Certificate
	switch {
	case signer == nil:
		return resp.CheckSignatureFrom(issuer)
	case bytes.Equal(signer.RawSubjectPublicKeyInfo, issuer.RawSubjectPublicKeyInfo):
		return nil // parsing verified the signature by this key
	}
	if why := weakness(signer, false); why != "" {
		return fmt.Errorf("the responder's certificate %s", why)
	}
	if err := issuer.CheckSignature(signer.SignatureAlgorithm, signer.RawTBSCertificate, signer.Signature); err != nil {
		return fmt.Errorf("its signer %s is not of the certificate's issuer: %w", describe(signer), err)
	}
	if !slices.Contains(signer.ExtKeyUsage, x509.ExtKeyUsageOCSPSigning) {
		return fmt.Errorf("its signer %s is no OCSP responder", describe(signer))
	}
	if now.Before(signer.NotBefore) || now.After(signer.NotAfter) {
		return fmt.Errorf("its signer %s is valid from %s to %s only", describe(signer), stamp(signer.NotBefore), stamp(signer.NotAfter))
	}
	return nil
}

func endOf(resp *ocsp.Response) time.Time {
	if resp.NextUpdate.IsZero() {
		return resp.ThisUpdate.Add(openEnded)
	}
	return resp.NextUpdate
}

// oidTLSFeature and statusRequest: RFC 7633 §4.1 and §6, RFC 6066 §8.
var oidTLSFeature = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}

const statusRequest = 5

// MustStaple says that a certificate asks for the status_request feature, which
// crypto/tls offers in each hello.
func MustStaple(cert *x509.Certificate) bool {
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(oidTLSFeature) {
			continue
		}
		var features []int
		rest, err := asn1.Unmarshal(ext.Value, &features)
		return err == nil && len(rest) == 0 && slices.Contains(features, statusRequest)
	}
	return false
}

// revocationReason is the name of a CRLReason, RFC 5280 §5.3.1.
func revocationReason(code int) string {
	names := map[int]string{
		ocsp.Unspecified: "unspecified", ocsp.KeyCompromise: "keyCompromise", ocsp.CACompromise: "cACompromise",
		ocsp.AffiliationChanged: "affiliationChanged", ocsp.Superseded: "superseded", ocsp.CessationOfOperation: "cessationOfOperation",
		ocsp.CertificateHold: "certificateHold", ocsp.RemoveFromCRL: "removeFromCRL", ocsp.PrivilegeWithdrawn: "privilegeWithdrawn",
		ocsp.AACompromise: "aACompromise",
	}
	if name, ok := names[code]; ok {
		return name
	}
	return fmt.Sprintf("reason %d", code)
}
