// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"github.com/warmwire/warmwire/tlspool/trust"
)

// A promise is a setting, what a server shows, and what becomes of it.
type promise struct {
	name   string
	cfg    trust.Config
	server string // "" = host
	shows  tls.ConnectionState
	want   trust.Reason
	says   []string // parts of the error
	report []trust.Reason
}

func (p promise) check(t *testing.T) {
	t.Helper()
	var refused, reported []trust.Reason
	p.cfg.OnFailure = func(r trust.Reason, reportOnly bool) {
		if reportOnly {
			reported = append(reported, r)
		} else {
			refused = append(refused, r)
		}
	}
	v := newVerifier(t, p.cfg)
	server := p.server
	if server == "" {
		server = host
	}
	_, err := v.Verify(server, p.shows)
	t.Log(err)
	if got := reasonOf(t, err); got != p.want {
		t.Fatalf("got %q (%v), want %q", got, err, p.want)
	}
	for _, part := range p.says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
	if !slices.Equal(reported, p.report) {
		t.Errorf("reported %v, want %v", reported, p.report)
	}
	if (p.want != "") != slices.Equal(refused, []trust.Reason{p.want}) {
		t.Errorf("refused for %v, want %q", refused, p.want)
	}
	if again := reasonOf(t, second(v.Verify(server, p.shows))); again != p.want {
		t.Errorf("the second time got %q, want %q", again, p.want)
	}
}

func second[A, B any](_ A, b B) B { return b }

func checkAll(t *testing.T, all []promise) {
	t.Helper()
	for _, p := range all {
		t.Run(p.name, p.check)
	}
}

