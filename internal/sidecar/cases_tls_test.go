// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/sidecar"
	"github.com/warmwire/warmwire/internal/testenv"
)

// secureUpstream is an HTTPS server and the file with its certificate.
func secureUpstream(t *testing.T, cfg *tls.Config) (base, ca string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	srv.EnableHTTP2, srv.TLS, srv.Config.ErrorLog = true, cfg, log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return srv.URL, ca
}

// The first handshake after a restart is a resumed one; after a flush it is not, and
// a file that somebody has touched costs its warmth and a warning.
func TestARestartResumes(t *testing.T) {
	base, ca := secureUpstream(t, nil)
	conf := fmt.Sprintf("upstreams:\n  up: {url: '%s', tls: {ca_file: %s}, pool: {warm: 0, idle_timeout: 1ms}}\n", base, ca)
	state := t.TempDir()
	run := func(kind string, then func(*rig)) *rig {
		t.Helper()
		r := startIn(t, state, "", conf)
		if status, body := r.call("/up/v1/x"); status != 200 || body != "here" {
			t.Fatalf("%d %s", status, body)
		}
		r.metric(fmt.Sprintf(`warmwire_tls_handshakes_total{kind="%s",upstream="up"} 1`, kind))
		if then != nil {
			then(r)
		}
		r.stop()
		return r
	}
	run("full", nil)
	run("resumed", func(r *rig) {
		var st struct {
			TLS struct {
				Roots    struct{ Source string }
				Sessions []struct {
					Server  string
					Resumed int
				}
			}
		}
		page := r.get("/v1/status")
		if err := json.Unmarshal([]byte(page), &st); err != nil {
			t.Fatal(err)
		}
		if s := st.TLS.Sessions; len(s) != 1 || "https://"+s[0].Server != base || s[0].Resumed != 1 || st.TLS.Roots.Source == "" {
			t.Errorf("status: %+v", st)
		}
	})
	run("resumed", func(r *rig) {
		if status, body := r.post("/v1/tls/flush?name=127.0.0.1"); status != 200 || !strings.Contains(body, `"sessions": 1`) {
			t.Errorf("flush: %d %s", status, body)
		}
	})
	run("full", nil)
	file := filepath.Join(state, "tls.sessions")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run("full", nil); !strings.Contains(r.log.String(), "starting without the sessions of the last run") {
		t.Errorf("no word of the damaged file:\n%s", r.log)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A start that fails leaves the sessions of the last run where they are.
func TestAFailedStartKeepsTheSessions(t *testing.T) {
	base, ca := secureUpstream(t, nil)
	conf := fmt.Sprintf("upstreams:\n  up: {url: '%s', tls: {ca_file: %s}, pool: {warm: 0}}\n", base, ca)
	state := t.TempDir()
	r := startIn(t, state, "", conf)
	if status, _ := r.call("/up/v1/x"); status != 200 {
		t.Fatal(status)
	}
	r.stop()
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	r.write("", conf+fmt.Sprintf("dns: {listen: '%s'}\n", taken.LocalAddr()))
	cfg, _, err := config.Load(r.file, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sidecar.New(cfg, sidecar.Options{}); err == nil {
		t.Fatal("it started although dns.listen is taken")
	}
	again := startIn(t, state, "", conf)
	if status, _ := again.call("/up/v1/x"); status != 200 {
		t.Fatal(status)
	}
	again.metric(`warmwire_tls_handshakes_total{kind="resumed",upstream="up"} 1`)
}

// Sessions stay in memory if no file is wanted.
func TestSessionsInMemoryOnly(t *testing.T) {
	base, ca := secureUpstream(t, nil)
	state := t.TempDir()
	r := startIn(t, state, "", fmt.Sprintf("tls: {session_file: none}\nupstreams:\n  up: {url: '%s', tls: {ca_file: %s}}\n", base, ca))
	if status, _ := r.call("/up/v1/x"); status != 200 {
		t.Fatal(status)
	}
	r.stop()
	if left, _ := filepath.Glob(filepath.Join(state, "tls.*")); len(left) > 0 {
		t.Errorf("there is %v", left)
	}
}

// A file that cannot be written costs its warmth, and is told of once.
func TestSessionsThatCannotBeWritten(t *testing.T) {
	base, ca := secureUpstream(t, nil)
	r := start(t, "", fmt.Sprintf("tls: {session_file: %s/x}\nupstreams:\n  up: {url: '%s', tls: {ca_file: %[1]s}, pool: {warm: 0}}\n", ca, base))
	if status, _ := r.call("/up/v1/x"); status != 200 {
		t.Fatal(status)
	}
	for range 2 {
		if status, body := r.post("/v1/tls/flush"); status != 200 {
			t.Errorf("flush: %d %s", status, body)
		}
	}
	r.stop()
	if n := strings.Count(r.log.String(), "the sessions could not be written"); n != 1 {
		t.Errorf("told %d times:\n%s", n, r.log)
	}
}

// A key that is not pinned is refused with the key to set, or reported only.
func TestPinnedKeys(t *testing.T) {
	base, ca := secureUpstream(t, nil)
	const other = "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	for _, tt := range []struct {
		more, action string
		status       int
	}{{"", "refused", 502}, {", pins_report_only: true", "reported", 200}} {
		r := start(t, "", fmt.Sprintf("upstreams:\n  up: {url: '%s', tls: {ca_file: %s, pins: ['%s']%s}, pool: {warm: 0}}\n", base, ca, other, tt.more))
		status, body := r.call("/up/v1/x")
		if status != tt.status || status != 200 && (!strings.Contains(body, "upstream_tls_untrusted") || !strings.Contains(body, "tls.pins")) {
			t.Errorf("%s: %d %s", tt.action, status, body)
		}
		r.metric(fmt.Sprintf(`warmwire_tls_verification_failures_total{action="%s",reason="pin_mismatch",upstream="up"} 1`, tt.action))
	}
}

// A further CA does not replace the system's, unless it is said so: then those of the
// system are not asked.
func TestFurtherCAs(t *testing.T) {
	base, ca := secureUpstream(t, nil)
	other := anotherCA(t)
	for more, want := range map[string]int{"ca_file: " + ca: 200, "ca_file: " + ca + ", ca_only: true": 200, "ca_file: " + other + ", ca_only: true": 502} {
		r := start(t, "", fmt.Sprintf("upstreams:\n  up: {url: '%s', tls: {%s}, pool: {warm: 0}}\n", base, more))
		if status, body := r.call("/up/v1/x"); status != want {
			t.Errorf("%s: %d %s", more, status, body)
		}
	}
}

// anotherCA is the file with a CA that signed nothing.
func anotherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "other.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestAReplacedCertificateThatIsRefusedIsShown breaks the file of a client certificate:
// the one in use stays, and status says why the new one is not.
func TestAReplacedCertificateThatIsRefusedIsShown(t *testing.T) {
	cert, key := testenv.Certificate(t, t.TempDir(), "app")
	r := start(t, "127.0.0.1:1", fmt.Sprintf("upstreams:\n  up: {url: 'https://127.0.0.1:1', tls: {client_cert: %q, client_key: %q}}\n", cert, key))
	if page := r.get("/v1/status"); !strings.Contains(page, `"client_cert": {`) || strings.Contains(page, `"error"`) {
		t.Fatalf("status at first: %s", page)
	}
	if err := os.WriteFile(cert, []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience + 5*time.Second); ; {
		page := r.get("/v1/status")
		if strings.Contains(page, `"error": "client certificate`) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("status does not tell: %s", page)
		}
	}
}
