// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/tlspool/trust"
)

// sServer starts openssl s_server with what it shows, and returns its address.
func sServer(t *testing.T, staple []byte, leaf *holder, above []*holder, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	all := []string{"-cert", write(t, filepath.Join(dir, "cert.pem"), pemOf(leaf)), "-key", write(t, filepath.Join(dir, "key.pem"), keyPEM(t, leaf))}
	if len(above) > 0 {
		all = append(all, "-cert_chain", write(t, filepath.Join(dir, "chain.pem"), pemOf(above...)))
	}
	if staple != nil {
		all = append(all, "-status_file", write(t, filepath.Join(dir, "staple.der"), staple))
	}
	addr, _ := testenv.OpenSSL(t, append(all, args...)...)
	return addr
}

// handshake connects to addr as host, verified by v.
func handshake(t *testing.T, addr string, v *trust.Verifier, edit ...func(*tls.Config)) (tls.ConnectionState, error) {
	t.Helper()
	cfg := &tls.Config{ServerName: host}
	for _, e := range edit {
		e(cfg)
	}
	told := false
	v.Apply(cfg, "", func(until time.Time) { told = until.After(time.Now().Add(-time.Hour)) })
	conn, err := dial(t, addr, cfg)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	if !told {
		t.Error("the end of the verdict was not told")
	}
	// Tickets come with what is read.
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
	_, _ = conn.Read(make([]byte, 4096))
	return conn.ConnectionState(), nil
}

func asError(t *testing.T, err error) *trust.Error {
	t.Helper()
	var e *trust.Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("got %T %v, want *trust.Error", err, err)
	}
	return e
}

func TestWhatOpenSSLShows(t *testing.T) {
	now := time.Now()
	p, other := newPKI(t), newPKI(t)
	systemOf(t, p.root)
	must := issue(t, p.ca, "server", forNames(host), mustStaple)
	twin := issue(t, p.ca, "twin", forNames(host))
	alone := issue(t, nil, "alone", forNames(host))
	stranger := issue(t, issue(t, nil, "Stranger", isCA, ofOrganisation("Strangers")), "Stranger's", isCA)
	strange := issue(t, stranger, "server", forNames(host))
	past := valid(now.Add(-9*24*time.Hour), now.Add(-2*24*time.Hour))
	for _, tt := range []struct {
		name   string
		cfg    trust.Config
		staple []byte
		leaf   *holder
		above  []*holder
		want   trust.Reason
	}{
		{name: "chain", leaf: p.leaf, above: []*holder{p.ca}},
		{name: "leaf only", leaf: p.leaf, want: trust.MissingIntermediate},
		{name: "leaf only, intermediate known", cfg: trust.Config{Intermediates: pemOf(p.ca)}, leaf: p.leaf},
		{name: "expired", leaf: issue(t, p.ca, "server", forNames(host), past), above: []*holder{p.ca}, want: trust.Expired},
		{name: "wrong name", leaf: issue(t, p.ca, "server", forNames("www.example.net")), above: []*holder{p.ca}, want: trust.WrongName},
		{name: "self-signed", leaf: alone, want: trust.SelfSigned},
		{name: "unknown root", leaf: strange, above: []*holder{stranger}, want: trust.UnknownRoot},
		{name: "unknown root presented", leaf: strange, above: []*holder{stranger, stranger.issuer}, want: trust.UnknownRoot},
		{name: "root added", cfg: trust.Config{CA: pemOf(stranger.issuer)}, leaf: strange, above: []*holder{stranger}},
		{name: "only another CA", cfg: trust.Config{CA: pemOf(other.root), Only: true}, leaf: p.leaf, above: []*holder{p.ca}, want: trust.UnknownRoot},
		{name: "pin", cfg: trust.Config{Pins: []string{trust.PinOf(p.ca.cert)}}, leaf: p.leaf, above: []*holder{p.ca}},
		{name: "another pin", cfg: trust.Config{Pins: []string{trust.PinOf(other.ca.cert)}}, leaf: p.leaf, above: []*holder{p.ca}, want: trust.PinMismatch},
		{name: "another pin, report only", cfg: trust.Config{Pins: []string{trust.PinOf(other.ca.cert)}, PinsReportOnly: true}, leaf: p.leaf, above: []*holder{p.ca}},
		{name: "staple", staple: respond(t, p.leaf), leaf: p.leaf, above: []*holder{p.ca}},
		{name: "revoked", staple: respond(t, p.leaf, revoked(1)), leaf: p.leaf, above: []*holder{p.ca}, want: trust.Revoked},
		{name: "stale", staple: respond(t, p.leaf, stale), leaf: p.leaf, above: []*holder{p.ca}},
		{name: "staple for another", staple: respond(t, twin, revoked(1)), leaf: p.leaf, above: []*holder{p.ca}},
		{name: "must-staple, staple", staple: respond(t, must), leaf: must, above: []*holder{p.ca}},
		{name: "must-staple, none", leaf: must, above: []*holder{p.ca}, want: trust.MissingStaple},
		{name: "must-staple, stale", staple: respond(t, must, stale), leaf: must, above: []*holder{p.ca}, want: trust.StaleStaple},
		{name: "must-staple, for another", staple: respond(t, twin), leaf: must, above: []*holder{p.ca}, want: trust.InvalidStaple},
	} {
		for _, version := range []string{"-tls1_2", "-tls1_3"} {
			t.Run(tt.name+version, func(t *testing.T) {
				addr := sServer(t, tt.staple, tt.leaf, tt.above, version)
				cs, err := handshake(t, addr, newVerifier(t, tt.cfg))
				e := asError(t, err)
				if got := reasonOrNone(e); got != tt.want {
					t.Fatalf("got %q (%v), want %q", got, err, tt.want)
				}
				if err == nil && (len(cs.OCSPResponse) > 0) != (tt.staple != nil) {
					t.Errorf("got a staple of %d bytes, the server has one of %d", len(cs.OCSPResponse), len(tt.staple))
				}
			})
		}
	}
}