func TestAChainIsBelievedOrTheErrorNamesItsFault(t *testing.T) {
	p := newPKI(t, published("http://ca.example/issuing.crt"))
	file := systemOf(t, p.root)
	alone := issue(t, nil, "alone.example", forNames(host))
	other := newPKI(t)
	stranger := issue(t, issue(t, nil, "Stranger", isCA, ofOrganisation("Strangers")), "Stranger's", isCA, ofOrganisation("Strangers"))
	strange := issue(t, stranger, "server", forNames(host))
	deep := issue(t, issue(t, issue(t, p.root, "Middle", isCA), "Low", isCA), "server", forNames(host))
	checkAll(t, []promise{
		{name: "whole chain", shows: shown(nil, p.leaf, p.ca)},
		{name: "with its root", shows: shown(nil, p.leaf, p.ca, p.root)},
		{name: "in any order", shows: shown(nil, p.leaf, p.root, p.ca)},
		{name: "trailing dot and capitals", server: "API.Example.com.", shows: shown(nil, p.leaf, p.ca)},
		{name: "leaf only", shows: shown(nil, p.leaf), want: trust.MissingIntermediate,
			says: []string{"certificate alone", "CN=Issuing One", file, "tls.intermediates_file", "http://ca.example/issuing.crt"}},
		{name: "leaf only, the operator has the rest", cfg: trust.Config{Intermediates: pemOf(p.ca)}, shows: shown(nil, p.leaf)},
		{name: "leaf and one that does not belong to it", shows: shown(nil, p.leaf, other.ca), want: trust.MissingIntermediate,
			says: []string{"1 that do not belong"}},
		{name: "one of two intermediates", shows: shown(nil, deep, deep.issuer), want: trust.MissingIntermediate,
			says: []string{`a chain up to certificate "Low"`, "CN=Middle"}},
		{name: "self-signed", shows: shown(nil, alone), want: trust.SelfSigned, says: []string{"alone.example", "tls.ca_file", file}},
		{name: "self-signed and trusted", cfg: trust.Config{CA: pemOf(alone)}, shows: shown(nil, alone)},
		{name: "unknown root presented", shows: shown(nil, strange, stranger, stranger.issuer), want: trust.UnknownRoot,
			says: []string{`presented the root certificate "Stranger"`, file, "tls.ca_file"}},
		{name: "unknown root not presented", shows: shown(nil, strange, stranger), want: trust.UnknownRoot,
			says: []string{"CN=Stranger's", "CN=Stranger,", file}},
		{name: "unknown root added", cfg: trust.Config{CA: pemOf(stranger.issuer)}, shows: shown(nil, strange, stranger)},
		{name: "added roots leave the system's", cfg: trust.Config{CA: pemOf(stranger.issuer)}, shows: shown(nil, p.leaf, p.ca)},
		{name: "only another CA", cfg: trust.Config{CA: pemOf(stranger.issuer), Only: true}, shows: shown(nil, p.leaf, p.ca), want: trust.UnknownRoot,
			says: []string{"the certificates of tls.ca_file (they alone are trusted)"}},
		{name: "only its CA", cfg: trust.Config{CA: pemOf(p.root), Only: true}, shows: shown(nil, p.leaf, p.ca)},
		{name: "a CA made anew", shows: shown(nil, issue(t, issue(t, nil, "Root One", isCA), "server", forNames(host))), want: trust.UnknownRoot,
			says: []string{"signed by another key", "made anew"}},
		{name: "intermediates are no reason to trust", cfg: trust.Config{Intermediates: pemOf(stranger, stranger.issuer)}, shows: shown(nil, strange), want: trust.UnknownRoot},
		{name: "another name", shows: shown(nil, issue(t, p.ca, "server", forNames("a.example", "b.example")), p.ca), want: trust.WrongName,
			says: []string{"a.example, b.example", "not for this name"}},
		{name: "many names", shows: shown(nil, issue(t, p.ca, "server", forNames("1.x", "2.x", "3.x", "4.x", "5.x", "6.x", "7.x")), p.ca), want: trust.WrongName,
			says: []string{"5.x, 2 more"}},
		{name: "a name in the subject only", shows: shown(nil, issue(t, p.ca, host), p.ca), want: trust.WrongName, says: []string{"no name in the field that counts"}},
		{name: "an address", server: "[::1]", shows: shown(nil, issue(t, p.ca, "server", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv6loopback} }), p.ca)},
		{name: "another address", server: "192.0.2.1", shows: shown(nil, p.leaf, p.ca), want: trust.WrongName},
		{name: "no certificate", shows: tls.ConnectionState{}, want: trust.Other, says: []string{"showed none"}},
		{name: "for clients", shows: shown(nil, issue(t, p.ca, "server", forNames(host), func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}), p.ca), want: trust.Other, says: []string{"not for servers"}},
	})
}

func TestATimeIsNamedWithTheClock(t *testing.T) {
	now := time.Now()
	past, future := valid(now.Add(-100*24*time.Hour), now.Add(-31*24*time.Hour)), valid(now.Add(3*24*time.Hour), now.Add(100*24*time.Hour))
	p := newPKI(t)
	old := issue(t, nil, "Old root", isCA, past)
	late := issue(t, nil, "Late root", isCA, valid(now.Add(-100*24*time.Hour), now.Add(-time.Hour)))
	systemOf(t, p.root, old, late)
	stranger := issue(t, nil, "Stranger", isCA)
	oldCA := issue(t, p.root, "Old CA", isCA, past)
	checkAll(t, []promise{
		{name: "leaf", shows: shown(nil, issue(t, p.ca, "server", forNames(host), past), p.ca), want: trust.Expired,
			says: []string{`certificate "server" (the server's own) expired at`, "31 days ago", now.UTC().Format("2006-01-02T15"), "or the clock is wrong"}},
		{name: "leaf of tomorrow", shows: shown(nil, issue(t, p.ca, "server", forNames(host), future), p.ca), want: trust.NotYetValid,
			says: []string{"not valid before", "is the clock right?"}},
		{name: "intermediate", shows: shown(nil, issue(t, oldCA, "server", forNames(host)), oldCA), want: trust.Expired,
			says: []string{`"Old CA" (an intermediate) expired`}},
		{name: "root", shows: shown(nil, issue(t, old, "server", forNames(host))), want: trust.Expired,
			says: []string{`"Old root" (a root) expired`, "tls.intermediates_file"}},
		// crypto/x509 tells of the last that it tried.
		{name: "root, and a way to another", shows: shown(nil, issue(t, late, "server", forNames(host)), crossed(t, late, stranger)), want: trust.Expired,
			says: []string{`"Late root" (a root) expired`}},
		{name: "intermediate, and a way to another", shows: shown(nil, issue(t, oldCA, "server", forNames(host)), oldCA, crossed(t, oldCA, stranger)), want: trust.Expired,
			says: []string{`"Old CA" (an intermediate) expired`}},
		{name: "an old intermediate that a newer one replaces", cfg: trust.Config{Intermediates: pemOf(reissued(t, oldCA))},
			shows: shown(nil, issue(t, oldCA, "server", forNames(host)), oldCA)},
	})
}

