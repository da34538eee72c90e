// SPDX-License-Identifier: Apache-2.0

package clientenv_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/warmwire/warmwire/internal/clientenv"
	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(kv ...string) (clientenv.Env, map[string]string) {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }, m
}

// made returns what w makes of an environment.
func made(t *testing.T, w clientenv.Way, e clientenv.Env) map[string]string {
	t.Helper()
	list, err := w.Variables(e)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, v := range list {
		out[v.Name] = v.Value
	}
	return out
}

// root makes a root of somebody else's.
func root(t *testing.T, name string) []byte {
	t.Helper()
	cert, _ := testenv.Certificate(t, t.TempDir(), name)
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func authority(t *testing.T) *x509.Certificate {
	t.Helper()
	a, err := ca.New(ca.Config{Hosts: []string{"api.test"}})
	if err != nil {
		t.Fatal(err)
	}
	return a.Certificates()[0]
}

func certificates(t *testing.T, file string) (n int, has func(*x509.Certificate) bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("BEGIN CERTIFICATE")), func(c *x509.Certificate) bool {
		return bytes.Contains(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
}

// TestAnEnvironmentMadeAnewIsTheSame is what a shell does that evaluates `warmwire env`
// at each start.
func TestAnEnvironmentMadeAnewIsTheSame(t *testing.T) {
	roots, company := root(t, "system"), filepath.Join(t.TempDir(), "company.pem")
	if err := os.WriteFile(company, root(t, "company"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := clientenv.Way{Base: "http://127.0.0.1:8484", Token: "a:b", Upstreams: []string{"openai"}, Dir: t.TempDir(),
		Authorities: []*x509.Certificate{authority(t)}, Roots: func() ([]byte, error) { return roots, nil }}
	e, vars := env("NODE_EXTRA_CA_CERTS", company, "REQUESTS_CA_BUNDLE", company, "AWS_CA_BUNDLE", company, "NO_PROXY", ".corp, ::1", "no_proxy", "x.test",
		"NODE_OPTIONS", "--no-warnings", "JAVA_TOOL_OPTIONS", "-Xmx1g", "OPENAI_API_BASE", "https://gateway.test/v1")
	first := made(t, w, e)
	for name, want := range map[string]string{
		"HTTPS_PROXY": "http://warmwire:a%3Ab@127.0.0.1:8484", "NO_PROXY": "localhost,127.0.0.1,.corp,::1,x.test",
		"OPENAI_BASE_URL": "http://127.0.0.1:8484/openai/v1",
	} {
		if first[name] != want {
			t.Errorf("%s=%s, want %s", name, first[name], want)
		}
	}
	if _, set := first["OPENAI_API_BASE"]; set {
		t.Error("a gateway's base URL was changed")
	}
	if _, set := first["GIT_SSL_CAINFO"]; set {
		t.Error("git's own setting was replaced")
	}
	for name, want := range map[string]int{"SSL_CERT_FILE": 2, "REQUESTS_CA_BUNDLE": 3, "AWS_CA_BUNDLE": 3, "NODE_EXTRA_CA_CERTS": 2, "DENO_CERT": 1} {
		if n, _ := certificates(t, first[name]); n != want {
			t.Errorf("%s has %d certificates, want %d", name, n, want)
		}
	}
	maps.Copy(vars, first)
	if again := made(t, w, e); !maps.Equal(again, first) {
		t.Errorf("made anew: %v, first: %v", again, first)
	}

	// A rotated authority takes the place of the old one, and the company's stays.
	before := w.Authorities[0]
	w.Authorities = []*x509.Certificate{authority(t)}
	again := made(t, w, e)
	n, has := certificates(t, again["REQUESTS_CA_BUNDLE"])
	if n != 3 || has(before) || !has(w.Authorities[0]) {
		t.Errorf("%d certificates; the old one %v, the new one %v", n, has(before), has(w.Authorities[0]))
	}

	// What leads to us no more is taken back.
	maps.Copy(vars, again)
	w.Upstreams = nil
	if v, set := made(t, w, e)["OPENAI_BASE_URL"]; !set || v != "" {
		t.Errorf("OPENAI_BASE_URL=%s", v)
	}
}

func TestJavaTrustStoreHasRootsAndOurs(t *testing.T) {
	roots := append(root(t, "one"), root(t, "two")...)
	w := clientenv.Way{Base: "http://127.0.0.1:8484", Dir: filepath.Join(t.TempDir(), "with space"), Authorities: []*x509.Certificate{authority(t)},
		Roots: func() ([]byte, error) { return roots, nil }}
	if err := os.Mkdir(w.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	none, _ := env()
	vars := made(t, w, none)
	file := filepath.Join(w.Dir, "java-truststore.p12")
	if !strings.Contains(vars["JAVA_TOOL_OPTIONS"], `"-Djavax.net.ssl.trustStore=`+file+`"`) || vars["NODE_OPTIONS"] != `--require "`+filepath.Join(w.Dir, "node-proxy.cjs")+`"` {
		t.Errorf("not quoted: %s, %s", vars["JAVA_TOOL_OPTIONS"], vars["NODE_OPTIONS"])
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := pkcs12.DecodeTrustStore(text, pkcs12.DefaultPassword)
	if err != nil || len(certs) != 3 {
		t.Fatalf("%d certificates, %v", len(certs), err)
	}
	made(t, w, none)
	if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, text) {
		t.Errorf("written again without need: %v", err)
	}

	own, _ := env("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStore=/etc/corp.p12")
	if options := made(t, w, own)["JAVA_TOOL_OPTIONS"]; strings.Contains(options, w.Dir) {
		t.Errorf("the user's own store is replaced: %s", options)
	}
}

func TestRootsThatCannotBeReadAreAnError(t *testing.T) {
	broken := errors.New("broken")
	w := clientenv.Way{Base: "http://127.0.0.1:8484", Dir: t.TempDir(), Authorities: []*x509.Certificate{authority(t)},
		Roots: func() ([]byte, error) { return nil, broken }}
	none, _ := env()
	if _, err := w.Variables(none); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	cut := filepath.Join(t.TempDir(), "cut.pem")
	if err := os.WriteFile(cut, root(t, "x")[:200], 0o600); err != nil {
		t.Fatal(err)
	}
	w.Roots = func() ([]byte, error) { return root(t, "system"), nil }
	e, _ := env("SSL_CERT_FILE", cut)
	if _, err := w.Variables(e); err == nil {
		t.Error("a file that ends within a certificate was joined")
	}
}

func TestApplySetsAndTakesAway(t *testing.T) {
	got := clientenv.Apply([]string{"A=1", "B=2", "C=3"}, []clientenv.Variable{{Name: "B", Value: "x"}, {Name: "C"}, {Name: "D", Value: "4"}})
	if strings.Join(got, " ") != "A=1 B=x D=4" {
		t.Errorf("%q", got)
	}
}
