// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/warmwire/warmwire/internal/testenv"
)

// Other people's servers, on loopback, in clear.

func TestNghttpd(t *testing.T) {
	path := testenv.Need(t, "nghttpd")
	dir := t.TempDir()
	big := bytes.Repeat([]byte("nghttpd!"), 1<<17) // 1 MiB
	if err := os.WriteFile(filepath.Join(dir, "big"), big, 0o600); err != nil {
		t.Fatal(err)
	}
	port := testenv.FreePort(t)
	testenv.Run(t, exec.Command(path, "--no-tls", "--address=127.0.0.1", "--htdocs="+dir, "--echo-upload", "--max-concurrent-streams=20", port))
	exercise(t, port, "/big", big, 20)
}

func TestNginx(t *testing.T) {
	path := testenv.Need(t, "nginx")
	dir := t.TempDir()
	big := bytes.Repeat([]byte("nginx..!"), 1<<17)
	if err := os.WriteFile(filepath.Join(dir, "big"), big, 0o644); err != nil {
		t.Fatal(err)
	}
	port := testenv.FreePort(t)
	conf := fmt.Sprintf(`daemon off; pid %[1]s/pid; error_log stderr error; worker_processes 1; user %[3]s;
events {}
http {
  access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server { listen 127.0.0.1:%[2]s http2; http2_max_concurrent_streams 30; root %[1]s; client_max_body_size 10m;
    location /early { return 413 "too large"; } }
}`, dir, port, userName())
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Run(t, exec.Command(path, "-p", dir, "-c", file))
	exercise(t, port, "/big", big, 30)
	t.Run("an early answer to a large upload", func(t *testing.T) {
		c := connect(t, port)
		resp := do(t, c, request(t, "POST", "/early", bytes.NewReader(make([]byte, 4<<20))))
		if got := readAll(t, resp); resp.StatusCode != 413 || got != "too large" {
			t.Errorf("%d %q", resp.StatusCode, got)
		}
		eventually(t, "nothing is in flight", func() bool { return c.InFlight() == 0 })
	})
}

func userName() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return "nobody" // nginx ignores it then
}

// exercise runs what every server must be able to do.
func exercise(t *testing.T, port, path string, want []byte, streams int) {
	t.Run("its limit of streams is seen", func(t *testing.T) {
		c := connect(t, port)
		if n := c.Available(); n != streams {
			t.Errorf("available %d, want %d", n, streams)
		}
	})
	t.Run("many at once, some cancelled", func(t *testing.T) {
		c := connect(t, port)
		var wg sync.WaitGroup
		for i := range streams {
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
				b, err := io.ReadAll(resp.Body)
				if err != nil || !bytes.Equal(b, want) {
					t.Errorf("%d bytes, %v", len(b), err)
				}
			})
		}
		wg.Wait()
		eventually(t, "nothing is in flight", func() bool { return c.InFlight() == 0 && c.Available() == streams })
	})
	t.Run("an upload and HEAD", func(t *testing.T) {
		c := connect(t, port)
		resp := do(t, c, request(t, "POST", path, bytes.NewReader(make([]byte, 300<<10))))
		_ = readAll(t, resp)
		resp = do(t, c, request(t, "HEAD", path, nil))
		if _ = readAll(t, resp); resp.StatusCode != 200 || resp.ContentLength != int64(len(want)) {
			t.Errorf("HEAD: %d, length %d", resp.StatusCode, resp.ContentLength)
		}
		if d, err := c.Ping(t.Context()); d <= 0 || err != nil {
			t.Errorf("PING: %v, %v", d, err)
		}
	})
}

// connect opens a connection, as soon as the server is up.
func connect(t *testing.T, port string) *Conn {
	t.Helper()
	var nc net.Conn
	eventually(t, "the server listens", func() bool {
		var err error
		nc, err = net.Dial("tcp", "127.0.0.1:"+port)
		return err == nil
	})
	c := start(t, nc, Config{Priority: true})
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}
