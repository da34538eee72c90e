// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/tlspool/trust"
)

// believes says whether v takes a server of p.
func believes(t *testing.T, v *trust.Verifier, p pki) bool {
	t.Helper()
	_, err := v.Verify(host, shown(nil, p.leaf, p.ca))
	if r := reasonOf(t, err); r != "" && r != trust.UnknownRoot {
		t.Errorf("got %v", err)
	}
	return err == nil
}

func TestSystemRootsAreReadAgainWhenTheyChange(t *testing.T) {
	at := newClock()
	a, b := newPKI(t), newPKI(t)
	file := systemOf(t, a.root)
	v := newVerifier(t, trust.Config{Now: at.now})
	before := v.ID()
	if !believes(t, v, a) || believes(t, v, b) {
		t.Fatal("the file's roots are not those in force")
	}
	replace(t, file, pemOf(b.root))
	for looks, want := range []bool{false, false, true} { // not yet looked, seen once, seen twice
		if got := believes(t, v, b); got != want {
			t.Errorf("after %d looks the new root counts: %t", looks, got)
		}
		if got := believes(t, v, a); got == want {
			t.Errorf("after %d looks the old root counts: %t", looks, got)
		}
		if changed := v.ID() != before; changed != want {
			t.Errorf("after %d looks the ID changed: %t", looks, changed)
		}
		at.advance(trust.LookEvery)
	}
	// The verdict about a, remembered for ten minutes, was one of the old roots.
	replace(t, file, pemOf(a.root))
	at.advance(trust.LookEvery)
	_ = v.ID()
	at.advance(trust.LookEvery)
	if v.ID() != before || !believes(t, v, a) {
		t.Error("the same roots have another ID")
	}
}

// Whoever connects once an hour has the roots of now, not those of an hour ago.
func TestAChangeOfSomeTimeAgoCountsAtOnce(t *testing.T) {
	at := newClock()
	a, b := newPKI(t), newPKI(t)
	file := systemOf(t, a.root)
	v := newVerifier(t, trust.Config{Now: at.now})
	replace(t, file, pemOf(b.root))
	at.advance(time.Hour)
	if !believes(t, v, b) || believes(t, v, a) {
		t.Error("the roots of an hour ago are in force")
	}
}

func TestABadChangeKeepsTheLastGoodRoots(t *testing.T) {
	a, b := newPKI(t), newPKI(t)
	whole := pemOf(b.root, a.ca)
	for name, bad := range map[string][]byte{
		"empty": nil, "no certificate": []byte("hello\n"), "within the first": whole[:100], "within the second": whole[:len(whole)-60],
	} {
		at := newClock()
		file := systemOf(t, a.root)
		v := newVerifier(t, trust.Config{Now: at.now})
		replace(t, file, bad)
		for range 8 {
			at.advance(trust.LookEvery)
			if !believes(t, v, a) {
				t.Fatalf("%s: the last good roots are gone", name)
			}
		}
		if err := v.State().Err; err == nil || !strings.Contains(err.Error(), "last good") {
			t.Errorf("%s: got %v, want a report", name, err)
		}
		replace(t, file, whole)
		for range 2 {
			at.advance(trust.LookEvery)
			_ = v.ID()
		}
		if !believes(t, v, b) || v.State().Err != nil {
			t.Errorf("%s: the file is whole again and not read: %v", name, v.State().Err)
		}
	}
}

// A file that stays damaged at its end holds what it holds: a root that was taken out
// must not count for ever.
func TestAFileThatStaysCutIsTakenAfterAMinute(t *testing.T) {
	at := newClock()
	a, b := newPKI(t), newPKI(t)
	file := systemOf(t, a.root)
	v := newVerifier(t, trust.Config{Now: at.now})
	whole := pemOf(b.root, a.root)
	replace(t, file, whole[:len(whole)-60])
	for range 11 {
		at.advance(trust.LookEvery)
		if !believes(t, v, a) {
			t.Fatal("taken too early")
		}
	}
	at.advance(trust.LookEvery)
	if believes(t, v, a) || !believes(t, v, b) {
		t.Error("what the file holds is not in force after a minute")
	}
}

