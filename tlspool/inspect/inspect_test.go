// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/tlspool/trust"
)

func dialer(address string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", address) }
}

func TestGoServerIsExaminedWhole(t *testing.T) {
	h := newHouse(t, nil)
	r := run(t, to(serve(t, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf, h.mid)}, NextProtos: []string{"h2", "http/1.1"}}), h.pool))
	if !r.Verified() || r.Chain.Root != "CN=test root" || len(r.Chain.Certificates) != 2 || r.Chain.Bytes != len(h.leaf.cert.Raw)+len(h.mid.cert.Raw) {
		t.Fatalf("failure %v, chain %+v", r.Failure, r.Chain)
	}
	leaf := r.Chain.Certificates[0]
	if leaf.Subject != "CN=the leaf" || leaf.Issuer != "CN=test intermediate" || leaf.Key != "P-256" || leaf.KeyBits != 256 ||
		leaf.Signature != "ECDSA-SHA256" || len(leaf.SHA256) != 64 || !strings.HasPrefix(leaf.Pin, "sha256/") || len(leaf.Pin) != 7+44 ||
		!slices.Equal(leaf.Names, []string{"model.test", "localhost"}) {
		t.Errorf("leaf %+v", leaf)
	}
	if want := (Agreed{"TLS 1.3", r.Agreed.CipherSuite, "X25519MLKEM768", "h2", false}); *r.Agreed != want || want.CipherSuite == "" {
		t.Errorf("agreed %+v, want %+v", *r.Agreed, want)
	}
	var spoken, chosen []string
	for _, v := range r.Versions {
		spoken = append(spoken, v.Name+" "+strconv.FormatBool(v.Spoken))
	}
	for _, a := range r.ALPN {
		chosen = append(chosen, strings.Join(a.Offered, "+")+" "+a.Chosen)
	}
	if want := []string{"TLS 1.3 true", "TLS 1.2 true", "TLS 1.1 false", "TLS 1.0 false"}; !slices.Equal(spoken, want) {
		t.Errorf("versions %q, want %q", spoken, want)
	}
	if want := []string{"h2+http/1.1 h2", "h2 h2", "http/1.1 http/1.1", " "}; !slices.Equal(chosen, want) {
		t.Errorf("ALPN %q, want %q", chosen, want)
	}
	if r.Tickets.Count != 1 || r.Tickets.Lifetime == nil || *r.Tickets.Lifetime != 7*24*3600 {
		t.Errorf("tickets %+v", r.Tickets)
	}
	c := r.Handshakes
	if c.Full.Took.N != 3 || c.Resumed.Took.N != 3 || c.Classic.Took.N != 3 || c.Connect.N != 9 || c.Share != 1 || !c.Verified {
		t.Errorf("handshakes %+v", c)
	}
	if c.Full.Hello <= oneSegment || c.Classic.Hello > 600 || c.Classic.Group != "X25519" {
		t.Errorf("ClientHello of %d and %d bytes, %s", c.Full.Hello, c.Classic.Hello, c.Classic.Group)
	}
	if len(r.Notes) > 0 || r.Staple.Status != "absent" || r.ClientCert != nil {
		t.Errorf("notes %q, staple %+v, client certificate %+v", r.Notes, r.Staple, r.ClientCert)
	}
}

// A replayed conn gives the bytes that were read from it once more.
type replayed struct {
	net.Conn
	from io.Reader
}

func (r replayed) Read(b []byte) (int, error) { return r.from.Read(b) }

func TestClientHelloIsCountedAsTheServerSeesIt(t *testing.T) {
	h := newHouse(t, nil)
	sizes := make(chan int, 1)
	cfg := to(listen(t, func(c net.Conn) {
		var hello bytes.Buffer
		if _, err := io.CopyN(&hello, c, 5); err != nil {
			return
		}
		if _, err := io.CopyN(&hello, c, int64(binary.BigEndian.Uint16(hello.Bytes()[3:]))); err != nil {
			return
		}
		sizes <- hello.Len()
		conn := tls.Server(replayed{c, io.MultiReader(&hello, c)}, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf, h.mid)}})
		if conn.Handshake() == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	}), h.pool)
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, groups := range [][]tls.CurveID{nil, classic()} {
		m, err := p.meet(t.Context(), offer{groups: groups})
		if err != nil {
			t.Fatal(err)
		}
		if want := <-sizes; m.hello != want {
			t.Errorf("counted %d bytes, the server read %d", m.hello, want)
		}
	}
}

