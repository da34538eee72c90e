// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmwire/warmwire/internal/admin"
)

const token = "the-token-of-this-test-0123456789abcdef"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is an Admin behind a real server, with what it was asked to do counted.
type rig struct {
	*httptest.Server
	client        *http.Client
	reloads, quit atomic.Int32
	unready       atomic.Pointer[string]
	reloadError   atomic.Pointer[string]
}

func newRig(t *testing.T, change func(*admin.Config)) *rig {
	t.Helper()
	return newRigOn(t, listen(t, "tcp", "127.0.0.1:0"), change)
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func newRigOn(t *testing.T, ln net.Listener, change func(*admin.Config)) *rig {
	t.Helper()
	r := &rig{}
	cfg := admin.Config{
		Token:   token,
		Ready:   func() error { return asError(&r.unready) },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "warmwire_up 1\n") }),
		Status:  func() any { return map[string]int{"streams": 3} },
		Streams: func() any { return []string{"one"} },
		Reload:  func() error { r.reloads.Add(1); return asError(&r.reloadError) },
		Quit:    func() { r.quit.Add(1) },
	}
	if change != nil {
		change(&cfg)
	}
	h, err := admin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = &httptest.Server{Listener: ln, Config: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}}
	r.Start()
	t.Cleanup(r.Close)
	addr := ln.Addr()
	r.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, addr.Network(), addr.String())
		}}}
	return r
}

func asError(p *atomic.Pointer[string]) error {
	if s := p.Load(); s != nil {
		return errors.New(*s)
	}
	return nil
}

// An ask is a request in a table.
type ask struct {
	method, path, host, body string
	header                   http.Header
}

type answer struct {
	status int
	code   string // of a JSON error
	body   string
	header http.Header
}

func (r *rig) ask(t *testing.T, a ask) answer {
	t.Helper()
	method := a.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost:8485"+a.path, strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range a.header {
		req.Header[k] = v
	}
	if a.host != "" {
		req.Host = a.host
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := answer{status: resp.StatusCode, body: string(body), header: resp.Header}
	if strings.HasPrefix(got.body, `{`) {
		var e struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(body, &e); err != nil {
			t.Fatalf("body %q: %v", body, err)
		}
		if got.code = e.Error.Code; got.code != "" && e.Error.Message == "" {
			t.Errorf("%s without a message", got.code)
		}
	}
	return got
}

