// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Names of what is no upstream, in the upstreams of a role.
const (
	anyUpstream = "*"
	roleForward = "forward"
	roleTunnel  = "tunnel"
)

const (
	maxTenants     = 200 // each is a label of metrics
	leastToken     = 16  // bytes: what is shorter can be guessed
	maxTokenLength = 8 << 10
	leastSecret    = 32 // RFC 7518 §3.2
)

// tenantKeys are the settings of one tenant.
var tenantKeys = []key{
	{path: "tokens", kind: kList, def: "[]", secret: true, doc: "What its apps send as their API key, as Warmwire-Token or as the password of a proxy's URL, 16 bytes at least: \"${TEAM_A_TOKEN}\". `openssl rand -hex 32` makes one."},
	{path: "token_hashes", kind: kList, def: "[]", secret: true, doc: "The same as sha256:HEX of the token, so that the file holds nothing to steal. Of random tokens only: what can be guessed can be found by its hash."},
	{path: "token_files", kind: kList, def: "[]", doc: "Files with one token a line, read at start and at each reload."},
	{path: "uids", kind: kInts, def: "[]", doc: "Users whose programs are this tenant, told by the kernel: on a Unix socket and over loopback. Linux only."},
	{path: "gids", kind: kInts, def: "[]", doc: "Groups, on a Unix socket only: a program's own group, not those it is a member of besides. Linux only."},
	{path: "claims", kind: kMap, def: "{}", doc: "Claims that a JWT must have to be this tenant's, all of them: each a text, or one of a list of texts."},
	{path: "roles", kind: kList, def: "[]", doc: "What it may do: what they allow adds up. Needed."},
	{path: "priority", kind: kText, options: append([]string{""}, classNames...), doc: "The class of its requests, and the most that they may claim. Default: the upstream's."},
	{path: "weight", kind: kInt, def: "1", doc: "Its share of a full upstream beside other tenants of the same class."},
	{path: "quota.requests", kind: kInt, def: "0", zero: true, doc: "Requests a minute. 0 = no limit, also below. Over a limit there is 429 with Retry-After."},
	{path: "quota.output_tokens", kind: kInt, def: "0", zero: true, doc: "Output tokens a minute, as answers tell them, or the chunks of those that do not. Running answers end whole; new requests are refused."},
	{path: "quota.streams", kind: kInt, def: "0", zero: true, doc: "Requests, WebSockets and tunnels at once."},
	{path: "quota.upload", kind: kSize, def: "0", doc: "Bytes of request bodies a minute."},
	{path: "keys", kind: kMap, def: "{}", secret: true, doc: "API keys by upstream, sent in place of the app's own as the upstream's dialect has it: {openai: \"${TEAM_A_OPENAI_KEY}\"}. \"FIELD: VALUE\" names another field. An upstream without one gets its headers.set."},
}

// roleKeys are the settings of one role.
var roleKeys = []key{
	{path: "upstreams", kind: kList, def: "[]", doc: "Names of upstreams, * for all, forward for hosts that are none, tunnel for blind CONNECT tunnels. Needed."},
	{path: "methods", kind: kList, def: "[]", doc: "Methods, such as [GET, POST]; empty = all."},
	{path: "paths", kind: kList, def: "[]", doc: "Paths behind the upstream's url: * stands for anything inside of a segment, ** for anything; empty = all. A path that is written in a way servers read differently (.., //, %2F) fits none."},
	{path: "deny_paths", kind: kList, def: "[]", doc: "Paths that this role does not allow though paths does, in lower or upper case."},
}

// nameSections are the parts of the file that hold names, with settings below each.
var nameSections = map[string][]key{"tenants": tenantKeys, "roles": roleKeys}

// tunableTenant are the keys of a tenant that may be changed while Warmwire runs.
var tunableTenant = []string{"quota.", "priority", "weight"}

// A Tenant is one who calls.
type Tenant struct {
	Name       string
	Tokens     [][sha256.Size]byte // the SHA-256 of each
	TokenFiles []string
	UIDs, GIDs []uint32
	Claims     map[string]string
	Roles      []string
	Priority   string // "" = the upstream's
	Weight     int
	Quota      Quota
	Keys       map[string]string // by upstream

	masked bool // its tokens were written by Show
}

// Quota is how much a tenant may; 0 = no limit.
type Quota struct {
	Requests, OutputTokens, Streams int
	Upload                          Size
}

// A Role is what some tenants may do.
type Role struct {
	Name                                 string
	Upstreams, Methods, Paths, DenyPaths []string
}

// JWT is how JSON Web Tokens are verified.
type JWT struct {
	Issuer        string
	Audience      []string
	Secret        string
	KeysFile      string
	KeysURL       string
	CAFile        string
	Skew, Refresh Duration
}

// Enabled says whether there is anything to verify a JWT with.
func (j JWT) Enabled() bool { return j.Secret != "" || j.KeysFile != "" || j.KeysURL != "" }