func TestProblemsOfAChainAreNamed(t *testing.T) {
	now := time.Now()
	h := newHouse(t, nil)
	bare := issue(t, h.mid, "bare", func(c *x509.Certificate) { server(c); c.IssuingCertificateURL = nil })
	old := issue(t, h.mid, "old", func(c *x509.Certificate) { server(c); c.NotAfter = now.Add(-72*time.Hour - time.Minute) })
	young := issue(t, h.mid, "young", func(c *x509.Certificate) { server(c); c.NotBefore = now.Add(3 * time.Hour) })
	other := issue(t, h.mid, "other", func(c *x509.Certificate) { server(c); c.DNSNames = []string{"other.test"} })
	nameless := issue(t, h.mid, "model.test", func(c *x509.Certificate) { server(c); c.DNSNames = nil })
	own := issue(t, nil, "own", server)
	oldMid := issue(t, h.root, "old intermediate", func(c *x509.Certificate) { authority(c); c.NotAfter = now.Add(-time.Hour) })
	underOld := issue(t, oldMid, "under old", server)
	stranger := newHouse(t, nil)
	client := issue(t, h.mid, "client", func(c *x509.Certificate) { server(c); c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	worst := issue(t, stranger.mid, "worst", func(c *x509.Certificate) {
		server(c)
		c.DNSNames, c.NotAfter = []string{"other.test"}, now.Add(-time.Hour)
	})
	for _, tt := range []struct {
		name  string
		chain tls.Certificate
		want  []string // code and a part of the text
	}{
		{"leaf only", chain(h.leaf), []string{MissingIntermediate + ": does not send the intermediate certificate CN=test intermediate (it is at http://ca.test/intermediate.der), and it is not among the test's root"}},
		{"leaf only without URL", chain(bare), []string{UnknownIssuer + ": CN=test intermediate has signed the certificate"}},
		{"expired", chain(old, h.mid), []string{Expired + ": the certificate expired on"}},
		{"not yet valid", chain(young, h.mid), []string{NotYetValid + ": the certificate becomes valid on"}},
		{"wrong name", chain(other, h.mid), []string{WrongName + ": not for model.test: it has other.test"}},
		{"common name", chain(nameless, h.mid), []string{WrongName + ": common name does not count"}},
		{"self-signed", chain(own), []string{SelfSigned + ": has signed itself, and is not among the test's root"}},
		{"expired intermediate", chain(underOld, oldMid), []string{Expired + ": the intermediate certificate CN=old intermediate expired on"}},
		{"unknown root, not sent", chain(stranger.leaf, stranger.mid), []string{UnknownRoot + ": ends with CN=test intermediate, signed by CN=test root, which is not among the test's root"}},
		{"unknown root, sent", chain(stranger.leaf, stranger.mid, stranger.root), []string{UnknownRoot + ": the root CN=test root is not among"}},
		{"not for servers", chain(client, h.mid), []string{BadChain + ": incompatible key usage"}},
		{"all at once", chain(worst, stranger.mid), []string{WrongName + ": other.test", Expired + ": the certificate expired", UnknownRoot + ": CN=test root"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for tickets
			cfg := to(serve(t, &tls.Config{Certificates: []tls.Certificate{tt.chain}}), h.pool)
			cfg.Handshakes = 1
			r := run(t, cfg)
			if r.Verified() || len(r.Chain.Problems) != len(tt.want) {
				t.Fatalf("problems %+v, want %q", r.Chain.Problems, tt.want)
			}
			for i, want := range tt.want {
				code, text, _ := strings.Cut(want, ": ")
				if p := r.Chain.Problems[i]; p.Code != code || !strings.Contains(p.Text, text) {
					t.Errorf("problem %+v, want %q", p, want)
				}
			}
			if r.Handshakes.Verified || r.Handshakes.Full.Took.N != 1 || r.Handshakes.Share != 1 && r.Handshakes.Resumed.Failed[NotOffered] != 1 {
				t.Errorf("the rest is examined all the same: %+v", r.Handshakes)
			}
		})
	}
}

func TestOwnIntermediatesAndPins(t *testing.T) {
	h, stranger := newHouse(t, nil), newHouse(t, nil)
	short := serve(t, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf)}})
	whole := serve(t, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf, h.mid)}})
	for _, tt := range []struct {
		name   string
		port   int
		change func(*Config)
		code   string // of the problem, "" = none
		note   string
	}{
		{"intermediate of our own", short, func(c *Config) { c.Intermediates = []*x509.Certificate{h.mid.cert} }, "", "only with our own intermediate"},
		{"another one", short, func(c *Config) { c.Intermediates = []*x509.Certificate{stranger.mid.cert} }, MissingIntermediate, ""},
		{"pin of the root", whole, func(c *Config) { c.Pins = []string{trust.PinOf(stranger.root.cert), trust.PinOf(h.root.cert)} }, "", ""},
		{"pin as curl has it", whole, func(c *Config) {
			c.Pins = []string{strings.TrimRight(strings.Replace(trust.PinOf(h.leaf.cert), "/", "//", 1), "=")}
		}, "", ""},
		{"other pin", whole, func(c *Config) { c.Pins = []string{trust.PinOf(stranger.root.cert)} }, PinMismatch, ""},
		{"other pin, reported", whole, func(c *Config) { c.Pins, c.PinsReportOnly = []string{trust.PinOf(stranger.root.cert)}, true }, "", "only reported"},
	} {
		cfg := to(tt.port, h.pool)
		cfg.Handshakes = 1
		tt.change(&cfg)
		r := run(t, cfg)
		codes := ""
		for _, p := range r.Chain.Problems {
			codes += p.Code
		}
		if codes != tt.code || r.Verified() != (tt.code == "") || !strings.Contains(strings.Join(r.Chain.Notes, "\n"), tt.note) {
			t.Errorf("%s: problems %+v, notes %q; want %q, %q", tt.name, r.Chain.Problems, r.Chain.Notes, tt.code, tt.note)
		}
		if r.Handshakes.Full.Took.N != 1 || r.Handshakes.Share != 1 {
			t.Errorf("%s: %+v", tt.name, r.Handshakes)
		}
	}
}