// crossed is a certificate of another issuer for the same CA.
func crossed(t testing.TB, ca, issuer *holder) *holder {
	t.Helper()
	return issueFor(t, issuer, ca.key, ca.key.Public(), ca.cert.Subject.CommonName, isCA)
}

// reissued is a new certificate for the key of an old one.
func reissued(t testing.TB, old *holder) *holder {
	t.Helper()
	return issueFor(t, old.issuer, old.key, old.key.Public(), old.cert.Subject.CommonName, isCA)
}

func TestWeakCertificatesAreRefused(t *testing.T) {
	p := newPKI(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	sha1 := func(c *x509.Certificate) { c.SignatureAlgorithm = x509.SHA1WithRSA }
	root := issueFor(t, nil, key, key.Public(), "RSA root", isCA)
	system := systemOf(t, p.root, root)
	ca := issue(t, root, "SHA-1 CA", isCA, sha1)
	forged := issueFor(t, nil, key, key.Public(), "alone", forNames(host), sha1)
	// Go makes no key that is so short.
	short := issueFor(t, p.ca, p.leaf.key, &rsa.PublicKey{N: shortModulus(), E: 65537}, "server", forNames(host))
	checkAll(t, []promise{
		{name: "signed with SHA-1", shows: shown(nil, issue(t, root, "server", forNames(host), sha1)), want: trust.Weak, says: []string{"SHA1-RSA"}},
		{name: "below one signed with SHA-1", shows: shown(nil, issue(t, ca, "server", forNames(host)), ca), want: trust.Weak, says: []string{`"SHA-1 CA" (an intermediate) is signed with SHA1-RSA`}},
		{name: "a short key", shows: shown(nil, short, p.ca), want: trust.Weak, says: []string{"less than 1024"}},
		{name: "trusted itself, its signature does not count", cfg: trust.Config{CA: pemOf(forged)}, shows: shown(nil, forged)},
		{name: "not trusted itself", shows: shown(nil, forged), want: trust.SelfSigned, says: []string{system}},
	})
}

func TestPins(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	systemOf(t, p.root)
	all := shown(nil, p.leaf, p.ca)
	checkAll(t, []promise{
		{name: "the server's", cfg: trust.Config{Pins: []string{trust.PinOf(p.leaf.cert)}}, shows: all},
		{name: "its CA's, beside another", cfg: trust.Config{Pins: []string{trust.PinOf(other.ca.cert), trust.PinOf(p.ca.cert)}}, shows: all},
		{name: "the root's, which is not presented", cfg: trust.Config{Pins: []string{trust.PinOf(p.root.cert)}}, shows: all},
		{name: "as curl writes it", cfg: trust.Config{Pins: []string{strings.Replace(trust.PinOf(p.leaf.cert), "/", "//", 1)}}, shows: all},
		{name: "another", cfg: trust.Config{Pins: []string{trust.PinOf(other.leaf.cert)}}, shows: all, want: trust.PinMismatch,
			says: []string{trust.PinOf(p.leaf.cert), trust.PinOf(p.ca.cert), trust.PinOf(p.root.cert), "tls.pins"}},
		// A presented certificate that is no part of the chain proves nothing.
		{name: "of one that was only presented", cfg: trust.Config{Pins: []string{trust.PinOf(other.root.cert)}},
			shows: shown(nil, p.leaf, p.ca, other.root), want: trust.PinMismatch},
		{name: "another, report only", cfg: trust.Config{Pins: []string{trust.PinOf(other.leaf.cert)}, PinsReportOnly: true}, shows: all,
			report: []trust.Reason{trust.PinMismatch}},
		{name: "a pin is no reason to trust", cfg: trust.Config{Pins: []string{trust.PinOf(other.leaf.cert)}}, shows: shown(nil, other.leaf, other.ca), want: trust.UnknownRoot},
	})
}

func TestStaples(t *testing.T) {
	p := newPKI(t)
	systemOf(t, p.root)
	must := issue(t, p.ca, "server", forNames(host), mustStaple)
	twin := issue(t, p.ca, "twin", forNames(host))
	other := newPKI(t)
	responder := issue(t, p.ca, "responder", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning} })
	impostor := issue(t, p.ca, "impostor", forNames("impostor.example"))
	expired := issue(t, p.ca, "expired responder", valid(time.Now().Add(-9*time.Hour), time.Now().Add(-8*time.Hour)),
		func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning} })
	with := func(h *holder) func(*ocsp.Response) { return func(r *ocsp.Response) { r.Certificate = h.cert } }
	early := func(r *ocsp.Response) { r.ThisUpdate = time.Now().Add(30 * time.Minute) }
	unknown := func(r *ocsp.Response) { r.Status = ocsp.Unknown }
	broken := slices.Clone(respond(t, p.leaf))
	broken[len(broken)-5] ^= 1
	invalid, stales := []trust.Reason{trust.InvalidStaple}, []trust.Reason{trust.StaleStaple}
	on := func(h *holder, staple []byte) tls.ConnectionState { return shown(staple, h, p.ca) }
	checkAll(t, []promise{
		{name: "absent", shows: on(p.leaf, nil)},
		{name: "good", shows: on(p.leaf, respond(t, p.leaf))},
		{name: "good, with the issuer's certificate", shows: on(p.leaf, respond(t, p.leaf, with(p.ca)))},
		{name: "good, by a responder", shows: on(p.leaf, respondBy(t, p.leaf, responder, with(responder)))},
		{name: "revoked", shows: on(p.leaf, respond(t, p.leaf, revoked(ocsp.KeyCompromise))), want: trust.Revoked, says: []string{"keyCompromise", "revoked by its issuer at"}},
		{name: "revoked, said some time ago", shows: on(p.leaf, respond(t, p.leaf, revoked(ocsp.KeyCompromise), stale)), want: trust.Revoked},
		{name: "on hold", shows: on(p.leaf, respond(t, p.leaf, revoked(ocsp.CertificateHold))), want: trust.Revoked},
		{name: "on hold some time ago", shows: on(p.leaf, respond(t, p.leaf, revoked(ocsp.CertificateHold), stale)), report: stales},
		{name: "stale", shows: on(p.leaf, respond(t, p.leaf, stale)), report: stales},
		{name: "for another certificate", shows: on(p.leaf, respond(t, twin)), report: invalid},
		{name: "revoked, another certificate", shows: on(p.leaf, respond(t, twin, revoked(ocsp.KeyCompromise))), report: invalid},
		{name: "by another CA", shows: on(p.leaf, respondBy(t, p.leaf, other.ca)), report: invalid},
		{name: "by another CA, which sends its certificate", shows: on(p.leaf, respondBy(t, p.leaf, other.ca, with(other.ca))), report: invalid},
		{name: "by a certificate that is no responder's", shows: on(p.leaf, respondBy(t, p.leaf, impostor, with(impostor))), report: invalid},
		{name: "by a responder that has expired", shows: on(p.leaf, respondBy(t, p.leaf, expired, with(expired))), report: invalid},
		{name: "damaged", shows: on(p.leaf, broken), report: invalid},
		{name: "no OCSP at all", shows: on(p.leaf, []byte("hello")), report: invalid},
		{name: "too long", shows: on(p.leaf, make([]byte, 1<<20)), report: invalid},
		{name: "an error of the responder", shows: on(p.leaf, ocsp.TryLaterErrorResponse), report: invalid},
		{name: "unknown to the responder", shows: on(p.leaf, respond(t, p.leaf, unknown)), report: invalid},
		{name: "of the future", shows: on(p.leaf, respond(t, p.leaf, early)), report: invalid},

		{name: "too long, but good", shows: on(p.leaf, respond(t, p.leaf, func(r *ocsp.Response) {
			r.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3}, Value: make([]byte, 70<<10)}}
		})), report: invalid},
		// The session's age is nobody's fault.
		{name: "stale, of a session", shows: resumed(on(p.leaf, respond(t, p.leaf, stale)))},

		{name: "must-staple, good", shows: on(must, respond(t, must))},
		{name: "must-staple, absent", shows: on(must, nil), want: trust.MissingStaple, says: []string{"must-staple", "ssl_stapling"}},
		{name: "must-staple, stale", shows: on(must, respond(t, must, stale)), want: trust.StaleStaple, says: []string{"ended at", "4 hours ago"}},
		{name: "must-staple, for another certificate", shows: on(must, respond(t, twin)), want: trust.InvalidStaple},
		{name: "must-staple, unknown to the responder", shows: on(must, respond(t, must, unknown)), want: trust.InvalidStaple},
		{name: "must-staple, revoked", shows: on(must, respond(t, must, revoked(ocsp.Superseded))), want: trust.Revoked},
	})
}

