// SPDX-License-Identifier: Apache-2.0

package h3

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// Other people's servers. (Debian's nginx has no HTTP/3: it is 1.22, and that came
// with 1.25.)

func TestCaddy(t *testing.T) {
	path := testenv.Need(t, "caddy")
	dir := t.TempDir()
	big := bytes.Repeat([]byte("caddy..!"), 1<<15) // 256 KiB
	server, client := testTLS()
	write := func(name string, b []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("big", big)
	pair := server.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
	keyFile := write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(testenv.FreePorts(t, 1)[0]))
	conf := write("Caddyfile", fmt.Appendf(nil, `{
	admin off
	auto_https disable_redirects
}
https://example.com:%d {
	bind 127.0.0.1
	tls %s %s
	root * %s
	respond /early "too large" 413
	file_server
}
`, addr.Port(), cert, keyFile, dir))
	cmd := exec.Command(path, "run", "--config", conf, "--adapter", "caddyfile")
	cmd.Env = []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}
	testenv.Run(t, cmd)
	exercise(t, addr, client, "/big", big)
}

// exercise runs what every server must be able to do.
func exercise(t *testing.T, addr netip.AddrPort, client *tls.Config, path string, want []byte) {
	e := endpoint(t, nil)
	cfg := Config{TLS: client, Priority: true, HandshakeTimeout: 500 * time.Millisecond}
	eventually(t, "the server listens", func() bool {
		c, err := e.Dial(t.Context(), addr, cfg)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	cfg.HandshakeTimeout = 0
	t.Run("many at once, some cancelled", func(t *testing.T) {
		c := dial(t, e, addr, cfg)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				req := request(t, "GET", path, nil)
				req.Header.Set("X-Number", strings.Repeat("n", i))
				resp, err := c.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer resp.Body.Close()
				if i%3 == 0 {
					_, _ = io.CopyN(io.Discard, resp.Body, 1000)
					return
				}
				if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(b, want) {
					t.Errorf("%d bytes, %v", len(b), err)
				}
			})
		}
		wg.Wait()
		eventually(t, "nothing is in flight", func() bool { return c.InFlight() == 0 && c.Available() > 0 })
	})
	t.Run("HEAD, an early answer to an upload, PING", func(t *testing.T) {
		c := dial(t, e, addr, cfg)
		resp := do(t, c, request(t, "HEAD", path, nil))
		if _ = readAll(t, resp); resp.StatusCode != 200 || resp.ContentLength != int64(len(want)) {
			t.Errorf("HEAD: %d, length %d", resp.StatusCode, resp.ContentLength)
		}
		resp = do(t, c, request(t, "POST", "/early", bytes.NewReader(make([]byte, 4<<20))))
		if got := readAll(t, resp); resp.StatusCode != 413 || got != "too large" {
			t.Errorf("%d %q", resp.StatusCode, got)
		}
		if d, err := c.Ping(t.Context()); d <= 0 || err != nil {
			t.Errorf("PING: %v, %v", d, err)
		}
		eventually(t, "nothing is in flight", func() bool { return c.InFlight() == 0 })
	})
	t.Run("a session, and the socket before it", func(t *testing.T) {
		cfg := cfg
		cfg.TLS = client.Clone()
		cfg.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		for i := range 3 {
			c := dial(t, e, addr, cfg)
			_ = readAll(t, do(t, c, request(t, "GET", path, nil)))
			if err := c.Migrate(t.Context()); !errors.Is(err, ErrMoved) {
				t.Errorf("Migrate: %v", err)
			}
			if st := c.Stats(); i == 2 && !st.Resumed {
				t.Errorf("%+v", st)
			}
			_ = c.Close()
		}
		c := dial(t, e, addr, cfg)
		if err := e.Move(t.Context()); err != nil && !errors.Is(err, ErrNoMigration) {
			t.Error(err)
		}
		if got := readAll(t, do(t, c, request(t, "GET", path, nil))); got != string(want) {
			t.Errorf("%d bytes after the move", len(got))
		}
	})
}

// A trace holds the newest, and whole records.
func TestTraceIsBounded(t *testing.T) {
	tr := &trace{dir: t.TempDir(), name: "x.sqlog"}
	record := "\x1e" + `{"time":1,"data":"` + strings.Repeat("x", 500) + `"}`
	for range 1000 {
		_, _ = tr.Write([]byte(record))
	}
	_, _ = tr.Write([]byte("\x1e{\"last\":1}"))
	tr.keep()
	text, err := os.ReadFile(filepath.Join(tr.dir, tr.name))
	if err != nil || len(text) > maxTrace+len(record) || !bytes.HasSuffix(text, []byte(`{"last":1}`)) {
		t.Errorf("%v, %d bytes", err, len(text))
	}
	for _, r := range bytes.Split(text, []byte{0x1e})[1:] {
		if !json.Valid(r) {
			t.Fatalf("%.80s", r)
		}
	}
}

// A trace tells of packets and frames, and never what a field holds.
func TestQlogHoldsNoSecret(t *testing.T) {
	const secret = "sk-planted-secret"
	dir := filepath.Join(t.TempDir(), "traces")
	server, client := testTLS()
	pc, addr := udp(t)
	serve(t, pc, echo{}, server, nil)
	e := endpoint(t, nil)
	c := dial(t, e, addr, Config{TLS: client, QlogDir: dir, Priority: true})
	req := request(t, "POST", "/?key="+secret, strings.NewReader(secret))
	req.Header.Set("Authorization", "Bearer "+secret)
	if got := readAll(t, do(t, c, req)); got != secret {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("there is a trace, and nothing has happened")
	}
	// quic-go writes it from a goroutine of its own.
	eventually(t, "the trace tells of packets so far", func() bool { return strings.Contains(c.Trace(), "packet_received") })
	if text := c.Trace(); strings.Contains(text, "planted") {
		t.Errorf("the trace so far: %s", text)
	}
	c.KeepTrace()
	_ = c.Close()
	_ = e.Close()
	var trace []byte
	eventually(t, "the trace is there", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "*.sqlog"))
		if len(files) == 1 {
			trace, _ = os.ReadFile(files[0])
		}
		return bytes.Contains(trace, []byte("connection_closed"))
	})
	for i, record := range bytes.Split(trace, []byte{0x1e})[1:] {
		if !json.Valid(record) {
			t.Errorf("record %d is no JSON: %s", i, record)
		}
	}
	if !bytes.Contains(trace, []byte("packet_sent")) || bytes.Contains(trace, []byte("planted")) || bytes.Contains(trace, []byte("authorization")) {
		t.Errorf("the trace:\n%s", trace)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}
