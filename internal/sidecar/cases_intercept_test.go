// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/intercept/ca"
	"github.com/warmwire/warmwire/internal/sidecar"
	"github.com/warmwire/warmwire/internal/testenv"
)

// An interceptRig is a Warmwire that intercepts an upstream called example.com, for
// which httptest has a certificate.
type interceptRig struct {
	*rig
	host  string // with its port
	ca    string // the file that apps must trust
	roots *x509.CertPool
}

// intercepting starts one before the server at base, whose certificate is in the file
// theirs. keys go to the upstream, more to the top.
func intercepting(t *testing.T, base, keys, more string) *interceptRig {
	t.Helper()
	return interceptingAt(t, "127.0.0.1", base, keys, more)
}

// interceptingAt is intercepting with another address of example.com.
func interceptingAt(t *testing.T, address, base, keys, more string) *interceptRig {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte(address+" example.com\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &interceptRig{host: "example.com:" + u.Port(), ca: filepath.Join(t.TempDir(), "ca.pem"), roots: x509.NewCertPool()}
	if !strings.Contains(more, "intercept:") {
		more += "intercept: {hosts: [upstreams]}\n"
	}
	if !strings.Contains(more, "upstreams:") {
		more += fmt.Sprintf("upstreams:\n  up: {url: 'https://%s'%s}\n", r.host, keys)
	}
	r.rig = start(t, "", fmt.Sprintf("dns: {hosts_file: %s, cache_file: none}\n%s", hosts, more))
	authority, err := ca.Open(r.state+"/ca", ca.Config{Hosts: []string{"example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.WritePublic(r.ca, ca.PEM(authority.Certificates()...)); err != nil {
		t.Fatal(err)
	}
	r.roots.AddCert(authority.Certificates()[0])
	return r
}

// through is a client with this Warmwire as its proxy.
func (r *interceptRig) through(roots *x509.CertPool) *http.Client {
	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}), TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// poolOf trusts the certificates of a file.
func poolOf(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

// curl through HTTPS_PROXY speaks HTTP/1.1 or HTTP/2 to us, whatever goes upstream, and
// checks our certificate.
func TestInterceptedCurl(t *testing.T) {
	curl := testenv.Need(t, "curl")
	base, theirs := secureUpstream(t, nil)
	r := intercepting(t, base, ", tls: {ca_file: "+theirs+"}", "")
	for _, version := range []string{"1.1", "2"} {
		cmd := exec.CommandContext(t.Context(), curl, "-sS", "--http"+version, "--cacert", r.ca, "-w", " %{http_version} %{ssl_verify_result}", "https://"+r.host+"/v1/x")
		cmd.Env = append(os.Environ(), "HTTPS_PROXY=http://"+r.addr, "NO_PROXY=")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "here "+version+" 0" {
			t.Errorf("%s: %v\n%s", version, err, out)
		}
	}
	r.metric(`warmwire_intercepts_total{result="intercepted"} 2`)
	r.metric(`warmwire_requests_total{mode="intercept",outcome="ok",upstream="up"} 2`)
	r.metric(`warmwire_app_requests_total{mode="intercept",protocol="HTTP/1.1"} 1`)
	r.metric(`warmwire_app_requests_total{mode="intercept",protocol="HTTP/2.0"} 1`)
	r.metric(`warmwire_streams_open{mode="tunnel"} 0`)
	r.metric(`warmwire_app_connections 0`)
	if strings.Contains(r.get("/metrics"), `warmwire_requests_total{mode="tunnel"`) {
		t.Error("a tunnel whose requests count is counted too")
	}
}

// A bad certificate of the upstream is never hidden behind our good one.
func TestInterceptedUpstreamThatIsUntrustedStaysSo(t *testing.T) {
	base, _ := secureUpstream(t, nil)
	r := intercepting(t, base, "", "")
	resp, err := r.through(r.roots).Get("https://" + r.host + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Error struct{ Code, Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusBadGateway || answer.Error.Code != "upstream_tls_untrusted" || !strings.Contains(answer.Error.Message, "tls.ca_file") ||
		!strings.Contains(resp.Header.Get("Proxy-Status"), "tls_certificate_error") {
		t.Errorf("%s %v %+v", resp.Status, resp.Header, answer)
	}
}

// Apps that do not trust our certificate get the server's own after three times, with
// one line in the log that says what to do, until somebody has done it.
func TestAppsThatDoNotTrustUsAreShown(t *testing.T) {
	base, theirs := secureUpstream(t, nil)
	r := intercepting(t, base, ", tls: {ca_file: "+theirs+"}", "")
	app := r.through(poolOf(t, theirs))
	for range 3 {
		if resp, err := app.Get("https://" + r.host + "/"); err == nil {
			_ = resp.Body.Close()
			t.Fatal("our certificate was accepted")
		}
	}
	r.metric(`warmwire_intercepts_total{result="untrusted"} 3`)
	for range 2 {
		resp, err := app.Get("https://" + r.host + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	r.metric(`warmwire_intercepts_total{result="learned"} 2`)
	if n := strings.Count(r.log.String(), "warmwire ca install"); n != 1 || !strings.Contains(r.log.String(), "host=example.com") {
		t.Errorf("%d lines say what to do:\n%s", n, r.log)
	}
	var st struct {
		Intercept struct {
			Hosts []string
			Blind []struct {
				Host   string
				Until  time.Time
				Reason string
			}
			Authorities []struct{ Role, SHA256 string }
		}
	}
	page := r.get("/v1/status")
	if err := json.Unmarshal([]byte(page), &st); err != nil {
		t.Fatal(err)
	}
	if i := st.Intercept; len(i.Hosts) != 1 || len(i.Blind) != 1 || i.Blind[0].Host != "example.com" || i.Blind[0].Reason != "untrusted" || len(i.Authorities) != 1 || i.Authorities[0].Role != "active" {
		t.Errorf("status: %+v", i)
	}
	if strings.Contains(page, "PRIVATE") || strings.Contains(page, "key") {
		t.Errorf("status speaks of a key:\n%s", page)
	}
	if status, body := r.post("/v1/intercept/clear?host=example.com"); status != http.StatusOK || !strings.Contains(body, `"hosts": 1`) {
		t.Errorf("clear: %d %s", status, body)
	}
	resp, err := r.through(r.roots).Get("https://" + r.host + "/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	r.metric(`warmwire_intercepts_total{result="intercepted"} 1`)
}

// A host of intercept.blind, or of no list, keeps its own certificate, and no
// authority is made for nothing.
func TestHostsThatAreNotInterceptedKeepTheirCertificate(t *testing.T) {
	for name, more := range map[string]string{
		"not listed": "intercept: {hosts: []}\n", "blind": "intercept: {hosts: [upstreams, other.test], blind: [example.com]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			base, theirs := secureUpstream(t, nil)
			u, _ := url.Parse(base)
			hosts := filepath.Join(t.TempDir(), "hosts")
			if err := os.WriteFile(hosts, []byte("127.0.0.1 example.com\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := &interceptRig{rig: start(t, "", fmt.Sprintf("upstreams:\n  up: {url: 'https://example.com:%s'}\ndns: {hosts_file: %s, cache_file: none}\n%s", u.Port(), hosts, more))}
			resp, err := r.through(poolOf(t, theirs)).Get("https://example.com:" + u.Port())
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if _, err := os.Stat(r.state + "/ca"); name == "not listed" && !os.IsNotExist(err) {
				t.Errorf("an authority was made: %v", err)
			}
		})
	}
}

// The authority outlives a restart; a file that somebody could have read is an error
// that names the key.
func TestInterceptionKeepsItsAuthority(t *testing.T) {
	base, theirs := secureUpstream(t, nil)
	r := intercepting(t, base, ", tls: {ca_file: "+theirs+"}", "")
	r.stop()
	cfg, _, err := config.Load(r.file, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(r.state+"/ca/authority.json", 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sidecar.New(cfg, sidecar.Options{}); err == nil || !strings.HasPrefix(err.Error(), "intercept.hosts: ") {
		t.Errorf("New: %v", err)
	}
	if err := os.Chmod(r.state+"/ca/authority.json", 0o600); err != nil {
		t.Fatal(err)
	}
	again := &interceptRig{rig: startIn(t, r.state, "", fmt.Sprintf("upstreams:\n  up: {url: 'https://%s', tls: {ca_file: %s}}\ndns: {hosts_file: %s, cache_file: none}\nintercept: {hosts: [upstreams]}\n",
		r.host, theirs, cfg.DNS.HostsFile))}
	resp, err := again.through(r.roots).Get("https://" + r.host + "/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	again.write("127.0.0.1:1", "intercept: {hosts: [other.test]}\n")
	if status, body := again.post("/v1/reload"); status != http.StatusOK || !strings.Contains(again.log.String(), "intercept has changed: restart") {
		t.Errorf("reload: %d %s\n%s", status, body, again.log)
	}
}

// A WebSocket through CONNECT and our TLS has the upstream's heartbeats and limits.
func TestInterceptedWebSocketOfTheProduct(t *testing.T) {
	up := websocket.Upgrader{}
	site := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		kind, text, err := c.ReadMessage()
		if err == nil && c.WriteMessage(kind, text) == nil {
			_, _, _ = c.ReadMessage() // the app ends it
		}
	}))
	defer site.Close()
	theirs := filepath.Join(t.TempDir(), "theirs.pem")
	if err := ca.WritePublic(theirs, ca.PEM(site.Certificate())); err != nil {
		t.Fatal(err)
	}
	r := intercepting(t, site.URL, ", tls: {ca_file: "+theirs+"}", "")
	d := websocket.Dialer{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}), TLSClientConfig: &tls.Config{RootCAs: r.roots}, HandshakeTimeout: patience}
	c, resp, err := d.Dial("wss://"+r.host+"/v1/realtime", nil)
	if err != nil {
		t.Fatal(err, resp)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if err := c.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, text, err := c.ReadMessage(); err != nil || string(text) != "hello" {
		t.Fatalf("%q, %v", text, err)
	}
	if page := r.get("/v1/streams"); !strings.Contains(page, `"mode": "websocket"`) || !strings.Contains(page, `"upstream_heartbeat"`) {
		t.Errorf("streams: %s", page)
	}
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(patience))
	_, _, err = c.ReadMessage()
	if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the end: %v", err)
	}
	r.metric(`warmwire_requests_total{mode="websocket",outcome="ok",upstream="up"} 1`)
}

// What is refused as a target stays so inside a tunnel that Warmwire ends: the address
// counts that is dialled, whatever name leads there.
func TestInterceptedTargetAddressesAreRefused(t *testing.T) {
	for name, address := range map[string]string{"metadata service": "169.254.169.254", "link-local": "fe80::1", "metadata over IPv6": "fd00:ec2::254", "multicast": "224.0.0.1"} {
		t.Run(name, func(t *testing.T) {
			r := interceptingAt(t, address, "https://example.com:443", "", "intercept: {hosts: [example.com]}\nupstreams:\n  up: {url: 'https://other.test'}\n")
			resp, err := r.through(r.roots).Get("https://example.com/latest/meta-data/")
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "target_denied") {
				t.Errorf("%s: %s", resp.Status, body)
			}
			r.metric(`warmwire_intercepts_total{result="intercepted"} 1`)
		})
	}
}

// A tunnel to ourselves is a loop, inside as well.
func TestInterceptedTunnelToOurselvesIsALoop(t *testing.T) {
	r := interceptingAt(t, "127.0.0.1", "https://example.com:443", "", "intercept: {hosts: [example.com]}\nupstreams:\n  up: {url: 'https://other.test'}\n")
	_, port, _ := strings.Cut(r.addr, ":")
	resp, err := r.through(r.roots).Get("https://example.com:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusLoopDetected {
		t.Errorf("%s, want 508", resp.Status)
	}
}

// Behind a network's login page the app learns why its calls fail, inside the TLS, and
// that the page's certificate is another's; the page sees no request. When the network
// is open the next call works, and no host has been given up meanwhile.
func TestInterceptedBehindALoginPage(t *testing.T) {
	var asked atomic.Int32
	portal := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	portal.Config.ErrorLog = log.New(io.Discard, "", 0)
	its, err := ca.New(ca.Config{Hosts: []string{"login.test"}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := its.Certificate("login.test")
	if err != nil {
		t.Fatal(err)
	}
	portal.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
	portal.StartTLS()
	defer portal.Close()
	base, theirs := secureUpstream(t, nil)
	site := strings.TrimPrefix(base, "https://")
	var open atomic.Bool
	gate := relayTo(t, func() string {
		if open.Load() {
			return site
		}
		return portal.Listener.Addr().String()
	})
	r := intercepting(t, "https://"+gate, ", tls: {ca_file: "+theirs+", ca_only: true}", "")
	app := r.through(r.roots)
	for range 4 {
		resp, err := app.Get("https://" + r.host + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), "upstream_tls_") || resp.Header.Get("X-Should-Retry") != "true" {
			t.Errorf("%s %v: %s", resp.Status, resp.Header, body)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the login page has seen %d requests", n)
	}
	open.Store(true)
	resp, err := app.Get("https://" + r.host + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("with the network open: %s", resp.Status)
	}
	r.metric(`warmwire_intercepts_total{result="intercepted"} 5`)
}

// relayTo is a port that leads to wherever to says when a connection comes.
func relayTo(t *testing.T, to func() string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	join := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		up, err := net.Dial("tcp", to())
		if err != nil {
			return
		}
		defer func() { _ = up.Close() }()
		conns.Go(func() { _, _ = io.Copy(up, c); _ = up.Close() })
		_, _ = io.Copy(c, up)
	}
	conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { join(c) })
		}
	})
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

// A host that wants the app's own client certificate gets it: the first call fails with
// the reason and may be made again, and then the host is tunnelled untouched, in sight and
// until somebody clears it.
func TestInterceptedHostThatWantsAClientCertificate(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s HTTP/2 %v", tls.VersionName(version), http2), func(t *testing.T) {
				site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
				}))
				site.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: version}
				site.Config.ErrorLog = log.New(io.Discard, "", 0)
				site.StartTLS()
				defer site.Close()
				theirs := filepath.Join(t.TempDir(), "theirs.pem")
				if err := ca.WritePublic(theirs, ca.PEM(site.Certificate())); err != nil {
					t.Fatal(err)
				}
				r := intercepting(t, site.URL, ", tls: {ca_file: "+theirs+"}", "")
				issuer, err := ca.New(ca.Config{Hosts: []string{"the-app"}})
				if err != nil {
					t.Fatal(err)
				}
				own, err := issuer.Certificate("the-app")
				if err != nil {
					t.Fatal(err)
				}
				both := poolOf(t, theirs)
				both.AppendCertsFromPEM([]byte(readFile(t, r.ca)))
				tr := &http.Transport{
					Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: r.addr}),
					TLSClientConfig: &tls.Config{RootCAs: both, Certificates: []tls.Certificate{*own}}, ForceAttemptHTTP2: http2,
				}
				defer tr.CloseIdleConnections()
				app := &http.Client{Transport: tr, Timeout: patience}
				get := func() (*http.Response, string) {
					resp, err := app.Get("https://" + r.host + "/")
					if err != nil {
						t.Fatal(err)
					}
					body, _ := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					return resp, string(body)
				}
				resp, body := get()
				if resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "upstream_tls_client_certificate") || !strings.Contains(body, "tls.client_cert") ||
					resp.Header.Get("X-Should-Retry") != "true" {
					t.Errorf("%s %v: %s", resp.Status, resp.Header, body)
				}
				if resp, _ := get(); resp.StatusCode != http.StatusOK { // on a connection of its own: ours has ended
					t.Errorf("the second call: %s", resp.Status)
				}
				r.metric(`warmwire_intercepts_total{result="learned"} 1`)
				if page := r.get("/v1/status"); !strings.Contains(page, `"reason": "client_certificate"`) {
					t.Errorf("status:\n%s", page)
				}
				if n := strings.Count(r.log.String(), "wants a client certificate"); n != 1 {
					t.Errorf("%d lines say so:\n%s", n, r.log)
				}
				if status, body := r.post("/v1/intercept/clear?host=example.com"); status != http.StatusOK || !strings.Contains(body, `"hosts": 1`) {
					t.Errorf("clear: %d %s", status, body)
				}
			})
		}
	}
}

