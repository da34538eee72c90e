// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

// Bundle returns system, the PEM of the roots that clients trust without us, with
// ours after them, each certificate once. Variables such as SSL_CERT_FILE replace what
// a client trusts: without the system's roots all other hosts would break.
func Bundle(system []byte, ours ...*x509.Certificate) ([]byte, error) {
	var out bytes.Buffer
	seen := make(map[[sha256.Size]byte]bool)
	add := func(der []byte) error {
		sum := sha256.Sum256(der)
		if seen[sum] {
			return nil
		}
		seen[sum] = true
		return pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	for rest := system; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if bytes.Contains(rest, []byte("-----BEGIN ")) {
				return nil, errors.New("ca: the roots of the system end within a certificate")
			}
			break
		}
		if block.Type != "CERTIFICATE" { // OpenSSL's TRUSTED CERTIFICATE is read by OpenSSL alone
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			continue // one that Go cannot read would stop stricter clients
		}
		if err := add(block.Bytes); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	if len(seen) == 0 {
		return nil, errors.New("ca: the system has no roots, and a bundle without them would break all other hosts: " +
			"install them (Debian: apt-get install ca-certificates), or name their file in SSL_CERT_FILE")
	}
	for _, cert := range ours {
		if err := add(cert.Raw); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	return out.Bytes(), nil
}

// WritePublic writes certificates to a file that all may read, as a whole. A file
// that has them already is left alone, so that its time says when they changed.
func WritePublic(path string, text []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := replaceFile(path, text, 0o644); err != nil {
		return fmt.Errorf("ca: write the certificates: %w", err)
	}
	return nil
}
