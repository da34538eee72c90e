// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"
)

// A pki is a root, an intermediate and what they sign.
type pki struct {
	roots       *x509.CertPool
	root, inter *x509.Certificate
	key         crypto.Signer // of the intermediate
	newKey      func() crypto.Signer
	from        time.Time
}

func newECDSA() crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func newRSA() crypto.Signer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
}

func newPKI(newKey func() crypto.Signer) *pki {
	p := &pki{roots: x509.NewCertPool(), newKey: newKey, from: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)} // also valid in a bubble
	rootKey := newKey()
	p.key = newKey()
	p.root = p.sign("test root", true, nil, rootKey, rootKey)
	p.inter = p.sign("test intermediate", true, p.root, rootKey, p.key)
	p.roots.AddCert(p.root)
	return p
}

func (p *pki) sign(name string, ca bool, parent *x509.Certificate, by, key crypto.Signer) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"Example"}},
		NotBefore: p.from, NotAfter: p.from.AddDate(100, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: ca,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ca {
		tmpl.KeyUsage |= x509.KeyUsageCertSign
		tmpl.ExtKeyUsage = nil
	} else {
		tmpl.DNSNames = []string{name}
	}
	if parent == nil {
		parent = tmpl
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), by)
	if err != nil {
		panic(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return c
}

// cert is a certificate for name with its chain.
func (p *pki) cert(name string) tls.Certificate {
	key := p.newKey()
	leaf := p.sign(name, false, p.inter, p.key, key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, p.inter.Raw}, PrivateKey: key, Leaf: leaf}
}

// pem is a certificate with its key, as programs read it.
func (p *pki) pem(c tls.Certificate) (certs, key []byte) {
	var b bytes.Buffer
	for _, der := range c.Certificate {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		panic(err)
	}
	return b.Bytes(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

var ecPKI = sync.OnceValue(func() *pki { return newPKI(newECDSA) })

const host = "a.example"

var hostKey = Key{ServerName: host, Port: "443", Protocols: "http/1.1", Trust: "t"}

// serve runs a TLS server of Go's that answers each request with "ok" and ends
// the connection.
func serve(t testing.TB, cfg *tls.Config) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { answer(tls.Server(c, cfg)) })
		}
	})
	return l.Addr().String()
}

func answer(c *tls.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 1024)
	if _, err := c.Read(buf); err == nil {
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nok")
	}
}

// dial makes one handshake and one request, and reads the answer to its end:
// tickets come with it.
func dial(ctx context.Context, h *Handshake, addr string, cfg *tls.Config) (tls.ConnectionState, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	cfg = cfg.Clone()
	cfg.ClientSessionCache = h
	c := tls.Client(raw, cfg)
	defer c.Close()
	if err := c.HandshakeContext(ctx); err != nil {
		h.Failed(err)
		return tls.ConnectionState{}, err
	}
	h.Done(c.ConnectionState().DidResume)
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return tls.ConnectionState{}, err
	}
	b, err := io.ReadAll(c)
	if err != nil && len(b) == 0 {
		return tls.ConnectionState{}, fmt.Errorf("answer: %w", err)
	}
	return c.ConnectionState(), nil
}

// client is a configuration for host.
func (p *pki) client() *tls.Config { return &tls.Config{ServerName: host, RootCAs: p.roots} }

// mustDial fails the test if the handshake fails or is not resumed as wanted.
func mustDial(t testing.TB, s *Store, k Key, addr string, cfg *tls.Config, resumed bool) tls.ConnectionState {
	t.Helper()
	st, err := dial(t.Context(), s.Handshake(k), addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if st.DidResume != resumed {
		t.Fatalf("resumed %v, want %v; store %+v", st.DidResume, resumed, s.State())
	}
	return st
}

// madeSession is a session as if a server had given it.
func madeSession(t testing.TB, version uint16, label string, created, useBy time.Time) *tls.ClientSessionState {
	t.Helper()
	state, err := tls.ParseSessionState(encodeSession(version, created, useBy))
	if err != nil {
		t.Fatal(err)
	}
	cs, err := tls.NewResumptionState([]byte(label), state)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

var madeLeaf = sync.OnceValue(func() []byte { return ecPKI().cert(host).Certificate[0] })

// encodeSession writes what Go 1.27 writes.
func encodeSession(version uint16, created, useBy time.Time) []byte {
	u := func(n int, v uint64) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(v >> (8 * (n - 1 - i)))
		}
		return b
	}
	leaf := madeLeaf()
	certs := append(u(3, uint64(len(leaf))), leaf...)
	certs = append(certs, 0, 0) // no extensions
	b := bytes.Join([][]byte{
		u(2, uint64(version)), {2}, u(2, uint64(tls.TLS_AES_128_GCM_SHA256)), u(8, uint64(created.Unix())),
		u(1, 32), bytes.Repeat([]byte{7}, 32), u(3, 0), {1}, {0},
		u(3, uint64(len(certs))), certs, u(3, 0),
	}, nil)
	if version < tls.VersionTLS13 {
		return append(b, u(2, uint64(tls.X25519))...)
	}
	return append(append(b, u(8, uint64(useBy.Unix()))...), 1, 2, 3, 4)
}
