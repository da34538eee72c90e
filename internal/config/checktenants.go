// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// tenants wants each caller to be one tenant, and roles that mean something and do
// not contradict each other or the rest of the file.
func (c *checker) tenants() {
	c.jwt()
	for _, r := range c.cfg.Roles {
		c.role(r)
	}
	seen := make(map[string]string) // what identifies -> whom
	for _, t := range c.cfg.Tenants {
		c.tenant(t, seen)
	}
	if len(c.cfg.Tenants) == 0 {
		for _, r := range c.cfg.Roles {
			c.warnf(c.line("roles."+r.Name), "roles."+r.Name, "does nothing: there are no tenants")
		}
		return
	}
	if n := len(c.cfg.Tenants); n > maxTenants {
		c.addf(0, "tenants", "%d are more than %d", n, maxTenants)
	}
	if c.cfg.Listen.Token != "" {
		c.warnf(c.line("listen.token"), "listen.token", "apps are known by what their tenant has: it guards the admin listener only, and that outside loopback")
	}
	if len(c.cfg.Listen.AllowUIDs) > 0 {
		c.warnf(c.line("listen.allow_uids"), "listen.allow_uids", "does nothing beside tenants: put users into uids of one")
	}
}

// once notes what identifies a tenant, and wants it to be nobody else's.
func (c *checker) once(seen map[string]string, t Tenant, key, what, id string) {
	path := "tenants." + t.Name + "." + key
	if other, twice := seen[id]; twice && other == t.Name {
		c.addf(c.line(path), path, "has %s twice", what)
	} else if twice {
		c.addf(c.line(path), path, "has the same %s as tenant %s: a caller is one tenant only", what, other)
	}
	seen[id] = t.Name
}

func (c *checker) tenant(t Tenant, seen map[string]string) {
	at := "tenants." + t.Name
	key := "tokens"
	for _, k := range []string{"token_files", "token_hashes", "tokens"} {
		if _, set := c.values[at+"."+k]; set {
			key = k
		}
	}
	for _, h := range t.Tokens {
		c.once(seen, t, key, "token", fmt.Sprintf("token %x", h))
	}
	for _, id := range t.UIDs {
		c.once(seen, t, "uids", fmt.Sprintf("user %d", id), fmt.Sprintf("user %d", id))
	}
	for _, id := range t.GIDs {
		c.once(seen, t, "gids", fmt.Sprintf("group %d", id), fmt.Sprintf("group %d", id))
	}
	if len(t.Claims) > 0 {
		c.once(seen, t, "claims", "claims", fmt.Sprintf("claims %q", t.Claims))
		if !c.cfg.JWT.Enabled() {
			c.addf(c.line(at+".claims"), at+".claims", "no JWT can be verified: set jwt.keys_url, jwt.keys_file or jwt.secret")
		}
	}
	if len(t.Tokens)+len(t.UIDs)+len(t.GIDs)+len(t.Claims) == 0 && !t.masked {
		c.addf(c.line(at), at, "nobody is this tenant: set tokens, token_hashes, token_files, uids, gids or claims")
	}
	roles := c.rolesOf(t)
	c.contradictions(t, roles)
	for _, name := range slices.Sorted(maps.Keys(t.Keys)) {
		c.tenantKey(t, name, roles)
	}
}

// rolesOf finds a tenant's roles.
func (c *checker) rolesOf(t Tenant) []Role {
	path := "tenants." + t.Name + ".roles"
	var roles []Role
	for i, name := range t.Roles {
		j := slices.IndexFunc(c.cfg.Roles, func(r Role) bool { return r.Name == name })
		switch {
		case j < 0:
			c.addf(c.line(path), path, "there is no role %q", clip(name))
		case slices.Contains(t.Roles[:i], name):
			c.addf(c.line(path), path, "names %s twice", name)
		default:
			roles = append(roles, c.cfg.Roles[j])
		}
	}
	if len(t.Roles) == 0 {
		c.addf(c.line("tenants."+t.Name), path, "is needed: without a role a tenant may do nothing")
	}
	return roles
}

