// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/warmwire/warmwire/internal/dialect"
	"github.com/warmwire/warmwire/internal/tenant"
	"github.com/warmwire/warmwire/internal/testenv"
)

const (
	tokenA = "wwt_aaaaaaaaaaaaaaaaaaaa"
	tokenB = "wwt_bbbbbbbbbbbbbbbbbbbb"
)

// tenants are two with a token each: a may do all that limits leave, b only GET.
func tenants(t testing.TB, limits tenant.Limits, more ...tenant.Settings) *tenant.Book {
	t.Helper()
	hashed := func(token string) [][sha256.Size]byte { return [][sha256.Size]byte{sha256.Sum256([]byte(token))} }
	fields := map[string]http.Header{"up": {"Authorization": {"Bearer sk-real-of-a"}}}
	book, err := tenant.New(tenant.Config{
		Roles: []tenant.Role{
			{Name: "all", Upstreams: []string{"*", tenant.Forward, tenant.Tunnel}},
			{Name: "reads", Upstreams: []string{"up"}, Methods: []string{"GET"}, Paths: []string{"/v1/models/**"}},
		},
		Tenants: append([]tenant.Settings{
			{Name: "a", Hashes: hashed(tokenA), Roles: []string{"all"}, Class: "batch", Weight: 3, Limits: limits, Fields: fields},
			{Name: "b", Hashes: hashed(tokenB), Roles: []string{"reads"}},
		}, more...),
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return book
}

// A tenantRig is a rig with tenants whose upstream tells what it was asked.
type tenantRig struct {
	*rig
	denials chan Denial
	charged chan int64
}

func newTenantRig(t testing.TB, kind dialect.Kind, book *tenant.Book, handler http.HandlerFunc) *tenantRig {
	t.Helper()
	site := httptest.NewServer(handler)
	t.Cleanup(site.Close)
	r := &tenantRig{denials: make(chan Denial, 100), charged: make(chan int64, 100)}
	cfg := &Config{Hooks: Hooks{Denied: func(d Denial) { r.denials <- d }, Charged: func(_ string, n int64, _ bool) { r.charged <- n }}}
	r.rig = newRigFrom(t, cfg, strings.TrimPrefix(site.URL, "http://"), func(tab *Table, u *Upstream) {
		tab.Tenants, u.Dialect = book, kind
		if kind == dialect.None { // the shared key of the upstream
			u.SetHeaders = http.Header{"X-Shared": {"k"}}
		}
	})
	return r
}

func (r *tenantRig) denied(want Denial) {
	r.t.Helper()
	select {
	case got := <-r.denials:
		if got != want {
			r.t.Errorf("denied %+v, want %+v", got, want)
		}
	case <-time.After(patience):
		r.t.Errorf("nothing was denied, want %+v", want)
	}
}

// send sends a request with some fields and returns what came back.
func (r *tenantRig) send(method, target string, fields map[string]string, body string) (*http.Response, []byte) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.addr+target, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for name, v := range fields {
		req.Header.Set(name, v)
	}
	return roundTrip(r.t, http.DefaultTransport.(*http.Transport), req)
}

func roundTrip(t testing.TB, tr *http.Transport, req *http.Request) (*http.Response, []byte) {
	t.Helper()
	tr = tr.Clone()
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, text
}

func basic(user, password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, password)
	return r.Header.Get("Authorization")
}

