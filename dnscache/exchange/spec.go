// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// A Scheme is a way to ask.
type Scheme string

// The ways to ask.
const (
	UDP   Scheme = "udp"
	TCP   Scheme = "tcp"
	TLS   Scheme = "tls"
	HTTPS Scheme = "https"
)

func (s Scheme) port() uint16 {
	switch s {
	case TLS:
		return 853 // RFC 7858 §3.1
	case HTTPS:
		return 443
	}
	return 53
}

// A Spec says where a resolver is and how it is asked; see [ParseSpec].
type Spec struct {
	// Name is fit for logs and metrics: the preset's name, or scheme, host and
	// port. The path and the query of an HTTPS resolver may identify its user
	// and are left out.
	Name   string
	Scheme Scheme
	Host   string       // the name or address that TLS verifies and HTTP asks for
	Port   uint16       // of Host and of every address
	Addrs  []netip.Addr // where to connect; none means that Host is a name yet to be resolved
	Target string       // https: path and query, as they go on the wire
	Get    bool         // https: ask with GET, which caches on the way can serve
	Pins   [][]byte     // SHA-256 of acceptable public keys; then no name is verified
}

// Encrypted reports whether the way to the resolver is encrypted.
func (s Spec) Encrypted() bool { return s.Scheme == TLS || s.Scheme == HTTPS }

// Presets returns the names that [ParseSpec] knows besides URLs.
func Presets() []string { return []string{"cloudflare", "google", "quad9", "alidns", "dnspod"} }

// preset returns the URL that stands behind a name. The addresses are those
// that each operator publishes for the host.
func preset(name string) string {
	switch name {
	case "cloudflare":
		return "https://cloudflare-dns.com/dns-query#addr=1.1.1.1,1.0.0.1,2606:4700:4700::1111,2606:4700:4700::1001"
	case "google":
		return "https://dns.google/dns-query#addr=8.8.8.8,8.8.4.4,2001:4860:4860::8888,2001:4860:4860::8844"
	case "quad9":
		return "https://dns.quad9.net/dns-query#addr=9.9.9.9,149.112.112.112,2620:fe::fe,2620:fe::9"
	case "alidns":
		return "https://dns.alidns.com/dns-query#addr=223.5.5.5,223.6.6.6,2400:3200::1,2400:3200:baba::1"
	case "dnspod":
		return "https://doh.pub/dns-query#addr=1.12.12.12,120.53.53.53"
	}
	return ""
}

const forms = `write a preset (cloudflare, google, quad9, alidns, dnspod) or a URL such as ` +
	`https://1.1.1.1/dns-query, https://dns.example@192.0.2.1/dns-query, tls://9.9.9.9, tls://dns.example@192.0.2.1:853, udp://192.0.2.1 or tcp://192.0.2.1`

// ParseSpec reads a preset's name or a URL:
//
//	https://1.1.1.1/dns-query            POST, certificate for the address
//	https://1.1.1.1/dns-query{?dns}      GET
//	https://dns.example@192.0.2.1/path   connect to the address, verify the name
//	tls://9.9.9.9  tls://dns.example@192.0.2.1:853
//	udp://192.0.2.1  tcp://[2001:db8::1]:5353
//
// After # may follow addr= with addresses to connect to, and pin= with the
// SHA-256 of acceptable public keys in base64, both separated by commas, and &
// between the two. Its errors never show a path or a query.
func ParseSpec(text string) (Spec, error) {
	name := strings.ToLower(text)
	if known := preset(name); known != "" {
		text = known
	} else {
		name = ""
	}
	spec, err := parseURL(text)
	if err != nil {
		return Spec{}, fmt.Errorf("resolver %q: %w", shown(text), err)
	}
	if name != "" {
		spec.Name = name
	}
	return spec, nil
}

// shown is the part of a resolver's text that may be shown.
func shown(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "", text
	} else {
		scheme += "://"
	}
	if i := strings.IndexAny(rest, "/?#{"); i >= 0 {
		rest = rest[:i]
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 && strings.ContainsRune(rest[:at], ':') {
		rest = rest[at+1:] // a password was written where none belongs
	}
	return scheme + rest
}