func TestNeedlessCertificatesAreNoted(t *testing.T) {
	h, stranger := newHouse(t, nil), newHouse(t, nil)
	for name, tt := range map[string]struct {
		chain tls.Certificate
		note  string
	}{
		"root":         {chain(h.leaf, h.mid, h.root), "the root CN=test root need not be sent"},
		"unrelated":    {chain(h.leaf, h.mid, stranger.leaf), "certificate 3 (CN=the leaf) leads nowhere"},
		"out of order": {chain(h.leaf, h.root, h.mid), "certificate 3 is out of order"},
	} {
		cfg := to(serve(t, &tls.Config{Certificates: []tls.Certificate{tt.chain}}), h.pool)
		cfg.Handshakes = 1
		r := run(t, cfg)
		if !r.Verified() || !strings.Contains(strings.Join(r.Chain.Notes, "\n"), tt.note) {
			t.Errorf("%s: verified %v, notes %q, want %q", name, r.Verified(), r.Chain.Notes, tt.note)
		}
	}
}

func TestServersThatDoNotAnswer(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	hangUp := listen(t, func(net.Conn) {})
	mute := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	mail := listen(t, func(c net.Conn) { _, _ = c.Write([]byte("220 mail.test ESMTP ready\r\n")) })
	for _, tt := range []struct {
		name string
		port int
		kind Kind
		text string
	}{
		{"closed port", closedPort(t), Unreachable, "nothing listens on this port"},
		{"plain HTTP", plain.Listener.Addr().(*net.TCPAddr).Port, NoTLS, "this port speaks no TLS but plain HTTP"},
		{"mail", mail, NoTLS, "this port speaks no TLS"},
		{"hangs up", hangUp, Closed, "the handshake"},
		{"says nothing", mute, Silent, "accepts the connection and says nothing for 200ms"},
	} {
		cfg := to(tt.port, nil)
		cfg.Timeout = 200 * time.Millisecond
		r := run(t, cfg)
		if r.Failure == nil || r.Failure.Kind != tt.kind || !strings.Contains(r.Failure.Text, tt.text) || r.Verified() || r.Chain != nil {
			t.Errorf("%s: %+v, want %s: %s", tt.name, r.Failure, tt.kind, tt.text)
		}
	}
}

