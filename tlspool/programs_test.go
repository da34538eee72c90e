// SPDX-License-Identifier: Apache-2.0

package tlspool

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmwire/warmwire/internal/testenv"
)

// files writes the certificate for host as programs read it.
func (p *pki) files(t testing.TB) (dir, cert, key string) {
	t.Helper()
	dir = t.TempDir()
	c, k := p.pem(p.cert(host))
	cert, key = dir+"/cert.pem", dir+"/key.pem"
	must(t, os.WriteFile(cert, c, 0o600))
	must(t, os.WriteFile(key, k, 0o600))
	must(t, os.WriteFile(dir+"/both.pem", append(c, k...), 0o600))
	return dir, cert, key
}

// eventually waits until ok says so.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within 15 s", what)
		}
	}
}

// says returns what the server answers to a connection that has no sessions.
func says(p *pki, addr string) string {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", addr, p.client())
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	b, _ := io.ReadAll(c)
	return string(b)
}

// openSSL starts `openssl s_server` and returns its address and how to end it.
func openSSL(t *testing.T, p *pki, args ...string) (addr string, stop func()) {
	t.Helper()
	_, cert, key := p.files(t)
	return testenv.OpenSSL(t, append([]string{"-cert", cert, "-cert_chain", cert, "-key", key}, args...)...)
}

func TestOpenSSL(t *testing.T) {
	p := ecPKI()
	tests := []struct {
		name    string
		args    []string
		tickets int  // after the first handshake
		resumes bool // then
	}{
		{"four tickets", []string{"-num_tickets", "4"}, 4, true},
		{"two tickets", nil, 2, true},
		{"no tickets", []string{"-num_tickets", "0"}, 0, false},
		{"single use, kept by the server", []string{"-no_ticket"}, 2, true},
		{"TLS 1.2", []string{"-tls1_2"}, 1, true},
		{"TLS 1.2 without tickets", []string{"-tls1_2", "-no_ticket"}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr, stop := openSSL(t, p, tt.args...)
			s := New(Config{})
			mustDial(t, s, hostKey, addr, p.client(), false)
			if got := s.State()[0].Tickets; got != tt.tickets {
				t.Errorf("%d tickets after the first handshake, want %d", got, tt.tickets)
			}
			for range 5 {
				mustDial(t, s, hostKey, addr, p.client(), tt.resumes)
			}
			stop()
			addr, _ = openSSL(t, p, tt.args...) // with other ticket keys
			for i := range 4 {
				mustDial(t, s, hostKey, addr, p.client(), tt.resumes && i > 0)
			}
			c := s.State()[0].Counts
			if want := map[bool]uint64{true: 1}[tt.resumes]; c.Refused != want || c.Failed != 0 {
				t.Errorf("counts %+v, want %d refused", c, want)
			}
		})
	}
}

// Four tickets serve four connections that are opened at once.
func TestABurstOfConnectionsResumes(t *testing.T) {
	p := ecPKI()
	addr, _ := openSSL(t, p, "-num_tickets", "4")
	s := New(Config{})
	mustDial(t, s, hostKey, addr, p.client(), false)
	handshakes := make([]*Handshake, 4)
	for i := range handshakes {
		handshakes[i] = s.Handshake(hostKey)
	}
	taken := make(chan bool, len(handshakes))
	var wg sync.WaitGroup
	for _, h := range handshakes {
		wg.Go(func() {
			st, err := dial(t.Context(), h, addr, p.client())
			taken <- err == nil && st.DidResume
		})
	}
	wg.Wait()
	for range handshakes {
		if !<-taken {
			t.Error("a connection of the burst did not resume")
		}
	}
}

func ticketKey() []byte {
	key := make([]byte, 80)
	rand.Read(key) // never fails
	return key
}

// nginxConf writes the configuration, whose answer is the generation.
func nginxConf(t testing.TB, dir, port, generation, settings string) string {
	t.Helper()
	me, err := user.Current()
	must(t, err)
	path := dir + "/nginx.conf"
	must(t, os.WriteFile(path, fmt.Appendf(nil, `daemon off; pid %[1]s/pid; error_log stderr crit; worker_processes 1; user %[5]s;
events {}
http {
  access_log off; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server { listen 127.0.0.1:%[2]s ssl; ssl_certificate %[1]s/cert.pem; ssl_certificate_key %[1]s/key.pem; %[4]s
    location / { return 200 "%[3]s"; } }
}`, dir, port, generation, settings, me.Username), 0o600))
	return path
}

// workers are the processes that pid has started.
func workers(t testing.TB, pid int) []string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		testenv.SkipOrFail(t, "needs a kernel that lists children: %v", err)
	}
	return strings.Fields(string(b))
}

