// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
)

// specs are all peers, in the order of the report.
func specs() []spec {
	return []spec{
		{"direct", reverse, "", "no proxy; TLS, HTTP/1.1", nil},
		{"control", reverse, "", "no proxy, once more: its distance from 1 is the noise of this run", nil},
		{"stock", reverse, "", "`httputil.ReverseProxy`, `FlushInterval: -1`, one transport, HTTP/2 upstream", startStock(false)},
		{"stock-h1", reverse, "", "the same with HTTP/1.1 upstream, 1000 idle connections", startStock(true)},
		{"nginx", reverse, "nginx", "one process, `proxy_buffering off`, `keepalive 512`, TLS sessions reused, HTTP/1.1 upstream", startNginx},
		{"haproxy", reverse, "haproxy", "one thread, `http-reuse always`, HTTP/2 upstream", startHAProxy},
		{"caddy", reverse, "caddy", "`reverse_proxy`, `flush_interval -1`, HTTP/2 upstream", startCaddy},
		{"warmwire", reverse, "", "its defaults, HTTP/2 upstream, access log off", startWarmwire("[h2, http/1.1]")},
		{"warmwire-h1", reverse, "", "the same with HTTP/1.1 upstream", startWarmwire("[http/1.1]")},

		{"direct-plain", forward, "", "no proxy; plain HTTP/1.1", nil},
		{"control-plain", forward, "", "no proxy, once more", nil},
		{"stock-forward", forward, "", "`httputil.ReverseProxy` that goes where the absolute URL says, `FlushInterval: -1`, 1000 idle connections", startStockForward},
		{"squid", forward, "squid", "one process, no cache, no logs, connections to the server kept also for POST (`server_pconn_for_nonretriable`)", startSquid},
		{"tinyproxy", forward, "tinyproxy", "`MaxClients 4000`, its other defaults; a thread and two new TCP connections for each request, because it keeps none", startTinyproxy},
		{"warmwire-forward", forward, "", "its defaults, access log off; the URL's host is no upstream of its configuration", startWarmwireForward},
	}
}

func (r *rack) startRole(ctx context.Context, p *peer, args ...string) (address string, err error) {
	p.version = runtime.Version()
	p.cmd, address, err = r.spawn(ctx, append([]string{"-role=stock", "-ca=" + r.ca}, args...)...)
	return address, err
}

func startStock(h1 bool) starter {
	return func(r *rack, ctx context.Context, p *peer, _ string) error {
		address, err := r.startRole(ctx, p, "-target="+r.upstream, fmt.Sprintf("-h1=%v", h1))
		p.base = "http://" + address
		return err
	}
}

func startStockForward(r *rack, ctx context.Context, p *peer, _ string) (err error) {
	p.via.Host, err = r.startRole(ctx, p)
	return err
}

func startWarmwire(protocols string) starter {
	return func(r *rack, ctx context.Context, p *peer, address string) error {
		p.base += "/bench"
		return r.runWarmwire(ctx, p, address, fmt.Sprintf("upstreams:\n"+
			"  bench: {url: 'https://%s', dialect: openai, protocols: %s, tls: {ca_file: %s},"+
			" pool: {max_connections: 100, max_h1_connections: 8000}}\n", r.upstream, protocols, r.ca))
	}
}

func startWarmwireForward(r *rack, ctx context.Context, p *peer, address string) error {
	return r.runWarmwire(ctx, p, address, "")
}

func (r *rack) runWarmwire(ctx context.Context, p *peer, address, upstreams string) error {
	file, err := r.config(p, fmt.Sprintf("listen: {address: %s}\nadmin: {address: none}\nstate_dir: %s\n"+
		"log: {level: warn, access: {sample: 0}}\n", address, filepath.Join(r.dir, p.name))+upstreams)
	if err != nil {
		return err
	}
	p.version = versionOf(ctx, r.warmwire, "version")
	return r.run(ctx, p, address, r.warmwire, "run", "-c", file)
}

func startNginx(r *rack, ctx context.Context, p *peer, address string) error {
	return r.runNginx(ctx, p, address, "proxy_buffering off;")
}

func startNginxBuffering(r *rack, ctx context.Context, p *peer, address string) error {
	return r.runNginx(ctx, p, address, "proxy_buffering on; proxy_max_temp_file_size 64m;")
}

