// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/warmwire/warmwire/tlspool/trust"
)

func TestAPipeAmongTheRootsDoesNotBlock(t *testing.T) {
	p := newPKI(t)
	noSystem(t)
	dir := t.TempDir()
	t.Setenv("SSL_CERT_DIR", dir)
	write(t, filepath.Join(dir, "root.pem"), pemOf(p.root))
	if err := syscall.Mkfifo(filepath.Join(dir, "a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := trust.NewStore(nil).State(); s.Certificates != 1 {
		t.Errorf("got %+v", s)
	}
}
