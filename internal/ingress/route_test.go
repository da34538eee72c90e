// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/dialect"
)

// testTable has one upstream of each kind that routing tells apart.
func testTable(t testing.TB) *Table {
	t.Helper()
	tab := &Table{AllowHosts: []string{"gateway.test"}}
	for _, u := range []struct{ name, url string }{
		{"openai", "https://api.openai.test"},
		{"groq", "https://api.groq.test/openai"},
		{"port", "https://api.port.test:8443"},
		{"plain", "http://llm.test"},
		{"ollama", "http://127.0.0.1:11434"},
	} {
		parsed, err := url.Parse(u.url)
		if err != nil {
			t.Fatal(err)
		}
		tab.Upstreams = append(tab.Upstreams, &Upstream{Name: u.name, URL: parsed, Dialect: dialect.OpenAI, Transport: http.DefaultTransport})
	}
	tab.Forward.Deny = func(host string) bool { return host == "denied.test" }
	if err := tab.prepare(); err != nil {
		t.Fatal(err)
	}
	return tab
}

func request(method, target, host string) *http.Request {
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey,
		net.Addr(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 8484}))
	r := &http.Request{Method: method, RequestURI: target, Host: host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, URL: &url.URL{}}
	return r.WithContext(ctx)
}

func TestRoute(t *testing.T) {
	const own = "127.0.0.1:8484"
	tests := []struct {
		name, target, host string
		mode               Mode
		upstream, to, raw  string
		status             int
	}{
		{"base URL", "/openai/v1/chat/completions", own, ModeBaseURL, "openai", "api.openai.test", "/v1/chat/completions", 0},
		{"base URL keeps octets", "/openai/v1/files/a%2Fb/../c//d%7E;v=1?alt=sse&key=%2B?", own, ModeBaseURL, "openai", "api.openai.test",
			"/v1/files/a%2Fb/../c//d%7E;v=1?alt=sse&key=%2B?", 0},
		{"base URL with the upstream's path", "/groq/v1/models", own, ModeBaseURL, "groq", "api.groq.test", "/openai/v1/models", 0},
		{"base URL without a rest", "/openai", own, ModeBaseURL, "openai", "api.openai.test", "/", 0},
		{"base URL with a query only", "/openai?x=1", own, ModeBaseURL, "openai", "api.openai.test", "/?x=1", 0},
		{"base URL by localhost", "/openai/v1", "localhost:1", ModeBaseURL, "openai", "api.openai.test", "/v1", 0},
		{"base URL by IPv6 loopback", "/openai/v1", "[::1]:8484", ModeBaseURL, "openai", "api.openai.test", "/v1", 0},
		{"base URL by our address", "/openai/v1", "192.0.2.7:8484", ModeBaseURL, "openai", "api.openai.test", "/v1", 0},
		{"base URL by a listed name", "/openai/v1", "Gateway.test", ModeBaseURL, "openai", "api.openai.test", "/v1", 0},
		{"unknown upstream", "/nobody/v1", own, ModeBaseURL, "", "", "", 404},
		{"root", "/", own, ModeBaseURL, "", "", "", 404},
		{"Host of an upstream", "/v1/models", "api.openai.test", ModeHost, "openai", "api.openai.test", "/v1/models", 0},
		{"Host in capitals with its port", "/v1", "API.OpenAI.test.:443", ModeHost, "openai", "api.openai.test", "/v1", 0},
		{"Host with another port", "/v1", "api.openai.test:444", "", "", "", "", 421},
		{"Host of an upstream with a port", "/v1", "api.port.test:8443", ModeHost, "port", "api.port.test:8443", "/v1", 0},
		{"Host of an upstream without its port", "/v1", "api.port.test", "", "", "", "", 421},
		{"Host of a plain upstream", "/v1", "llm.test", ModeHost, "plain", "llm.test", "/v1", 0},
		{"Host of a loopback upstream is ours", "/openai/v1", "127.0.0.1:11434", ModeBaseURL, "openai", "api.openai.test", "/v1", 0},
		{"foreign Host", "/openai/v1", "evil.test", "", "", "", "", 421},
		{"foreign Host that begins like ours", "/openai/v1", "localhost.evil.test", "", "", "", "", 421},
		{"unspecified address as Host", "/openai/v1", "0.0.0.0:8484", "", "", "", "", 421},
		{"unspecified IPv6 address as Host", "/openai/v1", "[::]:8484", "", "", "", "", 421},
		{"absolute form of an upstream", "http://api.openai.test/v1?a=%2F", "x", ModeForward, "openai", "api.openai.test", "/v1?a=%2F", 0},
		{"absolute form over https", "https://api.groq.test/openai/v1", "x", ModeForward, "groq", "api.groq.test", "/openai/v1", 0},
		{"absolute form of a loopback upstream", "http://127.0.0.1:11434/api/tags", "x", ModeForward, "ollama", "127.0.0.1:11434", "/api/tags", 0},
		{"absolute form of another host", "http://a.test/x", "b.test", ModeForward, "", "a.test", "/x", 0},
		{"absolute form without a path", "http://a.test?q", "a.test", ModeForward, "", "a.test", "/?q", 0},
		{"absolute form of an IPv6 literal", "http://[::1]:8080/", "x", ModeForward, "", "[::1]:8080", "/", 0},
		{"absolute form with user information", "http://u:p@a.test/", "a.test", ModeForward, "", "", "", 400},
		{"absolute form of another scheme", "ftp://a.test/", "a.test", ModeForward, "", "", "", 400},
		{"denied host", "http://denied.test/", "denied.test", ModeForward, "", "", "", 403},
		{"neither path nor URL", "openai/v1", own, "", "", "", "", 400},
	}
	tab := testTable(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rt, ref := tab.route(request("GET", tt.target, tt.host))
			if tt.status != 0 {
				if ref == nil || ref.status != tt.status {
					t.Fatalf("route = %+v, %v; want status %d", rt, ref, tt.status)
				}
				return
			}
			if ref != nil {
				t.Fatalf("refused: %d %s", ref.status, ref.message)
			}
			name := ""
			if rt.upstream != nil {
				name = rt.upstream.Name
			}
			if rt.mode != tt.mode || name != tt.upstream || rt.host != tt.to || rt.target != tt.raw {
				t.Errorf("route = %s %q %q %q; want %s %q %q %q", rt.mode, name, rt.host, rt.target, tt.mode, tt.upstream, tt.to, tt.raw)
			}
		})
	}
}