func resumed(cs tls.ConnectionState) tls.ConnectionState {
	cs.DidResume = true
	return cs
}

func TestAVerdictEndsWithTheFirstThatEnds(t *testing.T) {
	at := newClock()
	begin := at.now()
	p := newPKI(t)
	systemOf(t, p.root)
	ends := issue(t, p.ca, "server", forNames(host), valid(begin.Add(-time.Hour), begin.Add(4*time.Minute)))
	ending := issue(t, p.root, "Ends", isCA, valid(begin.Add(-time.Hour), begin.Add(4*time.Minute)))
	below := issue(t, ending, "server", forNames(host))
	for name, tt := range map[string]struct {
		shows tls.ConnectionState
		want  time.Time
	}{
		"memory":       {shown(nil, p.leaf, p.ca), begin.Add(10 * time.Minute)},
		"chain":        {shown(nil, ends, p.ca), ends.cert.NotAfter},
		"intermediate": {shown(nil, below, ending), ending.cert.NotAfter},
		"staple":       {shown(respond(t, p.leaf, func(r *ocsp.Response) { r.NextUpdate = begin.Add(3 * time.Minute) }), p.leaf, p.ca), begin.Add(3 * time.Minute).Truncate(time.Second)},
	} {
		v := newVerifier(t, trust.Config{Now: at.now})
		if got, err := v.Verify(host, tt.shows); err != nil || !got.Equal(tt.want) {
			t.Errorf("%s: got %v %v, want %v", name, got, err, tt.want)
		}
		at.advance(time.Minute)
		if got, err := v.Verify(host, tt.shows); err != nil || !got.Equal(tt.want) {
			t.Errorf("%s, a minute later: got %v %v, want %v", name, got, err, tt.want)
		}
		at.set(begin)
	}
}