func (r *rack) runNginx(ctx context.Context, p *peer, address, buffering string) error {
	binary, err := find("nginx")
	if err != nil {
		return err
	}
	file, err := r.config(p, fmt.Sprintf(`daemon off; master_process off; pid %[1]s/nginx.pid; error_log %[1]s/nginx-error.log;
worker_rlimit_nofile 20000;
events { worker_connections 20000; }
http {
  access_log off; client_body_temp_path %[1]s/nginx-body; proxy_temp_path %[1]s/nginx-proxy;
  fastcgi_temp_path %[1]s/nginx-f; uwsgi_temp_path %[1]s/nginx-u; scgi_temp_path %[1]s/nginx-s;
  upstream api { server %[2]s; keepalive 512; keepalive_requests 1000000; }
  server {
    listen %[3]s; keepalive_requests 1000000;
    location / {
      proxy_pass https://api; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host %[2]s;
      %[5]s proxy_request_buffering off; proxy_ssl_session_reuse on;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate %[4]s; proxy_ssl_name localhost; proxy_read_timeout 600s;
    }
  }
}
`, r.dir, r.upstream, address, r.ca, buffering))
	if err != nil {
		return err
	}
	p.version = versionOf(ctx, binary, "-v")
	return r.run(ctx, p, address, binary, "-c", file, "-e", filepath.Join(r.dir, "nginx-early.log"))
}

func startHAProxy(r *rack, ctx context.Context, p *peer, address string) error {
	binary, err := find("haproxy")
	if err != nil {
		return err
	}
	file, err := r.config(p, fmt.Sprintf(`global
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
`, address, r.upstream, r.ca))
	if err != nil {
		return err
	}
	p.version = versionOf(ctx, binary, "-v")
	return r.run(ctx, p, address, binary, "-f", file, "-db")
}

func startCaddy(r *rack, ctx context.Context, p *peer, address string) error {
	binary, err := find("caddy")
	if err != nil {
		return err
	}
	// Its JSON, because what keeps it from saving this configuration in the
	// user's home has no word in the Caddyfile of every version.
	file, err := r.config(p, fmt.Sprintf(`{
  "admin": {"disabled": true, "config": {"persist": false}},
  "logging": {"logs": {"default": {"level": "ERROR"}}},
  "storage": {"module": "file_system", "root": %q},
  "apps": {"http": {"servers": {"bench": {
    "listen": [%q],
    "automatic_https": {"disable": true},
    "routes": [{"handle": [{
      "handler": "reverse_proxy",
      "flush_interval": -1,
      "upstreams": [{"dial": %q}],
      "headers": {"request": {"set": {"Host": ["{http.reverse_proxy.upstream.hostport}"]}}},
      "transport": {
        "protocol": "http",
        "versions": ["1.1", "2"],
        "tls": {"root_ca_pem_files": [%q], "server_name": "localhost"},
        "keep_alive": {"max_idle_conns_per_host": 1000}
      }
    }]}]
  }}}}
}
`, filepath.Join(r.dir, p.name), address, r.upstream, r.ca))
	if err != nil {
		return err
	}
	p.version = versionOf(ctx, binary, "version")
	return r.run(ctx, p, address, binary, "run", "--config", file)
}

// startSquid starts squid without anything on disk: as root it becomes another
// user, who has no right to the rack's folder.
func startSquid(r *rack, ctx context.Context, p *peer, address string) error {
	binary, err := find("squid")
	if err != nil {
		return err
	}
	file, err := r.config(p, fmt.Sprintf(`http_port %s
http_access allow all
cache deny all
cache_mem 8 MB
server_pconn_for_nonretriable allow all
max_filedescriptors 8192
access_log none
cache_log /dev/null
cache_store_log none
netdb_filename none
pid_filename none
coredump_dir none
pinger_enable off
read_timeout 10 minutes
shutdown_lifetime 0 seconds
`, address))
	if err != nil {
		return err
	}
	p.version = versionOf(ctx, binary, "-v")
	return r.run(ctx, p, address, binary, "-N", "-f", file)
}

func startTinyproxy(r *rack, ctx context.Context, p *peer, address string) error {
	binary, err := find("tinyproxy")
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	file, err := r.config(p, fmt.Sprintf("Listen %s\nPort %s\nTimeout 600\nMaxClients 4000\nLogLevel Critical\n", host, port))
	if err != nil {
		return err
	}
	p.once = true
	p.version = versionOf(ctx, binary, "-v")
	return r.run(ctx, p, address, binary, "-d", "-c", file)
}