func TestAFileThatIsBeingWrittenIsNotReadHalf(t *testing.T) {
	at := newClock()
	a, b := newPKI(t), newPKI(t)
	file := systemOf(t, a.root)
	v := newVerifier(t, trust.Config{Now: at.now})
	// In place, one certificate every four seconds, each time whole.
	text := []byte{}
	for i := range 6 {
		text = append(text, pemOf(issue(t, nil, string(rune('a'+i)), isCA))...)
		write(t, file, text)
		if err := os.Chtimes(file, at.now(), at.now()); err != nil {
			t.Fatal(err)
		}
		at.advance(trust.LookEvery - time.Second)
		if !believes(t, v, a) {
			t.Fatalf("after %d of the certificates the root is gone", i+1)
		}
	}
	write(t, file, append(text, pemOf(a.root, b.root)...))
	for range 2 {
		at.advance(trust.LookEvery)
		if !believes(t, v, a) {
			t.Fatal("the root is gone")
		}
	}
	if !believes(t, v, b) {
		t.Error("the file's last certificate does not count")
	}
}

func TestAFolderOfRoots(t *testing.T) {
	at := newClock()
	a, b := newPKI(t), newPKI(t)
	noSystem(t)
	dir := t.TempDir()
	t.Setenv("SSL_CERT_DIR", dir+string(filepath.ListSeparator)+filepath.Join(dir, "missing"))
	write(t, filepath.Join(dir, "a.pem"), pemOf(a.root))
	if err := os.Symlink("a.pem", filepath.Join(dir, "12345678.0")); err != nil { // as openssl rehash does
		t.Fatal(err)
	}
	v := newVerifier(t, trust.Config{Now: at.now})
	if s := v.State(); s.Certificates != 1 || !strings.Contains(s.Source, "folder "+dir) {
		t.Errorf("got %+v", s)
	}
	write(t, filepath.Join(dir, "b.crt"), pemOf(b.root))
	for range 2 {
		at.advance(trust.LookEvery)
		_ = v.ID()
	}
	if !believes(t, v, a) || !believes(t, v, b) {
		t.Error("a file that was added does not count")
	}
	// Taken out of a file in place: the folder's own time does not change, its files
	// are looked at once a minute.
	write(t, filepath.Join(dir, "b.crt"), pemOf(a.root))
	for range 12 + 1 {
		at.advance(trust.LookEvery)
		_ = v.ID()
	}
	if believes(t, v, b) {
		t.Error("a root that was taken out counts")
	}
}

func TestASystemWithoutRootsHasTheEmbeddedOnes(t *testing.T) {
	at := newClock()
	p := newPKI(t)
	noSystem(t)
	v := newVerifier(t, trust.Config{Now: at.now})
	s := v.State()
	if s.Certificates < 100 || !strings.Contains(s.Source, "embedded") {
		t.Errorf("got %+v", s)
	}
	if s.Err == nil || !strings.Contains(s.Err.Error(), "SSL_CERT_FILE") {
		t.Errorf("got %v, want it said that SSL_CERT_FILE names nothing", s.Err)
	}
	_, err := v.Verify(host, shown(nil, p.leaf, p.ca, p.root))
	if reasonOf(t, err) != trust.UnknownRoot || !strings.Contains(err.Error(), "embedded roots (this system has none)") {
		t.Errorf("got %v", err)
	}
	// With the operator's.
	v = newVerifier(t, trust.Config{Now: at.now, CA: pemOf(p.root)})
	if !believes(t, v, p) || v.State().Certificates != s.Certificates+1 {
		t.Errorf("got %+v", v.State())
	}
	// Roots that are installed later count.
	v = newVerifier(t, trust.Config{Now: at.now})
	write(t, os.Getenv("SSL_CERT_FILE"), pemOf(p.root))
	for range 2 {
		at.advance(trust.LookEvery)
		_ = v.ID()
	}
	if !believes(t, v, p) || v.State().Certificates != 1 {
		t.Errorf("got %+v", v.State())
	}
}