func closedPort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// oneSegmentOnly is a middlebox that loses connections whose ClientHello is long.
func oneSegmentOnly(t *testing.T, behind int) (port int) {
	return listen(t, func(c net.Conn) {
		head := make([]byte, 5)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		if binary.BigEndian.Uint16(head[3:]) > oneSegment {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		up, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(behind)))
		if err != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(c, up)
		}()
		if _, err := up.Write(head); err == nil {
			_, _ = io.Copy(up, c)
		}
		_ = up.Close()
		<-done
	})
}

func TestLongClientHelloThatIsLostIsNamed(t *testing.T) {
	h := newHouse(t, nil)
	cfg := to(oneSegmentOnly(t, serve(t, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf, h.mid)}})), h.pool)
	cfg.Timeout = 500 * time.Millisecond
	r := run(t, cfg)
	if !r.Verified() || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "cannot take a ClientHello of two segments") {
		t.Fatalf("failure %v, notes %q", r.Failure, r.Notes)
	}
	if r.Handshakes.Full.Took.N != 3 || r.Handshakes.Full.Hello > oneSegment || !r.Versions[0].Spoken {
		t.Errorf("the rest by short ones: %+v, %+v", r.Handshakes.Full, r.Versions)
	}
}

func TestSegments(t *testing.T) {
	way := func(hello int, low, median, high float64, failed int) Measured {
		m := Measured{Hello: hello, Took: Spread{5, median, low, high}}
		if failed > 0 {
			m.Failed = map[Kind]int{Silent: failed}
		}
		return m
	}
	for _, tt := range []struct {
		name           string
		large, classic Measured
		want           string
	}{
		{"alike", way(1700, 9, 10, 11, 0), way(300, 9, 10, 11, 0), ""},
		{"computing only", way(1700, 3, 4, 5, 0), way(300, 1, 2, 2.5, 0), ""},
		{"much slower", way(1700, 90, 100, 110, 0), way(300, 45, 50, 60, 0), "slower than one of 300 bytes by 50.0 ms"},
		{"slower and scattered", way(1700, 50, 100, 110, 0), way(300, 45, 50, 60, 0), ""},
		{"lost now and then", way(1700, 9, 10, 11, 1), way(300, 9, 10, 11, 0), "some handshakes whose ClientHello takes two segments"},
		{"both lost", way(1700, 9, 10, 11, 1), way(300, 9, 10, 11, 1), ""},
		{"one segment each", way(300, 90, 100, 110, 0), way(300, 9, 10, 11, 0), ""},
	} {
		got := (&Comparison{Full: tt.large, Classic: tt.classic}).segments()
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestClientCertificates(t *testing.T) {
	h := newHouse(t, nil)
	ours := chain(h.leaf, h.mid)
	foreign := newHouse(t, nil)
	theirs := chain(foreign.leaf, foreign.mid)
	for _, tt := range []struct {
		name    string
		auth    tls.ClientAuthType
		version uint16
		cert    *tls.Certificate
		want    string // part of what is wrong, "" = nothing
		before  bool   // the handshake itself fails
	}{
		{"sent", tls.RequireAndVerifyClientCert, tls.VersionTLS13, &ours, "", false},
		{"sent, 1.2", tls.RequireAndVerifyClientCert, tls.VersionTLS12, &ours, "", false},
		{"none", tls.RequireAndVerifyClientCert, tls.VersionTLS13, nil, "tls.client_cert is not set", false},
		{"none, 1.2", tls.RequireAndVerifyClientCert, tls.VersionTLS12, nil, "tls.client_cert is not set", true},
		{"foreign", tls.RequireAndVerifyClientCert, tls.VersionTLS13, &theirs, "refuses the client certificate", false},
		{"asked only", tls.RequestClientCert, tls.VersionTLS13, nil, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for tickets
			cfg := to(serve(t, &tls.Config{
				Certificates: []tls.Certificate{chain(h.leaf, h.mid)}, ClientAuth: tt.auth, ClientCAs: h.pool, MaxVersion: tt.version,
			}), h.pool)
			cfg.ClientCert, cfg.Handshakes = tt.cert, 1
			r := run(t, cfg)
			got := r.Failure
			if !tt.before {
				if got != nil || r.ClientCert == nil || r.ClientCert.Sent != (tt.cert != nil) {
					t.Fatalf("failure %v, client certificate %+v", got, r.ClientCert)
				}
				got = r.ClientCert.Failure
			}
			if (got == nil) != (tt.want == "") || got != nil && (got.Kind != ClientCert || !strings.Contains(got.Text, tt.want)) {
				t.Errorf("%+v, want %q", got, tt.want)
			}
		})
	}
}

func TestReportEndsWithItsContext(t *testing.T) {
	h := newHouse(t, nil)
	port := serve(t, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf, h.mid)}})
	ctx, cancel := context.WithCancel(t.Context())
	dials := 0
	cfg := to(port, h.pool)
	inner := cfg.Dial
	cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		if dials++; dials == 3 {
			cancel()
		}
		return inner(ctx)
	}
	r, err := TLS(ctx, cfg)
	if err != nil || dials != 3 || !r.Verified() || len(r.Versions) != 1 || r.Handshakes != nil {
		t.Errorf("%v, %d connections, %+v", err, dials, r)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "not examined") {
		t.Errorf("notes %q", r.Notes)
	}
}

