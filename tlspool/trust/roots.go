// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Roots returns a func for a user of its own who needs a pool: the system's roots as
// they are at the time of each call, and those of ca, or those of ca only. The pool
// must not be changed. s nil = an own Store.
func Roots(s *Store, ca []byte, only bool) (func() *x509.CertPool, error) {
	if s == nil && !only {
		s = NewStore(nil)
	}
	a, err := newAnchors(s, ca, only)
	if err != nil {
		return nil, err
	}
	return func() *x509.CertPool { return a.inForce().pool }, nil
}

// A rootSet is what a Store holds at a time. It never changes.
type rootSet struct {
	pool     *x509.CertPool
	count    int
	source   string // for people
	embedded bool
	sum      [sha256.Size]byte // of all of them, whatever their order and place

	ders [][]byte         // for words; none of the platform's
	who  func() *whoIsWho // of ders, once
}

func newRootSet() *rootSet {
	s := &rootSet{pool: x509.NewCertPool()}
	s.who = sync.OnceValue(func() *whoIsWho { return whoIs(s.ders) })
	return s
}

// whoIsWho tells the names of roots. It is made when an error needs it first.
type whoIsWho struct {
	subjects      map[string]bool // raw
	organisations map[string]bool
}

func whoIs(ders [][]byte) *whoIsWho {
	w := &whoIsWho{make(map[string]bool), make(map[string]bool)}
	for _, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		w.subjects[string(cert.RawSubject)] = true
		for _, org := range cert.Subject.Organization {
			w.organisations[org] = true
		}
	}
	return w
}

// embeddedRoots returns those that come with the program (Mozilla's list). They are
// parsed when first needed, which on most machines is never.
var embeddedRoots = sync.OnceValue(func() *rootSet {
	s := newRootSet()
	s.source, s.embedded = "the embedded roots (this system has none)", true
	var sums [][sha256.Size]byte
	for root := range bundle.Roots() {
		cert, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			continue // as the package's own tests make sure, there is none
		}
		if root.Constraint == nil {
			s.pool.AddCert(cert)
		} else {
			s.pool.AddCertWithConstraint(cert, root.Constraint)
		}
		s.ders = append(s.ders, cert.Raw)
		sums = append(sums, sha256.Sum256(cert.Raw))
	}
	s.count, s.sum = len(sums), sumOf(sums)
	return s
})

// sumOf hashes a set of hashes.
func sumOf(sums [][sha256.Size]byte) [sha256.Size]byte {
	slices.SortFunc(sums, func(a, b [sha256.Size]byte) int { return bytes.Compare(a[:], b[:]) })
	h := sha256.New()
	for _, sum := range slices.Compact(sums) {
		h.Write(sum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func sortedSums(certs []*x509.Certificate) [][sha256.Size]byte {
	sums := make([][sha256.Size]byte, 0, len(certs))
	for _, cert := range certs {
		sums = append(sums, sha256.Sum256(cert.Raw))
	}
	slices.SortFunc(sums, func(a, b [sha256.Size]byte) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(sums)
}

// anchors are the roots of one setting: a Store's and the operator's.
type anchors struct {
	store *Store // nil: the operator's only
	ca    []*x509.Certificate
	last  atomic.Pointer[trusted]
}

// trusted is what anchors are while the Store's roots stay the same.
type trusted struct {
	*rootSet
	of *rootSet // the Store's
}

func newAnchors(s *Store, ca []byte, only bool) (*anchors, error) {
	a := &anchors{store: s}
	if only {
		a.store = nil
	}
	if len(ca) > 0 {
		var err error
		if a.ca, err = certificates(ca, "tls.ca_file"); err != nil {
			return nil, err
		}
	} else if only {
		return nil, errors.New("tls.ca_file: it alone is to be trusted, and it is not set")
	}
	return a, nil
}

// inForce returns the roots of now. Two at once may make the same thing twice.
func (a *anchors) inForce() *trusted {
	var of *rootSet
	if a.store != nil {
		of = a.store.roots()
	}
	if t := a.last.Load(); t != nil && t.of == of {
		return t
	}
	t := &trusted{of: of}
	if len(a.ca) == 0 {
		t.rootSet = of
	} else {
		t.rootSet = a.merge(of)
	}
	a.last.Store(t)
	return t
}

func (a *anchors) merge(of *rootSet) *rootSet {
	s := newRootSet()
	s.source = "the certificates of tls.ca_file (they alone are trusted)"
	sums := sortedSums(a.ca)
	if of != nil {
		s.pool, s.count, s.embedded = of.pool.Clone(), of.count, of.embedded
		s.source = of.source + " and those of tls.ca_file"
		s.ders = slices.Clone(of.ders)
		sums = append(sums, of.sum)
	}
	for _, cert := range a.ca {
		s.pool.AddCert(cert)
		s.ders = append(s.ders, cert.Raw)
	}
	s.count += len(a.ca)
	s.sum = sumOf(sums)
	return s
}

// certificates reads all of a PEM file that an operator wrote: unlike the system's,
// each block must be right. what names the setting.
func certificates(text []byte, what string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	var others []string
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if begun(rest) {
				return nil, fmt.Errorf("%s: the PEM block after certificate %d is not complete", what, len(certs))
			}
			break
		}
		if block.Type != "CERTIFICATE" {
			others = append(others, block.Type)
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", what, len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	switch {
	case len(certs) > 0:
		return certs, nil
	case len(others) > 0:
		return nil, fmt.Errorf("%s: holds %s, but no CERTIFICATE", what, clip(strings.Join(others, ", "), 100))
	case len(text) > 0 && text[0] == 0x30: // an ASN.1 SEQUENCE
		return nil, fmt.Errorf("%s: holds no PEM certificate; it looks like DER: openssl x509 -inform der -in FILE", what)
	}
	return nil, fmt.Errorf("%s: holds no PEM certificate", what)
}

// begun says that a PEM block begins in what no block could be read from.
func begun(rest []byte) bool { return bytes.Contains(rest, []byte("-----BEGIN ")) }