// with builds a header from pairs.
func with(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func change(pairs ...string) http.Header {
	return with(append([]string{"Authorization", "Bearer " + token, "Content-Type", "application/json"}, pairs...)...)
}

func TestReading(t *testing.T) {
	r := newRig(t, nil)
	tests := []struct {
		name   string
		ask    ask
		status int
		want   string // in the body
	}{
		{"alive", ask{path: "/healthz"}, 200, "ok\n"},
		{"ready", ask{path: "/readyz"}, 200, "ready\n"},
		{"metrics", ask{path: "/metrics"}, 200, "warmwire_up 1"},
		{"status", ask{path: "/v1/status"}, 200, `"streams": 3`},
		{"streams", ask{path: "/v1/streams"}, 200, `"one"`},
		{"index", ask{path: "/"}, 200, "/v1/reload"},
		{"query is no matter", ask{path: "/healthz?verbose"}, 200, "ok"},
		{"unknown path", ask{path: "/v1"}, 404, `"not_found"`},
		{"path is exact", ask{path: "/healthz/"}, 404, `"not_found"`},
		{"no cleaning", ask{path: "//healthz"}, 404, `"not_found"`},
		{"no climbing", ask{path: "/v1/../healthz"}, 404, `"not_found"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := r.ask(t, tt.ask)
			if got.status != tt.status || !strings.Contains(got.body, tt.want) {
				t.Errorf("got %d %q, want %d with %q", got.status, got.body, tt.status, tt.want)
			}
			checkSecurityHeaders(t, got.header)
			tt.ask.method = http.MethodHead
			head := r.ask(t, tt.ask)
			if head.status != tt.status || head.body != "" || head.header.Get("Content-Type") != got.header.Get("Content-Type") {
				t.Errorf("HEAD gave %d %q %v", head.status, head.body, head.header)
			}
		})
	}
}

func checkSecurityHeaders(t *testing.T, h http.Header) {
	t.Helper()
	for name, want := range map[string]string{
		"X-Content-Type-Options":  "nosniff",
		"Cache-Control":           "no-store",
		"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if h.Get("Access-Control-Allow-Origin") != "" {
		t.Error("other origins may read the answer")
	}
}

func TestReadyzSaysWhyNot(t *testing.T) {
	r := newRig(t, nil)
	why := "draining"
	r.unready.Store(&why)
	got := r.ask(t, ask{path: "/readyz"})
	if got.status != 503 || got.code != "not_ready" || !strings.Contains(got.body, "draining") {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if got := r.ask(t, ask{path: "/healthz"}); got.status != 200 {
		t.Errorf("alive while draining: %d", got.status)
	}
}

func TestMethods(t *testing.T) {
	r := newRig(t, nil)
	for path, allow := range map[string]string{
		"/": "GET, HEAD", "/healthz": "GET, HEAD", "/readyz": "GET, HEAD", "/metrics": "GET, HEAD", "/v1/status": "GET, HEAD", "/v1/streams": "GET, HEAD",
		"/v1/reload": "POST", "/v1/tune": "POST", "/v1/upgrade": "POST", "/v1/quit": "POST",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"} {
			if strings.Contains(allow, method) {
				continue
			}
			got := r.ask(t, ask{method: method, path: path, header: change()})
			if got.status != 405 || got.header.Get("Allow") != allow || method != "HEAD" && got.code != "method_not_allowed" {
				t.Errorf("%s %s: %d, Allow %q; want 405 with %q", method, path, got.status, got.header.Get("Allow"), allow)
			}
		}
	}
	if r.reloads.Load()+r.quit.Load() != 0 {
		t.Error("a wrong method changed state")
	}
}

func TestChanges(t *testing.T) {
	tests := []struct {
		name   string
		header http.Header
		body   string
		status int
		code   string
	}{
		{name: "token and JSON", header: change(), status: 200},
		{name: "empty object", header: change(), body: " {}\n", status: 200},
		{name: "charset", header: with("Authorization", "Bearer "+token, "Content-Type", "application/json; charset=utf-8"), status: 200},
		{name: "no body and no type, as curl -X POST", header: with("Authorization", "Bearer "+token), status: 200},
		{name: "scheme in any case", header: with("Authorization", "bearer "+token, "Content-Type", "application/json"), status: 200},
		{name: "own page", header: change("Origin", "http://localhost:8485", "Sec-Fetch-Site", "same-origin"), status: 200},

		{name: "no token", header: with("Content-Type", "application/json"), status: 401, code: "token_required"},
		{name: "wrong token", header: with("Authorization", "Bearer "+token+"x", "Content-Type", "application/json"), status: 401, code: "token_required"},
		{name: "prefix of the token", header: with("Authorization", "Bearer "+token[:8], "Content-Type", "application/json"), status: 401, code: "token_required"},
		{name: "empty token", header: with("Authorization", "Bearer ", "Content-Type", "application/json"), status: 401, code: "token_required"},
		{name: "basic", header: with("Authorization", "Basic "+token, "Content-Type", "application/json"), status: 401, code: "token_required"},
		{name: "two fields", header: change("Authorization", "Bearer "+token), status: 401, code: "token_required"},
		{name: "text, as a form of a page", header: with("Authorization", "Bearer "+token, "Content-Type", "text/plain"), status: 415, code: "json_required"},
		{name: "no type for a body", header: with("Authorization", "Bearer "+token), body: "{}", status: 415, code: "json_required"},
		{name: "no type for a blank", header: with("Authorization", "Bearer "+token), body: " ", status: 415, code: "json_required"},
		{name: "empty type", header: with("Authorization", "Bearer "+token, "Content-Type", ""), status: 415, code: "json_required"},
		{name: "empty form", header: with("Authorization", "Bearer "+token, "Content-Type", "application/x-www-form-urlencoded"), status: 415, code: "json_required"},
		{name: "looks like JSON", header: with("Authorization", "Bearer "+token, "Content-Type", "application/json-patch+json"), status: 415, code: "json_required"},
		{name: "two types", header: change("Content-Type", "text/plain"), status: 415, code: "json_required"},
		{name: "parameters", header: change(), body: `{"force": true}`, status: 400, code: "body_not_empty"},
		{name: "no JSON", header: change(), body: `{`, status: 400, code: "body_not_empty"},
		{name: "large", header: change(), body: strings.Repeat(" ", 2<<10), status: 413, code: "body_too_large"},
		{name: "foreign origin", header: change("Origin", "http://evil.example"), status: 403, code: "origin_not_allowed"},
		{name: "prefix of ours", header: change("Origin", "http://localhost.attacker.example"), status: 403, code: "origin_not_allowed"},
		{name: "null origin", header: change("Origin", "null"), status: 403, code: "origin_not_allowed"},
		{name: "other port", header: change("Origin", "http://[::1]:1"), status: 403, code: "origin_not_allowed"},
		{name: "cross-site", header: change("Sec-Fetch-Site", "cross-site"), status: 403, code: "cross_site_request"},
		{name: "same-site", header: change("Sec-Fetch-Site", "same-site"), status: 403, code: "cross_site_request"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			got := r.ask(t, ask{method: "POST", path: "/v1/reload", header: tt.header, body: tt.body})
			done := int32(0)
			if tt.status == 200 {
				done = 1
			}
			if got.status != tt.status || got.code != tt.code || r.reloads.Load() != done {
				t.Errorf("got %d %s, reloads %d; want %d %s", got.status, got.body, r.reloads.Load(), tt.status, tt.code)
			}
			if got.status == 401 && got.header.Get("WWW-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
			if strings.Contains(got.body, token) {
				t.Error("the answer shows the token")
			}
			checkSecurityHeaders(t, got.header)
			if q := r.ask(t, ask{method: "POST", path: "/v1/quit", header: tt.header, body: tt.body}); (q.status == 202) != (done == 1) {
				t.Errorf("quit gave %d", q.status)
			}
		})
	}
}

// TestUnreadBody: who is refused, or needs no body, is answered and gone, though
// the body that was announced never comes.
func TestUnreadBody(t *testing.T) {
	r := newRig(t, nil)
	for _, tt := range []struct{ line, answer string }{
		{"POST /v1/quit", "HTTP/1.1 401 "}, {"POST /nothing", "HTTP/1.1 404 "}, {"PUT /v1/quit", "HTTP/1.1 405 "}, {"GET /healthz", "HTTP/1.1 200 "},
	} {
		t.Run(tt.line, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err = io.WriteString(conn, tt.line+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn) // until the server has closed
			if err != nil || !strings.HasPrefix(string(got), tt.answer) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// pipe is a listener with one connection.
type pipe chan net.Conn

func (p pipe) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipe) Close() error   { return nil }
func (p pipe) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestBodyThatDoesNotCome: not even who has the token holds a call open.
func TestBodyThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reloads := 0
		h, err := admin.New(admin.Config{
			Token: token, Metrics: http.NotFoundHandler(),
			Ready: func() error { return nil }, Status: func() any { return nil }, Streams: func() any { return nil }, Quit: func() {},
			Reload: func() error { reloads++; return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		app, conn := net.Pipe()
		ln := make(pipe, 1)
		ln <- conn
		close(ln)
		srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		defer srv.Close()
		if err := srv.Serve(ln); !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = io.WriteString(app, "POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+token+
			"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(app) // until the server has closed
		took := time.Since(start)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 408 ") || took < 10*time.Second || took > 11*time.Second || reloads != 0 {
			t.Errorf("got %q, %v after %v; reloads %d", got, err, took, reloads)
		}
	})
}

func TestNothingToReload(t *testing.T) {
	r := newRig(t, func(c *admin.Config) { c.Reload = nil })
	got := r.ask(t, ask{method: "POST", path: "/v1/reload", header: change()})
	if got.status != 501 || got.code != "nothing_to_reload" {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if got := r.ask(t, ask{method: "POST", path: "/v1/reload"}); got.status != 401 {
		t.Errorf("without the token: %d", got.status)
	}
}

func TestReloadThatFails(t *testing.T) {
	r := newRig(t, nil)
	why := "warmwire.yaml:3: unknown key"
	r.reloadError.Store(&why)
	got := r.ask(t, ask{method: "POST", path: "/v1/reload", header: change()})
	if got.status != 422 || got.code != "reload_failed" || !strings.Contains(got.body, why) {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// TestQuitAnswersFirst: the server is closed inside Quit, as a program that has
// nothing to drain does, and the caller still gets its answer.
func TestQuitAnswersFirst(t *testing.T) {
	var srv *http.Server
	r := newRig(t, func(c *admin.Config) { c.Quit = func() { _ = srv.Close() } })
	srv = r.Config
	got := r.ask(t, ask{method: "POST", path: "/v1/quit", header: change()})
	if got.status != 202 || !strings.Contains(got.body, "draining") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestUpgrade(t *testing.T) {
	var err error
	r := newRig(t, func(c *admin.Config) { c.Upgrade = func(context.Context) error { return err } })
	if got := r.ask(t, ask{method: "POST", path: "/v1/upgrade", header: change()}); got.status != 200 || !strings.Contains(got.body, "upgraded") {
		t.Errorf("got %d %s", got.status, got.body)
	}
	err = errors.New("the successor ended")
	if got := r.ask(t, ask{method: "POST", path: "/v1/upgrade", header: change()}); got.status != 409 || got.code != "upgrade_failed" || !strings.Contains(got.body, err.Error()) {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if got := r.ask(t, ask{method: "POST", path: "/v1/upgrade"}); got.status != 401 {
		t.Errorf("without the token: %d", got.status)
	}
	if got := newRig(t, nil).ask(t, ask{method: "POST", path: "/v1/upgrade", header: change()}); got.status != 501 {
		t.Errorf("not upgradable: %d", got.status)
	}
}

func TestWithoutToken(t *testing.T) {
	r := newRig(t, func(c *admin.Config) { c.Token = "" })
	for _, auth := range []string{"", "Bearer ", "Bearer x"} {
		got := r.ask(t, ask{method: "POST", path: "/v1/reload", header: with("Authorization", auth, "Content-Type", "application/json")})
		if got.status != 403 || got.code != "token_not_configured" || !strings.Contains(got.body, "admin.token_file") {
			t.Errorf("%q: got %d %s", auth, got.status, got.body)
		}
	}
	if r.reloads.Load() != 0 {
		t.Error("reloaded without a token")
	}
	if got := r.ask(t, ask{path: "/v1/status"}); got.status != 200 {
		t.Errorf("status on loopback: %d", got.status)
	}
}

// TestUnixPeer: a trusted peer needs no token, but is held to everything else.
func TestUnixPeer(t *testing.T) {
	var trusted atomic.Bool
	r := newRigOn(t, listen(t, "unix", filepath.Join(t.TempDir(), "admin.sock")), func(c *admin.Config) {
		c.Token = ""
		c.TrustPeer = func(*http.Request) bool { return trusted.Load() }
	})
	jsonOnly := with("Content-Type", "application/json")
	tests := []struct {
		name    string
		trusted bool
		ask     ask
		status  int
	}{
		{"a stranger reads", false, ask{path: "/v1/status"}, 200},
		{"a stranger changes", false, ask{method: "POST", path: "/v1/reload", header: jsonOnly}, 403},
		{"a friend changes", true, ask{method: "POST", path: "/v1/reload", header: jsonOnly}, 200},
		{"a friend forgets the type", true, ask{method: "POST", path: "/v1/reload"}, 415},
		{"a friend with the empty token", true, ask{method: "POST", path: "/v1/reload", header: with("Authorization", "Bearer ")}, 415},
		{"a friend sends a form", true, ask{method: "POST", path: "/v1/reload", header: with("Content-Type", "text/plain"), body: "{}"}, 415},
		{"any Host", false, ask{path: "/v1/status", host: "warmwire.example:1"}, 200},
		{"a Host that is none", false, ask{path: "/v1/status", host: "admin.sock_/.."}, 200},
		{"page of the Host", true, ask{method: "POST", path: "/v1/reload", host: "evil.example",
			header: with("Content-Type", "application/json", "Origin", "http://evil.example")}, 403},
		{"a friend with a foreign page", true, ask{method: "POST", path: "/v1/reload", header: with("Content-Type", "application/json", "Origin", "null")}, 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			trusted.Store(tt.trusted)
			if got := r.ask(t, tt.ask); got.status != tt.status {
				t.Errorf("got %d %s, want %d", got.status, got.body, tt.status)
			}
		})
	}
}

func TestHosts(t *testing.T) {
	r := newRig(t, func(c *admin.Config) { c.AllowHosts = []string{"warmwire.internal", "fd00::5"} })
	tests := []struct {
		host   string
		status int
	}{
		{"localhost", 200}, {"LOCALHOST:8485", 200}, {"127.0.0.1:1", 200}, {"[::1]:8485", 200},
		{"warmwire.internal:8485", 200}, {"[fd00::5]", 200},
		{"attacker.example:8485", 403}, {"localhost.attacker.example", 403}, {"169.254.169.254", 403}, {"0.0.0.0:8485", 403},
		{"x.warmwire.internal", 403}, {"127.1", 403}, {"10.0.0.1", 403},
	}
	for _, tt := range tests {
		for _, path := range []string{"/healthz", "/metrics", "/nothing"} {
			got := r.ask(t, ask{path: path, host: tt.host})
			refused := got.status == 403 && got.code == "host_not_allowed"
			if refused != (tt.status == 403) {
				t.Errorf("Host %s, %s: got %d %s", tt.host, path, got.status, got.body)
			}
		}
	}
}

// TestBeyondLoopback: with a listener that others can reach, only the probes are
// open.
func TestBeyondLoopback(t *testing.T) {
	r := newRig(t, func(c *admin.Config) { c.Remote = true })
	for path, open := range map[string]bool{
		"/healthz": true, "/readyz": true, "/": false, "/metrics": false, "/v1/status": false, "/v1/streams": false, "/nothing": false, "/healthz/": false,
	} {
		got := r.ask(t, ask{path: path})
		if (got.status == 200) != open || !open && got.code != "token_required" {
			t.Errorf("%s without a token: %d %s", path, got.status, got.body)
		}
		if got := r.ask(t, ask{path: path, header: change()}); got.status == 401 {
			t.Errorf("%s with the token: %d", path, got.status)
		}
	}
}

// TestAddressOfTheConnection: which address a request came in on decides whether
// it is local, whatever the configuration says; an unknown one is not.
func TestAddressOfTheConnection(t *testing.T) {
	h, err := admin.New(admin.Config{
		Token: token, Metrics: http.NotFoundHandler(),
		Ready: func() error { return nil }, Status: func() any { return nil }, Streams: func() any { return nil }, Reload: func() error { return nil }, Quit: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, host string
		local      net.Addr
		status     int
	}{
		{"loopback", "localhost", addr("127.0.0.1:8485"), 200},
		{"loopback, IPv4 in IPv6", "localhost", addr("[::ffff:127.0.0.1]:8485"), 200},
		{"unix", "localhost", &net.UnixAddr{Name: "/run/x", Net: "unix"}, 200},
		{"own address, no token", "10.0.0.7:8485", addr("10.0.0.7:8485"), 401},
		{"own link-local address, no token", "localhost", addr("[fe80::1%eth0]:8485"), 401},
		{"another's address", "10.0.0.8:8485", addr("10.0.0.7:8485"), 403},
		{"unknown", "localhost", nil, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := httptest.NewRequest("GET", "/v1/status", nil)
			req.Host = tt.host
			if tt.local != nil {
				req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, tt.local))
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if w.Code != tt.status {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, tt.status)
			}
		})
	}
}

// FuzzChanges: whatever the fields hold, state changes only for the token, for a
// host that is ours, without another page's origin, and for JSON or no body.
func FuzzChanges(f *testing.F) {
	f.Add("localhost:8485", "Bearer "+token, "application/json", "", "", "{}")
	f.Add("localhost:8485", "Bearer "+token, "", "", "none", "")
	f.Add("localhost:8485", "Bearer "+token, "text/plain", "http://evil.example", "cross-site", "")
	f.Add("localhost.attacker.example", "Bearer "+token, "application/json", "http://localhost.attacker.example", "same-origin", "")
	f.Add("[::1]:1", "bearer  "+token, "Application/JSON;a=b", "http://[::1]:1", "same-origin", " ")
	f.Add("", "Basic "+token, "application/json", "null", "", "x")
	f.Fuzz(func(t *testing.T, host, auth, kind, origin, site, body string) {
		changed := 0
		h, err := admin.New(admin.Config{
			Token: token, Metrics: http.NotFoundHandler(),
			Ready: func() error { return nil }, Status: func() any { return nil }, Streams: func() any { return nil }, Quit: func() {},
			Reload: func() error { changed++; return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest(http.MethodPost, "/v1/reload", strings.NewReader(body))
		req.Host = host
		for name, value := range map[string]string{"Authorization": auth, "Content-Type": kind, "Origin": origin, "Sec-Fetch-Site": site} {
			if value != "" {
				req.Header[name] = []string{value}
			}
		}
		req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, addr("127.0.0.1:8485")))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if (w.Code == 200) != (changed == 1) || !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%d %s with %d changes", w.Code, w.Body, changed)
		}
		if changed == 0 {
			return
		}
		scheme, given, _ := strings.Cut(auth, " ")
		if !strings.EqualFold(scheme, "bearer") || strings.TrimLeft(given, " ") != token {
			t.Errorf("changed with Authorization %q", auth)
		}
		if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(kind)), "application/json") && (kind != "" || body != "") {
			t.Errorf("changed with Content-Type %q and %d bytes", kind, len(body))
		}
		if site != "" && site != "none" && site != "same-origin" {
			t.Errorf("changed with Sec-Fetch-Site %q", site)
		}
		if u, err := url.Parse(origin); origin != "" && (err != nil || u.Scheme != "http" || u.Path != "" || u.User != nil || !local(u.Hostname())) {
			t.Errorf("changed with Origin %q", origin)
		}
		if u, err := url.Parse("http://" + host); err != nil || !local(u.Hostname()) {
			t.Errorf("changed with Host %q", host)
		}
	})
}

// local says whether the host is this machine, by other means than the product's.
func local(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

func addr(s string) net.Addr {
	a, err := net.ResolveTCPAddr("tcp", s)
	if err != nil {
		panic(err)
	}
	return a
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := admin.New(admin.Config{}); err == nil {
		t.Error("New took a Config without functions")
	}
	_, err := admin.New(admin.Config{
		Metrics: http.NotFoundHandler(), AllowHosts: []string{"*.example"},
		Ready: func() error { return nil }, Status: func() any { return nil }, Streams: func() any { return nil }, Reload: func() error { return nil }, Quit: func() {},
	})
	if err == nil || !strings.Contains(err.Error(), "*.example") {
		t.Errorf("New with a pattern as host: %v", err)
	}
}
