// SPDX-License-Identifier: Apache-2.0

package webguard_test

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/warmwire/warmwire/internal/webguard"
)

func TestParseAuthority(t *testing.T) {
	tests := []struct {
		in, host, port string
		ok             bool
	}{
		{in: "localhost", host: "localhost", ok: true},
		{in: "LocalHost.:8485", host: "localhost", port: "8485", ok: true},
		{in: "localhost:", host: "localhost", ok: true},
		{in: "api_1.internal:080", host: "api_1.internal", port: "80", ok: true},
		{in: "127.0.0.1:65535", host: "127.0.0.1", port: "65535", ok: true},
		{in: "[::1]:8485", host: "::1", port: "8485", ok: true},
		{in: "[0:0:0:0:0:0:0:1]", host: "::1", ok: true},
		{in: "[::ffff:127.0.0.1]:1", host: "127.0.0.1", port: "1", ok: true},
		{in: "xn--bcher-kva.example", host: "xn--bcher-kva.example", ok: true},
		{in: ""},
		{in: ":80"},
		{in: "."},
		{in: "a..b"},
		{in: "::1"},
		{in: "::1:80"},
		{in: "[::1"},
		{in: "[::1]80"},
		{in: "[::1]:80]"},
		{in: "[127.0.0.1]"},
		{in: "[fe80::1%eth0]"},
		{in: "[fe80::1%25eth0]:80"},
		{in: "localhost:65536"},
		{in: "localhost:-1"},
		{in: "localhost:+1"},
		{in: "localhost:8o"},
		{in: "user@localhost"},
		{in: "localhost/path"},
		{in: "localhost?q"},
		{in: "localhost localhost"},
		{in: "bücher.example"},
		{in: "localhost\x00"},
		{in: "127.1"},
		{in: "2130706433"},
		{in: "0x7f.0.0.1"},
		{in: "127.0.0.0x1"},
		{in: "127.0.0.1."},
		{in: "0177.0.0.1"},
		{in: strings.Repeat("a", 64)},
		{in: strings.Repeat("a.", 127) + "a"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			host, port, err := webguard.ParseAuthority(tt.in)
			if host != tt.host || port != tt.port || (err == nil) != tt.ok {
				t.Errorf("ParseAuthority(%q) = %q, %q, %v; want %q, %q, ok %v", tt.in, host, port, err, tt.host, tt.port, tt.ok)
			}
		})
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true,
		"0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.attacker.example": false,
		"a.localhost": true, "a.b.localhost": true, "notlocalhost": false, "a.notlocalhost": false, "localhost.a": false, "": false,
	} {
		if got := webguard.IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %v, want %v", host, got, want)
		}
	}
}

func TestCheckHost(t *testing.T) {
	extra, err := webguard.ParseHosts([]string{"Warmwire.Internal", "10.0.0.5", "fd00::5", "[fd00::6]"})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		host string
		ok   bool
	}{
		{"localhost:8485", true},
		{"LOCALHOST", true},
		{"App.LocalHost.:8485", true},
		{"127.255.255.254", true},
		{"127.0.0.1:9000", true}, // the port may be mapped
		{"[::1]:8485", true},
		{"[::FFFF:7F00:1]:8485", true},
		{"warmwire.internal.", true},
		{"10.0.0.5:1", true},
		{"[fd00:0::5]", true},
		{"[fd00::6]:2", true},
		{"", false},
		{"localhost.attacker.example:8485", false},
		{"attacker.example", false},
		{"xlocalhost", false},
		{".localhost", false},
		{"localhost..", false},
		{"localhost.attacker.example.", false},
		{"xn--lcalhost-9fb", false},
		{"128.0.0.1", false},
		{"::1", false},
		{"127.0.0.1.attacker.example", false},
		{"x.warmwire.internal", false},
		{"0.0.0.0:8485", false},
		{"[::]:8485", false},
		{"10.0.0.50", false},
		{"localhost@attacker.example", false},
		{"attacker.example@localhost", false},
		{"localhost#.attacker.example", false},
		{"localhost:8485:8485", false},
	}
	for _, tt := range tests {
		t.Run(tt.host, func(t *testing.T) {
			err := webguard.CheckHost(tt.host, extra.Has)
			checkError(t, err, map[bool]string{true: "", false: webguard.CodeHost}[tt.ok], http.StatusForbidden)
			if err != nil && tt.host != "" && strings.Contains(err.Error(), tt.host) {
				t.Errorf("the error %q repeats the field", err)
			}
		})
	}
}

