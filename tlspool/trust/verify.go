// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"time"
)

// A Verdict is what a certificate was believed for.
type Verdict struct {
	Chain  []*x509.Certificate // from the server's to the root that vouches for it
	Roots  string              // which ones were asked
	Staple Staple
	Until  time.Time // end of the verdict
	// Reports are the faults that did not count.
	Reports []Reason
}

// Verify judges the server of a connection as the one for serverName, by an earlier
// verdict if there is one for the same certificates, name, staple and settings. until
// is the end of the verdict. The error is an [*Error].
func (v *Verifier) Verify(serverName string, cs tls.ConnectionState) (until time.Time, err error) {
	state, now := v.now(), v.cfg.Now()
	key := verdictKey(state.id, serverName, cs)
	if kept, ok := v.memory.get(key, now); ok {
		v.report(kept.reports, cs.DidResume)
		return kept.until, nil
	}
	verdict, failure := v.judge(state, serverName, cs, now)
	if failure != nil {
		v.cfg.OnFailure(failure.Reason, false)
		return time.Time{}, failure
	}
	v.report(verdict.Reports, cs.DidResume)
	if v.cfg.Remember > 0 {
		v.memory.put(key, kept{since: now, until: verdict.Until, reports: verdict.Reports})
	}
	return verdict.Until, nil
}

// Examine is Verify without memory and without OnFailure: it says all that is known.
func (v *Verifier) Examine(serverName string, cs tls.ConnectionState) (Verdict, error) {
	verdict, failure := v.judge(v.now(), serverName, cs, v.cfg.Now())
	if failure != nil {
		return Verdict{Roots: v.now().trusted.source, Staple: verdict.Staple}, failure
	}
	return verdict, nil
}

// report tells of the faults that did not count. A resumed connection has the staple
// of its session, whose age says nothing about the server.
func (v *Verifier) report(reasons []Reason, resumed bool) {
	for _, r := range reasons {
		if !resumed || !r.ofStaple() {
			v.cfg.OnFailure(r, true)
		}
	}
}

func (v *Verifier) judge(state *inForce, serverName string, cs tls.ConnectionState, now time.Time) (Verdict, *Error) {
	c := check{v: v, trusted: state.trusted, name: serverName, certs: cs.PeerCertificates, now: now}
	verdict, failure := c.run(cs.OCSPResponse)
	if failure != nil {
		failure.Resumed = cs.DidResume
	}
	return verdict, failure
}

// A check is one judgement.
type check struct {
	v       *Verifier
	trusted *trusted
	name    string
	certs   []*x509.Certificate // as presented, the server's own first
	now     time.Time
}

func (c *check) run(staple []byte) (Verdict, *Error) {
	verdict := Verdict{Roots: c.trusted.source}
	switch {
	case c.name == "":
		return verdict, c.fail(Other, nil, "there is no name to verify the server by", errors.New("trust: no server name"))
	case len(c.certs) == 0:
		return verdict, c.fail(Other, nil, "the server showed none", errors.New("trust: no certificate"))
	}
	if why := weakness(c.certs[0], selfIssued(c.certs[0])); why != "" {
		return verdict, c.weak(c.certs[0], why, x509.ErrUnsupportedAlgorithm)
	}
	chains, err := c.certs[0].Verify(c.options(c.now))
	if err != nil {
		return verdict, c.explain(err)
	}
	chains, failure := c.pinned(chains, &verdict)
	if failure != nil {
		return verdict, failure
	}
	verdict.Chain, verdict.Until = longest(chains)
	if failure := c.staple(staple, &verdict); failure != nil {
		return verdict, failure
	}
	if end := c.now.Add(max(c.v.cfg.Remember, 0)); end.Before(verdict.Until) {
		verdict.Until = end
	}
	return verdict, nil
}

func (c *check) options(at time.Time) x509.VerifyOptions {
	between := x509.NewCertPool()
	for _, cert := range c.certs[1:] {
		between.AddCert(cert)
	}
	for _, cert := range c.v.intermediates {
		between.AddCert(cert)
	}
	return x509.VerifyOptions{DNSName: c.name, Roots: c.trusted.pool, Intermediates: between, CurrentTime: at}
}

// pinned returns the chains with a pinned key.
func (c *check) pinned(chains [][]*x509.Certificate, verdict *Verdict) ([][]*x509.Certificate, *Error) {
	if len(c.v.pins) == 0 {
		return chains, nil
	}
	var good [][]*x509.Certificate
	for _, chain := range chains {
		if hasPin(chain, c.v.pins) {
			good = append(good, chain)
		}
	}
	switch {
	case len(good) > 0:
		return good, nil
	case c.v.cfg.PinsReportOnly:
		verdict.Reports = append(verdict.Reports, PinMismatch)
		return chains, nil
	}
	return nil, c.pinMismatch(chains[0])
}

// longest returns the chain that stays valid for the longest time, and its end.
func longest(chains [][]*x509.Certificate) (best []*x509.Certificate, end time.Time) {
	for _, chain := range chains {
		first := chain[0].NotAfter
		for _, cert := range chain[1:] {
			if cert.NotAfter.Before(first) {
				first = cert.NotAfter
			}
		}
		if best == nil || first.After(end) {
			best, end = chain, first
		}
	}
	return best, end
}

// minRSABits is what crypto/rsa uses at least: a weaker key would fail later, with an
// error about a signature.
const minRSABits = 1024

// weakness says what is too weak about a certificate to prove anything. How a root is
// signed does not matter: it is trusted for being there.
func weakness(cert *x509.Certificate, root bool) string {
	if key, ok := cert.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() < minRSABits {
		return "has an RSA key of too few bits (less than 1024)"
	}
	switch cert.SignatureAlgorithm {
	case x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.DSAWithSHA1, x509.MD5WithRSA, x509.MD2WithRSA:
		if !root {
			return "is signed with " + cert.SignatureAlgorithm.String() + ", which can be forged"
		}
	}
	return ""
}

// canonical is the form in which names are compared.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
