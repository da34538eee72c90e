// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
	"github.com/warmwire/warmwire/tlspool/trust"
)

func client(t testing.TB, issuer *holder, name string, edit ...func(*x509.Certificate)) *holder {
	t.Helper()
	return issue(t, issuer, name, append(edit, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })...)
}

// saved writes a certificate with its key, and returns their files.
func saved(t testing.TB, h *holder) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	return write(t, filepath.Join(dir, "cert.pem"), pemOf(h)), write(t, filepath.Join(dir, "key.pem"), keyPEM(t, h))
}

// nginx starts a server that asks clients for a certificate of clients, and answers
// with whom it saw and whether the connection was resumed.
func nginx(t *testing.T, p pki, clients *holder) string {
	t.Helper()
	bin := testenv.Need(t, "nginx")
	dir := t.TempDir()
	port := testenv.FreePorts(t, 1)[0]
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	write(t, filepath.Join(dir, "cert.pem"), pemOf(p.leaf, p.ca))
	write(t, filepath.Join(dir, "key.pem"), keyPEM(t, p.leaf))
	write(t, filepath.Join(dir, "clients.pem"), pemOf(clients))
	conf := write(t, filepath.Join(dir, "nginx.conf"), fmt.Appendf(nil, `
daemon off; master_process off; pid %[1]s/pid; error_log stderr warn;
events { worker_connections 64; }
http {
	access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	ssl_session_cache shared:s:1m;
	server {
		listen %[2]s ssl;
		ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem; ssl_protocols TLSv1.2 TLSv1.3;
		ssl_verify_client on; ssl_client_certificate %[1]s/clients.pem;
		location / { return 200 "$ssl_client_s_dn $ssl_session_reused"; }
	}
}`, dir, addr))
	testenv.Run(t, exec.Command(bin, "-p", dir, "-e", "stderr", "-c", conf), port)
	return addr
}

// greet asks nginx whom it sees.
func greet(t *testing.T, addr string, v *trust.Verifier, cert *trust.ClientCert, sessions tls.ClientSessionCache) (status int, seen, id string) {
	t.Helper()
	cfg := &tls.Config{ServerName: host, ClientSessionCache: sessions}
	v.Apply(cfg, "", nil)
	id = cert.Apply(cfg)
	conn, err := dial(t, addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), id
}

func TestTwoClientCertificatesAtNginx(t *testing.T) {
	at := newClock()
	p := newPKI(t)
	systemOf(t, p.root)
	clients := issue(t, nil, "Clients", isCA)
	addr := nginx(t, p, clients)
	v := newVerifier(t, trust.Config{Now: at.now})
	alice, bob := client(t, clients, "alice"), client(t, clients, "bob")
	aliceCert, aliceKey := saved(t, alice)
	a, err := trust.LoadClientCertAt(aliceCert, aliceKey, at.now)
	if err != nil {
		t.Fatal(err)
	}
	b, err := trust.LoadClientCert(saved(t, bob))
	if err != nil {
		t.Fatal(err)
	}
	if a.ID() == b.ID() || !a.NotAfter().Equal(alice.cert.NotAfter) {
		t.Errorf("got the IDs %s and %s", a.ID(), b.ID())
	}
	// One cache of sessions an identity, as their IDs demand.
	caches := map[string]tls.ClientSessionCache{a.ID(): tls.NewLRUClientSessionCache(8), b.ID(): tls.NewLRUClientSessionCache(8)}
	for round := range 2 {
		for name, c := range map[string]*trust.ClientCert{"alice": a, "bob": b} {
			status, seen, _ := greet(t, addr, v, c, caches[c.ID()])
			reused := map[bool]string{true: "r", false: "."}[round > 0]
			if status != 200 || !strings.Contains(seen, "CN="+name) || !strings.HasSuffix(seen, " "+reused) {
				t.Errorf("round %d as %s: got %d %q", round, name, status, seen)
			}
		}
	}

	// Renewed on disk, one file after the other, while running.
	old := a.ID()
	carol := client(t, clients, "carol")
	replace(t, aliceCert, pemOf(carol))
	at.advance(trust.LookEvery)
	if status, seen, id := greet(t, addr, v, a, nil); status != 200 || !strings.Contains(seen, "CN=alice") || id != old {
		t.Errorf("with half of the new pair: got %d %q", status, seen)
	}
	if err := a.Err(); err == nil || !strings.Contains(err.Error(), "stays in use") {
		t.Errorf("got %v, want it said that the files do not match", err)
	}
	replace(t, aliceKey, keyPEM(t, carol))
	at.advance(trust.LookEvery)
	status, seen, id := greet(t, addr, v, a, nil)
	if status != 200 || !strings.Contains(seen, "CN=carol") || id == old || a.Err() != nil {
		t.Errorf("with the new pair: got %d %q, ID changed %t, %v", status, seen, id != old, a.Err())
	}

	// Of somebody whom the server does not know.
	stranger, err := trust.LoadClientCert(saved(t, client(t, issue(t, nil, "Others", isCA), "mallory")))
	if err != nil {
		t.Fatal(err)
	}
	if status, seen, _ := greet(t, addr, v, stranger, nil); status != 400 {
		t.Errorf("a stranger got %d %q", status, seen)
	}
}