func TestNginx(t *testing.T) {
	p := ecPKI()
	for _, version := range []string{"TLSv1.2", "TLSv1.3"} {
		t.Run(version+" ticket keys rotated", func(t *testing.T) {
			dir, _, _ := p.files(t)
			port := testenv.FreePort(t)
			addr := "127.0.0.1:" + port
			settings := fmt.Sprintf("ssl_protocols %s; ssl_session_ticket_key %s/ticket.key;", version, dir)
			must(t, os.WriteFile(dir+"/ticket.key", ticketKey(), 0o600))
			nginx := exec.Command(testenv.Need(t, "nginx"), "-p", dir, "-c", nginxConf(t, dir, port, "one", settings))
			testenv.Run(t, nginx)
			eventually(t, "nginx answers", func() bool { return strings.Contains(says(p, addr), "one") })
			s := New(Config{})
			mustDial(t, s, hostKey, addr, p.client(), false)
			for range 5 {
				mustDial(t, s, hostKey, addr, p.client(), true)
			}
			for _, generation := range []string{"two", "three"} {
				must(t, os.WriteFile(dir+"/ticket.key", ticketKey(), 0o600))
				nginxConf(t, dir, port, generation, settings)
				old := workers(t, nginx.Process.Pid)
				must(t, nginx.Process.Signal(syscall.SIGHUP))
				eventually(t, "nginx reloads", func() bool { return strings.Contains(says(p, addr), generation) })
				// The old worker takes connections until it is gone.
				eventually(t, "the old worker ends", func() bool {
					now := workers(t, nginx.Process.Pid)
					return len(now) == 1 && now[0] != old[0]
				})
				mustDial(t, s, hostKey, addr, p.client(), false)
				for range 5 {
					mustDial(t, s, hostKey, addr, p.client(), true)
				}
			}
			if c := s.State()[0].Counts; c.Resumed != 15 || c.Refused != 2 || c.Failed != 0 {
				t.Errorf("counts %+v", c)
			}
		})
		t.Run(version+" tickets off", func(t *testing.T) {
			dir, _, _ := p.files(t)
			port := testenv.FreePort(t)
			addr := "127.0.0.1:" + port
			testenv.Run(t, exec.Command(testenv.Need(t, "nginx"), "-p", dir, "-c", nginxConf(t, dir, port, "one", "ssl_session_tickets off; ssl_protocols "+version+";")))
			eventually(t, "nginx answers", func() bool { return strings.Contains(says(p, addr), "one") })
			s := New(Config{})
			for range 5 {
				mustDial(t, s, hostKey, addr, p.client(), false)
			}
			if c := s.State()[0].Counts; c.Failed != 0 || c.Full != 5 {
				t.Errorf("counts %+v", c)
			}
		})
	}
}

func TestHAProxy(t *testing.T) {
	p := ecPKI()
	for _, version := range []string{"1.2", "1.3"} {
		t.Run("TLS "+version, func(t *testing.T) {
			dir, _, _ := p.files(t)
			var keys []string
			addKey := func() {
				keys = append(keys, base64.StdEncoding.EncodeToString(ticketKey()))
				keys = keys[max(0, len(keys)-3):] // the last but one is what it encrypts with
				must(t, os.WriteFile(dir+"/tickets", []byte(strings.Join(keys, "\n")+"\n"), 0o600))
			}
			start := func() (addr string, stop func()) {
				port := testenv.FreePort(t)
				addr = "127.0.0.1:" + port
				path := filepath.Join(dir, "haproxy.cfg")
				must(t, os.WriteFile(path, fmt.Appendf(nil, `defaults
  mode http
  timeout client 10s
frontend in
  bind 127.0.0.1:%s ssl crt %s/both.pem tls-ticket-keys %s/tickets ssl-min-ver TLSv%s ssl-max-ver TLSv%s
  http-request return status 200 content-type text/plain string ok
`, port, dir, dir, version, version), 0o600))
				stop = testenv.Run(t, exec.Command(testenv.Need(t, "haproxy"), "-db", "-f", path))
				eventually(t, "haproxy answers", func() bool { return strings.Contains(says(p, addr), "ok") })
				return addr, stop
			}
			addKey()
			addKey()
			addKey()
			addr, stop := start()
			s := New(Config{})
			mustDial(t, s, hostKey, addr, p.client(), false)
			for i := range 4 {
				// With keys of its own HAProxy gives two TLS 1.3 tickets with a
				// full handshake and none with one that resumes, unless its key
				// is an old one: two of three handshakes can resume.
				mustDial(t, s, hostKey, addr, p.client(), version == "1.2" || i%3 != 2)
			}
			stop()
			addKey()
			addr, stop = start() // it still knows the key of before
			mustDial(t, s, hostKey, addr, p.client(), true)
			stop()
			addKey()
			addKey()
			addKey()
			addr, _ = start()
			mustDial(t, s, hostKey, addr, p.client(), false)
			mustDial(t, s, hostKey, addr, p.client(), true)
			if c := s.State()[0].Counts; c.Refused != 1 || c.Failed != 0 {
				t.Errorf("counts %+v", c)
			}
		})
	}
}