// A report has no secret: what is printed is made of these fields alone.
func TestReportIsBoundedAndSpeaksJSON(t *testing.T) {
	h := newHouse(t, nil)
	cfg := to(serve(t, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf, h.mid)}}), h.pool)
	dials := 0
	inner := cfg.Dial
	cfg.Dial = func(ctx context.Context) (net.Conn, error) { dials++; return inner(ctx) }
	raw, err := json.Marshal(run(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	if most := 11 + 3*cfg.Handshakes; dials > most {
		t.Errorf("%d connections, want %d at most", dials, most)
	}
	for _, want := range []string{`"verified":true`, `"key_exchange":"X25519MLKEM768"`, `"lifetime_seconds":604800`, `"client_hello_bytes":`, `"resumed_share":1`, `"median_ms":`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("no %s in %s", want, raw)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no host": {}, "port": {Host: "a", Port: 70000}, "handshakes": {Host: "a", Handshakes: 1000}, "time-out": {Host: "a", Timeout: -1},
	} {
		if _, err := TLS(t.Context(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A client that only compares verifies as any client does.
func TestCompareRefusesAnUntrustedServer(t *testing.T) {
	h := newHouse(t, nil)
	p, err := New(to(serve(t, &tls.Config{Certificates: []tls.Certificate{chain(h.leaf)}}), h.pool))
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	p.Compare(t.Context(), 2, func(w Way, _ Handshake, f *Failure) {
		calls++
		if f == nil || f.Kind != Untrusted || !errors.As(f, new(x509.UnknownAuthorityError)) {
			t.Errorf("%v: %v", w, f)
		}
	})
	if calls != 4 { // nothing to resume
		t.Errorf("%d handshakes, want 4", calls)
	}
}