func TestCheckOrigin(t *testing.T) {
	allowed, err := webguard.ParseOrigins([]string{"https://app.example", "http://LOCALHOST:3000", "moz-extension://ab-cd"})
	if err != nil {
		t.Fatal(err)
	}
	const self = "localhost:8484"
	origin := func(v ...string) http.Header { return http.Header{"Origin": v} }
	site := func(h http.Header, v ...string) http.Header { h["Sec-Fetch-Site"] = v; return h }
	tests := []struct {
		name string
		h    http.Header
		self string
		code string
	}{
		{name: "no browser", h: http.Header{}},
		{name: "typed address", h: site(http.Header{}, "none")},
		{name: "own page, GET", h: site(http.Header{}, "same-origin")},
		{name: "own page, POST", h: site(origin("http://localhost:8484"), "same-origin")},
		{name: "own page, old browser", h: origin("http://localhost:8484")},
		{name: "own page, upper case", h: origin("HTTP://LOCALHOST:8484")},
		{name: "own page, final dot", h: origin("http://localhost.:8484")},
		{name: "own page, IPv6", h: origin("http://[::1]:8484"), self: "[0:0::1]:8484"},
		{name: "own page, default port", h: origin("http://warmwire.internal"), self: "warmwire.internal:80"},
		{name: "listed", h: site(origin("https://app.example"), "cross-site")},
		{name: "listed, with its default port", h: origin("https://app.example:443")},
		{name: "listed, same site", h: site(origin("http://localhost:3000"), "same-site")},
		{name: "listed extension", h: site(origin("moz-extension://ab-cd"), "cross-site")},

		{name: "evil", h: origin("http://evil.example"), code: webguard.CodeOrigin},
		{name: "prefix of ours", h: origin("http://localhost.attacker.example"), code: webguard.CodeOrigin},
		{name: "prefix of ours with our port", h: origin("http://localhost.attacker.example:8484"), code: webguard.CodeOrigin},
		{name: "suffix of a listed one", h: origin("https://evilapp.example"), code: webguard.CodeOrigin},
		{name: "below a listed one", h: origin("https://x.app.example"), code: webguard.CodeOrigin},
		{name: "listed by another scheme", h: origin("http://app.example"), code: webguard.CodeOrigin},
		{name: "prefix of ours, final dot", h: origin("http://localhost.attacker.example."), code: webguard.CodeOrigin},
		{name: "looks like ours in punycode", h: origin("http://xn--lcalhost-9fb:8484"), code: webguard.CodeOrigin},
		{name: "looks like ours in UTF-8", h: origin("http://lоcalhost:8484"), code: webguard.CodeOrigin},
		{name: "below ours", h: origin("http://app.localhost:8484"), code: webguard.CodeOrigin},
		{name: "null", h: origin("null"), code: webguard.CodeOrigin},
		{name: "null in upper case", h: origin("NULL"), code: webguard.CodeOrigin},
		{name: "null of another site's frame", h: site(origin("null"), "cross-site"), code: webguard.CodeOrigin},
		{name: "empty", h: origin(""), code: webguard.CodeOrigin},
		{name: "IPv6 loopback, other port", h: origin("http://[::1]:1"), code: webguard.CodeOrigin},
		{name: "loopback page of another port", h: origin("http://localhost:3001"), code: webguard.CodeOrigin},
		{name: "loopback page without port", h: origin("http://localhost"), code: webguard.CodeOrigin},
		{name: "other spelling of loopback", h: origin("http://127.0.0.1:8484"), code: webguard.CodeOrigin},
		{name: "TLS page of our name", h: origin("https://localhost:8484"), code: webguard.CodeOrigin},
		{name: "with path", h: origin("http://localhost:8484/"), code: webguard.CodeOrigin},
		{name: "with path and query", h: origin("http://localhost:8484/v1?q"), code: webguard.CodeOrigin},
		{name: "with user", h: origin("http://localhost:8484@evil.example"), code: webguard.CodeOrigin},
		{name: "two in one", h: origin("http://localhost:8484 http://evil.example"), code: webguard.CodeOrigin},
		{name: "two fields", h: origin("http://localhost:8484", "http://localhost:8484"), code: webguard.CodeOrigin},
		{name: "no values", h: origin(), code: webguard.CodeOrigin},
		{name: "file", h: origin("file://"), code: webguard.CodeOrigin},
		{name: "no scheme", h: origin("localhost:8484"), code: webguard.CodeOrigin},
		{name: "nothing is our own", h: origin("http://localhost:8484"), self: "-", code: webguard.CodeOrigin},
		{name: "cross-site without Origin", h: site(http.Header{}, "cross-site"), code: webguard.CodeFetchSite},
		{name: "same-site without Origin", h: site(http.Header{}, "same-site"), code: webguard.CodeFetchSite},
		{name: "a value of the future", h: site(http.Header{}, "neighbour"), code: webguard.CodeFetchSite},
		{name: "empty site", h: site(http.Header{}, ""), code: webguard.CodeFetchSite},
		{name: "two sites", h: site(http.Header{}, "none", "none"), code: webguard.CodeFetchSite},
		{name: "two sites beside a listed origin", h: site(origin("https://app.example"), "none", "none"), code: webguard.CodeFetchSite},
		{name: "own origin but cross-site", h: site(origin("http://localhost:8484"), "cross-site"), code: webguard.CodeFetchSite},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := self
			switch tt.self {
			case "":
			case "-":
				s = ""
			default:
				s = tt.self
			}
			checkError(t, webguard.CheckOrigin(tt.h, s, allowed), tt.code, http.StatusForbidden)
		})
	}
}