// A connection's ID is that of the certificate it showed, whatever happens to the
// files between.
func TestAnIDIsThatOfTheCertificateShown(t *testing.T) {
	at := newClock()
	clients := issue(t, nil, "Clients", isCA)
	alice, bob := client(t, clients, "alice"), client(t, clients, "bob")
	certFile, keyFile := saved(t, alice)
	c, err := trust.LoadClientCertAt(certFile, keyFile, at.now)
	if err != nil {
		t.Fatal(err)
	}
	var cfg tls.Config
	id := c.Apply(&cfg)
	replace(t, certFile, pemOf(bob))
	replace(t, keyFile, keyPEM(t, bob))
	at.advance(trust.LookEvery)
	if c.ID() == id {
		t.Fatal("the new certificate is not in use")
	}
	if got, err := cfg.GetClientCertificate(nil); err != nil || !got.Leaf.Equal(alice.cert) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := c.GetClientCertificate(nil); err != nil || !got.Leaf.Equal(bob.cert) {
		t.Errorf("got %v, %v", got, err)
	}
	// Removed: the last one stays.
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	at.advance(trust.LookEvery)
	if got, err := c.GetClientCertificate(nil); err != nil || !got.Leaf.Equal(bob.cert) || c.Err() == nil {
		t.Errorf("got %v, %v, %v", got, err, c.Err())
	}
	// Expired while in use.
	at.advance(48 * time.Hour)
	if _, err := c.GetClientCertificate(nil); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("got %v", err)
	}
}

func TestClientCertificatesThatCannotBeUsed(t *testing.T) {
	clients := issue(t, nil, "Clients", isCA)
	alice, bob := client(t, clients, "alice"), client(t, clients, "bob")
	now := time.Now()
	dir := t.TempDir()
	file := func(name string, text []byte) string { return write(t, filepath.Join(dir, name), text) }
	old := client(t, clients, "old", valid(now.Add(-9*24*time.Hour), now.Add(-3*24*time.Hour)))
	early := client(t, clients, "early", valid(now.Add(time.Hour), now.Add(2*time.Hour)))
	cert, key := file("a.pem", pemOf(alice)), file("a.key", keyPEM(t, alice))
	for name, tt := range map[string]struct{ cert, key, want string }{
		"another key":      {cert, file("b.key", keyPEM(t, bob)), "does not match"},
		"no file":          {filepath.Join(dir, "none"), key, "client certificate: open"},
		"no key file":      {cert, filepath.Join(dir, "none"), "client certificate's key: open"},
		"the key for both": {key, key, "a.key"},
		"expired":          {file("o.pem", pemOf(old)), file("o.key", keyPEM(t, old)), `"old" expired at`},
		"of tomorrow":      {file("e.pem", pemOf(early)), file("e.key", keyPEM(t, early)), `"early" is not valid before`},
	} {
		_, err := trust.LoadClientCert(tt.cert, tt.key)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "PRIVATE") && strings.Contains(err.Error(), "MIG") {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
}
