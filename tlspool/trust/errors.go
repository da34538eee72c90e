// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/x509"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Reason is why a certificate was refused; fit for a label of a metric.
type Reason string

// All reasons.
const (
	UnknownRoot         Reason = "unknown_root"         // a CA was presented that the roots do not hold
	MissingIntermediate Reason = "missing_intermediate" // the server left out the issuer of its certificate
	SelfSigned          Reason = "self_signed"          // nobody but the server vouches for it
	Expired             Reason = "expired"
	NotYetValid         Reason = "not_yet_valid"
	WrongName           Reason = "wrong_name"
	Revoked             Reason = "revoked"        // says a stapled OCSP response
	StaleStaple         Reason = "staple_stale"   // an OCSP response that has ended
	MissingStaple       Reason = "staple_missing" // though the certificate demands one
	InvalidStaple       Reason = "staple_invalid" // an OCSP response that proves nothing
	PinMismatch         Reason = "pin_mismatch"   // no key of tls.pins
	Weak                Reason = "weak"           // SHA-1, MD5, a short RSA key
	Other               Reason = "other"          // its text says what
)

func (r Reason) ofStaple() bool { return r == StaleStaple || r == InvalidStaple || r == MissingStaple }

// An Error says why a server's certificate was refused.
type Error struct {
	Reason     Reason
	ServerName string
	Roots      string            // which ones were asked
	Cert       *x509.Certificate // the one at fault, or nil
	Detail     string            // what is wrong, and what to do
	// Resumed: the certificate is the one of an earlier connection, the server may
	// have a newer one. The session is of no use any more; a full handshake may be.
	Resumed bool
	Err     error // of crypto/x509, if it found the fault
}

func (e *Error) Error() string {
	s := "certificate of " + clip(e.ServerName, 255) + ": " + e.Detail
	if e.Resumed {
		s += " (on a resumed connection)"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Temporary is false: another try meets the same certificate.
func (e *Error) Temporary() bool { return false }

// Timeout is false. With it an Error is a [net.Error].
func (e *Error) Timeout() bool { return false }

func (c *check) fail(reason Reason, cert *x509.Certificate, detail string, err error) *Error {
	return &Error{Reason: reason, ServerName: c.name, Roots: c.trusted.source, Cert: cert, Detail: detail, Err: err}
}

// Names in certificates are chosen by whoever is at the other end: they are cut and
// quoted before they are shown.
const (
	maxShownName  = 200
	maxShownNames = 5
)

// clip cuts s to n bytes and escapes what does not print.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n] + "..."
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// describe names a certificate by its subject, or else by what it is for.
func describe(cert *x509.Certificate) string {
	name := cert.Subject.CommonName
	if name == "" {
		name = cert.Subject.String()
	}
	if name == "" {
		name = strings.Join(namesOf(cert), ", ")
	}
	return fmt.Sprintf("certificate \"%s\"", clip(name, maxShownName))
}

func issuerName(cert *x509.Certificate) string {
	return "\"" + clip(cert.Issuer.String(), maxShownName) + "\""
}

// namesOf returns the names that a certificate is for, a few of them.
func namesOf(cert *x509.Certificate) []string {
	var names []string
	for _, name := range cert.DNSNames {
		names = append(names, clip(name, maxShownName))
	}
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	if more := len(names) - maxShownNames; more > 0 {
		names = append(names[:maxShownNames], fmt.Sprintf("%d more", more))
	}
	return names
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// span is a length of time for people.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return d.Round(time.Second).String()
}
