// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// A signer is a certificate with its key.
type signer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// issue makes a certificate signed by by, or by itself if that is nil.
func issue(t *testing.T, by *signer, name string, change func(*x509.Certificate)) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-10 * 24 * time.Hour), NotAfter: now.AddDate(1, 0, 0),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	change(c)
	parent, signKey := c, crypto.Signer(key)
	if by != nil {
		parent, signKey = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signKey)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{made, key}
}

func authority(c *x509.Certificate) {
	c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign|x509.KeyUsageDigitalSignature
}

func server(c *x509.Certificate) {
	c.DNSNames = []string{"model.test", "localhost"}
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	c.IssuingCertificateURL = []string{"http://ca.test/intermediate.der"}
}

// A house is a chain of three with the pool of its root.
type house struct {
	root, mid, leaf *signer
	pool            *x509.CertPool
}

func newHouse(t *testing.T, change func(*x509.Certificate)) *house {
	t.Helper()
	h := &house{root: issue(t, nil, "test root", authority), pool: x509.NewCertPool()}
	h.mid = issue(t, h.root, "test intermediate", authority)
	h.leaf = issue(t, h.mid, "the leaf", func(c *x509.Certificate) {
		server(c)
		if change != nil {
			change(c)
		}
	})
	h.pool.AddCert(h.root.cert)
	return h
}

// chain is what a server presents of these.
func chain(leaf *signer, others ...*signer) tls.Certificate {
	c := tls.Certificate{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}
	for _, o := range others {
		c.Certificate = append(c.Certificate, o.cert.Raw)
	}
	return c
}

// serve runs Go's TLS on loopback: it shakes hands and reads until the client leaves.
func serve(t *testing.T, cfg *tls.Config) (port int) {
	return listen(t, func(raw net.Conn) {
		conn := tls.Server(raw, cfg)
		if conn.Handshake() == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	})
}

// listen gives each connection to handle and closes it afterwards.
func listen(t *testing.T, handle func(net.Conn)) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	working.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			working.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); working.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

// to is the configuration for a server on loopback.
func to(port int, pool *x509.CertPool) Config {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return Config{
		Host: "model.test", Port: port, Roots: pool, RootsAsked: "the test's root", Handshakes: 3,
		Dial: dialer(address),
	}
}

// run examines and fails only where the configuration is wrong.
func run(t *testing.T, cfg Config) *Report {
	t.Helper()
	r, err := TLS(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files writes a chain and its key where programs read them.
func files(t *testing.T, c tls.Certificate) (certs, key string) {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	for _, der := range c.Certificate {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	certs, key = filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem")
	write(t, certs, []byte(b.String()))
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return certs, key
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// openssl runs s_server on a free port until the test ends.
func openssl(t *testing.T, c tls.Certificate, args ...string) (port int) {
	t.Helper()
	certs, key := files(t, c)
	leaf := filepath.Join(filepath.Dir(certs), "leaf.pem")
	write(t, leaf, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
	all := []string{"-cert", leaf, "-key", key}
	if len(c.Certificate) > 1 {
		all = append(all, "-cert_chain", certs)
	}
	addr, _ := testenv.OpenSSL(t, append(all, args...)...)
	_, text, _ := net.SplitHostPort(addr)
	if port, _ = strconv.Atoi(text); port == 0 {
		t.Fatalf("openssl s_server listens on %q", addr)
	}
	return port
}

// nginx runs one on a free port until the test ends.
func nginx(t *testing.T, c tls.Certificate, settings string) (port int) {
	t.Helper()
	certs, key := files(t, c)
	dir := t.TempDir()
	port = testenv.FreePorts(t, 1)[0]
	conf := filepath.Join(dir, "nginx.conf")
	write(t, conf, []byte("daemon off; master_process off; pid "+dir+"/pid; error_log stderr crit;\n"+
		"events {}\nhttp { access_log off; client_body_temp_path "+dir+"; proxy_temp_path "+dir+"; fastcgi_temp_path "+dir+"; uwsgi_temp_path "+dir+"; scgi_temp_path "+dir+";\n"+
		"server { listen 127.0.0.1:"+strconv.Itoa(port)+" ssl http2; ssl_certificate "+certs+"; ssl_certificate_key "+key+"; "+settings+" return 204; } }\n"))
	testenv.Run(t, exec.Command(testenv.Need(t, "nginx"), "-c", conf, "-p", dir), port)
	return port
}