// TestKeysOfTheAppStayHere sends a tenant's token in each field that is known, beside
// dummies in the others: the upstream sees the tenant's real key and nothing else.
func TestKeysOfTheAppStayHere(t *testing.T) {
	all := map[string]string{"Authorization": "Bearer sk-dummy", "X-Api-Key": "sk-dummy", "Api-Key": "sk-dummy", "X-Goog-Api-Key": "sk-dummy"}
	tests := []struct {
		name   string
		kind   dialect.Kind
		target string
		fields map[string]string
	}{
		{"Authorization", dialect.OpenAI, "/up/v1/x?a=%20b&key=z&c", map[string]string{"Authorization": "Bearer " + tokenA}},
		{"x-api-key", dialect.Anthropic, "/up/v1/x?a=%20b&key=z&c", map[string]string{"X-Api-Key": tokenA}},
		{"api-key", dialect.OpenAI, "/up/v1/x?a=%20b&key=z&c", map[string]string{"Api-Key": tokenA}},
		{"x-goog-api-key", dialect.Gemini, "/up/v1/x?a=%20b&c", map[string]string{"X-Goog-Api-Key": tokenA}},
		{"?key=", dialect.Gemini, "/up/v1/x?a=%20b&%6bey=" + tokenA + "&c", nil},
		{"?key= of another", dialect.Gemini, "/up/v1/x?key=sk-dummy&a=%20b&access_token=sk-dummy&c", map[string]string{"Warmwire-Token": tokenA}},
		{"?key= that is a tenant's, elsewhere", dialect.OpenAI, "/up/v1/x?a=%20b&c&key=" + tokenB, map[string]string{"Warmwire-Token": tokenA}},
		{"Warmwire-Token", dialect.OpenAI, "/up/v1/x?a=%20b&key=z&c", map[string]string{"Warmwire-Token": tokenA}},
		{"Proxy-Authorization, bearer", dialect.OpenAI, "/up/v1/x?a=%20b&key=z&c", map[string]string{"Proxy-Authorization": "bearer " + tokenA}},
		{"Proxy-Authorization, password", dialect.OpenAI, "/up/v1/x?a=%20b&key=z&c", map[string]string{"Proxy-Authorization": basic("me", tokenA)}},
		{"Proxy-Authorization, user", dialect.OpenAI, "/up/v1/x?a=%20b&key=z&c", map[string]string{"Proxy-Authorization": basic(tokenA, "")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newTenantRig(t, tt.kind, tenants(t, tenant.Limits{}), echo)
			fields := maps.Clone(all)
			maps.Copy(fields, tt.fields)
			resp, text := r.send("POST", tt.target, fields, "{}")
			var got seen
			if err := json.Unmarshal(text, &got); err != nil || resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
			if bytes.Contains(text, []byte("sk-dummy")) || bytes.Contains(text, []byte("wwt_")) {
				t.Errorf("something of the app's reached the upstream: %s", text)
			}
			if want := "/v1/x?a=%20b&c"; got.Target != want && got.Target != "/v1/x?a=%20b&key=z&c" || strings.Contains(tt.target, "key=z") != strings.Contains(got.Target, "key=z") {
				t.Errorf("target %s", got.Target)
			}
			if auth := got.Header["Authorization"]; !slices.Equal(auth, []string{"Bearer sk-real-of-a"}) {
				t.Errorf("Authorization %q", auth)
			}
			if rec := r.record(); rec.Tenant != "a" {
				t.Errorf("recorded for %q", rec.Tenant)
			}
		})
	}
}

