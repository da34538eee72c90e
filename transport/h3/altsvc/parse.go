// SPDX-License-Identifier: Apache-2.0

package altsvc

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Bounds of a field. Servers that offer something send one or two short lines.
const (
	maxBytes    = 8 << 10
	maxServices = 16
	defaultAge  = 24 * time.Hour // RFC 7838 §3.1
	maxAge      = 365 * 24 * time.Hour
)

// A Service is one alternative of an origin.
type Service struct {
	Protocol string        // as ALPN names it
	Host     string        // "" = the origin's own; IPv6 without brackets
	Port     uint16        // never 0
	MaxAge   time.Duration // how long it may be used from when it was said
	Persist  bool          // also on another network
}

// A Field is what an Alt-Svc field says.
type Field struct {
	Clear    bool // forget what was offered before; Services is empty
	Services []Service
}

// Parse reads the lines of one Alt-Svc field. A field that is not valid offers
// nothing; entries beyond a bound are dropped.
func Parse(lines []string) (Field, error) {
	value := strings.Join(lines, ",") // RFC 9110 §5.2
	if len(value) > maxBytes {
		return Field{}, fmt.Errorf("altsvc: a field of %d bytes", len(value))
	}
	if strings.Trim(value, " \t") == "clear" { // RFC 7838 §3: case-sensitive
		return Field{Clear: true}, nil
	}
	p := parser{rest: value}
	var f Field
	for {
		p.skip(" \t,") // a list may have empty elements (RFC 9110 §5.6.1)
		if p.rest == "" {
			break
		}
		s, err := p.service()
		if err != nil {
			return Field{}, err
		}
		if len(f.Services) < maxServices {
			f.Services = append(f.Services, s)
		}
	}
	if len(f.Services) == 0 {
		return Field{}, errors.New("altsvc: an empty field")
	}
	return f, nil
}

// A parser holds what is not read yet.
type parser struct{ rest string }

func (p *parser) skip(set string) { p.rest = strings.TrimLeft(p.rest, set) }

// take takes b if it comes next.
func (p *parser) take(b byte) bool {
	if p.rest == "" || p.rest[0] != b {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// service reads one alt-value.
func (p *parser) service() (Service, error) {
	s := Service{MaxAge: defaultAge}
	id, err := p.token()
	if err != nil {
		return s, err
	}
	if s.Protocol, err = url.PathUnescape(id); err != nil {
		return s, errors.New("altsvc: a protocol that is not coded as it must be")
	}
	if !p.take('=') {
		return s, errors.New("altsvc: a protocol without a place")
	}
	authority, err := p.quoted()
	if err != nil {
		return s, err
	}
	if s.Host, s.Port, err = place(authority); err != nil {
		return s, err
	}
	for {
		p.skip(" \t")
		if p.rest == "" || p.rest[0] == ',' {
			return s, nil
		}
		if !p.take(';') {
			return s, errors.New("altsvc: something that is no parameter")
		}
		p.skip(" \t")
		if err := p.parameter(&s); err != nil {
			return s, err
		}
	}
}

// parameter reads one, and ignores those that are not known (RFC 7838 §3.1).
func (p *parser) parameter(s *Service) error {
	name, err := p.token()
	if err != nil {
		return err
	}
	if !p.take('=') {
		return errors.New("altsvc: a parameter without a value")
	}
	var value string
	if strings.HasPrefix(p.rest, `"`) {
		value, err = p.quoted()
	} else {
		value, err = p.token()
	}
	if err != nil {
		return err
	}
	switch strings.ToLower(name) {
	case "ma":
		if value == "" || strings.Trim(value, "0123456789") != "" {
			return errors.New("altsvc: an age that is not a number")
		}
		s.MaxAge = maxAge
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n < int64(maxAge/time.Second) { // RFC 9111 §1.2.2: more is much
			s.MaxAge = time.Duration(n) * time.Second
		}
	case "persist":
		s.Persist = value == "1" // RFC 7838 §3.1: other values are ignored
	}
	return nil
}

func (p *parser) token() (string, error) {
	n := 0
	for n < len(p.rest) && isToken(p.rest[n]) {
		n++
	}
	if n == 0 {
		return "", errors.New("altsvc: a token is missing")
	}
	t := p.rest[:n]
	p.rest = p.rest[n:]
	return t, nil
}

func isToken(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}

// quoted reads a quoted-string (RFC 9110 §5.6.4).
func (p *parser) quoted() (string, error) {
	if !p.take('"') {
		return "", errors.New("altsvc: a quoted string is missing")
	}
	var b strings.Builder
	for i := 0; i < len(p.rest); i++ {
		c := p.rest[i]
		switch {
		case c == '"':
			p.rest = p.rest[i+1:]
			return b.String(), nil
		case c == '\\' && i+1 < len(p.rest):
			i++
			c = p.rest[i]
		}
		if c < ' ' && c != '\t' || c == 0x7f {
			return "", errors.New("altsvc: a control character")
		}
		b.WriteByte(c)
	}
	return "", errors.New("altsvc: a quoted string without an end")
}

// place reads an alt-authority: [ uri-host ] ":" port.
func place(s string) (host string, port uint16, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", 0, errors.New("altsvc: a place without a port")
	}
	digits := s[i+1:]
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '+' {
		return "", 0, errors.New("altsvc: a port that is not one")
	}
	if host, err = hostOf(s[:i]); err != nil {
		return "", 0, err
	}
	return host, uint16(n), nil
}

func hostOf(s string) (string, error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		if !closed || err != nil || !a.Is6() || a.Zone() != "" {
			return "", errors.New("altsvc: a host that is no IPv6 address")
		}
		return a.String(), nil
	}
	if len(s) > 255 {
		return "", errors.New("altsvc: a host that is too long")
	}
	for i := range len(s) {
		b := s[i]
		if !('a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '-' || b == '.' || b == '_') {
			return "", errors.New("altsvc: a host that is not one")
		}
	}
	return strings.ToLower(s), nil
}
