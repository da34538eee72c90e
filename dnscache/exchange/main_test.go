// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mustParse returns the spec of a resolver written in a test.
func mustParse(t testing.TB, text string) Spec {
	t.Helper()
	spec, err := ParseSpec(text)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// open returns an Exchanger that is closed with the test.
func open(t testing.TB, text string, cfg Config) Exchanger {
	t.Helper()
	x, err := Open(mustParse(t, text), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// answerTo returns an answer to m with the given records.
func answerTo(t testing.TB, m *dns.Msg, records ...string) *dns.Msg {
	t.Helper()
	out := new(dns.Msg).SetReply(m)
	out.RecursionAvailable = true
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Errorf("record %q: %v", text, err)
			continue
		}
		out.Answer = append(out.Answer, rr)
	}
	if m.IsEdns0() != nil {
		out.SetEdns0(udpPayload, false)
	}
	return out
}

func pack(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Errorf("pack: %v", err)
	}
	return b
}

func unpackQuery(t testing.TB, b []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Errorf("the question does not parse: %v", err)
	}
	return m
}

// wantAddr checks that an answer has one address at the end of its chain.
func wantAddr(t testing.TB, got Answer, err error, want string) {
	t.Helper()
	if err != nil {
		t.Fatalf("Exchange: %v", err)
	}
	if len(got.Records) == 0 || got.Records[len(got.Records)-1].Addr != netip.MustParseAddr(want) {
		t.Fatalf("records %+v, want the address %s", got.Records, want)
	}
}

func wantKind(t testing.TB, err error, want Kind) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != want {
		t.Fatalf("error %v, want kind %s", err, want)
	}
}

// A packets is a resolver that gets datagrams in memory. Its handler runs in
// the goroutine that sends one, one at a time, and must not block.
type packets struct {
	handle func(conn int, b []byte, reply func([]byte))

	handling sync.Mutex // held while handle runs

	mu    sync.Mutex // guards the field below
	conns int
}

func (p *packets) dial(_ context.Context, network, _ string) (net.Conn, error) {
	if network != "udp" {
		return nil, errors.New("only udp here")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns++
	return &packetConn{p: p, n: p.conns, in: make(chan []byte, 1000), past: make(chan struct{})}, nil
}

type packetConn struct {
	net.Conn // the methods that are not used
	p        *packets
	n        int
	in       chan []byte
	once     sync.Once
	past     chan struct{}
}

func (c *packetConn) Read(b []byte) (int, error) {
	select {
	case m := <-c.in:
		return copy(b, m), nil
	case <-c.past:
		return 0, os.ErrDeadlineExceeded
	}
}

func (c *packetConn) Write(b []byte) (int, error) {
	c.p.handling.Lock()
	defer c.p.handling.Unlock()
	c.p.handle(c.n, b, func(m []byte) { c.in <- m })
	return len(b), nil
}

func (c *packetConn) SetDeadline(time.Time) error { // only ever one in the past
	c.once.Do(func() { close(c.past) })
	return nil
}

func (c *packetConn) Close() error { return nil }

// A peer is the server's end of a stream.
type peer struct {
	net.Conn
	r *bufio.Reader
}

func (p *peer) next(t testing.TB) (*dns.Msg, error) {
	b, err := readMessage(p.r)
	if err != nil {
		return nil, err
	}
	return unpackQuery(t, b), nil
}

func (p *peer) send(t testing.TB, m *dns.Msg) { p.sendBytes(pack(t, m)) }

func (p *peer) sendBytes(b []byte) {
	_, _ = p.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)) // the client's error shows
}

// serve runs handle for each connection of l, counted from 1, until l closes.
func serve(t testing.TB, l net.Listener, handle func(n int, p *peer)) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() {
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				handle(n, &peer{Conn: conn, r: bufio.NewReader(conn)})
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
}

// An identity is a server's certificate and what its clients need to know.
type identity struct {
	tls   tls.Certificate
	roots func() *x509.CertPool
	pin   string
	pem   [2][]byte // certificate and key, in DER
}

// newIdentity makes a certificate for names and addresses, valid now on the
// clock of the caller.
func newIdentity(t testing.TB, hosts ...string) identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "resolver of a test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return identity{
		tls:   tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert},
		roots: func() *x509.CertPool { return roots },
		pin:   base64.StdEncoding.EncodeToString(sum[:]),
		pem:   [2][]byte{der, keyDER},
	}
}