func TestMemoryIsBoundedAndNeverKeepsAFailure(t *testing.T) {
	at := newClock()
	p := newPKI(t, forNames("*.example.com"))
	systemOf(t, p.root)
	v := newVerifier(t, trust.Config{Now: at.now})
	for i := range 2 * trust.MaxVerdicts {
		name := "h" + strings.Repeat("x", i%50) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676)) + ".example.com"
		if _, err := v.Verify(name, shown(nil, p.leaf, p.ca)); err != nil {
			t.Fatal(err)
		}
	}
	if got := v.Verdicts(); got != trust.MaxVerdicts {
		t.Errorf("remembers %d verdicts, want %d", got, trust.MaxVerdicts)
	}

	v = newVerifier(t, trust.Config{Now: at.now})
	if _, err := v.Verify("wrong.example", shown(nil, p.leaf, p.ca)); err == nil {
		t.Error("a wrong name was believed")
	}
	if got := v.Verdicts(); got != 0 {
		t.Errorf("remembers %d failures, want none", got)
	}
	// A verdict is not one for other staples, chains or names.
	for _, cs := range []tls.ConnectionState{shown(nil, p.leaf, p.ca), shown(respond(t, p.leaf), p.leaf, p.ca), shown(nil, p.leaf, p.ca, p.root)} {
		_, _ = v.Verify(host, cs)
		_, _ = v.Verify("a."+host[4:], cs)
	}
	if got := v.Verdicts(); got != 6 {
		t.Errorf("remembers %d verdicts, want 6", got)
	}
	if v := newVerifier(t, trust.Config{Remember: -1}); second(v.Verify(host, shown(nil, p.leaf, p.ca))) != nil || v.Verdicts() != 0 {
		t.Error("a verdict was remembered though none may be")
	}
}

