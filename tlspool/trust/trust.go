// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Config says whom to trust. The zero value trusts the system's roots.
type Config struct {
	CA            []byte   // PEM: further roots
	Only          bool     // trust CA alone, not the system's
	Intermediates []byte   // PEM: what servers forget to send; never a reason to trust
	Pins          []string // "sha256/BASE64" of a public key; nil = none needed
	// PinsReportOnly lets a connection pass whose chain has no pinned key; OnFailure
	// is told.
	PinsReportOnly bool

	Remember time.Duration // how long a verdict may be used again; 0 = 10 min, negative = not at all
	Store    *Store        // of the system's roots, may be shared; nil = an own one

	// OnFailure is told of each connection that was refused, or that would have been
	// if reportOnly: a pin that only reports, a staple that counts as absent. It must
	// not block.
	OnFailure func(reason Reason, reportOnly bool)
	Now       func() time.Time // nil = time.Now
}

const (
	defaultRemember = 10 * time.Minute
	maxVerdicts     = 1024 // a verdict is some 200 bytes; origins times chains of one process
)

// A Verifier judges servers by one set of settings.
type Verifier struct {
	cfg           Config
	roots         *anchors
	intermediates []*x509.Certificate
	pins          map[pin]bool
	settings      []byte // what of the settings is part of the ID
	memory        *memory
	state         atomic.Pointer[inForce]
}

// inForce is what a Verifier uses until the system's roots change.
type inForce struct {
	trusted *trusted
	id      string
}

// New returns a Verifier, or an error that names the setting that cannot work. It
// reads the system's roots.
func New(cfg Config) (*Verifier, error) {
	cfg.Remember = cmp.Or(cfg.Remember, defaultRemember)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OnFailure == nil {
		cfg.OnFailure = func(Reason, bool) {}
	}
	v := &Verifier{cfg: cfg, memory: newMemory(maxVerdicts)}
	var err error
	if cfg.Store == nil && !cfg.Only {
		cfg.Store = NewStore(cfg.Now)
	}
	if v.roots, err = newAnchors(cfg.Store, cfg.CA, cfg.Only); err != nil {
		return nil, err
	}
	if len(cfg.Intermediates) > 0 {
		if v.intermediates, err = certificates(cfg.Intermediates, "tls.intermediates_file"); err != nil {
			return nil, err
		}
	}
	if v.pins, err = parsePins(cfg.Pins); err != nil {
		return nil, err
	}
	v.settings = v.digest()
	return v, nil
}

// digest is a hash of all settings that a verdict depends on, but the system's roots.
func (v *Verifier) digest() []byte {
	h := sha256.New()
	fmt.Fprintf(h, "trust 1 only %t report %t pins %d\n", v.cfg.Only, v.cfg.PinsReportOnly, len(v.pins))
	pins := make([]pin, 0, len(v.pins))
	for p := range v.pins {
		pins = append(pins, p)
	}
	slices.SortFunc(pins, func(a, b pin) int { return slices.Compare(a[:], b[:]) })
	for _, p := range pins {
		h.Write(p[:])
	}
	for _, sum := range sortedSums(v.intermediates) {
		h.Write(sum[:])
	}
	return h.Sum(nil)
}

// ID names the settings and the roots that are in force now: what was learnt under
// one ID, a session as well, is not used under another. It is the same in the next
// process if both are.
func (v *Verifier) ID() string { return v.now().id }

// now returns what is in force, after a look at the system's roots if one is due.
func (v *Verifier) now() *inForce {
	t := v.roots.inForce()
	if s := v.state.Load(); s != nil && s.trusted == t {
		return s
	}
	sum := sha256.Sum256(append(slices.Clone(v.settings), t.sum[:]...))
	s := &inForce{trusted: t, id: hex.EncodeToString(sum[:])}
	v.state.Store(s)
	return s
}

// Apply makes cfg verify servers by v: as the one for serverName ("" = the name in
// cfg), on full and on resumed handshakes, over TCP and QUIC. All that must be set
// together is set here. A VerifyConnection that cfg had is called afterwards.
//
// verified, if not nil, is told of each connection that was accepted, and until when
// this is sure without another look at the certificate.
//
// If the server rejects ECH, crypto/tls itself verifies the public name, against the
// roots that are in force when Apply is called: call it for each connection. (Its
// hook for that, EncryptedClientHelloRejectionVerify, is cleared: in Go 1.27 it is
// called before the certificates are in the ConnectionState, so it can only accept
// anybody or nobody. InsecureSkipVerify does not count there.)
func (v *Verifier) Apply(cfg *tls.Config, serverName string, verified func(until time.Time)) {
	serverName = cmp.Or(serverName, cfg.ServerName)
	cfg.ServerName = cmp.Or(cfg.ServerName, serverName)
	after := cfg.VerifyConnection
	// crypto/tls does not verify a resumed connection again. We do, so its own check
	// is off and ours, which it calls on all of them, is on.
	cfg.InsecureSkipVerify = true
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		until, err := v.Verify(serverName, cs)
		if err != nil {
			return err
		}
		if after != nil {
			if err := after(cs); err != nil {
				return err
			}
		}
		if verified != nil {
			verified(until)
		}
		return nil
	}
	cfg.EncryptedClientHelloRejectionVerify = nil
	cfg.RootCAs = v.now().trusted.pool
	if cfg.Time == nil {
		cfg.Time = v.cfg.Now
	}
}

// Explain makes an [*Error] of what crypto/tls says when it verified a certificate
// itself, with the roots of v: for serverName, or for the public name after ECH was
// rejected. Other errors are returned as they are.
func (v *Verifier) Explain(serverName string, err error) error {
	var failed *tls.CertificateVerificationError
	if !errors.As(err, &failed) || len(failed.UnverifiedCertificates) == 0 {
		return err
	}
	c := check{v: v, trusted: v.now().trusted, name: serverName, certs: failed.UnverifiedCertificates, now: v.cfg.Now()}
	return c.explain(failed.Err)
}

// State says which roots are in force, for status pages.
func (v *Verifier) State() State {
	t := v.now().trusted
	s := State{Source: t.source, Certificates: t.count}
	if v.roots.store != nil {
		s.Err = v.roots.store.trouble()
	}
	return s
}
