// SPDX-License-Identifier: Apache-2.0

package truststore

import (
	"context"
	"fmt"
)

// Roots returns the PEM of what macOS trusts: its own roots and those that were added
// for all users. Linux keeps them in files, which package tlspool/trust reads.
func (m Machine) Roots(ctx context.Context) ([]byte, error) {
	if m.OS != "darwin" {
		return nil, fmt.Errorf("truststore: the roots of %s cannot be listed here: name a file of them in SSL_CERT_FILE", m.OS)
	}
	var all []byte
	for _, keychain := range []string{"/System/Library/Keychains/SystemRootCertificates.keychain", "/Library/Keychains/System.keychain"} {
		out, err := m.run(ctx, "security", "find-certificate", "-a", "-p", keychain)
		if err != nil {
			return nil, fmt.Errorf("truststore: %w", err)
		}
		all = append(all, out...)
	}
	return all, nil
}
