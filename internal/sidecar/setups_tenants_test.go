// SPDX-License-Identifier: Apache-2.0

package sidecar_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// setUp is one of docs/tenants.md, with replacements.
func setUp(t *testing.T, name string, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/tenants.md")
	if err != nil {
		t.Fatal(err)
	}
	_, file, ok := strings.Cut(string(text), "```yaml\n# set-up: "+name+"\n")
	if !ok {
		t.Fatalf("docs/tenants.md has no set-up %q", name)
	}
	file, _, _ = strings.Cut(file, "```")
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(file, replace[i]) {
			t.Fatalf("the set-up %s has no %q", name, replace[i])
		}
	}
	return strings.NewReplacer(replace...).Replace(file)
}

func wantKey(t *testing.T, seen chan asked, field, key string) {
	t.Helper()
	if got := (<-seen).Header.Get(field); got != key {
		t.Errorf("the upstream got %s: %s, want %s", field, got, key)
	}
}

func TestSetUpWithUsers(t *testing.T) {
	if os.Getuid() == 990 {
		t.Skip("this test runs as the user of the nightly jobs")
	}
	upstream, seen := model(t)
	t.Setenv("ALICE_OPENAI_KEY", "key-alice")
	t.Setenv("ALICE_ANTHROPIC_KEY", "key-alice-2")
	t.Setenv("NIGHTLY_OPENAI_KEY", "key-nightly")
	socket := filepath.Join(t.TempDir(), "w.sock")
	replace := func(alice, nightly string) string {
		return setUp(t, "users", "127.0.0.1:8484", "127.0.0.1:0", "/run/warmwire/warmwire.sock", socket, "https://api.openai.com", "http://"+upstream,
			"https://api.anthropic.com", "http://localhost:1", "[1000]", "["+alice+"]", "[990]", "["+nightly+"]")
	}
	me := fmt.Sprint(os.Getuid())
	r := start(t, upstream, replace(me, "990"))
	resp, text := r.callAs("POST", "/openai/v1/files", "sk-whatever")
	if resp.StatusCode != 200 {
		t.Fatalf("by the socket table: %d %s", resp.StatusCode, text)
	}
	wantKey(t, seen, "Authorization", "Bearer key-alice")
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	resp, err := client.Post("http://localhost/openai/v1/responses", "application/json", strings.NewReader("{}"))
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("by the socket's peer: %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	wantKey(t, seen, "Authorization", "Bearer key-alice")
	r.stop()

	r = start(t, upstream, replace("990", me)) // now we are the nightly jobs
	if resp, text := r.callAs("POST", "/openai/v1/files", "sk-whatever"); resp.StatusCode != 403 {
		t.Errorf("what the nightly jobs may not: %d %s", resp.StatusCode, text)
	}
	if resp, text := r.callAs("POST", "/openai/v1/chat/completions", "sk-whatever"); resp.StatusCode != 200 {
		t.Errorf("what they may: %d %s", resp.StatusCode, text)
	}
	wantKey(t, seen, "Authorization", "Bearer key-nightly")
	r.stop()

	r = start(t, upstream, replace("990", "991"))
	if resp, text := r.callAs("POST", "/openai/v1/chat/completions", "sk-whatever"); resp.StatusCode != 401 {
		t.Errorf("another user: %d %s", resp.StatusCode, text)
	}
}

func TestSetUpWithApps(t *testing.T) {
	upstream, seen := model(t)
	google, googleSeen := model(t)
	t.Setenv("CHATBOT_OPENAI_KEY", "key-chatbot")
	t.Setenv("CHATBOT_GEMINI_KEY", "key-google")
	t.Setenv("INDEXER_TOKEN", "indexer-token-0123456789")
	t.Setenv("INDEXER_OPENAI_KEY", "key-indexer")
	token := filepath.Join(t.TempDir(), "chatbot")
	if err := os.WriteFile(token, []byte("chatbot-token-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, upstream, setUp(t, "apps", "0.0.0.0:8484", "0.0.0.0:0", "admin: {address: 127.0.0.1:8485}\n", "", "/etc/warmwire/tokens/chatbot", token,
		"https://api.openai.com", "http://"+upstream, "https://generativelanguage.googleapis.com", "http://"+strings.Replace(google, "127.0.0.1", "localhost", 1)))
	_, port, _ := net.SplitHostPort(r.addr)
	r.addr = "127.0.0.1:" + port
	for _, tt := range []struct {
		method, path, token string
		status              int
	}{
		{"POST", "/openai/v1/chat/completions", "chatbot-token-0123456789", 200}, {"POST", "/openai/v1/embeddings", "indexer-token-0123456789", 200},
		{"GET", "/openai/v1/files/1", "chatbot-token-0123456789", 403}, {"POST", "/openai/v1/chat/completions", "indexer-token-0123456789", 403},
		{"POST", "/openai/v1/embeddings", "", 401}, {"POST", "/gemini/v1beta/models/m:generateContent", "indexer-token-0123456789", 403},
	} {
		resp, text := r.callAs(tt.method, tt.path, tt.token)
		if resp.StatusCode != tt.status {
			t.Errorf("%s %s with %q: %d %s", tt.method, tt.path, tt.token, resp.StatusCode, text)
		}
	}
	wantKey(t, seen, "Authorization", "Bearer key-chatbot")
	wantKey(t, seen, "Authorization", "Bearer key-indexer")
	if resp, text := r.callAs("POST", "/gemini/v1beta/models/m:generateContent?alt=sse&key=chatbot-token-0123456789", ""); resp.StatusCode != 200 {
		t.Errorf("by ?key=: %d %s", resp.StatusCode, text)
	}
	if got := <-googleSeen; got.Target != "/v1beta/models/m:generateContent?alt=sse" || got.Header.Get("X-Goog-Api-Key") != "key-google" {
		t.Errorf("the upstream got %s %v", got.Target, got.Header)
	}
}

func TestSetUpWithTeams(t *testing.T) {
	upstream, seen := model(t)
	idp := newIssuer(t)
	t.Setenv("RESEARCH_OPENAI_KEY", "key-research")
	t.Setenv("CI_OPENAI_KEY", "key-ci")
	r := start(t, upstream, setUp(t, "teams", "127.0.0.1:8484", "127.0.0.1:0", "https://api.openai.com", "http://"+upstream,
		"https://idp.example.com/.well-known/jwks.json", idp.URL))
	research := idp.token(t, jwt.MapClaims{"groups": []string{"research"}})
	ci := idp.token(t, jwt.MapClaims{"sub": "repo:example/app", "environment": "ci"})
	eventually(t, "there are keys", func() bool {
		resp, _ := r.callAs("POST", "/openai/v1/chat/completions", research)
		return resp.StatusCode == 200
	})
	wantKey(t, seen, "Authorization", "Bearer key-research")
	if resp, text := r.callAs("POST", "/openai/v1/chat/completions", ci); resp.StatusCode != 200 {
		t.Errorf("ci: %d %s", resp.StatusCode, text)
	}
	wantKey(t, seen, "Authorization", "Bearer key-ci")
	through := func(token string) (int, error) {
		proxy := &url.URL{Scheme: "http", Host: r.addr, User: url.UserPassword("x", token)}
		tr := &http.Transport{Proxy: http.ProxyURL(proxy), ProxyConnectHeader: http.Header{}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("https://" + upstream + "/") // a tunnel, whose other end speaks no TLS
		if err != nil {
			return 0, err
		}
		_ = resp.Body.Close()
		return resp.StatusCode, nil
	}
	if _, err := through(research); err == nil || strings.Contains(err.Error(), "Forbidden") || strings.Contains(err.Error(), "Proxy Authentication") {
		t.Errorf("a tunnel of research: %v", err)
	}
	if _, err := through(ci); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("a tunnel of ci: %v, want Forbidden", err)
	}
	if _, err := through("nobody"); err == nil || !strings.Contains(err.Error(), "Proxy Authentication Required") {
		t.Errorf("a tunnel of nobody: %v", err)
	}
}