func reasonOrNone(e *trust.Error) trust.Reason {
	if e == nil {
		return ""
	}
	return e.Reason
}

// OpenSSL's own responder, with its index of what the CA has issued and revoked.
func TestStaplesOfOpenSSLsResponder(t *testing.T) {
	p := newPKI(t)
	systemOf(t, p.root)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	write(t, file("ca.pem"), pemOf(p.ca))
	write(t, file("ca.key"), keyPEM(t, p.ca))
	write(t, file("leaf.pem"), pemOf(p.leaf))
	number := strings.ToUpper(p.leaf.cert.SerialNumber.Text(16))
	if len(number)%2 == 1 {
		number = "0" + number
	}
	const day = "060102150405Z"
	expires := p.leaf.cert.NotAfter.UTC().Format(day)
	openssl := testenv.Need(t, "openssl")
	for name, tt := range map[string]struct {
		index string
		want  trust.Reason
	}{
		"good":    {"V\t" + expires + "\t\t" + number + "\tunknown\t/CN=server\n", ""},
		"revoked": {"R\t" + expires + "\t" + time.Now().UTC().Add(-time.Hour).Format(day) + ",keyCompromise\t" + number + "\tunknown\t/CN=server\n", trust.Revoked},
	} {
		write(t, file("index.txt"), []byte(tt.index))
		out, err := exec.CommandContext(t.Context(), openssl, "ocsp", "-index", file("index.txt"), "-CA", file("ca.pem"),
			"-rsigner", file("ca.pem"), "-rkey", file("ca.key"), "-issuer", file("ca.pem"), "-cert", file("leaf.pem"),
			"-respout", file("staple.der"), "-ndays", "1", "-noverify").CombinedOutput()
		if err != nil {
			t.Fatalf("openssl ocsp: %v\n%s", err, out)
		}
		staple, err := os.ReadFile(file("staple.der"))
		if err != nil {
			t.Fatal(err)
		}
		addr := sServer(t, staple, p.leaf, []*holder{p.ca})
		var reports []trust.Reason
		cs, err := handshake(t, addr, newVerifier(t, trust.Config{OnFailure: func(r trust.Reason, only bool) {
			if only {
				reports = append(reports, r)
			}
		}}))
		if got := reasonOrNone(asError(t, err)); got != tt.want || len(reports) > 0 {
			t.Errorf("%s: got %q (%v), reports %v, want %q", name, got, err, reports, tt.want)
		}
		if tt.want == "" {
			verdict, err := newVerifier(t, trust.Config{}).Examine(host, cs)
			if err != nil || verdict.Staple != trust.StapleGood || len(verdict.Chain) != 3 {
				t.Errorf("%s: got %+v %v", name, verdict, err)
			}
		}
	}
}

