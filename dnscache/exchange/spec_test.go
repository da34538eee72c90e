// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func addrList(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func TestParseSpecReads(t *testing.T) {
	tests := []struct {
		text string
		want Spec
	}{
		{"https://1.1.1.1/dns-query", Spec{Name: "https://1.1.1.1", Scheme: HTTPS, Host: "1.1.1.1", Port: 443, Addrs: addrList("1.1.1.1"), Target: "/dns-query"}},
		{"https://1.1.1.1/dns-query{?dns}", Spec{Name: "https://1.1.1.1", Scheme: HTTPS, Host: "1.1.1.1", Port: 443, Addrs: addrList("1.1.1.1"), Target: "/dns-query", Get: true}},
		{"https://dns.example/q/secret?u=secret{&dns}#addr=192.0.2.1,2001:db8::1", Spec{Name: "https://dns.example", Scheme: HTTPS, Host: "dns.example", Port: 443, Addrs: addrList("192.0.2.1", "2001:db8::1"), Target: "/q/secret?u=secret", Get: true}},
		{"https://DNS.Example@192.0.2.1:8443/dns-query", Spec{Name: "https://dns.example:8443", Scheme: HTTPS, Host: "dns.example", Port: 8443, Addrs: addrList("192.0.2.1"), Target: "/dns-query"}},
		{"https://dns.example/", Spec{Name: "https://dns.example", Scheme: HTTPS, Host: "dns.example", Port: 443, Target: "/"}},
		{"tls://9.9.9.9", Spec{Name: "tls://9.9.9.9", Scheme: TLS, Host: "9.9.9.9", Port: 853, Addrs: addrList("9.9.9.9")}},
		{"tls://dns.example@[2001:db8::1]:8853", Spec{Name: "tls://dns.example:8853", Scheme: TLS, Host: "dns.example", Port: 8853, Addrs: addrList("2001:db8::1")}},
		{"udp://[fe80::1%25eth0]", Spec{Name: "udp://[fe80::1%eth0]", Scheme: UDP, Host: "fe80::1%eth0", Port: 53, Addrs: addrList("fe80::1%eth0")}},
		{"tcp://192.0.2.1:5353", Spec{Name: "tcp://192.0.2.1:5353", Scheme: TCP, Host: "192.0.2.1", Port: 5353, Addrs: addrList("192.0.2.1")}},
		{"UDP://192.0.2.1", Spec{Name: "udp://192.0.2.1", Scheme: UDP, Host: "192.0.2.1", Port: 53, Addrs: addrList("192.0.2.1")}},
		{"Quad9", Spec{Name: "quad9", Scheme: HTTPS, Host: "dns.quad9.net", Port: 443, Addrs: addrList("9.9.9.9", "149.112.112.112", "2620:fe::fe", "2620:fe::9"), Target: "/dns-query"}},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseSpec(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseSpecReadsPins(t *testing.T) {
	pin := strings.Repeat("+/", 21) + "+8=" // base64 of 32 octets has one =
	pin = pin[:43] + "="
	spec, err := ParseSpec("tls://9.9.9.9#pin=" + pin + "," + pin + "&addr=192.0.2.7")
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Pins) != 2 || len(spec.Pins[0]) != 32 || len(spec.Addrs) != 2 {
		t.Errorf("got %d pins and %d addresses, want 2 and 2", len(spec.Pins), len(spec.Addrs))
	}
}

// Each preset must be usable without any other resolver.
func TestPresetsNeedNoResolver(t *testing.T) {
	for _, name := range Presets() {
		spec, err := ParseSpec(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if spec.Name != name || len(spec.Addrs) < 2 || spec.Scheme != HTTPS {
			t.Errorf("%s: %+v", name, spec)
		}
	}
}

func TestParseSpecSaysWhatToWrite(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "no scheme: write a preset"},
		{"9.9.9.9", "no scheme: write a preset"},
		{"cloudfare", "no scheme: write a preset"},
		{"dns.example:53", "scheme"},
		{"quic://9.9.9.9", "unknown scheme: write a preset"},
		{"http://1.1.1.1/dns-query", "write https://"},
		{"https://1.1.1.1", "no path: write https://HOST/dns-query"},
		{"https:///dns-query", "no host"},
		{"https://1.1.1.1/{name}", "unknown template: write {?dns}"},
		{"https://1.1.1.1/{?dns}x", "unknown template"},
		{"tls://9.9.9.9{?dns}", "no path: write tls://HOST"},
		{"tls://9.9.9.9/dns-query", "has no path: write tls://HOST"},
		{"udp://dns.example@192.0.2.1", "verifies no name: write udp://192.0.2.1"},
		{"tls://dns.example@other.example", "write NAME@ADDRESS"},
		{"tls://user:hunter2@192.0.2.1", "password has no place"},
		{"tls://192.0.2.1:0", "write a number from 1 to 65535"},
		{"tls://192.0.2.1:99999", "write a number from 1 to 65535"},
		{"tls://bad..name", "no empty part"},
		{"tls://bäd.example", "xn--"},
		{"tls://0.0.0.0", "no single host"},
		{"udp://[ff02::fb]", "no single host"},
		{"tls://9.9.9.9#addr=dns.example", "write IP addresses"},
		{"tls://9.9.9.9#pin=abc", "SHA-256 of the public key"},
		{"udp://9.9.9.9#pin=abc", "no key to pin"},
		{"tls://9.9.9.9#name=x", "write addr= or pin="},
		{"https://1.1.1.1/%zz?hunter2", "not a URL"},
		{"https://[fe80::1%25eth0]/dns-query", "write https://NAME@ADDRESS"},
		{"udp://192.0.2.1#addr=fe80::1%a/b", "network interface"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			_, err := ParseSpec(tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v shows a secret", err)
			}
		})
	}
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	tests := []struct {
		name, text string
		cfg        Config
		want       string
	}{
		{"name without address", "tls://dns.example", Config{}, "write tls://NAME@ADDRESS"},
		{"negative time", "tls://9.9.9.9", Config{Hedge: -1}, "negative"},
		{"pin on connections of others", "https://9.9.9.9/q#pin=" + strings.Repeat("A", 43) + "=", Config{RoundTripper: http.DefaultTransport}, "leave pin= out"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Open(mustParse(t, tt.text), tt.cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
		})
	}
	if _, err := Open(Spec{Scheme: "gopher", Addrs: addrList("192.0.2.1")}, Config{}); err == nil {
		t.Error("a spec that ParseSpec did not make was opened")
	}
}

