// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childVariable makes the test program a process that opens the authority in a folder.
const childVariable = "WARMWIRE_TEST_CA_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

// child prints the fingerprint of what it opens.
func child(dir string) int {
	a, err := Open(dir, Config{Hosts: []string{"api.example"}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(Fingerprint(a.Certificates()[0]))
	return 0
}

// everyKind is a name, one with an underscore, an A-label, and both kinds of address.
var everyKind = []string{"api.example", "under_score.example", "bücher.example", "127.0.0.1", "::1"}

// testClock is a clock that a test sets.
type testClock struct{ t time.Time }

func (c *testClock) now() time.Time { return c.t }

func newClock() *testClock { return &testClock{time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)} }

func newCA(t testing.TB, cfg Config) *Authority {
	t.Helper()
	if cfg.Hosts == nil {
		cfg.Hosts = slices.Clone(everyKind)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func openCA(t testing.TB, dir string, cfg Config) *Authority {
	t.Helper()
	if cfg.Hosts == nil {
		cfg.Hosts = slices.Clone(everyKind)
	}
	a, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// roles are those of a's authorities, the oldest first.
func roles(t testing.TB, a *Authority) []Role {
	t.Helper()
	states, err := a.States()
	if err != nil {
		t.Fatal(err)
	}
	var list []Role
	for _, s := range states {
		list = append(list, s.Role)
	}
	return list
}

// issuer is the fingerprint of who signed the certificate that a gives for host.
func issuer(t testing.TB, a *Authority, host string) string {
	t.Helper()
	cert, err := a.Certificate(host)
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range a.Certificates() {
		if cert.Leaf.CheckSignatureFrom(each) == nil {
			return Fingerprint(each)
		}
	}
	t.Fatalf("nobody of %d has signed %s", len(a.Certificates()), host)
	return ""
}
