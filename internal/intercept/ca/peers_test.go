// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// permittedHosts are what clients must accept, and forbiddenHosts what they must
// refuse although the authority's key has signed it.
var (
	permittedHosts = []string{"api.example", "xn--bcher-kva.example", "under_score.example", "127.0.0.1", "::1"}
	forbiddenHosts = []string{"evil.example", "127.0.0.2", "::2"}
)

// writeFile writes certificates for a peer to read.
func writeFile(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// leafOf is the certificate of a host, forged if it is not listed.
func leafOf(t *testing.T, a *Authority, host string) []byte {
	t.Helper()
	if cert, err := a.Certificate(host); err == nil {
		return PEM(cert.Leaf)
	}
	return PEM(forge(t, a, host))
}

func TestOpenSSLVerifiesStrictly(t *testing.T) {
	openssl := testenv.Need(t, "openssl")
	a := newCA(t, Config{})
	roots := writeFile(t, "ca.pem", PEM(a.Certificates()...))
	verify := func(host string) (string, error) {
		name := "-verify_hostname"
		if net.ParseIP(host) != nil {
			name = "-verify_ip"
		}
		out, err := exec.CommandContext(t.Context(), openssl, "verify", "-x509_strict", "-check_ss_sig", "-purpose", "sslserver", "-no-CApath", "-CAfile", roots,
			name, host, writeFile(t, "leaf.pem", leafOf(t, a, host))).CombinedOutput()
		return string(out), err
	}
	for _, host := range permittedHosts {
		if out, err := verify(host); err != nil {
			t.Errorf("%s: %v\n%s", host, err, out)
		}
	}
	for _, host := range forbiddenHosts {
		if out, err := verify(host); err == nil || !strings.Contains(out, "subtree") { // permitted or excluded subtree violation
			t.Errorf("%s: %v\n%s", host, err, out)
		}
	}
}

// GnuTLS, which reads constraints in its own way.
func TestGnuTLSVerifies(t *testing.T) {
	certtool := testenv.Need(t, "certtool")
	a := newCA(t, Config{})
	roots := writeFile(t, "ca.pem", PEM(a.Certificates()...))
	verify := func(host string) (string, error) {
		args := []string{"--verify", "--verify-purpose", "1.3.6.1.5.5.7.3.1", "--load-ca-certificate", roots, "--infile", writeFile(t, "leaf.pem", leafOf(t, a, host))}
		if net.ParseIP(host) == nil {
			args = append(args, "--verify-hostname", host)
		}
		out, err := exec.CommandContext(t.Context(), certtool, args...).CombinedOutput()
		return string(out), err
	}
	for _, host := range permittedHosts {
		if out, err := verify(host); err != nil {
			t.Errorf("%s: %v\n%s", host, err, out)
		}
	}
	for _, host := range forbiddenHosts {
		if out, err := verify(host); err == nil {
			t.Errorf("%s is accepted\n%s", host, out)
		}
	}
}

// serve answers as each host over TLS, on addresses of this machine, forged or not.
// It returns the port.
func serve(t *testing.T, a *Authority) string {
	t.Helper()
	var port string
	certificate := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		host := hello.ServerName
		if host == "" { // an address is not named
			host, _, _ = net.SplitHostPort(hello.Conn.LocalAddr().String())
		}
		if cert, err := a.Certificate(host); err == nil {
			return cert, nil
		}
		leaf := forge(t, a, host)
		return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: a.key}, nil
	}
	for _, address := range []string{"127.0.0.1:", "127.0.0.2:", "[::1]:"} {
		l, err := net.Listen("tcp", address+port)
		if err != nil {
			testenv.SkipOrFail(t, "cannot listen on %s: %v", address+port, err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		srv := &http.Server{
			Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }),
			ErrorLog: log.New(io.Discard, "", 0), // refusals are what is wanted
		}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(tls.NewListener(l, &tls.Config{GetCertificate: certificate})) }()
		t.Cleanup(func() {
			_ = srv.Close() // the error is Serve's
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
	}
	return port
}

// A client asks a server for each host: "ok HOST" or "refused HOST: why" a line.
const pythonClient = `
import socket, ssl, sys
roots, port = sys.argv[1:3]
context = ssl.create_default_context(cafile=roots)
context.verify_flags |= ssl.VERIFY_X509_STRICT
if hasattr(ssl, "VERIFY_X509_PARTIAL_CHAIN"):
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
for name in sys.argv[3:]:
    address = name if name[0].isdigit() or ":" in name else "127.0.0.1"
    try:
        with socket.create_connection((address, int(port)), 10) as raw, context.wrap_socket(raw, server_hostname=name) as conn:
            print("ok", name)
    except ssl.SSLCertVerificationError as e:
        print("refused", name + ":", e.verify_message)
`