func TestAClockPutBackEndsVerdicts(t *testing.T) {
	at := newClock()
	p := newPKI(t, valid(at.now().Add(-time.Minute), at.now().Add(time.Hour)))
	systemOf(t, p.root)
	v := newVerifier(t, trust.Config{Now: at.now})
	if _, err := v.Verify(host, shown(nil, p.leaf, p.ca)); err != nil {
		t.Fatal(err)
	}
	at.advance(-2 * time.Minute)
	if got := reasonOf(t, second(v.Verify(host, shown(nil, p.leaf, p.ca)))); got != trust.NotYetValid {
		t.Errorf("got %q, want %q", got, trust.NotYetValid)
	}
}

func TestErrorsAreNeverTemporary(t *testing.T) {
	p := newPKI(t)
	systemOf(t, p.root)
	_, err := newVerifier(t, trust.Config{}).Verify("wrong.example", shown(nil, p.leaf, p.ca))
	var final interface {
		Timeout() bool
		Temporary() bool
	}
	if !errors.As(err, &final) || final.Timeout() || final.Temporary() {
		t.Errorf("got %v, want it to say that it is final", err)
	}
	var name x509.HostnameError
	if !errors.As(err, &name) {
		t.Errorf("got %v, want the x509 error inside", err)
	}
}

func TestNamesOfStrangersAreEscaped(t *testing.T) {
	systemOf(t, newPKI(t).root)
	evil := issue(t, nil, "evil\n\x1b[31mlevel=error", forNames("x.example"), func(c *x509.Certificate) { c.Subject.Organization = nil })
	for _, name := range []string{host, "x.example"} {
		_, err := newVerifier(t, trust.Config{}).Verify(name, shown(nil, evil))
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("got %q", err)
		}
	}
}

