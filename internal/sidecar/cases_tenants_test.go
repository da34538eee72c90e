// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// asked is a request that reached the upstream.
type asked struct {
	Target string
	Header http.Header
}

// model is an upstream that says what it was asked, and that this cost 7 tokens.
func model(t testing.TB) (addr string, seen chan asked) {
	t.Helper()
	seen = make(chan asked, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- asked{r.URL.RequestURI(), r.Header.Clone()}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}`)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://"), seen
}

// callAs sends one request with a token as its API key.
func (r *rig) callAs(method, path, token string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.addr+path, strings.NewReader("{}"))
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(text)
}

// eventually asks until it is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// adminText reads a page of the admin listener.
func (r *rig) adminText(path string) string {
	r.t.Helper()
	resp, err := http.Get("http://" + r.admin + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

const twoTenants = `
upstreams: {up: {url: 'http://UPSTREAM'}}
tenants:
  team-a:
    tokens: [PLANTED-token-of-team-a]
    roles: [chat]
    priority: batch
    quota: {requests: 3, output_tokens: 1000}
    keys: {up: PLANTED-key-of-team-a}
  team-b:
    tokens: [PLANTED-token-of-team-b]
    roles: [chat]
roles:
  chat: {upstreams: [up], methods: [POST], paths: [/v1/chat/completions]}
`

// TestTenantsInTheWholeProgram goes through what an operator sees: who may, who may no
// more, what is counted and logged, and that no secret is anywhere.
func TestTenantsInTheWholeProgram(t *testing.T) {
	upstream, seen := model(t)
	r := start(t, upstream, twoTenants)
	for range 3 {
		if resp, text := r.callAs("POST", "/up/v1/chat/completions", "PLANTED-token-of-team-a"); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		if got := <-seen; got.Header.Get("Authorization") != "Bearer PLANTED-key-of-team-a" {
			t.Errorf("the upstream got %v", got.Header)
		}
	}
	resp, text := r.callAs("POST", "/up/v1/chat/completions", "PLANTED-token-of-team-a")
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || !strings.Contains(text, "quota_requests") {
		t.Errorf("over the quota: %d %v %s", resp.StatusCode, resp.Header, text)
	}
	if resp, text := r.callAs("POST", "/up/v1/chat/completions", "PLANTED-token-of-team-b"); resp.StatusCode != 200 {
		t.Errorf("the neighbour: %d %s", resp.StatusCode, text)
	}
	if got := <-seen; got.Header.Get("Authorization") != "" {
		t.Errorf("a tenant without a key of its own sends %v", got.Header)
	}
	if resp, _ := r.callAs("GET", "/up/v1/files", "PLANTED-token-of-team-b"); resp.StatusCode != 403 {
		t.Errorf("another path: %d", resp.StatusCode)
	}
	for range 20 {
		if resp, _ := r.callAs("POST", "/up/v1/chat/completions", "PLANTED-wrong-token"); resp.StatusCode != 401 {
			t.Errorf("a wrong token: %d", resp.StatusCode)
		}
	}
	metrics := r.adminText("/metrics")
	for _, want := range []string{
		`warmwire_tenant_requests_total{tenant="team-a"} 4`, `warmwire_tenant_refusals_total{reason="requests",tenant="team-a"} 1`,
		`warmwire_tenant_refusals_total{reason="not_in_role",tenant="team-b"} 1`, `warmwire_tenant_refusals_total{reason="unknown_token",tenant="none"} 20`,
		`warmwire_tenant_output_tokens_total{source="told",tenant="team-a"} 21`, `warmwire_refused_requests_total{reason="caller_unknown"} 20`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	status := r.adminText("/v1/status")
	var st struct {
		Tenants []struct {
			Name     string
			Requests struct{ Used, Limit int64 }
		}
	}
	if err := json.Unmarshal([]byte(status), &st); err != nil || len(st.Tenants) != 2 || st.Tenants[0].Name != "team-a" || st.Tenants[0].Requests.Used != 3 {
		t.Errorf("status %+v, %v", st, err)
	}
	r.stop()
	log := r.log.String()
	if !strings.Contains(log, "tenant=team-a mode=base_url") {
		t.Error("the access log does not say whose requests they are")
	}
	if n := strings.Count(log, "a caller was refused"); n != 1 {
		t.Errorf("%d lines about refused callers, want 1 in 10 s", n)
	}
	for name, text := range map[string]string{"log": log, "metrics": metrics, "status": status} {
		if strings.Contains(text, "PLANTED") {
			t.Errorf("the %s has a secret", name)
		}
	}
}

func TestReloadKeepsQuotasOfTenantsThatStay(t *testing.T) {
	upstream, _ := model(t)
	r := start(t, upstream, twoTenants)
	use := func(token string) int {
		resp, _ := r.callAs("POST", "/up/v1/chat/completions", token)
		return resp.StatusCode
	}
	for range 3 {
		use("PLANTED-token-of-team-a")
	}
	reload := func(more string) {
		t.Helper()
		r.write(upstream, more)
		if err := r.s.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	reload(strings.Replace(twoTenants, "token-of-team-b", "other-token-of-b", 1))
	if a, old, b := use("PLANTED-token-of-team-a"), use("PLANTED-token-of-team-b"), use("PLANTED-other-token-of-b"); a != 429 || old != 401 || b != 200 {
		t.Errorf("after the reload: %d, %d, %d", a, old, b)
	}
	if err := r.s.Tune(map[string]string{"tenants.team-a.quota.requests": "4"}); err != nil {
		t.Fatal(err)
	}
	if first, second := use("PLANTED-token-of-team-a"), use("PLANTED-token-of-team-a"); first != 200 || second != 429 {
		t.Errorf("with one more: %d, then %d", first, second)
	}
	r.write(upstream, strings.Replace(twoTenants, "token-of-team-b", "token-of-team-a", 1))
	if err := r.s.Reload(); err == nil || !strings.Contains(err.Error(), "has the same token as tenant team-a") {
		t.Errorf("one token for two: %v", err)
	}
	if got := use("PLANTED-other-token-of-b"); got != 200 {
		t.Errorf("a bad file has changed something: %d", got)
	}
	r.write(upstream, twoTenants)
	if err := r.s.Tune(map[string]string{"tenants.team-a.quota.requests": ""}); err != nil { // as for upstreams, a file must have what is tuned
		t.Fatal(err)
	}
	reload("")
	if got := use("anything"); got != 200 {
		t.Errorf("without tenants: %d", got)
	}
	if strings.Contains(r.adminText("/metrics"), `tenant="team-a"`) {
		t.Error("series of a tenant that is gone are still there")
	}
}

// An issuer gives JWTs, and has a page with the key for them.
type issuer struct {
	*httptest.Server
	key  *ecdsa.PrivateKey
	down atomic.Bool
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{}
	var err error
	if i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	point, err := i.key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if i.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		b64 := base64.RawURLEncoding.EncodeToString
		fmt.Fprintf(w, `{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","use":"sig","x":%q,"y":%q}]}`, b64(point[1:33]), b64(point[33:]))
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) token(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	all := jwt.MapClaims{"iss": "https://idp.example.com", "aud": "warmwire", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for name, v := range claims {
		all[name] = v
	}
	tok := jwt.NewWithClaims(jwt.SigningMethodES256, all)
	tok.Header["kid"] = "k1"
	text, err := tok.SignedString(i.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestKeysOfAnIssuer are fetched at start, and stay while it is away.
func TestKeysOfAnIssuer(t *testing.T) {
	upstream, seen := model(t)
	idp := newIssuer(t)
	r := start(t, upstream, fmt.Sprintf(`
upstreams: {up: {url: 'http://UPSTREAM'}}
jwt: {issuer: 'https://idp.example.com', audience: [warmwire], keys_url: '%s'}
tenants:
  research: {claims: {groups: research}, roles: [all], keys: {up: k}}
roles:
  all: {upstreams: ['*']}
`, idp.URL))
	token := idp.token(t, jwt.MapClaims{"groups": []string{"staff", "research"}})
	eventually(t, "there are keys", func() bool { // they come in the background
		resp, text := r.callAs("POST", "/up/v1/x", token)
		if resp.StatusCode != 200 && resp.StatusCode != 503 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		return resp.StatusCode == 200
	})
	if got := <-seen; strings.Contains(fmt.Sprint(got.Header), token) {
		t.Error("the token has reached the upstream")
	}
	idp.down.Store(true)
	if err := r.s.Reload(); err != nil { // and with it another fetch
		t.Fatal(err)
	}
	eventually(t, "status says that the issuer is away", func() bool { return strings.Contains(r.adminText("/v1/status"), "the answer is 502") })
	if resp, text := r.callAs("POST", "/up/v1/x", token); resp.StatusCode != 200 {
		t.Errorf("while the issuer is away: %d %s", resp.StatusCode, text)
	}
	for name, bad := range map[string]string{
		"expired": idp.token(t, jwt.MapClaims{"groups": "research", "exp": time.Now().Add(-time.Hour).Unix()}), "of another group": idp.token(t, jwt.MapClaims{"groups": "x"}),
		"not yet": idp.token(t, jwt.MapClaims{"groups": "research", "nbf": time.Now().Add(time.Hour).Unix()}),
	} {
		resp, text := r.callAs("POST", "/up/v1/x", bad)
		if resp.StatusCode != 401 || !strings.Contains(text, "this caller is not known here") {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
}
