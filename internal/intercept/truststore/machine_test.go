// SPDX-License-Identifier: Apache-2.0

package truststore_test

import (
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/intercept/truststore"
	"github.com/warmwire/warmwire/internal/testenv"
)

// newCert makes an authority's certificate and its file in dir.
func newCert(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	a, err := ca.New(ca.Config{Hosts: []string{"api.example"}})
	if err != nil {
		t.Fatal(err)
	}
	cert := a.Certificates()[0]
	if err := os.WriteFile(filepath.Join(dir, truststore.Name(cert)+".crt"), ca.PEM(cert), 0o600); err != nil {
		t.Fatal(err)
	}
	return cert
}

// do runs a plan of n steps.
func do(t *testing.T, m truststore.Machine, plan truststore.Plan, err error, n int) {
	t.Helper()
	if err != nil || len(plan.Steps) != n {
		t.Fatalf("%d steps %v, %v; want %d", len(plan.Steps), plan, err, n)
	}
	for _, s := range plan.Steps {
		if err := m.Do(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

// Debian's own program takes the certificate in and out again, below another root.
func TestDebianTrustsAndForgets(t *testing.T) {
	testenv.Need(t, "update-ca-certificates")
	root, dir := t.TempDir(), t.TempDir()
	for _, d := range []string{"usr/local/share/ca-certificates", "usr/share/ca-certificates", "etc/ssl/certs", "etc/ca-certificates/update.d"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/etc/ca-certificates.conf", []byte("# none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	site := filepath.Join(root, "usr/local/share/ca-certificates/warmwire-site.crt") // not ours
	other := newCert(t, dir)
	if err := os.WriteFile(site, ca.PEM(other), 0o644); err != nil {
		t.Fatal(err)
	}
	m, cert, old := truststore.Machine{OS: "linux", Root: root}, newCert(t, dir), newCert(t, dir)
	bundle := func() string {
		text, err := os.ReadFile(root + "/etc/ssl/certs/ca-certificates.crt")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	plan, err := m.Install(t.Context(), dir, cert, old)
	do(t, m, plan, err, 3)
	if got := bundle(); !strings.Contains(got, string(ca.PEM(cert))) || !strings.Contains(got, string(ca.PEM(old))) {
		t.Error("they are not trusted")
	}
	plan, err = m.Install(t.Context(), dir, cert, old)
	do(t, m, plan, err, 0) // they are there

	plan, err = m.Uninstall(t.Context(), cert)
	do(t, m, plan, err, 2)
	if got := bundle(); !strings.Contains(got, string(ca.PEM(cert))) || strings.Contains(got, string(ca.PEM(old))) {
		t.Error("the wrong ones are trusted after the old one was removed")
	}
	plan, err = m.Uninstall(t.Context())
	do(t, m, plan, err, 2)
	if got := bundle(); strings.Contains(got, string(ca.PEM(cert))) || !strings.Contains(got, string(ca.PEM(other))) {
		t.Error("the site's own is to stay alone")
	}
}

// The other systems' commands, which cannot be run here.
func TestCommandsOfOtherSystems(t *testing.T) {
	dir := t.TempDir()
	cert := newCert(t, dir)
	look := func(name string) (string, error) {
		if strings.HasPrefix(name, "/") {
			return "", exec.ErrNotFound
		}
		return name, nil
	}
	root := t.TempDir()
	if err := os.MkdirAll(root+"/etc/pki/ca-trust/source/anchors", 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, truststore.Name(cert)+".crt")
	for system, want := range map[string]string{
		"linux":  "install -m 0644 " + file + " " + root + "/etc/pki/ca-trust/source/anchors/" + truststore.Name(cert) + ".crt\nupdate-ca-trust\n",
		"darwin": "security add-trusted-cert -d -r trustRoot -p ssl -k " + root + "/Library/Keychains/System.keychain " + file + "\n",
	} {
		plan, err := truststore.Machine{OS: system, Root: root, LookPath: look}.Install(t.Context(), dir, cert)
		var got strings.Builder
		for _, s := range plan.Steps {
			got.WriteString(s.String() + "\n")
			if !s.Root {
				t.Errorf("%s: %s does not need root", system, s)
			}
		}
		if err != nil || got.String() != want {
			t.Errorf("%s: %v\n%swant\n%s", system, err, got.String(), want)
		}
	}
}

func TestAStepIsAShellsCommand(t *testing.T) {
	for want, args := range map[string][]string{
		"rm -f /a/b.crt":       {"rm", "-f", "/a/b.crt"},
		`x 'a b' 'it'\''s' ''`: {"x", "a b", "it's", ""},
	} {
		if got := (truststore.Step{Args: args}).String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A browser's database, by Mozilla's own program.
func TestABrowsersDatabase(t *testing.T) {
	certutil := testenv.Need(t, "certutil")
	home, dir := t.TempDir(), t.TempDir()
	db := home + "/.pki/nssdb"
	if err := os.MkdirAll(db, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), certutil, "-N", "-d", "sql:"+db, "--empty-password").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m, cert := truststore.Machine{OS: "other", Home: home}, newCert(t, dir)
	verify := func() error {
		return exec.CommandContext(t.Context(), certutil, "-V", "-u", "L", "-d", "sql:"+db, "-n", truststore.Name(cert)).Run()
	}
	plan, err := m.Install(t.Context(), dir, cert)
	do(t, m, plan, err, 1)
	if plan.Steps[0].Root {
		t.Error("a user's own database needs no root")
	}
	if err := verify(); err != nil {
		t.Errorf("it is not trusted: %v", err)
	}
	plan, err = m.Install(t.Context(), dir, cert)
	do(t, m, plan, err, 0)
	plan, err = m.Uninstall(t.Context())
	do(t, m, plan, err, 1)
	if verify() == nil {
		t.Error("it is still trusted")
	}
}
