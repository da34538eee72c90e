// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ocsp"

	"github.com/warmwire/warmwire/tlspool/trust"
)

// A pin is what it says, in one of two forms, or an error.
func FuzzPin(f *testing.F) {
	for _, s := range []string{"", "sha256/", "sha256/" + strings.Repeat("A", 43) + "=", "sha256//" + strings.Repeat("/", 43) + "=",
		"sha256/" + strings.Repeat("/", 42) + "8=", "sha512/x", "sha256/" + strings.Repeat("A", 44), "sha256/" + strings.Repeat("A", 42) + "B="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := trust.ParsePin(s)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 1000 {
				t.Errorf("error %q", err)
			}
			return
		}
		if got != s && strings.Replace(got, "/", "//", 1) != s {
			t.Errorf("%q became %q", s, got)
		}
		if sum, err := base64.StdEncoding.DecodeString(got[len("sha256/"):]); err != nil || len(sum) != 32 {
			t.Errorf("%q is no hash: %v", got, err)
		}
	})
}

// Whatever a server staples, a certificate that demands one passes only with what its
// issuer signed, and one that does not is refused for a revocation only.
func FuzzStaple(f *testing.F) {
	p := newPKI(f)
	noSystem(f)
	must := issue(f, p.ca, "server", forNames(host), mustStaple)
	good, gone := respond(f, p.leaf), respond(f, p.leaf, revoked(ocsp.KeyCompromise))
	mustGood := respond(f, must)
	for _, raw := range [][]byte{good, gone, mustGood, respond(f, p.leaf, stale), ocsp.TryLaterErrorResponse, nil, []byte("x"), bytes.Repeat([]byte{0x30, 0x80}, 50)} {
		f.Add(raw)
	}
	v, err := trust.New(trust.Config{CA: pemOf(p.root), Only: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		verdict, err := v.Examine(host, shown(raw, p.leaf, p.ca))
		switch reasonOf(t, err) {
		case "":
			if verdict.Staple == trust.StapleGood && !signed(raw, p.leaf) {
				t.Errorf("a staple that nobody signed is good: %x", raw)
			}
		case trust.Revoked:
			if !signed(raw, p.leaf) {
				t.Errorf("a staple that nobody signed revokes: %x", raw)
			}
		default:
			t.Errorf("got %v", err)
		}
		_, err = v.Examine(host, shown(raw, must, p.ca))
		r := reasonOf(t, err)
		if r == "" && !signed(raw, must) {
			t.Errorf("must-staple passed with %x", raw)
		}
		if !slices.Contains([]trust.Reason{"", trust.Revoked, trust.StaleStaple, trust.MissingStaple, trust.InvalidStaple}, r) {
			t.Errorf("got %v", err)
		}
	})
}

// signed says whether the issuer's key signed what is in a response.
func signed(raw []byte, h *holder) bool {
	resp, err := ocsp.ParseResponseForCert(raw, h.cert, nil)
	return err == nil && resp.CheckSignatureFrom(h.issuer.cert) == nil
}
