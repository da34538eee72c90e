// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/ocsp"
)

// A Staple is the OCSP response that came with the certificate.
type Staple struct {
	Status string `json:"status"` // absent, good, revoked, unknown, stale, future or invalid
	Text   string `json:"text,omitempty"`

	Produced   time.Time `json:"produced,omitzero"`
	ThisUpdate time.Time `json:"this_update,omitzero"`
	NextUpdate time.Time `json:"next_update,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
}

// readStaple checks raw for leaf. Without an issuer its signature cannot be
// checked, and that is said.
func readStaple(raw []byte, leaf, issuer *x509.Certificate, now time.Time) Staple {
	if len(raw) == 0 {
		return Staple{Status: "absent"}
	}
	r, err := ocsp.ParseResponseForCert(raw, leaf, issuer)
	if refused, ok := errors.AsType[ocsp.ResponseError](err); ok {
		return Staple{Status: "invalid", Text: "the responder answered: " + refused.Status.String()}
	}
	if err != nil {
		return Staple{Status: "invalid", Text: strings.TrimPrefix(err.Error(), "ocsp: ")}
	}
	s := Staple{Status: "unknown", Produced: r.ProducedAt, ThisUpdate: r.ThisUpdate, NextUpdate: r.NextUpdate}
	if issuer == nil {
		s.Text = "its signature is not checked: the issuer is not known"
	}
	signer := r.Certificate
	switch {
	case signer != nil && issuer != nil && !signer.Equal(issuer) && !slices.Contains(signer.ExtKeyUsage, x509.ExtKeyUsageOCSPSigning):
		s.Status, s.Text = "invalid", "signed by a certificate that may not sign OCSP responses" // RFC 6960 section 4.2.2.2
	case r.Status == ocsp.Revoked:
		s.Status, s.RevokedAt = "revoked", r.RevokedAt
		s.Text = "revoked on " + stamp(r.RevokedAt)
	case now.Before(r.ThisUpdate):
		s.Status, s.Text = "future", "becomes valid on "+stamp(r.ThisUpdate)
	case !r.NextUpdate.IsZero() && now.After(r.NextUpdate):
		s.Status, s.Text = "stale", fmt.Sprintf("ended on %s, %s ago", stamp(r.NextUpdate), days(now.Sub(r.NextUpdate)))
	case r.Status == ocsp.Good:
		s.Status = "good"
	}
	return s
}

// weigh adds to the chain's problems what a strict client makes of the staple: a
// revoked one ends it, and a certificate that promises one needs a good one.
func (c *Chain) weigh(s Staple) {
	switch {
	case s.Status == "revoked":
		c.add(Revoked, "the certificate is revoked, says the staple: %s", s.Text)
	case c.MustStaple && s.Status == "absent":
		c.add(MissingStaple, "the certificate says must-staple, and the server sends no OCSP response")
	case c.MustStaple && s.Status != "good":
		c.add(BadStaple, "the certificate says must-staple, and the OCSP response is %s: %s", s.Status, s.Text)
	default:
		return
	}
	c.Verified = false
}

// oidSCTs is the extension with the promises of certificate transparency logs.
func oidSCTs() asn1.ObjectIdentifier {
	return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}
}

// promises counts the log promises inside a certificate (RFC 6962 section 3.3).
func promises(c *x509.Certificate) (n int) {
	var list []byte
	if _, err := asn1.Unmarshal(extension(c, oidSCTs()), &list); err != nil {
		return 0
	}
	all := cryptobyte.String(list)
	var scts, one cryptobyte.String
	if !all.ReadUint16LengthPrefixed(&scts) {
		return 0
	}
	for scts.ReadUint16LengthPrefixed(&one) {
		n++
	}
	return n
}

func extension(c *x509.Certificate, id asn1.ObjectIdentifier) []byte {
	for _, e := range c.Extensions {
		if e.Id.Equal(id) {
			return e.Value
		}
	}
	return nil
}