// TestWhoIsNotKnownLearnsNothing sends what is wrong in many ways: the answers are the
// same to the byte, and the upstream is not asked.
func TestWhoIsNotKnownLearnsNothing(t *testing.T) {
	const tail = "\",\"param\":null,\"type\":\"warmwire_error\"}}"
	tests := []struct {
		name   string
		target string
		fields map[string]string
		why    tenant.Reason
	}{
		{"nothing", "/up/v1/x", nil, tenant.NoProof},
		{"wrong", "/up/v1/x", map[string]string{"Authorization": "Bearer sk-x"}, tenant.Unknown},
		{"one byte short", "/up/v1/x", map[string]string{"Authorization": "Bearer " + tokenA[:len(tokenA)-1]}, tenant.Unknown},
		{"a wrong one of ours beside a right one", "/up/v1/x", map[string]string{"Warmwire-Token": "x", "Authorization": "Bearer " + tokenA}, tenant.Unknown},
		{"Basic that is none", "/up/v1/x", map[string]string{"Proxy-Authorization": "Basic %%%"}, tenant.Unknown},
		{"a scheme that is none", "/up/v1/x", map[string]string{"Proxy-Authorization": tokenA}, tenant.Unknown},
		{"oversized", "/up/v1/x", map[string]string{"Authorization": "Bearer " + strings.Repeat("x", tenant.MaxToken+1)}, tenant.TooLarge},
		{"oversized password", "/up/v1/x", map[string]string{"Proxy-Authorization": basic("u", strings.Repeat("x", 2*tenant.MaxToken))}, tenant.TooLarge},
		{"?key= where that is no key", "/up/v1/x?key=" + tokenA, nil, tenant.NoProof},
		{"an upstream that there is not", "/nope/v1/x", nil, tenant.NoProof},
	}
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{}), func(http.ResponseWriter, *http.Request) { t.Error("the upstream was asked") })
	var first []byte
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, text := r.send("POST", tt.target, tt.fields, "{}")
			if first == nil {
				first = text
			}
			if resp.StatusCode != 401 || !bytes.Equal(text, first) || !bytes.Contains(text, []byte(`"code":"caller_unknown","message":"Warmwire: this caller is not known here`+tail)) {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
			if resp.Header.Get("X-Should-Retry") != "false" || resp.Header.Get("Www-Authenticate") == "" {
				t.Errorf("fields %v", resp.Header)
			}
			up := "up"
			if strings.HasPrefix(tt.target, "/nope") {
				up = ""
			}
			mode := ModeBaseURL
			if up == "" {
				mode = ""
			}
			r.denied(Denial{Reason: string(tt.why), Mode: mode, Upstream: up})
		})
	}
	if resp, text := r.send("POST", "/nope/v1/x", map[string]string{"Authorization": "Bearer " + tokenA}, ""); resp.StatusCode != 404 {
		t.Errorf("a known caller of an unknown upstream: %d %s", resp.StatusCode, text)
	}
}

func TestRefusalsAreInTheDialectsShape(t *testing.T) {
	for kind, want := range map[dialect.Kind]string{dialect.OpenAI: `{"error":{"code":"`, dialect.Anthropic: `{"error":{"code":"`, dialect.Gemini: `{"error":{"code":40`} {
		r := newTenantRig(t, kind, tenants(t, tenant.Limits{Requests: 1}), echo)
		for i, tt := range []struct {
			token  string
			status int
			kinds  map[dialect.Kind]string
		}{
			{"x", 401, map[dialect.Kind]string{dialect.Anthropic: "authentication_error", dialect.Gemini: "UNAUTHENTICATED", dialect.OpenAI: "caller_unknown"}},
			{tokenB, 403, map[dialect.Kind]string{dialect.Anthropic: "permission_error", dialect.Gemini: "PERMISSION_DENIED", dialect.OpenAI: "not_permitted"}},
			{tokenA, 200, nil},
			{tokenA, 429, map[dialect.Kind]string{dialect.Anthropic: "rate_limit_error", dialect.Gemini: "RESOURCE_EXHAUSTED", dialect.OpenAI: "quota_requests"}},
		} {
			resp, text := r.send("POST", "/up/v1/x", map[string]string{"Authorization": "Bearer " + tt.token}, "")
			if resp.StatusCode != tt.status || tt.kinds != nil && !bytes.Contains(text, []byte(tt.kinds[kind])) || i == 0 && !bytes.HasPrefix(text, []byte(want)) {
				t.Errorf("%s, step %d: %d %s", kind, i, resp.StatusCode, text)
			}
			if tt.status != 429 {
				continue
			}
			if after := resp.Header.Get("Retry-After"); after != "61" && after != "60" {
				t.Errorf("Retry-After %q", after)
			}
			if resp.Header.Get("X-Should-Retry") != "true" {
				t.Error("the app is told not to come back")
			}
		}
	}
}