func parseURL(text string) (Spec, error) {
	text, fragment, _ := strings.Cut(text, "#")
	text, get, err := cutTemplate(text)
	if err != nil {
		return Spec{}, err
	}
	u, err := url.Parse(text)
	if err != nil {
		// Its text has all of the URL.
		return Spec{}, errors.New("not a URL: " + forms)
	}
	spec := Spec{Scheme: Scheme(strings.ToLower(u.Scheme)), Get: get}
	switch spec.Scheme {
	case HTTPS:
		spec.Target = u.EscapedPath()
		if spec.Target == "" {
			return Spec{}, errors.New("no path: write https://HOST/dns-query, or the path that the resolver's operator names")
		}
		if u.RawQuery != "" {
			spec.Target += "?" + u.RawQuery
		}
	case UDP, TCP, TLS:
		if get || u.Path != "" || u.RawQuery != "" {
			return Spec{}, fmt.Errorf("a %s resolver has no path: write %s://HOST or %s://HOST:PORT", spec.Scheme, spec.Scheme, spec.Scheme)
		}
	case "":
		return Spec{}, errors.New("no scheme: " + forms)
	case "http":
		return Spec{}, errors.New("a resolver over HTTP without TLS is not asked: write https://")
	default:
		return Spec{}, errors.New("unknown scheme: " + forms)
	}
	if err := spec.readHost(u); err != nil {
		return Spec{}, err
	}
	if err := spec.readFragment(fragment); err != nil {
		return Spec{}, err
	}
	spec.Name = string(spec.Scheme) + "://" + spec.authority()
	return spec, nil
}

// cutTemplate takes the one variable of RFC 8484 §4.1 off a URI template.
func cutTemplate(text string) (rest string, get bool, err error) {
	for _, variable := range []string{"{?dns}", "{&dns}"} {
		if rest, ok := strings.CutSuffix(text, variable); ok {
			return rest, true, nil
		}
	}
	if strings.ContainsAny(text, "{}") {
		return "", false, errors.New("unknown template: write {?dns} at the end of the URL, or nothing to ask with POST")
	}
	return text, false, nil
}

func (s *Spec) readHost(u *url.URL) error {
	if _, password := u.User.Password(); password {
		return errors.New("a password has no place here: write NAME@ADDRESS")
	}
	host := u.Hostname()
	if host == "" {
		return errors.New("no host: " + forms)
	}
	s.Port = s.Scheme.port()
	if text := u.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("port %s: write a number from 1 to 65535", text)
		}
		s.Port = uint16(port)
	}
	addr, err := netip.ParseAddr(host)
	isAddr := err == nil
	if isAddr {
		if err := s.addAddr(addr); err != nil {
			return err
		}
	}
	s.Host = host
	if name := u.User.Username(); name != "" {
		if !s.Encrypted() {
			return fmt.Errorf("%s verifies no name: write %s://%s", s.Scheme, s.Scheme, host)
		}
		if !isAddr {
			return errors.New("what follows @ is the address to connect to: write NAME@ADDRESS")
		}
		s.Host = name
	}
	if addr, err := netip.ParseAddr(s.Host); err == nil {
		if addr.Zone() != "" && s.Encrypted() {
			return fmt.Errorf("no certificate names an address of one link: write %s://NAME@ADDRESS", s.Scheme)
		}
	} else {
		name, err := cleanName(s.Host)
		if err != nil {
			return fmt.Errorf("host: %w", err)
		}
		s.Host = name
	}
	return nil
}

func (s *Spec) readFragment(fragment string) error {
	if fragment == "" {
		return nil
	}
	for part := range strings.SplitSeq(fragment, "&") {
		key, list, _ := strings.Cut(part, "=")
		for value := range strings.SplitSeq(list, ",") {
			switch key {
			case "addr":
				addr, err := netip.ParseAddr(value)
				if err != nil {
					return fmt.Errorf("addr %q: write IP addresses with commas between, as in #addr=192.0.2.1,2001:db8::1", value)
				}
				if err := s.addAddr(addr); err != nil {
					return err
				}
			case "pin":
				if !s.Encrypted() {
					return fmt.Errorf("%s has no key to pin: write tls:// or https://", s.Scheme)
				}
				pin, err := base64.StdEncoding.DecodeString(value)
				if err != nil || len(pin) != sha256.Size {
					return errors.New("pin: write the SHA-256 of the public key (SubjectPublicKeyInfo) in base64, 44 characters")
				}
				s.Pins = append(s.Pins, pin)
			default:
				return fmt.Errorf("unknown setting %q after #: write addr= or pin=", key)
			}
		}
	}
	return nil
}

func (s *Spec) addAddr(addr netip.Addr) error {
	addr = addr.Unmap()
	if addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("address %s belongs to no single host: write the resolver's own", addr)
	}
	if strings.ContainsFunc(addr.Zone(), func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/%?#@[]{}"\`, r) }) {
		return fmt.Errorf("address %q: what follows %% is the name of a network interface, as in fe80::1%%25eth0", addr)
	}
	s.Addrs = append(s.Addrs, addr)
	return nil
}

// authority is host and port as a URL has them, the port only if unusual.
func (s Spec) authority() string {
	if s.Port != s.Scheme.port() {
		return net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port)))
	}
	if strings.ContainsRune(s.Host, ':') {
		return "[" + s.Host + "]"
	}
	return s.Host
}
