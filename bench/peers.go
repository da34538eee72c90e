// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A peer is one proxy under test, or none.
type peer struct {
	name string
	base string    // where the client sends its calls
	cmd  *exec.Cmd // nil: direct
	note string    // version and how it reaches the upstream
}

func (p *peer) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	_ = p.cmd.Wait()
}

// A rack knows where peers keep their files and which upstream they serve.
type rack struct {
	dir      string // temporary
	ca       string // file
	upstream string // host:port, TLS
	self     string // this binary
}

// spawn starts a role of this binary and returns the address that it prints.
func (r *rack) spawn(ctx context.Context, args ...string) (*exec.Cmd, string, error) {
	cmd := exec.CommandContext(ctx, r.self, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, "", fmt.Errorf("%v: no address: %w", args, err)
	}
	return cmd, strings.TrimSpace(line), nil
}

// start runs a command that listens on address and waits until it answers.
func (r *rack) start(ctx context.Context, address, name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	logFile, err := os.Create(filepath.Join(r.dir, filepath.Base(name)+".log"))
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	cmd.Stdout, cmd.Stderr, cmd.Dir = logFile, logFile, r.dir
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			return cmd, c.Close()
		}
	}
	text, _ := os.ReadFile(logFile.Name())
	_ = cmd.Process.Kill()
	return nil, fmt.Errorf("%s does not listen on %s: %s", name, address, text)
}

// freeAddr picks a free port; what binds it next could lose it, which start
// would tell.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// errMissing says that a peer is not installed.
var errMissing = errors.New("not installed")

func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		if path = "/usr/sbin/" + name; fileMissing(path) {
			return "", fmt.Errorf("%s: %w", name, errMissing)
		}
	}
	return path, nil
}

func fileMissing(path string) bool {
	_, err := os.Stat(path)
	return err != nil
}

// startPeer starts a peer by name.
func (r *rack) startPeer(ctx context.Context, name string, s settings) (*peer, error) {
	address, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p := &peer{name: name, base: "http://" + address}
	switch name {
	case "direct":
		p.base, p.note = "https://"+r.upstream, "client to upstream, TLS, HTTP/1.1"
	case "stock", "stock-h1":
		h1 := name == "stock-h1"
		p.note = "httputil.ReverseProxy, FlushInterval -1, " + map[bool]string{false: "HTTP/2", true: "HTTP/1.1"}[h1] + " upstream"
		p.cmd, address, err = r.spawn(ctx, "-role=stock", "-target="+r.upstream, "-ca="+r.ca, fmt.Sprintf("-h1=%v", h1))
		p.base = "http://" + address
	case "warmwire", "warmwire-h1":
		err = r.startWarmwire(ctx, p, address, s, name == "warmwire-h1")
	case "nginx":
		err = r.startNginx(ctx, p, address)
	case "haproxy":
		err = r.startHAProxy(ctx, p, address)
	default:
		return nil, fmt.Errorf("unknown peer %q", name)
	}
	return p, err
}

func (r *rack) startWarmwire(ctx context.Context, p *peer, address string, s settings, h1 bool) error {
	protocols := "[h2, http/1.1]"
	p.note = "HTTP/2 upstream"
	if h1 {
		protocols, p.note = "[http/1.1]", "HTTP/1.1 upstream"
	}
	file := filepath.Join(r.dir, p.name+".yaml")
	text := fmt.Sprintf("listen: {address: %s}\nadmin: {address: none}\nstate_dir: %s\nlog: {level: warn}\nupstreams:\n"+
		"  bench: {url: 'https://%s', dialect: openai, protocols: %s, tls: {ca_file: %s}}\n", address, r.dir, r.upstream, protocols, r.ca)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	binary, err := filepath.Abs(s.warmwire)
	if err != nil {
		return err
	}
	p.base += "/bench"
	p.cmd, err = r.start(ctx, address, binary, "run", "-c", file)
	return err
}

func (r *rack) startNginx(ctx context.Context, p *peer, address string) error {
	binary, err := find("nginx")
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/nginx.pid; error_log %[1]s/nginx-error.log;
worker_rlimit_nofile 20000;
events { worker_connections 10000; }
http {
  access_log off; client_body_temp_path %[1]s/nginx-body; proxy_temp_path %[1]s/nginx-proxy;
  fastcgi_temp_path %[1]s/nginx-f; uwsgi_temp_path %[1]s/nginx-u; scgi_temp_path %[1]s/nginx-s;
  upstream api { server %[2]s; keepalive 512; keepalive_requests 1000000; }
  server {
    listen %[3]s; keepalive_requests 1000000;
    location / {
      proxy_pass https://api; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host %[2]s;
      proxy_buffering off; proxy_request_buffering off; proxy_ssl_session_reuse on;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate %[4]s; proxy_ssl_name localhost; proxy_read_timeout 600s;
    }
  }
}
`, r.dir, r.upstream, address, r.ca)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	p.note = "proxy_buffering off, keepalive, HTTP/1.1 upstream"
	p.cmd, err = r.start(ctx, address, binary, "-c", file, "-e", filepath.Join(r.dir, "nginx-early.log"))
	return err
}

func (r *rack) startHAProxy(ctx context.Context, p *peer, address string) error {
	binary, err := find("haproxy")
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, "haproxy.cfg")
	text := fmt.Sprintf(`global
  maxconn 8000
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
frontend in
  bind %s
  default_backend api
backend api
  http-reuse always
  server api %s ssl verify required ca-file %s verifyhost localhost sni str(localhost) alpn h2,http/1.1
`, address, r.upstream, r.ca)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	p.note = "http-reuse always, HTTP/2 upstream"
	p.cmd, err = r.start(ctx, address, binary, "-f", file, "-db")
	return err
}