func TestRolesOfRequests(t *testing.T) {
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{}), echo)
	fields := map[string]string{"Authorization": "Bearer " + tokenB}
	for _, tt := range []struct {
		method, target string
		status         int
	}{
		{"GET", "/up/v1/models/m", 200}, {"GET", "/up/v1/models/m?x=../../", 200}, {"POST", "/up/v1/models/m", 403}, {"GET", "/up/v1/files", 403},
		{"GET", "/up/v1/models/../files", 403}, {"GET", "/up/v1/models/%2e%2e/files", 403},
	} {
		resp, text := r.send(tt.method, tt.target, fields, "")
		if resp.StatusCode != tt.status {
			t.Errorf("%s %s: %d %s", tt.method, tt.target, resp.StatusCode, text)
		}
		if tt.status == 403 {
			r.denied(Denial{Tenant: "b", Reason: string(tenant.NotInRole), Mode: ModeBaseURL, Upstream: "up"})
		}
	}
}

// TestPathsBesideTheAPI asks for paths of an upstream's host that are not below its url.
func TestPathsBesideTheAPI(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(echo))
	defer site.Close()
	addr := strings.TrimPrefix(site.URL, "http://")
	r := newRig(t, addr, func(tab *Table, u *Upstream) {
		tab.Tenants = tenants(t, tenant.Limits{})
		u.URL.Path = "/openai"
	})
	for target, status := range map[string]int{"/openai/v1/models/x": 200, "/v1/models/x": 403, "/openaix/v1/models/x": 403} {
		app := r.dial()
		app.Send(fmt.Sprintf("GET http://%s%s HTTP/1.1\nHost: %s\nProxy-Authorization: Bearer %s\n\n", addr, target, addr, tokenB))
		if head := app.Head(); !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", status)) {
			t.Errorf("%s: %s", target, head)
		}
	}
}

// TestTheUsersOfASocket is known by its user, and by its group, whatever its SDK sends.
func TestTheUsersOfASocket(t *testing.T) {
	for _, by := range []tenant.Settings{{UIDs: []uint32{uint32(os.Getuid())}}, {GIDs: []uint32{uint32(os.Getgid())}}} {
		by.Name, by.Roles = "local", []string{"all"}
		r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{}, by), echo)
		path := t.TempDir() + "/w.sock"
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.server.Serve(ctx, ln) }()
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
		req, _ := http.NewRequest("GET", "http://localhost/up/v1/x", nil)
		req.Header.Set("Authorization", "Bearer sk-dummy")
		resp, text := roundTrip(t, tr, req)
		if resp.StatusCode != 200 || bytes.Contains(text, []byte("sk-dummy")) {
			t.Errorf("by %+v: %d %s", by, resp.StatusCode, text)
		}
		if rec := r.record(); rec.Tenant != "local" {
			t.Errorf("recorded for %q", rec.Tenant)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestCallersOverHTTP2(t *testing.T) {
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{Requests: 1}), echo)
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	for _, tt := range []struct {
		token  string
		status int
	}{{"x", 401}, {tokenA, 200}, {tokenA, 429}} {
		req, _ := http.NewRequest("POST", "http://"+r.addr+"/up/v1/x", strings.NewReader("{}"))
		req.Header.Set("X-Api-Key", tt.token)
		resp, text := roundTrip(t, tr, req)
		if resp.ProtoMajor != 2 || resp.StatusCode != tt.status || bytes.Contains(text, []byte("wwt_")) {
			t.Errorf("%s: %s %d %s", tt.token, resp.Proto, resp.StatusCode, text)
		}
	}
}