const nodeClient = `
const tls = require("tls");
const [port, ...names] = process.argv.slice(1);
const ask = (name) => new Promise((done) => {
  const ip = require("net").isIP(name);
  const conn = tls.connect({ host: ip ? name : "127.0.0.1", port, servername: ip ? undefined : name, checkServerIdentity: (_, cert) => tls.checkServerIdentity(name, cert) },
    () => { console.log("ok " + name); conn.destroy(); done(); });
  conn.on("error", (e) => { console.log("refused " + name + ": " + e.code + " " + e.message); done(); });
});
(async () => { for (const name of names) await ask(name); })();
`

// clientVerdicts checks what a client has printed.
func clientVerdicts(t *testing.T, out []byte, err error, why string, permitted, forbidden []string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, host := range permitted {
		if !strings.Contains(string(out), "ok "+host+"\n") {
			t.Errorf("%s is not accepted:\n%s", host, out)
		}
	}
	for _, host := range forbidden {
		_, rest, found := strings.Cut(string(out), "refused "+host+":")
		if line, _, _ := strings.Cut(rest, "\n"); !found || !strings.Contains(line, why) {
			t.Errorf("%s is not refused for its name:\n%s", host, out)
		}
	}
}

// reached are the hosts of the lists that a server on this machine can be asked for.
func reached(hosts []string) (list []string) {
	for _, host := range hosts {
		if host != "::2" {
			list = append(list, host)
		}
	}
	return list
}

func TestPythonVerifiesStrictly(t *testing.T) {
	python := testenv.NeedPython(t)
	a := newCA(t, Config{})
	port := serve(t, a)
	args := append([]string{"-c", pythonClient, writeFile(t, "ca.pem", PEM(a.Certificates()...)), port}, reached(append(permittedHosts, forbiddenHosts...))...)
	out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput()
	clientVerdicts(t, out, err, "subtree violation", permittedHosts, reached(forbiddenHosts))
}

func TestNodeVerifies(t *testing.T) {
	node := testenv.Need(t, "node")
	a := newCA(t, Config{})
	port := serve(t, a)
	cmd := exec.CommandContext(t.Context(), node, append([]string{"-e", nodeClient, port}, reached(append(permittedHosts, forbiddenHosts...))...)...)
	cmd.Env = append(os.Environ(), "NODE_EXTRA_CA_CERTS="+writeFile(t, "ca.pem", PEM(a.Certificates()...)))
	out, err := cmd.CombinedOutput()
	clientVerdicts(t, out, err, "subtree violation", permittedHosts, reached(forbiddenHosts))
}

func TestCurlVerifies(t *testing.T) {
	curl := testenv.Need(t, "curl")
	a := newCA(t, Config{})
	port, roots := serve(t, a), writeFile(t, "ca.pem", PEM(a.Certificates()...))
	ask := func(host string) (string, error) {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		out, err := exec.CommandContext(t.Context(), curl, "-sS", "--noproxy", "*", "--max-time", "20", "--cacert", roots, "--connect-to", "::127.0.0.1:",
			"--resolve", "*:"+port+":127.0.0.1", "https://"+host+":"+port+"/").CombinedOutput()
		return string(out), err
	}
	for _, host := range []string{"api.example", "xn--bcher-kva.example", "under_score.example", "127.0.0.1"} {
		if out, err := ask(host); err != nil || out != "fine" {
			t.Errorf("%s: %v %s", host, err, out)
		}
	}
	if out, err := ask("evil.example"); err == nil || !strings.Contains(out, "subtree") {
		t.Errorf("evil.example: %v %s", err, out)
	}
}

func TestGoVerifies(t *testing.T) {
	a := newCA(t, Config{})
	port := serve(t, a)
	for _, host := range reached(append(permittedHosts, forbiddenHosts...)) {
		address := "127.0.0.1"
		if net.ParseIP(host) != nil {
			address = host
		}
		conn, err := tls.Dial("tcp", net.JoinHostPort(address, port), &tls.Config{ServerName: host, RootCAs: poolOf(a)})
		if err == nil {
			_ = conn.Close()
		}
		forbidden := strings.Contains(strings.Join(forbiddenHosts, " "), host)
		if forbidden != (err != nil) || err != nil && !strings.Contains(err.Error(), "constraint") && !strings.Contains(err.Error(), "excluded") && !strings.Contains(err.Error(), "permitted") {
			t.Errorf("%s: %v", host, err)
		}
	}
}
