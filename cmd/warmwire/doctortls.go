// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmwire/warmwire/internal/config"
	"github.com/warmwire/warmwire/internal/sidecar"
	"github.com/warmwire/warmwire/tlspool/inspect"
)

// tlsLimit bounds the examination of one host's TLS.
const tlsLimit = time.Minute

// A target is one server to examine.
type target struct {
	host, upstream string // upstream is its name in the configuration, or ""
	port           int
	tls            bool // https
	h3             bool // may be used

	alpn       []string
	roots      *x509.CertPool // nil means the system's
	rootsAsked string
	cert       *tls.Certificate

	intermediates  []*x509.Certificate
	pins           []string
	pinsReportOnly bool
	minVersion     uint16
}

// targets are those named, or the upstreams of the configuration file.
func (f doctorFlags) targets(cfg *config.Config, named []string) ([]target, error) {
	kept := sidecar.KeptNames(cfg)
	var out []target
	for _, u := range cfg.Upstreams {
		host := u.URL.Hostname()
		if len(named) > 0 || u.Builtin || !isLocal(host) && !slices.Contains(kept, host) {
			continue
		}
		t, err := f.target(host, portOf(u.URL), u.URL.Scheme == "https", &u)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	for _, arg := range named {
		host, port, err := splitTarget(arg)
		if err != nil {
			return nil, fmt.Errorf("%w: doctor: %w", errUsage, err)
		}
		i := slices.IndexFunc(cfg.Upstreams, func(u config.Upstream) bool {
			return u.URL.Scheme == "https" && u.URL.Hostname() == host && portOf(u.URL) == port
		})
		var u *config.Upstream
		if i >= 0 {
			u = &cfg.Upstreams[i]
		}
		t, err := f.target(host, port, true, u)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// target is met as Warmwire meets u, which may be nil.
func (f doctorFlags) target(host string, port int, secure bool, u *config.Upstream) (target, error) {
	t := target{host: host, port: port, tls: secure && !f.noTLS}
	var settings config.TLS
	if u != nil {
		settings = u.TLS
		if !u.Builtin {
			t.upstream = u.Name
		}
		for _, p := range u.Protocols {
			t.h3 = t.h3 || p == "h3"
			if p == "h2" || p == "http/1.1" {
				t.alpn = append(t.alpn, p)
			}
		}
		if settings.MinVersion == "1.3" {
			t.minVersion = tls.VersionTLS13
		}
	}
	if !t.tls {
		return t, nil
	}
	t.pins, t.pinsReportOnly = settings.Pins, settings.PinsReportOnly
	if err := f.trust(&t, settings); err != nil {
		return t, err
	}
	if settings.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(settings.ClientCert, settings.ClientKey)
		if err != nil {
			return t, fmt.Errorf("tls.client_cert of %s: %w", u.Name, err)
		}
		t.cert = &pair
	}
	return t, nil
}

// trust reads the files that say whom t's certificate is checked against.
func (f doctorFlags) trust(t *target, settings config.TLS) error {
	var roots []*x509.Certificate
	var asked []string
	if !settings.CAOnly {
		asked = append(asked, "the system's roots")
	}
	for _, from := range [][2]string{{"tls.ca_file", settings.CAFile}, {"--ca-file", f.caFile}} {
		more, err := certificates(from[0], from[1])
		if err != nil {
			return err
		}
		if roots = append(roots, more...); len(more) > 0 {
			asked = append(asked, from[1])
		}
	}
	t.rootsAsked = strings.Join(asked, " and ")
	if settings.CAOnly || len(roots) > 0 {
		t.roots = x509.NewCertPool()
		if pool, err := x509.SystemCertPool(); err == nil && !settings.CAOnly {
			t.roots = pool
		}
		for _, c := range roots {
			t.roots.AddCert(c)
		}
	}
	var err error
	t.intermediates, err = certificates("tls.intermediates_file", settings.IntermediatesFile)
	return err
}

// certificates reads a PEM file; no file has none.
func certificates(key, file string) (out []*x509.Certificate, err error) {
	if file == "" {
		return nil, nil
	}
	rest, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", key, file, err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s %s: no certificate in PEM form", key, file)
	}
	return out, nil
}

// splitTarget reads HOST, HOST:PORT or an https address.
func splitTarget(arg string) (host string, port int, err error) {
	if strings.Contains(arg, "://") {
		u, err := url.Parse(arg)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
			return "", 0, errors.New("want a host, or a host and a port, or an https address without a user")
		}
		return strings.ToLower(u.Hostname()), portOf(u), nil
	}
	if _, err := netip.ParseAddr(arg); err == nil { // also ::1, which holds colons
		return arg, 443, nil
	}
	host, text := arg, "443"
	if strings.Contains(arg, ":") {
		if host, text, err = net.SplitHostPort(arg); err != nil {
			return "", 0, fmt.Errorf("%q: want HOST or HOST:PORT", arg)
		}
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || host == "" {
		return "", 0, fmt.Errorf("%q: want HOST or HOST:PORT with a port from 1 to 65535", arg)
	}
	return strings.ToLower(host), int(n), nil
}

func portOf(u *url.URL) int {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return int(n)
	}
	return cmp.Or(map[string]int{"http": 80}[u.Scheme], 443)
}

// isLocal tells whether no resolver is asked for host.
func isLocal(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// handshakes examines the TLS of t, and returns what is wrong with it in short.
func (d *doctor) handshakes(ctx context.Context, t target, e *examined) (fault string) {
	ctx, cancel := context.WithTimeout(ctx, tlsLimit)
	defer cancel()
	where := net.JoinHostPort(t.host, strconv.Itoa(t.port))
	addrs, err := d.names.Addrs(ctx, t.host) // what Warmwire would use, also from the hosts file
	if err != nil {
		for _, f := range e.DNS {
			addrs = append(addrs, f.Addrs...)
		}
	}
	if len(addrs) == 0 {
		return "" // the name is the fault, and told of
	}
	e.known = true
	dialer := &stickyDialer{addrs: addrs, port: t.port}
	e.TLS, err = inspect.TLS(ctx, inspect.Config{
		Host: t.host, Port: t.port, Dial: dialer.dial, Roots: t.roots, RootsAsked: t.rootsAsked,
		ALPN: t.alpn, ClientCert: t.cert, MinVersion: t.minVersion,
		Intermediates: t.intermediates, Pins: t.pins, PinsReportOnly: t.pinsReportOnly,
	})
	switch {
	case err != nil:
		return where + ": " + err.Error()
	case e.TLS.Failure != nil:
		return where + ": " + e.TLS.Failure.Text
	case !e.TLS.Chain.Verified:
		return where + ": " + e.TLS.Chain.Problems[0].Text
	case e.TLS.ClientCert != nil && e.TLS.ClientCert.Failure != nil:
		return where + ": " + e.TLS.ClientCert.Failure.Text
	}
	return ""
}

// A stickyDialer stays with the first address that answers: what it is compared
// with should be the same machine.
type stickyDialer struct {
	addrs []netip.Addr
	port  int
}

func (d *stickyDialer) dial(ctx context.Context) (net.Conn, error) {
	var failed error
	for i, a := range d.addrs {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second) // several addresses share the limit of one attempt
		conn, err := new(net.Dialer).DialContext(limited, "tcp", netip.AddrPortFrom(a, uint16(d.port)).String())
		cancel()
		if err == nil {
			d.addrs = d.addrs[i : i+1]
			return conn, nil
		}
		failed = cmp.Or(failed, err)
	}
	return nil, failed
}