// TestCallersOfWebSockets are known by the fields of the handshake, among them the
// subprotocol by which browsers give a key.
func TestCallersOfWebSockets(t *testing.T) {
	heads := make(chan http.Header, 1)
	up := websocket.Upgrader{Subprotocols: []string{"realtime"}}
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{Streams: 1}), func(w http.ResponseWriter, r *http.Request) {
		heads <- r.Header.Clone()
		c, err := up.Upgrade(w, r, nil)
		if err == nil {
			_, _, _ = c.ReadMessage()
			_ = c.Close()
		}
	})
	dial := func(fields http.Header, protocols ...string) (*websocket.Conn, int) {
		d := websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: patience}
		c, resp, err := d.Dial("ws://"+r.addr+"/up/v1/realtime", fields)
		if resp == nil {
			t.Fatal(err)
		}
		return c, resp.StatusCode
	}
	for name, by := range map[string]func() (*websocket.Conn, int){
		"subprotocol": func() (*websocket.Conn, int) { return dial(nil, "realtime", protocolKey+tokenA) },
		"Authorization": func() (*websocket.Conn, int) {
			return dial(http.Header{"Authorization": {"Bearer " + tokenA}}, "realtime")
		},
	} {
		c, status := by()
		if status != 101 {
			t.Fatalf("%s: %d", name, status)
		}
		head := <-heads
		if got := head["Sec-Websocket-Protocol"]; !slices.Equal(got, []string{"realtime"}) || head.Get("Authorization") != "Bearer sk-real-of-a" || strings.Contains(fmt.Sprint(head), "wwt_") {
			t.Errorf("%s: the upstream got %v", name, head)
		}
		if _, status := by(); status != 429 {
			t.Errorf("%s: a second stream: %d, want 429", name, status)
		}
		r.denied(Denial{Tenant: "a", Reason: string(tenant.Streams), Mode: ModeWebSocket, Upstream: "up"})
		_ = c.Close()
		for r.record().Outcome == OutcomeRefused { // that one comes first
		}
	}
	if _, status := dial(nil, "realtime", protocolKey+"sk-x"); status != 401 {
		t.Errorf("a wrong key: %d, want 401", status)
	}
}

func TestTunnelsOfTenants(t *testing.T) {
	site := testenv.ServeRaw(t, func(c *testenv.Raw) { _, _ = io.Copy(c.TCPConn, c.In) })
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{Streams: 1}), echo)
	connect := func(field string) (*testenv.Raw, string) {
		app := r.dial()
		app.Send("CONNECT " + site + " HTTP/1.1\nHost: " + site + "\n" + field + "\n")
		line, _, _ := strings.Cut(app.Head(), "\n")
		return app, line
	}
	for field, want := range map[string]string{
		"": "407", "Authorization: Bearer " + tokenA + "\n": "407", "Proxy-Authorization: " + basic("", "wrong") + "\n": "407",
		"Proxy-Authorization: " + basic("", tokenB) + "\n": "403",
	} {
		if _, line := connect(field); !strings.HasPrefix(line, "HTTP/1.1 "+want) {
			t.Errorf("%q: %s, want %s", field, line, want)
		}
		<-r.denials
	}
	app, line := connect("Proxy-Authorization: " + basic("", tokenA) + "\n")
	if !strings.HasPrefix(line, "HTTP/1.1 200") {
		t.Fatalf("a tunnel that is allowed: %s", line)
	}
	app.Send("hello\n")
	app.Expect("hello\r\n")
	if _, line := connect("Proxy-Authorization: " + basic("", tokenA) + "\n"); !strings.HasPrefix(line, "HTTP/1.1 429") {
		t.Errorf("a second stream: %s, want 429", line)
	}
	_ = app.CloseWrite()
	_, _ = app.Rest()
}