func checkError(t *testing.T, err error, code string, status int) {
	t.Helper()
	if code == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	e, ok := errors.AsType[*webguard.Error](err)
	if !ok || e.Code != code || e.Status != status {
		t.Errorf("got %#v, want an Error with code %s and status %d", err, code, status)
	}
}

func TestListsAreChecked(t *testing.T) {
	for _, bad := range []string{"", "*", "*.example", "a:80", "http://a", "a/b", "[::1", "127.1", "::1%lo"} {
		if _, err := webguard.ParseHosts([]string{bad}); err == nil {
			t.Errorf("ParseHosts took %q", bad)
		}
	}
	for _, bad := range []string{"", "*", "null", "app.example", "https://", "https://*.app.example", "https://app.example/", "://a", "1x://a", "a b://c"} {
		if _, err := webguard.ParseOrigins([]string{bad}); err == nil {
			t.Errorf("ParseOrigins took %q", bad)
		}
	}
	if (webguard.Hosts{}).Has("localhost") {
		t.Error("the empty set has a member")
	}
}

// FuzzParseAuthority: whatever is accepted is in its final form, and nothing that
// is not plainly loopback is taken for it.
func FuzzParseAuthority(f *testing.F) {
	for _, s := range []string{"localhost:8485", "[::1]:80", "127.0.0.1", "[::ffff:1.2.3.4]:9", "a.b.:1", "user@host", "0x7f.1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := webguard.ParseAuthority(s)
		if err != nil {
			if host != "" || port != "" {
				t.Fatalf("ParseAuthority(%q) = %q, %q with error %v", s, host, port, err)
			}
			return
		}
		again := host
		if strings.Contains(host, ":") {
			again = "[" + host + "]"
		}
		if port != "" {
			again += ":" + port
		}
		h2, p2, err := webguard.ParseAuthority(again)
		if err != nil || h2 != host || p2 != port {
			t.Fatalf("%q became %q, %q, which reads as %q, %q, %v", s, host, port, h2, p2, err)
		}
		if strings.ContainsAny(host, " /@?#%\\[]\x00") || host != strings.ToLower(host) {
			t.Fatalf("%q gave the host %q", s, host)
		}
	})
}

// FuzzCheckOrigin: an origin passes only if it is the listener's own, spelt in
// any way that means the same.
func FuzzCheckOrigin(f *testing.F) {
	for _, s := range []string{"http://localhost:8484", "null", "HTTP://localhost:08484", "http://localhost.evil:8484", "http://localhost:8484/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := webguard.CheckOrigin(http.Header{"Origin": {s}}, "localhost:8484", webguard.Origins{})
		if err != nil {
			return
		}
		lower := strings.ToLower(s)
		if !strings.HasPrefix(lower, "http://localhost") {
			t.Fatalf("%q passed", s)
		}
		rest := strings.TrimPrefix(strings.TrimPrefix(lower, "http://localhost"), ".")
		if strings.Trim(rest, ":0") != "8484" {
			t.Fatalf("%q passed", s)
		}
	})
}

// FuzzCheckHost: with nothing allowed, a host passes only if it is plainly this
// machine, and a refusal never repeats it.
func FuzzCheckHost(f *testing.F) {
	for _, s := range []string{"localhost:8485", "a.localhost.", "127.0.0.1", "[::1]:1", "localhost.attacker.example", "127.1", ".localhost", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if err := webguard.CheckHost(s, func(string) bool { return false }); err != nil {
			if len(s) > 12 && strings.Contains(err.Error(), s) {
				t.Fatalf("the error %q repeats the field", err)
			}
			return
		}
		u, err := url.Parse("http://" + s) // what another reader makes of it
		if err != nil {
			t.Fatalf("%q passed, but is no host: %v", s, err)
		}
		host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
		addr, err := netip.ParseAddr(host)
		if host != "localhost" && !strings.HasSuffix(host, ".localhost") && (err != nil || !addr.Unmap().IsLoopback()) {
			t.Fatalf("%q passed, and means %q", s, host)
		}
	})
}