func TestQuestionsThatCannotBeAskedAreRefused(t *testing.T) {
	x := open(t, "udp://192.0.2.1", Config{Dial: new(packets).dial})
	for _, name := range []string{"", ".", "a..b", ".a", "a b", `a\.b`, "ä.example", strings.Repeat("a", 64), strings.Repeat("a.", 127) + "aa"} {
		_, err := x.Exchange(context.Background(), Question{Name: name, Type: TypeA})
		if e, ok := errors.AsType[*Error](err); !ok || e.Kind != KindBadQuestion {
			t.Errorf("name %q: error %v, want kind %s", name, err, KindBadQuestion)
		}
	}
}

// FuzzParseSpec reads any text: what is accepted can be opened, and neither its
// name nor an error shows more than scheme, name and address.
func FuzzParseSpec(f *testing.F) {
	for _, seed := range []string{
		"quad9", "https://1.1.1.1/dns-query{?dns}", "tls://dns.example@[2001:db8::1]:853", "udp://192.0.2.1#addr=192.0.2.2",
		"https://dns.example/q?u=1{&dns}#addr=192.0.2.1&pin=" + strings.Repeat("A", 43) + "=", "tls://a:b@192.0.2.1", "udp://[fe80::1%25eth0]:53",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := ParseSpec(text)
		if err != nil {
			return
		}
		if _, err := cleanName(spec.Host); err != nil {
			if _, err := netip.ParseAddr(spec.Host); err != nil {
				t.Errorf("host %q of %q is neither name nor address", spec.Host, text)
			}
		}
		if spec.Port == 0 || strings.ContainsAny(spec.Name, "?#{") || strings.Count(spec.Name, "/") > 2 {
			t.Errorf("spec %+v of %q", spec, text)
		}
		x, err := Open(spec, Config{Bootstrap: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("none") }})
		if err != nil {
			t.Fatalf("open %q: %v", text, err)
		}
		_ = x.Close()
	})
}