// A resumed connection is verified like any other: by the verdict that is remembered,
// and anew when that is over.
func TestAResumedConnectionIsVerifiedAnewWhenItsVerdictIsOver(t *testing.T) {
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		t.Run(version, func(t *testing.T) {
			at := newClock()
			p := newPKI(t)
			systemOf(t, p.root)
			// The CA's certificate ends before the server's, which crypto/tls looks at.
			ca := issue(t, p.root, "Ends soon", isCA, valid(at.now().Add(-time.Hour), at.now().Add(15*time.Minute)))
			leaf := issue(t, ca, "server", forNames(host))
			addr := sServer(t, nil, leaf, []*holder{ca}, version)
			v := newVerifier(t, trust.Config{Now: at.now})
			sessions := tls.NewLRUClientSessionCache(8)
			again := func() (bool, *trust.Error) {
				cs, err := handshake(t, addr, v, func(cfg *tls.Config) { cfg.ClientSessionCache = sessions })
				return cs.DidResume, asError(t, err)
			}
			if resumed, err := again(); err != nil || resumed {
				t.Fatalf("first: resumed %t, %v", resumed, err)
			}
			for _, after := range []time.Duration{time.Minute, 11 * time.Minute} {
				at.advance(after) // the second is after the verdict's end
				if resumed, err := again(); err != nil || !resumed {
					t.Fatalf("%v later: resumed %t, %v", after, resumed, err)
				}
			}
			at.advance(10 * time.Minute)
			_, err := again()
			if err == nil || err.Reason != trust.Expired || !err.Resumed || !strings.Contains(err.Detail, "Ends soon") {
				t.Fatalf("got %+v, want expired on a resumed connection", err)
			}
		})
	}
}

// A session that was made under other roots is verified by those of now.
func TestAResumedConnectionIsVerifiedByTheRootsOfNow(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	systemOf(t, p.root)
	addr := sServer(t, nil, p.leaf, []*holder{p.ca})
	shared := tls.NewLRUClientSessionCache(8)
	sessions := func(cfg *tls.Config) { cfg.ClientSessionCache = shared }
	if _, err := handshake(t, addr, newVerifier(t, trust.Config{}), sessions); err != nil {
		t.Fatal(err)
	}
	_, err := handshake(t, addr, newVerifier(t, trust.Config{CA: pemOf(other.root), Only: true}), sessions)
	if e := asError(t, err); e == nil || e.Reason != trust.UnknownRoot || !e.Resumed {
		t.Errorf("got %v, want unknown root on a resumed connection", err)
	}
}

// Two hosts on one address may share ticket keys.
func TestASessionOfOneNameIsNothingForAnother(t *testing.T) {
	p := newPKI(t)
	systemOf(t, p.root)
	addr := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{certificate(p.leaf, p.ca)}})
	v := newVerifier(t, trust.Config{})
	cache := &sameForAll{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	with := func(cfg *tls.Config) { cfg.ClientSessionCache = cache }
	if _, err := handshake(t, addr, v, with); err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{ServerName: "other.example.com", ClientSessionCache: cache}
	v.Apply(cfg, "", nil)
	_, err := dial(t, addr, cfg)
	if e := asError(t, err); e == nil || e.Reason != trust.WrongName || !e.Resumed {
		t.Errorf("got %v, want a wrong name on a resumed connection", err)
	}
}

// sameForAll is a faulty cache: it gives any session to anybody.
type sameForAll struct{ tls.ClientSessionCache }

func (c *sameForAll) Get(string) (*tls.ClientSessionState, bool) {
	return c.ClientSessionCache.Get("x")
}
func (c *sameForAll) Put(_ string, s *tls.ClientSessionState) { c.ClientSessionCache.Put("x", s) }

var _ net.Error = (*trust.Error)(nil)