func TestAnIDNamesTheSettings(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	systemOf(t, p.root)
	pin := trust.PinOf(p.leaf.cert)
	base := func() trust.Config { return trust.Config{} }
	seen := map[string]string{newVerifier(t, base()).ID(): "base"}
	for name, cfg := range map[string]trust.Config{
		"CA":              {CA: pemOf(other.root)},
		"only":            {CA: pemOf(other.root), Only: true},
		"intermediates":   {Intermediates: pemOf(p.ca)},
		"pins":            {Pins: []string{pin}},
		"two pins":        {Pins: []string{pin, trust.PinOf(p.ca.cert)}},
		"pins that tell":  {Pins: []string{pin}, PinsReportOnly: true},
		"the same root":   {CA: pemOf(p.root), Only: true},
		"no intermediate": {CA: pemOf(p.ca)},
	} {
		id := newVerifier(t, cfg).ID()
		if was, ok := seen[id]; ok {
			t.Errorf("%s has the ID of %s", name, was)
		}
		seen[id] = name
	}
	if a, b := newVerifier(t, base()).ID(), newVerifier(t, trust.Config{Remember: time.Hour}).ID(); a != b {
		t.Error("how long is remembered changed the ID")
	}
	a := newVerifier(t, trust.Config{Pins: []string{pin, trust.PinOf(p.ca.cert)}, CA: pemOf(other.root, other.ca)}).ID()
	b := newVerifier(t, trust.Config{Pins: []string{trust.PinOf(p.ca.cert), pin, pin}, CA: pemOf(other.ca, other.root)}).ID()
	if a != b {
		t.Error("the order of pins and roots changed the ID")
	}
}

func TestSettingsThatCannotWork(t *testing.T) {
	p := newPKI(t)
	systemOf(t, p.root)
	cut := pemOf(p.root, p.ca)
	for name, tt := range map[string]struct {
		cfg  trust.Config
		want string
	}{
		"no certificate":           {trust.Config{CA: []byte("hello")}, "tls.ca_file: holds no PEM certificate"},
		"a key":                    {trust.Config{CA: keyPEM(t, p.root)}, "tls.ca_file: holds PRIVATE KEY, but no CERTIFICATE"},
		"DER":                      {trust.Config{CA: p.root.cert.Raw}, "openssl x509 -inform der"},
		"cut":                      {trust.Config{CA: cut[:len(cut)-40]}, "tls.ca_file: the PEM block after certificate 1 is not complete"},
		"damaged":                  {trust.Config{Intermediates: []byte("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n")}, "tls.intermediates_file: certificate 1: "},
		"only nothing":             {trust.Config{Only: true}, "tls.ca_file: it alone is to be trusted, and it is not set"},
		"a pin without kind":       {trust.Config{Pins: []string{"AAAA"}}, `tls.pins: "AAAA" does not begin with "sha256/"`},
		"a pin in hex":             {trust.Config{Pins: []string{"sha256/" + strings.Repeat("ab", 32)}}, "has 64 characters"},
		"a pin of another hash":    {trust.Config{Pins: []string{"sha512/" + strings.Repeat("A", 44)}}, "does not begin with"},
		"a pin that is not Base64": {trust.Config{Pins: []string{"sha256/" + strings.Repeat("!", 43) + "="}}, "is not Base64"},
	} {
		if _, err := trust.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	at := newClock()
	p := newPKI(t)
	file := systemOf(t, p.root)
	v := newVerifier(t, trust.Config{Now: at.now, OnFailure: func(trust.Reason, bool) {}})
	other := newPKI(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 50 {
				if _, err := v.Verify(host, shown(nil, p.leaf, p.ca)); err != nil {
					t.Error(err)
				}
				if _, err := v.Verify(host, shown(nil, other.leaf, other.ca)); err == nil && i == 0 {
					_ = v.State()
				}
				_ = v.ID()
				at.advance(trust.LookEvery / 3)
			}
		})
	}
	replace(t, file, pemOf(p.root, other.root))
	all.Wait()
}

// shortModulus is an odd number of 512 bits; nobody knows its factors.
func shortModulus() *big.Int {
	n := new(big.Int).SetBit(big.NewInt(12345), 511, 1)
	return n.SetBit(n, 0, 1)
}
