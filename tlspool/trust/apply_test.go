// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/tls"
	"errors"
	"testing"

	"github.com/warmwire/warmwire/tlspool/trust"
)

func TestWhatACallerChecksItselfIsCheckedToo(t *testing.T) {
	p := newPKI(t)
	systemOf(t, p.root)
	addr := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{certificate(p.leaf, p.ca)}})
	own := errors.New("not this one")
	cfg := &tls.Config{ServerName: host, VerifyConnection: func(tls.ConnectionState) error { return own }}
	newVerifier(t, trust.Config{}).Apply(cfg, "", nil)
	if _, err := dial(t, addr, cfg); !errors.Is(err, own) {
		t.Errorf("got %v, want %v", err, own)
	}
}

func TestNothingIsAcceptedWithoutAName(t *testing.T) {
	p := newPKI(t)
	systemOf(t, p.root)
	addr := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{certificate(p.leaf, p.ca)}})
	var cfg tls.Config
	newVerifier(t, trust.Config{}).Apply(&cfg, "", nil)
	_, err := dial(t, addr, &cfg)
	if e := asError(t, err); e == nil || e.Reason != trust.Other {
		t.Errorf("got %v, want an error", err)
	}
	// The name to verify may be another than the one that is sent.
	cfg = tls.Config{ServerName: "front.example"}
	newVerifier(t, trust.Config{}).Apply(&cfg, host, nil)
	if _, err := dial(t, addr, &cfg); err != nil {
		t.Error(err)
	}
}