// Neither the authority's key nor anything of a call inside a tunnel is on a page of the
// admin listener or in the log.
func TestInterceptionShowsNoSecret(t *testing.T) {
	const secret = "sk-s3cr3tsecret"
	base, theirs := secureUpstream(t, nil)
	r := intercepting(t, base, ", tls: {ca_file: "+theirs+"}", "log: {level: debug, access: {sample: 1}}\n")
	app := r.through(r.roots)
	for _, host := range []string{r.host, r.host, "other.example:443"} { // the last one is misdirected
		req, err := http.NewRequest(http.MethodPost, "https://"+r.host+"/v1/"+secret+"?key="+secret, strings.NewReader(secret))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("X-"+secret, secret)
		resp, err := app.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	secrets := []string{secret}
	for line := range strings.Lines(keyOf(t, r.state+"/ca/authority.json")) {
		if line = strings.TrimSpace(line); len(line) >= 20 && !strings.HasPrefix(line, "-----") {
			secrets = append(secrets, line)
		}
	}
	if len(secrets) < 2 {
		t.Fatal("the authority's file has no key that this test finds")
	}
	var api struct {
		Paths map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(r.get("/v1/openapi.json")), &api); err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for path, methods := range api.Paths {
		if _, ok := methods["get"]; ok && path != "/v1/events" { // that has no end
			shown[path] = r.get(path)
		}
	}
	if len(shown) < 5 {
		t.Errorf("only %d pages: %v", len(shown), api.Paths)
	}
	r.stop()
	shown["log"] = r.log.String()
	for where, text := range shown {
		for _, s := range secrets {
			if i := strings.Index(text, s); i >= 0 {
				t.Errorf("%s shows a secret: …%s", where, text[max(0, i-100):min(len(text), i+20)])
			}
		}
	}
}

// keyOf is the text of the private keys in an authority's file.
func keyOf(t *testing.T, file string) string {
	t.Helper()
	var found strings.Builder
	var walk func(name string, v any)
	walk = func(name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, each := range v {
				walk(k, each)
			}
		case []any:
			for _, each := range v {
				walk(name, each)
			}
		case string:
			if strings.Contains(strings.ToLower(name), "key") || strings.Contains(v, "PRIVATE KEY") {
				found.WriteString(v + "\n")
			}
		}
	}
	var all any
	if err := json.Unmarshal([]byte(readFile(t, file)), &all); err != nil {
		t.Fatal(err)
	}
	walk("", all)
	return found.String()
}

