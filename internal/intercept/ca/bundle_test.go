// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"bytes"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func count(text []byte) (n int) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		n++
	}
	return n
}

func TestABundleHoldsTheSystemsRootsAndOurs(t *testing.T) {
	system, company, ours := newCA(t, Config{}).Certificates()[0], newCA(t, Config{}).Certificates()[0], newCA(t, Config{}).Certificates()[0]
	roots := append([]byte("# The first\n"), PEM(system, company, system)...)
	roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "TRUSTED CERTIFICATE", Bytes: []byte("x")})...)
	roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")})...)

	got, err := Bundle(roots, ours)
	if want := PEM(system, company, ours); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %d certificates, want the system's once each and ours after them", err, count(got))
	}
	again, err := Bundle(got, ours) // the system trusts ours already
	if err != nil || !bytes.Equal(again, got) {
		t.Errorf("%v, %d certificates, want the same", err, count(again))
	}

	for name, bad := range map[string][]byte{"none": nil, "no PEM": []byte("x"), "a key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"})} {
		if _, err := Bundle(bad, ours); err == nil || !strings.Contains(err.Error(), "ca-certificates") {
			t.Errorf("%s: %v, want what to install", name, err)
		}
	}
	if _, err := Bundle(roots[:len(PEM(system))+50], ours); err == nil || !strings.Contains(err.Error(), "end within") {
		t.Errorf("cut: %v", err)
	}
}

func TestABundleIsReplacedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bundle.pem")
	if err := WritePublic(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := before.Mode().Perm(); got != 0o644 && os.PathSeparator == '/' {
		t.Errorf("mode %o, want 644", got)
	}
	if err := WritePublic(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same was written again: %v", err)
	}
	if err := WritePublic(path, []byte("two")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if after, statErr := os.Stat(path); err != nil || statErr != nil || string(text) != "two" || os.SameFile(before, after) {
		t.Errorf("%q, %v: want a new file", text, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%d files, %v", len(entries), err)
	}
	if err := WritePublic(filepath.Join(t.TempDir(), "none", "b.pem"), nil); err == nil {
		t.Error("a missing folder is no error")
	}
}