// TestRequestsInATunnelAreItsCallers cannot become another's by a token inside.
func TestRequestsInATunnelAreItsCallers(t *testing.T) {
	r := newTLSRig(t, func(_ *Config, tab *Table, u *Upstream) { tab.Tenants = tenants(t, tenant.Limits{}) })
	get := func(tunnel, path, inside string) (int, string) {
		proxy := &url.URL{Scheme: "http", Host: r.addr, User: url.UserPassword("x", tunnel)}
		tr := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: r.roots}}
		defer tr.CloseIdleConnections()
		req, _ := http.NewRequest("GET", "https://"+host+path, nil)
		req.Header.Set("Authorization", "Bearer "+inside)
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	if status, text := get(tokenA, "/v1/files", "sk-dummy"); status != 200 || strings.Contains(text, "sk-dummy") || !strings.Contains(text, "sk-real-of-a") {
		t.Errorf("in a tunnel of a: %d %s", status, text)
	}
	if status, text := get(tokenB, "/v1/models/x", tokenA); status != 200 || strings.Contains(text, "wwt_") || strings.Contains(text, "sk-real") {
		t.Errorf("in a tunnel of b: %d %s", status, text)
	}
	if status, text := get(tokenB, "/v1/files", tokenA); status != 403 {
		t.Errorf("in a tunnel of b, what only a may: %d %s", status, text)
	}
	if status, text := get("wrong-token-wrong-token", "/v1/models/x", tokenA); status != 0 || !strings.Contains(text, "Proxy Authentication Required") {
		t.Errorf("a tunnel of nobody: %d %s", status, text)
	}
	// b may not have blind tunnels: one that is not TLS ends, and nothing is dialled.
	app := r.dial()
	app.Send("CONNECT " + host + ":443 HTTP/1.1\nHost: " + host + "\nProxy-Authorization: " + basic("", tokenB) + "\n\n")
	app.Head()
	app.SendExact("SSH-2.0-x\r\n")
	if text, _ := app.Rest(); text != "" {
		t.Errorf("a blind tunnel says %q", text)
	}
}

// TestOtherHostsGetTheAppsOwnKey, which is none of ours, but never a tenant's token.
func TestOtherHostsGetTheAppsOwnKey(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(echo))
	defer site.Close()
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{}), echo)
	for _, tt := range []struct {
		own, auth string
		status    int
		want      string
	}{
		{basic("", tokenA), "Bearer theirs", 200, "Bearer theirs"}, {basic("", tokenA), "Bearer " + tokenB, 200, ""},
		{basic("", tokenB), "Bearer theirs", 403, ""}, {"", "Bearer " + tokenA, 407, ""},
	} {
		app := r.dial()
		head := "GET " + site.URL + "/x HTTP/1.1\nHost: x\nConnection: close\nAuthorization: " + tt.auth + "\n"
		if tt.own != "" {
			head += "Proxy-Authorization: " + tt.own + "\n"
		}
		app.Send(head + "\n")
		answer := app.Head()
		body, _ := app.Rest()
		if !strings.HasPrefix(answer, fmt.Sprintf("HTTP/1.1 %d ", tt.status)) || strings.Contains(body, "wwt_") {
			t.Errorf("%+v: %s%s", tt, answer, body)
		}
		if tt.want != "" && !strings.Contains(body, tt.want) {
			t.Errorf("%+v: %s", tt, body)
		}
	}
}

// TestOutputTokensOfAnswers charges what answers say, and chunks where they say nothing.
func TestOutputTokensOfAnswers(t *testing.T) {
	event := func(s string) string { return "data: " + s + "\n\n" }
	chunkOf := event(`{"choices":[{"delta":{"content":"x"}}]}`)
	for name, tt := range map[string]struct {
		kind, answer string
		charged      int64
	}{
		"told":        {"application/json", `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":40}}`, 40},
		"told late":   {"text/event-stream", chunkOf + chunkOf + event(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":40}}`) + event("[DONE]"), 40},
		"chunks only": {"text/event-stream", strings.Repeat(chunkOf, 41) + event("[DONE]"), 41},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{OutputTokens: tt.charged}), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.kind)
				_, _ = io.WriteString(w, tt.answer)
			})
			fields := map[string]string{"Authorization": "Bearer " + tokenA}
			if resp, text := r.send("POST", "/up/v1/chat/completions", fields, "{}"); resp.StatusCode != 200 || string(text) != tt.answer {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
			if n := <-r.charged; n != tt.charged {
				t.Errorf("charged %d, want %d", n, tt.charged)
			}
			if resp, text := r.send("POST", "/up/v1/chat/completions", fields, "{}"); resp.StatusCode != 429 || !bytes.Contains(text, []byte("quota_output_tokens")) {
				t.Errorf("over the quota: %d %s", resp.StatusCode, text)
			}
		})
	}
}