// walkNamed reads a section of names.
func (p *parser) walkNamed(n *yaml.Node, section string) {
	if n.Kind != yaml.MappingNode {
		if !isNull(n) {
			p.addf(n.Line, section, "this is a section: one name a line, its settings below it")
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		path := join(section, k.Value)
		_, twice := p.values[path]
		switch {
		case k.Kind != yaml.ScalarNode || k.Anchor != "":
			p.addf(k.Line, section, "keys are plain names; anchors and merges are not used here")
		case !validName(k.Value):
			p.addf(k.Line, path, "a name has lower-case letters, digits, - and _, and begins with a letter or digit")
		case section == "tenants" && k.Value == "none":
			p.addf(k.Line, path, "is a name that metrics use for callers that are not known: choose another")
		case twice:
			p.addf(k.Line, path, "stands twice: first in line %d", p.values[path].line)
		case v.Kind == yaml.AliasNode || v.Anchor != "":
			p.addf(v.Line, path, "anchors and aliases are not used here: write the settings out")
		default:
			p.names[section] = append(p.names[section], k.Value)
			p.values[path] = value{line: k.Line}
			p.walk(v, path, "", nameSections[section])
		}
	}
}

func (p *parser) tenants() []Tenant {
	var out []Tenant
	for _, name := range slices.Sorted(slices.Values(p.names["tenants"])) {
		at := func(path string) value { return p.get(tenantKeys, path, "tenants."+name+"."+path) }
		t := Tenant{
			Name: name, TokenFiles: at("token_files").list, UIDs: ids(at("uids").list), GIDs: ids(at("gids").list), Claims: at("claims").dict,
			Roles: at("roles").list, Priority: at("priority").text, Weight: number(at("weight").text), Keys: at("keys").dict,
			Quota: Quota{number(at("quota.requests").text), number(at("quota.output_tokens").text), number(at("quota.streams").text), size(at("quota.upload").text)},
		}
		p.tokens(&t, at)
		out = append(out, t)
	}
	return out
}

func (p *parser) roles() []Role {
	var out []Role
	for _, name := range slices.Sorted(slices.Values(p.names["roles"])) {
		at := func(path string) []string { return p.get(roleKeys, path, "roles."+name+"."+path).list }
		out = append(out, Role{name, at("upstreams"), at("methods"), at("paths"), at("deny_paths")})
	}
	return out
}

func (p *parser) jwt() JWT {
	at := func(path string) value { return p.get(topKeys, "jwt."+path, "jwt."+path) }
	return JWT{at("issuer").text, at("audience").list, at("secret").text, at("keys_file").text, at("keys_url").text, at("ca_file").text,
		duration(at("skew").text), duration(at("refresh").text)}
}

func ids(list []string) []uint32 {
	var out []uint32
	for _, s := range list {
		out = append(out, uint32(number(s))) // checked when it was read
	}
	return out
}

// tokens hashes a tenant's tokens: from here on nobody has them in clear.
func (p *parser) tokens(t *Tenant, at func(string) value) {
	take := func(key string, line int, token string) {
		switch {
		case token == hidden:
			t.masked = true
		case len(token) < leastToken || len(token) > maxTokenLength:
			p.addf(line, "tenants."+t.Name+"."+key, "a token of %d bytes: %d to %d are needed", len(token), leastToken, maxTokenLength)
		default:
			t.Tokens = append(t.Tokens, sha256.Sum256([]byte(token)))
		}
	}
	v := at("tokens")
	for _, token := range v.list {
		take("tokens", v.line, token)
	}
	v = at("token_hashes")
	for _, text := range v.list {
		hash, ok := strings.CutPrefix(strings.ToLower(text), "sha256:")
		raw, err := hex.DecodeString(hash)
		if !ok || err != nil || len(raw) != sha256.Size {
			p.addf(v.line, "tenants."+t.Name+".token_hashes", "is not sha256: and 64 hexadecimal digits: printf %%s TOKEN | sha256sum")
			continue
		}
		t.Tokens = append(t.Tokens, [sha256.Size]byte(raw))
	}
	v = at("token_files")
	for _, path := range v.list {
		info, err := os.Stat(path)
		if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFileBytes) {
			p.addf(v.line, "tenants."+t.Name+".token_files", "%s is no file of at most 1 MiB", path)
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			p.addf(v.line, "tenants."+t.Name+".token_files", "%v", err)
			continue
		}
		before := len(t.Tokens)
		for token := range strings.FieldsSeq(string(text)) {
			take("token_files", v.line, token)
		}
		if len(t.Tokens) == before {
			p.addf(v.line, "tenants."+t.Name+".token_files", "%s has no token", path)
		}
	}
}

func (t Tenant) show(conceal func(string) string) map[string]any {
	keys := make(map[string]string, len(t.Keys))
	for name, key := range t.Keys {
		keys[name] = conceal(cmp.Or(key, hidden))
	}
	tokens := []string{}
	for _, token := range t.Tokens {
		tokens = append(tokens, conceal(hex.EncodeToString(token[:])))
	}
	if t.masked {
		tokens = append(tokens, hidden)
	}
	tokens = slices.Compact(tokens)
	return map[string]any{"tokens": tokens, "uids": t.UIDs, "gids": t.GIDs, "claims": t.Claims, "roles": t.Roles,
		"priority": t.Priority, "weight": t.Weight, "keys": keys, "quota": map[string]any{"requests": t.Quota.Requests,
			"output_tokens": t.Quota.OutputTokens, "streams": t.Quota.Streams, "upload": t.Quota.Upload.String()}}
}

// showTenants puts the sections of tenants into what is shown.
func (c *Config) showTenants(out map[string]any, conceal func(string) string) {
	tenants, roles := make(map[string]any), make(map[string]any)
	for _, t := range c.Tenants {
		tenants[t.Name] = t.show(conceal)
	}
	for _, r := range c.Roles {
		roles[r.Name] = map[string]any{"upstreams": r.Upstreams, "methods": r.Methods, "paths": r.Paths, "deny_paths": r.DenyPaths}
	}
	j := c.JWT
	maps.Copy(out, map[string]any{"tenants": tenants, "roles": roles, "jwt": map[string]any{"issuer": j.Issuer, "audience": j.Audience, "secret": conceal(j.Secret),
		"keys_file": j.KeysFile, "keys_url": j.KeysURL, "ca_file": j.CAFile, "skew": j.Skew.String(), "refresh": j.Refresh.String()}})
}
