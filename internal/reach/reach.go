// SPDX-License-Identifier: Apache-2.0

// Package reach says how a host can be reached from this machine: by IPv4, by IPv6, by
// QUIC, whether a login page stands before it, and how far this machine's clock is from
// the host's.
//
// It connects, sends a HEAD for the front page without any credential and one QUIC packet
// of a version that nobody speaks, which each server must answer (RFC 9000 §6).
//
// It refuses to judge certificates: what it reads is a hint for a person, also while a wrong
// clock makes all certificates look bad. It keeps nothing. [Look] is safe for
// concurrent use, ends within five times its Timeout, and reads 64 KiB of an answer at most.
package reach

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A Config says what to reach. Zero means the default.
type Config struct {
	Host      string
	Port      int
	Addrs     []netip.Addr
	TLS       bool             // https
	PlainPort int              // where a login page would answer; 0 = 80
	Timeout   time.Duration    // of one step; 0 = 2 s
	Now       func() time.Time // nil = time.Now
}

// A Report is what was found.
type Report struct {
	IPv4   *Family  `json:"ipv4,omitempty"` // nil: the host has no such address
	IPv6   *Family  `json:"ipv6,omitempty"`
	QUIC   bool     `json:"quic"`                          // UDP passes, and the host speaks QUIC
	Skew   *float64 `json:"clock_ahead_seconds,omitempty"` // of this machine; nil: the host did not say
	Portal string   `json:"login_page,omitempty"`          // where the network sends plain requests
}

// A Family is the addresses of one kind.
type Family struct {
	Addresses int     `json:"addresses"`
	Connected bool    `json:"connected"`
	Took      float64 `json:"connect_ms,omitempty"`
	Error     string  `json:"error,omitempty"`

	at netip.AddrPort // that connected
}

// Look reaches for a host.
func Look(ctx context.Context, cfg Config) Report {
	cfg.PlainPort, cfg.Timeout = cmp.Or(cfg.PlainPort, 80), cmp.Or(cfg.Timeout, 2*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	var v4, v6 []netip.Addr
	for _, a := range cfg.Addrs {
		if a = a.Unmap(); a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	r := Report{IPv4: cfg.family(ctx, v4), IPv6: cfg.family(ctx, v6)}
	var at netip.AddrPort
	for _, f := range []*Family{r.IPv6, r.IPv4} {
		if f != nil && f.Connected {
			at = f.at
		}
	}
	if at.IsValid() {
		r.Skew = cfg.skew(ctx, at)
		r.QUIC = cfg.TLS && cfg.quic(ctx, at)
	}
	if len(cfg.Addrs) > 0 {
		r.Portal = cfg.portal(ctx, netip.AddrPortFrom(cfg.Addrs[0], uint16(cfg.PlainPort)))
	}
	return r
}

// family connects to the first address that answers.
func (c Config) family(ctx context.Context, addrs []netip.Addr) *Family {
	if len(addrs) == 0 {
		return nil
	}
	f := &Family{Addresses: len(addrs)}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	for _, a := range addrs {
		at := netip.AddrPortFrom(a, uint16(c.Port))
		began := c.Now()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", at.String())
		if err != nil {
			f.Error = err.Error()
			continue
		}
		_ = conn.Close() // nothing was sent
		f.Connected, f.Took, f.at, f.Error = true, float64(c.Now().Sub(began).Microseconds())/1000, at, ""
		return f
	}
	return f
}

// client asks one address and follows nothing.
func (c Config) client(at netip.AddrPort) *http.Client {
	return &http.Client{
		Timeout:       c.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
			// No secret is sent, and a wrong clock is what makes certificates look bad.
			TLSClientConfig: &tls.Config{ServerName: c.Host, InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", at.String())
			},
		},
	}
}

func (c Config) head(ctx context.Context, at netip.AddrPort, scheme string, port int) (*http.Response, error) {
	target := url.URL{Scheme: scheme, Host: net.JoinHostPort(c.Host, strconv.Itoa(port)), Path: "/"}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, target.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.client(at).Do(req)
	if err != nil {
		return nil, err
	}
	return resp, resp.Body.Close()
}

// skew compares clocks. The host's is read to the second, between asking and answer.
func (c Config) skew(ctx context.Context, at netip.AddrPort) *float64 {
	scheme := "http"
	if c.TLS {
		scheme = "https"
	}
	before := c.Now()
	resp, err := c.head(ctx, at, scheme, c.Port)
	if err != nil {
		return nil
	}
	after := c.Now()
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return nil
	}
	ahead := 0.0
	switch theirsEnd := theirs.Add(time.Second); {
	case before.After(theirsEnd):
		ahead = before.Sub(theirsEnd).Seconds()
	case after.Before(theirs):
		ahead = -theirs.Sub(after).Seconds()
	}
	return &ahead
}

// portal is where a plain request is sent that should have been sent to the host itself
// (RFC 6585 §6 has a status of its own for it).
func (c Config) portal(ctx context.Context, at netip.AddrPort) string {
	resp, err := c.head(ctx, at, "http", c.PlainPort)
	if err != nil {
		return ""
	}
	to, err := url.Parse(resp.Header.Get("Location"))
	switch {
	case resp.StatusCode == http.StatusNetworkAuthenticationRequired:
		return cmp.Or(resp.Header.Get("Location"), "a page of this network")
	case err != nil || resp.StatusCode < 300 || resp.StatusCode > 399 || to.Hostname() == "" || sameSite(to.Hostname(), c.Host):
		return ""
	}
	to.RawQuery, to.Fragment, to.User = "", "", nil // may name this device
	return to.String()
}

// sameSite says whether two names end alike: a host may send its front page to another of
// its own.
func sameSite(a, b string) bool {
	site := func(name string) string {
		labels := strings.Split(strings.ToLower(strings.TrimSuffix(name, ".")), ".")
		return strings.Join(labels[max(0, len(labels)-2):], ".")
	}
	return site(a) == site(b)
}

// quicTries is how often the packet is sent: UDP may lose one.
const quicTries = 2

// quic sends a packet of a version that is reserved for this (RFC 9000 §15), as large as a
// first one must be (§14.1), and waits for Version Negotiation (RFC 8999 §6).
func (c Config) quic(ctx context.Context, at netip.AddrPort) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", at.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	const idLength = 8
	packet := make([]byte, 1200)
	_, _ = rand.Read(packet) // never fails
	packet[0] |= 0xc0
	binary.BigEndian.PutUint32(packet[1:], 0x1a2a3a4a)
	packet[5], packet[6+idLength] = idLength, idLength
	source := packet[7+idLength:][:idLength]
	answer := make([]byte, 1500)
	for range quicTries {
		if _, err := conn.Write(packet); err != nil {
			return false
		}
		if err := conn.SetReadDeadline(time.Now().Add(c.Timeout / quicTries)); err != nil {
			return false
		}
		n, err := conn.Read(answer)
		if err == nil && negotiates(answer[:n], source) {
			return true
		}
	}
	return false
}

// negotiates reads Version Negotiation: a long header, version 0, and our id as destination.
func negotiates(b, source []byte) bool {
	return len(b) > 6+len(source) && b[0]&0x80 != 0 && binary.BigEndian.Uint32(b[1:]) == 0 && int(b[5]) == len(source) && bytes.Equal(b[6:6+len(source)], source)
}