// TestUploadsOfTenants refuses what is announced as too much before it is sent, and ends
// what turns out to be.
func TestUploadsOfTenants(t *testing.T) {
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{Upload: 1000}), echo)
	fields := map[string]string{"Authorization": "Bearer " + tokenA}
	if resp, text := r.send("POST", "/up/v1/x", fields, strings.Repeat("x", 1001)); resp.StatusCode != 413 || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("more than a minute's: %d %s", resp.StatusCode, text)
	}
	if resp, text := r.send("POST", "/up/v1/x", fields, strings.Repeat("x", 600)); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if resp, text := r.send("POST", "/up/v1/x", fields, strings.Repeat("x", 600)); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	app := r.dial()
	app.Send("POST /up/v1/x HTTP/1.1\nHost: localhost\nAuthorization: Bearer " + tokenA + "\nTransfer-Encoding: chunked\n\n")
	app.SendExact(chunk(strings.Repeat("y", 300)) + chunk(strings.Repeat("y", 300)) + "0\r\n\r\n")
	if head := app.Head(); !strings.HasPrefix(head, "HTTP/1.1 429 ") || !strings.Contains(head, "X-Should-Retry: false\n") || !strings.Contains(head, "Retry-After: ") {
		t.Errorf("of unknown length: %s", head)
	}
}

// TestTrailersHoldNoKey: what must not go on as a field must not as a trailer.
func TestTrailersHoldNoKey(t *testing.T) {
	got := make(chan http.Header, 1)
	r := newTenantRig(t, dialect.OpenAI, tenants(t, tenant.Limits{}), func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer
	})
	app := r.dial()
	app.Send("POST /up/v1/x HTTP/1.1\nHost: localhost\nAuthorization: Bearer " + tokenA + "\nTransfer-Encoding: chunked\nTrailer: X-Api-Key, X-Sum\n\n")
	app.SendExact(chunk("hi") + "0\r\nX-Api-Key: " + tokenA + "\r\nX-Sum: 1\r\n\r\n")
	app.Head()
	tr := <-got
	_, key := tr["X-Api-Key"]
	if _, sum := tr["X-Sum"]; key || !sum {
		t.Errorf("trailers %v", tr)
	}
}

// TestTheCallerGoesAlong shows the way out who asks.
func TestTheCallerGoesAlong(t *testing.T) {
	callers := make(chan Caller, 1)
	r := newRig(t, "127.0.0.1:1", func(tab *Table, u *Upstream) {
		tab.Tenants = tenants(t, tenant.Limits{})
		u.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			callers <- CallerOf(r.Context())
			return &http.Response{StatusCode: 204, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
	})
	app := r.dial()
	app.Send("GET /up/v1/x HTTP/1.1\nHost: localhost\nAuthorization: Bearer " + tokenA + "\n\n")
	app.Head()
	if got, want := <-callers, (Caller{Tenant: "a", Class: "batch", Weight: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestParametersOfAQuery(t *testing.T) {
	drop := func(name, value string) bool { return name == "key" }
	for in, want := range map[string]string{
		"/x": "/x", "/x?": "/x?", "/x?key=1": "/x", "/x?a=b&key=1&c=%20": "/x?a=b&c=%20", "/x?%6Bey=1&KEY=2": "/x?KEY=2", "/x?a&&b": "/x?a&&b",
		"/x?key": "/x", "/x?a=key=1": "/x?a=key=1", "/x?%zz=1&key=%zz": "/x?%zz=1", "/x?a?key=1": "/x?a?key=1", "*": "*",
	} {
		if got := withoutParameters(in, drop); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