// The embedded list has roots of real CAs, and the store finds those of this system
// where crypto/x509 does.
func TestTheSystemsRootsAreThoseOfGo(t *testing.T) {
	if _, err := os.Stat("/etc/ssl/certs/ca-certificates.crt"); err != nil {
		testenv.SkipOrFail(t, "needs the package ca-certificates: %v", err)
	}
	t.Setenv("SSL_CERT_FILE", "")
	t.Setenv("SSL_CERT_DIR", "")
	s := trust.NewStore(nil)
	want, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	if !s.Pool().Equal(want) {
		t.Errorf("got other roots than crypto/x509: %+v", s.State())
	}
	if src := s.State().Source; !strings.Contains(src, "file /etc/ssl/certs/ca-certificates.crt") {
		t.Errorf("got %q", src)
	}
}

func TestWhatIsNoFileIsNotRead(t *testing.T) {
	noSystem(t)
	t.Setenv("SSL_CERT_FILE", os.DevNull) // a pipe would block, a device may never end
	if s := trust.NewStore(nil).State(); s.Err == nil || !strings.Contains(s.Err.Error(), "not a regular file") {
		t.Errorf("got %+v", s)
	}
}

func TestOneStoreForMany(t *testing.T) {
	at := newClock()
	a, b := newPKI(t), newPKI(t)
	file := systemOf(t, a.root)
	store := trust.NewStore(at.now)
	pool, err := trust.Roots(store, pemOf(b.ca), false)
	if err != nil {
		t.Fatal(err)
	}
	only, err := trust.Roots(store, pemOf(b.root), true)
	if err != nil {
		t.Fatal(err)
	}
	v, w := newVerifier(t, trust.Config{Store: store, Now: at.now}), newVerifier(t, trust.Config{Store: store, Now: at.now, CA: pemOf(b.ca)})
	if !believes(t, w, b) || pool() == store.Pool() {
		t.Error("what a setting adds is not in force")
	}
	if believes(t, v, b) || !store.Pool().Equal(poolOf(a.root)) {
		t.Error("what one setting adds has come into the store")
	}
	first, alone := pool(), only()
	if pool() != first {
		t.Error("the same roots are another pool")
	}
	replace(t, file, pemOf(b.root))
	for range 2 {
		at.advance(trust.LookEvery)
		_ = store.Pool()
	}
	if !believes(t, v, b) || !believes(t, w, b) {
		t.Error("a verifier has not followed")
	}
	if pool() == first || only() != alone {
		t.Error("the pool of others has not followed, or the one that has nothing to follow has")
	}
	if _, err := a.leaf.cert.Verify(x509.VerifyOptions{Roots: first, Intermediates: poolOf(a.ca)}); err != nil {
		t.Errorf("a pool that was handed out has changed: %v", err)
	}
	if _, err := trust.Roots(nil, []byte("x"), false); err == nil {
		t.Error("no certificate and no error")
	}
}

func poolOf(holders ...*holder) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, h := range holders {
		pool.AddCert(h.cert)
	}
	return pool
}

// A clock that is put back must not stop the looks.
func TestAClockPutBackDoesNotStopTheLooks(t *testing.T) {
	at := newClock()
	a, b := newPKI(t), newPKI(t)
	file := systemOf(t, a.root)
	v := newVerifier(t, trust.Config{Now: at.now})
	at.advance(-time.Hour)
	replace(t, file, pemOf(b.root))
	for range 3 {
		_ = v.ID()
		at.advance(trust.LookEvery)
	}
	if !believes(t, v, b) {
		t.Error("the change was not seen")
	}
}

// Whoever makes a bundle of its own gets what the system trusts, or an error.
func TestTheSystemsRootsAsPEM(t *testing.T) {
	a := newPKI(t)
	file := systemOf(t, a.root)
	s := trust.NewStore(nil)
	if got, err := s.PEM(); err != nil || string(got) != string(pemOf(a.root)) {
		t.Errorf("%d bytes, %v; want the root", len(got), err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*trust.Store{"removed later": s, "none from the start": trust.NewStore(nil)} {
		if got, err := s.PEM(); err == nil || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
			t.Errorf("%s: %d bytes, %v; want an error", name, len(got), err)
		}
	}
}