// contradictions finds what one role of a tenant allows and another denies by name.
func (c *checker) contradictions(t Tenant, roles []Role) {
	path := "tenants." + t.Name + ".roles"
	for _, a := range roles {
		for _, b := range roles {
			for _, p := range a.Paths {
				if a.Name != b.Name && slices.Contains(b.DenyPaths, p) && overlap(a.Upstreams, b.Upstreams, anyUpstream) && overlap(a.Methods, b.Methods, "") {
					c.addf(c.line(path), path, "role %s allows %s, which role %s denies", a.Name, p, b.Name)
				}
			}
		}
	}
}

// overlap says whether two lists share one; all stands for any, and so does no list
// at all if all is "".
func overlap(a, b []string, all string) bool {
	if all == "" && (len(a) == 0 || len(b) == 0) || slices.Contains(a, all) || slices.Contains(b, all) {
		return true
	}
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// tenantKey checks the API key of one upstream.
func (c *checker) tenantKey(t Tenant, upstream string, roles []Role) {
	path := "tenants." + t.Name + ".keys"
	line := c.line(path)
	if !slices.ContainsFunc(c.cfg.Upstreams, func(u Upstream) bool { return u.Name == upstream }) {
		c.addf(line, path, "there is no upstream %q", clip(upstream))
		return
	}
	if !slices.ContainsFunc(roles, func(r Role) bool {
		return slices.Contains(r.Upstreams, upstream) || slices.Contains(r.Upstreams, anyUpstream)
	}) {
		c.addf(line, path, "has a key for %s, which none of its roles allows", upstream)
	}
	field, v := t.Key(upstream, "")
	switch {
	case v == "":
		c.addf(line, path, "the key of %s is empty", upstream)
	case !httpguts.ValidHeaderFieldName(field) || slices.ContainsFunc(notInjectable, func(n string) bool { return strings.EqualFold(n, field) }):
		c.addf(line, path, "the key of %s names a field that cannot be set", upstream)
	case !httpguts.ValidHeaderFieldValue(v):
		c.addf(line, path, "the key of %s has bytes that no field may have", upstream)
	}
}

// Key is the field and value that an upstream of a dialect gets for this tenant;
// "" = none.
func (t Tenant) Key(upstream, dialect string) (field, v string) {
	v, ok := t.Keys[upstream]
	if !ok {
		return "", ""
	}
	if field, rest, ok := strings.Cut(v, ": "); ok {
		return field, strings.TrimSpace(rest)
	}
	switch {
	case v == "":
		return "Authorization", ""
	case dialect == "anthropic":
		return "X-Api-Key", v
	case dialect == "gemini":
		return "X-Goog-Api-Key", v
	}
	return "Authorization", "Bearer " + v
}

func (c *checker) role(r Role) {
	at := "roles." + r.Name
	addf := func(key, format string, args ...any) { c.addf(c.line(at+"."+key), at+"."+key, format, args...) }
	if len(r.Upstreams) == 0 {
		c.addf(c.line(at), at+".upstreams", "is needed: a role without one allows nothing")
	}
	for i, u := range r.Upstreams {
		special := u == anyUpstream || u == roleForward || u == roleTunnel
		switch {
		case slices.Contains(r.Upstreams[:i], u):
			addf("upstreams", "names %s twice", clip(u))
		case !special && !slices.ContainsFunc(c.cfg.Upstreams, func(up Upstream) bool { return up.Name == u }):
			addf("upstreams", "there is no upstream %q", clip(u))
		case (u == roleForward || u == roleTunnel) && c.cfg.Forward.Default == "deny":
			addf("upstreams", "allows %s, and forward.default denies it to everybody", u)
		}
	}
	for i, m := range r.Methods {
		switch {
		case !httpguts.ValidHeaderFieldName(m) || strings.ToUpper(m) != m:
			addf("methods", "%q is no method: they are written in capitals", clip(m))
		case m == "CONNECT":
			addf("methods", "CONNECT is allowed by tunnel in upstreams")
		case slices.Contains(r.Methods[:i], m):
			addf("methods", "names %s twice", m)
		}
	}
	if slices.Equal(r.Upstreams, []string{roleTunnel}) && len(r.Methods)+len(r.Paths)+len(r.DenyPaths) > 0 {
		addf("upstreams", "is tunnel alone, in which nothing can be seen: methods and paths mean nothing there")
	}
	for _, l := range []struct {
		key  string
		list []string
	}{{"paths", r.Paths}, {"deny_paths", r.DenyPaths}} {
		for _, p := range l.list {
			if !strings.HasPrefix(p, "/") && p != "**" || strings.ContainsAny(p, "?#%\\ ") || strings.Contains(p, "//") || strings.Contains(p, "/.") || strings.Contains(p, "***") {
				addf(l.key, "%q is no path that could fit: it begins with /, and has no query, escape or dot segment", clip(p))
			}
		}
	}
	for _, p := range r.Paths {
		if slices.Contains(r.DenyPaths, p) {
			addf("deny_paths", "denies %s, which paths allows", p)
		}
	}
	if !slices.ContainsFunc(c.cfg.Tenants, func(t Tenant) bool { return slices.Contains(t.Roles, r.Name) }) && len(c.cfg.Tenants) > 0 {
		c.warnf(c.line(at), at, "does nothing: no tenant has it")
	}
}

func (c *checker) jwt() {
	j := c.cfg.JWT
	addf := func(key, format string, args ...any) { c.addf(c.line("jwt."+key), "jwt."+key, format, args...) }
	if !j.Enabled() {
		for k, set := range map[string]bool{"issuer": j.Issuer != "", "audience": len(j.Audience) > 0, "ca_file": j.CAFile != ""} {
			if set {
				addf(k, "does nothing without a key: set jwt.keys_url, jwt.keys_file or jwt.secret")
			}
		}
		return
	}
	if !slices.ContainsFunc(c.cfg.Tenants, func(t Tenant) bool { return len(t.Claims) > 0 }) {
		c.addf(0, "jwt", "identifies nobody: no tenant has claims")
	}
	if j.Issuer == "" {
		addf("issuer", "is needed: whose tokens are meant?")
	}
	if len(j.Audience) == 0 {
		c.warnf(c.line("jwt.issuer"), "jwt.audience", "is not set: tokens that the issuer made for others are accepted too")
	}
	if j.Secret != "" && j.Secret != hidden && len(j.Secret) < leastSecret {
		addf("secret", "has %d bytes: %d are needed (RFC 7518 §3.2)", len(j.Secret), leastSecret)
	}
	for _, f := range []struct{ key, path string }{{"keys_file", j.KeysFile}, {"ca_file", j.CAFile}} {
		if f.path == "" {
			continue
		}
		if info, err := os.Stat(f.path); err != nil {
			addf(f.key, "%v", err)
		} else if info.IsDir() {
			addf(f.key, "%s is a folder", f.path)
		}
	}
	if j.CAFile != "" && j.KeysURL == "" {
		addf("ca_file", "does nothing without jwt.keys_url")
	}
	if j.KeysURL != "" {
		u, err := url.Parse(j.KeysURL)
		if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || !validHost(u.Hostname()) || u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())) {
			addf("keys_url", "needs https://host/path, or http:// on loopback")
		}
	}
	if j.Skew > Duration(10*time.Minute) {
		addf("skew", "%v is more than 10m: set the clocks", j.Skew)
	}
	if j.Refresh < Duration(time.Minute) || j.Refresh > Duration(24*time.Hour) {
		addf("refresh", "%v is outside 1m to 24h", j.Refresh)
	}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