func TestRouteConnect(t *testing.T) {
	tests := []struct {
		target string
		status int
	}{
		{"api.openai.test:443", 0}, {"[::1]:8443", 0}, {"host.test:80", 0}, {"127.0.0.1:1", 0},
		{"[::1]", 400}, {"host.test", 400}, {"host.test:0", 400}, {"host.test:65536", 400}, {"host.test:https", 400},
		{"[fe80::1%25lo]:1", 400}, {"::1:443", 400}, {":443", 400}, {"denied.test:443", 403},
	}
	tab := testTable(t)
	for _, tt := range tests {
		_, ref := tab.routeConnect(request("CONNECT", tt.target, tt.target))
		got := 0
		if ref != nil {
			got = ref.status
		}
		if got != tt.status {
			t.Errorf("CONNECT %s: status %d, want %d", tt.target, got, tt.status)
		}
	}
}

func TestDropHopByHop(t *testing.T) {
	h := http.Header{
		"Connection": {"x-hop, close", "authorization,content-length"}, "X-Hop": {"secret"}, "Authorization": {"Bearer k"},
		"Content-Length": {"3"}, "Keep-Alive": {"5"}, "Te": {"trailers, deflate"}, "Upgrade": {"h2c"}, "Proxy-Connection": {"keep-alive"},
		"Proxy-Authorization": {"Basic x"}, "Transfer-Encoding": {"chunked"}, "Trailer": {"X"}, "Http2-Settings": {"AA"}, "X-Keep": {"a", "b"},
	}
	dropHopByHop(h)
	if len(h) != 2 || h["X-Keep"][1] != "b" || h["Content-Length"][0] != "3" {
		t.Errorf("left %v", h)
	}
}

// FuzzRoute checks that no target and Host make routing panic, and that what is
// forwarded never carries bytes that would break the next hop's request line.
func FuzzRoute(f *testing.F) {
	for _, s := range []string{"/openai/v1", "http://a.test/x", "https://api.openai.test", "*", "//", "/openai?", "http://", "http://[::1", "http://a@b/"} {
		f.Add("GET", s, "127.0.0.1:8484")
	}
	tab := testTable(f)
	f.Fuzz(func(t *testing.T, method, target, host string) {
		r := request(method, target, host)
		_, _ = tab.routeConnect(r)
		rt, ref := tab.route(r)
		if (ref == nil) == (rt.host == "") {
			t.Fatalf("neither routed nor refused: %+v %v", rt, ref)
		}
		if ref == nil && !strings.HasPrefix(rt.target, "/") && rt.target != "*" {
			t.Errorf("target %q", rt.target)
		}
	})
}
