// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"
)

// explain finds out what is behind an error of [x509.Certificate.Verify].
func (c *check) explain(err error) *Error {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var system x509.SystemRootsError
	switch {
	case errors.As(err, &name):
		return c.wrongName(err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return c.outOfDate(invalid.Cert, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return c.fail(Other, invalid.Cert, describe(invalid.Cert)+" is not for servers (extended key usage): the server must get another one", err)
	case errors.As(err, &unknown), errors.As(err, &system):
		return c.untrusted(err)
	}
	return c.fail(Other, c.certs[0], clip(err.Error(), 400), err)
}

func (c *check) wrongName(err error) *Error {
	leaf := c.certs[0]
	names := "no name at all"
	if list := namesOf(leaf); len(list) > 0 {
		names = strings.Join(list, ", ")
	} else if leaf.Subject.CommonName != "" {
		names = "no name in the field that counts (subject alternative names), only in its subject (" + clip(leaf.Subject.CommonName, maxShownName) + ")"
	}
	return c.fail(WrongName, leaf, "it is for "+names+", not for this name: "+
		"check the upstream's url; a network login page or another virtual host may have answered", err)
}

// outOfDate tells of a certificate outside its time.
func (c *check) outOfDate(cert *x509.Certificate, err error) *Error {
	who := describe(cert) + c.roleOf(cert)
	if c.now.Before(cert.NotBefore) {
		return c.fail(NotYetValid, cert, fmt.Sprintf("%s is not valid before %s, in %s by this machine's clock (%s): is the clock right?",
			who, stamp(cert.NotBefore), span(cert.NotBefore.Sub(c.now)), stamp(c.now)), err)
	}
	remedy := "the server must get a new one"
	if !c.presented(cert) {
		remedy = "a newer one is needed among " + c.trusted.source + " or in tls.intermediates_file"
	}
	return c.fail(Expired, cert, fmt.Sprintf("%s expired at %s, %s ago by this machine's clock (%s): %s, or the clock is wrong",
		who, stamp(cert.NotAfter), span(c.now.Sub(cert.NotAfter)), stamp(c.now), remedy), err)
}

func (c *check) roleOf(cert *x509.Certificate) string {
	switch {
	case cert.Equal(c.certs[0]):
		return " (the server's own)"
	case selfIssued(cert):
		return " (a root)"
	}
	return " (an intermediate)"
}

func (c *check) presented(cert *x509.Certificate) bool {
	for _, p := range c.certs {
		if p.Equal(cert) {
			return true
		}
	}
	return false
}

func (c *check) weak(cert *x509.Certificate, why string, err error) *Error {
	return c.fail(Weak, cert, describe(cert)+c.roleOf(cert)+" "+why+": the server must get another one", err)
}

func (c *check) pinMismatch(chain []*x509.Certificate) *Error {
	var has []string
	for _, cert := range chain {
		has = append(has, PinOf(cert)+" ("+describe(cert)+")")
	}
	if len(has) > maxShownNames {
		has = has[:maxShownNames]
	}
	return c.fail(PinMismatch, chain[0], "it is valid, but no key of its chain is in tls.pins: if the server has a new key or CA, "+
		"one of these must be there: "+strings.Join(has, ", "), errors.New("trust: no pinned key"))
}

// untrusted tells why no chain leads to a root.
func (c *check) untrusted(err error) *Error {
	path := c.path()
	for i, cert := range path {
		last := i == len(path)-1
		if why := weakness(cert, last && selfIssued(cert)); why != "" {
			return c.weak(cert, why, err)
		}
		if c.now.Before(cert.NotBefore) || c.now.After(cert.NotAfter) {
			return c.outOfDate(cert, err)
		}
	}
	if root := c.expiredRoot(path); root != nil {
		return c.outOfDate(root, err)
	}
	top := path[len(path)-1]
	switch {
	case len(path) == 1 && selfSigned(top):
		return c.fail(SelfSigned, top, describe(top)+" is self-signed, nobody else vouches for it, and it is not among "+c.trusted.source+
			": if it is the right one put it into tls.ca_file", err)
	case selfIssued(top):
		return c.fail(UnknownRoot, top, "the server presented the root "+describe(top)+", which is not among "+c.trusted.source+remedyCA, err)
	}
	return c.noIssuer(path, err)
}

const remedyCA = ": if it is your own CA, or that of a proxy that opens TLS connections, put it into tls.ca_file"

// noIssuer is a path whose end has an issuer that was not presented and is no root.
// Whether that issuer is a root or an intermediate cannot be seen. It is taken for an
// intermediate if the server sent its own certificate alone, for roots seldom sign
// servers themselves, or if a root of the same organisation is trusted; and for a
// root if the server sent a CA below it, as servers of private CAs do.
func (c *check) noIssuer(path []*x509.Certificate, err error) *Error {
	top := path[len(path)-1]
	if c.trusted.who().subjects[string(top.RawIssuer)] {
		return c.fail(UnknownRoot, top, describe(top)+" is signed by another key than the CA "+issuerName(top)+" that is among "+c.trusted.source+
			" has: the CA was made anew, or somebody uses its name; put its new certificate into tls.ca_file if it is yours", err)
	}
	known := false
	for _, org := range top.Issuer.Organization {
		known = known || c.trusted.who().organisations[org]
	}
	if len(path) > 1 && !known {
		return c.fail(UnknownRoot, top, fmt.Sprintf("it comes from the CA \"%s\", issued by %s, which is not among %s%s",
			clip(top.Subject.String(), maxShownName), issuerName(top), c.trusted.source, remedyCA), err)
	}
	return c.fail(MissingIntermediate, top, c.sent(path)+", but not the certificate of its issuer "+issuerName(top)+", which is not among "+c.trusted.source+
		" either: the server should send it; until it does put it into tls.intermediates_file"+publishedAt(top)+
		"; if the issuer is a CA of your own put it into tls.ca_file", err)
}

// sent says how far the presented certificates lead.
func (c *check) sent(path []*x509.Certificate) string {
	switch {
	case len(path) > 1:
		return fmt.Sprintf("the server sent a chain up to %s", describe(path[len(path)-1]))
	case len(c.certs) > 1:
		return fmt.Sprintf("the server sent its own certificate and %d that do not belong to it", len(c.certs)-1)
	}
	return "the server sent its own certificate alone"
}

// publishedAt says where the issuer's certificate is, if its subject says so
// (authority information access, RFC 5280 §4.2.2.1). It is never fetched.
func publishedAt(cert *x509.Certificate) string {
	if len(cert.IssuingCertificateURL) == 0 {
		return ""
	}
	return " (its CA publishes it at " + clip(cert.IssuingCertificateURL[0], maxShownName) + ")"
}

// path follows the presented certificates, and the operator's, from the server's own
// upwards by names and key identifiers. Signatures are not looked at: the path is for
// words only.
func (c *check) path() []*x509.Certificate {
	rest := append(append([]*x509.Certificate(nil), c.certs[1:]...), c.v.intermediates...)
	path := []*x509.Certificate{c.certs[0]}
	for top := c.certs[0]; !selfIssued(top); {
		next := -1
		for i, cert := range rest {
			if cert != nil && issued(cert, top) {
				next = i
				break
			}
		}
		if next < 0 {
			break
		}
		top, rest[next] = rest[next], nil
		path = append(path, top)
	}
	return path
}

func issued(issuer, cert *x509.Certificate) bool {
	return bytes.Equal(issuer.RawSubject, cert.RawIssuer) && !issuer.Equal(cert) &&
		(len(cert.AuthorityKeyId) == 0 || len(issuer.SubjectKeyId) == 0 || bytes.Equal(cert.AuthorityKeyId, issuer.SubjectKeyId))
}

// expiredRoot returns the certificate of ours that would have made a chain in its
// time: at the moment when the newest certificate of the path began.
func (c *check) expiredRoot(path []*x509.Certificate) *x509.Certificate {
	var at time.Time
	for _, cert := range path {
		if cert.NotBefore.After(at) {
			at = cert.NotBefore
		}
	}
	chains, err := c.certs[0].Verify(c.options(at))
	if err != nil {
		return nil
	}
	for _, cert := range chains[0] {
		if c.now.Before(cert.NotBefore) || c.now.After(cert.NotAfter) {
			return cert
		}
	}
	return nil
}

func selfIssued(cert *x509.Certificate) bool { return bytes.Equal(cert.RawSubject, cert.RawIssuer) }

func selfSigned(cert *x509.Certificate) bool {
	return selfIssued(cert) && cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
}
