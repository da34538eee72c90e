// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"
)

// A pin is the SHA-256 of a SubjectPublicKeyInfo (RFC 7469 §2.4).
type pin [sha256.Size]byte

func pinOf(cert *x509.Certificate) pin { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

func (p pin) String() string { return "sha256/" + base64.StdEncoding.EncodeToString(p[:]) }

// PinOf returns the pin of a certificate's key, in the form that Config.Pins takes.
func PinOf(cert *x509.Certificate) string { return pinOf(cert).String() }

func parsePins(list []string) (map[pin]bool, error) {
	pins := make(map[pin]bool, len(list))
	for _, s := range list {
		p, err := parsePin(s)
		if err != nil {
			return nil, err
		}
		pins[p] = true
	}
	return pins, nil
}

// encodedPin is the length of 32 bytes in Base64.
const encodedPin = 44

// parsePin reads "sha256/BASE64", and "sha256//BASE64" as curl has it. The Base64 may
// begin with a slash itself, so the length tells the two apart.
func parsePin(s string) (p pin, err error) {
	text, ok := strings.CutPrefix(s, "sha256/")
	if !ok {
		return p, badPin(s, `does not begin with "sha256/"`)
	}
	if len(text) == encodedPin+1 {
		text = strings.TrimPrefix(text, "/")
	}
	if len(text) != encodedPin {
		return p, badPin(s, fmt.Sprintf("has %d characters after the slash, not %d", len(text), encodedPin))
	}
	sum, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(sum) != len(p) {
		return p, badPin(s, "is not Base64")
	}
	copy(p[:], sum)
	return p, nil
}

func badPin(s, why string) error {
	return fmt.Errorf("tls.pins: %q %s; a pin is sha256/ and the Base64 of the SHA-256 of a public key "+
		"(openssl x509 -in CERT -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64)", clip(s, 100), why)
}

func hasPin(chain []*x509.Certificate, pins map[pin]bool) bool {
	for _, cert := range chain {
		if pins[pinOf(cert)] {
			return true
		}
	}
	return false
}
