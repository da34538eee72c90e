// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"encoding/pem"
	"net/http/httptest"
)

// pemOf is the certificate of a test server, which signs itself.
func pemOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}