// A host that is listed later is not covered by the authority that apps trust: the start
// says that it must be rotated and trusted anew, and until then the host is left alone.
// After a rotation, which a running Warmwire follows, both are intercepted, and whoever
// trusts the file of the rotation accepts both authorities.
func TestInterceptedHostThatIsListedLater(t *testing.T) {
	base, theirs := secureUpstream(t, nil)
	port := base[strings.LastIndexByte(base, ':'):]
	state, hosts := t.TempDir(), filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 example.com later.example.com\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Open(state+"/ca", ca.Config{Hosts: []string{"later.test"}}); err != nil { // of an earlier list
		t.Fatal(err)
	}
	r := &interceptRig{host: "example.com" + port, rig: startIn(t, state, "", fmt.Sprintf(
		"upstreams:\n  up: {url: 'https://example.com%s', tls: {ca_file: %s}}\ndns: {hosts_file: %s, cache_file: none}\nintercept: {hosts: [example.com]}\n", port, theirs, hosts))}
	if text := r.log.String(); !strings.Contains(text, "warmwire ca rotate") || !strings.Contains(text, "must be trusted anew") || !strings.Contains(text, "example.com") {
		t.Errorf("the log does not say what to do:\n%s", text)
	}
	get := func(roots *x509.CertPool) {
		t.Helper()
		resp, err := r.through(roots).Get("https://" + r.host + "/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	get(poolOf(t, theirs))
	r.metric(`warmwire_intercepts_total{result="no_certificate"} 1`)

	authority, err := ca.Open(state+"/ca", ca.Config{Hosts: []string{"example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.Rotate(time.Time{}); err != nil { // as warmwire ca rotate
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	for _, cert := range authority.Certificates() {
		trusted.AddCert(cert)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(r.get("/v1/status"), `"role": "next"`); {
		if time.Now().After(deadline) {
			t.Fatal("the running one does not follow")
		}
	}
	get(trusted)
	r.metric(`warmwire_intercepts_total{result="intercepted"} 1`)
}
