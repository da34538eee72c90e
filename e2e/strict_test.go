// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// strictHosts are intercepted: a name, an internationalised one, and addresses.
var strictHosts = []string{"openai.test", "xn--bcher-kva.test", "127.0.0.1", "::1"}

// TestServedChainsPassStrictVerification has clients verify what Warmwire serves in the
// place of listed hosts as strictly as they can. A host beside them shows its own chain.
func TestServedChainsPassStrictVerification(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	upstreamCA := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(upstreamCA, u.caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	unlisted, err := url.Parse(u.tls["openai"])
	if err != nil {
		t.Fatal(err)
	}
	// Each has a Warmwire of its own: an app that shakes hands again and again and asks
	// for nothing counts as one that pins certificates.
	for name, verify := range map[string]func(t *testing.T, proxy, roots string){
		"Python": func(t *testing.T, proxy, roots string) {
			judge(t, testenv.NeedPython(t, "ssl"), "clients/python/strict.py", proxy, roots, unlisted)
		},
		"Node": func(t *testing.T, proxy, roots string) {
			judge(t, testenv.Need(t, "node"), "clients/node/strict.mjs", proxy, roots, unlisted)
		},
		"OpenSSL": func(t *testing.T, proxy, roots string) {
			openssl := testenv.Need(t, "openssl")
			for _, host := range strictHosts {
				if host != "::1" { // s_client forgets the brackets when it asks a proxy
					opensslVerifies(t, openssl, proxy, roots, host)
				}
			}
		},
		"Go": func(t *testing.T, proxy, roots string) {
			for _, host := range strictHosts {
				goVerifies(t, proxy, roots, net.JoinHostPort(host, "443"))
			}
			if conn, err := shake(proxy, roots, unlisted.Host); err == nil {
				conn.Close()
				t.Error("a host that is not listed shows Warmwire's certificate")
			}
			conn, err := shake(proxy, upstreamCA, unlisted.Host)
			if err != nil {
				t.Fatalf("a host that is not listed: %v", err)
			}
			conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startWarmwire(t, u, upstreamCA, settings{listed: true, hosts: []string{strictHosts[1], "127.0.0.1", "'::1'"}})
			verify(t, s.origin, s.print(t, "ca", "path"))
		})
	}
}

// judge reads what a client says of each host.
func judge(t *testing.T, name, script, proxy, roots string, unlisted *url.URL) {
	t.Helper()
	args := []string{script, proxy, roots}
	for _, host := range strictHosts {
		args = append(args, host, "443")
	}
	args = append(args, unlisted.Hostname(), unlisted.Port())
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, host := range strictHosts {
		if !strings.Contains(string(out), "ok "+host+" Warmwire") {
			t.Errorf("%s is not accepted, or another has answered", host)
		}
	}
	if !strings.Contains(string(out), "refused localhost ") {
		t.Error("a host that is not listed shows Warmwire's certificate")
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// opensslVerifies shakes hands with -x509_strict, and verifies the served certificate
// once more by itself.
func opensslVerifies(t *testing.T, openssl, proxy, roots, host string) {
	t.Helper()
	name := []string{"-verify_hostname", host}
	hello := []string{"-servername", host}
	if net.ParseIP(host) != nil {
		name, hello = []string{"-verify_ip", host}, []string{"-noservername"}
	}
	trust := append([]string{"-x509_strict", "-check_ss_sig", "-no-CApath", "-no-CAstore", "-CAfile", roots}, name...)
	args := append([]string{"s_client", "-connect", net.JoinHostPort(host, "443"), "-proxy", strings.TrimPrefix(proxy, "http://"), "-verify_return_error",
		"-showcerts", "-alpn", "h2,http/1.1"}, append(hello, trust...)...)
	out, err := exec.CommandContext(t.Context(), openssl, args...).CombinedOutput() // its input is empty
	if err != nil || !bytes.Contains(out, []byte("Verify return code: 0 (ok)")) || !bytes.Contains(out, []byte("ALPN protocol: h2")) {
		t.Errorf("%s: %v\n%s", host, err, out)
		return
	}
	leaf, _ := pem.Decode(out[bytes.Index(out, []byte("-----BEGIN CERT")):])
	file := filepath.Join(t.TempDir(), "leaf.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(leaf), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append(append([]string{"verify", "-purpose", "sslserver"}, trust...), file)
	if out, err := exec.CommandContext(t.Context(), openssl, args...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", host, err, out)
	}
}

// goVerifies looks at the leaf too: what RFC 5280 and the CA/Browser Forum ask of it, and
// how long it lives.
func goVerifies(t *testing.T, proxy, roots, authority string) {
	t.Helper()
	conn, err := shake(proxy, roots, authority)
	if err != nil {
		t.Errorf("%s: %v", authority, err)
		return
	}
	defer conn.Close()
	state := conn.ConnectionState()
	leaf := state.PeerCertificates[0]
	now := time.Now()
	switch {
	case state.NegotiatedProtocol != "h2" || state.Version != tls.VersionTLS13:
		t.Errorf("%s: %s over %s", authority, state.NegotiatedProtocol, tls.VersionName(state.Version))
	case leaf.KeyUsage != x509.KeyUsageDigitalSignature || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth || leaf.IsCA:
		t.Errorf("%s: key usage %v %v, authority %v", authority, leaf.KeyUsage, leaf.ExtKeyUsage, leaf.IsCA)
	case len(leaf.DNSNames)+len(leaf.IPAddresses) != 1 || len(leaf.AuthorityKeyId) == 0:
		t.Errorf("%s: names %v %v, authority's key id %x", authority, leaf.DNSNames, leaf.IPAddresses, leaf.AuthorityKeyId)
	case leaf.NotBefore.After(now.Add(-23*time.Hour)) || leaf.NotAfter.After(now.AddDate(0, 0, 8)):
		t.Errorf("%s: from %v to %v", authority, leaf.NotBefore, leaf.NotAfter)
	case leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.BitLen() < 64 || leaf.SerialNumber.BitLen() > 159:
		t.Errorf("%s: a serial number of %d bits", authority, leaf.SerialNumber.BitLen())
	}
}

// shake makes a tunnel and a handshake in it.
func shake(proxy, roots, authority string) (*tls.Conn, error) {
	text, err := os.ReadFile(roots)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	raw, err := net.DialTimeout("tcp", strings.TrimPrefix(proxy, "http://"), patience)
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(patience)) // TCP has deadlines
	fmt.Fprintf(raw, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", authority)
	resp, err := http.ReadResponse(bufio.NewReader(raw), &http.Request{Method: http.MethodConnect})
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("CONNECT: %s", resp.Status)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	host, _, err := net.SplitHostPort(authority)
	if err != nil {
		raw.Close()
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: host, NextProtos: []string{"h2", "http/1.1"}})
	if err := conn.Handshake(); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}
