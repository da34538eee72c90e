// SPDX-License-Identifier: Apache-2.0

package tenant

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// AnyUpstream in a Role stands for all upstreams of the configuration, and
// Forward and Tunnel for hosts that are none.
const (
	AnyUpstream = "*"
	Forward     = "forward" // by absolute form, or inside an intercepted tunnel
	Tunnel      = "tunnel"  // blindly, by CONNECT
)

// A Role allows requests. What several roles of one tenant allow adds up.
type Role struct {
	Name      string
	Upstreams []string // names, AnyUpstream, Forward, Tunnel
	Methods   []string // empty = all
	// Paths and DenyPaths are patterns of whole paths: * stands for anything in one
	// segment, ** for anything. No Paths = all.
	Paths, DenyPaths []string
}

type role struct {
	name      string
	upstreams map[string]bool
	methods   []string
	paths     []pattern
	denied    []pattern
	written   Role
}

// A pattern is a path, or what paths begin with, or a regular expression.
type pattern struct {
	whole, prefix string
	match         *regexp.Regexp
}

func (r Role) compile() (*role, error) {
	c := &role{name: r.Name, upstreams: make(map[string]bool), methods: r.Methods, written: r}
	if len(r.Upstreams) == 0 {
		return nil, errors.New("allows no upstream")
	}
	for _, u := range r.Upstreams {
		c.upstreams[u] = true
	}
	for _, p := range r.Paths {
		if slices.Contains(r.DenyPaths, p) {
			return nil, fmt.Errorf("allows and denies %s", p)
		}
		compiled, err := compile(p, false)
		if err != nil {
			return nil, err
		}
		c.paths = append(c.paths, compiled)
	}
	for _, p := range r.DenyPaths {
		compiled, err := compile(p, true)
		if err != nil {
			return nil, err
		}
		c.denied = append(c.denied, compiled)
	}
	return c, nil
}

// compile takes a pattern; folded ones do not tell upper from lower case.
func compile(p string, folded bool) (pattern, error) {
	if !strings.HasPrefix(p, "/") && p != "**" {
		return pattern{}, fmt.Errorf("pattern %q does not begin with /", p)
	}
	if rest, ok := strings.CutSuffix(p, "**"); ok && !folded && !strings.Contains(rest, "*") {
		return pattern{prefix: rest}, nil
	}
	if !folded && !strings.Contains(p, "*") {
		return pattern{whole: p}, nil
	}
	text := regexp.QuoteMeta(p)
	text = strings.ReplaceAll(text, `\*\*`, "\x00")
	text = strings.ReplaceAll(text, `\*`, "[^/]*")
	text = strings.ReplaceAll(text, "\x00", ".*")
	if folded {
		text = "(?i)^" + text + "$"
	} else {
		text = "^" + text + "$"
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return pattern{}, fmt.Errorf("pattern %q: %w", p, err)
	}
	return pattern{match: re}, nil
}

func (p pattern) fits(path string) bool {
	switch {
	case p.match != nil:
		return p.match.MatchString(path)
	case p.whole != "":
		return p.whole == path
	}
	return strings.HasPrefix(path, p.prefix)
}

// contradiction finds a path that one role allows by name and another denies by
// name, for the same upstream; "" if there is none.
func contradiction(roles []*role) string {
	for _, a := range roles {
		for _, b := range roles {
			for _, p := range a.written.Paths {
				if a != b && slices.Contains(b.written.DenyPaths, p) && share(a, b) {
					return fmt.Sprintf("its role %s allows %s, which its role %s denies", a.name, p, b.name)
				}
			}
		}
	}
	return ""
}

// share says whether two roles speak of the same upstream and method.
func share(a, b *role) bool {
	upstream := a.upstreams[AnyUpstream] || b.upstreams[AnyUpstream]
	for u := range a.upstreams {
		upstream = upstream || b.upstreams[u]
	}
	method := len(a.methods) == 0 || len(b.methods) == 0 ||
		slices.ContainsFunc(a.methods, func(m string) bool { return slices.Contains(b.methods, m) })
	return upstream && method
}

// Permits says whether one of the tenant's roles allows a request. path is as it
// was sent, without its query.
func (t *Tenant) Permits(upstream, method, path string) bool {
	plain, ok := canonical(path)
	return slices.ContainsFunc(t.roles, func(r *role) bool { return r.allows(upstream, method, plain, ok) })
}

// Reaches says whether one of the tenant's roles has an upstream, whatever else
// it asks of a request.
func (t *Tenant) Reaches(upstream string) bool {
	return slices.ContainsFunc(t.roles, func(r *role) bool { return r.has(upstream) })
}

func (r *role) has(upstream string) bool {
	return r.upstreams[upstream] || r.upstreams[AnyUpstream] && upstream != Forward && upstream != Tunnel
}

func (r *role) allows(upstream, method, path string, known bool) bool {
	if !r.has(upstream) || len(r.methods) > 0 && !slices.Contains(r.methods, method) {
		return false
	}
	if len(r.paths) == 0 && len(r.denied) == 0 {
		return true
	}
	fits := func(p pattern) bool { return p.fits(path) }
	return known && (len(r.paths) == 0 || slices.ContainsFunc(r.paths, fits)) && !slices.ContainsFunc(r.denied, fits)
}

// canonical is a path with its escapes resolved. It is not known what a server
// makes of one with dot segments, empty segments, backslashes, or escapes of
// these or of escapes: no pattern speaks of those.
func canonical(path string) (string, bool) {
	if !strings.HasPrefix(path, "/") {
		return "", false
	}
	if strings.Contains(path, "%") {
		lower := strings.ToLower(path)
		for _, hidden := range [...]string{"%2f", "%5c", "%25", "%00"} {
			if strings.Contains(lower, hidden) {
				return "", false
			}
		}
		var err error
		if path, err = url.PathUnescape(path); err != nil {
			return "", false
		}
	}
	if strings.Contains(path, "//") || strings.ContainsAny(path, "\\;?#\n\r") {
		return "", false
	}
	for rest := path; rest != ""; {
		var segment string
		segment, rest, _ = strings.Cut(rest[1:], "/")
		if segment == "." || segment == ".." {
			return "", false
		}
		if rest != "" {
			rest = "/" + rest
		}
	}
	return path, true
}
